"""A request as the numbers that operators of PyTorch take and that the kernel gets: one lowering for both."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from torchdojo.gradients.request import Request
from torchdojo.solver.options import GradientMode, OnFailure, SolverOptions

__all__ = ["FIELDS", "lift", "lower"]

#: The numbers of a request, in order. The kernel knows those before "raises" by the same names (`Options` in the generated header).
FIELDS = (
    "kappa",
    "grad_kappa",
    "residual_tol",
    "path_tol",
    "max_iterations",
    "min_iterations",
    "max_halvings",
    "gradient_mode",
    "raises",
    "raise_invalid",
)


def lower(request: Request) -> list[float]:
    """The numbers of a request, without the κ that environments have of their own."""
    options = request.options
    residual_tol, path_tol = options.tolerances(torch.float64)
    return [
        options.kappa,
        options.grad_kappa or options.kappa,
        residual_tol,
        path_tol,
        float(options.max_iterations),
        float(options.min_iterations),
        float(options.max_halvings),
        float(list(GradientMode).index(request.mode)),
        float(options.on_failure is OnFailure.RAISE),
        float(request.raise_invalid),
    ]


def lift(numbers: Sequence[float]) -> Request:
    """The request that `lower` made these numbers of."""
    return _lift(tuple(numbers))


@functools.lru_cache(maxsize=64)
def _lift(numbers: tuple[float, ...]) -> Request:
    value = dict(zip(FIELDS, numbers, strict=True))
    options = SolverOptions(
        kappa=value["kappa"],
        grad_kappa=None if value["grad_kappa"] == value["kappa"] else value["grad_kappa"],
        gradient_mode=list(GradientMode)[int(value["gradient_mode"])],
        residual_tol=value["residual_tol"],
        central_path_tol=value["path_tol"],
        max_iterations=int(value["max_iterations"]),
        min_iterations=int(value["min_iterations"]),
        max_halvings=int(value["max_halvings"]),
        on_failure=OnFailure.RAISE if value["raises"] else OnFailure.FLAG,
    )
    return Request(options, None, bool(value["raise_invalid"]))

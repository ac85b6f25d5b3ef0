"""A request as numbers, as operators of PyTorch take it. The kernel's options are a part of these numbers."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

import torch

from torchdojo.gradients.request import Request
from torchdojo.native.calls import STRUCTS, Options
from torchdojo.native.tables import GRADIENT_MODES
from torchdojo.solver.interior_point import WARM_ITERATIONS
from torchdojo.solver.options import OnFailure, SolverOptions

__all__ = ["decode", "encode", "kernel_options"]

#: The kernel's own options, then the options that Python applies to the result.
OWN = ("raises", "raise_invalid", "repeat", "driven")
FIELDS = (*(name for name in STRUCTS["TdOptions"] if name not in ("warm_iterations", "threads")), *OWN)
_MODES = {number: mode for mode, number in GRADIENT_MODES.items()}


def encode(request: Request) -> list[float]:
    """The numbers of a request, in the order of `FIELDS`, without the κ of single environments."""
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
        float(options.max_total_iterations),
        options.depenetration_speed or 0.0,
        float(GRADIENT_MODES[request.mode]),
        float(request.budget),
        float(options.on_failure is OnFailure.RAISE),
        float(request.raise_invalid),
        float(request.repeat),
        float(request.driven),
    ]


def decode(numbers: Sequence[float]) -> Request:
    """The request from which `encode` makes these numbers."""
    return _decode(tuple(numbers))


@functools.lru_cache(maxsize=64)
def _decode(numbers: tuple[float, ...]) -> Request:
    value = dict(zip(FIELDS, numbers, strict=True))
    options = SolverOptions(
        kappa=value["kappa"],
        grad_kappa=None if value["grad_kappa"] == value["kappa"] else value["grad_kappa"],
        gradient_mode=_MODES[int(value["gradient_mode"])],
        residual_tol=value["residual_tol"],
        central_path_tol=value["path_tol"],
        max_iterations=int(value["max_iterations"]),
        min_iterations=int(value["min_iterations"]),
        max_halvings=int(value["max_halvings"]),
        max_total_iterations=int(value["max_total_iterations"]),
        depenetration_speed=value["depenetration_speed"] or None,
        on_failure=OnFailure.RAISE if value["raises"] else OnFailure.FLAG,
    )
    return Request(
        options,
        raise_invalid=bool(value["raise_invalid"]),
        repeat=int(value["repeat"]),
        driven=bool(value["driven"]),
        budget=int(value["budget"]),
    )


@functools.lru_cache(maxsize=64)
def kernel_options(request: Request, threads: int) -> ctypes.Structure:
    """The options of a kernel call."""
    value = dict(zip(FIELDS, encode(request), strict=True)) | {"warm_iterations": WARM_ITERATIONS, "threads": threads}
    kinds = STRUCTS["TdOptions"]
    return Options(**{name: value[name] if kind == "double" else int(value[name]) for name, kind in kinds.items()})

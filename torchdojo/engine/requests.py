"""The request of one call: checks of its `grad_kappa`, and of gradient modes that the mechanism supports."""

from __future__ import annotations

import dataclasses
import functools

import torch
from torch import Tensor

from torchdojo.dynamics.system import System
from torchdojo.elements.element import Element
from torchdojo.gradients.request import Request
from torchdojo.parameters import broadcast_shapes, transforming
from torchdojo.solver.options import GradientMode, SolverOptions

__all__ = ["refuse_jacobian", "request_of"]


def request_of(
    system: System,
    options: SolverOptions,
    z: Tensor,
    grad_kappa: float | Tensor | None,
    *,
    raise_invalid: bool = False,
    repeat: int = 1,
    budget: object = None,
) -> tuple[Tensor, Request]:
    """The request of a call with `grad_kappa`, and z with the batch dimensions that `grad_kappa` adds.

    Raises:
        ValueError: a gradient mode that the mechanism cannot have; a `grad_kappa` out of range, or for a mode that has none.
        RuntimeError: a tensor inside `torch.func` transforms or `torch.compile`.
    """
    if options.gradient_mode is not GradientMode.CENTRAL_PATH:
        _check_mode(system, options)
    most, device = check_budget(budget), z.device if z.is_cuda else None
    if grad_kappa is None:
        return z, Request(options, None, raise_invalid, repeat, budget=most, device=device)
    _check_has_kappa(options)
    if not isinstance(grad_kappa, Tensor):
        if isinstance(grad_kappa, bool) or not isinstance(grad_kappa, (int, float)):
            raise TypeError(f"grad_kappa: got {type(grad_kappa).__name__}; allowed: a number, or a tensor (...,) with one per environment")
        return z, Request(_with_grad_kappa(options, float(grad_kappa)), None, raise_invalid, repeat, budget=most, device=device)
    if torch.compiler.is_compiling() or transforming():
        raise RuntimeError("grad_kappa: got a tensor inside torch.func or torch.compile, which hide its values; give a number there")
    kappas = _each_environment(options, z, grad_kappa)
    request = Request(options, kappas, raise_invalid, repeat, budget=most, device=device)
    return z.expand(*broadcast_shapes(z.shape[:-1], kappas.shape), z.shape[-1]), request


def check_budget(budget: object) -> int:
    """Newton iterations of a step, after which an environment is given up; 0 for None.

    Raises:
        TypeError, ValueError: not a whole number of 1 or more.
    """
    if budget is None:
        return 0
    if isinstance(budget, bool) or not isinstance(budget, int):
        raise TypeError(f"budget: got {budget!r}; allowed: a whole number of Newton iterations per step, or None")
    if budget < 1:
        raise ValueError(f"budget: got {budget}; allowed: 1 or more Newton iterations per step, or None for no bound")
    return budget


def _each_environment(options: SolverOptions, z: Tensor, grad_kappa: Tensor) -> Tensor:
    """Check `grad_kappa` (...,), one value for each environment."""
    if grad_kappa.requires_grad:
        raise ValueError("grad_kappa: got a tensor that requires grad, but no gradient by grad_kappa exists; give grad_kappa.detach()")
    wrong = ~(torch.isfinite(grad_kappa) & (grad_kappa >= options.kappa))  # NaN is wrong, too
    if bool(wrong.any()):
        worst = float(grad_kappa[wrong][0])
        raise ValueError(
            f"grad_kappa: got {worst} in {int(wrong.sum())} of {wrong.numel()} places; allowed: kappa = {options.kappa} or larger"
        )
    try:
        broadcast_shapes(z.shape[:-1], grad_kappa.shape)
    except RuntimeError:
        raise ValueError(
            f"grad_kappa: got shape {tuple(grad_kappa.shape)}; allowed: shapes that broadcast with the batch {tuple(z.shape[:-1])} of z"
        ) from None
    return grad_kappa.to(z)


def _check_has_kappa(options: SolverOptions) -> None:
    mode = GradientMode(options.gradient_mode)
    sampled = options.randomized is not None and options.randomized.mode is not GradientMode.CENTRAL_PATH
    if mode.needs_limit or sampled:
        raise ValueError(f"grad_kappa: got one with gradient_mode={mode.value!r} in the limit of no smoothing; use 'central_path'")


def _check_mode(system: System, options: SolverOptions) -> None:
    mode, sampled = GradientMode(options.gradient_mode), options.randomized
    if mode is GradientMode.RANDOMIZED and (torch.compiler.is_compiling() or transforming()):
        raise RuntimeError("gradient_mode='randomized' draws samples, which torch.func and torch.compile do not allow here; use another")
    if not mode.needs_limit and (sampled is None or sampled.mode is GradientMode.CENTRAL_PATH):
        return
    if options.dtype != torch.float64:
        raise ValueError(f"gradient_mode={mode.value!r} needs float64; got SolverOptions(dtype={options.dtype}); leave dtype out")
    for key, element in system.elements.items():
        if element.cones.size and type(element).at_limit is Element.at_limit:
            raise ValueError(
                f"gradient_mode={mode.value!r}: {key!r} ({type(element).__name__}) has no hard limit to differentiate; give its class an "
                "`at_limit`, or use gradient_mode='central_path' or 'randomized'"
            )


@functools.lru_cache(maxsize=64)
def _with_grad_kappa(options: SolverOptions, grad_kappa: float) -> SolverOptions:
    return dataclasses.replace(options, grad_kappa=grad_kappa)


def refuse_jacobian(options: SolverOptions) -> None:
    """Raise ValueError where derivatives depend on a loss."""
    if options.gradient_mode is GradientMode.COMPLEMENTARITY_AWARE:
        raise ValueError(
            "jacobians: gradient_mode='complementarity_aware' depends on a loss, and a Jacobian has none; use 'exact', or backward()"
        )

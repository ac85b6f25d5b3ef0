"""How one call of a mechanism is differentiated: its `grad_kappa`, modes that a mechanism cannot have, and randomized smoothing."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.dynamics.integrator import STATE_SIZE
from torchdojo.elements.element import Element
from torchdojo.gradients.implicit import transforming
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.solver.options import GradientMode, RandomizedSmoothing, SolverOptions, Status

if TYPE_CHECKING:
    from torchdojo.mechanism import Mechanism

__all__ = ["Differentiation", "differentiation", "randomized_jacobian", "randomized_stepper", "refuse_jacobian", "sampled_options"]

Stepper = Callable[[Tensor, Tensor, Tensor, Tensor | None], StepOutput]


class Differentiation(NamedTuple):
    """The options of a call, and the κ at which derivatives are taken, (...,), where environments have their own."""

    options: SolverOptions
    grad_kappa: Tensor | None = None


def differentiation(mech: Mechanism, z: Tensor, grad_kappa: float | Tensor | None) -> tuple[Tensor, Differentiation]:
    """What a call with `grad_kappa` does, and z with the batch dimensions that it has besides.

    Raises:
        ValueError: a gradient mode that the mechanism cannot have; a `grad_kappa` out of range, or of a mode without.
        RuntimeError: a tensor inside `torch.func` transforms or `torch.compile`.
    """
    options = mech.options
    if options.gradient_mode is not GradientMode.CENTRAL_PATH:
        _check_mode(mech, options)
    if grad_kappa is None:
        return z, Differentiation(options)
    _check_has_kappa(options)
    if not isinstance(grad_kappa, Tensor):
        if isinstance(grad_kappa, bool) or not isinstance(grad_kappa, (int, float)):
            raise TypeError(f"grad_kappa: got {type(grad_kappa).__name__}; allowed: a number, or a tensor (...,) with one per environment")
        return z, Differentiation(_with_grad_kappa(options, float(grad_kappa)))
    if torch.compiler.is_compiling() or transforming():
        raise RuntimeError("grad_kappa: got a tensor inside torch.func or torch.compile, which hide its values; give a number there")
    return _each_environment(options, z, grad_kappa)


def _each_environment(options: SolverOptions, z: Tensor, grad_kappa: Tensor) -> tuple[Tensor, Differentiation]:
    if grad_kappa.requires_grad:
        raise ValueError("grad_kappa: got a tensor that requires grad, and gradients do not have one by it; give grad_kappa.detach()")
    wrong = ~(torch.isfinite(grad_kappa) & (grad_kappa >= options.kappa))  # (NaN is wrong, too)
    if bool(wrong.any()):
        worst = float(grad_kappa[wrong][0])
        raise ValueError(
            f"grad_kappa: got {worst} in {int(wrong.sum())} of {wrong.numel()} places; allowed: kappa = {options.kappa} or larger"
        )
    try:
        batch = torch.broadcast_shapes(z.shape[:-1], grad_kappa.shape)
    except RuntimeError:
        raise ValueError(
            f"grad_kappa: got shape {tuple(grad_kappa.shape)}; allowed: shapes that broadcast with the batch {tuple(z.shape[:-1])} of z"
        ) from None
    return z.expand(*batch, z.shape[-1]), Differentiation(options, grad_kappa.to(z))


def _check_has_kappa(options: SolverOptions) -> None:
    mode = GradientMode(options.gradient_mode)
    sampled = options.randomized is not None and options.randomized.mode is not GradientMode.CENTRAL_PATH
    if mode.needs_limit or sampled:
        raise ValueError(f"grad_kappa: got one with gradient_mode={mode.value!r} in the limit of no smoothing; use 'central_path'")


def _check_mode(mech: Mechanism, options: SolverOptions) -> None:
    mode, sampled = GradientMode(options.gradient_mode), options.randomized
    if mode is GradientMode.RANDOMIZED and (torch.compiler.is_compiling() or transforming()):
        raise RuntimeError("gradient_mode='randomized' draws samples, which torch.func and torch.compile do not allow here; use another")
    if not mode.needs_limit and (sampled is None or sampled.mode is GradientMode.CENTRAL_PATH):
        return
    if mech.gravity.dtype != torch.float64:
        raise ValueError(f"gradient_mode={mode.value!r} needs float64; the mechanism has {mech.gravity.dtype}; use mech.to(torch.float64)")
    for key, element in mech._elements().items():
        if element.cones.size and type(element).at_limit is Element.at_limit:
            raise ValueError(
                f"gradient_mode={mode.value!r}: {key!r} ({type(element).__name__}) has no limit κ → 0 to differentiate; give its class an "
                "`at_limit`, or use gradient_mode='central_path' or 'randomized'"
            )


@functools.lru_cache(maxsize=64)
def _with_grad_kappa(options: SolverOptions, grad_kappa: float) -> SolverOptions:
    return dataclasses.replace(options, grad_kappa=grad_kappa)


# -- randomized smoothing ------------------------------------------------------------------------------------------------------------------


def random_inputs(smoothing: RandomizedSmoothing, generator: torch.Generator, *inputs: Tensor) -> list[Tensor]:
    """z, u and wrench, each with the batch dimensions of all of them, and with samples in front: z as it is, noise added to the others."""
    batch = torch.broadcast_shapes(*(t.shape[:-1] for t in inputs))
    deviations = {"z": 0.0, "u": smoothing.input_deviation, "wrench": smoothing.wrench_deviation}
    result = []
    for tensor, (name, given) in zip(inputs, deviations.items(), strict=True):
        deviation, size = tensor.new_tensor(given), tensor.shape[-1]
        if deviation.ndim and len(deviation) != size:
            raise ValueError(
                f"RandomizedSmoothing: got {len(deviation)} deviations; allowed: one, or one for each of the {size} entries of {name}"
            )
        shape = (smoothing.samples, *batch, size)
        if bool(deviation.any()):
            noise = torch.randn(shape, generator=generator, dtype=tensor.dtype, device=tensor.device)
            result.append(tensor + deviation * noise)
        else:
            result.append(tensor.expand(shape))
    return result


def sampled_options(options: SolverOptions) -> SolverOptions:
    """Those of one sample."""
    assert options.randomized is not None
    return _sampled(options, GradientMode(options.randomized.mode))


@functools.lru_cache(maxsize=64)
def _sampled(options: SolverOptions, mode: GradientMode) -> SolverOptions:
    return dataclasses.replace(options, gradient_mode=mode, randomized=None)


def generator_of(smoothing: RandomizedSmoothing, device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(smoothing.seed)


def randomized_stepper(take: Stepper, smoothing: RandomizedSmoothing, parameters_need_grad: bool) -> Stepper:
    """`take` with its values, and with the mean derivative of samples: those that have a solution.

    Every call draws its own samples, so that those of the steps of a rollout differ.
    """
    generators: dict[torch.device, torch.Generator] = {}

    def step(z: Tensor, u: Tensor, wrench: Tensor, warm_start: Tensor | None) -> StepOutput:
        needs_grad = torch.is_grad_enabled() and (parameters_need_grad or any(t.requires_grad for t in (z, u, wrench)))
        with torch.no_grad():
            out = take(z, u, wrench, warm_start)
        if not needs_grad:
            return out
        generator = generators.setdefault(z.device, generator_of(smoothing, z.device))
        several, inputs, wrenches = random_inputs(smoothing, generator, z, u, wrench)
        samples = take(several, inputs, wrenches, out.solution)
        weight = (samples.status == int(Status.SUCCESS)) & (out.status == int(Status.SUCCESS))
        weight = (weight / weight.sum(0).clamp_min(1)).to(z.dtype)[..., None]
        return out._replace(z=_mean_state(out.z, samples.z, weight), impulses=_mean_change(out.impulses, samples.impulses, weight))

    return step


def _mean_change(value: Tensor, samples: Tensor, weight: Tensor) -> Tensor:
    """`value`, with the mean derivative of the samples, (samples, ...)."""
    return value + (weight * (samples - samples.detach())).sum(0)


def _mean_state(z: Tensor, samples: Tensor, weight: Tensor) -> Tensor:
    """The same of states, where a rotation of the body from where a sample is becomes the same rotation from where z is."""
    here, there = z.unflatten(-1, (-1, STATE_SIZE)), samples.unflatten(-1, (-1, STATE_SIZE))
    turn = quat.multiply(quat.conjugate(there[..., 6:10].detach()), there[..., 6:10])
    moved = quat.multiply(here[..., 6:10].expand(turn.shape), turn)
    there = torch.cat((there[..., :6], moved, there[..., 10:]), dim=-1)
    return _mean_change(here, there, weight[..., None]).flatten(-2)


def randomized_jacobian(
    take: Callable[..., Tensor], smoothing: RandomizedSmoothing, z: Tensor, u: Tensor, wrench: Tensor, warm_start: Tensor | None
) -> Tensor:
    """Mean of the Jacobians of samples, (..., 12 nb, 12 nb + nu), each on the tangent space of its own next state."""
    samples = random_inputs(smoothing, generator_of(smoothing, z.device), z, u, wrench)
    return take(*samples, warm_start).mean(0)


def refuse_jacobian(options: SolverOptions) -> None:
    """Raise ValueError where derivatives depend on a loss."""
    if options.gradient_mode is GradientMode.COMPLEMENTARITY_AWARE:
        raise ValueError(
            "jacobians: gradient_mode='complementarity_aware' depends on a loss, which a Jacobian has none of; use 'exact', or backward()"
        )

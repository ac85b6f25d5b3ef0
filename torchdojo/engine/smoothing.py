"""Randomized smoothing: the mean derivative of perturbed steps."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.engine.backend import Backend
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.gradients.request import Request, StepInputs
from torchdojo.parameters import broadcast_shapes, result_tensor
from torchdojo.solver.options import GradientMode, RandomizedSmoothing, SolverOptions, Status
from torchdojo.state.layout import ORIENTATION, STATE_SIZE

__all__ = ["Randomized", "sampled"]


class Randomized(Backend):
    """A backend that keeps the values of another one, with the mean derivative of samples that have a solution.

    Every call draws its own samples, so the steps of a rollout have different samples.
    """

    def __init__(self, backend: Backend, smoothing: RandomizedSmoothing, parameters_need_grad: bool) -> None:
        super().__init__(backend.structure, backend.stacked, backend.request)
        self.backend, self.smoothing, self.parameters_need_grad = backend, smoothing, parameters_need_grad
        self._generators: dict[torch.device, torch.Generator] = {}

    def having(self, parameters: Sequence[Tensor], request: Request) -> Randomized:
        needs_grad = any(p.requires_grad for p in parameters)
        return Randomized(self.backend.having(parameters, request), self.smoothing, needs_grad)

    def lift(self, q: Tensor, qd: Tensor) -> Tensor:
        return self.backend.lift(q, qd)

    def step(self, given: StepInputs) -> StepOutput:
        z, u, wrench = given.data
        needs_grad = torch.is_grad_enabled() and (self.parameters_need_grad or any(t.requires_grad for t in given.data))
        with torch.no_grad():
            out = self.backend.step(given)
        if not needs_grad:
            return out
        generator = self._generators.setdefault(z.device, generator_of(self.smoothing, z.device))
        several, inputs, wrenches = random_inputs(self.smoothing, generator, z, u, wrench)
        kept = self.backend.kept(out.status.shape)
        self.backend.keep(None if kept is None else kept.expand(self.smoothing.samples, *kept.shape))
        samples = self.backend.step(StepInputs(several, inputs, wrenches, out.solution))
        self.backend.keep(kept)
        weight = (samples.status == int(Status.SUCCESS)) & (out.status == int(Status.SUCCESS))
        weight = (weight / weight.sum(0).clamp_min(1)).to(z.dtype)[..., None]
        return out._replace(z=_mean_state(out.z, samples.z, weight), impulses=_mean_change(out.impulses, samples.impulses, weight))

    def jacobian(self, given: StepInputs, out: Tensor | None = None) -> Tensor:
        """Mean of the Jacobians of samples, (..., 12 nb, 12 nb + nu), each on the tangent space of its own next state."""
        z, u, wrench = random_inputs(self.smoothing, generator_of(self.smoothing, given.z.device), *given.data)
        kept = self.backend.kept(z.shape[1:-1])
        self.backend.keep(None if kept is None else kept.expand(self.smoothing.samples, *kept.shape))
        result = self.backend.jacobian(StepInputs(z, u, wrench, given.warm)).mean(0)
        self.backend.keep(kept)
        return result if out is None else result_tensor(out, result.shape, result).copy_(result)


def random_inputs(smoothing: RandomizedSmoothing, generator: torch.Generator, *inputs: Tensor) -> list[Tensor]:
    """z, u and wrench with their common batch dimensions and samples in front. Noise is added to u and wrench, not to z."""
    batch = broadcast_shapes(*(t.shape[:-1] for t in inputs))
    deviations = {"z": 0.0, "u": smoothing.input_deviation, "wrench": smoothing.wrench_deviation}
    result = []
    for tensor, (name, number) in zip(inputs, deviations.items(), strict=True):
        deviation, size = tensor.new_tensor(number), tensor.shape[-1]
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


def sampled(request: Request) -> Request:
    """The request for one sample."""
    options = request.options
    assert options.randomized is not None
    return dataclasses.replace(request, options=_sampled(options, GradientMode(options.randomized.mode)))


@functools.lru_cache(maxsize=64)
def _sampled(options: SolverOptions, mode: GradientMode) -> SolverOptions:
    return dataclasses.replace(options, gradient_mode=mode, randomized=None)


def generator_of(smoothing: RandomizedSmoothing, device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(smoothing.seed)


def _mean_change(value: Tensor, samples: Tensor, weight: Tensor) -> Tensor:
    """`value`, with the mean derivative of the samples, (samples, ...)."""
    return value + (weight * (samples - samples.detach())).sum(0)


def _mean_state(z: Tensor, samples: Tensor, weight: Tensor) -> Tensor:
    """`_mean_change` for states: a rotation of a body away from its sample becomes the same rotation away from z."""
    body_states, sampled_states = z.unflatten(-1, (-1, STATE_SIZE)), samples.unflatten(-1, (-1, STATE_SIZE))
    turn = quat.multiply(quat.conjugate(sampled_states[..., ORIENTATION].detach()), sampled_states[..., ORIENTATION])
    moved = quat.multiply(body_states[..., ORIENTATION].expand(turn.shape), turn)
    sampled_states = torch.cat((sampled_states[..., : ORIENTATION.start], moved, sampled_states[..., ORIENTATION.stop :]), dim=-1)
    return _mean_change(body_states, sampled_states, weight[..., None]).flatten(-2)

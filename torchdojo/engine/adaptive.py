"""Steps that are split where it matters: an impact is resolved on a shorter step than the flight around it.

A step of length h in which a contact closes puts the body on the surface at the end of the step, whatever the instant of the impact: its
velocity over the step is wrong by up to the speed v of the impact, and the state by O(h v), where smooth motion is wrong by O(h²) per step.
The estimate of that error is the difference between one step of h and two of h/2 from the same state (step doubling: Hairer, Nørsett and
Wanner, Solving Ordinary Differential Equations I, section II.4). Where it exceeds the tolerance the two halves are taken, each of them
looked at in the same way; where it does not, the whole step stands, so that smooth motion is that of the ordinary rollout.

Substeps share the forces of their step. In a variational integrator gravity, springs, inputs and wrenches are kicks h F at the nodes
between steps. A split step keeps that kick, whole and at its start; only what is implicit (contacts, joints, their limits, friction and
dampers) acts in every substep: an asynchronous variational integrator (Lew, Marsden, Ortiz and West 2003). And what one substep hands to
the next is momentum. Linear momentum m v does not know h, but the angular momentum of ω, J ω √(1 − (h/2)²|ω|²) − (h/2) ω × Jω, does, so ω
is converted (`change_timestep`), and the state always has the ω that goes with the mechanism's timestep. So a body in free flight is in the
same place after one step and after two halves, and splitting does not change its momentum.

The solver's own halves, of steps that have no solution (`halve` in gradients/reference_step.py), hand on v and ω as numbers and kick each
half. Two of them fall h²a/4 less than one step at acceleration a, and change the angular momentum by O(h²|ω|²). Where the alternative is no
step at all, that is little. Here splitting is to improve on a step, and quadrupeds came out up to 2.2 times less accurate than without.

What it costs: three solves where one would do, since every step is tried in halves, and Python around them: some 5 ms a step with impacts.
Where accuracy is wanted of all steps alike, a smaller timestep throughout, which runs inside the kernel, is often faster on the clock.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.dynamics.integrator import change_timestep
from torchdojo.engine.backends import Backends, Kernel
from torchdojo.gradients import reference_step
from torchdojo.gradients.batching import flatten_batch
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.gradients.request import Request
from torchdojo.native import ops
from torchdojo.native.cache import Parameters
from torchdojo.parameters import transforming
from torchdojo.solver.options import OnFailure, Status
from torchdojo.state.layout import STATE_SIZE, split_state
from torchdojo.state.unknowns import GRAVITY, INERTIA, NUM_DATA, TIMESTEP

__all__ = ["AdaptiveOptions", "AdaptiveSteps", "adaptive_options"]


@dataclass(frozen=True, kw_only=True)
class AdaptiveOptions:
    """When `Mechanism.rollout(..., adaptive=...)` splits a step.

    A step of length h is split where, for any body, two steps of half the length end more than the tolerance away, or so much faster or
    slower that it makes that difference within another h.

    Args:
        position_tol: [m], of centres of mass. rotation_tol: [rad].
        max_halvings: how often, so that the shortest step is h / 2**max_halvings; 0 never splits. A body that hits the ground at v keeps an
            error of up to v h / 2**max_halvings there.

    Raises:
        ValueError: a value out of its range; the message says which.
    """

    position_tol: float = 1e-3
    rotation_tol: float = 5e-3
    max_halvings: int = 4

    def __post_init__(self) -> None:
        for name, unit in (("position_tol", "m"), ("rotation_tol", "rad")):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not (math.isfinite(value) and value > 0):
                raise ValueError(f"AdaptiveOptions.{name}: got {value!r}; allowed: positive finite numbers [{unit}]")
        halvings = self.max_halvings
        if isinstance(halvings, bool) or not isinstance(halvings, int) or not 0 <= halvings <= 20:
            raise ValueError(f"AdaptiveOptions.max_halvings: got {halvings!r}; allowed: whole numbers from 0 to 20")


def adaptive_options(value: object) -> AdaptiveOptions | None:
    """What `adaptive=` means: False is None, True the defaults.

    Raises:
        TypeError: neither a bool nor `AdaptiveOptions`.
    """
    if isinstance(value, AdaptiveOptions):
        return value
    if not isinstance(value, bool):
        raise TypeError(f"adaptive: got {value!r}; allowed: True, False, or td.AdaptiveOptions(position_tol=..., ...)")
    return AdaptiveOptions() if value else None


class AdaptiveSteps:
    """Steps that are split as `options` say.

    Which environments are split is decided by their values and is not differentiated: gradients are those of the substeps that were taken.
    Whole steps are those of one call for all environments, so what is not split does not depend on what is, to the last bit.

    Raises:
        RuntimeError: inside a `torch.func` transform or `torch.compile`, where values cannot be read.
    """

    def __init__(self, backends: Backends, request: Request, options: AdaptiveOptions) -> None:
        if torch.compiler.is_compiling() or transforming():
            raise RuntimeError(
                "rollout(adaptive=...) decides by values of states, which torch.func and torch.compile hide; use adaptive=False"
            )
        self.options = options
        self.whole = backends.select(request)
        # A half step is a trial, and a trial that fails is no failure of the step.
        self.trial = dataclasses.replace(request, options=dataclasses.replace(request.options, on_failure=OnFailure.FLAG))
        self.system = backends.system_on_device()
        self.program = self.whole.program if isinstance(self.whole, Kernel) else None
        self.parameters = backends.parameters(request.options)
        self.specs = self.system.parameter_specs()
        named = self.system.named_parameters(range(len(self.specs)))
        self.forces = [GRAVITY, *(places["spring"] for places in named if "spring" in places)]
        self.flat: list[Tensor] = []
        self.batch: torch.Size | None = None
        self.alike = False  # whether all environments have the same parameters
        self.shared: dict[tuple[int, bool], Parameters] = {}  # and then: those of each kind of substep

    def step(self, z: Tensor, u: Tensor, wrench: Tensor, warm_start: Tensor | None) -> StepOutput:
        one = self.whole.step(z, u, wrench, warm_start)
        if not self.options.max_halvings:
            return one
        batch = one.status.shape
        count = batch.numel()
        if self.batch != batch:
            flat, _ = flatten_batch(self.system.step_specs(), [z.expand(*batch, z.shape[-1]), u, wrench, *self.parameters])
            self.flat, self.batch, self.shared = flat[NUM_DATA:], batch, {}
            self.alike = all(len(t) == 1 for t, spec in zip(self.flat, self.specs, strict=True) if spec.batched)
        data = [t.expand(*batch, t.shape[-1]).reshape(count, t.shape[-1]) for t in (z, u, wrench)]
        index = torch.arange(count, device=z.device)
        out = self.refine(0, True, index, data, StepOutput(*(t.reshape((count, *t.shape[len(batch) :])) for t in one)))
        return StepOutput(*(t.reshape((*batch, *t.shape[1:])) for t in out))

    def select(self, index: Tensor) -> list[Tensor]:
        """Parameters of the environments `index`."""
        return [t[index] if spec.batched and len(t) > 1 else t for t, spec in zip(self.flat, self.specs, strict=True)]

    def own(self, place: int, index: Tensor) -> Tensor:
        """The stacked parameter at this place, of the environments `index`, (rows or 1, ...)."""
        return self.flat[place][index] if len(self.flat[place]) > 1 else self.flat[place]

    def timestep(self, level: int, index: Tensor) -> Tensor:
        """h / 2**level of the environments `index`, (rows or 1,)."""
        return 0.5**level * self.own(TIMESTEP, index)

    def convert(self, old: int, new: int, index: Tensor, z: Tensor) -> Tensor:
        """The state whose ω go with steps of length h / 2**new and have the momentum that they had with h / 2**old."""
        inertia = self.own(INERTIA, index)
        h, shorter = (self.timestep(level, index)[:, None, None] for level in (old, new))
        x, v, q, omega = z.unflatten(-1, (-1, STATE_SIZE)).split((3, 3, 4, 3), dim=-1)
        return torch.cat((x, v, q, change_timestep(omega, inertia, h, shorter)), dim=-1).flatten(-2)

    def part(self, level: int, kick: bool, index: Tensor, data: Sequence[Tensor], warm: Tensor) -> StepOutput:
        """A substep of length h / 2**level of the environments `index`; `data`: their z, u and wrench. `kick`: the first of its step."""
        weight = 2.0**level if kick else 0.0
        z, u, wrench = data[0], weight * data[1], weight * data[2]
        shared = self.shared.get((level, kick))
        if shared is not None and self.program is not None:
            return ops.step(self.program, self.trial, shared, z, u, wrench, warm)
        tensors = [weight * t if i in self.forces else t for i, t in enumerate(self.select(index))]
        tensors[TIMESTEP] = self.timestep(level, index)
        if self.program is None:
            return reference_step.step(self.system, self.trial, tensors, z, u, wrench, warm)
        parameters = Parameters(self.program, tensors)
        if self.alike:
            self.shared[level, kick] = parameters
        return ops.step(self.program, self.trial, parameters, z, u, wrench, warm)

    def refine(self, level: int, kick: bool, index: Tensor, data: Sequence[Tensor], one: StepOutput) -> StepOutput:
        """`one`, the substep of length h / 2**level, with those environments replaced by two halves that need it.

        States that come in and go out have the ω of steps of that length, as `one` has.
        """
        if level == self.options.max_halvings:
            return one
        z, u, wrench = self.convert(level, level + 1, index, data[0]), *data[1:]
        first = self.part(level + 1, kick, index, [z, u, wrench], one.solution)
        second = self.part(level + 1, False, index, [first.z, u, wrench], first.solution)
        solved = _solved(one) & _solved(first) & _solved(second)
        with torch.no_grad():
            excess = self.excess(level, index, one.z, self.convert(level + 1, level, index, second.z))
        # (The solver's own halves of a step without a solution are replaced by these.)
        split = solved & ((excess > 1) | (one.substeps > 1))
        whole = one._replace(iterations=one.iterations + first.iterations + second.iterations)
        rows = split.nonzero().squeeze(-1)
        if not len(rows):
            return whole
        index, z, u, wrench = index[rows], z[rows], u[rows], wrench[rows]
        first, second = _select(first, rows), _select(second, rows)
        left = self.refine(level + 1, kick, index, [z, u, wrench], first)
        after = [left.z, u, wrench]
        right = self.refine(level + 1, False, index, after, self.continued(level + 1, index, after, first, left, second))
        taken = StepOutput(
            self.convert(level + 1, level, index, right.z),
            left.impulses + right.impulses,
            right.status,
            one.iterations[rows] + left.iterations + right.iterations,
            right.solution,
            left.substeps + right.substeps,
        )
        # Where the right half has no solution after a left one that was split again, the whole step stands.
        kept = _solved(right).nonzero().squeeze(-1)
        return StepOutput(*(t.index_copy(0, rows[kept], new[kept]) for t, new in zip(whole, taken, strict=True)))

    def continued(
        self, level: int, index: Tensor, data: Sequence[Tensor], first: StepOutput, left: StepOutput, second: StepOutput
    ) -> StepOutput:
        """The substep after `left`: `second` where `left` is still the `first` that it was computed from."""
        changed = (left.substeps != first.substeps).nonzero().squeeze(-1)
        if not len(changed):
            return second
        again = self.part(level, False, index[changed], [t[changed] for t in data], left.solution[changed])
        again = again._replace(iterations=again.iterations + second.iterations[changed])
        return StepOutput(*(t.index_copy(0, changed, new) for t, new in zip(second, again, strict=True)))

    def excess(self, level: int, index: Tensor, one: Tensor, two: Tensor) -> Tensor:
        """Difference between one substep and its two halves, in units of the tolerance, largest of all bodies, (rows,)."""
        h, a, b = self.timestep(level, index)[:, None], split_state(one), split_state(two)
        turn = quat.rotation_vector(quat.multiply(quat.conjugate(a.pose.q), b.pose.q))
        shift = torch.maximum(_norm(b.pose.x - a.pose.x), h * _norm(b.twist.v - a.twist.v))
        rotation = torch.maximum(_norm(turn), h * _norm(b.twist.omega - a.twist.omega))
        return torch.maximum(shift / self.options.position_tol, rotation / self.options.rotation_tol).amax(-1)


def _solved(out: StepOutput) -> Tensor:
    return out.status == int(Status.SUCCESS)


def _select(out: StepOutput, rows: Tensor) -> StepOutput:
    return StepOutput(*(t[rows] for t in out))


def _norm(vector: Tensor) -> Tensor:
    return torch.linalg.vector_norm(vector, dim=-1)

"""Adaptive steps: an impact is resolved on a shorter step than the flight around it.

A step of length h in which a contact closes puts the body on the surface at its end, whatever the instant of the impact. The velocity over
the step is wrong by up to the speed v of the impact, and the state by O(h v). Smooth motion is wrong by O(h²) per step. The
difference between one step of h and two of h/2 from the same state estimates that error. This is step doubling (Hairer, Nørsett and Wanner,
Solving Ordinary Differential Equations I, section II.4). Where the error exceeds the tolerance, the two halves replace the step, and each
half is treated in the same way. Elsewhere the whole step stands, so smooth motion equals the ordinary rollout.

Substeps share the forces of their step. In a variational integrator, gravity, springs, inputs and wrenches are kicks h F at the nodes
between steps. A split step keeps that kick, whole and at its start. Only the implicit elements act in every substep: contacts, joints, and
the limits, friction and dampers of joints. This is an asynchronous variational integrator (Lew, Marsden, Ortiz and West 2003). One substep
hands momentum to the next. Linear momentum m v does not depend on h. The angular momentum of ω does:

    J ω √(1 − (h/2)²|ω|²) − (h/2) ω × Jω.

So `change_timestep` converts ω, and a state always has the ω that goes with the mechanism's timestep. A body in free flight is then in the
same place after one step and after two halves, and splitting does not change its momentum.

The solver also halves steps that have no solution (gradients/reference_step.py). These halves hand on v and ω as numbers and kick each
half. Two of them fall h²a/4 less than one step at acceleration a, and change the angular momentum by O(h²|ω|²). This is little where the
alternative is no step at all. It is too much where splitting must improve on a step: a quadruped is up to 2.2 times less accurate with them
than without splitting.

An adaptive step costs three solves instead of one, since every step is tried in halves. A step with impacts costs about 5 ms of Python. If
all steps need accuracy alike, a smaller timestep throughout is often faster, because it runs inside the kernel.
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
from torchdojo.dynamics.system import select_rows
from torchdojo.engine.backend import Backend, Stepper
from torchdojo.engine.backends import Backends
from torchdojo.gradients.batching import flatten_batch
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.gradients.request import Request, StepInputs
from torchdojo.parameters import transforming
from torchdojo.solver.options import OnFailure, Status
from torchdojo.state.layout import STATE_SIZE, split_state
from torchdojo.state.unknowns import GRAVITY, INERTIA, NUM_DATA, TIMESTEP

__all__ = ["AdaptiveOptions", "AdaptiveSteps", "adaptive_options"]


@dataclass(frozen=True, kw_only=True)
class AdaptiveOptions:
    """When `Mechanism.rollout(..., adaptive=...)` splits a step.

    A step of length h is split if, for any body, two half steps end more than the tolerance away from its end. The same holds for
    velocities that make this difference within another h.

    Args:
        position_tol: [m], of centers of mass. rotation_tol: [rad].
        max_halvings: maximum of halvings: the shortest step is h / 2**max_halvings, and 0 never splits. A body that hits the ground at v
            keeps an error of up to v h / 2**max_halvings there.

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
    """The options that `adaptive=` selects: None for False, the defaults for True.

    Raises:
        TypeError: neither a bool nor `AdaptiveOptions`.
    """
    if isinstance(value, AdaptiveOptions):
        return value
    if not isinstance(value, bool):
        raise TypeError(f"adaptive: got {value!r}; allowed: True, False, or td.AdaptiveOptions(position_tol=..., ...)")
    return AdaptiveOptions() if value else None


class AdaptiveSteps(Stepper):
    """Steps that are split as `options` say.

    Values decide which environments are split, and this choice is not differentiated: gradients pass through the substeps taken. One call
    takes the whole steps of all environments. So an environment that is not split does not depend, to the last bit, on others that are.

    Raises:
        RuntimeError: inside a `torch.func` transform or `torch.compile`, where values cannot be read.
    """

    def __init__(self, backends: Backends, request: Request, options: AdaptiveOptions) -> None:
        if torch.compiler.is_compiling() or transforming():
            raise RuntimeError(
                "rollout(adaptive=...) decides by values of states, which torch.func and torch.compile hide; use adaptive=False"
            )
        self.options, self.structure = options, backends.structure
        self.whole = backends.select(request)
        # A half step is a trial. A failed trial is no failure of the step.
        self.trial = dataclasses.replace(request, options=dataclasses.replace(request.options, on_failure=OnFailure.FLAG))
        self.system = backends.system_on_device()
        self.parameters = self.whole.stacked
        named = self.system.named_parameters(range(len(self.parameters)))
        self.forces = [GRAVITY, *(places[name] for places in named for name in ("spring", "spring_curve") if name in places)]
        self.flat: list[Tensor] = []
        self.batch: torch.Size | None = None
        self.alike = False  # whether all environments have the same parameters
        self.shared: dict[tuple[int, bool], Backend] = {}  # if alike, the backend of each kind of substep

    def step(self, given: StepInputs) -> StepOutput:
        one = self.whole.step(given)
        if not self.options.max_halvings:
            return one
        one, batch = _with_kept(self.whole, one), one.status.shape
        count, (z, u, wrench) = batch.numel(), given.data
        if self.batch != batch:
            flat, _ = flatten_batch(self.system.step_specs(), [z.expand(*batch, z.shape[-1]), u, wrench, *self.parameters])
            self.flat, self.batch, self.shared = flat[NUM_DATA:], batch, {}
            self.alike = all(len(t) == 1 for t in self.flat)
        data = [t.expand(*batch, t.shape[-1]).reshape(count, t.shape[-1]) for t in (z, u, wrench)]
        index = torch.arange(count, device=z.device)
        out = self.refine(0, True, index, data, StepOutput(*(t.reshape((count, *t.shape[len(batch) :])) for t in one)))
        solution, kept = self.divided(out.solution)
        self.whole.keep(None if kept is None else kept.reshape(*batch, -1))
        return StepOutput(*(t.reshape((*batch, *t.shape[1:])) for t in out._replace(solution=solution)))

    def divided(self, solution: Tensor) -> tuple[Tensor, Tensor | None]:
        """Solutions, and what a backend keeps beside them, which stands behind them between substeps."""
        size = self.system.num_unknowns
        return solution[..., :size], solution[..., size:] if solution.shape[-1] > size else None

    def select(self, index: Tensor) -> list[Tensor]:
        """Parameters of the environments `index`."""
        return select_rows(self.flat, index)

    def own(self, place: int, index: Tensor) -> Tensor:
        """The stacked parameter at this place for the environments `index`, (rows or 1, ...)."""
        return self.flat[place][index] if len(self.flat[place]) > 1 else self.flat[place]

    def timestep(self, level: int, index: Tensor) -> Tensor:
        """h / 2**level for the environments `index`, (rows or 1,)."""
        return 0.5**level * self.own(TIMESTEP, index)

    def convert(self, old: int, new: int, index: Tensor, z: Tensor) -> Tensor:
        """The state with each ω converted from steps of length h / 2**old to h / 2**new at the same momentum."""
        inertia = self.own(INERTIA, index)
        h, shorter = (self.timestep(level, index)[:, None, None] for level in (old, new))
        x, v, q, omega = z.unflatten(-1, (-1, STATE_SIZE)).split((3, 3, 4, 3), dim=-1)
        return torch.cat((x, v, q, change_timestep(omega, inertia, h, shorter)), dim=-1).flatten(-2)

    def part(self, level: int, kick: bool, index: Tensor, data: Sequence[Tensor], warm: Tensor) -> StepOutput:
        """A substep of length h / 2**level for the environments `index`, with their z, u and wrench in `data`.

        `kick` marks the first substep of a step, which applies the forces of the step.
        """
        weight, (warm, kept) = 2.0**level if kick else 0.0, self.divided(warm)
        inputs = StepInputs(data[0], weight * data[1], weight * data[2], warm)
        backend = self.shared.get((level, kick))
        if backend is None:
            tensors = [weight * t if i in self.forces else t for i, t in enumerate(self.select(index))]
            tensors[TIMESTEP] = self.timestep(level, index)
            backend = self.whole.having(tensors, self.trial)
            if self.alike:
                self.shared[level, kick] = backend
        backend.keep(kept)
        return _with_kept(backend, backend.step(inputs))

    def refine(self, level: int, kick: bool, index: Tensor, data: Sequence[Tensor], one: StepOutput) -> StepOutput:
        """The substep `one` of length h / 2**level, with two halves in place of environments that need them.

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
        # The halves here also replace the solver's own halves of a step without a solution.
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
        halved = StepOutput(
            self.convert(level + 1, level, index, right.z),
            left.impulses + right.impulses,
            right.status,
            one.iterations[rows] + left.iterations + right.iterations,
            right.solution,
            left.substeps + right.substeps,
        )
        # After a left half that is split again, the right half may have no solution. Then the whole step stands.
        kept = _solved(right).nonzero().squeeze(-1)
        return StepOutput(*(t.index_copy(0, rows[kept], new[kept]) for t, new in zip(whole, halved, strict=True)))

    def continued(
        self, level: int, index: Tensor, data: Sequence[Tensor], first: StepOutput, left: StepOutput, second: StepOutput
    ) -> StepOutput:
        """The substep after `left`: `second`, but computed again where `left` differs from `first`, where `second` starts."""
        changed = (left.substeps != first.substeps).nonzero().squeeze(-1)
        if not len(changed):
            return second
        again = self.part(level, False, index[changed], [t[changed] for t in data], left.solution[changed])
        again = again._replace(iterations=again.iterations + second.iterations[changed])
        return StepOutput(*(t.index_copy(0, changed, new) for t, new in zip(second, again, strict=True)))

    def excess(self, level: int, index: Tensor, one: Tensor, two: Tensor) -> Tensor:
        """Largest difference over bodies between one substep and its two halves, in units of the tolerance, (rows,)."""
        h, whole, halves = self.timestep(level, index)[:, None], split_state(one), split_state(two)
        turn = quat.rotation_vector(quat.multiply(quat.conjugate(whole.pose.q), halves.pose.q))
        shift = torch.maximum(_norm(halves.pose.x - whole.pose.x), h * _norm(halves.twist.v - whole.twist.v))
        rotation = torch.maximum(_norm(turn), h * _norm(halves.twist.omega - whole.twist.omega))
        return torch.maximum(shift / self.options.position_tol, rotation / self.options.rotation_tol).amax(-1)


def _with_kept(backend: Backend, out: StepOutput) -> StepOutput:
    """A step, with what its backend keeps behind its solution."""
    kept = backend.kept(out.status.shape)
    return out if kept is None else out._replace(solution=torch.cat((out.solution, kept), -1))


def _solved(out: StepOutput) -> Tensor:
    return out.status == int(Status.SUCCESS)


def _select(out: StepOutput, rows: Tensor) -> StepOutput:
    return StepOutput(*(t[rows] for t in out))


def _norm(vector: Tensor) -> Tensor:
    return torch.linalg.vector_norm(vector, dim=-1)

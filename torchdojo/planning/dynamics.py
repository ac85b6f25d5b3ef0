"""Steps, rollouts and linearizations of a plan. This is the only module of the planner that calls the engine.

States have coordinates x: q and q̇ side by side ("minimal"), or the state z itself ("tangent"). Their differences have n entries: those of
x, or of the tangent space.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdojo.gradients.reference_step import StepOutput
from torchdojo.gradients.request import Request
from torchdojo.mechanism import Mechanism
from torchdojo.solver.options import SolverOptions
from torchdojo.state import minimal
from torchdojo.state.layout import TANGENT_SIZE

__all__ = ["COORDINATES", "Dynamics", "Nodes"]

COORDINATES = ("minimal", "tangent")
#: Newton iterations of a step before it counts as failed: violent candidates would cost a hundred times a step otherwise.
BUDGET = 50


class Nodes(NamedTuple):
    """States and inputs of plans.

    x: (..., T+1, size). z: (..., T+1, 13 nb). v: (..., T, m). w: (..., T, num_unknowns) solutions of the steps.
    end: (..., T, size) coordinates after each step; without defects, those of the next node.
    ok: (...,) whether all steps succeeded.
    """

    x: Tensor
    z: Tensor
    v: Tensor
    w: Tensor
    end: Tensor
    ok: Tensor


class Dynamics:
    """The steps of a mechanism under inputs u = map v + offset, or controls ctrl = map v + offset of its actuators.

    Args:
        input_map: (nu, m). offset: (nu,). nu: number of inputs, or of actuators.
        controls: whether these are controls.
    """

    def __init__(self, mech: Mechanism, input_map: Tensor, offset: Tensor, coordinates: str, controls: bool = False) -> None:
        self.mech, self.map, self.offset, self.controls = mech, input_map, offset, controls
        self.minimal = coordinates == "minimal"
        self.num_inputs = input_map.shape[1]
        self.num_activations = 0
        self.size = 2 * mech.num_coordinates if self.minimal else TANGENT_SIZE * mech.num_bodies  # n
        square = input_map.shape[0] == input_map.shape[1]
        self.plain = square and not bool(offset.any()) and bool((input_map == torch.eye(len(input_map))).all())  # u = v
        full = int(torch.linalg.matrix_rank(input_map)) == self.num_inputs
        self.inverse = torch.linalg.pinv(input_map) if full else None
        entries = input_map != 0
        self.selects = bool((entries.sum(0) == 1).all() and (entries.sum(1) <= 1).all() and (input_map >= 0).all())
        self.tree = mech.tree_order() if self.minimal else []
        self.angles = torch.tensor(
            [entry.coordinates.stop - 1 for entry in self.tree if getattr(entry.joint, "free_rotations", 0) == 1], dtype=torch.long
        )

    # -- coordinates ---------------------------------------------------------------------------------------------------------------------

    def coordinates(self, z: Tensor) -> Tensor:
        return torch.cat(self.mech.to_minimal(z), dim=-1) if self.minimal else z

    def states(self, x: Tensor) -> Tensor:
        return self.mech.to_maximal(*x.chunk(2, dim=-1)) if self.minimal else x

    def motion(self, state: Tensor) -> Tensor:
        """z (..., 13 nb) of states of the plan."""
        return state

    def activations(self, state: Tensor) -> Tensor | None:
        """Activations (..., na) of states of the plan; None without drives."""
        return None

    def joined(self, z: Tensor, act: Tensor | None = None) -> Tensor:
        """States of the plan with these activations (..., na), zeros by default."""
        return z

    def along(self, z: Tensor, start: Tensor, v: Tensor) -> Tensor:
        """States of the plan (P, T+1, size) at z, with the activations from a start (P, size) under v (P, T, m)."""
        return z

    def difference(self, x: Tensor, reference: Tensor) -> Tensor:
        """The n numbers that lead from the reference to x, as in the feedback of `Mechanism.rollout_feedback`: angles count modulo 4π."""
        if not self.minimal:
            return self.mech.difference(*torch.broadcast_tensors(x, reference))
        return minimal.difference(self.tree, x, reference)

    def miss(self, x: Tensor, goal: Tensor) -> Tensor:
        """The n numbers by which x misses a goal: `difference` without whole turns of an angle, in [−π, π).

        A turn more is another state, whose springs and limits differ. But a swing-up may reach its goal from either side.
        """
        delta = self.difference(x, goal)
        if self.minimal and len(self.angles):
            delta = delta.index_copy(-1, self.angles, torch.remainder(delta[..., self.angles] + math.pi, 2 * math.pi) - math.pi)
        return delta

    def retract(self, x: Tensor, delta: Tensor) -> Tensor:
        if self.minimal:
            return x + delta
        return self.mech.retract(x.expand(*delta.shape[:-1], x.shape[-1]), delta)

    # -- steps ---------------------------------------------------------------------------------------------------------------------------

    def inputs(self, v: Tensor) -> Tensor:
        """u (..., nu) [N, N·m], or controls."""
        return v if self.plain else v @ self.map.T + self.offset

    def given(self, v: Tensor) -> dict[str, Any]:
        """The argument of steps and rollouts."""
        return {"ctrl" if self.controls else "u": self.inputs(v)}

    def acting(self, before: Tensor, v: Tensor) -> dict[str, Any]:
        """The arguments of sensors that read a step from these states."""
        return self.given(v)

    def take(self, mech: Mechanism, state: Tensor, v: Tensor, warm: Tensor | None, repeat: int = 1) -> tuple[Tensor, StepOutput]:
        """The states after a step, or a period of `repeat` steps, of a mechanism with the numbers of `mech`."""
        out = mech.step(state, **self.given(v), repeat=repeat, warm_start=warm)
        return out.z, out

    def evaluate(self, x: Tensor, v: Tensor, warm: Tensor | None, kappa: Tensor) -> Nodes:
        """A step from every node by itself: x (P, ..., T+1, size), v (P, ..., T, m), kappa (P,)."""
        z = self.states(x)
        finite = torch.isfinite(z).all(-1).all(-1) & torch.isfinite(v).all(-1).all(-1)

        def steps(mech: Mechanism, z: Tensor, v: Tensor, warm: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
            after, out = self.take(mech, z, v, warm)
            return after, out.solution, out.status

        after, w, status = self._each(kappa, steps, z[..., :-1, :], v, warm)
        return Nodes(x, z, v, w, self.coordinates(after), finite & (status == 0).all(-1))

    def rollout(self, z: Tensor, v: Tensor, warm: Tensor | None, kappa: Tensor) -> Nodes:
        """From z (P, 13 nb) under v (P, T, m)."""

        def run(mech: Mechanism, z: Tensor, v: Tensor, warm: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
            path = mech.rollout(z, **self.given(v), warm_start=warm, keep_solutions=True, budget=self._budget(mech))
            return path.z, path.solution, path.status

        path, w, status = self._each(kappa, run, z, v, warm)
        x = self.coordinates(path)
        return Nodes(x, path, v, w, x[..., 1:, :], (status == 0).all(-1))

    def feedback(
        self,
        nodes: Nodes,
        k: Tensor,
        K: Tensor,
        alphas: Tensor,
        kappa: Tensor,
        limits: tuple[Tensor, Tensor] | None,
    ) -> Nodes:
        """Rollouts of v + α k + K (x ⊖ x̄) around nodes of P problems, for M policies and a step sizes: (P, M, a, ...).

        Args:
            k, K: (P, M, T, m), (P, M, T, m, n). alphas: (a,). kappa: (P,). limits: least and largest v (P, T, m).
        """

        lower, upper = limits if limits is not None else (None, None)
        shared = lower is None or upper is None or len(lower) == 1 or bool((lower == lower[:1]).all() and (upper == upper[:1]).all())
        bounds: Any = None
        if shared and self.inverse is not None and (lower is None or self.selects):
            if lower is not None and upper is not None:
                bounds = self.inputs(lower[0]), self.inputs(upper[0])
            run = functools.partial(self._whole_feedback, alphas, bounds)
            x, z, v, w, ok = self._each(kappa, run, *nodes[:4], k, K)
        else:
            run = functools.partial(self._looped_feedback, alphas)
            x, z, v, w, ok = self._each(kappa, run, *nodes[:4], k, K, lower, upper)
        return Nodes(x, z, v, w, x[..., 1:, :], ok)

    def _whole_feedback(
        self, alphas: Tensor, bounds: Any, mech: Mechanism, x: Tensor, z: Tensor, v: Tensor, w: Tensor, k: Tensor, K: Tensor
    ) -> tuple[Tensor, ...]:
        """`feedback` in one call of the engine."""
        nominal: Any = x[:, None, None]
        path = mech.rollout_feedback(
            z[:, None, None, 0],
            nominal.chunk(2, dim=-1) if self.minimal else nominal,
            **self.given(v[:, None, None]),
            gain=K[:, :, None] if self.plain else self.map @ K[:, :, None],
            feedforward=k[:, :, None] if self.plain else k[:, :, None] @ self.map.T,
            scale=alphas,
            bounds=bounds,
            solution=w[:, None, None],
            keep_solutions=True,
            budget=self._budget(mech),
        )
        assert self.inverse is not None
        inputs = path.u if self.plain else (path.u - self.offset) @ self.inverse.T
        return self.coordinates(path.z), path.z, inputs, path.solution, (path.status == 0).all(-1)

    def _looped_feedback(
        self,
        alphas: Tensor,
        mech: Mechanism,
        x: Tensor,
        z: Tensor,
        v: Tensor,
        w: Tensor,
        k: Tensor,
        K: Tensor,
        lower: Tensor | None,
        upper: Tensor | None,
    ) -> tuple[Tensor, ...]:
        """`feedback` step by step: limits that differ between problems, or of inputs that are mixed by the map."""
        (P, M, T, _), count = k.shape, len(alphas)
        state, warm, coordinates = (value[:, None, None, 0].expand(P, M, count, -1) for value in (z, w, x))
        ok = torch.ones(P, M, count, dtype=torch.bool)
        columns: list[list[Tensor]] = [[coordinates], [state], [], []]
        for t in range(T):
            error = self.difference(coordinates, x[:, None, None, t])
            u = v[:, None, None, t] + alphas[:, None] * k[:, :, None, t] + error @ K[:, :, t].mT
            if lower is not None and upper is not None:
                u = u.clamp(lower[:, None, None, t], upper[:, None, None, t])
            finite = torch.isfinite(u).all(-1, keepdim=True)
            state, out = self.take(mech, state, torch.where(finite, u, 0.0), warm)
            warm = out.solution
            ok &= (out.status == 0) & finite[..., 0]
            coordinates = self.coordinates(state)
            for column, value in zip(columns, (coordinates, state, u, warm), strict=True):
                column.append(value)
        x, z, v, w = (torch.stack(column, -2) for column in columns)
        return x, z, v, w, ok

    def linearize(self, nodes: Nodes, kappa: Tensor, grad_kappa: Tensor) -> tuple[Tensor, Tensor]:
        """A (P, T, n, n) and B (P, T, n, m) at the nodes. grad_kappa: (P,), kappa or larger."""

        def run(mech: Mechanism, x: Tensor, v: Tensor, w: Tensor, smooth: Tensor) -> tuple[Tensor, Tensor]:
            x, options = x[:, :-1], {**self.given(v), "warm_start": w}
            one = bool((smooth == smooth[0]).all())  # a number is quicker than one for each environment
            options["grad_kappa"] = float(smooth[0]) if one else smooth[:, None].expand(x.shape[:-1])
            if self.minimal:
                q, qd = x.chunk(2, dim=-1)
                matrices: Any = mech.linearize_minimal(q, qd, **options)
            else:
                matrices = mech.linearize(x, **options)
            return matrices.A, matrices.B if self.plain else matrices.B @ self.map

        A, B = self._each(kappa, run, nodes.x, nodes.v, nodes.w, grad_kappa)
        return A, B

    # -- forces and readings -------------------------------------------------------------------------------------------------------------

    @property
    def first_reading(self) -> int:
        """The row of `forces` in which the numbers of sensors begin."""
        return 4 * len(self.mech.contacts)

    def forces(self, before: Tensor, v: Tensor, z: Tensor, impulses: Tensor, rows: Tensor) -> Tensor:
        """Contact forces [N] and readings (..., len(rows)) of steps from `before` to z (..., 13 nb), with `impulses` as in `StepOutput`.

        Of C contacts, rows 0 to C − 1 are normal forces. The components of their forces on the body follow, world frame, three each, and
        the numbers of all sensors in their order.
        """
        mech, layout = self.mech, self.mech.impulse_layout
        h, count, first = float(mech.timestep), len(mech.contacts), self.first_reading
        columns = z.new_zeros(*z.shape[:-1], len(rows))
        normal, vector, read = rows < count, (rows >= count) & (rows < first), rows >= first
        if bool(normal.any()):
            starts = torch.tensor([layout[f"contacts.{name}"].start for name in mech.contacts])
            columns[..., normal] = impulses[..., starts[rows[normal]]] / h
        if bool(vector.any()):
            columns[..., vector] = (mech.contact_impulses(z, impulses).flatten(-2) / h)[..., rows[vector] - count]
        if bool(read.any()):
            wanted = rows[read] - first
            names = [name for name, place in mech.sensors.layout.items() if bool(((wanted >= place.start) & (wanted < place.stop)).any())]
            places = [k for place in map(mech.sensors.layout.__getitem__, names) for k in range(place.start, place.stop)]
            step: Any = SimpleNamespace(z=z, impulses=impulses)
            reading = mech.read_sensors(self.motion(before), step, names=names, **self.acting(before, v))
            columns[..., read] = reading[..., torch.searchsorted(torch.tensor(places), wanted)]
        return columns

    def forces_of(self, before: Tensor, v: Tensor, end: Tensor, w: Tensor, rows: Tensor) -> Tensor:
        """`forces` of steps with these coordinates after them, and these solutions (`Nodes.end`, `Nodes.w`)."""
        places = self.mech.layout.impulses.values()
        impulses = w[..., [place for piece in places for place in range(piece.start, piece.stop)]]
        posed = int(rows.max()) >= len(self.mech.contacts)  # directions depend on the pose
        return self.forces(before, v, self.motion(self.states(end)) if posed else end, impulses, rows)

    def force_jacobian(self, nodes: Nodes, grad_kappa: Tensor, rows: Tensor, steps: Tensor) -> Tensor:
        """Derivatives F (P, T, r, n + m) of r rows of `forces` by state and input of the node, of the steps from the nodes `steps`.

        The steps are taken anew at grad_kappa (P,), once for all rows, and each row takes a backward pass through them. With grad_kappa as
        an option of the step, every pass would continue the solution to it, at twice the time. F is zero at the other nodes, and where a
        step fails.
        """
        n, m = self.size, self.num_inputs

        def run(mech: Mechanism, x: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor]:
            whole = x.new_zeros(*v.shape[:-1], len(rows), n + m)
            x, v, w = x[:, steps], v[:, steps], w[:, steps]
            with torch.enable_grad():
                change = x.new_zeros(*v.shape[:-1], n + m, requires_grad=True)
                z = self.states(self.retract(x, change[..., :n]))
                out = self.take(mech, z, v + change[..., n:], w)[1]
                values = self.forces(z, v + change[..., n:], out.z, out.impulses, rows)
                each = [torch.autograd.grad(value.sum(), change, retain_graph=True)[0] for value in values.unbind(-1)]
            whole[:, steps] = torch.stack(each, dim=-2)
            return (whole,)

        return self._each(grad_kappa, run, nodes.x, nodes.v, nodes.w)[0]

    # -- groups of problems --------------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def solving(self, kappa: float) -> Iterator[Mechanism]:
        """The mechanism with steps at this kappa within a budget; a step that exceeds it is flagged.

        It shares all numbers and backends with `mech`, whose options stay. So plans of one mechanism may run in several threads.
        """
        twin = copy.copy(self.mech)
        twin.options = _hurried(self.mech.options, kappa)
        with torch.no_grad():
            yield twin
        for name in ("checked_signs", "warned_of_penetration"):  # each warning is given once
            setattr(self.mech, name, getattr(twin, name))

    def _budget(self, mech: Mechanism) -> int | None:
        """Newton iterations after which a step is given up, where the kernel takes the steps of `mech`; the reference has no budget."""
        stepper = mech.backends.stepper(Request(mech.options), mech.actuators if self.controls else None)
        return BUDGET if stepper.in_one_call else None

    def _each(self, kappa: Tensor, run: Callable[..., tuple[Tensor, ...]], *arguments: Tensor | None) -> tuple[Tensor, ...]:
        """One call of `run` per distinct kappa, on the problems with it. The engine has one kappa per call."""
        distinct = kappa.unique().tolist() if len(kappa) > 1 else kappa.tolist()
        if len(distinct) == 1:
            with self.solving(distinct[0]) as mech:
                return run(mech, *arguments)
        results: list[Tensor] = []
        for value in distinct:
            rows = (kappa == value).nonzero()[:, 0]
            with self.solving(value) as mech:
                part = run(mech, *(None if argument is None else argument[rows] for argument in arguments))
            if not results:
                results = [value.new_empty(len(kappa), *value.shape[1:]) for value in part]
            for whole, piece in zip(results, part, strict=True):
                whole[rows] = piece
        return tuple(results)


@functools.lru_cache(maxsize=64)
def _hurried(options: SolverOptions, kappa: float) -> SolverOptions:
    """Options of steps within a budget."""
    return replace(options, kappa=kappa, grad_kappa=None, max_halvings=0, max_iterations=min(BUDGET, options.max_iterations))

"""Steps, rollouts and linearizations of plans whose controls go to drives. Activations are part of the state.

A state of such a plan is [z, a], with na activations a behind the state of the bodies, and has n + na changes. With the inputs u and
wrenches f of the drives, the linear step of node t is

    δu = U_x δx + U_a δa + U_c δc        δf likewise (drives at sites)
    δx⁺ = A δx + B δu + F δf
    δa⁺ = D_a δa + D_c δc

A and B are those of `Mechanism.linearize`, which smooths contacts. The other derivatives are those of PyTorch, of the laws alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from torchdojo.engine.drive_linearization import law_slopes
from torchdojo.engine.drives import Drives
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.mechanism import Mechanism
from torchdojo.planning.dynamics import Dynamics, Nodes

__all__ = ["DrivenDynamics", "driven_by"]


def driven_by(mech: Mechanism) -> Drives | None:
    """The drives that take controls; None where there are none, or all are those of `mech.actuators`."""
    drives = mech.drives
    return drives if drives is not None and any(drive is not None for drive in drives.drives.values()) else None


class DrivenDynamics(Dynamics):
    """`Dynamics` under controls ctrl = map v + offset of `mech.drives`, of states with activations."""

    def __init__(self, mech: Mechanism, input_map: Tensor, offset: Tensor, coordinates: str) -> None:
        super().__init__(mech, input_map, offset, coordinates, controls=True)
        assert mech.drives is not None
        self.num_activations = mech.drives.num_activations
        self.size += self.num_activations

    # -- coordinates ---------------------------------------------------------------------------------------------------------------------

    def _parts(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """States, coordinates or changes without activations, and these."""
        motion, act = values.split((values.shape[-1] - self.num_activations, self.num_activations), dim=-1)
        return motion, act

    def motion(self, state: Tensor) -> Tensor:
        return self._parts(state)[0]

    def activations(self, state: Tensor) -> Tensor:
        return self._parts(state)[1]

    def joined(self, z: Tensor, act: Tensor | None = None) -> Tensor:
        act = z.new_zeros(self.num_activations) if act is None else act
        return torch.cat((z, act.expand(*z.shape[:-1], self.num_activations)), dim=-1)

    def coordinates(self, z: Tensor) -> Tensor:
        motion, act = self._parts(z)
        return torch.cat((super().coordinates(motion), act), dim=-1)

    def states(self, x: Tensor) -> Tensor:
        motion, act = self._parts(x)
        return torch.cat((super().states(motion), act), dim=-1)

    def difference(self, x: Tensor, reference: Tensor) -> Tensor:
        (motion, act), (other, other_act) = self._parts(x), self._parts(reference)
        return torch.cat((super().difference(motion, other), act - other_act), dim=-1)

    def retract(self, x: Tensor, delta: Tensor) -> Tensor:
        (motion, act), (change, act_change) = self._parts(x), self._parts(delta)
        return torch.cat((super().retract(motion, change), act + act_change), dim=-1)

    # -- steps ---------------------------------------------------------------------------------------------------------------------------

    @contextmanager
    def solving(self, kappa: float) -> Iterator[Mechanism]:
        with super().solving(kappa) as twin:
            assert self.mech.drives is not None
            twin.drives = Drives(twin, self.mech.drives.drives)  # drives take the steps of the mechanism that they belong to
            yield twin

    def take(self, mech: Mechanism, state: Tensor, v: Tensor, warm: Tensor | None, repeat: int = 1) -> tuple[Tensor, StepOutput]:
        assert mech.drives is not None
        z, act = self._parts(state)
        out, act, _ = mech.drives.step(z, self.inputs(v), act, repeat=repeat, warm_start=warm)
        return self.joined(out.z, act), out

    def rollout(self, z: Tensor, v: Tensor, warm: Tensor | None, kappa: Tensor) -> Nodes:
        def run(mech: Mechanism, z: Tensor, v: Tensor, warm: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
            states, solutions, good = [z], [], torch.ones(z.shape[:-1], dtype=torch.bool)
            for t in range(v.shape[-2]):
                z, out = self.take(mech, z, v[..., t, :], warm)
                warm = out.solution
                states.append(z)
                solutions.append(warm)
                good &= out.status == 0
            return torch.stack(states, -2), torch.stack(solutions, -2), good

        path, w, ok = self._each(kappa, run, z, v, warm)
        x = self.coordinates(path)
        return Nodes(x, path, v, w, x[..., 1:, :], ok)

    def feedback(self, nodes: Nodes, k: Tensor, K: Tensor, alphas: Tensor, kappa: Tensor, limits: tuple[Tensor, Tensor] | None) -> Nodes:
        def run(mech: Mechanism, *arguments: Any) -> tuple[Tensor, ...]:
            return self._looped_feedback(alphas, mech, *arguments)

        x, z, v, w, ok = self._each(kappa, run, *nodes[:4], k, K, *(limits or (None, None)))
        return Nodes(x, z, v, w, x[..., 1:, :], ok)

    def along(self, z: Tensor, start: Tensor, v: Tensor) -> Tensor:
        assert self.mech.drives is not None
        acts = [self.activations(start)]
        for ctrl in self.inputs(v).unbind(-2):
            acts.append(self.mech.drives.advance(ctrl, acts[-1]))
        return self.joined(z, torch.stack(acts, -2))

    # -- derivatives ---------------------------------------------------------------------------------------------------------------------

    def linearize(self, nodes: Nodes, kappa: Tensor, grad_kappa: Tensor) -> tuple[Tensor, Tensor]:
        def run(mech: Mechanism, x: Tensor, v: Tensor, w: Tensor, smooth: Tensor) -> tuple[Tensor, Tensor]:
            x, n = x[:, :-1], self.size - self.num_activations
            u, wrench, by_all = self._laws(mech, x, v)
            grad_kappas = smooth[:, None].expand(x.shape[:-1])
            options: dict[str, Any] = {"u": u, "wrench": wrench, "warm_start": w, "grad_kappa": grad_kappas}
            options["wrt"] = () if wrench is None else ("wrench",)
            motion = self.motion(x)
            matrices: Any = mech.linearize_minimal(*motion.chunk(2, -1), **options) if self.minimal else mech.linearize(motion, **options)
            A = x.new_zeros(*x.shape[:-1], self.size, self.size)
            B = x.new_zeros(*x.shape[:-1], self.size, self.map.shape[0])
            by_forces = torch.cat((matrices.B, *matrices.by), dim=-1)
            acting, advancing = by_all.split((by_forces.shape[-1], self.num_activations), dim=-2)
            for rows, by in ((slice(0, n), by_forces @ acting), (slice(n, None), advancing)):
                A[..., rows, :], B[..., rows, :] = by.split((self.size, self.map.shape[0]), dim=-1)
            A[..., :n, :n] += matrices.A
            return A, B if self.plain else B @ self.map

        A, B = self._each(kappa, run, nodes.x, nodes.v, nodes.w, grad_kappa)
        return A, B

    def _laws(self, mech: Mechanism, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """`law_slopes` at nodes."""
        ctrl = self.inputs(v).expand(*x.shape[:-1], -1)
        return law_slopes(mech.drives, lambda change: self._parts(self.states(self.retract(x, change))), ctrl, self.size)

    def acting(self, before: Tensor, v: Tensor) -> dict[str, Any]:
        assert self.mech.drives is not None
        z, act = self._parts(before)
        u, wrench, _ = self.mech.drives.inputs(self.inputs(v), act, z)
        return {"u": u} if wrench is None else {"u": u, "wrench": wrench}

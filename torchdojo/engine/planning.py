"""What a planner asks of a mechanism: steps with their Jacobians, rollouts under feedback, and differences of minimal coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchdojo.engine import feedback, minimal
from torchdojo.engine.backends import Backends
from torchdojo.engine.linearize import Linearization, MinimalLinearization, derivatives, driven_minimal, period, slopes
from torchdojo.engine.periods import check_given, check_repeat, law_of
from torchdojo.engine.requests import refuse_jacobian, request_of
from torchdojo.engine.rollout import Trajectory
from torchdojo.parameters import result_tensor
from torchdojo.precision import in_float64
from torchdojo.solver.options import SolverOptions
from torchdojo.state import minimal as tree
from torchdojo.state.layout import TANGENT_SIZE
from torchdojo.structure import Structure

__all__ = ["PlannedStructure"]


class PlannedStructure(Structure):
    """The part of a `Mechanism` that planners call."""

    options: SolverOptions
    backends: Backends

    @in_float64
    def linearize(
        self,
        z: Tensor,
        u: Tensor | None = None,
        *,
        ctrl: Tensor | None = None,
        repeat: int = 1,
        wrt: Sequence[str] = (),
        warm_start: Tensor | None = None,
        wrench: Tensor | None = None,
        grad_kappa: float | Tensor | None = None,
        out: Tensor | None = None,
    ) -> Linearization:
        """A step, or a control period, and its derivatives on the tangent space. The kernel takes a step and its Jacobian in one call.

        Along a trajectory, Jacobians that start from its solutions take no iteration:
        ``mech.linearize(path.z[..., :-1, :], path.u, warm_start=path.solution)`` for ``path = mech.rollout(..., keep_solutions=True)``.

        Args:
            z: (..., 13 nb). u, ctrl, repeat, warm_start, wrench, grad_kappa: as in `step`. B is the derivative by u, or by ctrl.
            wrt: names of what else to differentiate by: "wrench", or parameters of `mech.named_parameters()`, "bodies.trunk.mass" say. Each
                row takes a backward pass, 12 nb in all.
            out: (..., 12 nb, 12 nb + nu) for A and B side by side, as in `jacobians`.

        Environments that fail are flagged, and have zeros in A, B and `by`. Nothing here is differentiable.

        Raises:
            ValueError: an unknown name, the gradient mode "complementarity_aware", and as `step` and `jacobians`.
        """
        mech: Any = self
        law = law_of(self, u, ctrl)
        given = check_given(self, law, z, u if law is None else ctrl, wrench)
        z, request = request_of(self.backends.system, self.options, given[0], grad_kappa)
        refuse_jacobian(request.options)
        if warm_start is not None:
            self.check_tensor("warm_start", warm_start, self.layout.num_unknowns)
        with torch.no_grad():
            backend = self.backends.select(request)
            solved, jacobian = period(self, backend, law, check_repeat(repeat), (z, *given[1:]), warm_start, out)

        def rows(wrench: Tensor | None) -> Tensor:
            options: dict[str, Any] = {"ctrl": ctrl, "repeat": repeat, "warm_start": warm_start, "grad_kappa": grad_kappa}
            after = mech.step(z, u, wrench=wrench, **options).z
            return self.difference(after, after.detach())

        by = derivatives(self, rows, wrt, solved.z.shape[:-1], wrench)
        size = TANGENT_SIZE * self.num_bodies
        return Linearization(solved.z, jacobian[..., :size], jacobian[..., size:], by, *solved[1:])

    @in_float64
    def linearize_minimal(
        self,
        q: Tensor,
        qd: Tensor,
        u: Tensor | None = None,
        *,
        ctrl: Tensor | None = None,
        repeat: int = 1,
        wrt: Sequence[str] = (),
        warm_start: Tensor | None = None,
        wrench: Tensor | None = None,
        grad_kappa: float | Tensor | None = None,
        out: Tensor | None = None,
    ) -> MinimalLinearization:
        """`linearize` in joint coordinates, as `step_minimal` and `jacobians_minimal` together.

        Args:
            q, qd: (..., num_coordinates). The others are as in `linearize`. out: (..., 2n, 2n + nu), as in `jacobians_minimal`.

        Raises:
            ValueError: closed loops or couplings, and as `linearize`.
        """
        mech: Any = self
        law = law_of(self, u, ctrl)
        with torch.no_grad():
            minimal.check(self, q, qd)
            expanded, request = request_of(self.backends.system, self.options, torch.broadcast_tensors(q, qd)[0], grad_kappa)
            start = minimal.Coordinates(self.backends, self.options, expanded, qd.expand(expanded.shape))
            z, held, forces = check_given(self, law, start.z, u if law is None else ctrl, wrench)
            refuse_jacobian(request.options)
            if warm_start is not None:
                self.check_tensor("warm_start", warm_start, self.layout.num_unknowns)
            if law is None and check_repeat(repeat) == 1:
                solved, jacobian = minimal.linearize(self.backends, request, start, held, forces, warm_start, out)
            elif law is not None and law.tree_coordinates is not None and check_repeat(repeat) == 1:
                u_now, by_ctrl, by_q, by_rate = slopes(law, held, z)
                solved, by_input = minimal.linearize(self.backends, request, start, u_now, forces, warm_start, None)
                jacobian = driven_minimal(law, (by_ctrl, by_q, by_rate), by_input, self.num_coordinates)
                jacobian = jacobian if out is None else result_tensor(out, jacobian.shape, jacobian).copy_(jacobian)
            else:
                backend = self.backends.select(request)
                maximal, whole = period(self, backend, law, check_repeat(repeat), (z, held, forces), warm_start, None)
                jacobian = minimal.in_coordinates(self.backends, start, maximal, whole, out)
                solved = start.after_step(maximal)

        def rows(wrench: Tensor | None) -> Tensor:
            options: dict[str, Any] = {"ctrl": ctrl, "repeat": repeat, "warm_start": warm_start, "grad_kappa": grad_kappa}
            after = mech.step_minimal(q, qd, u, wrench=wrench, **options)
            return torch.cat((after.q, after.qd), dim=-1)

        by = derivatives(self, rows, wrt, solved.z.shape[:-1], wrench)
        size = 2 * self.num_coordinates
        return MinimalLinearization(*solved[:3], jacobian[..., :size], jacobian[..., size:], by, *solved[3:])

    @in_float64
    def rollout_feedback(
        self,
        z: Tensor,
        nominal: Tensor | tuple[Tensor, Tensor] | None,
        u: Tensor | None = None,
        *,
        ctrl: Tensor | None = None,
        gain: Tensor | None = None,
        feedforward: Tensor | None = None,
        solution: Tensor | None = None,
        scale: float | Tensor = 1.0,
        bounds: tuple[Any, Any] | None = None,
        repeat: int = 1,
        warm_start: Tensor | None = None,
        keep_solutions: bool = False,
        wrench: Tensor | None = None,
        budget: int | None = None,
    ) -> Trajectory:
        """A rollout under u = clip(ū + α k + K (x ⊖ x̄)), in one call of the kernel for all environments.

        Batch dimensions of all tensors broadcast, and nothing that environments share is copied. So candidates of a line search are one
        more dimension: gains (B, 1, T, nu, ·) of B problems with `scale` (A,) give a trajectory over (B, A).

        Args:
            z: (..., 13 nb), where the rollout starts.
            nominal: x̄, states (..., T or T + 1, 13 nb), with ⊖ as in `difference`. Or a pair q, qd of joint coordinates, each
                (..., T or T + 1, num_coordinates), with ⊖ as in `difference_minimal`.
            u: ū (..., T, nu). ctrl: instead of u, controls, as in `step`; then u above is the control of a period.
            gain: K (..., T, nu, 12 nb), or (..., T, nu, 2n) for a pair. feedforward: k (..., T, nu). scale: α, a number or (...,).
            solution: (..., T, num_unknowns) of the nominal trajectory, from `Trajectory.solution` with keep_solutions. The iterations of
                the first step of each period then start from that of its own time, and not from the step before: half as many near the
                nominal trajectory. It changes no result but where a step has several. The reference backend leaves it aside.
            bounds: (lower, upper) of u, each a number, (nu,) or (T, nu).
            repeat, warm_start, keep_solutions, wrench, budget: as in `rollout`. u is computed at the start of each period.

        Returns:
            the trajectory, with the inputs as applied. It is not differentiable.

        Raises:
            ValueError: shapes that do not fit, bounds that cross, a budget where the kernel cannot be used.
            RuntimeError: inside a `torch.func` transform or `torch.compile`.
        """
        law = law_of(self, u, ctrl)
        size = self.num_inputs if law is None else len(law)
        inputs = u if law is None else ctrl
        if not isinstance(inputs, Tensor) or inputs.ndim < 2 or inputs.shape[-1] != size or not inputs.shape[-2]:
            got = tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__
            raise ValueError(f"{'u' if law is None else 'ctrl'}: got {got}; allowed: (..., T, {size}) with T of 1 or more")
        if warm_start is not None:
            self.check_tensor("warm_start", warm_start, self.layout.num_unknowns)
        self.check_state(z)
        with torch.no_grad():
            rule = feedback.law_of_feedback(self, nominal, inputs, feedforward, gain, solution, scale, bounds)
            z, request = request_of(self.backends.system, self.options, z, None, repeat=check_repeat(repeat), budget=budget)
            return feedback.rollout_feedback(self.backends, request, z, rule, law, warm_start, wrench, keep_solutions)

    @in_float64
    def difference_minimal(self, q: Tensor, qd: Tensor, q_reference: Tensor, qd_reference: Tensor) -> Tensor:
        """Change of coordinates and rates (..., 2n) from the references to q, qd (..., n); inverse of `retract_minimal`.

        Angles of single rotations count modulo 4π, as in `to_minimal`, and a rotation vector in its representation nearest to the
        reference. To first order it is the change that `jacobians_minimal` and `linearize_minimal` differentiate by.
        """
        x, reference = (torch.cat(self.check_coordinates(*pair), dim=-1) for pair in ((q, qd), (q_reference, qd_reference)))
        return tree.difference(self.tree_order(), x, reference)

    @in_float64
    def retract_minimal(self, q: Tensor, qd: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Move coordinates and rates (..., n) by delta (..., 2n)."""
        q, qd = self.check_coordinates(q, qd)
        self.check_tensor("delta", delta, 2 * self.num_coordinates)
        dq, dqd = delta.chunk(2, dim=-1)
        return q + dq, qd + dqd

    @in_float64
    def contact_forces(self, z: Tensor, impulses: Tensor, repeat: int = 1) -> dict[str, Tensor]:
        """Mean force of each contact on its body over a step or period, by name, world frame [N], (..., 3).

        Args:
            z: (..., 13 nb), the states after the steps. impulses: (..., n) of these steps. repeat: steps of each period, as in `rollout`.
        """
        forces = self.contact_impulses(z, impulses) / (check_repeat(repeat) * self.timestep[..., None, None])
        return dict(zip(self.named_contacts(), forces.unbind(-2), strict=True))

"""The mechanism: what users call. Its graph is structure.py, its steps are engine/."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchdojo.dynamics import energy
from torchdojo.engine import minimal
from torchdojo.engine.adaptive import AdaptiveOptions, adaptive_options
from torchdojo.engine.backends import Backends
from torchdojo.engine.minimal import MinimalOutput, MinimalPolicy, MinimalTrajectory
from torchdojo.engine.penetration import warn_of_penetration
from torchdojo.engine.requests import refuse_jacobian, request_of
from torchdojo.engine.rollout import Policy, Trajectory, rollout, segment_length
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.parameters import Modules, transforming, warn_user
from torchdojo.solver.options import SolverOptions, Status
from torchdojo.state import loops
from torchdojo.state.layout import TANGENT_SIZE
from torchdojo.structure import Structure

__all__ = ["Mechanism", "StepOutput", "Trajectory"]


class Mechanism(Structure):
    """Bodies, joints and contacts, stepped with hard contact and differentiated through the step.

    Args:
        bodies, joints, contacts: modules by name (a mapping, or (name, module) pairs). Joints and contacts refer to bodies by name. A body
            that no joint leads to gets an unactuated `Floating` joint to the world, named "world_to_<body>".
        couplings: `td.JointCoupling` modules by name, which refer to joints by name.
        timestep: h [s], (...,), positive. gravity: [m/s²], world frame, (..., 3).
        options: `td.SolverOptions`; may be replaced at any time (`mech.options = ...`).

    The state is z (..., 13 nb): per body, in order, [x(3) m, v(3) m/s, q(4) wxyz, omega(3) rad/s]; x and v in the world frame, omega in the
    body frame. The input u (..., nu) holds forces and torques [N, N·m] on the free coordinates of actuated joints, in order. With the
    actuators of `td.actuate`, or of an MJCF file, ``u = mech.actuators(ctrl, z)``; `actuators` is None otherwise.

    Raises:
        ValueError: names that are unknown, doubled or unusable, a body with no mass, non-positive timesteps.
    """

    warned_of_penetration: bool = False  # whether `rollout` or `initial_state` did
    options: SolverOptions
    backends: Backends

    def __init__(
        self,
        bodies: Modules,
        joints: Modules = (),
        contacts: Modules = (),
        *,
        couplings: Modules = (),
        timestep: Any = 0.01,
        gravity: Any = (0.0, 0.0, -9.81),
        options: SolverOptions | None = None,
    ) -> None:
        super().__init__(bodies, joints, contacts, couplings, timestep, gravity)
        self.options = options or SolverOptions()
        self.backends = Backends(self)

    # -- stepping ------------------------------------------------------------------------------------------------------------------------

    def forward(
        self, z: Tensor, u: Tensor | None = None, wrench: Tensor | None = None, *, grad_kappa: float | Tensor | None = None
    ) -> Tensor:
        """The next state, (..., 13 nb). As `step`, but since no status is returned, invalid input raises and failed steps warn."""
        z, u, wrench = self.check_inputs(z, u, wrench)
        z, request = request_of(self.backends.system, self.options, z, grad_kappa, raise_invalid=True)
        out = self.backends.select(request).step(z, u, wrench, None)
        if not (torch.compiler.is_compiling() or transforming()):
            failed = int((out.status != int(Status.SUCCESS)).sum())
            if failed:
                text = f"{failed} of {out.status.numel()} environments keep their state: {Status.MAX_ITERATIONS.explain}"
                warn_user(f"{text}. mech.step returns the status of each")
        return out.z

    def step(
        self,
        z: Tensor,
        u: Tensor | None = None,
        *,
        warm_start: Tensor | None = None,
        wrench: Tensor | None = None,
        grad_kappa: float | Tensor | None = None,
    ) -> StepOutput:
        """One step.

        Args:
            z: (..., 13 nb). u: (..., nu) [N, N·m]; None is zero. Batch dimensions broadcast, with those of parameters too.
            warm_start: `solution` of the previous step, (..., num_unknowns): fewer iterations, the same result.
            wrench: external force (world) and torque (body frame) at each centre of mass, (..., 6 nb) [N, N·m].
            grad_kappa: of this call, in the place of `SolverOptions.grad_kappa`: a number, or a tensor (...,) with one per environment,
                kappa or larger, which no `torch.func` transform and no `torch.compile` may see.

        Environments that fail, or whose input is not finite, keep their state, carry a `Status` that says so, and have zero gradients; with
        `SolverOptions(on_failure="raise")` they raise instead.

        Raises:
            ValueError: wrong shapes, or quaternions that are not unit. TypeError: wrong dtype or device.
        """
        if warm_start is not None:
            self.check_tensor("warm_start", warm_start, self.layout.num_unknowns)
        z, u, wrench = self.check_inputs(z, u, wrench)
        z, request = request_of(self.backends.system, self.options, z, grad_kappa)
        return self.backends.select(request).step(z, u, wrench, warm_start)

    def rollout(
        self,
        z: Tensor,
        u: Tensor | Policy | None = None,
        *,
        steps: int | None = None,
        wrench: Tensor | None = None,
        adaptive: bool | AdaptiveOptions = False,
        grad_kappa: float | Tensor | None = None,
        checkpoint: bool | int = False,
    ) -> Trajectory:
        """Many steps, each warm-started from the one before. Warns, once, of a start with contacts inside a surface.

        Args:
            z: (..., 13 nb). u: (..., T, nu), or a policy z -> (..., nu) with `steps`, or None (zero) with `steps`.
            steps: T. wrench: as in `step`, held over the rollout.
            adaptive: split steps with an impact, per environment (adaptive.py); True means `td.AdaptiveOptions()`. `substeps` tells into
                how many, `impulses` are their sums, `iterations` those of all that was tried: three steps at least. Gradients are those
                of the substeps taken. Not inside `torch.func` transforms or `torch.compile`.
            grad_kappa: as in `step`, of all steps; not with `adaptive`.
            checkpoint: keep for backward where every √T-th step starts (True), or every n-th one (n), and compute the steps between again
                when they are needed: beyond the trajectory and its gradient, memory is O(√T) instead of O(T), for one more forward.
                Values are the same to the last bit. Not inside `torch.func` transforms or `torch.compile`.

        Raises:
            ValueError: `steps` missing, or different from the length of u; `adaptive` with what it does not go with.
        """
        if isinstance(u, Tensor):
            if u.ndim < 2 or (steps is not None and u.shape[-2] != steps):
                raise ValueError(
                    f"u: got shape {tuple(u.shape)} with steps={steps}; allowed: (..., T, {self.num_inputs}), with steps None or T"
                )
            steps = u.shape[-2]
        if steps is None or steps < 1:
            raise ValueError(f"steps: got {steps}; give a number of steps of 1 or more, or an input u of shape (..., T, {self.num_inputs})")
        careful = adaptive_options(adaptive)
        self.check_state(z)
        length = segment_length(checkpoint, steps)
        self._warn_of_penetration(z)
        z, request = request_of(self.backends.system, self.options, z, grad_kappa)
        if careful and (grad_kappa is not None or request.options.randomized is not None):
            raise ValueError("rollout(adaptive=...): goes neither with grad_kappa= of the call nor with gradient_mode='randomized'")
        return rollout(self.backends, request, z, u, steps, wrench, careful, length)

    def _warn_of_penetration(self, z: Tensor) -> None:
        """Warn, the first time, of contacts inside a surface in the states z."""
        if not self.warned_of_penetration:
            self.warned_of_penetration = warn_of_penetration(self.backends, self.options, z)

    def jacobians(
        self,
        z: Tensor,
        u: Tensor | None = None,
        *,
        warm_start: Tensor | None = None,
        grad_kappa: float | Tensor | None = None,
        out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Derivatives of the step on the tangent space, per body [dx, dv, dphi, domega] (dphi: body-frame rotation vector [rad]).

        Args:
            z, u, warm_start, grad_kappa: as in `step`.
            out: (..., 12 nb, 12 nb + nu) to write both into, side by side. Worth having where Jacobians of many environments are taken
                again and again: for 1,000 humanoids they are 0.2 GB, and a quarter of the time goes into finding new memory for them.

        Returns:
            (..., 12 nb, 12 nb) with respect to z, and (..., 12 nb, nu) with respect to u, views of `out`; zero for environments that fail.
            Not themselves differentiable.

        Raises:
            ValueError: the gradient mode "complementarity_aware", which depends on a loss; `out` of another shape, dtype or device, not
                contiguous, or with a gradient.
        """
        z, u, wrench = self.check_inputs(z, u, None)
        z, request = request_of(self.backends.system, self.options, z, grad_kappa)
        refuse_jacobian(request.options)
        with torch.no_grad():
            jacobian = self.backends.select(request).jacobian(z, u, wrench, warm_start, out)
        size = TANGENT_SIZE * self.num_bodies
        return jacobian[..., :size], jacobian[..., size:]

    # -- stepping in minimal coordinates -------------------------------------------------------------------------------------------------

    def step_minimal(self, q: Tensor, qd: Tensor, u: Tensor | None = None, **options: Any) -> MinimalOutput:
        """One step in joint coordinates, `to_minimal` of `step` at `to_maximal`: ``out = mech.step_minimal(q, qd, u)``, then out.q, out.qd.

        Args:
            q, qd: (..., num_coordinates), as in `to_maximal`. u, options: as in `step` (`warm_start`, `wrench`, ...), and so are failures.

        Rotations come back as in `to_minimal`, as angles in (−π, π] and rotation vectors of at most π, whatever turns q had.

        Raises:
            ValueError: closed loops or couplings, whose coordinates depend on each other; and as `step`.
        """
        z, _ = minimal.lift(self.backends, q, qd)
        return minimal.project_step(self.backends, q, qd, self.step(z, u, **options))

    def rollout_minimal(self, q: Tensor, qd: Tensor, u: Tensor | MinimalPolicy | None = None, **options: Any) -> MinimalTrajectory:
        """`rollout` in joint coordinates, from q, qd (..., num_coordinates). A policy is one of (q, qd). Options: those of `rollout`."""
        z, valid = minimal.lift(self.backends, q, qd)
        given = u if u is None or isinstance(u, Tensor) else (lambda z: u(*self.to_minimal(z)))
        return minimal.project_rollout(self.backends, q, qd, valid, self.rollout(z, given, **options))

    def jacobians_minimal(
        self,
        q: Tensor,
        qd: Tensor,
        u: Tensor | None = None,
        *,
        warm_start: Tensor | None = None,
        grad_kappa: float | Tensor | None = None,
        out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Derivatives of `step_minimal`: rows [q⁺, qd⁺], columns [q, qd] and u.

        Partial derivatives by the coordinates as they are: those of two or three rotations are components of a rotation vector (not a
        body-frame tangent, as in `jacobians`). They are `jacobians` times the derivatives of both maps, but not computed that way: the
        kernel solves for n rows instead of 6 nb, and what it stores is as small.

        Args:
            q, qd, u, warm_start, grad_kappa: as in `step_minimal`. out: (..., 2 n, 2 n + nu) to write both into, as in `jacobians`.

        Returns:
            (..., 2 n, 2 n) and (..., 2 n, nu), n = num_coordinates; zero for environments that fail. Not themselves differentiable.

        Raises:
            ValueError: closed loops or couplings; and as `jacobians`.
        """
        return minimal.jacobians(self.backends, self.options, q, qd, u, warm_start, grad_kappa, out)

    # -- states --------------------------------------------------------------------------------------------------------------------------

    def initial_state(self, batch_shape: Sequence[int] = (), **values: Mapping[str, Any]) -> Tensor:
        """A state from joint coordinates, `hinge=dict(q=.3, qd=1.)`, or for a free body `box=dict(position=..., velocity=...,
        orientation=..., angular_velocity=...)`; what is not given is zero (the identity). Bodies with joints to a free body move with it.

        Where loops and couplings are open at these coordinates, those that are not given move until all are closed (`close_loops`).
        Joints that close a loop (`tree_joints`) cannot be given: their coordinates follow from the others.
        Warns where contacts of a given position overlap, as `rollout` does.

        Raises:
            ValueError: unknown names or keys, values that do not fit, loops that cannot be closed.
        """
        z = loops.initial_state(self, tuple(batch_shape), values)
        if any("position" in given for given in values.values()):  # joint angles alone are not a place: the caller may yet lift the state
            self._warn_of_penetration(z)
        return z

    def close_loops(self, z: Tensor, *, hold: Sequence[str] = ()) -> Tensor:
        """The state nearest to z in joint coordinates in which every joint is assembled and every coupling holds, (..., 13 nb).

        Newton's method on the coordinates of the spanning tree (`tree_joints`), at the configuration of z and at the one before it, so
        that velocities agree with the loops as well. Followers of couplings are set from their leaders. Limits are not looked at.
        Gradients are those of the projection onto the loops at the result: exact in what is held and in parameters where the rest has
        no freedom left, and in a z that is already closed.

        Args:
            z: (..., 13 nb). hold: names of joints whose coordinates and rates stay as they are in z.

        Raises:
            ValueError: a loop or coupling that cannot be closed; the message gives the gap that is left [m, rad]. Unknown names.
        """
        return loops.close_loops(self, z, hold)

    def to_minimal(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """(q, qd), each (..., num_coordinates): joint coordinates [m, rad] and their backward differences over one step, `tree_joints` in
        order.

        Raises:
            ValueError: no chain of joints with coordinates connects a body with the world.
        """
        return minimal.to_minimal(self.backends, z)

    def to_maximal(self, q: Tensor, qd: Tensor | None = None) -> Tensor:
        """z (..., 13 nb) from joint coordinates; inverse of `to_minimal`. Loops are closed where the coordinates are those of closed loops
        (else: `close_loops`)."""
        return minimal.to_maximal(self.backends, q, qd)

    # -- what a state tells --------------------------------------------------------------------------------------------------------------

    def kinetic_energy(self, z: Tensor, z_next: Tensor | None = None) -> Tensor:
        """[J], (...): of the step that led to z; with the state one step later, at the configuration z (discrete Legendre transform)."""
        return energy.kinetic_energy(self, z, z_next)

    def potential_energy(self, z: Tensor) -> Tensor:
        """Gravity, zero at the origin, and joint springs [J], (...)."""
        return energy.potential_energy(self, z)

    def momentum(self, z: Tensor, z_next: Tensor | None = None) -> Tensor:
        """[linear N·s, angular about the common centre of mass N·m·s], world frame, (..., 6).

        Conserved by the step when nothing external acts. Of the step that led to z; with the state one step later, at the configuration z
        (discrete Legendre transform).
        """
        return energy.momentum(self, z, z_next)

    def stacked_parameters(self) -> list[Tensor]:
        """Every physical number as the equations of a step read them: stacked over equal elements, with their graphs."""
        return self.backends.stacked()

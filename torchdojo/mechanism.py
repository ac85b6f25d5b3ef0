"""The mechanism: the interface for users. Its graph is in structure.py, its steps are in engine/."""

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

    The state z (..., 13 nb) has [x(3) m, v(3) m/s, q(4) wxyz, omega(3) rad/s] per body, in order. Here x and v are in
    the world frame, and omega is in the body frame. The input u (..., nu) holds forces and torques [N, N·m] on the free coordinates of
    actuated joints, in order. With the actuators of `td.actuate`, or of an MJCF file, ``u = mech.actuators(ctrl, z)``; `actuators` is None
    otherwise.

    Raises:
        ValueError: names that are unknown, doubled or unusable, a body with no mass, non-positive timesteps.
    """

    warned_of_penetration: bool = False  # whether `rollout` or `initial_state` has warned
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

    def rebuild(self) -> None:
        super().rebuild()
        self.backends = Backends(self)

    # -- stepping ------------------------------------------------------------------------------------------------------------------------

    def forward(
        self, z: Tensor, u: Tensor | None = None, wrench: Tensor | None = None, *, grad_kappa: float | Tensor | None = None
    ) -> Tensor:
        """The next state, (..., 13 nb), as from `step`. There is no status, so invalid input raises and failed steps warn."""
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
            z: (..., 13 nb). u: (..., nu) [N, N·m]; None is zero. Batch dimensions broadcast, also with the batch of parameters.
            warm_start: `solution` of the previous step, (..., num_unknowns): fewer iterations, the same result.
            wrench: external force (world) and torque (body frame) at each center of mass, (..., 6 nb) [N, N·m].
            grad_kappa: replaces `SolverOptions.grad_kappa` in this call. It is a number, or a tensor (...,) with one per environment, kappa
                or larger. No `torch.func` transform and no `torch.compile` may see the tensor.

        Environments that fail, or whose input is not finite, keep their state. Their `Status` says so, and their gradients are zero. With
        `SolverOptions(on_failure="raise")` they raise instead.

        Raises:
            ValueError: wrong shapes, or quaternions without unit norm. TypeError: wrong dtype or device.
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
        """Many steps, each warm-started from the step before. It warns, once, if contacts start inside a surface.

        Args:
            z: (..., 13 nb). u: (..., T, nu), or a policy z -> (..., nu) with `steps`, or None (zero) with `steps`.
            steps: T. wrench: as in `step`, held over the rollout.
            adaptive: split steps with an impact, per environment (engine/adaptive.py); True means `td.AdaptiveOptions()`. `substeps` counts
                the substeps, and `impulses` are their sums. `iterations` sums over all trials: three steps at least. Gradients pass through
                the substeps taken. This does not work inside `torch.func` transforms or `torch.compile`.
            grad_kappa: as in `step`, for all steps; not with `adaptive`.
            checkpoint: keep for backward the start of every √T-th step (True), or of every n-th step (n). Steps between are computed again
                when needed. Beyond the trajectory and its gradient, memory is O(√T) instead of O(T), for one more forward pass. Values are
                the same to the last bit. This does not work inside `torch.func` transforms or `torch.compile`.

        Raises:
            ValueError: `steps` missing, or different from the length of u; `adaptive` with an option that it excludes.
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
            out: (..., 12 nb, 12 nb + nu) to write both into, side by side. This pays where Jacobians of many environments are taken again
                and again. For 1,000 humanoids they have 0.2 GB, and a quarter of the time goes into finding new memory for them.

        Returns:
            (..., 12 nb, 12 nb) with respect to z, and (..., 12 nb, nu) with respect to u, views of `out`; zero for environments that fail.
            They are not differentiable.

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
            q, qd: (..., num_coordinates), as in `to_maximal`. u, options: as in `step` (`warm_start`, `wrench`, ...).

        Steps fail as in `step`. Rotations come back as in `to_minimal`: angles in (−π, π] and rotation vectors of at most π, whatever turns
        q has.

        Raises:
            ValueError: closed loops or couplings, whose coordinates depend on each other; and as `step`.
        """
        z, _ = minimal.lift(self.backends, q, qd)
        return minimal.project_step(self.backends, q, qd, self.step(z, u, **options))

    def rollout_minimal(self, q: Tensor, qd: Tensor, u: Tensor | MinimalPolicy | None = None, **options: Any) -> MinimalTrajectory:
        """`rollout` in joint coordinates, from q, qd (..., num_coordinates). A policy maps q, qd to u. Options are those of `rollout`."""
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

        They are partial derivatives by the coordinates. Two or three rotations have components of a rotation vector as coordinates, not a
        body-frame tangent as in `jacobians`. The result equals `jacobians` times the derivatives of both maps. The kernel computes it at
        less cost: it solves for n rows instead of 6 nb, and stores as little.

        Args:
            q, qd, u, warm_start, grad_kappa: as in `step_minimal`. out: (..., 2 n, 2 n + nu) to write both into, as in `jacobians`.

        Returns:
            (..., 2 n, 2 n) and (..., 2 n, nu), n = num_coordinates; zero for environments that fail. They are not differentiable.

        Raises:
            ValueError: closed loops or couplings; and as `jacobians`.
        """
        return minimal.jacobians(self.backends, self.options, q, qd, u, warm_start, grad_kappa, out)

    # -- states --------------------------------------------------------------------------------------------------------------------------

    def initial_state(self, batch_shape: Sequence[int] = (), **values: Mapping[str, Any]) -> Tensor:
        """A state from joint coordinates and poses of free bodies by name; values that are not given are zero (the identity).

        A joint takes `hinge=dict(q=.3, qd=1.)`, and a free body `box=dict(position=..., velocity=..., orientation=...,
        angular_velocity=...)`. Bodies with joints to a free body move with it. If loops or couplings are open at these coordinates,
        coordinates that are not given move until all are closed (`close_loops`). Joints that close a loop (`tree_joints`) cannot be
        given: their coordinates follow from the others. A given position whose contacts overlap warns, as in `rollout`.

        Raises:
            ValueError: unknown names or keys, values that do not fit, loops that cannot be closed.
        """
        z = loops.initial_state(self, tuple(batch_shape), values)
        if any("position" in given for given in values.values()):  # the caller may still lift a state of joint angles alone
            self._warn_of_penetration(z)
        return z

    def close_loops(self, z: Tensor, *, hold: Sequence[str] = ()) -> Tensor:
        """The state nearest to z in joint coordinates in which every joint is assembled and every coupling holds, (..., 13 nb).

        Newton's method acts on the coordinates of the spanning tree (`tree_joints`). It solves at the configuration of z and at the one
        before, so that velocities agree with the loops as well. Followers of couplings are set from their leaders. Joint limits are
        ignored. Gradients are those of the projection onto the loops at the result. They are exact for a z that is already closed. For held
        coordinates and for parameters, they are exact where the other coordinates have no freedom left.

        Args:
            z: (..., 13 nb). hold: names of joints whose coordinates and rates stay as they are in z.

        Raises:
            ValueError: a loop or coupling that cannot be closed, where the message gives the remaining gap [m, rad]; unknown names.
        """
        return loops.close_loops(self, z, hold)

    def to_minimal(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """(q, qd), each (..., num_coordinates): joint coordinates [m, rad] and their backward differences over one step.

        Both have the order of `tree_joints`.

        Raises:
            ValueError: no chain of joints with coordinates connects a body with the world.
        """
        return minimal.to_minimal(self.backends, z)

    def to_maximal(self, q: Tensor, qd: Tensor | None = None) -> Tensor:
        """z (..., 13 nb) from joint coordinates; inverse of `to_minimal`.

        Loops are closed only if the coordinates are those of closed loops; `close_loops` closes others.
        """
        return minimal.to_maximal(self.backends, q, qd)

    # -- energy and momentum -------------------------------------------------------------------------------------------------------------

    def kinetic_energy(self, z: Tensor, z_next: Tensor | None = None) -> Tensor:
        """Kinetic energy of the step that led to z [J], (...).

        With the state one step later, it is the energy at the configuration z (discrete Legendre transform).
        """
        return energy.kinetic_energy(self, z, z_next)

    def potential_energy(self, z: Tensor) -> Tensor:
        """Potential energy of gravity, zero at the origin, and of joint springs [J], (...)."""
        return energy.potential_energy(self, z)

    def momentum(self, z: Tensor, z_next: Tensor | None = None) -> Tensor:
        """Momentum [linear N·s, angular about the common center of mass N·m·s] of the step that led to z, world frame, (..., 6).

        The step conserves it when nothing external acts. With the state one step later, it is the momentum at the configuration z (discrete
        Legendre transform).
        """
        return energy.momentum(self, z, z_next)

    def stacked_parameters(self) -> list[Tensor]:
        """All physical numbers as the equations of a step read them: stacked over equal elements, with their graphs."""
        return self.backends.stacked()

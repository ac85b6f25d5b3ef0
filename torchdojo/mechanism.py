"""The mechanism: a graph of bodies, joints and contacts that takes steps."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from torchdojo import quaternion as quat
from torchdojo.dynamics import energy
from torchdojo.dynamics.integrator import STATE_SIZE, TANGENT_SIZE, join_state, split_state
from torchdojo.dynamics.system import System
from torchdojo.elements.actuators import Actuators
from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import Contact
from torchdojo.elements.couplings import JointCoupling
from torchdojo.elements.element import Element, Pose, Twist
from torchdojo.elements.joint_cones import JointFriction, JointLimits
from torchdojo.elements.joints import Floating, Joint, StandardJoint, previous_pose
from torchdojo.engine import minimal as minimal_stepping
from torchdojo.engine.adaptive import AdaptiveOptions, adaptive_options, adaptive_stepper
from torchdojo.engine.backends import Backends
from torchdojo.engine.minimal import MinimalOutput, MinimalPolicy, MinimalTrajectory
from torchdojo.engine.minimal_operators import tree_map
from torchdojo.engine.penetration import warn_of_penetration
from torchdojo.engine.rollout import Policy, Trajectory, in_kernel, in_segments, segment_length, step_by_step
from torchdojo.engine.smoothing import differentiation, refuse_jacobian
from torchdojo.gradients.implicit import transforming
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.native.program import Program
from torchdojo.parameters import Modules, check_tensor, module_dict, require
from torchdojo.solver.options import SolverOptions, Status
from torchdojo.state import loops as assembly
from torchdojo.state import minimal

__all__ = ["Mechanism", "StepOutput", "Trajectory"]


class Mechanism(Backends):
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

    fields: ClassVar[dict[str, int]] = {"timestep": 0, "gravity": 1}
    warned_of_penetration: bool = False  # whether `rollout` or `initial_state` did
    timestep: Tensor
    gravity: Tensor
    bodies: nn.ModuleDict
    joints: nn.ModuleDict
    contacts: nn.ModuleDict
    couplings: nn.ModuleDict
    actuators: Actuators | None

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
        super().__init__()
        self.timestep = timestep
        self.gravity = gravity
        self.options = options or SolverOptions()
        self.bodies = module_dict("bodies", bodies, Body)
        self.joints = module_dict("joints", joints, Joint)
        self.contacts = module_dict("contacts", contacts, Contact)
        self.couplings = module_dict("couplings", couplings, JointCoupling)
        if not self.bodies:
            raise ValueError("Mechanism: got no bodies; give at least one, bodies={'name': td.Body(mass=..., inertia=...)}")
        for key, element in self._elements().items():
            for body in element.body_names:
                if body is not None and body not in self.bodies:
                    kind, _, name = key.partition("s.")
                    raise ValueError(f"{kind} {name!r} refers to body {body!r}; bodies are {list(self.bodies)}, and the world is None")
        self._add_floating_joints()
        self._attach_couplings()
        self._lower(System(cast(Mapping[str, Body], self.bodies), self._elements()))
        self._tree_joints = minimal.tree_names(self._joints())
        self._num_coordinates = sum(joint.num_coordinates for joint in minimal.tree_joints(self._joints()).values())
        self.actuators = None

    def check_field(self, name: str, value: Tensor) -> Tensor:
        value = super().check_field(name, value)
        if name == "timestep":
            require(value > 0, self.label(name), value, "positive timesteps [s]")
        elif value.shape[-1] != 3:
            raise ValueError(f"{self.label(name)}: got shape {tuple(value.shape)}; allowed: (..., 3)")
        return value

    def _add_floating_joints(self) -> None:
        children = {joint.child for joint in self._joints().values()}
        for name in self.bodies:
            if name not in children:
                self.joints[f"world_to_{name}"] = Floating(None, name, actuated=False)

    def _attach_couplings(self) -> None:
        for name, coupling in self._couplings().items():
            try:
                coupling.attach(self._joints())
            except ValueError as error:
                raise ValueError(f"coupling {name!r}: {error}") from error

    # -- sizes ---------------------------------------------------------------------------------------------------------------------------

    @property
    def num_bodies(self) -> int:
        return self._system.num_bodies

    @property
    def num_inputs(self) -> int:
        return self._system.num_inputs

    @property
    def num_coordinates(self) -> int:
        """Number of minimal coordinates: the sum over `tree_joints` (without loops and couplings, the degrees of freedom)."""
        return self._num_coordinates

    @property
    def tree_joints(self) -> list[str]:
        """Joints of the spanning tree whose coordinates are the minimal ones, in declared order; every other joint closes a loop.

        Of several joints that lead to a body the tree has the one declared first, where that connects the body with the world. A user's
        joint that declares no coordinates closes a loop; a body that only such joints lead to has six coordinates relative to the parent,
        position and rotation vector, which stand last and are named "PARENT_to_BODY" ("world_to_BODY").
        """
        return list(self._tree_joints)

    @property
    def impulse_layout(self) -> dict[str, slice]:
        """Where each element's impulses are in `StepOutput.impulses`: "joints.NAME", "contacts.NAME", ... -> slice.

        Standard joints: multipliers of the constrained translations, then rotations. Contacts: γ; (γ, ξ₁, ξ₂, ξ₃) with a friction
        cone; (γ, ψ, β) with a pyramid; `NonlinearContact` says where couples are.
        "couplings.NAME": the impulse on the follower's coordinate.
        "limits.NAME", of a joint with limits: γ of the lower sides that act, coordinates in order, then of the upper ones.
        "frictions.NAME", of a joint with friction: p of all free coordinates, then q; the friction impulse is (p − q)/2.
        """
        layout, start = {}, 0
        for key, piece in self._system.impulse_layout.items():
            layout[key] = slice(start, start + piece.stop - piece.start)
            start += piece.stop - piece.start
        return layout

    @property
    def input_layout(self) -> dict[str, slice]:
        """Where each actuated joint's inputs are in u: name -> slice."""
        return dict(self._system.input_layout)

    # -- stepping ------------------------------------------------------------------------------------------------------------------------

    def forward(
        self, z: Tensor, u: Tensor | None = None, wrench: Tensor | None = None, *, grad_kappa: float | Tensor | None = None
    ) -> Tensor:
        """The next state, (..., 13 nb). As `step`, but since no status is returned, invalid input raises and failed steps warn."""
        z, u, wrench = self._check_inputs(z, u, wrench)
        z, how = differentiation(self, z, grad_kappa)
        out = self._stepper(how, raise_invalid=True)(z, u, wrench, None)
        if not (torch.compiler.is_compiling() or transforming()):
            failed = int((out.status != int(Status.SUCCESS)).sum())
            if failed:
                text = f"{failed} of {out.status.numel()} environments keep their state: {Status.MAX_ITERATIONS.explain}"
                warnings.warn(f"{text}. mech.step returns the status of each", stacklevel=3)
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
            self._check_tensor("warm_start", warm_start, self._system.num_unknowns)
        z, u, wrench = self._check_inputs(z, u, wrench)
        z, how = differentiation(self, z, grad_kappa)
        return self._stepper(how)(z, u, wrench, warm_start)

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
        self._check_tensor("z", z, STATE_SIZE * self.num_bodies)
        length = segment_length(checkpoint, steps)
        warn_of_penetration(self, z)
        z, how = differentiation(self, z, grad_kappa)
        if careful and (grad_kappa is not None or how.options.randomized is not None):
            raise ValueError("rollout(adaptive=...): goes neither with grad_kappa= of the call nor with gradient_mode='randomized'")
        native = None if callable(u) or careful or how.options.randomized is not None else self._native(how)
        if native is not None:
            z, u, wrench = self._check_inputs(z, z.new_zeros(steps, self.num_inputs) if u is None else cast(Tensor, u), wrench)
            return in_segments(functools.partial(in_kernel, native, self._known(native), wrench), z, u, steps, length)
        take = adaptive_stepper(self, careful) if careful else self._stepper(how)
        run = functools.partial(step_by_step, lambda z, now, warm: take(*self._check_inputs(z, now, wrench), warm), self.num_inputs)
        return in_segments(run, z, u, steps, length)

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
        z, u, wrench = self._check_inputs(z, u, None)
        z, how = differentiation(self, z, grad_kappa)
        refuse_jacobian(how.options)
        with torch.no_grad():
            jacobian = self._jacobian(how, z, u, wrench, warm_start, out)
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
        return minimal_stepping.step(self, q, qd, u, options)

    def rollout_minimal(self, q: Tensor, qd: Tensor, u: Tensor | MinimalPolicy | None = None, **options: Any) -> MinimalTrajectory:
        """`rollout` in joint coordinates, from q, qd (..., num_coordinates). A policy is one of (q, qd). Options: those of `rollout`."""
        return minimal_stepping.rollout(self, q, qd, u, options)

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
        return minimal_stepping.jacobians(self, q, qd, u, warm_start, grad_kappa, out)

    # -- states --------------------------------------------------------------------------------------------------------------------------

    def initial_state(self, batch_shape: Sequence[int] = (), **values: Mapping[str, Any]) -> Tensor:
        """A state from joint coordinates, `hinge=dict(q=.3, qd=1.)`, or for a free body `box=dict(position=..., velocity=...,
        orientation=..., angular_velocity=...)`; what is not given is zero (the identity).

        Where loops and couplings are open at these coordinates, those that are not given move until all are closed (`close_loops`).
        Joints that close a loop (`tree_joints`) cannot be given: their coordinates follow from the others.
        Warns where contacts of a given position overlap, as `rollout` does.

        Raises:
            ValueError: unknown names or keys, values that do not fit, loops that cannot be closed.
        """
        z = assembly.initial_state(self, tuple(batch_shape), values)
        if any("position" in given for given in values.values()):  # (who gives joint angles alone may yet lift the state)
            warn_of_penetration(self, z)
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
        return assembly.close_loops(self, z, hold)

    def to_minimal(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """(q, qd), each (..., num_coordinates): joint coordinates [m, rad] and their backward differences over one step, `tree_joints` in
        order.

        Raises:
            ValueError: no chain of joints with coordinates connects a body with the world.
        """
        self._check_tensor("z", z, STATE_SIZE * self.num_bodies)
        tree = self._compiled_tree()
        if tree is not None:
            q, qd = tree_map(tree, self._stacked(), z, False).chunk(2, dim=-1)
            return q, qd
        return minimal.to_minimal(self._order(), self.num_bodies, z, self.timestep)

    def to_maximal(self, q: Tensor, qd: Tensor | None = None) -> Tensor:
        """z (..., 13 nb) from joint coordinates; inverse of `to_minimal`. Loops are closed where the coordinates are those of closed loops
        (else: `close_loops`)."""
        self._check_tensor("q", q, self.num_coordinates)
        qd = torch.zeros_like(q) if qd is None else qd
        self._check_tensor("qd", qd, self.num_coordinates)
        q, qd = torch.broadcast_tensors(q, qd)
        tree = self._compiled_tree()
        if tree is not None:
            return tree_map(tree, self._stacked(), torch.cat((q, qd), dim=-1), True)
        return minimal.to_maximal(self._order(), self.num_bodies, q, qd, self.timestep)

    def retract(self, z: Tensor, delta: Tensor) -> Tensor:
        """Move a state along the tangent (..., 12 nb), per body [dx, dv, dphi, domega]; quaternions stay unit."""
        self._check_tensor("z", z, STATE_SIZE * self.num_bodies)
        self._check_tensor("delta", delta, TANGENT_SIZE * self.num_bodies)
        state = split_state(z)
        dx, dv, dphi, domega = delta.unflatten(-1, (-1, TANGENT_SIZE)).split(3, dim=-1)
        pose = Pose(state.pose.x + dx, quat.multiply(state.pose.q, quat.exp(dphi)))
        return join_state(pose, Twist(state.twist.v + dv, state.twist.omega + domega))

    def difference(self, z: Tensor, reference: Tensor) -> Tensor:
        """Tangent (..., 12 nb) that leads from `reference` to z; inverse of `retract`."""
        self._check_tensor("z", z, STATE_SIZE * self.num_bodies)
        self._check_tensor("reference", reference, STATE_SIZE * self.num_bodies)
        a, b = split_state(reference), split_state(z)
        turn = quat.rotation_vector(quat.multiply(quat.conjugate(a.pose.q), b.pose.q))
        return torch.cat((b.pose.x - a.pose.x, b.twist.v - a.twist.v, turn, b.twist.omega - a.twist.omega), dim=-1).flatten(-2)

    # -- what a state tells --------------------------------------------------------------------------------------------------------------

    def kinetic_energy(self, z: Tensor, z_next: Tensor | None = None) -> Tensor:
        """[J], (...): of the step that led to z; with the state one step later, at the configuration z (discrete Legendre transform)."""
        mass, inertia = self._stacked()[2:4]
        total = energy.kinetic_energy(mass, inertia, self.timestep, z, z_next)
        for joint in self._joints().values():
            if isinstance(joint, StandardJoint) and joint.armature is not None:
                total = total + joint.armature_energy(self._rate(joint, z, z_next))
        return total

    def _rate(self, joint: StandardJoint, z: Tensor, z_next: Tensor | None) -> Tensor:
        """Rates of a joint's coordinates over the step that led to z, or the mean of these and those of the next step."""
        h = self.timestep[..., None]
        states = self._states(z, joint)
        now, before = [pose for pose, _ in states], [previous_pose(*state, h) for state in states]
        rate = joint.rate(before, now, h)
        return rate if z_next is None else 0.5 * (rate + joint.rate(now, self._poses(z_next, joint), h))

    def potential_energy(self, z: Tensor) -> Tensor:
        """Gravity, zero at the origin, and joint springs [J], (...)."""
        mass = self._stacked()[2]
        total = -(mass * (self.gravity[..., None, :] * split_state(z).pose.x).sum(-1)).sum(-1)
        for joint in self._joints().values():
            if isinstance(joint, StandardJoint):
                total = total + joint.spring_energy(*self._poses(z, joint))
        return total

    def momentum(self, z: Tensor, z_next: Tensor | None = None) -> Tensor:
        """[linear N·s, angular about the common centre of mass N·m·s], world frame, (..., 6).

        Conserved by the step when nothing external acts. Of the step that led to z; with the state one step later, at the configuration z
        (discrete Legendre transform).
        """
        mass, inertia = self._stacked()[2:4]
        return energy.momentum(mass, inertia, self.timestep, z, z_next)

    def distances(self, z: Tensor) -> Tensor:
        """Signed distance of every contact [m], (..., number of contacts), contacts in order."""
        contacts = cast(Mapping[str, Contact], self.contacts).values()
        values = [contact.distance(*self._poses(z, contact)) for contact in contacts]
        return torch.stack(torch.broadcast_tensors(*values), dim=-1) if values else z.new_zeros(*z.shape[:-1], 0)

    def joint_errors(self, z: Tensor) -> Tensor:
        """Rows of all joint equations [m, half-angle], then of the couplings [m, rad], at z, (..., n): zero when assembled."""
        rows = [joint.constraint(*self._poses(z, joint)) for joint in self._joints().values()]
        rows += [coupling.constraint(*self._poses(z, coupling)) for coupling in self._couplings().values()]
        batch = torch.broadcast_shapes(z.shape[:-1], *(row.shape[:-1] for row in rows))
        return torch.cat([z.new_zeros(*batch, 0), *(row.expand(*batch, row.shape[-1]) for row in rows)], dim=-1)

    def _poses(self, z: Tensor, element: Element) -> list[Pose]:
        """Poses of the bodies of an element, the world's included."""
        return [pose for pose, _ in self._states(z, element)]

    def _states(self, z: Tensor, element: Element) -> list[tuple[Pose, Twist]]:
        """Poses, and the velocities that led there, of the bodies of an element, the world's included."""
        (x, q), (v, omega) = split_state(z)
        origin, number = z.new_zeros(3), {name: i for i, name in enumerate(self._system.body_names)}
        world = Pose(origin, quat.identity(z.dtype, z.device)), Twist(origin, origin)
        places = [None if name is None else number[name] for name in element.body_names]
        return [world if i is None else (Pose(x[..., i, :], q[..., i, :]), Twist(v[..., i, :], omega[..., i, :])) for i in places]

    def _joints(self) -> Mapping[str, Joint]:
        return cast(Mapping[str, Joint], self.joints)

    def _couplings(self) -> Mapping[str, JointCoupling]:
        return cast(Mapping[str, JointCoupling], self.couplings)

    def _elements(self) -> dict[str, Element]:
        """All joints, couplings and contacts ("joints.NAME", ...), and what acts on joints: "limits.NAME", "frictions.NAME"."""
        pairs = [
            (f"{kind}.{name}", element) for kind in ("joints", "couplings", "contacts") for name, element in getattr(self, kind).items()
        ]
        standard = {name: joint for name, joint in self._joints().items() if isinstance(joint, StandardJoint)}
        pairs += [(f"limits.{name}", JointLimits(joint)) for name, joint in self._joints().items() if any(joint.limited)]
        pairs += [(f"frictions.{name}", JointFriction(joint)) for name, joint in standard.items() if joint.friction is not None]
        return cast(dict[str, Element], dict(pairs))

    # -- checks --------------------------------------------------------------------------------------------------------------------------

    def _compiled_tree(self) -> Program | None:
        """What the operators of native/tree_ops.py read, where `torch.compile` traces and there is such a thing."""
        program = self._program
        return program if torch.compiler.is_compiling() and program is not None and program.tree else None

    def _order(self) -> list[minimal.JointOrder]:
        return minimal.spanning_order(self._system.body_names, self._joints())

    def _check_tensor(self, name: str, value: Any, size: int) -> None:
        check_tensor(name, value, size, self.gravity, f"a mechanism of {self.num_bodies} bodies")

    def _check_inputs(self, z: Tensor, u: Tensor | None, wrench: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        self._check_tensor("z", z, STATE_SIZE * self.num_bodies)
        return z, *self._check_forces(u, wrench)

    def _check_forces(self, u: Tensor | None, wrench: Tensor | None) -> tuple[Tensor, Tensor]:
        u = self.gravity.new_zeros(self.num_inputs) if u is None else u
        self._check_tensor("u", u, self.num_inputs)
        wrench = self.gravity.new_zeros(6 * self.num_bodies) if wrench is None else wrench
        self._check_tensor("wrench", wrench, 6 * self.num_bodies)
        return u, wrench

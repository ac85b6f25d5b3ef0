"""The mechanism: the interface for users. Its graph is in structure.py, its steps are in engine/."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchdojo.dynamics import energy
from torchdojo.dynamics.tendon_space import TendonSpace
from torchdojo.elements.contacts import Contact, NonlinearContact
from torchdojo.elements.ground_contacts import on_ground
from torchdojo.elements.near_rule import Near, NearRule
from torchdojo.elements.touching import Solids, added, removed
from torchdojo.engine import linearize, minimal_steps, observables
from torchdojo.engine.adaptive import AdaptiveOptions, adaptive_options
from torchdojo.engine.backend import check_given, visiting
from torchdojo.engine.backends import Backends
from torchdojo.engine.contact_report import ContactReport, contact_report
from torchdojo.engine.drives import Drives
from torchdojo.engine.feedback import Given
from torchdojo.engine.linearize import Linearization, MinimalLinearization
from torchdojo.engine.minimal_steps import MinimalOutput, MinimalPolicy, MinimalTrajectory
from torchdojo.engine.never_touching import never_touching
from torchdojo.engine.passive_forces import PassiveForces
from torchdojo.engine.penetration import warn_of_ground, warn_of_penetration
from torchdojo.engine.periods import check_repeat, law_of
from torchdojo.engine.requests import refuse_jacobian, request_of
from torchdojo.engine.rollout import FeedbackCall, Plan, Policy, Trajectory, check_wrench, rollout, rollout_feedback, segment_length
from torchdojo.geometry.heights import HeightField
from torchdojo.geometry.visuals import Visual
from torchdojo.geometry.world import World
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.parameters import Modules, transforming, warn_user
from torchdojo.posing import inverse_kinematics, loops, placement
from torchdojo.posing.inverse_kinematics import PoseTarget, Posture
from torchdojo.posing.poses import Keyframe, keyframe, within_limits
from torchdojo.posing.scene_parts import Part, part_of, spread_values
from torchdojo.precision import in_float64
from torchdojo.sensors.derivatives import sensor_derivatives
from torchdojo.sensors.reading import Given as ReadingGiven
from torchdojo.sensors.sensing import Sensing
from torchdojo.solver.options import SolverOptions, Status
from torchdojo.state import minimal as tree
from torchdojo.state import signs
from torchdojo.state.layout import TANGENT_SIZE
from torchdojo.state.stiffness import warn_of_stiff_springs

if TYPE_CHECKING:
    from torchdojo.viewer.animation import Animation

__all__ = ["Mechanism", "StepOutput", "Trajectory"]


class Mechanism(TendonSpace, Sensing):
    """Bodies, joints and contacts, stepped with hard contact and differentiated through the step.

    Args:
        bodies, joints, contacts: modules by name (a mapping, or (name, module) pairs). Joints and contacts refer to bodies by name. A body
            that no joint leads to gets an unactuated `Floating` joint to the world, named "world_to_<body>".
        couplings: `td.JointCoupling` modules by name, which refer to joints by name.
        tendons: `td.FixedTendon` and `td.SpatialTendon` modules by name.
        timestep: h [s], (...,), positive. gravity: [m/s²], world frame, (..., 3).
        options: `td.SolverOptions`; may be replaced at any time (`mech.options = ...`).

    The state z (..., 13 nb) has [x(3) m, v(3) m/s, q(4) wxyz, omega(3) rad/s] per body, in order. Here x and v are in
    the world frame, and omega is in the body frame. The input u (..., nu) holds forces and torques [N, N·m] on the free coordinates of
    actuated joints, in order. With the actuators of `td.actuate`, or of an MJCF file, ``u = mech.actuators(ctrl, z)``; `actuators` is None
    otherwise. Joints are actuated unless built with ``actuated=False``, so every free coordinate of a declared joint has an input. The
    joints that free bodies get have none. `poses` has named poses to start from (`td.Keyframe`): "home" of the built-in mechanisms, and the
    keyframes of an MJCF file.

    All numbers are parameters that do not require grad until asked: ``Adam(mech.parameters())`` alone trains nothing. `td.parametrize`
    frees the numbers that are to be learned, and keeps them physical.

    States and inputs may be on a CUDA device: steps copy them to the kernel, and results and gradients are on that device. The mechanism
    may be on the CPU or, by `mech.to("cuda")`, on that device. `torchdojo/README.md` says which calls take what.

    Parts may be edited later, ``mech.contacts["tip"] = ...``, ``del mech.joints["hinge"]``, ``mech.bodies.update(...)``. The result is the
    mechanism that would be built so, and an edit that could not be built raises and changes nothing.

    Raises:
        ValueError: names that are unknown, doubled or unusable, a body with no mass, non-positive timesteps.
    """

    checked_signs: bool = False  # whether a state has come in whose signs of quaternions have been looked at
    warned_of_penetration: bool = False  # whether `rollout` or `initial_state` has warned
    warned_of_ground: bool = False  # whether `initial_state` has named the remedy for a state of zeros in the ground
    poses: dict[str | int, Keyframe]
    scenery: tuple[Visual, ...] = ()  #: solids of the world that are only drawn, world frame
    load_report: Any = None  #: what the reader of a robot file did with its content (`torchdojo.io.LoadReport`)
    drives: Drives | None = None  #: actuators with activations, or on tendons and sites, of a file or of the user's own
    passive: PassiveForces | None = None  #: drag and compensation of gravity of a file, which act as ``wrench=mech.passive``
    part_names: tuple[str, ...] = ()  #: of a scene: the mechanisms and bodies that `td.combine` put together

    def __init__(
        self,
        bodies: Modules,
        joints: Modules = (),
        contacts: Modules = (),
        *,
        couplings: Modules = (),
        tendons: Modules = (),
        timestep: Any = 0.01,
        gravity: Any = (0.0, 0.0, -9.81),
        options: SolverOptions | None = None,
    ) -> None:
        super().__init__(bodies, joints, contacts, couplings, tendons, timestep, gravity)
        self.poses = {}
        self.options = options or SolverOptions()
        warn_of_stiff_springs(self)

    def _lay_out(self) -> None:
        super()._lay_out()
        self.backends = Backends(self)

    # -- stepping ------------------------------------------------------------------------------------------------------------------------

    @in_float64
    def forward(
        self, z: Tensor, u: Tensor | None = None, wrench: Tensor | None = None, *, grad_kappa: float | Tensor | None = None
    ) -> Tensor:
        """The next state, (..., 13 nb), as from `step`.

        There is no status, so environments with invalid input raise and failed steps warn, where `step` flags both.
        """
        inputs = check_given(self, None, z, u, wrench)
        z, request = request_of(self.backends.system, self.options, z, grad_kappa, raise_invalid=True)
        out = self.backends.select(request).step(inputs._replace(z=z))
        if not (torch.compiler.is_compiling() or transforming()):
            failed = int((out.status != int(Status.SUCCESS)).sum())
            if failed:
                text = f"{failed} of {out.status.numel()} environments keep their state: {Status.MAX_ITERATIONS.explain}"
                warn_user(f"{text}. mech.step returns the status of each")
        return out.z

    @in_float64
    def step(
        self,
        z: Tensor,
        u: Tensor | None = None,
        *,
        ctrl: Tensor | None = None,
        repeat: int = 1,
        warm_start: Tensor | None = None,
        wrench: Tensor | None = None,
        grad_kappa: float | Tensor | None = None,
    ) -> StepOutput:
        """One step, or one control period of `repeat` steps.

        Args:
            z: (..., 13 nb). u: (..., nu) [N, N·m]; None is zero. Batch dimensions broadcast, also with the batch of parameters.
            ctrl: instead of u, the controls of `mech.actuators`, (..., number of actuators). At the start of every step, they become
                ``u = mech.actuators(ctrl, z)``. `Actuators.clipped` counts the controls out of their range.
            repeat: steps under this u, wrench or ctrl. The result has the state after the last step, the impulses of all steps summed, the
                worst status (the largest value), and the sums of iterations and substeps. A step that fails keeps its state, and the steps
                after it go on from there.
            warm_start: `solution` of the previous step, (..., num_unknowns): fewer iterations, the same result.
            wrench: external force (world) and torque (body frame) at each center of mass, (..., 6 nb) [N, N·m].
            grad_kappa: replaces `SolverOptions.grad_kappa` in this call. It is a number, or a tensor (...,) with one per environment, kappa
                or larger. No `torch.func` transform and no `torch.compile` may see the tensor.

        Environments that fail, or whose input is not finite, keep their state. Their `Status` says so, and their gradients are zero. With
        `SolverOptions(on_failure="raise")` they raise instead. ``mech(z, u)``, which returns no status, raises for input that is not
        finite and warns of steps that fail.

        The results are on the device of z, which all other tensors share.

        Raises:
            ValueError: wrong shapes, or quaternions without unit norm. TypeError: wrong dtype or device.
        """
        if warm_start is not None:
            self.check_tensor("warm_start", warm_start, self.layout.num_unknowns, visiting(self, z))
        law = law_of(self, u, ctrl)
        inputs = check_given(self, law, z, u if law is None else ctrl, wrench, warm_start)
        z, request = request_of(self.backends.system, self.options, z, grad_kappa, repeat=check_repeat(repeat))
        return self.backends.stepper(request, law).step(inputs if z is inputs.z else inputs._replace(z=z))

    @in_float64
    def rollout(
        self,
        z: Tensor,
        u: Tensor | Policy | None = None,
        *,
        ctrl: Tensor | Policy | None = None,
        steps: int | None = None,
        repeat: int = 1,
        warm_start: Tensor | None = None,
        keep_solutions: bool = False,
        wrench: Tensor | Policy | None = None,
        wrenches: Tensor | None = None,
        adaptive: bool | AdaptiveOptions = False,
        grad_kappa: float | Tensor | None = None,
        checkpoint: bool | int = False,
        budget: int | None = None,
    ) -> Trajectory:
        """Many steps, each warm-started from the step before. It warns, once, if contacts start inside a surface.

        States with a `warm_start` come from a step, and are not looked at.

        Args:
            z: (..., 13 nb). u: (..., T, nu), or a policy z -> (..., nu) with `steps`, or None (zero) with `steps`.
            ctrl: instead of u, controls as in `step`, (..., T, number of actuators), or a policy z -> ctrl with `steps`.
            steps: T, the number of periods. repeat: steps of each period, as in `step`. A policy is asked once per period.
            warm_start: as in `step`, for the first step. keep_solutions: return the solutions of all periods, not of the last one alone.
            wrench: as in `step`, held over the rollout; or a function z -> (..., 6 nb) of the state, wind or drag say, which is called at
                the start of each period. wrenches: instead, (..., T, 6 nb) of the periods. Both take a call of the kernel for each period.
            adaptive: split steps with an impact, per environment (engine/adaptive.py); True means `td.AdaptiveOptions()`. `substeps` counts
                the substeps, and `impulses` are their sums. `iterations` sums over all trials: three steps at least. Gradients pass through
                the substeps taken. This does not work inside `torch.func` transforms or `torch.compile`.
            grad_kappa: as in `step`, for all steps; not with `adaptive`.
            checkpoint: keep for backward the start of every √T-th period (True), or of every n-th (n). Steps between are computed again
                when needed. Beyond the trajectory and its gradient, memory is O(√T) instead of O(T), for one more forward pass. Values are
                the same to the last bit. This does not work inside `torch.func` transforms or `torch.compile`.
            budget: largest number of Newton iterations of a step. A step that needs more fails, without continuation or halvings, and its
                environment is given up: it keeps its state, and its other steps get the status of that one. With inputs in tensors.

        Raises:
            ValueError: `steps` missing, or different from the length of u; `adaptive` with an option that it excludes; both `wrench` and
                `wrenches`, or wrenches of another shape.
        """
        law = law_of(self, u, ctrl)
        inputs, name, size = (u, "u", self.num_inputs) if law is None else (ctrl, "ctrl", len(law))
        if isinstance(inputs, Tensor):
            if inputs.ndim < 2 or (steps is not None and inputs.shape[-2] != steps):
                raise ValueError(
                    f"{name}: got shape {tuple(inputs.shape)} with steps={steps}; allowed: (..., T, {size}), with steps None or T"
                )
            steps = inputs.shape[-2]
        elif inputs is not None and not callable(inputs):
            remedy = f"rollout(z, steps={inputs})" if isinstance(inputs, int) else "torch.as_tensor(...)"
            raise TypeError(f"{name}: got {inputs!r}; allowed: a tensor (..., T, {size}), or a policy or None with steps=; {remedy}")
        if not isinstance(steps, Integral) or steps < 1:
            raise ValueError(f"steps: got {steps!r}; give a whole number of steps of 1 or more, or {name} of shape (..., T, {size})")
        if warm_start is not None:
            self.check_tensor("warm_start", warm_start, self.layout.num_unknowns, visiting(self, z))
        careful = adaptive_options(adaptive)
        self.check_state(z, like=visiting(self, z))
        check_wrench(self, z, inputs, wrench, wrenches, steps)
        length = segment_length(checkpoint, steps)
        if warm_start is None:  # with one, the states come from a step
            self._warn_of_penetration(z)
        z, request = request_of(self.backends.system, self.options, z, grad_kappa, repeat=check_repeat(repeat), budget=budget)
        if careful and (grad_kappa is not None or request.options.randomized is not None):
            raise ValueError("rollout(adaptive=...): goes neither with grad_kappa= of the call nor with gradient_mode='randomized'")
        plan = Plan(wrench, wrenches, careful, length, law, keep_solutions)
        return rollout(self.backends, request, z, inputs, steps, warm_start, plan)

    def _warn_of_penetration(self, z: Tensor) -> None:
        """Warn, the first time, of contacts inside a surface in the states z, and of signs of quaternions that belong to other angles."""
        if visiting(self, z) is not None:
            z = z.detach().to(self.gravity.device)
        if not (self.checked_signs or torch.compiler.is_compiling() or transforming()):
            self.checked_signs = True
            signs.warn_of_signs(self.named_joints(), lambda joint: self.element_poses(z, joint))
        if not self.warned_of_penetration:
            self.warned_of_penetration = warn_of_penetration(self.backends, self.options, z)

    @in_float64
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
        inputs = check_given(self, None, z, u, None, warm_start)
        z, request = request_of(self.backends.system, self.options, z, grad_kappa)
        refuse_jacobian(request.options)
        with torch.no_grad():
            jacobian = self.backends.select(request).jacobian(inputs._replace(z=z), out)
        size = TANGENT_SIZE * self.num_bodies
        return jacobian[..., :size], jacobian[..., size:]

    # -- stepping in minimal coordinates -------------------------------------------------------------------------------------------------

    @in_float64
    def step_minimal(self, q: Tensor, qd: Tensor, u: Tensor | None = None, **options: Any) -> MinimalOutput:
        """One step in joint coordinates, `to_minimal` of `step` at `to_maximal`: ``out = mech.step_minimal(q, qd, u)``, then out.q, out.qd.

        Args:
            q, qd: (..., num_coordinates), as in `to_maximal`. u, options: as in `step` (`warm_start`, `wrench`, ...).

        Steps fail as in `step`. Rotations come back as in `to_minimal`: angles in (−2π, 2π] and rotation vectors of at most π, whatever
        further turns q has.

        Raises:
            ValueError: closed loops or couplings, whose coordinates depend on each other; and as `step`.
        """
        start = minimal_steps.Coordinates(self.backends, self.options, q, qd)
        with self.backends.holding(start.parameters):
            out = self.step(start.z, u, **options)
        return start.after_step(out)

    @in_float64
    def rollout_minimal(self, q: Tensor, qd: Tensor, u: Tensor | MinimalPolicy | None = None, **options: Any) -> MinimalTrajectory:
        """`rollout` in joint coordinates, from q, qd (..., num_coordinates). A policy maps q, qd to u or ctrl. Options: as in `rollout`."""
        start = minimal_steps.Coordinates(self.backends, self.options, q, qd)

        def of_states(given: Tensor | MinimalPolicy | None) -> Tensor | Policy | None:
            return given if given is None or isinstance(given, Tensor) else (lambda z: given(*self.to_minimal(z)))

        options["ctrl"] = of_states(options.get("ctrl"))
        return start.after_rollout(self.rollout(start.z, of_states(u), **options))

    @in_float64
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
        return minimal_steps.jacobians(self.backends, self.options, q, qd, u, warm_start, grad_kappa, out)

    # -- what planners call --------------------------------------------------------------------------------------------------------------

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
        sensors: bool | Sequence[str] = False,
    ) -> Linearization:
        """A step, or a control period, and its derivatives on the tangent space. The kernel takes a step and its Jacobian in one call.

        Along a trajectory, Jacobians that start from its solutions take no iteration:
        ``mech.linearize(path.z[..., :-1, :], path.u, warm_start=path.solution)`` for ``path = mech.rollout(..., keep_solutions=True)``.

        Args:
            z: (..., 13 nb). u, ctrl, repeat, warm_start, wrench, grad_kappa: as in `step`. B is the derivative by u, or by ctrl.
            wrt: names of what else to differentiate by: "wrench", or parameters of `mech.named_parameters()`, "bodies.trunk.mass" say. Each
                row takes a backward pass, 12 nb in all.
            out: (..., 12 nb, 12 nb + nu) for A and B side by side, as in `jacobians`.
            sensors: True, or names: y, C and D of `read_sensors` at z and of this step. Forces take a backward pass, all together.

        Environments that fail are flagged, and have zeros in A, B, C, D and `by`. Nothing here is differentiable.

        Raises:
            ValueError: an unknown name, the gradient mode "complementarity_aware", and as `step` and `jacobians`.
        """
        of_call = linearize.Call(repeat, wrt, warm_start, wrench, grad_kappa, out)
        solved = linearize.linearize(self.backends, self.options, z, u, ctrl, of_call)
        if sensors is False:
            return solved
        reading = {"u": u, "ctrl": ctrl, "wrench": wrench, "repeat": repeat}
        y, C, D = self._sensor_derivatives(z, sensors, solved, reading, warm_start=warm_start, grad_kappa=grad_kappa)
        return solved._replace(y=y, C=C, D=D)

    def _sensor_derivatives(
        self, z: Tensor, sensors: bool | Sequence[str], solved: Linearization, reading: dict[str, Any], **options: Any
    ) -> tuple[Tensor, ...]:
        """`sensor_derivatives` of a step, also for drives, whose floor is below the sensors'."""
        return sensor_derivatives(self, z, ReadingGiven(**reading), None if isinstance(sensors, bool) else sensors, solved, **options)

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
        of_call = linearize.Call(repeat, wrt, warm_start, wrench, grad_kappa, out)
        return linearize.linearize_minimal(self.backends, self.options, q, qd, u, ctrl, of_call)

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
        feedback = Given(nominal, gain, feedforward, solution, scale, bounds)
        of_call = FeedbackCall(repeat, warm_start, keep_solutions, wrench, budget)
        return rollout_feedback(self.backends, self.options, z, u, ctrl, feedback, of_call)

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

    # -- scenes ----------------------------------------------------------------------------------------------------------------------------

    def part(self, name: str) -> Part:
        """A part of a scene (`td.combine`): its bodies, joints and contacts, and the places of its numbers in z, q, u and ctrl.

        Raises:
            ValueError: an unknown name; numbers that an edit has spread.
        """
        return part_of(self, self.part_names, name)

    def add_contact(
        self,
        a: str,
        b: str | World,
        *,
        model: Callable[..., Contact] = NonlinearContact,
        near: Near = "auto",
        slots: int | None = None,
        pitch: float | None = None,
        **arguments: Any,
    ) -> list[str]:
        """Let bodies touch each other with their shapes, ``mech.add_contact("hand", "crate", friction=0.8)``; names of the contacts.

        As every edit, it may come at any time, and solutions for warm starts change. `td.combine` says which shapes touch.

        Args:
            a, b: names of bodies or parts, or patterns ("robot/*_foot"); for b also a fixed shape or `td.Plane` of the world.
            model, arguments: class of the contacts, and its keywords.
            near, slots, pitch: as in `td.combine`.

        Raises:
            ValueError: unknown names, a pair of one body, bodies that touch already, shapes without contacts with each other. Nothing
                changes then.
        """
        made = added(self._solids(), self.named_contacts(), a, b, model, NearRule(near, slots, pitch), **arguments)
        self.contacts.update(made)
        return list(made)

    def remove_contact(self, a: str, b: str) -> list[str]:
        """Remove the contacts between bodies, and return their names: ``mech.remove_contact("robot/*_foot", "floor")``.

        Args:
            a, b: as in `add_contact`, or a fixed shape or plane of a scene, or "world", the surface of all other contacts with one body.

        Raises:
            ValueError: unknown names, no such contact.
        """
        gone = removed(self._solids(), self.named_contacts(), a, b)
        self._edit("contacts", {name: contact for name, contact in self.named_contacts().items() if name not in gone})
        return gone

    def replace_ground(self, ground: HeightField, *, pitch: float | None = None) -> list[str]:
        """Put a height field in the place of the planes of the world, ``mech.replace_ground(td.terrain.rough(0.05))``; its contacts' names.

        The contacts of points and balls with planes keep their names and other numbers. An ellipsoid then has several, "NAME_0" and so on.

        Args:
            ground: in place of the planes.
            pitch: as in `td.combine`, of shapes whose contact points all touch: their edges and faces touch, too, by contacts
                "NAME_face0" and so on. None: contact points alone.

        Raises:
            ValueError: no such contact, a bad pitch, or one without shapes that have edges and touch.
        """
        there = self.named_contacts()
        made = on_ground(there, self.named_bodies(), ground, pitch)
        if not made:
            raise ValueError("replace_ground: no contact of a point, ball or ellipsoid with a plane of the world; add_contact makes others")
        for name in [name for name in there if f"{name}_0" in made and name not in made]:
            del self.contacts[name]
        self.contacts.update(made)
        return list(made)

    def never_touching(self, samples: int = 1000, *, margin: float = 0.0, seed: int = 0) -> list[tuple[str, str]]:
        """Pairs of bodies with contacts that stay apart in random configurations, whose contacts only cost time.

        ``td.load(file, contacts=td.Filter(exclude=td.load(file, contacts="all").never_touching()))`` and `td.combine` leave them out. A
        fixed shape or plane counts as a body. Coordinates are uniform within their limits, angles without limits in (−π, π). Bodies that
        floating joints, or slides without limits, move against each other may meet anywhere, and are not among the pairs. Closed loops
        and couplings are left open, which gives fewer pairs. No finite number of samples is a proof: a `margin` covers what they miss.

        Args:
            samples: number of configurations. margin: distance that all contacts of a pair keep [m], of near contacts at least their reach
                of 1 mm. seed: of the samples.

        Raises:
            ValueError: no samples, a negative margin.
        """
        return never_touching(self.backends, self.options, samples, margin, seed)

    def _solids(self) -> Solids:
        return Solids(self.named_bodies(), self.named_joints().values())

    # -- looking -------------------------------------------------------------------------------------------------------------------------

    def animate(
        self,
        trajectory: Any,
        path: str | Path | None = None,
        *,
        labels: Sequence[str] = (),
        repeat: int = 1,
        environments: Sequence[int] | None = None,
        side_by_side: bool | None = None,
        title: str = "",
    ) -> Animation:
        """Write a page that shows trajectories, in one file that opens anywhere: ``mech.animate(mech.rollout(z, u), "out.html")``.

        A notebook shows the result where it is the last value of a cell. `torchdojo/viewer/README.md` has videos, live views and files.

        Args:
            trajectory: of `rollout` or `rollout_minimal`, or states (..., K, 13 nb) alone; or a list of these, drawn over each other.
            path: of the page; None: none is written. labels: of the trajectories or environments.
            repeat: as in `rollout`. environments: of a batch; None: all, at most 64.
            side_by_side: pictures beside each other; None: for a batch. title: of the page.

        Raises:
            ImportError: the extra "view" is not installed.
            ValueError: states of another mechanism, no frame, labels that do not fit, a batch too large. FileNotFoundError: no such folder.
        """
        from torchdojo.viewer.animation import animate  # the one import that runs up the floor plan: users look for it here

        options: dict[str, Any] = {"labels": labels, "repeat": repeat, "environments": environments}
        return animate(self, trajectory, path, **options, side_by_side=side_by_side, title=title)

    # -- states --------------------------------------------------------------------------------------------------------------------------

    def initial_state(
        self, batch_shape: int | Sequence[int] = (), *, pose: str | int | None = None, on: str | None = None, **values: Any
    ) -> Tensor:
        """A state from joint coordinates and poses of free bodies by name; values that are not given are zero (the identity).

        A joint takes `hinge=dict(q=.3, qd=1.)`, or numbers alone, which are its coordinates: `hinge=.3`. A free body takes
        `box=dict(position=..., velocity=..., orientation=..., angular_velocity=...)`, in the frames of z. Its joint, named "world_to_box"
        if the mechanism has added it, takes the same as six coordinates: `world_to_box=dict(q=(x, y, z, *rotation_vector))`. A part of a
        scene takes its joints, bodies and pose, `robot=dict(pose="home", hip=.3)`, as well as "robot/hip".

        Bodies with joints to a free body move with it. If loops or couplings are open at these coordinates, coordinates that are not given
        move until all are closed (`close_loops`). Joints that close a loop (`tree_joints`) cannot be given: their coordinates follow from
        the others. A given position whose contacts overlap warns, as in `rollout`, and so does a state of zeros.

        Args:
            batch_shape: sizes of the batch dimensions; a number n is (n,).
            pose: a name of `mech.poses`, whose coordinates take the place of zeros: "home" of a built-in mechanism, a keyframe of a file.
            on: "ground" puts each free part on the ground, as `place` does. Coordinates that neither the values nor the pose give are then
                as near to zero as the limits of their joint allow.

        Raises:
            ValueError: unknown names or keys, values that do not fit, loops that cannot be closed; and as `place`.
        """
        if on not in (None, "ground"):
            raise ValueError(f"initial_state: got on={on!r}; allowed: 'ground' or None")
        values, part_poses = spread_values(self.part_names, [*self.bodies, *self.joints], values)
        start: dict[str, Mapping[str, Any]] = {**(within_limits(self) if on == "ground" else {})}
        for name in [*([] if pose is None else [pose]), *part_poses]:
            start = {**start, **keyframe(self.poses, name).values}
        z = loops.initial_state(self, _batch(batch_shape), values, start)
        if on is not None:
            return self.place(z).to(self.state_dtype)
        if any(
            isinstance(value, Mapping) and "position" in value for value in values.values()
        ):  # the caller may still lift a state of joint angles alone
            self._warn_of_penetration(z)
        elif not values and pose is None and not part_poses and not self.warned_of_ground:
            self.warned_of_ground = warn_of_ground(self.backends, self.options, z, list(self.poses))
        return z.to(self.state_dtype)

    @in_float64
    def place(self, z: Tensor, clearance: float | Tensor = 0.0) -> Tensor:
        """The state with each free part moved along the ground's normal, until its nearest contact is `clearance` above a surface.

        A part is a set of bodies that joints connect, not through the world. Each part moves as a whole and by itself. Joint coordinates
        and velocities stay. Only contacts with the world count: half-spaces, shapes fixed in the world, and surfaces of the user's own. A
        part comes down onto half-spaces, and climbs from there out of what else it meets. Without half-spaces, it goes up or down, and up
        through a shape with nothing below. The normal is that of the half-space that points up most. Walls and ceilings do not count.

        Parts that cannot move stay: those on a fixed base, on joints that hold or limit the way up, or without contacts with the world.

        Args:
            z: (..., 13 nb), differentiable. clearance: [m], (...,), differentiable. The contact that decides has the derivative.

        Raises:
            ValueError: no part can move, where the message says why; no surface on the way; a clearance that is not finite.
        """
        return placement.place(self, z, clearance)

    @in_float64
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

    def inverse_kinematics(
        self,
        targets: PoseTarget | Sequence[PoseTarget],
        q: Tensor | None = None,
        *,
        hold: Sequence[str] = (),
        starts: int = 32,
        iterations: int = 16,
        tolerance: float = 1e-6,
        seed: int = 0,
    ) -> Posture:
        """Coordinates within the limits of the joints at which bodies are where the targets say: ``mech.inverse_kinematics(target).q``.

        Levenberg and Marquardt's method starts at q, and then from the random coordinates whose poses are nearest to the targets.
        Coordinates that move no body with a target stay. The result has first derivatives by targets and parameters: those of the least
        change, with coordinates at limits held. It has the dtype of q, or of `initial_state`.

        Args:
            targets: one or several `td.PoseTarget`. Batch dimensions of their numbers and of q broadcast.
            q: (..., num_coordinates) to start from; None: as near to zero as limits allow. hold: names of joints whose coordinates stay.
            starts: largest number of starts, `iterations` each; 1: only from q. seed: of the random coordinates.
            tolerance: largest distance [m] and angle [rad] from the targets with success.

        Raises:
            ValueError: unknown names, no target, a loop or coupling that the motion would open.
            RuntimeError: inside a `torch.func` transform.
        """
        of_call = inverse_kinematics.Search(hold, starts, iterations, tolerance, seed)
        return inverse_kinematics.inverse_kinematics(self, self._body_tree(), targets, q, of_call)

    @in_float64
    def to_minimal(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """(q, qd), each (..., num_coordinates): joint coordinates [m, rad] and their backward differences over one step.

        Both have the order of `tree_joints`. Rates refer to axes fixed to the joint frame of the parent, as inputs do. Angles of single
        rotations lie in (−2π, 2π], by the signs of the quaternions in z. They jump from one end to the other, by 4π, and rates do not.
        Rotation vectors are at most π long.

        Raises:
            ValueError: no chain of joints with coordinates connects a body with the world.
        """
        return minimal_steps.to_minimal(self.backends, self.options, z)

    def quick_coordinates(self, z: Tensor) -> tuple[Tensor, Tensor] | None:
        """`to_minimal` of a checked z where the kernel computes it, or None."""
        return observables.quick_coordinates(self.backends, self.options, z)

    @in_float64
    def to_maximal(self, q: Tensor, qd: Tensor | None = None) -> Tensor:
        """z (..., 13 nb) from joint coordinates; inverse of `to_minimal`.

        Loops are closed only if the coordinates are those of closed loops; `close_loops` closes others.
        """
        return minimal_steps.to_maximal(self.backends, self.options, q, qd)

    @in_float64
    def distances(self, z: Tensor) -> Tensor:
        """Signed distance of every contact [m], (..., number of contacts), contacts in order.

        Near contacts without a place within their reach of 1 mm have 2 mm. In states of another batch than that of the last step, their
        slots have the places that are near there.
        """
        return observables.distances(self.backends, self.options, z)

    @in_float64
    def contact_points(self, z: Tensor) -> Tensor:
        """Point of every contact on the surface of its body, nearest to the other surface, world frame [m], (..., contacts, 3)."""
        return observables.contact_points(self.backends, self.options, z)

    @in_float64
    def contact_forces(self, z: Tensor, impulses: Tensor, repeat: int = 1) -> dict[str, Tensor]:
        """Mean force of each contact on its body over a step or period, by name, world frame [N], (..., 3).

        Args:
            z: (..., 13 nb), the states after the steps. impulses: (..., n) of these steps. repeat: steps of each period, as in `rollout`.
        """
        return observables.contact_forces(self, z, impulses, repeat)

    @in_float64
    def contact_report(self, z: Tensor, result: Any, repeat: int = 1) -> ContactReport:
        """Which bodies touch after a step or in a trajectory, where, and with what force: ``mech.contact_report(out.z, out)``.

        `ContactReport` has tensors over all contacts, (..., contacts, ·), in the world frame, in m and N. Its method `touching` lists the
        pairs of one environment, and `force` sums the forces of a body on another.

        Args:
            z: (..., 13 nb), the states after the steps, `out.z`; of a trajectory, `path.z` or ``path.z[..., 1:, :]``.
            result: what `step` or `rollout` returned, or its impulses (..., n). repeat: steps of each period, as in `rollout`.

        Raises:
            ValueError: states that are not those after the steps, shapes that do not fit; near contacts that acted, in other steps than the
                last one, whose terms alone they have. TypeError: another kind of result.
        """
        return contact_report(self, self.backends, self.options, z, result, repeat)

    @in_float64
    def unwind(self, z: Tensor, *, near: Tensor | None = None) -> Tensor:
        """The same orientations, with the signs of quaternions for which the angles of the tree's joints are shortest, (..., 13 nb).

        A quaternion and its negative are one orientation, but z holds the angles of single rotations to ±2π by these signs
        (`StandardJoint`). States that this library makes have consistent signs. Recorded ones, or those from rotation matrices, may have
        others: a joint then reads a turn too much or too little, and its limits and springs act on that. Here each angle lies within the
        limits of its joint if it can, and is at most π long otherwise.

        Args:
            z: (..., 13 nb). near: (..., num_coordinates) [rad], next to which the angles are to be, instead.
        """
        self.check_state(z)
        if near is not None:
            self.check_tensor("near", near, self.num_coordinates)
        return signs.unwind(self.tree_order(), z, near)

    # -- energy and momentum -------------------------------------------------------------------------------------------------------------

    @in_float64
    def kinetic_energy(self, z: Tensor, z_next: Tensor | None = None) -> Tensor:
        """Kinetic energy of the step that led to z [J], (...).

        With the state one step later, it is the energy at the configuration z (discrete Legendre transform).
        """
        return observables.kinetic_energy(self.backends, self.options, z, z_next)

    @in_float64
    def potential_energy(self, z: Tensor) -> Tensor:
        """Potential energy of gravity, zero at the origin, of springs of joints, tendons and couplings that yield [J], (...)."""
        return observables.potential_energy(self.backends, self.options, z)

    @in_float64
    def momentum(self, z: Tensor, z_next: Tensor | None = None) -> Tensor:
        """Momentum [linear N·s, angular about the common center of mass N·m·s] of the step that led to z, world frame, (..., 6).

        The step conserves it when nothing external acts. With the state one step later, it is the momentum at the configuration z (discrete
        Legendre transform).
        """
        self.check_state(z)
        if z_next is not None:
            self.check_state(z_next, "z_next")
        return energy.momentum(self, z, z_next)

    def stacked_parameters(self) -> list[Tensor]:
        """All physical numbers as the equations of a step read them: stacked over equal elements, with their graphs."""
        return self.backends.stacked()


def _batch(shape: object) -> tuple[int, ...]:
    """The sizes of batch dimensions, from one or several whole numbers."""
    sizes = tuple(shape) if isinstance(shape, Sequence) and not isinstance(shape, str) else (shape,)
    if not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes):
        raise TypeError(f"batch_shape: got {shape!r}; allowed: whole numbers, such as (64,); joints are given by name, hinge=dict(q=0.3)")
    return sizes

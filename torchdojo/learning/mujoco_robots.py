"""Robots of an environment in MuJoCo: which of its joints and bodies are which of ours, the motors, and steps.

Joints are matched by name: a driven joint of the file has the name of ours or of its motor, with or without "_joint" behind it, or is
driven by an actuator of that name. Both robots with all joints at zero tell how frames of bodies differ, and which coordinate of MuJoCo is
which of ours with which sign. Some links here may be several bodies there.

| taken from the file | taken from the environment |
|---|---|
| masses, inertias, geometry, armature, friction loss, limits of joints | motors and drives, with their gains and limits |
| contacts, friction | springs and dampers of the joints, which are often part of a servo in files |

A motor or drive becomes an actuator of MuJoCo with the same affine law and ranges. The integrator "implicitfast" makes its damping
implicit. Its spring is explicit there, so the timestep has to resolve it.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.bodies import Body
from torchdojo.elements.element import Pose, Twist
from torchdojo.elements.joints import StandardJoint
from torchdojo.envs import Env, Motion
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.io.mjcf.model import compile_mjcf, import_mujoco
from torchdojo.io.mjcf.write import coordinate_names, write_mjcf
from torchdojo.learning.ground import ground_contacts
from torchdojo.learning.motors import actuators, places, servo_ranges
from torchdojo.learning.mujoco_measured import Measured
from torchdojo.state.layout import join_state, split_state

__all__ = ["MuJoCoRobots"]

REPLACED = ("sensors.", "actuators.", "inputs.", "poses.")  # what a transfer has of its own
NAMES = 6  # that a warning has
NUDGE = 1e-5  # of a coordinate, to see which of ours it is [m, rad]
APART = 0.03  # by which joints of the same name may be apart with all coordinates at zero [m]


class MuJoCoRobots:
    """MuJoCo's simulations of B robots of an environment.

    Args:
        file: MJCF of the robot; None: the mechanism of the environment, written to MJCF.

    Attributes:
        models, data: `mujoco.MjModel` and `mujoco.MjData`, one for each environment. substeps: timesteps of a control step.
        hinges: place in qvel of each of our actuators.

    Raises:
        ValueError: a file whose joints or bodies are not those of the environment; an environment with terrain.
        ImportError: mujoco is not installed.
    """

    def __init__(self, env: Env, file: str | Path | None = None) -> None:
        self.mujoco, self.env = import_mujoco(), env
        if env.ground is not None:
            name = env.name or type(env).__name__
            raise ValueError(f"MuJoCo's robots: got {name} with terrain; allowed: level ground; leave terrain= and height_scan= out")
        self.driven: dict[str, str] = {}  # joints of the file's own actuators
        self.file = f"{file}" if file is not None else "the mechanism written to MJCF"
        spec = self._spec(file)
        self.model = _compiled(spec)
        self.hinges = np.zeros(0, dtype=int)
        self._match(self._joints(spec))
        self._replace_actuators(spec)
        self.model = _compiled(spec)
        self._prepare()
        self.models = [self.model] * env.num_envs
        self.data = [self.mujoco.MjData(self.model) for _ in self.models]
        self.impulses: Measured | None = None
        self.done: Tensor | None = None
        self.last: Tensor | None = None  # state that the last step gave
        self.rates = torch.zeros(0)

    @property
    def mass(self) -> float:
        """The robot's mass, in the mean over environments [kg]."""
        belongs = self.model.body_rootid == self.model.body_rootid[self.bodies[0]]
        return sum(float(model.body_mass[belongs].sum()) for model in self.models) / len(self.models)

    def vary(self, change: Callable[[Any, int, Any], None]) -> None:
        """Give each environment a model of its own. change(model, number, places in qvel of the actuators): friction, masses, ..."""
        self.models = [copy.copy(self.model) for _ in self.models]
        for i, model in enumerate(self.models):
            change(model, i, self.hinges)
            self.mujoco.mj_setConst(model, self.mujoco.MjData(model))
        self.data = [self.mujoco.MjData(model) for model in self.models]

    def measure(self) -> None:
        """Measure the impulses of contacts with the world, and the work of motors, from now on."""
        self.impulses = Measured(self.env.mech, self.model, self.bodies, self.levers, self.turns, self.env.num_envs)

    # -- the model -----------------------------------------------------------------------------------------------------------------------

    def _spec(self, file: str | Path | None) -> Any:
        """The specification without what refers to actuators, on a ground."""
        mujoco = self.mujoco
        if file is None:
            text, left_out = write_mjcf(self.env.mech, self.env.name or "robot", balls=False)  # each coordinate has a joint
            if missing := [name for name in left_out if not name.startswith(REPLACED)]:
                more = f", and {len(missing) - NAMES} more" if len(missing) > NAMES else ""
                _note(f"MuJoCo's robot lacks {', '.join(missing[:NAMES])}{more}")
            spec = mujoco.MjSpec.from_string(text)
        else:
            spec = compile_mjcf(file, mesh="skip").spec
            self.driven = {str(actuator.name): str(actuator.target) for actuator in spec.actuators}
        for group in (spec.keys, spec.sensors, spec.actuators):
            for element in list(group):
                spec.delete(element)
        if file is None:
            return spec
        if not any(geom.type == mujoco.mjtGeom.mjGEOM_PLANE for geom in spec.worldbody.geoms):
            frictions = [float(torch.as_tensor(getattr(c, "friction", 0.0)).mean()) for c in ground_contacts(self.env.mech).values()]
            friction = max(frictions, default=0.8)
            spec.worldbody.add_geom(name="ground", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 1], friction=[friction, 0.005, 1e-4])
            _note(f"{file} has no ground: it gets a plane z = 0 with friction {friction:g}")
        return spec

    def _joints(self, spec: Any) -> dict[tuple[str, int], Any]:
        """Joints of the model for coordinates of ours, (joint, coordinate); all driven ones among them."""
        model, mech = self.model, self.env.mech
        motors, joints = actuators(mech), {model.joint(i).name: model.joint(i) for i in range(model.njnt)}
        by_place: dict[tuple[str, int], Any] = {}
        named = dict(zip(zip(motors.joints, motors.coordinates, strict=True), motors.names, strict=True))
        for name in mech.coordinate_places():
            for i, label in enumerate(coordinate_names(mech, name)):
                motor = named.get((name, i))
                candidates = [label, *([] if motor is None else [motor])]
                candidates += [one.removesuffix("_joint") for one in candidates] + [f"{one}_joint" for one in candidates]
                candidates += [self.driven.get(one, "") for one in candidates]
                match = next((joints[one] for one in candidates if one in joints), None)
                if match is not None:
                    by_place[name, i] = match
        missing = [motor for place, motor in named.items() if place not in by_place]
        if missing:
            raise ValueError(
                f"transfer: got {self.file}, which has no joints for the motors {', '.join(missing)}; allowed: joints with the names of "
                f"the motors or of their joints, or with actuators named so; it has {', '.join(filter(None, joints))}; rename them"
            )
        return by_place

    def _match(self, found: Mapping[tuple[str, int], Any]) -> None:
        """Bodies and frames, coordinates and signs."""
        self.free = self.model.jnt_type[0] == self.mujoco.mjtJoint.mjJNT_FREE
        self.data = [self.mujoco.MjData(self.model)]
        motors = actuators(self.env.mech)
        driven = [found[place] for place in zip(motors.joints, motors.coordinates, strict=True)]
        self.joint_names = [joint.name for joint in driven]
        self.hinges = np.array([joint.dofadr[0] for joint in driven])
        self._find_bodies({place: int(joint.bodyid[0]) for place, joint in found.items()})
        self._find_frames({place: int(joint.id) for place, joint in found.items()})
        self._find_coordinates()

    def _find_bodies(self, carried: Mapping[tuple[str, int], int]) -> None:
        """The body of MuJoCo for each of ours: by a joint, or by its name."""
        mech = self.env.mech
        number = {name: i for i, name in enumerate(mech.bodies)}
        bodies = {0: int(self.model.jnt_bodyid[0])}
        for (joint, _), body in carried.items():
            bodies.setdefault(number[str(mech.named_joints()[joint].body_names[-1])], body)
        for name, i in number.items():
            if i not in bodies:
                body = self.mujoco.mj_name2id(self.model, self.mujoco.mjtObj.mjOBJ_BODY, name)
                if body >= 0:
                    bodies[i] = int(body)
        missing = [name for name, i in number.items() if i not in bodies]
        twice = [name for name, i in number.items() if list(bodies.values()).count(bodies.get(i, -1)) > 1]
        if missing or twice:
            problem = f"no bodies for {', '.join(missing)}" if missing else f"one body for {', '.join(twice)}"
            raise ValueError(
                f"transfer: got {self.file}, which has {problem}; allowed: a body for each of the environment's, found by the name of a "
                "joint that carries it, or by its own name; rename them"
            )
        self.bodies = np.array([bodies[i] for i in range(len(number))])

    def _find_frames(self, joints: Mapping[tuple[str, int], int]) -> None:
        """Our frames in MuJoCo's, from both robots with all joints at zero, moved so that their joints agree."""
        mech, model, data = self.env.mech, self.model, self.data[0]
        self.mujoco.mj_resetData(model, data)
        if self.free:
            data.qpos[:7] = (0, 0, 0, 1, 0, 0, 0)
        self.zero = data.qpos.copy()
        self.mujoco.mj_forward(model, data)
        zero = mech.to_maximal(torch.zeros(mech.num_coordinates, dtype=torch.float64))
        pose, _ = split_state(zero)
        masses = torch.stack([cast(Body, body).mass.double().mean() for body in mech.bodies.values()])
        belongs = model.body_rootid == model.body_rootid[self.bodies[0]]
        theirs = float(model.body_mass[belongs].sum())
        if abs(theirs / float(masses.sum()) - 1) > 0.01:
            _note(f"MuJoCo's robot has {theirs:.4g} kg, ours {float(masses.sum()):.4g} kg")
        # a point of an axis is known across it; the centers of mass decide what no axis does
        eye, small = torch.eye(3, dtype=torch.float64), 1e-6
        center = torch.from_numpy(data.subtree_com[self.bodies[0]].copy()) - masses @ pose.x / masses.sum()
        normal, right = small * eye, small * center
        pairs = [(place, place[0], joint) for place, joint in joints.items() if model.jnt_type[joint] == self.mujoco.mjtJoint.mjJNT_HINGE]
        rows = []
        axes = _axes(self.env)
        for place, name, joint in pairs:
            element = cast(StandardJoint, mech.named_joints()[name])
            anchor = mech.body_points(zero, str(element.body_names[-1]), element.child_anchor.detach()[None])[0]
            axis = torch.from_numpy(data.xaxis[joint].copy())
            if abs(float(axis @ axes[place])) < 0.99:
                raise ValueError(
                    f"transfer: got {self.file}, whose joint {model.joint(joint).name!r} turns about {_rounded(axis)} with all joints at "
                    f"zero; allowed: {_rounded(axes[place])}, as {name!r} of the environment; give the file of the same robot"
                )
            across = eye - torch.outer(axis, axis)
            apart = torch.from_numpy(data.xanchor[joint].copy()) - anchor
            normal, right = normal + across, right + across @ apart
            rows.append((across, apart, model.joint(joint).name))
        shift = torch.linalg.solve(normal, right)
        errors = [(float((across @ (apart - shift)).norm()), name) for across, apart, name in rows]
        worst, name = max(errors, default=(0.0, ""))
        if worst > APART:
            raise ValueError(
                f"transfer: got {self.file}, whose joint {name!r} is {100 * worst:.1f} cm from the environment's with all joints at zero; "
                f"allowed: {100 * APART:g} cm; give the file of the same robot"
            )
        position, turn = torch.from_numpy(data.xpos[self.bodies]), torch.from_numpy(data.xquat[self.bodies])
        self.levers = quat.inverse_rotate(turn, pose.x + shift - position)
        self.turns = quat.multiply(quat.conjugate(turn), pose.q)

    def _find_coordinates(self) -> None:
        """A signed permutation from our coordinates to MuJoCo's, found by moving one at a time."""
        model, data, start, size = self.model, self.data[0], 6 if self.free else 0, 7 if self.free else 0

        def coordinates() -> np.ndarray[Any, np.dtype[np.float64]]:
            self.mujoco.mj_forward(model, data)
            ours: np.ndarray[Any, np.dtype[np.float64]] = self.env.mech.to_minimal(self._state(data))[0][0].numpy()
            return ours

        data.qpos[:] = self.zero
        self.ours = coordinates()
        columns = []
        for i in range(size, model.nq):
            data.qpos[:] = self.zero
            data.qpos[i] += NUDGE
            columns.append((coordinates() - self.ours)[start:] / NUDGE)
        slopes = np.stack(columns, -1)
        self.to_ours = np.round(slopes)
        square = self.to_ours.shape[0] == self.to_ours.shape[1]
        if (
            not square
            or np.abs(slopes - self.to_ours).max() > 1e-3
            or np.abs(self.to_ours @ self.to_ours.T - np.eye(len(slopes))).max() > 0
        ):
            raise ValueError(
                f"transfer: got {self.file}, with the joints {', '.join(model.joint(i).name for i in range(model.njnt))}; allowed: "
                f"the coordinates of {self.env.name or type(self.env).__name__!r} up to order and sign; lock or remove others"
            )
        rows = np.array(places(self.env.mech)) - start
        self.signs = torch.from_numpy(self.to_ours[rows, self.hinges - start])

    def _replace_actuators(self, spec: Any) -> None:
        """Our motors and drives as actuators of MuJoCo with affine gain and bias."""
        mujoco, motors = self.mujoco, actuators(self.env.mech)
        start = 6 if self.free else 0
        origin = self.ours[start:] - self.to_ours @ self.zero[7 if self.free else 0 :]  # ours = to_ours qpos + origin
        rows = np.array(places(self.env.mech)) - start
        lower, upper = (bound / motors.gear for bound in servo_ranges(self.env.mech))
        force = torch.stack((torch.minimum(lower, upper), torch.maximum(lower, upper)), -1)
        low, high = torch.maximum(force[..., 0], motors.forcerange[..., 0]), torch.minimum(force[..., 1], motors.forcerange[..., 1])
        for i, name in enumerate(self.joint_names):
            gear, sign = float(motors.gear[i]), float(self.signs[i])
            constant = float(motors.length0[i]) + gear * float(origin[rows[i]])
            gain, bias = motors.gain[i].tolist(), motors.bias[i].tolist()
            gain[0], bias[0] = gain[0] + gain[1] * constant, bias[0] + bias[1] * constant
            options: dict[str, Any] = {}
            for key, bounds in (("ctrl", motors.ctrlrange[i].tolist()), ("force", [float(low[i]), float(high[i])])):
                if all(map(math.isfinite, bounds)):
                    options |= {f"{key}limited": mujoco.mjtLimited.mjLIMITED_TRUE, f"{key}range": bounds}
            spec.add_actuator(
                name=motors.names[i],
                trntype=mujoco.mjtTrn.mjTRN_JOINT,
                target=name,
                gear=[gear * sign, 0, 0, 0, 0, 0],
                gaintype=mujoco.mjtGain.mjGAIN_AFFINE,
                gainprm=gain + [0] * 7,
                biastype=mujoco.mjtBias.mjBIAS_AFFINE,
                biasprm=bias + [0] * 7,
                **options,
            )

    def _prepare(self) -> None:
        """Timestep, integrator, and the joints' own springs and dampers."""
        model, env = self.model, self.env
        self.substeps = math.ceil(env.period / model.opt.timestep - 1e-9)
        model.opt.timestep = env.period / self.substeps
        model.opt.integrator = self.mujoco.mjtIntegrator.mjINT_IMPLICITFAST
        start, size = (6, 7) if self.free else (0, 0)
        for name, place in env.mech.coordinate_places().items():
            joint = env.mech.named_joints()[name]
            if place.start < start or not isinstance(joint, StandardJoint):
                continue
            count = joint.num_coordinates
            damper, spring, rest = (
                value.detach().mean(0) if value.ndim > 1 else value for value in (joint.damper, joint.spring, joint.rest)
            )
            for i in range(count):
                row = place.start - start + i
                column = int(np.abs(self.to_ours[row]).argmax())
                model.dof_damping[start + column] = float(damper.expand(count)[i])
                number = int(model.dof_jntid[start + column])
                model.jnt_stiffness[number] = float(spring.expand(count)[i])
                for field, place_of, curve, sign in (
                    ("jnt_stiffnesspoly", number, joint.spring_curve, self.to_ours[row, column]),
                    ("dof_dampingpoly", start + column, joint.damper_curve, 1.0),
                ):
                    if hasattr(model, field):  # new in MuJoCo 4
                        numbers = np.zeros(2) if curve is None else curve.detach().reshape(-1, count, 2).mean(0)[i].numpy()
                        getattr(model, field)[place_of] = numbers * (sign, 1.0)
                offset = float(rest.expand(count)[i]) - self.ours[start + row]
                model.qpos_spring[size + column] = self.zero[size + column] + self.to_ours[row, column] * offset

    # -- motion --------------------------------------------------------------------------------------------------------------------------

    def place(self, z: Tensor) -> None:
        """Put the robots into states (B, 13 nb). Angles of hinges in series agree to first order."""
        q, qd = (value.numpy() for value in self.env.mech.to_minimal(z))
        pose, twist = split_state(z[:, :13])
        turn = quat.multiply(pose.q, quat.conjugate(self.turns[0]))[:, 0]  # of MuJoCo's torso
        out = quat.rotate(turn, -self.levers[0])  # from the center of mass to the origin of MuJoCo's torso
        spin = quat.rotate(pose.q, twist.omega)[:, 0]
        origin, velocity = pose.x[:, 0] + out, twist.v[:, 0] + quat.cross(spin, out)
        body_spin = quat.inverse_rotate(turn, spin)
        size, start = (7, 6) if self.free else (0, 0)
        for i, (model, data) in enumerate(zip(self.models, self.data, strict=True)):
            self.mujoco.mj_resetData(model, data)
            data.qpos[size:] = self.zero[size:] + self.to_ours.T @ (q[i] - self.ours)[start:]
            data.qvel[start:] = self.to_ours.T @ qd[i, start:]
            if self.free:
                data.qpos[:3], data.qpos[3:7], data.qvel[:3], data.qvel[3:6] = origin[i], turn[i], velocity[i], body_spin[i]
            self.mujoco.mj_forward(model, data)

    def push(self, change: Tensor, rates: Tensor) -> None:
        """Change the velocity of robots as a whole, by changes of the root (B, 3) and of our rates (B, num_coordinates)."""
        start = 6 if self.free else 0
        for i in (rates.abs().amax(-1) > 0).nonzero().flatten().tolist():
            if self.free:
                self.data[i].qvel[:3] += change[i].numpy()
            else:
                self.data[i].qvel[start:] += self.to_ours.T @ rates[i, start:].numpy()

    def step(self, action: Tensor) -> None:
        """A control step under actions (B, nu)."""
        mujoco = self.mujoco
        for i, (model, data, values) in enumerate(zip(self.models, self.data, action.double().numpy(), strict=True)):
            data.ctrl[:] = values
            if self.impulses is None:
                mujoco.mj_step(model, data, nstep=self.substeps)
            else:
                for _ in range(self.substeps):
                    mujoco.mj_step(model, data)
                    self.impulses.add(model, data, i)
            mujoco.mj_kinematics(model, data)  # poses and velocities at the end of the last timestep
            mujoco.mj_comPos(model, data)
            mujoco.mj_comVel(model, data)

    def work(self) -> Tensor | None:
        """Positive and absolute work of the motors in the last control step [J], (B, 2), where it is measured."""
        return None if self.impulses is None else self.done

    def sound(self) -> Tensor:
        """Whether MuJoCo found all numbers of a robot good since `place`, (B,): it starts anew from zero otherwise."""
        kinds = [getattr(self.mujoco.mjtWarning, f"mjWARN_BAD{name}") for name in ("QPOS", "QVEL", "QACC")]
        return torch.tensor([not any(data.warning[kind].number for kind in kinds) for data in self.data])

    def advance(self, motion: Motion, action: Tensor, warm: Tensor | None) -> StepOutput:
        """A control step in the place of `Env.advance`. States that do not follow from the last step are taken over.

        Velocities that all bodies got, as by kicks, are added. Impulses are those of the contacts' normal forces, where they are measured.
        """
        if self.last is None:
            self.place(motion.z)
        elif not torch.equal(self.last, motion.z):
            self.push((motion.z - self.last)[:, 3:6], motion.qd - self.rates)
        good = torch.isfinite(action).all(-1)
        self.step(torch.where(good[:, None], action, 0.0))
        z = self.states()
        self.last, self.rates = z, self.env.mech.to_minimal(z)[1]
        zeros = torch.zeros(len(z), dtype=torch.int64)
        status = (~self.sound()).long()
        solution = motion.z.new_zeros(len(z), 0) if warm is None else warm
        impulses = z.new_zeros(len(z), 0)
        if self.impulses is not None:
            impulses, self.done = self.impulses.take()
        return StepOutput(z, impulses, status, zeros, solution, zeros + self.env.repeat)

    def states(self) -> Tensor:
        """z of all robots, (B, 13 nb), with the velocities of now."""
        return self._state(*self.data)

    def _state(self, *simulations: Any) -> Tensor:
        def stacked(name: str, bodies: Any) -> Tensor:
            return torch.from_numpy(np.stack([getattr(data, name)[bodies] for data in simulations]))

        position, turn, spatial = (stacked(name, self.bodies) for name in ("xpos", "xquat", "cvel"))
        center = stacked("subtree_com", self.model.body_rootid[self.bodies[:1]])  # about which velocities of the tree are taken
        x, spin = position + quat.rotate(turn, self.levers.expand_as(position)), spatial[..., :3]
        velocity = spatial[..., 3:] + quat.cross(spin, x - center)
        orientation = quat.multiply(turn, self.turns.expand_as(turn))
        return join_state(Pose(x, orientation), Twist(velocity, quat.inverse_rotate(orientation, spin)))


def _compiled(spec: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler warns of old attributes, which it still understands
        return spec.compile()


def _rounded(vector: Tensor) -> list[float]:
    return [round(number, 2) for number in vector.tolist()]


def _note(text: str) -> None:
    warnings.warn(f"transfer: {text}", stacklevel=2)


def _axes(env: Env) -> dict[tuple[str, int], Tensor]:
    """Axes of the turning coordinates in the world with all coordinates at zero."""
    mech = env.mech
    rates = torch.eye(mech.num_coordinates, dtype=torch.float64)
    pose, twist = split_state(mech.to_maximal(torch.zeros_like(rates), rates))
    names, axes = list[str](mech.bodies), dict[tuple[str, int], Tensor]()
    for name, place in mech.coordinate_places().items():
        child = names.index(str(mech.named_joints()[name].body_names[-1]))
        spins = quat.rotate(pose.q[place, child], twist.omega[place, child])
        axes |= {(name, i): spin for i, spin in enumerate(spins)}
    return axes

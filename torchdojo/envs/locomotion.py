"""Legged robots that follow velocity commands: one environment for every robot whose file says where its feet are.

    env = td.envs.Locomotion("quadruped", num_envs=64)                # an A1 that trots
    env = td.envs.Locomotion("my_robot.urdf", gait="walk")            # one's own
    for name, found in env.describe(): print(name, found)

The policy is blind: it sees joints, the direction up, the spin, a command and a clock, and neither velocity nor ground. The clock says
which legs swing. Rewards ask feet to follow it, and to land where the robot is in balance (Raibert 1986, Legged Robots That Balance,
section 2). All numbers are those of an A1 and scale with the robot's mass and the length of its legs.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.actuators import Actuator, actuate
from torchdojo.elements.contacts import Contact, NonlinearContact
from torchdojo.envs.anatomy import find_anatomy
from torchdojo.envs.checks import one_from, positive
from torchdojo.envs.disturbances import SensorNoise
from torchdojo.envs.env import Env
from torchdojo.envs.gaits import Gait, gait_of
from torchdojo.envs.ground import scan_points
from torchdojo.envs.mirrors import Mirror
from torchdojo.envs.motion import Motion, upright_and_heading
from torchdojo.io import load
from torchdojo.mechanism import Mechanism
from torchdojo.models.built_in import make as make_model
from torchdojo.state.layout import STATE_SIZE

__all__ = ["WEIGHTS", "Locomotion", "Mirror"]

#: weights of the terms of the reward, of an A1; `Locomotion` divides squares of lengths, torques and powers by those of the robot
WEIGHTS = {
    "alive": 1.5,  # each step
    "velocity": 4.0,  # (v − v*)², horizontal, in the frame of the root [m/s]
    "turning": 1.0,  # (ω − ω*)², about the vertical [rad/s]
    "bounce": 0.5,  # v_z²
    "rolling": 0.05,  # roll and pitch rates, squared
    "upright": 15.0,  # squared components of the direction up along the root's x and y
    "height": 120.0,  # (z − z*)² [m]
    "feet": 80.0,  # (height of a foot − that of the clock)² [m], summed over feet
    "slip": 0.3,  # squared horizontal speed of feet in stance [m/s]
    "place": 25.0,  # squared distance of feet from Raibert's places [m]
    "torque": 2e-4,  # squared torques [N·m]
    "power": 1e-3,  # positive power [W]
    "change": 0.2,  # squared change of action
    "jerk": 0.05,  # squared second difference of actions
    "splay": 0.5,  # squared angles of joints that roll or yaw, from the stance [rad]
    "pose": 0.02,  # squared angles of all joints, from the stance [rad]
    "arms": 1.0,  # squared angles of joints that belong to no leg, from the stance [rad]
}
#: weights of robots with two legs that differ: falling may not pay, and a foot that stays on the ground costs more than one that is lifted
BIPED_WEIGHTS = {"alive": 6.0, "feet": 2500.0}
COMMANDS = ((-0.5, 1.0), (-0.4, 0.4), (-0.8, 0.8))  # forward and sideways speed [m/s], and turning rate [rad/s]
STILL = 0.1  # share of commands that are zero
SENSORS = {"up": 0.03, "spin": 0.1, "angles": 0.01, "rates": 0.05}  # noise="robot": deviations of parts of the observation
REACH = {"roll": 0.3, "yaw": 0.3, "pitch": 0.6, "skew": 0.5}  # of an action of 1 [rad]
HIP_REACH = 0.5  # of the first joint of a leg that pitches [rad]
STIFFNESS, BRAKING = 40.0, 1.0  # of an A1's drives [N·m/rad, N·m·s/rad]
OWN_BRAKING = 0.1  # of a drive's braking: a joint keeps as much of its damper, since files' dampers often stand for a servo's
SPEED = 30.0  # largest speed of hinges whose file has none [rad/s]
STRONGEST = 2.0  # stiffness over a motor's largest torque [1/rad]
A1_LENGTH, A1_MASS = 0.4, 13.5  # [m, kg]
CLEARANCE, BIPED_CLEARANCE = 0.07, 0.036  # of the feet in the middle of their swing, of legs as long as those of an A1 [m]
STAND, FALL, TILT = 0.97, 0.53, 0.5  # heights over that of the stance; least cosine of the tilt
BIPED_FALL, BIPED_TILT = 0.7, 0.8  # a biped that is farther down or tilted more than 37 degrees does not recover
BUILT_IN: dict[str, dict[str, Any]] = {"quadruped": {"velocity_limits": True}}


class Locomotion(Env):
    """A legged robot that follows commands (forward speed, sideways speed [m/s], turning rate [rad/s]) with a given gait.

    Actions are targets of drives at the hinges: torque = kp (reach · action + rest − q) − kd q̇. The observation has the direction up and
    the spin in the root's frame, angles from the stance, rates / 10, the last action, the command, and sine and cosine of the clock.
    The memory has the phase of the clock and the action before the last.

    Args:
        robot: name of a built-in robot (`td.models`), a URDF or MJCF file, or a mechanism of one's own, which is given drives.
        gait: "trot", "walk", "pace", "bound" or "run"; a `Gait`; or a mapping of what differs, {"name": "trot", "frequency": 2.5}.
        feet: names of contacts, or of bodies. None: found (`find_anatomy`).
        stance: angles of joints [rad] by name, or by the end of their names. None: each foot under its hip.
        commands: ranges of the three commands. still: share of commands that are zero.
        weights: of the reward, in place of some of `WEIGHTS` (bipeds `BIPED_WEIGHTS`).
        stiffness: kp [N·m/rad]; None: 40 for an A1, scaled. braking: kd [N·m·s/rad]; None: kp / 40. reach: [rad] of all joints; None:
            0.3 of joints that roll or yaw, 0.5 of hips and 0.6 of knees.
        friction: of the feet. clearance: of swinging feet [m]; None: 0.07 for an A1, scaled (bipeds 0.036).
        body_contacts: whether the contacts of other bodies than the feet act, too. They cost time, and training does without.
        joint_limits, joint_friction: whether limits of the joints' angles and their Coulomb friction act. Both cost time.
        robot_options: keywords of the model or of `td.load`.
        sensor_noise: as of `Env`; noise "robot" stands for deviations of usual sensors, `SENSORS`.
        options: of `Env`.

    Attributes:
        anatomy: what was found. gait: `Gait`. term_names: of the reward.

    Raises:
        ValueError: an unknown robot, gait, weight or foot; a robot without feet or without a floating base.
    """

    name = "locomotion"
    timestep, repeat, episode_length = 0.01, 2, 1000
    resample = 200

    def __init__(
        self,
        robot: str | Path | Mechanism = "quadruped",
        gait: str | Gait | Mapping[str, Any] = "trot",
        *,
        feet: Sequence[str] | None = None,
        stance: Mapping[str, float] | None = None,
        commands: Sequence[Sequence[float]] = COMMANDS,
        still: float = STILL,
        weights: Mapping[str, float] | None = None,
        stiffness: float | None = None,
        braking: float | None = None,
        reach: float | None = None,
        friction: float = 0.8,
        clearance: float | None = None,
        body_contacts: bool = False,
        joint_limits: bool = False,
        joint_friction: bool = False,
        robot_options: Mapping[str, Any] | None = None,
        timestep: float | None = None,
        sensor_noise: SensorNoise | Mapping[str, Any] | float | None = None,
        **options: Any,
    ) -> None:
        for weight in weights or {}:
            one_from("weights", weight, tuple(WEIGHTS))
        mech = copy.deepcopy(robot) if isinstance(robot, Mechanism) else _robot(robot, dict(robot_options or {}))
        self.robot = type(robot).__name__ if isinstance(robot, Mechanism) else str(robot)
        self.anatomy = anatomy = find_anatomy(mech, feet=feet, stance=stance)
        self.gait, offsets = gait_of(gait, len(anatomy.legs))
        self.commands, self.still = _ranges(commands), positive("still", still, zero=True)
        size, load_ratio = anatomy.length / A1_LENGTH, anatomy.mass / A1_MASS
        strength = size * load_ratio
        self.offsets = torch.tensor(offsets, dtype=torch.float64)
        self.stride = math.sqrt(size) / self.gait.frequency  # [s]
        self.swing = 1.0 - self.gait.duty
        two = len(anatomy.legs) == 2
        self.fall, self.tilt = (BIPED_FALL, BIPED_TILT) if two else (FALL, TILT)
        self.clearance = (BIPED_CLEARANCE if two else CLEARANCE) * size if clearance is None else positive("clearance", clearance)
        units = {"height": size**2, "feet": size**2, "place": size**2, "torque": strength**2, "power": load_ratio * math.sqrt(size)}
        weighted = {**WEIGHTS, **(BIPED_WEIGHTS if two else {}), **(weights or {})}
        self.weights = {name: weight / units.get(name, 1.0) for name, weight in weighted.items()}
        self._measure(mech)
        self._drive(mech, stiffness, braking, reach, STIFFNESS * strength)
        mech = _driven(self, mech, positive("friction", friction), body_contacts, joint_limits, joint_friction)
        step = type(self).timestep if timestep is None else timestep
        options.setdefault("kappa", type(self).kappa)
        super().__init__(
            mech, timestep=step, sensor_noise=self._noise(sensor_noise, len(scan_points(options.get("height_scan", False)))), **options
        )

    # -- what the robot is ---------------------------------------------------------------------------------------------------------------

    def _measure(self, mech: Mechanism) -> None:
        """Numbers of the anatomy as tensors."""
        anatomy, contacts, bodies = self.anatomy, mech.named_contacts(), list(mech.bodies)
        points = [[_field(contacts[name], "point") for name in leg.contacts] for leg in anatomy.legs]
        self.feet = torch.stack([torch.stack(leg_points).mean(0) for leg_points in points])  # in the frames of their bodies
        self.radii = torch.stack([torch.stack([_field(contacts[name], "radius") for name in leg.contacts]).mean() for leg in anatomy.legs])
        self.soles = torch.tensor([bodies.index(leg.body) for leg in anatomy.legs])
        self.hips = torch.tensor([leg.hip for leg in anatomy.legs], dtype=torch.float64)
        self.rest, self.columns = anatomy.rest, list(anatomy.columns)
        legs = {i for leg in anatomy.legs for i in leg.joints}
        self._splay = torch.tensor([float(i in legs and kind != "pitch") for i, kind in enumerate(anatomy.kinds)], dtype=torch.float64)
        self._arms = torch.tensor([float(i not in legs) for i in range(len(anatomy.joints))], dtype=torch.float64)
        self._has_arms = len(legs) < len(anatomy.joints)  # a compiled step may not look at a tensor

    def _drive(self, mech: Mechanism, stiffness: float | None, braking: float | None, reach: float | None, usual: float) -> None:
        """Numbers of the drives, (nu,): kp, kd, reach, and the largest torques of the motors."""
        anatomy, joints = self.anatomy, mech.named_joints()
        efforts = [getattr(joints[name], "effort_limit", None) for name in anatomy.joints]
        self.efforts = torch.tensor([math.inf if e is None else float(torch.as_tensor(e).flatten()[0]) for e in efforts]).double()
        bounded = torch.minimum(torch.full_like(self.efforts, usual), STRONGEST * self.efforts)
        self.kp = bounded if stiffness is None else torch.full_like(bounded, positive("stiffness", stiffness))
        self.kd = self.kp * BRAKING / STIFFNESS if braking is None else torch.full_like(bounded, positive("braking", braking, zero=True))
        hips = {next((i for i in leg.joints if anatomy.kinds[i] == "pitch"), -1) for leg in anatomy.legs}
        spans = [HIP_REACH if i in hips else REACH[kind] for i, kind in enumerate(anatomy.kinds)]
        self.reach = torch.tensor(spans if reach is None else [positive("reach", reach)] * len(spans), dtype=torch.float64)

    def describe(self) -> list[tuple[str, str]]:
        """The findings about the robot and the choices made for it, for a table."""
        numbers = {"kp": self.kp, "kd": self.kd, "limit": self.efforts}
        ends = {name: [f"{float(end):.3g}" for end in value.aminmax()] for name, value in numbers.items()}
        motors = "; ".join(f"{name} {' to '.join(dict.fromkeys(pair))}" for name, pair in ends.items())
        rhythm = f"{1 / self.stride:.2f} Hz, {self.gait.duty:.0%} of a stride in stance, feet rise {100 * self.clearance:.1f} cm"
        return [("robot", self.robot), *self.anatomy.rows(), ("drives", motors + " N·m"), ("gait", rhythm)]

    def mirror(self) -> Mirror:
        """The reflection of observations and actions.

        Raises:
            ValueError: the robot has no mirror image, or its gait is none of the mirrored robot.
        """
        anatomy = self.anatomy
        if anatomy.images is None:
            raise ValueError(
                f"mirror: got joints without a mirror image: {', '.join(anatomy.unmatched)}; allowed: robots whose left is the image of "
                "their right to 1.5 cm; train with symmetric: false"
            )
        count = len(anatomy.joints)
        joints = torch.zeros(count, count, dtype=torch.float64)
        for i, (j, sign) in enumerate(anatomy.images):
            joints[i, j] = sign
        pairs = self.offsets.unflatten(0, (-1, 2))
        shift = torch.remainder(pairs[:, 0] - pairs[:, 1], 1.0)
        shifts = [value for value in (0.0, 0.5) if bool(((shift - value).abs() < 1e-9).all())]
        if not shifts:
            raise ValueError(
                f"mirror: got a gait with offsets {self.offsets.tolist()}, which is no mirror image of itself at another time; allowed: "
                "gaits whose left legs step with the right ones, or half a stride later; train with symmetric: false"
            )
        blocks = [torch.tensor([1.0, -1.0, 1.0]).diag(), torch.tensor([-1.0, 1.0, -1.0]).diag(), joints, joints, joints]
        blocks += [torch.tensor([1.0, -1.0, -1.0]).diag(), (1.0 - 4.0 * shifts[0]) * torch.eye(2)]
        blocks += [] if self.ground is None else [self.ground.image()]
        return Mirror(torch.block_diag(*[block.double() for block in blocks]), joints)

    def _noise(self, given: Any, scanned: int = 0) -> Any:
        """`sensor_noise` with "robot" spelled out, where a scan of so many heights follows."""
        count = len(self.anatomy.joints)
        if isinstance(given, Mapping) and given.get("noise") == "robot":
            usual = [SENSORS["up"]] * 3 + [SENSORS["spin"]] * 3 + [SENSORS["angles"]] * count + [SENSORS["rates"]] * count
            return {**given, "noise": usual + [0.0] * (count + 5 + scanned)}
        return self._noise({"noise": "robot"}, scanned) if given == "robot" else given

    # -- the task ------------------------------------------------------------------------------------------------------------------------

    def starts(self, count: int) -> Tensor:
        """The stance with noise, heading anywhere."""
        mech, nu = self.mech, len(self.columns)
        q = torch.zeros(count, mech.num_coordinates, dtype=torch.float64)
        q[:, 3:5] = 0.05 * self.noise * self.random(count, 2)
        q[:, 5] = math.pi * self.random(count)
        q[:, self.columns] = self.rest + 0.1 * self.noise * self.random(count, nu)
        z = mech.to_maximal(q, 0.2 * self.noise * self.normal(*q.shape))
        return mech.place(z if self.ground is None else self.ground.scatter(z, self.random(count, 2)), 0.003)

    def goals(self, count: int) -> Tensor:
        """Commands, (count, 3)."""
        drawn = torch.cat([self.random(count, 1, low=low, high=high) for low, high in self.commands], -1)
        return torch.where(self.random(count, 1, low=0.0) < self.still, 0.0, drawn)

    def memories(self, start: Motion) -> Tensor:
        """Phase of the clock, and no action."""
        return torch.cat((self.random(len(start.z), 1, low=0.0), start.action), -1)

    def remember(self, before: Motion, after: Motion, fresh: Tensor) -> Tensor:
        """The clock goes on, and the action before stays."""
        phase = torch.remainder(before.memory[..., :1] + self.period / self.stride, 1.0)
        return torch.cat((phase, before.action), -1)

    def observe(self, motion: Motion) -> Tensor:
        """The observation of a robot with encoders and an inertial sensor, (B, 3 nu + 11)."""
        m, angle = motion, 2.0 * math.pi * motion.memory[..., :1]
        up = quat.inverse_rotate(m.root[..., 6:10], m.root.new_tensor((0.0, 0.0, 1.0)).expand_as(m.root[..., :3]))
        angles, rates = self.joint_angles(m.q) - self.rest, self.joint_angles(m.qd)
        parts = up, m.root[..., 10:13], angles, 0.1 * rates, m.action.clamp(-1.0, 1.0), m.goal, angle.sin(), angle.cos()
        return torch.cat(parts, -1)

    def reward(self, before: Motion, after: Motion, action: Tensor) -> Mapping[str, Tensor]:
        """The terms of `WEIGHTS`."""
        w, turn, root, cmd = self.weights, after.root[..., 6:10], after.root, after.goal
        velocity = quat.inverse_rotate(turn, root[..., 3:6])
        up = quat.inverse_rotate(turn, root.new_tensor((0.0, 0.0, 1.0)).expand_as(root[..., :3]))
        place, speed = self.foot_motion(after)
        leg = torch.remainder(after.memory[..., :1] + self.offsets, 1.0)
        lift = (math.pi * (leg / self.swing).clamp(max=1.0)).sin().square()
        stance = (leg >= self.swing).to(leg.dtype)
        rates, off = self.joint_angles(after.qd), self.joint_angles(after.q) - self.rest
        torque = self.torques(after, action)
        power, change = torque * rates, action - before.action
        jerk = change - before.action + before.memory[..., 1:]
        rise = self.above_ground(after, root[..., 2]) - STAND * self.anatomy.height
        terms = {
            "alive": torch.ones_like(rise),
            "velocity": -_squares(velocity[..., :2] - cmd[..., :2]),
            "turning": -(root[..., 12] - cmd[..., 2]).square(),
            "bounce": -velocity[..., 2].square(),
            "rolling": -_squares(root[..., 10:12]),
            "upright": -_squares(up[..., :2]),
            "height": -rise.square(),
            "feet": -_squares(self.foot_heights(place) - self.radii - self.clearance * lift),
            "slip": -(stance * _squares(speed[..., :2])).sum(-1),
            "place": -self._misplaced(root, place, cmd, leg),
            "torque": -_squares(torque),
            "power": -0.5 * (power + (power.square() + 1.0).sqrt()).sum(-1),
            "change": -_squares(change),
            "jerk": -_squares(jerk),
            "splay": -(self._splay * off.square()).sum(-1),
            "pose": -_squares(off),
        }
        if self._has_arms:
            terms["arms"] = -(self._arms * off.square()).sum(-1)
        return {name: w[name] * value for name, value in terms.items()}

    def terminated(self, after: Motion) -> Tensor:
        """Low, or tilted by more than 60 degrees (bipeds 37)."""
        return (self.above_ground(after, after.root[..., 2]) < self.fall * self.anatomy.height) | (
            upright_and_heading(after.root)[..., 0] < self.tilt
        )

    def foot_motion(self, motion: Motion) -> tuple[Tensor, Tensor]:
        """Positions of the feet's centers [m] and their velocities [m/s], world frame, (B, legs, 3)."""
        states = motion.z.unflatten(-1, (-1, STATE_SIZE)).index_select(-2, self.soles)
        # One split: backward of slices would fill a tensor of zeros for each.
        x, v, turn, omega = states.split((3, 3, 4, 3), -1)
        arm = quat.rotate(turn, self.feet.expand(*states.shape[:-1], 3))
        return x + arm, v + quat.cross(quat.rotate(turn, omega), arm)

    def foot_heights(self, place: Tensor) -> Tensor:
        """Heights of the feet's centers above the ground below them [m], (B, legs). place: of `foot_motion`."""
        return place[..., 2] if self.ground is None else place[..., 2] - self.ground.height(place[..., :2])

    def torques(self, motion: Motion, action: Tensor) -> Tensor:
        """The drives' torques in the step that led to a motion [N·m], (B, nu)."""
        off, rates = self.joint_angles(motion.q) - self.rest, self.joint_angles(motion.qd)
        return (self.kp * (self.reach * action.clamp(-1.0, 1.0) - off) - self.kd * rates).clamp(-self.efforts, self.efforts)

    def _misplaced(self, root: Tensor, place: Tensor, cmd: Tensor, leg: Tensor) -> Tensor:
        """Squared distances of the feet from Raibert's places: under the hip in the middle of stance, and of swing.

        Before and after, a foot in stance is where the commanded speed of its hip takes it. The swing brings the foot back on a cosine.
        """
        ahead = quat.rotate(root[..., 6:10], root.new_tensor((1.0, 0.0, 0.0)).expand_as(root[..., :3]))[..., None, :2]
        ahead = ahead / ahead.norm(dim=-1, keepdim=True).clamp_min(0.1)
        away = place[..., :2] - root[..., None, :2]
        x = (away * ahead).sum(-1)
        y = away[..., 1] * ahead[..., 0] - away[..., 0] * ahead[..., 1]
        swing, stand = self.swing, 1.0 - self.swing
        reach = torch.where(leg < swing, -(math.pi * leg / swing).cos(), 1.0 - 2.0 * (leg - swing) / stand) * 0.5 * stand * self.stride
        hip_x, hip_y = self.hips.unbind(-1)
        vx, vy = cmd[..., :1] - cmd[..., 2:] * hip_y, cmd[..., 1:2] + cmd[..., 2:] * hip_x
        return _squares(x - hip_x - reach * vx) + _squares(y - hip_y - reach * vy)

    def joint_angles(self, q: Tensor) -> Tensor:
        """The driven joints of coordinates or rates (B, num_coordinates), (B, nu)."""
        start, nu = self.columns[0], len(self.columns)
        return q[..., start : start + nu] if self.columns == list(range(start, start + nu)) else q[..., self.columns]


def _squares(value: Tensor) -> Tensor:
    return value.square().sum(-1)


def _field(contact: Contact, name: str) -> Tensor:
    """A point (3,) or a radius () of a contact, of the first robot of a batch."""
    value = torch.as_tensor(getattr(contact, name)).detach().double()
    return value.reshape(-1, 3)[0] if name == "point" else value.flatten()[0]


def _ranges(given: Sequence[Sequence[float]]) -> tuple[tuple[float, float], ...]:
    """Three ranges (low, high)."""
    try:
        ranges = tuple((float(low), float(high)) for low, high in given)
    except (TypeError, ValueError):
        ranges = ()
    if len(ranges) != 3 or not all(-math.inf < low <= high < math.inf for low, high in ranges):
        raise ValueError(f"commands: got {given!r}; allowed: three pairs (low, high): forward, sideways [m/s], turning [rad/s]")
    return ranges


def _robot(name: str | Path, options: dict[str, Any]) -> Mechanism:
    """A built-in robot, or that of a file."""
    path = Path(name)
    if path.suffix.lower() in (".urdf", ".xml", ".mjcf") or path.is_file():
        if not path.is_file():
            raise ValueError(f"robot: got {str(name)!r}, which is no file; allowed: a URDF or MJCF file, or {', '.join(BUILT_IN)}")
        return load(path, **options)
    one_from("robot", str(name), tuple(BUILT_IN))
    return make_model(str(name), **{**BUILT_IN[str(name)], **options})


def _driven(env: Locomotion, mech: Mechanism, friction: float, body_contacts: bool, joint_limits: bool, joint_friction: bool) -> Mechanism:
    """The robot with drives at its hinges, and with the contacts that act."""
    anatomy, contacts, joints = env.anatomy, dict[str, Contact](), dict(mech.named_joints())
    feet = {name for leg in anatomy.legs for name in leg.contacts}
    for name, contact in mech.named_contacts().items():
        if name in feet:
            point, radius = _field(contact, "point"), float(_field(contact, "radius"))
            contacts[name] = NonlinearContact(str(contact.body_names[0]), point=point, radius=radius, friction=friction)
        elif body_contacts:
            contacts[name] = contact
    servos = {}
    for i, name in enumerate(anatomy.joints):
        joint: Any = joints[name]
        kp, kd, effort = float(env.kp[i]), float(env.kd[i]), float(env.efforts[i])
        damping = float(joint.damper.flatten()[0])
        speed = None if joint.velocity_limits is None else joint.velocity_limits.detach()
        joints[name] = type(joint)(
            *joint.body_names,
            **{field: getattr(joint, field).detach() for field in ("axis", "parent_anchor", "child_anchor", "orientation_offset")},
            damper=min(damping, OWN_BRAKING * kd),
            armature=None if joint.armature is None else joint.armature.detach(),
            friction=joint.friction.detach() if joint_friction and joint.friction is not None else None,
            limits=tuple(end.detach() for end in joint.limits) if joint_limits and joint.limits is not None else None,
            effort_limit=joint.effort_limit,
            velocity_limits=SPEED if speed is None else speed,
        )
        servos[name] = Actuator(
            name,
            gain=kp * float(env.reach[i]),
            bias=(kp * float(env.rest[i]), -kp, -kd),
            ctrlrange=(-1.0, 1.0),
            forcerange=(-effort, effort) if math.isfinite(effort) else None,
        )
    couplings = dict(mech.named_couplings())
    gravity, options = mech.gravity.detach(), dataclasses.replace(mech.options)
    tendons = dict(mech.named_tendons())
    result = Mechanism(dict(mech.named_bodies()), joints, contacts, couplings=couplings, tendons=tendons, gravity=gravity, options=options)
    actuate(result, servos)
    return result

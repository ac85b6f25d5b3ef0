"""A policy on MuJoCo's model of the same robot: the file that comes with Gymnasium, simulated by MuJoCo, without retraining.

The policy sees the observation of its environment. For this the poses and velocities of MuJoCo's bodies become a state z. Frames differ:
some links here are several bodies there, and axes of bodies may be turned. Both robots with all joints at zero tell by how much, once, and
which coordinate of MuJoCo is which of ours.

Motors and drives act at MuJoCo's hinges of the same names, as torques computed in each of its timesteps. A drive takes the place of the
hinge's spring. Its braking is added to the hinge's damper, which MuJoCo's integrator "implicitfast" makes implicit, since an explicit one
may be unstable at the light links of a humanoid. A control step takes the environment's period. The timestep is the file's, or a little
less, so that a whole number fits. Contact, friction and limits stay MuJoCo's.

Hips of the humanoid are three hinges in series there, and one joint with a rotation vector here, so drives differ to second order in their
angles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.bodies import Body
from torchdojo.elements.element import Pose, Twist
from torchdojo.envs import Env, Motion, TableEnv
from torchdojo.envs.checks import check_action, counted
from torchdojo.learning.motors import actuators, places, servo_damping, torques
from torchdojo.learning.rollouts import Evaluation, Policy, Tally
from torchdojo.state.layout import join_state, split_state

__all__ = ["FILES", "MuJoCoRobots", "transfer"]

#: environment -> file of Gymnasium's
FILES = {
    "hopper": "hopper.xml",
    "walker2d": "walker2d_v5.xml",
    "half_cheetah": "half_cheetah.xml",
    "ant": "ant.xml",
    "humanoid": "humanoid.xml",
}
NUDGE = 1e-5  # of a coordinate, to see which of ours it is [m, rad]


@torch.no_grad()
def transfer(env: Env, policy: Policy, steps: int | None = None, *, record: bool = False) -> Evaluation:
    """One episode of each environment in MuJoCo, from the environment's starts.

    Rewards, ends of episodes, memory and noise of sensors are those of the environment; its goals stay, and it is not kicked. A recording
    has no impulses.

    Raises:
        ValueError: an environment without a file of Gymnasium's. ImportError: mujoco or gymnasium is not installed.
    """
    count = counted("steps", env.episode_length if steps is None else steps)
    env.reset()
    with _quiet(env) as robots:
        robots.place(env.state.z)
        motion = robots.motion(env.state.action)
        obs, carried = env.sensors.begin(env.observe(motion), env.normal)
        tally, nothing = Tally(motion.z, env.period, record), motion.z.new_zeros(env.num_envs, 0)
        for _ in range(count):
            action = policy(obs.float())
            check_action(action, env.num_envs, env.num_actions)
            action = action.double()
            good = torch.isfinite(action).all(-1)
            robots.step(torch.where(good[:, None], action, 0.0), tally.alive)
            after = robots.motion(action)._replace(memory=motion.memory, time=motion.time + 1)
            after = after._replace(memory=env.remember(motion, after, env.state.memory))
            obs, carried = env.sensors.read(env.observe(after), carried, env.normal(env.num_envs, env.sensors.draws))
            terms = env.reward(motion, after, action)
            reward = terms if isinstance(terms, Tensor) else torch.stack(list(terms.values())).sum(0)
            flagged = ~(good & robots.sound() & torch.isfinite(reward))
            going = tally.add(after.z, action, reward, env.terminated(after), flagged, nothing, motion.goal)
            motion = after
            if not going:
                break
    return tally.result()


@contextmanager
def _quiet(env: Env) -> Iterator[MuJoCoRobots]:
    """Robots whose warnings MuJoCo keeps to itself: `MuJoCoRobots.sound` tells, and no file of warnings is written."""
    mujoco, _ = _package(env)
    mujoco.set_mju_user_warning(lambda text: None)
    try:
        yield MuJoCoRobots(env)
    finally:
        mujoco.set_mju_user_warning(None)


class MuJoCoRobots:
    """MuJoCo's simulations of B robots of an environment.

    Args:
        env: of the table, with a row in `FILES`.

    Attributes:
        model: `mujoco.MjModel`. data: one `mujoco.MjData` for each environment. substeps: timesteps of a control step.
        hinges: place in qvel of each of our actuators. signs: of its angle there.
    """

    def __init__(self, env: Env) -> None:
        mujoco, path = _package(env)
        self.mujoco, self.env, self.model = mujoco, env, mujoco.MjModel.from_xml_path(str(path))
        model, motors = self.model, actuators(env.mech)
        self.substeps = math.ceil(env.period / model.opt.timestep - 1e-9)
        model.opt.timestep = env.period / self.substeps
        self.data = [mujoco.MjData(model) for _ in range(env.num_envs)]
        self.free = model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE
        joints = [model.joint(name) for name in motors.names]
        self.hinges = np.array([joint.dofadr[0] for joint in joints])
        self._find_bodies([int(joint.bodyid[0]) for joint in joints])
        self._find_coordinates()
        if motors.measures:  # drives
            model.opt.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
            model.dof_damping[self.hinges] += servo_damping(env.mech).numpy()
            for joint in joints:
                model.jnt_stiffness[joint.id] = 0.0

    def place(self, z: Tensor) -> None:
        """Put the robots into states (B, 13 nb). Angles of hinges in series agree to first order."""
        q, qd = (value.numpy() for value in self.env.mech.to_minimal(z))
        pose, twist = split_state(z[:, :13])
        turn = quat.multiply(pose.q, quat.conjugate(self.turns[0]))[:, 0]  # of MuJoCo's torso
        out = quat.rotate(turn, -self.levers[0])  # from the center of mass to the origin of MuJoCo's torso
        spin = quat.rotate(pose.q, twist.omega)[:, 0]
        origin, velocity = pose.x[:, 0] + out, twist.v[:, 0] + quat.cross(spin, out)
        own = quat.inverse_rotate(turn, spin)
        size, start = (7, 6) if self.free else (0, 0)
        for i, data in enumerate(self.data):
            self.mujoco.mj_resetData(self.model, data)
            data.qpos[size:] = self.zero[size:] + self.to_ours.T @ (q[i] - self.ours)[start:]
            data.qvel[start:] = self.to_ours.T @ qd[i, start:]
            if self.free:
                data.qpos[:3], data.qpos[3:7], data.qvel[:3], data.qvel[3:6] = origin[i], turn[i], velocity[i], own[i]
            self.mujoco.mj_forward(self.model, data)

    def step(self, action: Tensor, alive: Tensor) -> None:
        """A control step under actions (B, nu), of the robots of a mask (B,)."""
        mech, running = self.env.mech, alive.nonzero().flatten().tolist()
        held, place = action[alive], self.hinges + (1 if self.free else 0)
        for _ in range(self.substeps):
            q = torch.from_numpy(np.stack([self.data[i].qpos[place] for i in running])) * self.signs
            qd = torch.from_numpy(np.stack([self.data[i].qvel[self.hinges] for i in running])) * self.signs
            torque = (torques(mech, held, q, qd, damping=False) * self.signs).numpy()
            for i, values in zip(running, torque, strict=True):
                self.data[i].qfrc_applied[self.hinges] = values
                self.mujoco.mj_step(self.model, self.data[i])
        for i in running:  # poses and velocities of the bodies at the end of the last step
            self.mujoco.mj_forward(self.model, self.data[i])

    def sound(self) -> Tensor:
        """Whether MuJoCo found all numbers of a robot good since `place`, (B,): it starts anew from zero otherwise."""
        kinds = [getattr(self.mujoco.mjtWarning, f"mjWARN_BAD{name}") for name in ("QPOS", "QVEL", "QACC")]
        return torch.tensor([not any(data.warning[kind].number for kind in kinds) for data in self.data])

    def motion(self, action: Tensor) -> Motion:
        """What the environment would observe, after an action (B, nu), with the goal, memory and time of its own state."""
        z = self.states()
        return Motion(z, z[..., :13], *self.env.mech.to_minimal(z), action, *self.env.state.motion[5:])

    def states(self) -> Tensor:
        """z of all robots, (B, 13 nb), with the velocities of now."""
        return torch.stack([self._state(data) for data in self.data])

    def _state(self, data: Any) -> Tensor:
        position, turn, spatial = (torch.from_numpy(getattr(data, name)[self.bodies]) for name in ("xpos", "xquat", "cvel"))
        center = torch.from_numpy(data.subtree_com[1])  # about which MuJoCo takes the velocities of the tree
        x, spin = position + quat.rotate(turn, self.levers), spatial[:, :3]
        velocity = spatial[:, 3:] + quat.cross(spin, x - center)
        own = quat.multiply(turn, self.turns)
        return join_state(Pose(x, own), Twist(velocity, quat.inverse_rotate(own, spin)))

    def _find_bodies(self, carried: Sequence[int]) -> None:
        """The body of MuJoCo for each of ours, and our frame in its frame, from both robots with all joints at zero."""
        mech, motors = self.env.mech, actuators(self.env.mech)
        number = {name: i for i, name in enumerate(mech.bodies)}
        found = {0: 1}
        for joint, body in zip(motors.joints, carried, strict=True):
            found[number[str(mech.named_joints()[joint].body_names[-1])]] = body
        if sorted(found) != list(range(len(number))):
            raise ValueError(f"transfer: of {list(number)} only {[name for name, i in number.items() if i in found]} have motors")
        self.bodies = np.array([found[i] for i in range(len(number))])
        data = self.data[0]
        self.mujoco.mj_resetData(self.model, data)
        self.zero = data.qpos.copy()
        self.mujoco.mj_forward(self.model, data)
        pose, _ = split_state(mech.to_maximal(torch.zeros(mech.num_coordinates, dtype=torch.float64)))
        masses = torch.stack([cast(Body, body).mass.double() for body in mech.bodies.values()])
        if abs(float(masses.sum()) / self.model.body_mass.sum() - 1) > 0.01:
            raise ValueError(f"transfer: the robot has {float(masses.sum()):.3g} kg, and MuJoCo's {self.model.body_mass.sum():.3g} kg")
        shift = torch.from_numpy(data.subtree_com[1].copy()) - masses @ pose.x / masses.sum()
        position, turn = torch.from_numpy(data.xpos[self.bodies]), torch.from_numpy(data.xquat[self.bodies])
        self.levers = quat.inverse_rotate(turn, pose.x + shift - position)
        self.turns = quat.multiply(quat.conjugate(turn), pose.q)

    def _find_coordinates(self) -> None:
        """A signed permutation from our coordinates to MuJoCo's, found by moving one at a time."""
        data, start, size = self.data[0], 6 if self.free else 0, 7 if self.free else 0

        def coordinates() -> np.ndarray[Any, np.dtype[np.float64]]:
            self.mujoco.mj_forward(self.model, data)
            ours: np.ndarray[Any, np.dtype[np.float64]] = self.env.mech.to_minimal(self._state(data))[0].numpy()
            return ours

        self.ours = coordinates()
        columns = []
        for i in range(size, self.model.nq):
            data.qpos[:] = self.zero
            data.qpos[i] += NUDGE
            columns.append((coordinates() - self.ours)[start:] / NUDGE)
        slopes = np.stack(columns, -1)
        self.to_ours = np.round(slopes)
        if np.abs(slopes - self.to_ours).max() > 1e-3 or np.abs(self.to_ours @ self.to_ours.T - np.eye(len(slopes))).max() > 0:
            raise ValueError(f"transfer: coordinates of {self.env.name!r} are not those of MuJoCo's file up to order and sign")
        rows = np.array(places(self.env.mech)) - start
        self.signs = torch.from_numpy(self.to_ours[rows, self.hinges - start])


def _package(env: Env) -> tuple[Any, Path]:
    """The package mujoco, and the file of the robot."""
    if not isinstance(env, TableEnv) or env.name not in FILES:
        raise ValueError(f"transfer: Gymnasium has no robot file for {env.name or type(env).__name__!r}; allowed: {', '.join(FILES)}")
    try:
        import gymnasium
        import mujoco
    except ImportError as error:
        raise ImportError(f'transfer needs MuJoCo and Gymnasium ({error}): pip install "torchdojo[bench]"') from error
    return mujoco, Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / FILES[env.name]

"""A policy on MuJoCo's robot, without retraining: MuJoCo takes the control steps, and everything else is the environment's.

Observations, rewards, ends of episodes, memory, goals that change, kicks and noise of sensors are those of the environment, with the same
random numbers. For this the poses and velocities of MuJoCo's bodies become a state z. `mujoco_robots.py` says what of the robot is
MuJoCo's, and what is ours.

The robot is that of a file, or the mechanism of the environment written to MJCF. Five environments have the file that comes with
Gymnasium. Hips of its humanoid are three hinges in series, and here one joint with a rotation vector, so drives differ to second order in
their angles.

A control step takes the environment's period. The timestep is the file's, or a little less, so that a whole number fits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from torchdojo.envs import Env, TableEnv
from torchdojo.io.mjcf.model import import_mujoco
from torchdojo.learning.conditions import Conditions
from torchdojo.learning.mujoco_robots import MuJoCoRobots
from torchdojo.learning.rollouts import Evaluation, Policy, evaluate

__all__ = ["FILES", "robots_of", "transfer"]

#: environment -> file of Gymnasium's
FILES = {
    "hopper": "hopper.xml",
    "walker2d": "walker2d_v5.xml",
    "half_cheetah": "half_cheetah.xml",
    "ant": "ant.xml",
    "humanoid": "humanoid.xml",
}


@torch.no_grad()
def transfer(
    env: Env,
    policy: Policy,
    steps: int | None = None,
    *,
    file: str | Path | None = None,
    conditions: Conditions | None = None,
    goal: Tensor | None = None,
    record: bool = False,
) -> Evaluation:
    """One episode of each environment in MuJoCo, from the environment's starts.

    Args:
        env, steps, goal, record: as for `evaluate`. A recording has the normal impulses of contacts with the ground.
        file: MJCF of the robot, with joints named like ours; None: Gymnasium's for its environments, else the mechanism written to MJCF.
        conditions: of both, whose friction, masses, armature and friction of joints the environment gets here.

    Raises:
        ValueError: a file that does not fit the environment, a mechanism that MJCF cannot hold. ImportError: mujoco is not installed.
    """
    with robots_of(env, file, conditions) as robots:
        if record or env.observe_impulses:
            robots.measure()
        result = evaluate(env, policy, steps, goal=goal, record=record, stepper=robots)
    recording = result.recording
    return result if recording is None else dataclasses.replace(result, recording=dataclasses.replace(recording, mass=robots.mass))


@contextmanager
def robots_of(env: Env, file: str | Path | None = None, conditions: Conditions | None = None) -> Iterator[MuJoCoRobots]:
    """Robots under conditions, whose warnings MuJoCo keeps to itself: `MuJoCoRobots.sound` tells, and no file of warnings is written."""
    mujoco = import_mujoco()
    mujoco.set_mju_user_warning(lambda text: None)
    try:
        robots = MuJoCoRobots(env, _gymnasium(env) if file is None else file)
        if conditions:
            conditions.apply(env)
            robots.vary(conditions.change)
        yield robots
    finally:
        mujoco.set_mju_user_warning(None)


def _gymnasium(env: Env) -> Path | None:
    """The file that comes with Gymnasium."""
    if not isinstance(env, TableEnv) or env.name not in FILES:
        return None
    try:
        import gymnasium
    except ImportError as error:
        raise ImportError(f'transfer of {env.name!r} needs the file of Gymnasium ({error}): pip install "torchdojo[bench]"') from error
    return Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / FILES[env.name]

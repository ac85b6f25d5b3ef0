"""Descriptions of runs that need nothing but a robot: `torchdojo train --env locomotion --robot FILE`."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

from torchdojo.envs.anatomy import find_anatomy
from torchdojo.io import load

__all__ = ["BIPEDS", "RECIPES", "recipe"]

#: (environment, algorithm) -> keys of a description. `configs/shac_quadruped.yaml` has the same; tests compare.
RECIPES: dict[tuple[str, str], dict[str, Any]] = {
    ("locomotion", "shac"): {
        "training_options": {
            "noise": 2.0,  # of the starts: falls begin in wild poses
            "pool": 1024,
            "episode_length": 400,
            "kicks": [0.5, 100],
            "sensor_noise": {"noise": "robot", "delay": [0, 1]},
            "randomize": {"contacts.*.friction": [0.5, 1.3], "bodies.*": [0.85, 1.15]},
            "redraw": True,
        },
        "settings": {
            "samples": 1_000_000,
            "num_envs": 64,
            "horizon": 24,
            "gamma": 0.98,
            "lr": 4e-3,
            "reward_scale": 0.05,
            "actor": [128, 64],
            "critic": [128, 64],
            "critic_lr": 1e-3,
            "std": 0.2,
            "saturation": 0.2,
            "symmetric": True,
            "actor_lam": 1.0,
            "adjoint_clip": 200.0,
            "passes": 0,
            "compile": False,  # 20 % slower, but no robot's first run waits for a compiler
        },
    },
}

#: the same for files of robots with two legs, as in `configs/shac_humanoid_walk.yaml`. With starts, kicks and delays of a quadruped, an H1
#: still fell as often after 200,000 samples as at first.
BIPEDS: dict[str, Any] = {
    "env_options": {"gait": "walk", "commands": [[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]},
    "training_options": {
        "noise": 1.0,
        "pool": 1024,
        "episode_length": 150,  # falls happen at starts, which are rare in long episodes
        "resample": 75,
        "sensor_noise": {"noise": "robot"},
        "randomize": {"contacts.*.friction": [0.7, 1.3], "bodies.*": [0.9, 1.1]},
        "redraw": True,
    },
    "settings": {**RECIPES["locomotion", "shac"]["settings"], "samples": 2_000_000, "lr": 2e-3, "adjoint_clip": 300.0, "compile": True},
}


def recipe(env: str, algorithm: str, robot: str | None = None) -> dict[str, Any]:
    """The description of a run of an environment with an algorithm, with settings that are known to work.

    robot: of "locomotion": a file, or the name of a built-in robot.

    Raises:
        ValueError: a robot for an environment that has one already.
    """
    values = {"env": env, "algorithm": algorithm, **copy.deepcopy(RECIPES.get((env, algorithm), {}))}
    if robot is not None:
        if env != "locomotion":
            raise ValueError(f"robot: got {robot!r} for {env!r}, which has its own; allowed: with --env locomotion; leave --robot out")
        file = Path(robot)
        if file.is_file() and algorithm == "shac" and _has_two_legs(file):
            values.update(copy.deepcopy(BIPEDS))
        robot_option = {"robot": str(file.resolve()) if file.is_file() else robot}  # the run may be resumed from elsewhere
        values["env_options"] = {**robot_option, **values.get("env_options", {})}
    return values


def _has_two_legs(file: Path) -> bool:
    """False for files that are refused, too: the environment says why, and takes corrections that this function does not know."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the environment loads the file again, and tells
            return len(find_anatomy(load(file)).legs) == 2
    except (ValueError, OSError):
        return False

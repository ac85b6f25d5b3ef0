"""Descriptions of runs that need nothing but a robot: `torchdojo train --env locomotion --robot FILE`."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

__all__ = ["RECIPES", "recipe"]

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
            "compile": False,  # compiling takes as long as 300,000 samples
        },
    },
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
        values["env_options"] = {"robot": str(file.resolve()) if file.is_file() else robot}  # the run may be resumed from elsewhere
    return values

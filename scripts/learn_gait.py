#!/usr/bin/env python
"""A Unitree A1 learns an open-loop gait of five parameters in 100 episodes, as in Brüdigam et al. (2024), with episodes in batches.

Thighs and calves swing as cosines, a calf a quarter of a period behind its thigh, and diagonal legs together. Servos at all twelve joints
follow. The parameters are the frequency, and swing and middle of thighs and calves. The score is the distance along x in 10 s, zero after a
fall. Servos are implicit, with the largest torque and speed of the motors (33.5 N·m, 21 rad/s); the original has none of that.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import torchdojo as td
from torchdojo.envs import Motion
from torchdojo.envs.motion import upright_and_heading
from torchdojo.learning.hill_climbing import climb
from torchdojo.learning.rollouts import Evaluation, evaluate
from torchdojo.models.unitree import EFFORT, LEGS
from torchdojo.runs.description import load_yaml

PARTS = ("hip", "thigh", "calf")
CONFIG = Path(__file__).resolve().parents[1] / "configs" / "learn_gait.yaml"
HERTZ = 10.0  # unit of the first parameter: what is tried has the same scatter in all of them
PUBLISHED = 12.0  # distance that Brüdigam et al. report [m]


class Gait(td.envs.Env):
    """An A1 whose twelve servos take targets; an action of ±1 is ±π rad."""

    def __init__(self, config: Mapping[str, Any], num_envs: int) -> None:
        self.config = config
        super().__init__(
            num_envs=num_envs,
            timestep=config["timestep"],
            repeat=config["repeat"],
            episode_length=round(config["seconds"] / (config["timestep"] * config["repeat"])),
            pool=1,
            autoreset="disabled",
        )

    def build(self) -> td.Mechanism:
        mech = td.models.quadruped(contact_body=False, velocity_limits=True)
        gains = zip(PARTS, self.config["kp"], self.config["kd"], strict=True)
        servos = {
            f"{leg}_{part}_joint": {"gain": math.pi * kp, "bias": (0.0, -kp, -kd), "forcerange": (-EFFORT, EFFORT)}
            for part, kp, kd in gains
            for leg in LEGS
        }
        order = [f"{leg}_{part}_joint" for leg in LEGS for part in PARTS]
        td.actuate(mech, {name: td.Actuator(name, ctrlrange=(-1.0, 1.0), **servos[name]) for name in order})
        return mech

    def starts(self, count: int) -> Tensor:
        return self.mech.place(self.mech.initial_state((count,), pose="home"), 0.001)

    def reward(self, before: Motion, after: Motion, action: Tensor) -> Tensor:
        return after.root[:, 0] - before.root[:, 0]

    def terminated(self, after: Motion) -> Tensor:
        """Upside down, or on the belly."""
        return (upright_and_heading(after.root)[:, 0] < 0.0) | (after.root[:, 2] < 0.1)

    def targets(self, parameters: Tensor, seconds: Tensor) -> Tensor:
        """Actions (B, 12) of gaits (B, 5) at times (B,)."""
        frequency, swing, middle, calf_swing, calf_middle = parameters.unbind(-1)
        phase = 2.0 * math.pi * HERTZ * frequency * seconds
        legs = []
        for leg in LEGS:
            p = phase if leg in ("FR", "RL") else phase + math.pi
            thigh, calf = middle + swing * torch.cos(p), calf_middle + calf_swing * torch.cos(p - 0.5 * math.pi)
            legs += [torch.zeros_like(thigh), thigh, calf]
        return torch.stack(legs, -1) / math.pi

    def walk(self, parameters: Tensor, *, record: bool = False) -> Evaluation:
        """An episode of each of the gaits (B, 5)."""
        return evaluate(self, lambda obs: self.targets(parameters, self.state.time * self.period), record=record)


def learn(config: Mapping[str, Any]) -> dict[str, Any]:
    """Search; numbers for the report."""
    env, begin = Gait(config, config["batch"]), time.process_time()

    def distances(parameters: Tensor) -> Tensor:
        walked = env.walk(parameters)
        result = torch.where(walked.survived, walked.distances, 0.0)
        print(f"  {len(result)} episodes: {int((~walked.survived).sum())} falls, farthest {float(result.max()):6.2f} m", flush=True)
        return result

    start = torch.tensor(config["start"], dtype=torch.float64)
    found = climb(distances, start, **{name: config[name] for name in ("episodes", "batch", "explore", "seed")})
    best = found.best * torch.tensor((HERTZ, 1.0, 1.0, 1.0, 1.0), dtype=torch.float64)
    names = ("frequency_hz", "thigh_swing_rad", "thigh_middle_rad", "calf_swing_rad", "calf_middle_rad")
    return {
        "distance_m": found.score,
        "episodes": len(found.scores),
        "falls_or_no_way": int((found.scores <= 0).sum()),
        "flagged": env.statistics["flagged"],
        "cpu_seconds": time.process_time() - begin,
        "parameters": dict(zip(names, best.tolist(), strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", nargs="?", type=Path, default=CONFIG, help="description (.yaml)")
    parser.add_argument("--seed", type=int, help="of the search, instead of the description's")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object, the last line")
    parser.add_argument("--html", metavar="FILE", help="write a page that shows the gait")
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = load_yaml(options.config)
    if options.seed is not None:
        config["seed"] = options.seed
    report = learn(config)
    gait = ", ".join(f"{name} {value:.3f}" for name, value in report["parameters"].items())
    print(
        f"{report['distance_m']:.2f} m in {config['seconds']:g} s after {report['episodes']} episodes ({report['cpu_seconds']:.0f} CPU-s, "
        f"{report['flagged']} steps flagged); published: > {PUBLISHED:g} m. {gait}"
    )
    if options.html:
        env = Gait(config, 1)
        parameters = torch.tensor([list(report["parameters"].values())], dtype=torch.float64)
        parameters[:, 0] /= HERTZ
        walked = env.walk(parameters, record=True)
        assert walked.recording is not None
        page = env.mech.animate(walked.recording.z[:, 0], options.html, repeat=env.repeat, title="A learned gait")
        print(f"to see it: open {page.path}")
    if options.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()

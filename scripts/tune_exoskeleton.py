#!/usr/bin/env python
"""The gains of an exoskeleton's motors are tuned on a reaching movement: by search and along gradients.

Brüdigam et al. (2024) tune theirs by hand. The arm in its exoskeleton is Dojo's model (17 kg, three hinges of the shoulder and one of the
elbow). Each motor has a proportional and a derivative gain and no feedforward, so errors have to hold the weight. An episode follows a
smooth reference from one pose to another. Its cost is the mean squared error of the joints, with a little of the squared torques. Search
and descent change the logarithms of eight gains.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import torchdojo as td
from torchdojo.envs import Motion
from torchdojo.learning.hill_climbing import climb
from torchdojo.runs.description import load_yaml

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "configs" / "tune_exoskeleton.yaml"
MODEL = Path(os.environ.get("TORCHDOJO_SHARED") or ROOT.parent / "shared") / "models" / "exoskeleton" / "exoskeleton.urdf"


class Exoskeleton(td.envs.Env):
    """An arm in an exoskeleton that follows a reference. Actions are fractions of the largest torques."""

    def __init__(self, config: Mapping[str, Any], model: Path, num_envs: int) -> None:
        self.config, self.model = config, model
        self.start, self.end, self.effort = (torch.tensor(config[key], dtype=torch.float64) for key in ("from", "to", "effort"))
        self.target = self.start  # where the reference is at the end of the control step, in all environments
        super().__init__(
            num_envs=num_envs,
            timestep=config["timestep"],
            repeat=config["repeat"],
            episode_length=round(config["seconds"] / (config["timestep"] * config["repeat"])),
            pool=1,
            autoreset="disabled",
        )

    def build(self) -> td.Mechanism:
        mech = td.load(self.model, floating_base=False, contacts=None)
        torques = zip(mech.input_layout, self.config["effort"], strict=True)
        td.actuate(mech, {name: td.Actuator.motor(name, gear=effort, ctrlrange=(-1.0, 1.0)) for name, effort in torques})
        return mech

    def starts(self, count: int) -> tuple[Tensor, Tensor]:
        q = self.start.expand(count, -1)
        return q, torch.zeros_like(q)

    def reference(self, seconds: float) -> Tensor:
        """Joint angles with the least jerk (Flash and Hogan 1985), (4,)."""
        s = min(1.0, seconds / self.config["arrival"])
        return self.start + (10 * s**3 - 15 * s**4 + 6 * s**5) * (self.end - self.start)

    def reward(self, before: Motion, after: Motion, action: Tensor) -> dict[str, Tensor]:
        torque = action.clamp(-1.0, 1.0) * self.effort
        return {"error": -(after.q - self.target).square().mean(-1), "torque": -self.config["torque_cost"] * torque.square().sum(-1)}

    def cost(self, gains: Tensor) -> tuple[Tensor, Tensor]:
        """Costs (B,) and root-mean-square errors (B,) [rad] of episodes with the gains exp(gains), (B, 8): kp, then kd."""
        kp, kd = gains.exp().chunk(2, -1)
        self.reset()
        cost, error = torch.zeros(self.num_envs, dtype=torch.float64), torch.zeros(self.num_envs, dtype=torch.float64)
        for k in range(self.episode_length):
            self.target = self.reference((k + 1) * self.period)
            torque = kp * (self.reference(k * self.period) - self.state.q) - kd * self.state.qd
            out = self.step(torque / self.effort)
            cost = cost - torch.where(out.info["flagged"], -1.0, out.reward)
            error = error - out.info["terms"]["error"]
        return cost / self.episode_length, (error / self.episode_length).sqrt()


def tune(config: Mapping[str, Any], model: Path) -> dict[str, Any]:
    """Search and descent; numbers for the report."""
    first = torch.tensor([*config["kp"], *config["kd"]], dtype=torch.float64).log()
    many, one = (Exoskeleton(config, model, count) for count in (config["batch"], 1))
    with torch.no_grad():
        before = one.cost(first[None])
    begin = time.process_time()
    options = {name: config[name] for name in ("episodes", "batch", "explore", "seed")}
    found = climb(lambda gains: -many.cost(gains)[0], first, **options)
    middle = time.process_time()
    gains = first.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([gains], lr=config["lr"])
    best, least = first, float(before[0])
    for _ in range(config["steps"]):
        optimizer.zero_grad()
        cost = one.cost(gains[None])[0].sum()
        if cost.item() < least:
            best, least = gains.detach().clone(), cost.item()
        cost.backward()
        optimizer.step()
    end = time.process_time()
    results = {
        "before": (first, 0, 0.0),
        "search": (found.best, config["episodes"], middle - begin),
        "gradients": (best, config["steps"], end - middle),
    }
    report: dict[str, Any] = {"flagged": many.statistics["flagged"] + one.statistics["flagged"]}
    for name, (values, episodes, seconds) in results.items():
        with torch.no_grad():
            cost, error = one.cost(values[None])
        kp, kd = values.exp().chunk(2)
        report[name] = {
            "cost": float(cost),
            "error_rad": float(error),
            "episodes": episodes,
            "cpu_seconds": seconds,
            "kp": kp.tolist(),
            "kd": kd.tolist(),
        }
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", nargs="?", type=Path, default=CONFIG, help="description (.yaml)")
    parser.add_argument(
        "--model", type=Path, default=MODEL, metavar="FILE", help="Dojo's exoskeleton (.urdf); default: in $TORCHDOJO_SHARED"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object, the last line")
    options = parser.parse_args()
    if not options.model.is_file():
        raise SystemExit(
            f"no file {options.model}; give the exoskeleton of Dojo's models, --model FILE, or the folder in $TORCHDOJO_SHARED"
        )
    torch.set_num_threads(1)
    report = tune(load_yaml(options.config), options.model)
    for name in ("before", "search", "gradients"):
        row = report[name]
        gains = ", ".join(f"{label} {' '.join(f'{value:.0f}' for value in row[label])}" for label in ("kp", "kd"))
        spent = f"{row['episodes']:4d} episodes, {row['cpu_seconds']:5.1f} CPU-s"
        print(f"{name:<9} {spent}: error {row['error_rad']:.4f} rad, cost {row['cost']:.5f}; {gains}")
    print(f"{report['flagged']} steps flagged")
    if options.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()

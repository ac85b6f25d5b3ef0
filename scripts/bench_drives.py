#!/usr/bin/env python
"""Time of steps, rollouts and gradients of an arm with four muscles, over those of the arm without: `python scripts/bench_drives.py`.

The muscles pull at the joints (`td.envs.MuscleArm`), or at four strings through sites. The arm without makes the same motion under given
torques. CPU time of one thread, best of several rounds that alternate between both.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import torchdojo as td
from torchdojo.envs.muscles import JOINTS, MUSCLES

STEPS = 10  # of rollouts


def plain_arm() -> td.Mechanism:
    """The arm of `td.envs.MuscleArm` without muscles."""
    mech = td.envs.MuscleArm(num_envs=1).mech
    mech.drives = None
    return mech


def joints_arm() -> td.Mechanism:
    """Its muscles at the joints."""
    return td.envs.MuscleArm(num_envs=1).mech


def strings_arm() -> td.Mechanism:
    """Muscles along strings: a flexor and an extensor at each joint, through three sites each."""
    plain = plain_arm()
    shoulder, elbow = plain.joints["shoulder"].parent_anchor, plain.joints["elbow"].parent_anchor
    base, reach = torch.as_tensor(shoulder), float(torch.as_tensor(elbow)[0])
    tendons = {}
    for joint, (first, middle, last) in {"shoulder": (None, None, "upper"), "elbow": ("upper", "upper", "fore")}.items():
        arm = MUSCLES[joint][0]
        for name, side in (("flexor", 1.0), ("extensor", -1.0)):
            if joint == "shoulder":
                points = [base + torch.tensor([-0.1, side * arm, 0.0]), base + torch.tensor([0.0, side * arm, 0.0])]
                end = torch.tensor([-0.05, side * arm, 0.0])
            else:
                points = [torch.tensor([reach - 0.2, side * arm, 0.0]), torch.tensor([reach, side * arm, 0.0])]
                end = torch.tensor([-0.1, side * arm, 0.0])
            path = [td.Site(first, points[0]), td.Site(middle, points[1]), td.Site(last, end)]
            tendons[f"{joint}_{name}"] = td.SpatialTendon(path, actuated=True)
    parts = dict(plain.bodies.items()), dict(plain.joints.items())
    mech = td.Mechanism(*parts, tendons=tendons, timestep=float(plain.timestep), options=plain.options)
    drives = {name: td.Drive.muscle(tendon=name, lengths=(0.1, 0.45), force=MUSCLES[name.partition("_")[0]][1]) for name in tendons}
    mech.drives = td.Drives(mech, drives)
    return mech


def postures(mech: td.Mechanism, batch: int) -> Tensor:
    low, high = torch.tensor([*JOINTS.values()], dtype=torch.float64).mT
    q = low + 0.4 + (high - low - 0.8) * torch.rand(batch, 2, dtype=torch.float64)
    return mech.to_maximal(q, 0.1 * torch.randn(batch, 2, dtype=torch.float64)).detach()


def calls(mech: td.Mechanism, batch: int) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """The timed functions by name: without the drives, and with them."""
    torch.manual_seed(0)
    plain, drives = plain_arm(), mech.drives
    z, leaf = postures(mech, batch), postures(mech, batch).requires_grad_()
    ctrl, act = torch.rand(batch, STEPS, 4, dtype=torch.float64), torch.rand(batch, 4, dtype=torch.float64)
    given = ctrl.clone().requires_grad_()
    with torch.no_grad():
        u = torch.stack([torques(mech, *state) for state in motion(mech, z, ctrl, act)], dim=-2)
    loss = u.clone().requires_grad_()
    return {
        "step": (lambda: plain.step(z, u[:, 0]), lambda: drives.step(z, ctrl[:, 0], act)),
        "rollout": (lambda: plain.rollout(z, u), lambda: drives.rollout(z, ctrl, act)),
        "step + backward": (
            lambda: plain.step(leaf, loss[:, 0]).z.sum().backward(),
            lambda: drives.step(leaf, given[:, 0], act).out.z.sum().backward(),
        ),
        "rollout + backward": (
            lambda: plain.rollout(leaf, loss).z[:, -1].sum().backward(),
            lambda: drives.rollout(leaf, given, act).path.z[:, -1].sum().backward(),
        ),
    }


def motion(mech: td.Mechanism, z: Tensor, ctrl: Tensor, act: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """State, control and activation before each step."""
    out = mech.drives.rollout(z, ctrl, act)
    return zip(out.path.z[:, :-1].unbind(1), ctrl.unbind(1), out.act[:, :-1].unbind(1), strict=True)


def torques(mech: td.Mechanism, z: Tensor, ctrl: Tensor, act: Tensor) -> Tensor:
    """Torques of the joints (batch, 2) that the muscles make."""
    u = mech.drives.inputs(ctrl, act, z)[0]
    return u if not mech.tendons else u[:, :2] + (u[:, 2:, None] * mech.tendon_moment_arms(mech.to_minimal(z)[0])).sum(1)


def seconds(call: Callable[[], object], least: float) -> float:
    """CPU time of a call, over calls that take `least` seconds together."""
    count = 1
    while True:
        start = time.process_time()
        for _ in range(count):
            call()
        spent = time.process_time() - start
        if spent > least:
            return spent / count
        count *= 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--least", type=float, default=0.05, help="seconds of a measurement")
    parser.add_argument("--muscles", nargs="+", default=["joints", "strings"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    for batch in options.batch:
        for kind in options.muscles:
            timed = calls({"joints": joints_arm, "strings": strings_arm}[kind](), batch)
            for name, pair in timed.items():
                best = [math.inf, math.inf]
                for _ in range(options.rounds):
                    best = [min(least, seconds(call, options.least)) for least, call in zip(best, pair, strict=True)]
                plain, own = best
                print(f"{batch:5d} {kind:8s} {name:20s} {1e6 * plain:9.0f} µs {1e6 * own:9.0f} µs  {own / plain:.2f}", flush=True)


if __name__ == "__main__":
    main()

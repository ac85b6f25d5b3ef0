#!/usr/bin/env python
"""Time of steps, rollouts and gradients of arms with muscles, over those of the arms without: `python scripts/bench_drives.py`.

Four muscles pull at the two joints of `td.envs.MuscleArm` ("joints"), or at four strings through sites ("strings"). The third arm, "seven",
has seven joints and eight strings around cylinders with sides. The arms without make the same motion under given torques.

CPU time of one thread. Both alternate call by call, so that other load falls on both alike. A ratio is the median over all pairs. Steps and
rollouts show their Newton iterations a step, too.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import torchdojo as td
from torchdojo.envs.muscles import JOINTS, MUSCLES

STEPS = 10  # of rollouts
LINKS, LENGTH = 7, 0.2  # of the larger arm [m]


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


def plain_seven() -> td.Mechanism:
    """Seven links of 1 kg on hinges whose axes alternate."""
    bodies, joints, parent = {}, {}, None
    for k in range(LINKS):
        bodies[f"link{k}"] = td.Body(1.0, (1e-3, 4e-3, 4e-3))
        anchor, axis = (0.5 * LENGTH if k else 0.0, 0.0, 0.0), (0.0, 1.0, 0.0) if k % 2 else (0.0, 0.0, 1.0)
        ends = {"parent_anchor": anchor, "child_anchor": (-0.5 * LENGTH, 0.0, 0.0)}
        joints[f"joint{k}"] = td.Revolute(parent, f"link{k}", axis=axis, limits=(-2.5, 2.5), damper=1.0, **ends)
        parent = f"link{k}"
    return td.Mechanism(bodies, joints, timestep=0.01)


def seven_arm() -> td.Mechanism:
    """A muscle over each of its joints and one over two, along strings around cylinders at the joints."""
    plain = plain_seven()

    def site(k: int, x: float, joint: int, height: float, orientation: tuple[float, ...] = (1.0, 0.0, 0.0, 0.0)) -> td.Site:
        """On link k (-1: the world) at x, `height` beside the joint's axis."""
        return td.Site(f"link{k}" if k >= 0 else None, (x, 0.0, height) if joint % 2 else (x, height, 0.0), orientation)

    tendons = {}
    for k in range(LINKS + 1):
        first, last = (k - 1, k) if k < LINKS else (1, 3)
        path: list[td.Site | td.Wrap] = [site(first, 0.04 if first >= 0 else -0.06, first + 1, 0.03)]
        for joint in range(first + 1, last + 1):
            turn = (0.5**0.5, -(0.5**0.5), 0.0, 0.0) if joint % 2 else (1.0, 0.0, 0.0, 0.0)  # the axis of the cylinder is that of the joint
            anchor = 0.5 * LENGTH if joint else 0.0
            path.append(td.Wrap(site(joint - 1, anchor, joint, 0.0, turn), 0.02, "cylinder", side=site(joint - 1, anchor, joint, 0.03)))
            path.append(site(joint, -0.04, joint, 0.03))
        tendons[f"string{k}"] = td.SpatialTendon(path, actuated=True)
    parts = dict(plain.bodies.items()), dict(plain.joints.items())
    mech = td.Mechanism(*parts, tendons=tendons, timestep=float(plain.timestep), options=plain.options)
    mech.drives = td.Drives(mech, {name: td.Drive.muscle(tendon=name, lengths=(0.06, 0.3), force=60.0) for name in tendons})
    return mech


KINDS = {"joints": (plain_arm, joints_arm), "strings": (plain_arm, strings_arm), "seven": (plain_seven, seven_arm)}  # without, with


def postures(mech: td.Mechanism, batch: int) -> Tensor:
    count = len(mech.joints)
    bounds = [*JOINTS.values()] if count == len(JOINTS) else [(-1.2, 1.2)] * count
    low, high = torch.tensor(bounds, dtype=torch.float64).mT
    q = low + 0.4 + (high - low - 0.8) * torch.rand(batch, count, dtype=torch.float64)
    return mech.to_maximal(q, 0.1 * torch.randn(batch, count, dtype=torch.float64)).detach()


def calls(plain: td.Mechanism, mech: td.Mechanism, batch: int) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """The timed functions by name: without the drives, and with them."""
    torch.manual_seed(0)
    drives, count = mech.drives, len(mech.drives.names)
    z, leaf = postures(mech, batch), postures(mech, batch).requires_grad_()
    ctrl, act = torch.rand(batch, STEPS, count, dtype=torch.float64), torch.rand(batch, count, dtype=torch.float64)
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
    """Torques of the joints (batch, nj) that the muscles make."""
    u, count = mech.drives.inputs(ctrl, act, z)[0], len(mech.joints)
    return u if not mech.tendons else u[:, :count] + (u[:, count:, None] * mech.tendon_moment_arms(mech.to_minimal(z)[0])).sum(1)


def iterations(result: object) -> str:
    """Mean Newton iterations a step of a result; empty for calls that return none."""
    out = getattr(result, "out", getattr(result, "path", result))
    return f"{out.iterations.double().mean():.1f}" if hasattr(out, "iterations") else ""


def seconds(call: Callable[[], object], count: int) -> float:
    """CPU time of one of `count` calls."""
    start = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - start) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--rounds", type=int, default=60, help="pairs of measurements (default: 60)")
    parser.add_argument("--least", type=float, default=0.004, help="seconds of a measurement, about")
    parser.add_argument("--muscles", nargs="+", choices=KINDS, default=list(KINDS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for batch in options.batch:
        for kind in options.muscles:
            plain, muscled = KINDS[kind]
            for name, pair in calls(plain(), muscled(), batch).items():
                counts = [max(1, round(options.least / max(seconds(call, 2), 1e-6))) for call in pair]
                gc.collect()
                gc.disable()
                rounds = [[seconds(call, count) for call, count in zip(pair, counts, strict=True)] for _ in range(options.rounds)]
                gc.enable()
                without, own = (1e6 * statistics.median(times) for times in zip(*rounds, strict=True))
                ratio = statistics.median(second / first for first, second in rounds)
                counted = " and ".join(filter(None, (iterations(call()) for call in pair)))
                line = f"{batch:5d} {kind:8s} {name:20s} {without:9.0f} µs {own:9.0f} µs  {ratio:.2f}"
                print(f"{line}  {counted} iterations" if counted else line, flush=True)
    print("load:", *(f"{load:.1f}" for load in os.getloadavg()))


if __name__ == "__main__":
    main()

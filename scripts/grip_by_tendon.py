#!/usr/bin/env python
"""Three fingers of a hand grip a ball and lift it, pulled by one string.

    scripts/grip_by_tendon.py                              # finds the pull that grips as hard as wanted, and lifts
    scripts/grip_by_tendon.py --force 4 --html grip.html   # another force on the ball [N], and a page that shows the motion
    scripts/grip_by_tendon.py --video grip.webp            # a picture that moves

The string runs from the hand along the inner side of both links of a finger. A pulley shares it between the fingers, so that all pull alike
wherever the ball lies. Springs at the joints open the hand. A winch pulls with a delay, a servo moves the hand up.

Newton's method finds the pull: contact, friction and string have derivatives, so that a few grasps suffice.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import torchdojo as td

TIMESTEP = 0.005  # [s]
HAND = (0.1, 0.1, 0.03)  # [m]
FINGERS = 3
BALL = 0.04  # radius [m]
LINKS = {"near": 0.05, "far": 0.04}  # lengths of the links of a finger [m]
THICK = 0.008  # radius of a link [m]
ARM = 0.012  # of the string about the joints of straight fingers [m]
KNUCKLE = (0.05, -0.015)  # from the center of the hand, outward and up [m]
HEIGHT = 0.11  # of the hand's center over the ground [m]
LIFT = 0.1  # [m]
WINCH = 60.0  # largest pull [N]
DELAY = 0.05  # time constant of the winch [s]
STIFF, BRAKE = 2000.0, 60.0  # of the servo that raises the hand [N/m], [N·s/m]
GRIP, RISE, HOLD = 0.6, 0.8, 0.6  # how long the hand grips, rises and holds [s]
CLOSE = 0.01  # relative to the wanted force, at which a grasp is found


class Grasp(NamedTuple):
    """A motion: states as a trajectory, forces of the links on the ball [N] at the end of the grip, the height of the ball [m]."""

    path: td.Trajectory
    forces: dict[str, Tensor]
    height: Tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--force", type=float, default=6.0, help="sum of the forces of the links on the ball [N], up to about 12")
    parser.add_argument("--html", help="page to write")
    parser.add_argument("--video", help="video or picture to write, .mp4, .webp, ...")
    options = parser.parse_args()
    start = time.perf_counter()
    hand = build()
    pull, grasps = find(hand, options.force)
    with torch.no_grad():
        lifted = grip(hand, pull, GRIP + RISE + HOLD)
    seconds = time.perf_counter() - start
    print(f"a pull of {WINCH * float(pull):.1f} N presses with {options.force:g} N: found in {grasps} grasps, {seconds:.1f} s")
    print("  " + ", ".join(f"{name} {float(force):.2f} N" for name, force in lifted.forces.items()))
    print(f"the hand rises by {100 * LIFT:g} cm, and the ball by {100 * float(lifted.height - BALL):.2f} cm, up to the palm")
    if options.html:
        hand.animate(lifted.path, options.html, title="A hand pulled by one string")
    if options.video:
        from torchdojo.viewer.video import write_video  # needs the extra "view"

        write_video(hand.animate(lifted.path).playbacks, options.video, size=(280, 210), fps=15, forces=False)


def build() -> td.Mechanism:
    """The hand over a ball on the ground, with `mech.drives`: "winch", from 0 to 1, and "height" [m]."""
    bodies = {
        "hand": td.Body(0.3, shape=td.Box(HAND)),
        "ball": td.Body(0.1, shape=td.Sphere(BALL), visuals=[td.Visual("sphere", (BALL,), color=(0.9, 0.6, 0.2, 1.0))]),
    }
    joints: dict[str, td.Joint] = {
        "lift": td.Prismatic(None, "hand", axis=(0, 0, 1), parent_anchor=(0, 0, HEIGHT)),
        "free": td.Floating(None, "ball", actuated=False),
    }
    palm = td.NonlinearContact("ball", shape=td.Sphere(BALL), other="hand", other_shape=td.Box(HAND), friction=0.8)
    contacts = {"ground": td.NonlinearContact("ball", radius=BALL, friction=0.8), "palm": palm}
    path: list[td.Site | td.Pulley] = []
    for i in range(FINGERS):
        angle = 2 * math.pi * i / FINGERS
        outward, axis = (math.cos(angle), math.sin(angle)), (-math.sin(angle), math.cos(angle), 0.0)

        def place(out: float, up: float, outward: tuple[float, float] = outward) -> tuple[float, float, float]:
            return out * outward[0], out * outward[1], up

        parent, anchor = "hand", place(*KNUCKLE)
        path += [td.Pulley(float(FINGERS)), td.Site("hand", place(KNUCKLE[0] - ARM, KNUCKLE[1] + ARM))]
        for link, length in LINKS.items():
            name, capsule = f"{link} {i}", td.Capsule(THICK, length)
            bodies[name] = td.Body(0.03, shape=capsule, visuals=drawing(link, length, place))
            joints[name] = td.Revolute(
                parent, name, axis=axis, parent_anchor=anchor, child_anchor=(0, 0, length / 2), actuated=False,
                spring=0.06, rest=-0.5 if link == "near" else 0.2, damper=2e-3, limits=(-0.6, 1.8),
            )  # fmt: skip
            contacts[name] = td.NonlinearContact("ball", shape=td.Sphere(BALL), other=name, other_shape=capsule, friction=0.8)
            path += [td.Site(name, place(-ARM, up * (length / 2 - ARM))) for up in ((1, -1) if link == "near" else (1,))]
            parent, anchor = name, (0.0, 0.0, -length / 2)
    string = td.SpatialTendon(path, actuated=True, damping=5.0, armature=0.05)
    mech = td.Mechanism(bodies, joints, contacts, tendons={"string": string}, timestep=TIMESTEP)
    servo = td.Drive(joint="lift", gain_numbers=(STIFF, 0.0, 0.0), bias_numbers=(0.0, -STIFF, -BRAKE))
    winch = td.Drive(tendon="string", gain_numbers=(-WINCH, 0.0, 0.0), dynamics="filter", dynamics_numbers=(DELAY,), ctrlrange=(0.0, 1.0))
    mech.drives = td.Drives(mech, {"winch": winch, "height": servo})
    return mech


def drawing(link: str, length: float, place: Callable[[float, float], tuple[float, float, float]]) -> list[td.Visual]:
    """A link with the part of the string that lies along it. Between two links, nothing is drawn of the string."""
    string = (0.75, 0.1, 0.1, 1.0)
    upper = length / 2 - ARM
    knot = td.Visual("sphere", (0.003,), place(-ARM, upper), color=string)
    along = td.Visual("cylinder", (0.0015, 2 * upper), place(-ARM, 0.0), color=string)
    return [td.Visual("capsule", (THICK, length)), knot, *([along] if link == "near" else [])]


def grip(hand: td.Mechanism, pull: Tensor, seconds: float) -> Grasp:
    """Close the hand with a control of the winch, (), and raise it after `GRIP`."""
    times = TIMESTEP * torch.arange(round(seconds / TIMESTEP), dtype=torch.float64)
    rise = ((times - GRIP) / RISE).clamp(0, 1)
    ctrl = torch.stack((pull.expand_as(times), LIFT * rise**2 * (3 - 2 * rise)), dim=-1)
    coordinates: dict[str, Any] = {"free": {"q": (0.004, 0, BALL, 0, 0, 0)}, **{f"near {i}": {"q": -0.3} for i in range(FINGERS)}}
    assert hand.drives is not None  # `build` made them
    path = hand.drives.rollout(hand.initial_state(**coordinates), ctrl).path
    assert bool((path.status == td.Status.SUCCESS).all()), "a step was flagged"
    last = round(GRIP / TIMESTEP) - 1
    forces = hand.contact_forces(path.z[last + 1], path.impulses[last])
    return Grasp(
        path,
        {name: force.norm() for name, force in forces.items() if name not in ("ground", "palm")},
        hand.body_state(path.z[-1], "ball").x[2],
    )


def find(hand: td.Mechanism, wanted: float) -> tuple[Tensor, int]:
    """The control of the winch that presses the ball with the wanted sum of forces [N], and how many grasps that took."""
    pull = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    for count in range(1, 11):
        force = torch.stack(list(grip(hand, pull, GRIP).forces.values())).sum()
        if abs(float(force.detach()) / wanted - 1) < CLOSE:
            return pull.detach(), count
        (slope,) = torch.autograd.grad(force, pull)
        pull = (pull.detach() + (wanted - force.detach()) / slope).clamp(0.0, 1.0).requires_grad_()
    raise SystemExit(
        f"found no pull of up to {WINCH:g} N that presses with {wanted:g} N; the last one pressed with {float(force.detach()):.2f} N"
    )


if __name__ == "__main__":
    main()

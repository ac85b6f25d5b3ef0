"""Print the cost of fast spins and violent inputs, of stiff springs in loops, and of Jacobians of split steps.

    python scripts/bench_violent.py [spins] [loops] [jacobians] [--environments 16]

`spins`: a quadruped without joint limits under random torques of ±30 N·m. The bound is three times the cost of an ordinary substep, which
the first row has. `loops`: planar four-bars closed by ball joints in space, with implicit springs of 1,500 N·m/rad on links of
0.01 kg·m². The joints of a loop miss each other by `misfit`: the anchors of the balls leave the plane by as many meters, and some hinges
tilt by as many radians. The bounds are 12 iterations in the mean, no flagged step, and no gap above twice the misfit.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time

import torch
from torch import Tensor

import torchdojo as td

LENGTH, WIDTH = 0.4, 0.25  # of the links that hang from the base, and between them [m]
SPRING = 1500.0


def spins(environments: int) -> None:
    print(f"{'h [ms]':>8} {'split %':>8} {'substeps':>9} {'flagged':>8} {'iterations':>11} {'ms/step':>8} {'ms/substep':>11} {'ratio':>6}")
    ordinary = 0.0
    for h in (0.005, 0.01, 0.02):
        mech = td.models.quadruped(timestep=h)
        z = mech.place(mech.initial_state((environments,)), clearance=0.05)
        u = 60 * torch.rand(environments, int(0.5 / h), mech.num_inputs) - 30
        mech.rollout(z, u[:, :2])
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            path = mech.rollout(z, u)
            times.append(time.perf_counter() - begin)
        seconds, parts, steps = sorted(times)[1], int(path.substeps.sum()), path.status.numel()
        ordinary = ordinary or seconds / parts
        print(
            f"{1e3 * h:8.1f} {100 * float((path.substeps > 1).double().mean()):8.1f} {parts / steps:9.2f} "
            f"{int((path.status != 0).sum()):8d} "
            f"{float(path.iterations.sum()) / parts:11.2f} {1e3 * seconds / steps:8.3f} {1e3 * seconds / parts:11.4f} "
            f"{seconds / parts / ordinary:6.2f}"
        )


def four_bars(h: float, floating: bool, limits: bool, count: int = 4, misfit: float = 0.0) -> tuple[td.Mechanism, Tensor]:
    """`count` four-bars in parallel planes under a base, and the state in which they are assembled.

    Ball joints hold a fourth row that repeats what the hinges hold. Their anchors leave the plane by `misfit` [m], and the axes of the rear
    hinges by `misfit` [rad].
    """
    base = "base" if floating else None
    bodies: dict[str, td.Body] = {"base": td.Body(10.0, (0.4, 0.4, 0.4))} if floating else {}
    joints: dict[str, td.Joint] = {"free": td.Floating(None, "base")} if floating else {}
    poses: dict[str, tuple[tuple[float, float, float], float]] = {"base": ((0.0, 0.0, 0.0), 0.0)}
    contacts: dict[str, td.Contact] = {}

    def hinge(parent: str | None, child: str, at: tuple[float, float, float], end: float, rest: float, tilt: float = 0.0) -> td.Joint:
        return td.Revolute(
            parent,
            child,
            axis=(1.0, tilt, tilt),
            parent_anchor=at,
            child_anchor=(0.0, 0.0, end),
            spring=SPRING,
            implicit=True,
            rest=rest,
            limits=(rest - 0.3, rest + 0.3) if limits else None,
        )

    for k in range(count):
        x, y = (-0.2, 0.2)[k % 2], (-0.4, 0.15)[k // 2]
        for name, where, angle in (
            ("front", (x, y, -LENGTH / 2), 0.0),
            ("coupler", (x, y + WIDTH / 2, -LENGTH), math.pi / 2),
            ("rear", (x, y + WIDTH, -LENGTH / 2), 0.0),
        ):
            bodies[f"{name}{k}"], poses[f"{name}{k}"] = td.Body(0.3, (0.01, 0.01, 0.002)), (where, angle)
        joints[f"hip{k}"] = hinge(base, f"front{k}", (x, y, 0.0), LENGTH / 2, 0.0)
        joints[f"knee{k}"] = hinge(f"front{k}", f"coupler{k}", (0.0, 0.0, -LENGTH / 2), WIDTH / 2, math.pi / 2)
        joints[f"rear_hip{k}"] = hinge(base, f"rear{k}", (x, y + WIDTH, 0.0), LENGTH / 2, 0.0, misfit)
        joints[f"ball{k}"] = td.Spherical(
            f"coupler{k}", f"rear{k}", parent_anchor=(misfit, 0.0, -WIDTH / 2), child_anchor=(0.0, 0.0, -LENGTH / 2), actuated=False
        )
        if floating:
            contacts[f"foot{k}"] = td.NonlinearContact(f"rear{k}", point=(0.0, 0.0, -LENGTH / 2 - 0.1), friction=0.8)
    mech = td.Mechanism(bodies, joints, contacts, timestep=h)
    rows = []
    for name in mech.bodies:
        where, angle = poses[name]
        height = 0.55 if floating else 0.0
        rows += [*where[:2], where[2] + height, 0, 0, 0, math.cos(angle / 2), math.sin(angle / 2), 0, 0, 0, 0, 0]
    return mech, torch.tensor(rows)


def loops(environments: int, torque: float = 5.0) -> None:
    names = ("base", "limits", "misfit", "h [ms]", "iterations", "largest", "split", "flagged", "gap [m]")
    print(" ".join(f"{name:>10}" for name in names))
    worst = 0.0
    for floating, limits, misfit in itertools.product((False, True), (False, True), (0.0, 1e-9, 1e-6, 1e-4)):
        for h in (0.0005, 0.001, 0.002, 0.005, 0.01):
            mech, z = four_bars(h, floating, limits, misfit=misfit)
            u = torque * torch.randn(environments, 60, mech.num_inputs)
            if floating:
                u[..., :6] = 0
            path = mech.rollout(z.expand(environments, -1), u)
            mean = float(path.iterations.double().mean())
            worst = max(worst, mean)
            print(
                f"{'floating' if floating else 'fixed':>10} {'yes' if limits else 'no':>10} {misfit:10.0e} {1e3 * h:10.1f} {mean:10.2f} "
                f"{int(path.iterations.max()):10d} {int((path.substeps > 1).sum()):10d} {int((path.status != 0).sum()):10d} "
                f"{float(mech.joint_errors(path.z).abs().max()):10.1e}"
            )
    print(f"at most {worst:.1f} iterations in the mean")


def jacobians(environments: int) -> None:
    print(f"{'spin [rad/s]':>13} {'substeps':>9} {'jacobians [ms]':>15} {'jacobians_minimal [ms]':>23} {'not finite':>11}")
    mech = td.Mechanism({"a": td.Body(1.0, (0.1, 0.15, 0.2)), "b": td.Body(1.0, (0.1, 0.1, 0.1))}, timestep=0.02)
    for spin in (10.0, 94.0, 190.0, 400.0):
        z = mech.initial_state((environments,))
        z[..., 12] = spin
        times, values = [], list[Tensor]()
        q, qd = mech.to_minimal(z)
        for call, given in ((mech.jacobians, (z,)), (mech.jacobians_minimal, (q, qd))):
            call(*given)
            begin = time.perf_counter()
            values += call(*given)
            times.append(1e3 * (time.perf_counter() - begin))
        bad = sum(int((~torch.isfinite(t)).sum()) for t in values)
        print(f"{spin:13.0f} {int(mech.step(z).substeps.max()):9d} {times[0]:15.3f} {times[1]:23.3f} {bad:11d}")


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="spins, loops, jacobians")
    parser.add_argument("--environments", type=int, default=16)
    given = parser.parse_args()
    torch.manual_seed(0)
    for part in given.parts or ("spins", "loops", "jacobians"):
        print(f"\n{part}")
        {"spins": spins, "loops": loops, "jacobians": jacobians}[part](given.environments)

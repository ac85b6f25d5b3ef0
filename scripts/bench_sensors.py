#!/usr/bin/env python
"""Time thirty sensors beside the step: an IMU and the pose of a body, forces and touch at four others, joints, momentum.

    scripts/bench_sensors.py                                     # four robots, batch 1024, one thread
    scripts/bench_sensors.py --models ant --batch 64 --kinds     # and each kind of sensor, thirty times

States come from a rollout under small random inputs, so that the robots touch the ground. The readings and the step are timed by turns in
one process. A time is the least of many rounds, as a fraction of the step's time in a warm-started rollout, forward under `no_grad`, and
of a step with its backward pass for readings with theirs. A fraction above 0.3 makes the exit status 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Sequence

import torch
from bench_cases import CASES
from bench_coordinates import by_turns
from torch import Tensor

import torchdojo as td
from torchdojo.sensors.kind import KINDS

BOUND = 0.3  # largest fraction of a step
STEPS = 10  # of the rollout whose time is that of a step
ON_THE_BASE = (
    "gyro", "accelerometer", "velocimeter", "magnetometer", "frame_position", "frame_quaternion", "frame_x_axis", "frame_z_axis",
    "frame_linear_velocity", "frame_angular_velocity", "frame_linear_acceleration", "frame_angular_acceleration",
)  # fmt: skip
AT_THE_ENDS = ("force", "touch")  # of four sites
OF_JOINTS = ("joint_position", "joint_velocity")  # of four joints


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="quadruped,ant,humanoid,atlas")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--kinds", action="store_true", help="thirty sensors of each kind, too, forward")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    print(f"torch {torch.__version__}, one of {os.cpu_count()} threads, batch {options.batch}, least of {options.rounds} rounds")
    exceeded = sum(measure(name, options.batch, options.rounds, options.kinds) for name in options.models.split(","))
    if exceeded:
        sys.exit(f"{exceeded} readings take longer than {BOUND} of a step")


def add_sensors(mech: td.Mechanism, kinds: bool) -> dict[str, list[str]]:
    """Give a mechanism thirty sensors, and thirty of each kind. The result has the names of each set."""
    bodies, joints = list(mech.bodies), [name for name, joint in mech.named_joints().items() if joint.num_coordinates == 1]
    places = [("base", bodies[0]), *((f"end{i}", bodies[-1 - 2 * i]) for i in range(4))]
    for name, body in places:
        mech.sites[name] = td.Site(body, (0.01, 0.02, -0.1), (0.8, 0.6, 0.0, 0.0), size=0.2)
    sensors = {kind: td.Sensor(kind, site="base") for kind in ON_THE_BASE}
    sensors |= {f"{kind} {name}": td.Sensor(kind, site=name) for kind in AT_THE_ENDS for name, _ in places[1:]}
    sensors |= {f"{kind} {name}": td.Sensor(kind, joint=name) for kind in OF_JOINTS for name in joints[:4]}
    sensors |= {kind: td.Sensor(kind) for kind in ("subtree_center", "subtree_angular_momentum")}
    assert len(sensors) == 30
    sets = {"thirty": list(sensors)}
    for kind, rule in KINDS.items() if kinds else ():
        targets = {"site": [name for name, _ in places], "joint": joints, "actuator": []}
        lists = [targets[need] for need in rule.needs]
        if kind in ("clock", "rangefinder", "joint_actuator_force") or "ball" in kind or not all(lists):
            continue
        several = {
            f"{kind} no. {i}": td.Sensor(kind, **{need: names[i % len(names)] for need, names in zip(rule.needs, lists, strict=True)})
            for i in range(30)
        }
        sensors |= several
        sets[kind] = list(several)
    mech.sensors.update(sensors)
    return sets


def measure(name: str, batch: int, rounds: int, kinds: bool) -> int:
    """Print the fractions of one robot, and return how many of those of the thirty sensors are above the bound."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        case = CASES[name]()
    mech = case.mech
    sets = add_sensors(mech, kinds)
    with torch.no_grad():
        z = mech.rollout(case.start.expand(batch, -1), case.inputs(batch, case.settle)).z[:, -1].contiguous()
        u = case.inputs(batch, STEPS)
        out = mech.step(z, u[:, 0])
    forward: dict[str, Callable[[], None]] = {"step": held(lambda: mech.rollout(z, u))}
    for key, names in sets.items():
        forward[key] = held(lambda names=names: mech.read_sensors(z, out, names=names))  # type: ignore[misc]
    state, control = z.clone().requires_grad_(), u[:, 0].clone().requires_grad_()
    after, impulses = (t.detach().clone().requires_grad_() for t in (out.z, out.impulses))

    def stepped() -> Sequence[Tensor]:
        return (mech.step(state, control).z,)

    def read() -> Sequence[Tensor]:
        return (mech.read_sensors(state, out._replace(z=after, impulses=impulses), names=sets["thirty"]),)

    both = {"step": pulled(stepped, (state, control)), "thirty": pulled(read, (state, after, impulses))}
    times, pulls = by_turns(forward, rounds), by_turns(both, rounds)
    step = times.pop("step") / STEPS
    fractions = {"forward": times.pop("thirty") / step, "forward + backward": pulls["thirty"] / pulls["step"]}
    columns = [f"{key} {value:.3f}{' !' if value > BOUND else ''}" for key, value in fractions.items()]
    print(f"{name:10} {mech.num_bodies:3} bodies  step {1e6 * step / batch:6.2f} µs  " + "  ".join(columns))
    for key, value in times.items():
        print(f"    30 × {key:28} {value / step:.3f}")
    return sum(value > BOUND for value in fractions.values())


def held(call: Callable[[], object]) -> Callable[[], None]:
    """A call under `no_grad`."""

    def run() -> None:
        with torch.no_grad():
            call()

    return run


def pulled(call: Callable[[], Sequence[Tensor]], inputs: Sequence[Tensor]) -> Callable[[], None]:
    """A call and its backward pass."""
    weights = [torch.ones_like(value) for value in call()]
    return lambda: torch.autograd.backward(call(), weights, inputs=inputs)


if __name__ == "__main__":
    main()

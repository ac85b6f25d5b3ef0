"""Impulses on the bodies of a mechanism in a step, from the change of their momenta: whatever took the step, and however."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

import torchdojo as td
from torchdojo import quaternion as quat
from torchdojo.dynamics.integrator import body_momentum
from torchdojo.elements.element import Motion
from torchdojo.state.layout import split_state


class Moved(NamedTuple):
    """Bodies over one step without gravity.

    wrenches: per body, impulse (..., 3) in the world frame [N·s], and angular impulse (..., 3) in the body frame [N·m·s].
    """

    motions: tuple[Motion, ...]
    wrenches: list[tuple[Tensor, Tensor]]
    timestep: Tensor

    def unbalanced(self) -> float:
        """The largest component of the sum of all impulses and of their moments about the origin."""
        force = sum(f for f, _ in self.wrenches)
        moment = sum(
            quat.cross(motion.pose.x, f) + quat.rotate(motion.pose.q, t) for motion, (f, t) in zip(self.motions, self.wrenches, strict=True)
        )
        return max(float(force.abs().max()), float(moment.abs().max()))


def impulses_on_bodies(mech: td.Mechanism, z: Tensor, out: td.StepOutput, names: tuple[str, ...]) -> Moved:
    before, after = split_state(z), split_state(out.z)
    h = mech.timestep.reshape(1)
    motions, wrenches = [], []
    for name in names:
        i, body = list(mech.bodies).index(name), mech.bodies[name]

        def part(state: object, i: int = i) -> object:
            return type(state)(*(value[..., i, :] for value in state))

        twist, old = part(after.twist), part(before.twist)
        motions.append(Motion(part(before.pose), twist, part(after.pose), old, h))
        angular = body_momentum(twist.omega, body.inertia, h, +1) - body_momentum(old.omega, body.inertia, h, -1)
        wrenches.append((body.mass * (twist.v - old.v), angular))
    return Moved(tuple(motions), wrenches, h)

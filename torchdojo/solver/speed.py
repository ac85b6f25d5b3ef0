"""Steps that are too fast for their timestep: shorter ones replace them before the ladder of attempts is climbed.

A step of length h turns a body by an increment with the sine a = (h/2) ω. Its momentum J ω √(1 − |a|²) is, in units of 2 J/h,

    l = a √(1 − |a|²) ≤ ½,      largest at |a| = 1/√2.

A body that spins faster before the step, or that impulses bring to a larger momentum, has no whole step. Every attempt of the ladder
would fail, at a cost of hundreds of iterations. Speeds before the step are seen at once. Impulses, and the bodies that joints carry along,
are in Newton's direction δ at a point a: to first order it leads to

    l = c a + c δ − a (a·δ)/c,      c = √(1 − |a|²),

which unlike a + δ does not overshoot where the momentum is flat. Directions exaggerate where contacts change. So a look at a direction asks
for more than a large |l|:

    when                                      |l|               |a| there    |a| before the step              steps
    at the first iteration                    FIRST_MOMENTUM    any          START_SINE                       with inputs or wrenches
    at the iteration SPEED_ITERATIONS, later  MOST_MOMENTUM     NEAR_SINE    DRIVEN_SINE or START_SINE        all
    where the attempt fails                   NEAR_MOMENTUM     NEAR_SINE    DRIVEN_SINE or START_SINE        all
    where an attempt from a larger κ fails    MOST_MOMENTUM     NEAR_SINE    any                              with inputs or wrenches

The first line sees at once what inputs add to a fast spin, the last one what they do to a body at rest. Attempts on the path take these
looks, from the warm start and from a larger κ. Limits of the speed of a joint keep a body slow against the body that carries it, whatever a
direction says. Such a body does not count.

`scripts/bench_violent.py` measures the cost: a quadruped under random torques of ±30 N·m takes 5.7 iterations per substep at h = 0.01 and
0.02, and 4.4 per step at h = 0.005, where 0.1 % are split. None of 100,000 steps of thrown cubes at h = 0.01 is split.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchdojo.dynamics.integrator import LARGEST_SINE
from torchdojo.dynamics.residual import StepProblem
from torchdojo.dynamics.system import System
from torchdojo.elements.joints import StandardJoint
from torchdojo.elements.velocity_limits import JointVelocityLimits

__all__ = [
    "DRIVEN_SINE",
    "FIRST_MOMENTUM",
    "MOST_MOMENTUM",
    "NEAR_MOMENTUM",
    "NEAR_SINE",
    "SPEED_ITERATIONS",
    "START_SINE",
    "TOO_FAST",
    "SpeedLook",
    "slowed_by",
    "starts_too_fast",
]

TOO_FAST = 4  # a status beyond the values of `Status`, which no step returns: shorter steps replace this one
SPEED_ITERATIONS = 5
FIRST_MOMENTUM, MOST_MOMENTUM, NEAR_MOMENTUM = 0.6, 0.5, 0.3
NEAR_SINE = 0.4
START_SINE, DRIVEN_SINE = 0.25, 0.15  # without, and with inputs or wrenches


def starts_too_fast(problem: StepProblem) -> Tensor:
    """Whether some body spins faster before the step than any body may after it, (N,)."""
    return (_sine(problem, problem.state.twist.omega) > LARGEST_SINE).any(-1)


class SpeedLook:
    """A look at a direction of an attempt on the path, at w (N, num_unknowns): which steps lead some body beyond what a step represents."""

    def __init__(self, problem: StepProblem, w: Tensor, direction: Tensor) -> None:
        half = 0.5 * problem.timestep[:, None, None]
        a, change = (half * problem.system.twists(x)[..., 3:] for x in (w, direction))
        c = torch.sqrt(1 - (a * a).sum(-1, keepdim=True))
        momentum = torch.linalg.vector_norm(c * (a + change) - (a * change).sum(-1, keepdim=True) / c * a, dim=-1)
        self.momentum = torch.where(_slowed(problem), 0.0, momentum)  # |l|, (N, nb)
        self.near = torch.linalg.vector_norm(a, dim=-1) > NEAR_SINE
        self.driven = torch.cat((problem.u, problem.wrench), dim=-1).ne(0).any(-1, keepdim=True)
        self.before = _sine(problem, problem.state.twist.omega)
        self.counts = self.near & (self.before > torch.where(self.driven, DRIVEN_SINE, START_SINE))

    def leads_beyond(self, iteration: int) -> Tensor:
        """The decision at an iteration, counted from one, (N,)."""
        if iteration >= SPEED_ITERATIONS:
            return (self.counts & (self.momentum > MOST_MOMENTUM)).any(-1)
        ahead = self.driven & (self.before > START_SINE) & (self.momentum > FIRST_MOMENTUM)
        return ahead.any(-1) & (iteration == 1)

    def failed_beyond(self, lowered: bool) -> Tensor:
        """The decision where the attempt fails, (N,). `lowered`: the attempt has come from a larger κ."""
        beyond = self.counts & (self.momentum > NEAR_MOMENTUM)
        if lowered:
            beyond = beyond | (self.driven & self.near & (self.momentum > MOST_MOMENTUM))
        return beyond.any(-1)


def slowed_by(system: System) -> list[JointVelocityLimits | None]:
    """Per body, the limits of speed of all rotations of the joint that carries it, or that carries what it is welded to."""
    limits = {id(e.joint): e for e in system.elements.values() if isinstance(e, JointVelocityLimits)}
    slow: dict[str | None, JointVelocityLimits] = {}
    joints = [e for e in system.elements.values() if isinstance(e, StandardJoint)] if limits else []
    for _ in joints:  # welded bodies may be declared before what they are welded to
        for joint in joints:
            parent, child = joint.body_names
            rotations = set(range(joint.free_translations, joint.num_coordinates))
            if not rotations and parent in slow:
                slow.setdefault(child, slow[parent])
            elif rotations and rotations <= set(joint.velocity_limited):
                slow[child] = limits[id(joint)]
    return [slow.get(name) for name in system.body_names]


def _slowed(problem: StepProblem) -> Tensor:
    """Whether limits of speed keep a body slow against the body that carries it, (N, nb)."""
    system, half = problem.system, 0.5 * problem.timestep[:, None]
    slow = torch.zeros(len(problem.z), system.num_bodies, dtype=torch.bool, device=half.device)
    if not any(issubclass(group.cls, JointVelocityLimits) for group in system.groups):
        return slow
    for body, limits in enumerate(slowed_by(system)):
        for group, values in zip(system.groups, system.named_parameters(problem.parameters), strict=True):
            if limits in group.members:
                rates = values["velocity_limits"][:, group.members.index(limits), limits.joint.free_translations :]
                slow[:, body] = (half * rates < NEAR_SINE).all(-1)
    return slow


def _sine(problem: StepProblem, omega: Tensor) -> Tensor:
    return 0.5 * problem.timestep[:, None] * torch.linalg.vector_norm(omega, dim=-1)

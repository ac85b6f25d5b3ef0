"""Tasks of Dojo's table III with Dojo's set-ups (Howell et al. 2025; DojoExamples), and two swing-ups.

Inputs are weighted as impulses u h, and costs have no ½.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdojo import models
from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import NonlinearContact
from torchdojo.elements.joints import Floating
from torchdojo.geometry.shapes import Box
from torchdojo.mechanism import Mechanism
from torchdojo.planning.gait import holding_inputs, trot
from torchdojo.planning.plan import Plan, Replay
from torchdojo.planning.problem import Problem
from torchdojo.planning.residuals import ContactForce, Input, State

__all__ = ["TASKS", "Task", "box_right", "box_up", "cartpole", "hopper", "quadrotor", "quadruped"]


def _tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# -- box -----------------------------------------------------------------------------------------------------------------------------------


def _box(goal: tuple[float, float, float], noise: Tensor | None) -> Problem:
    h, edge = 0.1, 0.5
    corners = {
        f"corner{i}": NonlinearContact("box", point=[0.5 * edge * s for s in signs], friction=0.5)
        for i, signs in enumerate(itertools.product((1, -1), repeat=3), start=1)
    }
    mech = Mechanism({"box": Body(1.0, shape=Box((edge,) * 3))}, {"base": Floating(None, "box", actuated=True)}, corners, timestep=h)
    start, end = (mech.initial_state(base={"q": (*place, 0.0, 0.0, 0.0)}) for place in ((0.0, 0.0, 0.25), goal))
    forces = torch.eye(6, dtype=torch.float64)[:, :3]
    # weight 1 on the 13 numbers of the state; those of the quaternion are half of the rotation vector
    weight = _tensor(1, 1, 1, 0.25, 0.25, 0.25, 1, 1, 1, 1, 1, 1)
    return Problem(
        mech,
        start.expand(*(() if noise is None else noise.shape[:1]), -1),
        10,
        costs=[State(end, weight), Input(1e-2 * h**2)],
        equalities=[State(end, at=-1)],
        input_map=forces,
        guess=0.0 if noise is None else noise / h,
    )


def box_right(noise: Tensor | None = None) -> Problem:
    """A box of 1 kg is pushed 1 m along the ground in 1 s, by three forces at its center. noise: impulses (P, 10, 3) of the first guess."""
    return _box((1.0, 0.0, 0.25), noise)


def box_up(noise: Tensor | None = None) -> Problem:
    """The box is lifted by 1 m in 1 s."""
    return _box((0.0, 0.0, 1.25), noise)


# -- hopper --------------------------------------------------------------------------------------------------------------------------------


def hopper(noise: Tensor | None = None) -> Problem:
    """Raibert's hopper hops 0.5 m forward and sideways in 1 s, over a height of 0.5 m. noise: impulses (P, 20, 3) of the first guess.

    Inputs are two torques on the body and the force of the leg.
    """
    h, steps = 0.05, 20
    mech = models.raibert_hopper(timestep=h, actuated_base=True)

    def state(x: float, y: float, z: float) -> Tensor:
        return mech.initial_state(floating_base={"q": (x, y, 0.55 + z, 0.0, 0.0, 0.0)}, leg={"q": -0.5})

    start, middle, end = state(0.0, 0.0, 0.0), state(0.5, 0.5, 0.5), state(0.5, 0.5, 0.0)
    body = _tensor(1, 1, 1, 0.01, 0.01, 0.01, 0.025, 0.025, 0.025, 0.01, 0.01, 0.01)
    target = torch.stack([middle] * (steps // 2) + [end] * (steps - steps // 2 + 1))
    guess = torch.zeros(steps, 3, dtype=torch.float64)
    guess[:, 2] = -4.18 * 9.81
    input_map = torch.zeros(7, 3, dtype=torch.float64)
    input_map[3, 0] = input_map[4, 1] = input_map[6, 2] = 1.0
    return Problem(
        mech,
        start.expand(*(() if noise is None else noise.shape[:1]), -1),
        steps,
        costs=[State(target, torch.cat((body, body))), Input(1e-2 * h**2)],
        equalities=[State(end, rows=[0, 1, 2, 3, 4, 5, 12, 13, 14, 15, 16, 17], at=-1)],
        input_map=input_map,
        guess=guess if noise is None else guess + noise / h,
        coordinates="tangent",
    )


# -- quadruped -----------------------------------------------------------------------------------------------------------------------------


def quadruped(noise: Tensor | None = None, *, damper: float = 5.0, limited: bool = False, normal_forces: float | None = None) -> Problem:
    """A1 trots two cycles in 2 s. The goal is the place of the trunk. noise: impulses (P, 40, 12) of the first guess.

    Args:
        damper: of the joints [N·m·s/rad]; Dojo's is 5. limited: keep torques within 33.5 N·m.
        normal_forces: the largest with which a foot may press [N]; 77 without a bound. It wants the option penalty=0.1.
    """
    h, steps = 0.05, 40
    mech = models.quadruped(timestep=h, damper=damper, limits=True, contact_body=False)
    reference = trot(mech)
    reference = torch.cat((reference, reference[-1:]))
    standing = mech.place(mech.initial_state(pose="home"), clearance=1e-6)
    weight = _tensor(0.3, 0.05, 0.05, 0.01, 0.01, 0.01, *[0.2] * 12, *[0.01] * 6, *[0.001] * 12)
    guess = holding_inputs(mech, standing)
    capped = [] if normal_forces is None else [ContactForce(weight=1 / normal_forces, target=normal_forces)]
    return Problem(
        mech,
        reference[0].expand(*(() if noise is None else noise.shape[:1]), -1),
        steps,
        costs=[State(reference, 0.05 * weight), Input(0.05 * 1e-2 * h**2)],
        equalities=[State(reference[-1], rows=range(3), at=-1)],
        inequalities=capped,
        guess=guess if noise is None else guess + noise / h,
        guess_states=reference,
        limits=(-33.5, 33.5) if limited else None,
    )


# -- swing-ups -----------------------------------------------------------------------------------------------------------------------------


def cartpole(noise: Tensor | None = None, *, largest: float = 15.0) -> Problem:
    """A pole of 0.5 m swings up from hanging in 3 s, by a force on its cart of at most 15 N. noise: impulses (P, 60, 1)."""
    h, steps = 0.05, 60
    mech = models.cartpole(timestep=h, pole_mass=0.2, length=0.5)
    start, end = mech.initial_state(hinge={"q": math.pi}), mech.initial_state(hinge={"q": 0.0})
    return Problem(
        mech,
        start.expand(*(() if noise is None else noise.shape[:1]), -1),
        steps,
        costs=[State(end, _tensor(0.1, 0.1, 0.01, 0.01)), Input(1e-3)],
        equalities=[State(end, at=-1)],
        guess=0.1 * torch.sin(torch.arange(steps, dtype=torch.float64))[:, None] + (0.0 if noise is None else noise / h),
        limits=(-largest, largest),
    )


def quadrotor(noise: Tensor | None = None) -> Problem:
    """A quadrotor that hangs upside down at rest turns over in 2 s, and hovers where it was. noise: h times controls (P, 40, 4)."""
    h, steps = 0.05, 40
    mech = models.quadrotor(timestep=h, contact=False)
    start, end = (mech.initial_state(base={"q": (0.0, 0.0, 2.0, turn, 0.0, 0.0)}) for turn in (0.95 * math.pi, 0.0))
    return Problem(
        mech,
        start.expand(*(() if noise is None else noise.shape[:1]), -1),
        steps,
        costs=[State(end, _tensor(0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01)), Input(1e-2, target=-0.5)],
        equalities=[State(end, at=-1)],
        controls=True,
        guess=-0.5 if noise is None else -0.5 + noise / h,
        limits=(-1.0, 1.0),
        coordinates="tangent",
    )


class Task(NamedTuple):
    """A problem by its name.

    make: maps impulses that perturb the first guess (P, T, m), or None, to the problem.
    noise: deviation of such impulses [N·s, N·m·s]. options: fields of `SolveOptions` that differ from the default.
    published: iterations, cost and violation of Dojo's table III, or None.
    lag: of its replay. tracking: grad_kappa and penalty of `Plan.tracking_gains`, with which a replay acts in every step, and its
    lag; None: the plan's gains, held.
    """

    make: Callable[[Tensor | None], Problem]
    noise: float
    options: dict[str, Any]
    published: tuple[int, float, float] | None = None
    lag: float | None = None
    tracking: tuple[float, float, float] | None = None

    def replay(self, plan: Plan, feedback: bool = True, parts: int = 10) -> Replay:
        """The plan in steps of h/parts at kappa 1e-8, with or without feedback."""
        timestep = float(plan.problem.mech.timestep) / parts
        if not feedback or self.tracking is None:
            return plan.replay(timestep=timestep, feedback=feedback, lag=self.lag)
        grad_kappa, penalty, lag = self.tracking
        gains = plan.tracking_gains(grad_kappa=grad_kappa, penalty=penalty)
        return plan.replay(timestep=timestep, feedback=gains, every_step=True, lag=lag)

    def perturbed(self, count: int, seed: int = 0) -> Problem:
        """`count` problems whose guesses differ by noise."""
        guess = self.make(None).guess
        generator = torch.Generator().manual_seed(seed)
        return self.make(self.noise * torch.randn(count, *guess.shape[1:], generator=generator, dtype=torch.float64))


#: The cheap hop appears only with wide smoothing, from which some guesses do not come back. One of these does, for 71 of 71 guesses.
HOPPING = (
    ((2.5e-1, None), (8e-2, None), (2e-2, None), (3e-3, None), (1e-6, None)),
    ((3e-1, None), (5e-2, None), (1e-2, None), (1e-3, None), (1e-6, None)),
    ((2e-1, None), (7e-2, None), (1e-2, None), (1e-3, None), (1e-6, None)),
)
TASKS = {
    "box_right": Task(box_right, 0.01, {"penalty": 10.0, "schedule": ((3e-4, None), (1e-5, None), (1e-8, None))}, (30, 14.5, 3e-3)),
    "box_up": Task(box_up, 0.01, {"penalty": 10.0}, (106, 14.5, 3e-3)),
    "hopper": Task(hopper, 0.01, {"schedule": HOPPING}, (96, 8.9, 1e-3), tracking=(1.0, 700.0, 0.0325)),
    "quadruped": Task(quadruped, 0.01, {"max_inner": 6}, (20, 0.02, 3e-4), lag=0.0),
    "cartpole": Task(cartpole, 0.01, {"schedule": ((1e-6, None),), "max_inner": 60, "cost_tolerance": 1e-3}),
    "quadrotor": Task(quadrotor, 0.001, {"schedule": ((1e-6, None),), "max_inner": 60, "cost_tolerance": 1e-3}),
}

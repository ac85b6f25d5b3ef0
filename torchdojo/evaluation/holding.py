"""Objects that two fingers hold: nothing slides out of a grasp, and what κ lets creep has a formula.

A contact on the central path that carries the normal impulse γ and the tangential one β < μγ, both in a step, slips at
|v| = κ β / ((μγ)² − β²): the law ξ ∘ η = κ e of `NonlinearContact` with ξ = (μγ, β) (`torchdojo.testing.diagnostics.creep`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchdojo.elements.bodies import Body
from torchdojo.elements.joints import Prismatic
from torchdojo.elements.manifolds import contacts_between
from torchdojo.evaluation import mujoco_reference as reference
from torchdojo.evaluation.experiment import (
    Line,
    Measurement,
    Outcome,
    Plot,
    Setting,
    flagged_steps,
    rivals_by_field,
    smallest_distance,
)
from torchdojo.geometry.shapes import Box, Capsule, Shape
from torchdojo.mechanism import Mechanism
from torchdojo.solver.options import SolverOptions
from torchdojo.testing.diagnostics import creep

__all__ = ["grasp", "pinch"]

GRAVITY, FORCE, FRICTION, KAPPA, TIMESTEP = 9.81, 8.0, 0.6, 1e-8, 0.01  # FORCE: of each finger [N]
FINGER_MASS, START = 0.05, 1e-6  # START: gap between object and fingers at first [m]
RADIUS, LENGTH, CAPSULE_MASS = 0.01, 0.06, 0.1
EDGE, PAD, BOX_MASS = 0.06, (0.01, 0.03, 0.03), 0.5


def pinch(setting: Setting) -> Outcome:
    """Two flat fingers hold a lying capsule (0.1 kg, radius 1 cm) in the middle for 60 s, each with 8 N; μ = 0.6, h = 0.01 s, κ = 1e-8.

    Friction carries half of the weight at each finger, β = m g h / 2, so the capsule creeps at κ β / ((μ F h)² − β²) = 0.0215 µm/s.
    """
    seconds = 2.0 if setting.quick else 60.0
    lying = Capsule(RADIUS, LENGTH, orientation=(math.cos(math.pi / 4), math.sin(math.pi / 4), 0.0, 0.0))
    held = _hold(lying, CAPSULE_MASS, RADIUS, seconds)
    shape = f'type="capsule" size="{RADIUS} {LENGTH / 2}" quat="1 1 0 0" mass="{CAPSULE_MASS}"'
    return _outcome(held, _mujoco(setting, shape, RADIUS, seconds), seconds, "Capsule held by two fingers")


def grasp(setting: Setting) -> Outcome:
    """Two flat fingers hold a cube (0.5 kg, 6 cm) for 5 s, each with 8 N, as `pinch`: half of what friction could carry.

    Nine contacts of each finger share its force, so they creep faster than one would.
    """
    seconds = 0.5 if setting.quick else 5.0
    held = _hold(Box((EDGE,) * 3), BOX_MASS, 0.5 * EDGE, seconds)
    shape = f'type="box" size="{EDGE / 2} {EDGE / 2} {EDGE / 2}" mass="{BOX_MASS}"'
    return _outcome(held, _mujoco(setting, shape, 0.5 * EDGE, seconds), seconds, "Cube held by two fingers")


class _Held(NamedTuple):
    """Heights, turns from the start [rad] and smallest distances (T+1,) of what is held, speeds that κ explains [m/s], statuses (T,)."""

    height: Tensor
    turn: Tensor
    distance: Tensor
    predicted: float
    status: Tensor


def _hold(shape: Shape, mass: float, half: float, seconds: float) -> _Held:
    """Hold a shape of half a width between two fingers on slides along x."""
    finger = Box(PAD)
    bodies = {"object": Body(mass, shape=shape), "left": Body(FINGER_MASS, shape=finger), "right": Body(FINGER_MASS, shape=finger)}
    joints = {"left_slide": Prismatic(None, "left", axis=(1, 0, 0)), "right_slide": Prismatic(None, "right", axis=(-1, 0, 0))}
    contacts = contacts_between(bodies, joints, friction=FRICTION, filter=lambda a, b: "object" in (a, b))
    # The creep is far below the default tolerance of 1e-9 m/s.
    options = SolverOptions(kappa=KAPPA, residual_tol=1e-12)
    mech = Mechanism(bodies, joints, contacts, timestep=TIMESTEP, gravity=(0.0, 0.0, -GRAVITY), options=options)
    away = -(half + 0.5 * PAD[0] + START)
    steps = round(seconds / TIMESTEP)
    path = mech.rollout(mech.initial_state(left_slide=away, right_slide=away), torch.full((steps, 2), FORCE, dtype=torch.float64))
    place = path.z.unflatten(-1, (-1, 13))[:, 0]
    turn = 2 * torch.atan2(torch.linalg.vector_norm(place[:, 7:10], dim=-1), place[:, 6].abs())
    last = mech.step(path.z[-1], torch.full((2,), FORCE, dtype=torch.float64), warm_start=path.solution[-1])
    speeds = creep(mech, last)
    return _Held(place[:, 2], turn, mech.distances(path.z).amin(-1), float(speeds[speeds > 0].mean()), path.status)


class _Sunk(NamedTuple):
    """Speed in the second half [m/s], downwards, and the heights (T+1,) [m]."""

    creep: float
    height: np.ndarray


def _sunk(height: np.ndarray, seconds: float) -> _Sunk:
    middle = len(height) // 2
    return _Sunk(float(height[middle] - height[-1]) / (seconds * (len(height) - 1 - middle) / (len(height) - 1)), height)


def _outcome(held: _Held, theirs: dict[str, _Sunk], seconds: float, title: str) -> Outcome:
    ours = _sunk(held.height.numpy(), seconds)
    sunk = {"torchdojo": ours, **{f"MuJoCo {name}": other for name, other in theirs.items()}}
    lines = {label: Line(np.linspace(0, seconds, len(each.height)), 1e3 * each.height) for label, each in sunk.items()}
    mujoco = rivals_by_field(_Sunk, theirs)["creep"]
    return Outcome(
        [
            Measurement(
                "creep_um_per_s", f"speed downwards in the second half of {seconds:g} s", 1e6 * ours.creep, "µm/s", at_most=1.0,
                mujoco=None if mujoco is None else {name: 1e6 * value for name, value in mujoco.items()},
            ),
            Measurement("predicted_creep_um_per_s", "κ β / ((μγ)² − β²) at the end, mean of contacts", 1e6 * held.predicted, "µm/s"),
            Measurement("sunk_m", "height lost", float(held.height[0] - held.height[-1]), "m", at_most=1e-4),
            Measurement("turned_rad", "largest turn", float(held.turn.max()), "rad", at_most=1e-6),
            smallest_distance(held.distance),
            flagged_steps(held.status),
        ],
        [Plot("height", title, "time [s]", "height [mm]", lines)],
        notes=["MuJoCo: h = 2 ms, elliptic cones with impratio 10, without and with noslip_iterations 10"] if theirs else [],
    )  # fmt: skip


def _mujoco(setting: Setting, shape: str, half: float, seconds: float) -> dict[str, _Sunk]:
    """The same in MuJoCo with settings that its documentation recommends against slip."""
    sunk: dict[str, _Sunk] = {}
    if setting.mujoco is None:
        return sunk
    geom, reach = f'friction="{FRICTION} 0 0" condim="3"', half + 0.5 * PAD[0]
    finger = f'type="box" size="{" ".join(str(0.5 * edge) for edge in PAD)}"'
    fingers = "".join(
        f'<body pos="{side * reach} 0 0"><joint type="slide" axis="{-side} 0 0"/><geom {finger} mass="{FINGER_MASS}" {geom}/></body>'
        for side in (-1, 1)
    )
    for name, extra in (("elliptic", ""), ("noslip", ' noslip_iterations="10"')):
        scene = f"""<mujoco>
          <option timestep="0.002" gravity="0 0 {-GRAVITY}" cone="elliptic" impratio="10"{extra}/>
          <worldbody><body><freejoint/><geom {shape} {geom}/></body>{fingers}</worldbody>
        </mujoco>"""
        _, q, _ = reference.simulate(setting.mujoco, scene, round(seconds / 0.002), torque=[0.0] * 6 + [FORCE] * 2)
        sunk[name] = _sunk(q[:, 2], seconds)
    return sunk

"""Laws on the coordinates of joints: limits that are not crossed, and friction that holds. The rod (1 m, 1 kg) is hinged at its end."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch

from torchdojo import models
from torchdojo.elements.bodies import Body
from torchdojo.elements.joints import Revolute
from torchdojo.evaluation import mujoco_reference as reference
from torchdojo.evaluation.experiment import Line, Measurement, Outcome, Plot, Setting, flagged_steps, slug
from torchdojo.evaluation.friction import creep_rows
from torchdojo.geometry.shapes import Box
from torchdojo.mechanism import Mechanism
from torchdojo.solver.options import SolverOptions

__all__ = ["joint_friction", "joint_limit"]

GRAVITY, MASS, LENGTH, WIDTH = 9.81, 1.0, 1.0, 0.1
LOWER, UPPER, RELEASE = 0.5, 2.0, 0.5 * math.pi  # [rad]
FRICTION = 1.0  # [N·m]


def joint_limit(setting: Setting) -> Outcome:
    """A pendulum released at rest from 90 degrees falls against its lower limit, 0.5 rad from hanging, and rests there; 3 s.

    It rests κ/(½ m g l sin(0.5) h) from the limit: the product of the room left and the impulse of the weight about the hinge is κ.
    """
    seconds = 3.0
    rows: list[Measurement] = []
    lines: dict[str, Line] = {}
    cases = ((0.01, 1e-6),) if setting.quick else ((0.01, 1e-6), (0.01, 1e-8), (0.1, 1e-6))
    for timestep, kappa in cases:
        steps = round(seconds / timestep)
        mech = models.pendulum(timestep=timestep, mass=MASS, length=LENGTH, limits=(LOWER, UPPER))
        mech.options = dataclasses.replace(mech.options, kappa=kappa)
        path = mech.rollout(mech.initial_state(hinge={"q": RELEASE}), steps=steps)
        room = mech.to_minimal(path.z)[0][:, 0] - LOWER
        predicted = kappa / (0.5 * MASS * GRAVITY * LENGTH * math.sin(LOWER) * timestep)
        theirs = _mujoco_room(setting, timestep, steps)
        beyond = None if theirs is None else float(np.clip(-theirs, 0, None).max())
        name = slug(f"h_{1e3 * timestep:g}_ms_kappa_{kappa:.0e}")
        rows += [
            Measurement(
                f"{name}_overshoot_rad", f"h = {timestep:g} s, kappa {kappa:g}: largest overshoot beyond the limit",
                float((-room).clamp_min(0).max()), "rad", at_most=0.0, mujoco=beyond,
            ),
            Measurement(f"{name}_smallest_room_rad", "least room left", float(room.min()), "rad", at_least=0.0),
            Measurement(
                f"{name}_rest_room_rad", f"room at rest (predicted: {predicted:.4g})", float(room[-1]), "rad", at_least=0.0,
                mujoco=None if theirs is None else float(theirs[-1]),
            ),
            Measurement(
                f"{name}_rest_room_error_percent", "against the prediction", 100 * abs(float(room[-1]) / predicted - 1), "%", at_most=1.0,
            ),
            flagged_steps(path.status, name=name),
        ]  # fmt: skip
        if not lines:
            time = timestep * np.arange(steps + 1)
            lines["torchdojo"] = Line(time, room)
            if theirs is not None:
                lines["MuJoCo"] = Line(time, theirs)
    return Outcome(rows, [Plot("room", "Pendulum falling into its limit, h = 0.01 s", "time [s]", "angle less the limit [rad]", lines)])


def _mujoco_room(setting: Setting, timestep: float, steps: int) -> np.ndarray | None:
    """Angle less the lower limit [rad], (steps + 1,), with MuJoCo's default (soft) limit."""
    if setting.mujoco is None:
        return None
    joint = f'limited="true" range="{LOWER} {UPPER}"'
    scene = reference.hinge_scene(joint, width=WIDTH, length=LENGTH, mass=MASS, timestep=timestep, gravity=GRAVITY)
    _, q, _ = reference.simulate(setting.mujoco, scene, steps, qpos=[RELEASE])
    return np.asarray(q[:, 0] - LOWER)


def joint_friction(setting: Setting) -> Outcome:
    """A hinge with 1 N·m of friction turns without gravity under 95 % of that torque for 60 s, and under 105 % of it.

    Below its bound b = h · 1 N·m, friction has the impulse λ. With p = b + λ and q = b − λ, the joint turns at κ/p − κ/q = −2κλ/(b² − λ²).
    Held against 95 %, λ = −0.95 b, the joint creeps forward. Above 100 % it accelerates at the remaining torque over the inertia.
    """
    timestep, seconds = 0.01, (6 if setting.quick else 60)
    steps = round(seconds / timestep)
    rows: list[Measurement] = []
    lines: dict[str, Line] = {}
    statuses = []
    inertia = MASS * ((WIDTH**2 + LENGTH**2) / 12 + 0.25 * LENGTH**2)  # inertia about the hinge [kg·m²]
    for kappa, most in ((1e-6, None), (1e-10, 20e-6)):
        mech = _arm(kappa, timestep)
        path = mech.rollout(mech.initial_state(), torch.full((steps, 1), 0.95 * FRICTION, dtype=torch.float64))
        statuses.append(path.status)
        angle = mech.to_minimal(path.z)[0][:, 0]
        bound = timestep * FRICTION
        impulse = -0.95 * bound
        predicted = kappa / (bound + impulse) - kappa / (bound - impulse)
        rows += creep_rows(
            slug(f"kappa_{kappa:.0e}"), f"95 % of the friction torque, kappa {kappa:g}", angle, timestep, "rad", predicted,
            at_most=most, error_at_most=0.1, mujoco=_mujoco_turn(setting, timestep, steps),
        )  # fmt: skip
        lines[f"kappa {kappa:g}"] = Line(timestep * np.arange(1, steps + 1), angle[1:].clamp_min(1e-12))
    mech = _arm(1e-8, timestep)  # friction that slides at v is κ/v below its bound: at kappa 1e-6, 2 % of the remaining torque
    path = mech.rollout(mech.initial_state(), torch.full((100, 1), 1.05 * FRICTION, dtype=torch.float64))
    statuses.append(path.status)
    speed, exact = path.z[:, 10], 0.05 * FRICTION / inertia
    error = 100 * abs(float(speed[-1] - speed[50]) / (50 * timestep) / exact - 1)
    rows += [
        Measurement(
            "above_acceleration_error_percent", "105 % of it: acceleration against remaining torque / inertia", error, "%", at_most=0.5
        ),
        flagged_steps(*statuses),
    ]
    return Outcome(rows, [Plot("creep", "Joint under 95 % of its friction torque", "time [s]", "angle [rad]", lines, log="xy")])


def _arm(kappa: float, timestep: float) -> Mechanism:
    hinge = Revolute(None, "rod", axis=(1.0, 0.0, 0.0), child_anchor=(0.0, 0.0, 0.5 * LENGTH), friction=FRICTION)
    # Creep at kappa = 1e-10 is 0.2 µrad/s, so the equations must hold to a tighter tolerance.
    options = SolverOptions(kappa=kappa, residual_tol=1e-12)
    rod = Body(MASS, shape=Box((WIDTH, WIDTH, LENGTH)))
    return Mechanism({"rod": rod}, {"hinge": hinge}, timestep=timestep, gravity=(0.0, 0.0, 0.0), options=options)


def _mujoco_turn(setting: Setting, timestep: float, steps: int) -> float | None:
    """Way [rad] in `steps` steps of MuJoCo under 95 % of the friction torque."""
    if setting.mujoco is None:
        return None
    joint = f'frictionloss="{FRICTION}"'
    scene = reference.hinge_scene(joint, width=WIDTH, length=LENGTH, mass=MASS, timestep=timestep, gravity=0.0)
    _, q, _ = reference.simulate(setting.mujoco, scene, steps, torque=[0.95 * FRICTION])
    return float(q[-1, 0])

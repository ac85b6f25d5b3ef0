"""Coulomb friction: boxes that slide straight and stop where they should, and boxes that stick on slopes.

The box has 0.5 m x 0.5 m x 0.2 m, 1 kg and friction 0.5, and touches with its four lower corners. A slope is gravity turned about y.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchdojo import models
from torchdojo import quaternion as quat
from torchdojo.elements.contacts import LinearContact, NonlinearContact
from torchdojo.evaluation import mujoco_reference as reference
from torchdojo.evaluation.experiment import Line, Measurement, Outcome, Plot, Setting, flagged_steps, rivals_by_field, slug
from torchdojo.mechanism import Mechanism
from torchdojo.solver.options import SolverOptions
from torchdojo.testing.diagnostics import resting_gap

__all__ = ["creep_rows", "sliding_box", "slope"]

SIZE, MASS, FRICTION, GRAVITY, TIMESTEP = (0.5, 0.5, 0.2), 1.0, 0.5, 9.81, 0.01
HALF = (0.25, 0.25, 0.1)
HEADINGS = 8


def sliding_box(setting: Setting) -> Outcome:
    """Boxes start at 1, 2 and 4 m/s in eight headings, and slide until they stop.

    Headings are 50.625 degrees apart. They go all around, and spread evenly within the quarter turn after which box and pyramid repeat.
    With the deceleration μg the implicit step covers v²/(2μg) − v h/2, since the first step is made with the velocity at its end.

    A pyramid of four sides brakes only the faster of the coordinates x and y until both are equal, and then each half as much. A box that
    starts at the angle α <= 45° to one of the axes ends v²/(2μg) sin α cos 2α beside its heading.
    """
    speeds = (1.0, 2.0, 4.0)
    heading = torch.deg2rad(50.625 * torch.arange(HEADINGS, dtype=torch.float64))
    along = torch.stack((heading.cos(), heading.sin(), torch.zeros_like(heading)), -1)
    rows: list[Measurement] = []
    arrays = {}
    for speed in speeds:
        steps = round(1.3 * speed / (FRICTION * GRAVITY) / TIMESTEP) + 50
        ours = _slides(_box(kappa=1e-6), speed, along, steps)
        pyramid = _slides(_box(kappa=1e-6, pyramid=True), speed, along, steps)
        rivals = _mujoco_slides(setting, speed, along, steps)
        rows += _slide_rows(speed, ours, pyramid, rivals, _pyramid_drift(speed, along))
        name = f"{speed:g}_m_per_s"
        arrays[f"{name}_forward"], arrays[f"{name}_sideways"] = ours.forward, ours.sideways
    lines = {}
    cases = {"torchdojo, exact cone": ours, "torchdojo, pyramid": pyramid, **{f"MuJoCo {cone}": slides for cone, slides in rivals.items()}}
    for label, slides in cases.items():  # at the highest speed
        most = int(slides.sideways[:, -1].abs().argmax())
        lines[label] = Line(slides.forward[most], 1e3 * slides.sideways[most])
    plot = Plot("drift", "Box from 4 m/s, the heading that drifts most", "along the heading [m]", "across it [mm]", lines)
    return Outcome(rows, [plot], arrays)


def _slide_rows(speed: float, ours: Slides, pyramid: Slides, rivals: dict[str, Slides], pyramid_drift: float) -> list[Measurement]:
    """Measurements of slides from `speed` [m/s] with the cone and with the pyramid, whose exact drift [m] is given."""
    name, mujoco = f"{speed:g}_m_per_s", rivals_by_field(Slides, rivals)
    return [
        Measurement(
            f"{name}_drift_m", f"{speed:g} m/s: lateral drift, largest of {HEADINGS} headings", ours.drift, "m", at_most=1e-3,
            mujoco=mujoco["drift"],
        ),
        Measurement(f"{name}_yaw_degrees", "largest yaw", ours.yaw, "°", mujoco=mujoco["yaw"]),
        Measurement(
            f"{name}_stopping_error_percent", "stopping distance against v²/(2μg) − vh/2", ours.error, "%", at_most=0.5,
            mujoco=mujoco["error"],
        ),
        flagged_steps(ours.status, name=name),
        Measurement(
            f"{name}_pyramid_drift_m", "lateral drift with the four-sided pyramid of LinearContact", pyramid.drift, "m",
            mujoco=rivals["pyramidal"].drift if rivals else None,
        ),
        Measurement(
            f"{name}_pyramid_drift_error_percent", "against v²/(2μg) sin α cos 2α", 100 * abs(pyramid.drift / pyramid_drift - 1), "%",
            at_most=0.5,
        ),
        flagged_steps(pyramid.status, name=f"{name}_pyramid"),
    ]  # fmt: skip


def slope(setting: Setting) -> Outcome:
    """A box on a slope creeps below the friction angle, and slides above it.

    A sticking contact creeps at κ|ξ₂₃|/(ξ₁² − |ξ₂₃|²). The prediction shares the weight equally among the four corners; it is compared with
    the way in the last half of the run. Above the friction angle the acceleration is g (sin α − μ cos α).
    """
    seconds = 6 if setting.quick else 60
    steps = round(seconds / TIMESTEP)
    critical = math.atan(FRICTION)
    rows: list[Measurement] = []
    lines: dict[str, Line] = {}
    statuses: list[Tensor] = []
    for fraction, kappa, most in ((0.95, 1e-6, None), (0.95, 1e-8, None), (0.95, 1e-10, 10e-6), (0.5, 1e-10, 1e-6)):
        angle = fraction * critical
        mech = _box(kappa=kappa, slope=angle)
        z = mech.rollout(_lying(mech, torch.zeros(3, dtype=torch.float64)), steps=100).z[-1]  # one second to settle
        path = mech.rollout(z, steps=steps)
        statuses.append(path.status)
        way = (path.z[:, 0] - path.z[0, 0]).abs()
        rows += creep_rows(
            slug(f"{fraction:g}_angle_kappa_{kappa:.0e}"), f"{fraction:.0%} of the friction angle, kappa {kappa:g}", way, TIMESTEP, "m",
            _predicted_creep(kappa, angle), at_most=most, error_at_most=1.0, mujoco=_mujoco_creep(setting, angle, steps),
        )  # fmt: skip
        if fraction == 0.95:
            lines[f"kappa {kappa:g}"] = Line(TIMESTEP * np.arange(1, steps + 1), way[1:].clamp_min(1e-12))
    for factor in (1.1, 1.5):
        row, status = _sliding_row(factor, factor * critical)
        rows.append(row)
        statuses.append(status)
    rows.append(flagged_steps(*statuses))
    return Outcome(rows, [Plot("creep", "Box at 95 % of the friction angle", "time [s]", "way [m]", lines, log="xy")])


def creep_rows(
    name: str, label: str, way: Tensor, timestep: float, unit: str, predicted: float,
    *, at_most: float | None, error_at_most: float, mujoco: float | None,
) -> list[Measurement]:  # fmt: skip
    """Measurements of a way (T+1,) in `unit` that creeps: its length, and its speed in the last half against the predicted one."""
    steps = len(way) - 1
    half = steps // 2
    speed = float(way[-1] - way[half]) / (timestep * (steps - half))
    error = 100 * abs(speed / predicted - 1)
    return [
        Measurement(
            f"{name}_way_{unit}", f"{label}: way in {timestep * steps:g} s", float(way[-1]), unit, at_most=at_most, mujoco=mujoco
        ),
        Measurement(f"{name}_creep_{unit}_per_s", f"creep (central path: {predicted:.4g})", speed, f"{unit}/s"),
        Measurement(f"{name}_creep_error_percent", "creep against the central path's prediction", error, "%", at_most=error_at_most),
    ]  # fmt: skip


def _sliding_row(factor: float, angle: float) -> tuple[Measurement, Tensor]:
    """Measurement of the acceleration on a slope of `angle`, `factor` times the friction angle, and the statuses of the steps."""
    mech = _box(kappa=1e-6, slope=angle)
    path = mech.rollout(_lying(mech, torch.zeros(3, dtype=torch.float64)), steps=100)
    velocity = path.z[:, 3].abs()
    acceleration = float(velocity[-1] - velocity[50]) / (50 * TIMESTEP)
    exact = GRAVITY * (math.sin(angle) - FRICTION * math.cos(angle))
    row = Measurement(
        slug(f"{factor:g}_angle_acceleration_error_percent"),
        f"{factor:.0%} of the friction angle: acceleration against g (sin α − μ cos α)",
        100 * abs(acceleration / exact - 1), "%", at_most=0.5,
    )  # fmt: skip
    return row, path.status


# -- torchdojo -----------------------------------------------------------------------------------------------------------------------------


def _box(*, kappa: float, slope: float = 0.0, pyramid: bool = False) -> Mechanism:
    """The box, with the friction cone or with a pyramid of four sides."""
    gravity = (GRAVITY * math.sin(slope), 0.0, -GRAVITY * math.cos(slope))
    mech = models.box(size=SIZE, mass=MASS, friction=FRICTION, timestep=TIMESTEP, gravity=gravity)
    if pyramid:
        points = {name: corner.point for name, corner in mech.contacts.items() if isinstance(corner, NonlinearContact)}
        corners = {name: LinearContact("box", point=point, friction=FRICTION) for name, point in points.items()}
        mech = Mechanism(dict(mech.bodies.items()), (), corners, timestep=TIMESTEP, gravity=gravity)
    # Creep at kappa = 1e-10 is a few nm/s, so the equations must hold to a tighter tolerance.
    mech.options = SolverOptions(kappa=kappa, residual_tol=1e-12)
    return mech


class Slides(NamedTuple):
    """Slides in all headings: ways along and across (n, T+1) [m]; the largest drift [m], yaw [degrees] and stopping error [%]; statuses."""

    forward: Tensor
    sideways: Tensor
    drift: float
    yaw: float
    error: float
    status: Tensor


def _slides(mech: Mechanism, speed: float, along: Tensor, steps: int) -> Slides:
    path = mech.rollout(_lying(mech, speed * along), steps=steps)
    return _evaluate(path.z[..., :3], path.z[..., 6:10], speed, along, path.status)


def _evaluate(x: Tensor, q: Tensor, speed: float, along: Tensor, status: Tensor) -> Slides:
    """Slides with positions x (n, T+1, 3) and orientations q (n, T+1, 4)."""
    across = torch.stack((-along[:, 1], along[:, 0], torch.zeros_like(along[:, 0])), -1)
    moved = x - x[:, :1]
    forward, sideways = (moved * along[:, None]).sum(-1), (moved * across[:, None]).sum(-1)
    yaw = math.degrees(float(quat.rotation_vector(q)[..., 2].abs().max()))
    expected = speed**2 / (2 * FRICTION * GRAVITY) - 0.5 * speed * TIMESTEP
    error = 100 * float((forward[:, -1] / expected - 1).abs().max())
    return Slides(forward, sideways, float(sideways.abs().max()), yaw, error, status)


def _pyramid_drift(speed: float, along: Tensor) -> float:
    """Largest v²/(2μg) sin α cos 2α of all headings [m]."""
    sine = along[:, :2].abs().amin(-1)
    return speed**2 / (2 * FRICTION * GRAVITY) * float((sine * (1 - 2 * sine * sine)).max())


def _lying(mech: Mechanism, velocity: Tensor) -> Tensor:
    """State of a box at the height at which it rests on the central path, with `velocity` (..., 3) [m/s]."""
    height = 0.5 * SIZE[2] + resting_gap(mech, contacts=4)
    return mech.initial_state(velocity.shape[:-1], box={"position": (0.0, 0.0, height), "velocity": velocity})


def _predicted_creep(kappa: float, angle: float) -> float:
    """Creep κ|ξ₂₃|/(ξ₁² − |ξ₂₃|²) [m/s] with a quarter of the weight on each corner."""
    weight = 0.25 * MASS * GRAVITY * TIMESTEP
    bound, tangential = FRICTION * weight * math.cos(angle), weight * math.sin(angle)
    return kappa * tangential / (bound**2 - tangential**2)


# -- MuJoCo --------------------------------------------------------------------------------------------------------------------------------


def _mujoco_slides(setting: Setting, speed: float, along: Tensor, steps: int) -> dict[str, Slides]:
    """Slides of MuJoCo's box geom by friction cone. The box settles before it is pushed."""
    if setting.mujoco is None:
        return {}
    slides: dict[str, Slides] = {}
    for cone in ("pyramidal", "elliptic"):
        scene = reference.box_scene(half=HALF, mass=MASS, friction=FRICTION, timestep=TIMESTEP, gravity=(0.0, 0.0, -GRAVITY), cone=cone)
        settled = reference.simulate(setting.mujoco, scene, 200)[1][-1]
        paths = []
        for direction in along:
            push = (*(speed * direction).tolist(), 0, 0, 0)
            paths.append(reference.simulate(setting.mujoco, scene, steps, qpos=(0, 0, settled[2], 1, 0, 0, 0), qvel=push)[1])
        q = torch.from_numpy(np.stack(paths))
        slides[cone] = _evaluate(q[..., :3], q[..., 3:7], speed, along, torch.zeros(0))
    return slides


def _mujoco_creep(setting: Setting, angle: float, steps: int) -> float | None:
    """Way [m] of a settled box of MuJoCo in `steps` steps, with the elliptic cone."""
    if setting.mujoco is None:
        return None
    gravity = (GRAVITY * math.sin(angle), 0.0, -GRAVITY * math.cos(angle))
    scene = reference.box_scene(half=HALF, mass=MASS, friction=FRICTION, timestep=TIMESTEP, gravity=gravity, cone="elliptic")
    _, q, _ = reference.simulate(setting.mujoco, scene, 100 + steps)
    return float(abs(q[-1, 0] - q[100, 0]))

"""Properties of a variational integrator: joints stay together, energy does not drift, and a damped pendulum decays as it should."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torchdojo import models
from torchdojo.evaluation import mujoco_reference as reference
from torchdojo.evaluation.experiment import Line, Measurement, Outcome, Plot, Setting, flagged_steps, slug
from torchdojo.evaluation.linkages import hinged, planar_state, rods_to_points
from torchdojo.mechanism import Mechanism

__all__ = ["damped_pendulum", "double_pendulum", "three_link_loop", "total_energy"]

GRAVITY = 9.81  # [m/s²]


def total_energy(mech: Mechanism, z: Tensor) -> Tensor:
    """Energy [J], (..., T+1), at the configurations of a path z (..., T+2, 13 nb), with momenta by the discrete Legendre transform."""
    return mech.kinetic_energy(z[..., :-1, :], z[..., 1:, :]) + mech.potential_energy(z[..., :-1, :])


# -- a closed loop -------------------------------------------------------------------------------------------------------------------------


def three_link_loop(setting: Setting) -> Outcome:
    """A crank, a coupler and a rocker (1 m, 1 kg) are hinged to each other and, 1 m apart, to the world.

    The loop swings with h = 0.01 s. Its four hinges have five rows each on 18 velocities with one degree of freedom: three rows are
    redundant.
    """
    seconds, timestep = (10 if setting.quick else 60), 0.01
    tilt = 0.6  # angle of crank and rocker from hanging [rad]
    swing = (math.sin(tilt), -math.cos(tilt))
    points = {"A": (0.0, 0.0), "B": swing, "C": (1.0 + swing[0], swing[1]), "D": (1.0, 0.0)}
    rods = {"crank": ("A", "B"), "coupler": ("B", "C"), "rocker": ("C", "D")}
    mech = hinged(rods, points, fixed=("A", "D"), timestep=timestep)
    path = mech.rollout(planar_state(mech, rods_to_points(rods, points)), steps=round(seconds / timestep))
    error = mech.joint_errors(path.z).abs().amax(-1)
    time = timestep * np.arange(len(error))
    return Outcome(
        [
            Measurement("constraint_drift_m", f"three-link loop, {seconds} s: largest joint error", float(error.max()), "m", at_most=1e-9),
            flagged_steps(path.status),
        ],
        [Plot("drift", "Three-link loop, h = 0.01 s", "time [s]", "largest joint error [m]", {"torchdojo": Line(time, error)}, log="y")],
    )


# -- energy without drift ------------------------------------------------------------------------------------------------------------------


def double_pendulum(setting: Setting) -> Outcome:
    """Two rods (1 m, 1 kg) are released at rest near the horizontal and swing for 100 s with h = 0.01 s.

    The energy error is measured as a fraction of 2 m g l. Such pendulums are chaotic, so a single path says little: sixteen are released
    between 80 and 103 degrees. Each path gives a least-squares slope of its energy over the last 90 s. The mean of these sixteen
    independent slopes must lie within three of its standard errors of zero. Without a trend, 1 of 110 samples would not; with an integrator
    that drifts, all slopes have the same sign.
    """
    seconds, timestep, count = (20 if setting.quick else 100), 0.01, 16
    steps = round(seconds / timestep)
    mech = models.npendulum(2, timestep=timestep)
    scale = 2 * 1.0 * GRAVITY * 1.0
    start = torch.stack((torch.linspace(1.4, 1.8, count, dtype=torch.float64), torch.zeros(count, dtype=torch.float64)), -1)
    path = mech.rollout(mech.to_maximal(start), steps=steps + 1)
    energy = total_energy(mech, path.z)
    error = ((energy - energy[:, :1]) / scale).numpy()
    time = timestep * np.arange(steps + 1)
    mean, deviation = _trend(time, error, since=10.0)
    theirs = {name: 100 * energy / scale for name, energy in _mujoco_energies(setting, start[0].numpy(), timestep, steps).items()}
    lines = {"torchdojo": Line(time, 100 * error[0])} | {f"MuJoCo {name}": Line(time, energy) for name, energy in theirs.items()}
    late = 100 * (seconds - 10)  # from a slope [1/s] to percent over the time in which the slope is taken
    return Outcome(
        [
            Measurement(
                "energy_error_percent", f"double pendulum, {seconds} s: largest energy error / 2mgl", 100 * float(np.abs(error).max()),
                "%", at_most=2.0,
            ),
            Measurement("trend_percent", f"trend of the energy over the last {seconds - 10} s / 2mgl", mean * late, "%"),
            Measurement("trend_standard_errors", "the same in its standard errors", abs(mean / deviation), at_most=3.0),
            Measurement(
                "energy_end_percent", "energy error at the end / 2mgl", 100 * float(error[0, -1]), "%",
                mujoco={name: float(energy[-1]) for name, energy in theirs.items()} or None,
            ),
            flagged_steps(path.status),
        ],
        [Plot("energy", "Double pendulum, h = 0.01 s", "time [s]", "energy error / 2mgl [%]", lines)],
        {"energy_error": error},
    )  # fmt: skip


def _mujoco_energies(setting: Setting, start: np.ndarray, timestep: float, steps: int) -> dict[str, np.ndarray]:
    """Energy errors [J] (steps + 1,) of two of MuJoCo's integrators."""
    errors: dict[str, np.ndarray] = {}
    if setting.mujoco is not None:
        for name in ("RK4", "Euler"):
            scene = reference.pendulum_scene(2, width=0.05, length=1.0, mass=1.0, timestep=timestep, integrator=name)
            model, q, v = reference.simulate(setting.mujoco, scene, steps, qpos=start)
            energy = reference.total_energy(setting.mujoco, model, q, v)
            errors[name] = energy - energy[0]
    return errors


def _trend(time: np.ndarray, error: np.ndarray, since: float) -> tuple[float, float]:
    """Mean [1/s] over paths of the least-squares slopes of error (paths, n) after `since` [s], and the standard error of the mean."""
    late = time >= since
    t = time[late] - time[late].mean()
    slopes = (error[:, late] @ t) / (t @ t)
    return float(slopes.mean()), float(slopes.std(ddof=1) / math.sqrt(len(slopes)))


# -- dissipation ---------------------------------------------------------------------------------------------------------------------------


def damped_pendulum(setting: Setting) -> Outcome:
    """A rod (1 m, 1 kg) is released at rest from 90 degrees; its energy with h = 0.1 s is compared with the exact curve.

    The exact curve integrates the pendulum's equation by a Runge-Kutta method with steps of 0.1 ms. The damping is 0.5 N·m·s/rad, a fifth
    of critical. With less damping, the energy at such a long step swings around the exact energy, by (ω h)² of the stored energy: shown for
    0.1 N·m·s/rad.
    """
    timestep, steps, angle = 0.1, 100, 0.5 * math.pi
    rows, lines = [], {}
    for damping, bound in ((0.5, 3.0), (0.1, None)):
        mech = models.pendulum(timestep=timestep, damper=damping)
        inertia = (0.1**2 + 1.0) / 12 + 0.25  # inertia of the rod's box about the hinge [kg·m²]
        gravity = 0.5 * GRAVITY
        # The velocity of a state leads to its configuration: half a step before rest, the rod still moves the other way.
        lead = 0.5 * timestep * gravity * math.sin(angle) / inertia
        path = mech.rollout(mech.initial_state(hinge={"q": angle, "qd": lead}), steps=steps + 1)
        bottom = float(mech.potential_energy(mech.initial_state()))
        ours = (total_energy(mech, path.z) - bottom).numpy()
        exact = _damped_energy(angle, inertia, gravity, damping, timestep, steps, substeps=1000)
        euler = _damped_energy(angle, inertia, gravity, damping, timestep, steps, substeps=1, order=1)
        time = timestep * np.arange(steps + 1)
        late = time >= 1.0
        error = 100 * float(np.abs(ours - exact)[late].max() / exact[0])
        theirs = 100 * float(np.abs(euler - exact)[late].max() / exact[0])
        name = slug(f"damped_{damping:g}")
        rows += [
            Measurement(
                f"{name}_energy_error_percent", f"damping {damping:g} N·m·s/rad: largest energy error after 1 s / initial energy",
                error, "%", at_most=bound,
            ),
            Measurement(f"{name}_euler_energy_error_percent", "the same for explicit Euler", theirs, "%"),
            flagged_steps(path.status, name=name),
        ]  # fmt: skip
        if bound is not None:
            lines = {"exact": Line(time, exact), "torchdojo": Line(time, ours), "explicit Euler": Line(time, np.clip(euler, None, 20))}
    return Outcome(rows, [Plot("energy", "Damped pendulum, h = 0.1 s", "time [s]", "energy [J]", lines)])


def _damped_energy(
    angle: float, inertia: float, gravity: float, damping: float, timestep: float, steps: int, *, substeps: int, order: int = 4
) -> np.ndarray:
    """Energy [J] above the lowest position, (steps + 1,), by a Runge-Kutta method of order 1 (explicit Euler) or 4."""

    def rate(y: np.ndarray) -> np.ndarray:
        return np.array([y[1], -(gravity * math.sin(y[0]) + damping * y[1]) / inertia])

    weights: Sequence[float] = (0.5, 0.5, 1.0) if order == 4 else ()
    h, y, energies = timestep / substeps, np.array([angle, 0.0]), []
    for _ in range(steps + 1):
        energies.append(0.5 * inertia * y[1] ** 2 + gravity * (1 - math.cos(y[0])))
        for _ in range(substeps):
            slopes = [rate(y)]
            for weight in weights:
                slopes.append(rate(y + weight * h * slopes[-1]))
            y = y + h * (slopes[0] if order == 1 else (slopes[0] + 2 * slopes[1] + 2 * slopes[2] + slopes[3]) / 6)
    return np.array(energies)

"""Spinning bodies: flips about the intermediate axis, and a top that turns over."""

from __future__ import annotations

import math

import numpy as np
import torch

from torchdojo import quaternion as quat
from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import NonlinearContact
from torchdojo.evaluation.experiment import Line, Measurement, Outcome, Plot, Setting, flagged_steps, smallest_distance
from torchdojo.mechanism import Mechanism
from torchdojo.solver.options import SolverOptions

__all__ = ["dzhanibekov", "tippe_top"]


def dzhanibekov(setting: Setting) -> Outcome:
    """A floating body of 0.1, 0.2, 0.3 kg·m² spins at 5 rad/s about its middle axis, with 0.01 rad/s about the first; h = 0.01 s.

    It turns over again and again. Euler's equations give the time between flips, from the zeros of the elliptic function sn (Landau and
    Lifshitz, Mechanics, section 37). Energy and angular momentum stay, because the scheme of Moser and Veselov conserves both.
    """
    seconds, timestep = (20 if setting.quick else 100), 0.01
    inertia, rates = (0.1, 0.2, 0.3), (0.01, 5.0, 0.0)
    mech = Mechanism({"body": Body(1.0, inertia)}, timestep=timestep, gravity=(0.0, 0.0, 0.0), options=SolverOptions(residual_tol=1e-12))
    path = mech.rollout(mech.initial_state(body={"angular_velocity": rates}), steps=round(seconds / timestep))
    spin = path.z[:, 11].numpy()
    time = timestep * np.arange(len(spin))
    before = np.flatnonzero(np.sign(spin[1:]) != np.sign(spin[:-1]))
    turns = time[before] + timestep * spin[before] / (spin[before] - spin[before + 1])
    intervals = np.diff(turns)
    exact = flip_interval(inertia, rates)
    energy = mech.kinetic_energy(path.z[:-1], path.z[1:])
    momentum = mech.momentum(path.z[:-1], path.z[1:])[:, 3:]
    return Outcome(
        [
            Measurement("flips", f"flips in {seconds} s", len(turns), at_least=math.floor(seconds / exact)),
            Measurement("interval_s", f"time between flips (Euler's equations: {exact:.4f} s)", float(intervals.mean()), "s"),
            Measurement("interval_error_percent", "the same, error", 100 * abs(float(intervals.mean()) / exact - 1), "%", at_most=0.5),
            Measurement("interval_spread_percent", "spread of these times", 100 * float(np.ptp(intervals)) / exact, "%", at_most=0.1),
            Measurement("energy_error_relative", "largest energy error", float((energy / energy[0] - 1).abs().max()), at_most=1e-9),
            Measurement(
                "momentum_error_Nms", "largest error of the angular momentum", float((momentum - momentum[0]).abs().max()), "N·m·s",
                at_most=1e-9,
            ),
            flagged_steps(path.status),
        ],
        [
            Plot(
                "spin", "Spin about the intermediate axis", "time [s]", "angular velocity [rad/s]",
                {f"axis {i + 1}": Line(time, path.z[:, 10 + i]) for i in range(3)},
            )
        ],
    )  # fmt: skip


def flip_interval(inertia: tuple[float, float, float], rates: tuple[float, float, float]) -> float:
    """Time [s] between sign changes of the middle rate by Euler's equations, for moments in increasing order and L² < 2 E I₂."""
    a, b, c = inertia
    twice_energy = sum(i * w * w for i, w in zip(inertia, rates, strict=True))
    square = sum((i * w) ** 2 for i, w in zip(inertia, rates, strict=True))
    frequency = math.sqrt((b - a) * (twice_energy * c - square) / (a * b * c))
    modulus2 = (c - b) * (square - twice_energy * a) / ((b - a) * (twice_energy * c - square))
    x, y = 1.0, math.sqrt(1 - modulus2)
    while abs(x - y) > 1e-15 * x:  # the arithmetic-geometric mean gives the complete elliptic integral K
        x, y = 0.5 * (x + y), math.sqrt(x * y)
    return 2 * (math.pi / (2 * x)) / frequency


def tippe_top(setting: Setting) -> Outcome:
    """A ball (2 cm, 6 g), whose center of mass lies 6 mm below its center, spins at 200 rad/s with friction 0.1.

    Slipping friction turns the top over, until the center of mass is above the center. With moments of inertia 0.4 m R² about all axes, the
    top inverts: 1 − a/R < I₁/I₃ < 1 + a/R (Cohen 1977; Ebenfeld and Scheck 1995). Whatever the friction, Jellett's integral
    L·(a e₃ − R e_z) is conserved; the vector leads from the center of mass to the point of contact. The top starts tilted by 0.05 rad,
    spinning about the vertical, and runs for 6 s with h = 0.5 ms and kappa = 1e-10.
    """
    radius, offset, mass, spin, tilt, timestep = 0.02, 0.006, 0.006, 200.0, 0.05, 5e-4
    moment = 0.4 * mass * radius**2
    mech = Mechanism(
        {"top": Body(mass, (moment, moment, moment))},
        contacts={"ball": NonlinearContact("top", point=(0.0, 0.0, offset), radius=radius, friction=0.1)},
        timestep=timestep,
        options=SolverOptions(kappa=1e-10, residual_tol=1e-12),
    )
    q = torch.tensor([math.cos(0.5 * tilt), math.sin(0.5 * tilt), 0.0, 0.0], dtype=torch.float64)
    omega = quat.inverse_rotate(q, torch.tensor([0.0, 0.0, spin], dtype=torch.float64))
    height = radius - offset * math.cos(tilt) + 1e-6
    z = mech.initial_state(top={"position": (0.0, 0.0, height), "orientation": q, "angular_velocity": omega})
    path = mech.rollout(z, steps=round(6.0 / timestep))
    up = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    axis = quat.rotate(path.z[:, 6:10], up)
    time = timestep * np.arange(len(axis))
    angular = moment * quat.rotate(path.z[:, 6:10], path.z[:, 10:13])
    jellett = (angular * (offset * axis - radius * up)).sum(-1)
    lost = 100 * float((jellett / jellett[0] - 1).abs().max())
    rise = 1e3 * float(path.z[-1, 2] - path.z[0, 2])
    angle = torch.rad2deg(torch.acos(axis[:, 2].clamp(-1, 1)))
    return Outcome(
        [
            Measurement("final_tilt_degrees", "angle of its axis from upright after 6 s", float(angle[-1]), "°", at_least=160.0),
            Measurement("rise_mm", "rise of the center of mass (2a = 12 mm)", rise, "mm", at_least=11.0),
            Measurement("jellett_error_percent", "largest error of Jellett's integral", lost, "%"),
            smallest_distance(mech.distances(path.z)),
            flagged_steps(path.status),
        ],
        [Plot("tilt", "Tippe top", "time [s]", "angle of the axis from upright [degrees]", {"torchdojo": Line(time, angle)})],
    )  # fmt: skip

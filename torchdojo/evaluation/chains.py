"""Hard mechanisms for the solver: long chains, chains of loops, a linkage through its singular position, pendulums of all scales."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch

from torchdojo import models
from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import NonlinearContact
from torchdojo.elements.joints import Floating, Joint, Spherical
from torchdojo.evaluation.conservation import GRAVITY, total_energy
from torchdojo.evaluation.experiment import Line, Measurement, Outcome, Plot, Setting, count_flagged, flagged_steps, slug, smallest_distance
from torchdojo.evaluation.linkages import Point, hinged, planar_state, rods_to_points
from torchdojo.geometry import shapes
from torchdojo.mechanism import Mechanism, Trajectory
from torchdojo.solver.options import SolverOptions

__all__ = ["double_four_bar", "four_bar_chain", "long_pendulums", "scaled_pendulums", "sphere_chains", "thrown_chain"]

TIMESTEP = 0.01  # [s]


Run = tuple[Mechanism, Trajectory]


def _run(setting: Setting, mech: Mechanism, z: torch.Tensor) -> Run:
    """Roll out 2 s, or 0.5 s if quick."""
    return mech, mech.rollout(z, steps=50 if setting.quick else 200)


def _failed_steps(label: str, runs: Sequence[Run], prefix: str = "") -> Measurement:
    failed = sum(count_flagged(path.status) for _, path in runs)
    return Measurement(f"{prefix}failed_steps", f"{label}: steps without success", failed, at_most=0)


def _joint_error(runs: Sequence[Run]) -> float:
    """Largest joint error [m] of all runs."""
    return max(float(mech.joint_errors(path.z).abs().max()) for mech, path in runs)


def _iterations(runs: Sequence[Run]) -> list[float]:
    """Mean iterations per step of each run."""
    return [float(path.iterations.double().mean()) for _, path in runs]


# -- open chains ---------------------------------------------------------------------------------------------------------------------------


def long_pendulums(setting: Setting) -> Outcome:
    """Chains of n rods (1 m, 1 kg) are released at 45 degrees, at three tolerances of the solver; 2 s with h = 0.01 s."""
    rows: list[Measurement] = []
    lines: dict[str, Line] = {}
    counts = (1, 10, 100) if setting.quick else (1, 2, 5, 10, 20, 50, 100)
    for tolerance in (1e-6, 1e-8, 1e-10):
        runs = [_run(setting, *_pendulum(n, tolerance)) for n in counts]
        name = slug(f"tolerance_{tolerance:.0e}")
        rows += [
            _failed_steps(f"pendulums of 1 to {counts[-1]} links, residual {tolerance:g}", runs, f"{name}_"),
            Measurement(f"{name}_joint_error_m", "largest joint error", _joint_error(runs), "m", at_most=tolerance),
            Measurement(f"{name}_iterations_mean", f"iterations per step of {counts[-1]} links", _iterations(runs)[-1]),
        ]
        lines[f"residual {tolerance:g}"] = Line(np.array(counts), np.array(_iterations(runs)))
    return Outcome(rows, [Plot("iterations", "Pendulums of n links", "links", "iterations per step, mean", lines, log="x")])


def _pendulum(n: int, tolerance: float) -> tuple[Mechanism, torch.Tensor]:
    mech = models.npendulum(n, timestep=TIMESTEP)
    mech.options = SolverOptions(residual_tol=tolerance)
    return mech, models.initial_state("npendulum", mech)


def sphere_chain(n: int) -> Mechanism:
    """A row of n balls (5 cm, 0.1 kg). Ball joints tie neighbors where they touch; each ball has a friction contact with the ground."""
    radius, names = 0.05, [f"ball{i}" for i in range(n)]
    joints: dict[str, Joint] = {"base": Floating(None, names[0], actuated=False)}
    for a, b in itertools.pairwise(names):
        joints[f"{a}_{b}"] = Spherical(a, b, parent_anchor=(radius, 0, 0), child_anchor=(-radius, 0, 0), damper=1e-3)
    bodies = {name: Body(0.1, shape=shapes.Sphere(radius)) for name in names}
    return Mechanism(bodies, joints, {name: NonlinearContact(name, radius=radius) for name in names}, timestep=TIMESTEP)


def thrown_chain(n: int) -> tuple[Mechanism, torch.Tensor]:
    """Mechanism and state (13 n,) of the chain 5 cm above the ground, thrown flat with a wave across it."""
    mech = sphere_chain(n)
    z = mech.initial_state(base={"q": (0.0, 0.0, 0.1, 0.0, 0.0, 0.0)})
    # A wave is twenty balls long in all chains, with 0.5 m/s. The balls do not turn to match; the joint impulses of the first step turn
    # them.
    z[..., 4::13] = 0.5 * torch.sin(torch.arange(n, dtype=torch.float64) * (2 * math.pi / 20))
    return mech, z


def sphere_chains(setting: Setting) -> Outcome:
    """Chains of balls, thrown flat with a wave across them, fall 5 cm and roll out on the ground; 2 s with h = 0.01 s."""
    counts = (10, 100) if setting.quick else (1, 2, 5, 10, 20, 50, 100)
    runs = [_run(setting, *thrown_chain(n)) for n in counts]
    rows = [
        _failed_steps(f"chains of {counts[0]} to {counts[-1]} balls", runs),
        smallest_distance(torch.stack([mech.distances(path.z).min() for mech, path in runs])),
        Measurement("iterations_mean", f"iterations per step of {counts[-1]} balls", _iterations(runs)[-1]),
    ]
    line = {"torchdojo": Line(np.array(counts), np.array(_iterations(runs)))}
    return Outcome(rows, [Plot("iterations", "Chains of balls on the ground", "balls", "iterations per step, mean", line, log="x")])


# -- closed chains -------------------------------------------------------------------------------------------------------------------------


def four_bar_chain(setting: Setting) -> Outcome:
    """Chains of rhombic loops of four rods (0.5 m, 1 kg) swing, hung corner to corner from the world; 2 s, h = 0.01 s.

    Where one loop hangs on another, four rods share a point, with three hinges. Each loop has three redundant rows.
    """
    counts = (1, 20) if setting.quick else (1, 2, 5, 10, 20)
    runs = [_run(setting, *rhombic_chain(n)) for n in counts]
    halved = sum(int((path.substeps > 1).sum()) for _, path in runs)
    rows = [
        _failed_steps(f"chains of {counts[0]} to {counts[-1]} loops", runs),
        Measurement("joint_error_m", "largest joint error", _joint_error(runs), "m", at_most=1e-9),
        Measurement("halved_steps", "steps taken in parts", halved),
        Measurement("iterations_mean", f"iterations per step of {counts[-1]} loops", _iterations(runs)[-1]),
    ]
    line = {"torchdojo": Line(np.array(counts), np.array(_iterations(runs)))}
    return Outcome(rows, [Plot("iterations", "Chains of loops of four rods", "loops", "iterations per step, mean", line, log="x")])


def rhombic_chain(n: int) -> tuple[Mechanism, torch.Tensor]:
    """Mechanism of n loops, and the state in which it is released, turned by 0.5 rad about its hinge."""
    side, opening, tilt = 0.5, 0.7, 0.5  # [m], half the angle at the hung corner [rad], [rad]
    wide, tall = side * math.sin(opening), side * math.cos(opening)

    def turned(y: float, z: float) -> Point:
        return y * math.cos(tilt) - z * math.sin(tilt), y * math.sin(tilt) + z * math.cos(tilt)

    points = {"corner0": (0.0, 0.0)}
    rods = {}
    for i in range(n):
        top = -2 * i * tall
        points |= {
            f"left{i}": turned(-wide, top - tall),
            f"right{i}": turned(wide, top - tall),
            f"corner{i + 1}": turned(0.0, top - 2 * tall),
        }
        for side_name in ("left", "right"):
            rods[f"{side_name}_upper{i}"] = (f"corner{i}", f"{side_name}{i}")
            rods[f"{side_name}_lower{i}"] = (f"{side_name}{i}", f"corner{i + 1}")
    mech = hinged(rods, points, fixed=("corner0",), timestep=TIMESTEP)
    return mech, planar_state(mech, rods_to_points(rods, points))


def double_four_bar(setting: Setting) -> Outcome:
    """The double four-bar of the benchmark of González et al. (2006) is released upright at 1 m/s; 10 s with h = 0.01 s.

    It has three parallel cranks and two couplers, rods of 1 m and 1 kg. Whenever the cranks lie horizontally, all rods are in line. There
    the linkage has more degrees of freedom and its equations lose rank: a solver may fail, or gain energy. The energy error is relative to
    the energy that the linkage exchanges. The centers of the three cranks go up and down by l, and the two couplers by 2 l.
    """
    seconds, timestep = 10, TIMESTEP
    points: dict[str, Point] = {f"A{i}": (float(i), 0.0) for i in range(3)} | {f"B{i}": (float(i), 1.0) for i in range(3)}
    rods = {f"crank{i}": (f"B{i}", f"A{i}") for i in range(3)} | {"coupler0": ("B0", "B1"), "coupler1": ("B1", "B2")}
    mech = hinged(rods, points, fixed=("A0", "A1", "A2"), timestep=timestep)
    ends = rods_to_points(rods, points)
    top: tuple[Point, Point] = ((1.0, 0.0), (1.0, 0.0))
    velocities = {name: (top if "coupler" in name else (top[0], (0.0, 0.0))) for name in rods}
    path = mech.rollout(planar_state(mech, ends, velocities), steps=round(seconds / timestep) + 1)
    energy = total_energy(mech, path.z)
    scale = 2 * GRAVITY * (3 * 0.5 + 2 * 1.0)
    error = 100 * ((energy - energy[0]) / scale).numpy()
    time = timestep * np.arange(len(error))
    height = path.z[:-1, 2].numpy()  # height of the center of the first crank: zero where all rods are in line
    crossings = int((np.diff(np.sign(height)) != 0).sum())
    return Outcome(
        [
            Measurement("energy_error_percent", f"{seconds} s: largest energy error / 2mgl", float(np.abs(error).max()), "%", at_most=2.0),
            Measurement("singular_crossings", "passages through the singular position", crossings, at_least=5),
            Measurement("joint_error_m", "largest joint error", float(mech.joint_errors(path.z).abs().max()), "m", at_most=1e-9),
            Measurement("halved_steps", "steps taken in parts", int((path.substeps > 1).sum())),
            flagged_steps(path.status),
        ],
        [
            Plot("energy", "Double four-bar", "time [s]", "energy error / 2mgl [%]", {"torchdojo": Line(time, error)}),
            Plot("height", "Double four-bar", "time [s]", "height of the first crank [m]", {"torchdojo": Line(time, height)}),
        ],
    )  # fmt: skip


# -- scales --------------------------------------------------------------------------------------------------------------------------------


def scaled_pendulums(setting: Setting) -> Outcome:
    """Pendulums of 1, 0.5 and 0.1 m are released at 90 degrees and swing for 10 s, with h from 1 ms to 0.1 s.

    Their mass goes with the cube of the length. No step fails. The energy error, relative to 2 m g l, goes with the square of h ω, where
    ω² = 3g/2l: the scheme has its order at every scale. The measured order is the slope of the error over h between 1 and 10 ms.
    """
    rows: list[Measurement] = []
    lines: dict[str, Line] = {}
    timesteps = np.geomspace(1e-3, 1e-1, 3 if setting.quick else 9)
    flagged = 0
    for scale in (1.0, 0.5, 0.1):
        errors = []
        for timestep in timesteps:
            mech = models.pendulum(length=scale, mass=scale**3, timestep=float(timestep))
            mech.options = SolverOptions(residual_tol=1e-12)  # [N·m·s]: the smallest pendulum weighs 1 g
            path = mech.rollout(mech.initial_state(hinge={"q": 0.5 * math.pi}), steps=math.ceil(10 / timestep))
            flagged += count_flagged(path.status)
            energy = total_energy(mech, path.z)
            errors.append(float((energy - energy[0]).abs().max()) / (2 * scale**4 * GRAVITY))
        lines[f"{scale:g} m"] = Line(timesteps, 100 * np.array(errors))
        middle = len(timesteps) // 2
        order = math.log(errors[middle] / errors[0]) / math.log(timesteps[middle] / timesteps[0])
        name = slug(f"length_{scale:g}_m")
        rows += [
            Measurement(f"{name}_order", f"{scale:g} m: order of the energy error in h", order, at_least=1.8, at_most=2.2),
            Measurement(f"{name}_error_percent", "largest energy error at h = 10 ms / 2mgl", 100 * errors[middle], "%"),
        ]
    rows.append(Measurement("failed_steps", "steps without success", flagged, at_most=0))
    return Outcome(rows, [Plot("energy", "Pendulums of three sizes", "h [s]", "largest energy error / 2mgl [%]", lines, log="xy")])

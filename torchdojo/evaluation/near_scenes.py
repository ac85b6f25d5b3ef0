"""Scenes whose bodies touch at near terms: overlaps, flags, energy from nothing, and creep at rest are measured.

On the central path a contact has the energy −(κ/h) ln φ, which it gives back as its gap φ opens. So a scene may gain as much as its terms
can hold between their least gap and the reach, and no more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchdojo.elements.near_contact import NearContact
from torchdojo.evaluation import near_worlds as worlds
from torchdojo.evaluation.experiment import Experiment, Line, Measurement, Outcome, Plot, Setting, count_flagged, smallest_distance
from torchdojo.geometry.near_terms import NOTHING, REACH
from torchdojo.solver.options import Status
from torchdojo.testing.diagnostics import creep

__all__ = ["EXPERIMENTS"]

RESTING = 0.1  # share of the time, at the end, in which a scene should be at rest


class _Case(NamedTuple):
    """How a scene is measured.

    seconds: of a quick, a usual and a long run. options: of the scene. long: other options of the long run. creep: largest drift at
    rest [m/s]; None: the scene is still in motion. flagged, split: percent of the steps allowed.
    """

    title: str
    seconds: tuple[float, float, float]
    options: Mapping[str, float] = {}
    long: Mapping[str, float] = {}
    creep: float | None = None
    flagged: float = 0.0
    split: float = 10.0


HARD = {"kappa": 1e-8}  # at 1e-6 what rests askew creeps by µm/s

CASES: dict[str, _Case] = {
    "stack": _Case("Ten boxes on each other", (0.2, 2.0, 5.0), HARD, creep=1e-9),
    "dominoes": _Case("Twelve dominoes fall", (0.05, 1.5, 3.0)),
    "peg": _Case("A peg falls into a hole", (0.2, 1.0, 5.0), HARD, creep=1e-6),
    "wall": _Case("A brick wall stands", (0.05, 1.0, 5.0), HARD, creep=1e-9),
    "arch": _Case("An arch without mortar stands", (0.2, 1.0, 5.0), HARD, creep=20e-6),
    "cradle": _Case("Five balls in a row pass on momentum", (0.03, 0.03, 0.03)),
    "grasp": _Case("Two fingers hold a cube", (0.5, 5.0, 5.0), creep=1e-6),
    "pinch": _Case("Two fingers hold a capsule", (1.0, 10.0, 60.0), creep=1e-6),
    "drops": _Case("Hulls of 4 to 200 corners are dropped", (0.2, 1.0, 5.0)),
    "cylinder": _Case("A cylinder lies on a box", (0.2, 1.5, 5.0), HARD, creep=1e-9),
    "pour": _Case("Hulls are poured into a bin at 4 m/s", (0.01, 0.06, 0.5), long={"count": 20}, flagged=1.0),
}


class _Path(NamedTuple):
    """States (T+1, 13 nb), gaps of pairs (T+1, pairs) [m], energy of each step (T,) [J], statuses, iterations and parts of steps (T,)."""

    z: Tensor
    gaps: Tensor
    energy: Tensor
    status: Tensor
    iterations: Tensor
    substeps: Tensor
    solution: Tensor


def _run(scene: worlds.Scene, seconds: float) -> _Path:
    steps = round(seconds / float(scene.mech.timestep))
    path = scene.mech.rollout(scene.z, None if scene.u is None else scene.u.expand(steps, -1), steps=steps)
    return _Path(path.z, scene.gaps(path.z), scene.energy(path.z), path.status, path.iterations, path.substeps, path.solution[-1])


def _measure(name: str, setting: Setting) -> Outcome:
    case = CASES[name]
    seconds = case.seconds[0 if setting.quick else 2 if setting.long else 1]
    scene = worlds.SCENES[name](**{**case.options, **(case.long if setting.long else {})})
    path = _run(scene, seconds)
    rows = _rows(scene, path, case, seconds, rests=case.creep is not None and not setting.quick)
    if name in ("grasp", "pinch"):
        rows.append(_predicted(scene, path))
    if name == "cradle":
        rows += _passed_on(scene, path)
    time = float(scene.mech.timestep) * np.arange(len(path.z))
    heights = scene.places(path.z)[..., 2].numpy()
    least = path.gaps.amin(-1).clamp_min(1e-12).numpy()
    plots = [
        Plot(
            "heights", f"{case.title}, h = {1e3 * float(scene.mech.timestep):g} ms", "time [s]", "height [m]",
            {body: Line(time, heights[:, i]) for i, body in enumerate(scene.mech.bodies)},
        ),
        Plot("gap", f"{case.title}: the smallest gap", "time [s]", "gap [m]", {"smallest gap": Line(time, least)}, log="y"),
        Plot("energy", f"{case.title}: energy", "time [s]", "energy [J]", {"energy": Line(time[1:], path.energy.numpy())}),
    ]  # fmt: skip
    return Outcome(rows, plots, {"states": path.z, "gaps": path.gaps})


def _rows(scene: worlds.Scene, path: _Path, case: _Case, seconds: float, *, rests: bool) -> list[Measurement]:
    steps, kept = len(path.status), path.status == int(Status.SUCCESS)
    flagged, split = count_flagged(path.status), int((path.substeps > 1).sum())
    overlap = (-path.gaps[1:][kept].amin(-1)).clamp_min(0) if bool(kept.any()) else path.gaps.new_zeros(1)
    earlier = torch.cummin(path.energy, 0).values[:-1]
    growth = max(0.0, float((path.energy[1:] - earlier).max()))
    least = max(float(path.gaps.min()), 1e-9)
    barrier = scene.mech.options.kappa / float(scene.mech.timestep) * _terms(scene) * math.log(max(REACH / least, math.e))
    last = max(1, round(RESTING * steps))
    place = scene.places(path.z)[..., :3]
    drift = float(torch.linalg.vector_norm(place[-1] - place[-1 - last], dim=-1).max()) / (last * float(scene.mech.timestep))
    return [
        Measurement("flagged_steps", f"{seconds:g} s, {steps} steps: flagged", flagged, at_most=math.floor(case.flagged / 100 * steps)),
        Measurement("split_steps", "split", split, at_most=math.ceil(case.split / 100 * steps)),
        Measurement("penetration_m", "largest penetration in steps without a flag", float(overlap.max()), "m", at_most=0.0),
        smallest_distance(path.gaps[1:][kept] if bool(kept.any()) else path.gaps),
        Measurement("energy_growth_J", "largest growth of the energy over its least value before", growth, "J", at_most=barrier),
        Measurement("iterations", "iterations of a step, mean", float(path.iterations.double().mean())),
        Measurement(
            "iterations_at_rest" if rests else "iterations_at_the_end", f"iterations in the last {100 * RESTING:g} %, mean",
            float(path.iterations[-last:].double().mean()), at_most=3.0 if rests else None,
        ),
        Measurement(
            "creep_um_per_s" if rests else "speed_at_the_end_um_per_s", "largest drift of a body in that time", 1e6 * drift, "µm/s",
            at_most=1e6 * case.creep if rests and case.creep is not None else None,
        ),
    ]  # fmt: skip


def _terms(scene: worlds.Scene) -> int:
    """Slots that have a term at the end."""
    contacts = [contact for contact in scene.mech.contacts.values() if isinstance(contact, NearContact)]
    return sum(int((contact.term[..., 0] != NOTHING).sum()) for contact in contacts)


def _predicted(scene: worlds.Scene, path: _Path) -> Measurement:
    """Slip on the central path at a place that carries γ and β, both in a step: κ β / ((μγ)² − β²)."""
    out = scene.mech.step(path.z[-1], scene.u, warm_start=path.solution)
    speeds = creep(scene.mech, out)
    value = float(speeds[speeds > 0].mean())
    return Measurement("predicted_creep_um_per_s", "κ β / ((μγ)² − β²) at the end, mean of places", 1e6 * value, "µm/s", at_most=1.0)


def _passed_on(scene: worlds.Scene, path: _Path) -> list[Measurement]:
    """Near contacts do not bounce: all balls go on together, with all of the momentum."""
    speeds = scene.places(path.z)[..., 3]
    return [
        Measurement("momentum_error", "momentum, largest relative error", float((speeds.sum(-1) - 1).abs().max()), at_most=1e-9),
        Measurement("common_speed_error", "speeds at the end over 1/5 m/s, largest relative error",
                    float((5 * speeds[-1] - 1).abs().max()), at_most=1e-3),
    ]  # fmt: skip


def _experiment(name: str, case: _Case) -> Experiment:
    return Experiment(f"near-{name}", case.title, lambda setting: _measure(name, setting))


EXPERIMENTS = tuple(_experiment(name, case) for name, case in CASES.items())

"""The experiments of `torchdojo evaluate collisions`: every bound of every measurement, and that none is lost or loosened."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch

from torchdojo.commands.main import main
from torchdojo.evaluation import near_worlds as worlds
from torchdojo.evaluation.experiment import Outcome, Setting
from torchdojo.evaluation.near_scenes import EXPERIMENTS
from torchdojo.native import loader

pytestmark = pytest.mark.skipif(not loader.available(), reason="needs the compiled kernel")

BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}
COMMON = {"flagged_steps": 0.0, "penetration_m": 0.0}
REQUIRED: dict[str, dict[str, float]] = {
    "near-stack": {**COMMON, "creep_um_per_s": 1e-3, "iterations_at_rest": 3},
    "near-dominoes": COMMON,
    "near-peg": {**COMMON, "creep_um_per_s": 1.0, "iterations_at_rest": 3},
    "near-wall": {**COMMON, "creep_um_per_s": 1e-3, "iterations_at_rest": 3},
    "near-arch": {**COMMON, "creep_um_per_s": 20.0, "iterations_at_rest": 3},
    "near-cradle": {**COMMON, "momentum_error": 1e-9, "common_speed_error": 1e-3},
    "near-grasp": {**COMMON, "creep_um_per_s": 1.0, "iterations_at_rest": 3},
    "near-pinch": {**COMMON, "creep_um_per_s": 1.0, "predicted_creep_um_per_s": 1.0, "iterations_at_rest": 3},
    "near-drops": COMMON,
    "near-cylinder": {**COMMON, "creep_um_per_s": 1e-3, "iterations_at_rest": 3},
    "near-pour": COMMON,
}


@cache
def outcome(name: str, quick: bool) -> Outcome:
    with torch.no_grad():
        return BY_NAME[name].run(Setting(quick=quick))


def check(result: Outcome) -> None:
    missed = [f"{m.key} = {m.value:.6g}, bound {m.bound}" for m in result.measurements if not m.passed]
    assert result.measurements and not missed, "; ".join(missed)
    for name, array in result.all_arrays().items():
        assert np.isfinite(array).all(), name


def test_required_bounds_are_of_experiments() -> None:
    assert REQUIRED.keys() == BY_NAME.keys()


@pytest.mark.parametrize("name", ["near-cradle", "near-grasp"])
def test_bounds_hold_in_the_quick_version(name: str) -> None:
    check(outcome(name, quick=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(BY_NAME))
def test_bounds_hold(name: str) -> None:
    result = outcome(name, quick=False)
    check(result)
    measured = {m.key: m for m in result.measurements}
    for key, bound in REQUIRED[name].items():
        at_most = measured[key].at_most
        assert at_most is not None and at_most <= bound
    assert measured["smallest_distance_m"].at_least == 0 and measured["energy_growth_J"].at_most is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["near-grasp", "near-pinch"])
def test_creep_is_that_of_the_central_path(name: str) -> None:
    measured = {m.key: m.value for m in outcome(name, quick=False).measurements}
    assert measured["creep_um_per_s"] == pytest.approx(measured["predicted_creep_um_per_s"], rel=1e-6)


def test_gaps_see_an_overlap() -> None:
    """The search that judges scenes knows of no terms: cores are apart by their radii at the start, and overlap where boxes do."""
    scene = worlds.stack(2)
    assert float(scene.gaps(scene.z).min()) == pytest.approx(worlds.START, abs=1e-9)
    lower = scene.z.clone()
    lower[13 + 2] -= 0.01
    assert float(scene.gaps(lower).min()) == pytest.approx(worlds.START - 0.01, abs=1e-6)


def test_creep_of_the_pinch_by_hand() -> None:
    """Two places at each finger share F h and a quarter of m g h."""
    normal, tangential = 0.6 * 8.0 * 0.01 / 2, 0.1 * 9.81 * 0.01 / 4
    scene = worlds.pinch()
    assert scene.u is not None
    with torch.no_grad():
        path = scene.mech.rollout(scene.z, scene.u.expand(100, -1))
    speed = float(path.z[50, 2] - path.z[100, 2]) / 0.5
    assert speed == pytest.approx(1e-8 * tangential / (normal**2 - tangential**2), rel=1e-3)
    assert math.isclose(speed, 0.043e-6, rel_tol=0.01)


def test_long_is_of_collisions_alone(capsys) -> None:
    assert main(["evaluate", "physics", "--only", "dzhanibekov", "--long"]) == 2
    assert "--long: of the topic collisions alone" in capsys.readouterr().err

"""The experiments of `torchdojo evaluate physics`, each as a test: every bound of every measurement, quick here, at full length if slow."""

import json
import math
from functools import cache

import numpy as np
import pytest
import torch

from conftest import SHARED, shared_path
from torchdojo.commands import evaluate as command
from torchdojo.commands.main import main
from torchdojo.evaluation import plots, spinning
from torchdojo.evaluation.experiment import Experiment, Line, Measurement, Outcome, Plot, Setting, SkippedError
from torchdojo.evaluation.physics import EXPERIMENTS
from torchdojo.testing.conditioning import balanced

BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}
ROBOTS = {"atlas-drop", "torso-height", "convergence"}  # these need Atlas' file


@cache
def outcome(name: str, quick: bool) -> Outcome:
    if name in ROBOTS:
        shared_path("models", "atlas", "atlas.urdf")
    # Without MuJoCo, whose columns have no bounds; `test_mujoco_is_measured_beside` has it.
    with torch.no_grad():
        return BY_NAME[name].run(Setting(quick=quick, models=SHARED / "models"))


def check(result: Outcome) -> None:
    assert result.measurements
    missed = [f"{m.key} = {m.value:.6g}, bound {m.bound}" for m in result.measurements if not m.passed]
    assert not missed, "; ".join(missed)
    keys = [m.key for m in result.measurements]
    assert len(set(keys)) == len(keys)
    for name, array in result.all_arrays().items():
        assert np.isfinite(array).all(), name


QUICK = [pytest.param(name, marks=[pytest.mark.slow] * (name in ("convergence", "damped-pendulum"))) for name in BY_NAME]


@pytest.mark.parametrize("name", QUICK)
def test_bounds_hold_in_the_quick_version(name: str) -> None:
    check(outcome(name, quick=True))


# The bounds themselves, so that none is lost or loosened unseen: what the full version must hold each measurement to.
REQUIRED = {
    "three-link-loop": {"constraint_drift_m": 1e-9},
    "double-pendulum": {"energy_error_percent": 2.0, "trend_standard_errors": 3.0},
    "damped-pendulum": {"damped_0_5_energy_error_percent": 3.0},
    "cube-drop": {"kappa_1e-6_rest_gap_m": 45e-6, "kappa_1e-8_rest_gap_m": 1e-6},
    "torso-height": {"a1_rest_height_difference_m": 1e-3, "atlas_rest_height_difference_m": 5e-3},
    "bouncing-ball": {"e_1_third_apex_error_m": 1e-6} | {f"e_{e}_ratio_error": 1e-6 for e in ("0", "0_3", "0_7", "1")},
    "newtons-cradle": {
        f"{h}_ms_{key}": bound
        for h in ("1", "0_5")
        for key, bound in (("last_speed_error", 1e-3), ("others_speed_m_per_s", 1e-3), ("momentum_error", 1e-9), ("energy_error", 1e-3))
    },
    "box-stack": {"height_beyond_gaps_m": 0.1e-3, "top_sinks_m": 0.1e-3, "top_sideways_m": 0.1e-3, "flagged_steps": 0},
    "pinch": {"creep_um_per_s": 1.0, "flagged_steps": 0},
    "grasp": {"creep_um_per_s": 1.0, "flagged_steps": 0},
    "joint-limit": {f"h_{case}_overshoot_rad": 0 for case in ("10_ms_kappa_1e-6", "10_ms_kappa_1e-8", "100_ms_kappa_1e-6")},
    "joint-friction": {"kappa_1e-6_creep_error_percent": 1, "kappa_1e-10_creep_error_percent": 1, "kappa_1e-10_way_rad": 20e-6},
    "sliding-box": {
        f"{v}_m_per_s_{key}": bound
        for v in (1, 2, 4)
        for key, bound in (("drift_m", 1e-3), ("stopping_error_percent", 0.5), ("pyramid_drift_error_percent", 0.5))
    },
    "slope": {"0_95_angle_kappa_1e-10_way_m": 10e-6, "0_5_angle_kappa_1e-10_way_m": 1e-6, "1_1_angle_acceleration_error_percent": 0.5},
    "long-pendulums": {f"tolerance_1e-{digits}_failed_steps": 0 for digits in ("6", "8", "10")},
    "sphere-chains": {"failed_steps": 0},
    "four-bar-chains": {"failed_steps": 0},
    "double-four-bar": {"energy_error_percent": 2.0},
    "scaled-pendulums": {"failed_steps": 0},
    "convergence": {
        f"{r}_{key}": b for r in ("box", "quadruped", "atlas") for key, b in (("iterations_worst", 15), ("condition_balanced", 1e9))
    },
}


def test_required_bounds_are_of_experiments() -> None:
    assert REQUIRED.keys() <= BY_NAME.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_bounds_hold(name: str) -> None:
    """All of them, and every required one is there: in one test, so that no two processes run the same experiment."""
    check(outcome(name, quick=False))
    measured = {m.key: m for m in outcome(name, quick=False).measurements}
    for key, bound in REQUIRED.get(name, {}).items():
        assert measured[key].at_most is not None and measured[key].at_most <= bound
    if name in ("cube-drop", "atlas-drop", "torso-height", "bouncing-ball", "newtons-cradle", "box-stack", "pinch", "grasp"):
        assert all(m.at_least == 0 for m in measured.values() if m.key.endswith("smallest_distance_m"))


def test_pyramid_drifts_and_cone_does_not() -> None:
    measured = {m.key: m.value for m in outcome("sliding-box", quick=True).measurements}
    for speed, drift in ((1, 27.6e-3), (2, 110e-3), (4, 441e-3)):
        assert measured[f"{speed}_m_per_s_drift_m"] < 1e-6
        assert measured[f"{speed}_m_per_s_pyramid_drift_m"] == pytest.approx(drift, rel=0.01)


def test_time_between_flips_is_that_of_small_oscillations_over_the_separatrix() -> None:
    """Near the middle axis the flip takes 2K(k)/λ with k near 1, K ~ ln(4/√(1 − k²)): each tenth of the perturbation adds 2 ln 10 / λ."""
    growth = 5.0 * math.sqrt((0.2 - 0.1) * (0.3 - 0.2) / (0.1 * 0.3))  # of the linearized equations [1/s]
    times = [spinning.flip_interval((0.1, 0.2, 0.3), (rate, 5.0, 0.0)) for rate in (1e-2, 1e-3)]
    assert times[1] - times[0] == pytest.approx(2 * math.log(10) / growth, rel=1e-3)


def test_balanced_matrices_do_not_depend_on_units() -> None:
    matrix, units = torch.randn(6, 6), torch.logspace(-8, 8, 6)
    plain, scaled = balanced(matrix), balanced(units[:, None] * matrix / units.flip(0))
    for result in (plain, scaled):
        for dim in (0, 1):
            assert float((torch.linalg.vector_norm(result, dim=dim) - 1).abs().max()) < 0.01
    assert float(torch.linalg.cond(scaled)) == pytest.approx(float(torch.linalg.cond(plain)), rel=0.05)


# -- the command ---------------------------------------------------------------------------------------------------------------------------


def test_command_reports_and_writes(capsys, tmp_path) -> None:
    only = ["--only", "three-link-loop", "dzhanibekov"]
    assert main(["evaluate", "physics", "--quick", *only, "--output", str(tmp_path / "out"), "--json"]) == 0
    out = capsys.readouterr().out
    report = json.loads(out.splitlines()[-1])
    assert report == json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["passed"] and report["quick"] and report["failed"] == report["skipped"] == []
    assert list(report["experiments"]) == ["three-link-loop", "dzhanibekov"]
    loop = report["experiments"]["three-link-loop"]
    assert 0 < loop["measured"]["constraint_drift_m"] <= loop["at_most"]["constraint_drift_m"] == 1e-9
    assert "largest joint error" in out and "≤ 1e-09" in out
    with np.load(tmp_path / "out" / "dzhanibekov.npz") as archive:
        assert archive["spin/axis 2/x"].shape == archive["spin/axis 2/y"].shape == (2001,)
    if plots.available():
        assert (tmp_path / "out" / "dzhanibekov_spin.png").stat().st_size > 1000


def test_mujoco_is_measured_beside() -> None:
    mujoco = pytest.importorskip("mujoco")
    with torch.no_grad():
        result = BY_NAME["cube-drop"].run(Setting(quick=True, mujoco=mujoco))
    measured = {m.key: m for m in result.measurements}
    assert measured["kappa_1e-6_smallest_distance_m"].mujoco < -0.01  # 26.7 mm into the floor
    assert "MuJoCo" in result.plots[0].lines


@pytest.mark.parametrize("name", ["bouncing-ball", "newtons-cradle", "box-stack", "pinch", "joint-limit", "joint-friction", "sliding-box"])
def test_mujoco_is_measured_beside_bounds(name: str) -> None:
    mujoco = pytest.importorskip("mujoco")
    with torch.no_grad():
        result = BY_NAME[name].run(Setting(quick=True, mujoco=mujoco))
    check(result)
    values = [v for m in result.measurements for v in (m.mujoco.values() if isinstance(m.mujoco, dict) else [m.mujoco]) if v is not None]
    assert values and np.isfinite(values).all()


def test_bad_input(capsys, tmp_path) -> None:
    for arguments, message in (
        (["evaluate", "physics", "--only", "cube-dorp"], "no experiment 'cube-dorp' in 'physics'; there are: three-link-loop, "),
        (["evaluate", "chemistry"], "no topic 'chemistry'; there are: physics, gradients"),
        (["evaluate", "physics", "--models", str(tmp_path / "none")], "--models: no folder"),
    ):
        assert main(arguments) == 2
        captured = capsys.readouterr()
        assert message in captured.err and len(captured.err.strip().splitlines()) == 1


def made_up(setting: Setting) -> Outcome:
    """One bound kept, one missed, one measurement where MuJoCo diverged."""
    rows = [
        Measurement("gap_m", "gap", 1.0, "m", at_most=2.0),
        Measurement("drift_m", "drift", math.nan, "m", at_most=1.0),
        Measurement("height_m", "height", 1.0, "m", mujoco={"RK4": math.nan, "Euler": 2.0}),
    ]
    return Outcome(rows, [Plot("a", "title", "x", "y", {"m/s": Line([1, 2], [1, 2])}, log="xy")], notes=["a word"])


def missing(setting: Setting) -> Outcome:
    raise SkippedError("no file")


def test_missed_bounds_fail_the_command_and_missing_files_do_not(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(command.TOPICS, "physics", [Experiment("made-up", "title", made_up), Experiment("missing", "title", missing)])
    monkeypatch.setattr(plots, "available", lambda: False)
    assert main(["evaluate", "physics", "--output", str(tmp_path), "--json"]) == 1
    out = capsys.readouterr().out
    report = json.loads(out.splitlines()[-1])
    assert report["failed"] == ["made-up: drift_m"] and report["skipped"] == ["missing"] and not report["passed"]
    assert report["experiments"]["made-up"]["mujoco"] == {"height_m": {"RK4": None, "Euler": 2.0}}
    for text in ("matplotlib is not installed", "MISSED", "skipped: no file", "RK4 fails", "note: a word"):
        assert text in out
    with np.load(tmp_path / "made-up.npz") as archive:
        assert sorted(archive.files) == ["a/m per s/x", "a/m per s/y"]
    assert not list(tmp_path.glob("*.png"))


def test_without_mujoco_the_column_says_so(capsys, monkeypatch) -> None:
    monkeypatch.setattr("torchdojo.evaluation.experiment.import_mujoco", lambda: None)
    assert main(["evaluate", "physics", "--quick", "--only", "cube-drop", "--models", "."]) == 0
    assert "not installed" in capsys.readouterr().out


def test_without_robot_files_their_experiments_are_skipped(capsys, tmp_path) -> None:
    assert main(["evaluate", "physics", "--quick", "--only", "atlas-drop", "--models", str(tmp_path), "--json"]) == 0
    captured = capsys.readouterr().out
    assert "skipped: no robot file atlas/atlas.urdf; give the folder that holds it: --models DIR" in captured
    assert json.loads(captured.splitlines()[-1])["skipped"] == ["atlas-drop"]
    assert main(["evaluate", "physics", "--quick", "--only", "torso-height", "--models", str(tmp_path)]) == 0
    captured = capsys.readouterr().out
    assert "note: Atlas is left out: no robot file" in captured and "A1, 20 to 500 Hz" in captured

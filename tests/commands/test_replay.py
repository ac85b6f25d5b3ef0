"""`torchdojo replay` on real tosses and on files that are not what they should be."""

import json

import numpy as np
import pytest
import torch

from conftest import shared_path
from torchdojo.commands.main import main
from torchdojo.commands.replay import read_tosses
from torchdojo.identification.evaluation import roll, trajectory_means
from torchdojo.identification.objects.cube import cube
from torchdojo.viewer import load_playbacks


def data_file():
    return shared_path("data", "contactnets_cube", "contactnets_cube_train.npz")


def run_json(capsys, *arguments):
    assert main(["replay", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def made_up(**changes):
    """Two tosses of three samples of a cube in free fall onto its face."""
    arrays = {
        "position": np.array([[0, 0, z] for z in (0.08, 0.07, 0.0525)] * 2, dtype=float),
        "quaternion": np.tile([1.0, 0, 0, 0], (6, 1)),
        "linear_velocity": np.zeros((6, 3)),
        "angular_velocity": np.zeros((6, 3)),
        "offsets": np.array([0, 3, 6]),
        "dt": 0.01,
        "half_side": 0.05,
        "mass": 0.4,
        "inertia": 8e-4,
        "mu_reported": 0.2,
    }
    arrays.update(changes)
    return {key: value for key, value in arrays.items() if value is not None}


def test_first_tosses(capsys, tmp_path):
    report = run_json(capsys, data_file(), "--batch-limit", 2, "--output", tmp_path)
    tosses = read_tosses(data_file()).first(2)
    assert report["tosses"] == 2
    assert report["steps"] == report["samples"] - 2 == len(tosses.samples) - 2
    assert report["flagged_steps"] == 0
    assert report["friction"] == pytest.approx(0.18)
    assert 0 < report["position_error_percent_of_width"] < 60
    assert json.loads((tmp_path / "report.json").read_text()) == report
    with np.load(tmp_path / "replay.npz") as archive:
        assert archive["z"].shape == (report["samples"], 13)
    recorded, simulated = load_playbacks(tmp_path / "trajectory.npz")
    assert [p.label.split(", ")[1] for p in (recorded, simulated)] == ["recorded", "simulated"]
    assert np.array_equal(recorded.positions[0], simulated.positions[0]) and simulated.curves["position error [mm]"].max() > 0
    assert np.allclose(np.diff(recorded.times), tosses.dt) and (tmp_path / "trajectory.html").is_file()


def test_ragged_batch_equals_single_tosses():
    tosses = read_tosses(data_file()).first(3)
    # 12, 5 and 9 samples of the three tosses
    pieces, offsets = [], [0]
    for start, length in zip(tosses.offsets[:-1].tolist(), (12, 5, 9), strict=True):
        pieces.append(tosses.samples[start : start + length])
        offsets.append(offsets[-1] + length)
    mech = cube(0.0524, 0.37, 0.00081, 0.18, 1 / 148, 9.81, 1e-6)
    together = roll(mech.step, torch.cat(pieces), torch.tensor(offsets))
    assert together.steps == 11 + 4 + 8
    for start, piece in zip(offsets, pieces, strict=False):
        alone = roll(mech.step, piece, torch.tensor([0, len(piece)]))
        torch.testing.assert_close(together.z[start : start + len(piece)], alone.z, rtol=0, atol=1e-12)


def test_toss_means_leave_out_the_first_sample():
    means = trajectory_means(torch.tensor([9.0, 1.0, 3.0, 9.0, 4.0]), torch.tensor([0, 3, 5]))
    assert means.tolist() == [2.0, 4.0]


def test_options_replace_the_numbers_of_the_file(capsys, tmp_path):
    np.savez(tmp_path / "a.npz", **made_up(mu_reported=None))
    assert main(["replay", str(tmp_path / "a.npz")]) == 2
    assert "has no mu_reported; give --friction MU" in capsys.readouterr().err
    report = run_json(capsys, tmp_path / "a.npz", "--friction", 0.3, "--half-side", 0.04, "--substeps", 2)
    assert (report["friction"], report["half_side_m"], report["timestep_s"], report["steps"]) == (0.3, 0.04, 0.005, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quaternion": None, "dt": None}, "lacks quaternion, dt; it has position"),
        ({"position": np.zeros((6, 2))}, "position is float64 (6, 2); allowed: numbers (6, 3)"),
        ({"linear_velocity": np.full((6, 3), np.nan)}, "linear_velocity is not finite in row 0"),
        ({"quaternion": np.tile([1.0, 0.1, 0, 0], (6, 1))}, "quaternion row 0 has length 1.00499"),
        ({"offsets": np.array([0, 3, 5])}, "offsets must be whole numbers from 0 to the number of samples, 6"),
        ({"offsets": np.array([0, 5, 6])}, "toss 1 has fewer than two samples"),
        ({"mass": -1.0}, "mass is -1.0; allowed: one positive number"),
        ({"position": np.tile([0.0, 0.0, 1.0], (6, 1))}, "are positions in half-sides?"),
        ({"half_side": 0.5}, "tosses end with the cube's centre at a median height of 0.0525 m"),
    ],
)
def test_bad_files_are_refused(capsys, tmp_path, changes, message):
    np.savez(tmp_path / "a.npz", **made_up(**changes))
    assert main(["replay", str(tmp_path / "a.npz")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_files_that_are_no_archives_are_refused(capsys, tmp_path):
    (tmp_path / "a.npz").write_text("no archive")
    np.save(tmp_path / "b.npy", np.zeros(3))
    for name in ("a.npz", "b.npy"):
        assert main(["replay", str(tmp_path / name)]) == 2
        assert "is not an .npz file of plain arrays" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("substeps", "position", "rotation"), [(1, 14.6, 18.7), (4, 12.9, 17.7)])
def test_all_real_tosses(capsys, substeps, position, rotation):
    report = run_json(capsys, data_file(), "--substeps", substeps)
    assert report["tosses"] == 454
    assert report["steps"] == 47112 * substeps
    assert report["flagged_steps"] == 0
    assert report["position_error_percent_of_width"] <= position
    assert report["rotation_error_degrees"] <= rotation

"""Recordings made ready: frames leveled, first samples fitted to the flight, and the centers of mass on which flights depend."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from made_up import recorded, thrown_cubes

from conftest import shared_path
from torchdojo import quaternion as quat
from torchdojo.identification import FittedObject, cube_model, elbow_model, fit, flight_starts, levelled, read_config, record_rollouts
from torchdojo.identification.fitting import prepare
from torchdojo.identification.recordings import DataError, read_recordings, recordings_of

NOISE = (5e-4, 0.05, 4e-3, 0.5)  # of position [m], velocity [m/s], rotation vector [rad], angular velocity [rad/s]


def noisy(recordings, seed=0):
    """Errors of recorded samples, of the size of those of the real ones."""
    scale = torch.tensor([[NOISE[0]] * 3 + [NOISE[1]] * 3 + [NOISE[2]] * 4 + [NOISE[3]] * 3], dtype=torch.float64)
    error = scale * torch.randn(recordings.samples.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    samples = recordings.samples + error
    samples[:, 6:10] = torch.nn.functional.normalize(samples[:, 6:10], dim=-1)
    return replace(recordings, samples=samples)


def test_flights_say_how_throws_start():
    """Velocities five times as good as recorded ones; what is not a first sample stays as it is, and so does one without a flight."""
    model = cube_model(1 / 148, ("friction",))
    exact = recorded(model, 12, 40)
    data = noisy(exact)
    first = data.offsets[:-1]
    with torch.no_grad():
        gap = model.call("distances", model.states(data.samples, data)).amin(-1).unflatten(0, (12, -1))
    flying = (gap > model.clearance).long().cumprod(1).sum(1)
    assert int(flying.max()) > 14  # the other flights are shorter
    improved = flight_starts(model, data, 14)
    others = torch.ones(len(data.samples), dtype=torch.bool)
    others[first] = False
    assert torch.equal(improved.samples[others], data.samples[others])
    long = first[flying > 10]
    assert len(long) >= 4
    for columns in (slice(3, 6), slice(10, 13)):
        before, after = ((some.samples - exact.samples)[long, columns].norm(dim=-1).mean() for some in (data, improved))
        assert float(after) <= 0.2 * float(before)
    on_the_ground = replace(data, samples=data.samples - 0.2 * torch.eye(13, dtype=torch.float64)[2])
    assert torch.equal(flight_starts(model, on_the_ground, 14).samples, on_the_ground.samples)


def test_a_description_says_that_starts_are_fitted():
    data = str(shared_path("data", "contactnets_elbow", "contactnets_elbow_train.npz"))
    stage = {"parameters": ["friction"], "horizon": 4, "stride": 40, "substeps": 1, "options": {"max_iterations": 1}}
    plain = {"data": data, "object": "elbow", "limit": 8, "validation": 0.25, "substeps": 1, "stages": [stage]}
    with pytest.raises(ValueError, match=r"FitConfig\.flight: got 0; allowed: 1 or more"):
        read_config({**plain, "flight": 0})
    recorded_ones, fitted_ones = fit(read_config(plain)), fit(read_config({**plain, "flight": 14}))
    assert (recorded_ones.fitted_object.flight, fitted_ones.fitted_object.flight) == (None, 14)
    for part in ("training", "validation"):
        before, after = (report.recordings[part] for report in (recorded_ones, fitted_ones))
        assert before.throw_id.tolist() == after.throw_id.tolist() and not torch.equal(before.samples, after.samples)
        again = FittedObject(**{**vars(fitted_ones.fitted_object)}).prepared(before)
        torch.testing.assert_close(again.samples, after.samples)


def test_centres_of_mass_of_links():
    """They fly along a parabola whatever the links do; faces, hinge and recorded points are where they were."""
    middles = {"centre_of_mass_1": (-0.004, 0.002, 0.003), "centre_of_mass_2": (-0.002, 0.001, -0.003)}
    cases = (tuple(middles), middles), ((), middles), ((), {})
    q, qd = torch.tensor([[0.1, 0.2, 0.9, 0.4, 0.5, 0.6, 0.7], [1.0, 0.5, 0.2, 3.0, -2.0, 1.0, 5.0]])
    plain = elbow_model(0.001)
    data = recordings_of(record_rollouts(plain, plain.mechanism.to_maximal(q, qd).detach()[None], 3))
    model = elbow_model(0.001, tuple(middles), start=middles, kappa=1e-12)
    with torch.no_grad():
        z, path = model.states(data.samples, data), model(data.samples[0], data, 100).unflatten(-1, (2, 13))
        middle = path[..., :3].mean(-2)
        torch.testing.assert_close(model.positions(z[:, None, :13])[:, 0], data.samples[:, :3], rtol=0, atol=1e-12)
    parabola = torch.tensor([0.0, 0.0, -9.81e-6], dtype=torch.float64).expand(99, 3)
    torch.testing.assert_close(middle.diff(dim=0).diff(dim=0), parabola, rtol=0, atol=1e-9)
    assert float((path[..., 0, :3].diff(dim=0).diff(dim=0) - parabola).norm(dim=-1).max()) > 1e-7
    for bending in ({}, {"bending_stiffness": 20.0, "bending_damping": 0.01, "bending_point": 0.04}):
        fitted, given, nominal = (elbow_model(0.001, names, start={**some, **bending}) for names, some in cases)
        states = [model.states(data.samples, data).detach() for model in (fitted, given)]
        torch.testing.assert_close(*states, rtol=0, atol=1e-12)
        gaps = [model.call("distances", model.states(data.samples, data)) for model in (given, nominal)]
        torch.testing.assert_close(*gaps, rtol=0, atol=1e-12)


def test_a_tilted_frame_is_levelled():
    """Leveling some throws leaves the ground, distances of poses, and velocities in the frames of bodies as they are."""
    model = cube_model(1 / 148, ("friction",))
    level = recorded(model, 3, 40)
    slope = torch.tensor([-0.03, 0.02], dtype=torch.float64)
    normal = torch.nn.functional.normalize(torch.cat((slope, torch.ones(1, dtype=torch.float64))), dim=0)
    axis = torch.linalg.cross(torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64), normal)
    turn = quat.exp(axis / axis.norm() * torch.atan2(axis.norm(), normal[2]))
    samples = level.samples.clone()
    tilted = torch.isin(torch.repeat_interleave(level.throw_id, level.lengths), torch.tensor([1, 2]))
    samples[tilted, :3] = quat.rotate(turn, samples[tilted, :3])
    samples[tilted, 3:6] = quat.rotate(turn, samples[tilted, 3:6])
    samples[tilted, 6:10] = quat.multiply(turn.expand(int(tilted.sum()), 4), samples[tilted, 6:10])
    leveled = levelled(model, replace(level, samples=samples), [(1, 2, *slope.tolist())])
    torch.testing.assert_close(leveled.samples[:, 3:], level.samples[:, 3:], rtol=0, atol=1e-12)
    shift = (leveled.samples - level.samples)[:, :3]
    assert float(shift[~tilted].abs().max()) == 0 and float(shift[:, :2].abs().max()) < 1e-12
    # Each throw is as high as its lowest contact was at its end.
    with torch.no_grad():
        ends = level.offsets[1:] - 1
        lowest = [model.call("distances", model.states(some[ends], level)).amin(-1) for some in (samples, leveled.samples)]
    torch.testing.assert_close(*lowest, rtol=0, atol=1e-12)


def test_tilts_name_throws_by_the_numbers_of_their_file(tmp_path):
    """A file with some of the throws, in another order, gets the same tilts."""
    model = cube_model(1 / 148, ("friction",))
    arrays = thrown_cubes(model, 4, 20) | {"toss_index": np.array([10, 12, 15, 19])}
    arrays.pop("throw_id", None)
    np.savez(tmp_path / "tosses.npz", **arrays)
    data = read_recordings(tmp_path / "tosses.npz")
    rows, chosen = [(11, 15, -0.03, 0.02)], [3, 1, 0]
    leveled = levelled(model, data, rows)
    moved = [not torch.equal(leveled.select([i]).samples, data.select([i]).samples) for i in range(4)]
    assert moved == [False, True, True, False]
    assert torch.equal(levelled(model, data.select(chosen), rows).samples, leveled.select(chosen).samples)
    description = {"data": str(tmp_path / "tosses.npz"), "object": "cube", "stages": [{"parameters": ["friction"], "horizon": 1}]}
    with pytest.raises(DataError, match=r"no throw has a number from 0 to 9, .*; throws are numbered by toss_index, from 10 to 19"):
        fit(read_config({**description, "tilts": [[0, 9, 0.1, 0.0]]}))
    with pytest.raises(DataError, match=r"there are no throws \[3\]; .* numbered by toss_index, from 10 to 19"):
        fit(read_config({**description, "held_back": [3, 12]}))
    assert prepare(read_config({**description, "held_back": [12, 19]}))[1].throw_id.tolist() == [12, 19]
    with pytest.raises(ValueError, match=r"FitConfig\.held_back: got \[12\]; allowed: numbers of throws, without fold"):
        read_config({**description, "held_back": [12], "fold": [1, 2]})


@pytest.mark.parametrize("row", [[1.0, 2.0, 0.1], [1.0, 2.0, float("nan"), 0.0], [2.0, 1.0, 0.1, 0.0]], ids=str)
def test_tilts_that_say_nothing_are_refused(row):
    with pytest.raises(ValueError, match=r"FitConfig\.tilts: got \[\[.*\]\]; allowed: rows \[first throw, last throw, x, y\] of finite"):
        read_config({"data": "none.npz", "object": "cube", "tilts": [row], "stages": [{"parameters": ["friction"], "horizon": 1}]})

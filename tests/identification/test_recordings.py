"""Files of recordings: what is read, what is refused, splits and windows."""

import numpy as np
import pytest
import torch

import torchdojo as td
from conftest import shared_path
from torchdojo import quaternion as quat
from torchdojo.identification import (
    DataError,
    Parameter,
    ParametricMechanism,
    WindowDataset,
    cube_model,
    elbow_model,
    read_recordings,
    record_rollouts,
)
from torchdojo.identification.objects.cube import check_heights
from torchdojo.identification.recordings import recordings_of


def falling(throws: int = 2, samples: int = 4, **changes):
    """A body in free fall, turning about its z axis at 2 rad/s; every throw is recorded twice."""
    dt, n = 0.01, 2 * throws * samples
    t = np.tile(dt * np.arange(samples), 2 * throws)
    arrays = {
        "position": np.stack((t, 0 * t, 1 - 4.905 * t**2), -1),
        "quaternion": np.stack((np.cos(t), 0 * t, 0 * t, np.sin(t)), -1),
        "linear_velocity": np.zeros((n, 3)),
        "angular_velocity": np.zeros((n, 3)),
        "offsets": np.arange(0, n + 1, samples),
        "throw_id": np.repeat(np.arange(throws), 2),
        "dt": np.array(dt),
    }
    return {key: value for key, value in {**arrays, **changes}.items() if value is not None}


def test_velocities_that_are_missing_are_backward_differences():
    recordings = recordings_of(falling(linear_velocity=None, angular_velocity=None))
    assert recordings.lengths.tolist() == [3, 3, 3, 3]  # the first sample has none
    body = recordings.bodies()[:, 0]
    # x[k+1] − x[k] = dt v[k+1] of the parabola: the mean velocity of the interval before
    torch.testing.assert_close(body[:3, 5], torch.tensor([-0.04905, -0.14715, -0.24525], dtype=torch.float64))
    torch.testing.assert_close(body[:, 10:], torch.tensor([0.0, 0.0, 2.0], dtype=torch.float64).expand(12, 3))


def test_wrapped_joint_angles_have_small_differences():
    angle = np.array([3.12, -3.1532, -3.1432, 3.13] * 2)
    recordings = recordings_of(falling(1, 4, linear_velocity=None, angular_velocity=None, joint_angle=angle))
    rate = recordings.joints()[1][:3, 0]
    expected = (torch.tensor([-3.1532 + 2 * np.pi - 3.12, 0.01, 3.13 + 3.1432 - 2 * np.pi])) / 0.01
    torch.testing.assert_close(rate, expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quaternion": None, "dt": None}, "lacks quaternion, dt; it has position"),
        ({"position": np.full((16, 3), np.nan)}, "position is not finite in row 0"),
        ({"quaternion": np.full((16, 4), 0.6)}, "quaternion row 0 has length 1.2; allowed: unit quaternions"),
        ({"dt": np.array(0.0)}, "dt is 0.0; allowed: one positive number"),
        ({"offsets": np.array([0, 4, 15])}, "offsets must be whole numbers from 0 to the number of samples, 16"),
        ({"throw_id": np.array([0, 1])}, "throw_id is int64 (2,); allowed: whole numbers (4,)"),
        ({"linear_velocity": None}, "has some velocities and lacks others"),
        ({"joint_velocity": np.zeros(16)}, "joint_velocity needs a joint_angle"),
        ({"joint_angle": np.zeros(3)}, "joint_angle is float64 (3,); allowed: numbers (16,)"),
    ],
)
def test_bad_arrays_are_refused(changes, message):
    with pytest.raises(DataError) as error:
        recordings_of(falling(**changes), "throws.npz")
    assert message in str(error.value)


def test_throws_have_the_numbers_of_their_file():
    ids, source = np.array([7, 7, 9, 9]), np.array([12, 3, 5, 4])
    for given, numbers, name in (
        ({"throw_id": ids, "toss_index": source}, ids, "throw_id"),
        ({"throw_id": None, "toss_index": source}, source, "toss_index"),
        ({"throw_id": None}, np.arange(4), "position"),
    ):
        recordings = recordings_of(falling(**given))
        assert (recordings.throw_id.tolist(), recordings.numbered_by) == (numbers.tolist(), name)
        assert recordings.select([2, 1]).throw_id.tolist() == numbers[[2, 1]].tolist()
    for part, kept in zip(recordings_of(falling(throw_id=None, toss_index=source)).hold_back([5, 12]), ([3, 4], [12, 5]), strict=True):
        assert part.throw_id.tolist() == kept
    with pytest.raises(DataError, match=r"no throws \[6, 13\]; allowed: .* numbered by toss_index, from 3 to 12"):
        recordings_of(falling(throw_id=None, toss_index=source)).hold_back([5, 6, 13])
    with pytest.raises(DataError, match=r"names 2 throws, and it has 2 throws; allowed: some, not all"):
        recordings_of(falling(throw_id=ids)).hold_back([7, 9])
    with pytest.raises(DataError, match=r"toss_index is int64 \(2,\); allowed: whole numbers \(4,\), one per trajectory"):
        recordings_of(falling(throw_id=None, toss_index=np.array([0, 1])))


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "throws.npz"
    np.savez_compressed(path, **falling(50))
    whole = path.read_bytes()
    assert len(read_recordings(path)) == 100
    middle = len(whole) // 4
    for damaged in (whole[: len(whole) // 2], whole[:middle] + bytes(64) + whole[middle + 64 :], b""):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"is not an \.npz file of plain arrays, or is damaged"):
            read_recordings(path)
    with pytest.raises(DataError, match="no file"):
        read_recordings(tmp_path / "none.npz")


def test_heights_in_half_sides_are_refused():
    arrays = falling(position=np.tile([0.0, 0.0, 1.0], (16, 1)))
    with pytest.raises(DataError, match="are positions in half-sides"):
        check_heights(recordings_of(arrays), 0.0524)


def test_splits_keep_throws_together():
    recordings = recordings_of(falling(10))
    training, validation = recordings.split(0.3, seed=1)
    assert (len(training), len(validation)) == (14, 6)
    assert not set(training.throw_id.tolist()) & set(validation.throw_id.tolist())
    torch.testing.assert_close(training.samples[4:8], recordings.samples[:4])  # all throws are alike
    assert torch.equal(recordings.split(0.3, seed=1)[1].throw_id, validation.throw_id)
    assert not torch.equal(recordings.split(0.3, seed=2)[1].throw_id, validation.throw_id)


@pytest.mark.parametrize("part", [0.0, 0.01, 1.0])
def test_empty_splits_are_refused(part):
    with pytest.raises(DataError, match="allowed: a part for which both have at least one"):
        recordings_of(falling(10)).split(part)


def test_windows_stay_within_trajectories():
    recordings = recordings_of(falling(2, 6))
    windows = WindowDataset(recordings, horizon=3, stride=2)
    assert windows.starts.tolist() == [0, 2, 6, 8, 12, 14, 18, 20]
    assert windows[1].shape == (4, 13)
    torch.testing.assert_close(windows.stack()[1], recordings.samples[2:6])
    assert WindowDataset(recordings, horizon=5, first_only=True).starts.tolist() == [0, 6, 12, 18]
    with pytest.raises(DataError, match="no trajectory has the 7 samples of a window"):
        WindowDataset(recordings, horizon=6)


def test_heading_turns_throws_about_the_vertical():
    recordings = recordings_of(falling(linear_velocity=np.tile([0.3, -0.4, 0.1], (16, 1)))).with_heading()
    body = recordings.bodies()[:, 0]
    torch.testing.assert_close(body[:, 3:6], torch.tensor([0.5, 0.0, 0.1], dtype=torch.float64).expand(16, 3))
    turn = quat.rotation_vector(body[0, 6:10])
    torch.testing.assert_close(turn, torch.tensor([0.0, 0.0, np.arctan2(0.4, 0.3)]))


@pytest.mark.parametrize(("timestep", "substeps"), [(0.01, 1), (0.0025, 4)])
def test_timesteps_are_those_of_the_recording_or_whole_parts(timestep, substeps):
    assert cube_model(timestep).substeps(recordings_of(falling())) == substeps


@pytest.mark.parametrize("timestep", [0.02, 0.004, 0.0099])
def test_other_timesteps_are_refused(timestep):
    with pytest.raises(DataError, match="Recordings are not resampled; change the timestep"):
        cube_model(timestep).substeps(recordings_of(falling()))


def test_shapes_that_do_not_fit_the_mechanism_are_refused():
    recordings = recordings_of(falling())
    with pytest.raises(DataError, match=r"this mechanism has 2 bodies, or 1 floating ones and 1 joint coordinates"):
        elbow_model(0.01).states(recordings.samples, recordings)


def test_free_flight_of_substeps_passes_through_the_samples():
    """Velocities over dt are converted to those over the substep: otherwise the parabola is missed by g dt t/2 (1 mm and more)."""
    dt, g = 0.01, 9.81
    recordings = recordings_of(falling(1, 12, linear_velocity=None, angular_velocity=None))
    mech = td.Mechanism({"ball": td.Body(1.0, (0.1, 0.1, 0.1))}, timestep=dt / 4, gravity=(0, 0, -g))
    model = ParametricMechanism(mech, [Parameter("mass", 1.0, "bodies.ball.mass", lower=0.0)])
    z = model(recordings.samples[0], recordings, 10)
    torch.testing.assert_close(z[:, :3], recordings.samples[:11, :3], rtol=0, atol=1e-12)
    torch.testing.assert_close(quat.rotation_vector(z[:, 6:10]), quat.rotation_vector(recordings.samples[:11, 6:10]), rtol=0, atol=1e-12)


def test_real_recordings_are_read():
    cube = read_recordings(shared_path("data", "contactnets_cube", "contactnets_cube_train.npz"))
    assert (len(cube), len(cube.throw_id.unique()), cube.num_bodies, cube.num_joints) == (454, 430, 1, 0)
    assert cube.numbers["half_side"] == 0.0524
    elbow = read_recordings(shared_path("data", "contactnets_elbow", "contactnets_elbow_train.npz"))
    assert (len(elbow), elbow.num_bodies, elbow.num_joints, elbow.numbered_by) == (433, 1, 1, "toss_index")
    assert int((elbow.throw_id <= 318).sum()) == 254  # the throws whose frame is tilted
    model = elbow_model(elbow.dt)
    z = model.states(elbow.samples[:500], elbow)
    assert float(model.mechanism.joint_errors(z.detach()).abs().max()) < 1e-12
    qd = model.mechanism.to_minimal(z)[1]
    torch.testing.assert_close(qd[:, 0].detach(), elbow.joints()[1][:500, 0])


@pytest.mark.parametrize("every", [1, 4])
def test_rollouts_are_recorded_as_they_are_read(every):
    """Also of mechanisms with joints: states of recorded samples are those of the rollout, which is in free flight."""
    model = elbow_model(0.01 / every)
    z = model.mechanism.to_maximal(*torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], [1.0, 0.5, -0.2, 3.0, -2.0, 1.0, 5.0]]))
    arrays = record_rollouts(model, z.detach().expand(2, -1), 6, every)
    assert {name: arrays[name].shape for name in ("position", "joint_angle", "joint_velocity")} == {
        "position": (12, 3),
        "joint_angle": (12, 1),
        "joint_velocity": (12, 1),
    }
    recordings = recordings_of(arrays)
    assert recordings.offsets.tolist() == [0, 6, 12] and (recordings.num_bodies, recordings.num_joints) == (1, 1)
    assert recordings.dt == pytest.approx(0.01)
    with torch.no_grad():
        seen, exact = model.states(recordings.samples, recordings)[:6], model.rollout(z, 6 * every).z[every::every]
        if every == 1:
            torch.testing.assert_close(seen, exact, rtol=0, atol=1e-9)
        for body in (0, 13):  # with substeps, velocities are means over a sample
            pose = [body + i for i in (0, 1, 2, 6, 7, 8, 9)]
            torch.testing.assert_close(seen[:, pose], exact[:, pose], rtol=0, atol=1e-9)


def test_joints_that_no_recording_has_start_at_rest():
    """A hinge whose axis can tilt; a stiff one moves like one that cannot."""
    names, start = ("friction", "bending_stiffness", "bending_damping"), {"bending_point": 0.04, "bending_damping": 0.1}
    q, qd = torch.tensor([[0.1, 0.2, 0.3, 0.12, 0.5, 0.6, 0.7], [1.0, 0.5, -0.2, -1.0, -2.0, 1.0, 5.0]])
    qd[4:] = quat.rotate(quat.exp(q[4:]), qd[4:])  # given about the axes of the body
    rigid = elbow_model(0.01 / 8, ("friction",))
    recordings = recordings_of(record_rollouts(rigid, rigid.mechanism.to_maximal(q, qd).detach()[None], 20, 8))
    ends = {}
    for stiffness in (20.0, 1e4):
        model = elbow_model(0.01 / 8, names, start={**start, "bending_stiffness": stiffness})
        z = model.states(recordings.samples, recordings)
        coordinates, rates = model.mechanism.to_minimal(z)
        assert list(model.mechanism.tree_joints)[:2] == ["bending", "hinge"] and model.observed(recordings) == ([0], [2])
        torch.testing.assert_close(coordinates[:, 2], recordings.joints()[0][:, 0])
        torch.testing.assert_close(rates[:, 2], recordings.joints()[1][:, 0])
        assert float(coordinates[:, :2].abs().max()) < 1e-12 and float(rates[:, :2].abs().max()) < 1e-9
        ends[stiffness] = model(recordings.samples[:1], recordings, 19)[0, -1]
    exact = rigid(recordings.samples[:1], recordings, 19)[0, -1]
    far, near = ((end[:3] - exact[:3]).norm().detach() for end in ends.values())
    assert float(near) < 1e-3 < float(far)
    with pytest.raises(ValueError, match="unrecorded: no tree joint wrist; there are: hinge"):
        ParametricMechanism(rigid.mechanism, [Parameter("friction", 0.3, "contacts.*.friction")], unrecorded=["wrist"])


def test_rollouts_that_fail_are_not_recorded():
    model = cube_model(0.01)
    z = torch.tensor([[0.0, 0, 0.1, 0, 0, 0, 1, 0, 0, 0, float("nan"), 0, 0]])
    with pytest.raises(ValueError, match="rollout 0 failed at step"):
        record_rollouts(model, z, 3)

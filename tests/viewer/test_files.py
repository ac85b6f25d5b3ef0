"""Trajectory files: they come back as they were, other tools can write them, and bad ones are refused in words."""

import json

import numpy as np
import pytest

import torchdojo as td
from torchdojo.geometry.hulls import MeshSource
from torchdojo.viewer import Playback, load_playbacks, save_playbacks
from torchdojo.viewer.files import KEY, VERSION, playback_arrays

TETRAHEDRON = "v 0 0 0\nv 1 0 0\nv 0 2 0\nv 0 0 3\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
CORNERS = [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
FACES = [[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]]


@pytest.fixture
def playbacks(tmp_path):
    """A body with a mesh inside the folder of the file and one outside, a mesh of arrays, two motions of one scene, and a gap."""
    (tmp_path / "run").mkdir()
    for place in ("run/near.obj", "far.obj"):
        (tmp_path / place).write_text(TETRAHEDRON)
    visuals = [
        td.Visual("mesh", mesh=MeshSource(tmp_path / "run" / "near.obj", (1.0, 2.0, 1.0)), color=(1.0, 0.0, 0.0, 0.5)),
        td.Visual("mesh", mesh=MeshSource(tmp_path / "far.obj")),
    ]
    bodies = {
        "a": td.Body(1.0, shape=td.Sphere(0.1), visuals=visuals),
        "b": td.Body(1.0, (1.0, 1.0, 1.0), shape=td.Mesh(CORNERS, FACES)),
    }
    joints = {"hinge": td.Revolute("a", "b", axis=(0.0, 1.0, 0.0), child_anchor=(0.0, 0.0, 0.5))}
    mech = td.Mechanism(bodies, joints, {"skin": td.NonlinearContact("a", radius=0.1)})
    z = mech.initial_state((2,), world_to_a={"q": [0.0, 0.0, 0.2, 0.0, 0.0, 0.0]})
    path = mech.rollout(z, steps=5)
    states = path.z.detach().clone()
    states[1, 2] = np.nan
    return Playback.batch(mech, path._replace(z=states), labels=["nominal", "fitted"])


def test_a_file_comes_back(playbacks, tmp_path):
    path = save_playbacks(tmp_path / "run" / "trajectory.npz", playbacks)
    (tmp_path / "run").rename(tmp_path / "moved")  # a reference inside the folder goes along
    read = load_playbacks(tmp_path / "moved" / path.name)
    assert [p.label for p in read] == ["nominal", "fitted"] and read[0].scene is read[1].scene
    for before, after in zip(playbacks, read, strict=True):
        scene, copy = before.scene, after.scene
        assert (copy.bodies, copy.parts, copy.contacts, copy.joints) == (scene.bodies, scene.parts, scene.contacts, scene.joints)
        assert list(copy.meshes.sources) == list(scene.meshes.sources)
        errors = {
            "positions": 1e-6,
            "orientations": 1e-6,
            "contact_points": 1e-5,
            "contact_forces": 1e-6 * np.nanmax(before.contact_forces),
        }
        for name, error in {"times": 0.0, **errors}.items():
            assert np.allclose(getattr(after, name), getattr(before, name), rtol=0, atol=error, equal_nan=True)
        assert list(after.curves) == list(before.curves) and after.timestep == before.timestep
        assert all(np.allclose(after.curves[name], v, rtol=1e-6, equal_nan=True) for name, v in before.curves.items())
    assert np.isnan(read[1].positions[2]).all() and np.isfinite(read[1].positions[3]).all()
    near, far, given = (read[0].scene.meshes[part.mesh] for part in read[0].scene.parts if part.kind == "mesh")
    assert not near.missing and not far.missing and near.vertices[:, 1].max() == 4
    assert np.array_equal(given.vertices, np.array(CORNERS, np.float32)) and np.array_equal(given.faces, FACES)


def test_a_mesh_that_is_gone_is_marked(playbacks, tmp_path):
    save_playbacks(tmp_path / "run" / "trajectory.npz", playbacks)
    (tmp_path / "far.obj").unlink()
    scene = load_playbacks(tmp_path / "run" / "trajectory.npz")[0].scene
    parts = [part for part in scene.parts if part.kind == "mesh"]
    with pytest.warns(UserWarning, match=r"far\.obj.* is not there; a box"):
        assert scene.meshes[parts[1].mesh].missing
    assert not scene.meshes[parts[0].mesh].missing


def written(tmp_path, **changes):
    """A file that numpy alone writes, as the README shows it."""
    parts = [{"kind": "box", "size": [1.0, 1.0, 1.0], "body": "a"}]
    description = {
        "version": VERSION,
        "scenes": [{"bodies": ["a"], "parts": changes.pop("parts", parts), "of a later version": 1}],
        "playbacks": [{}],
        **changes.pop("description", {}),
    }
    arrays = {KEY: json.dumps(description), f"{KEY}/0/times": np.arange(3.0), f"{KEY}/0/positions": np.zeros((3, 1, 3))}
    arrays[f"{KEY}/0/orientations"] = np.tile([2.0, 0.0, 0.0, 0.0], (3, 1, 1))
    arrays |= {f"{KEY}/0/{name}": value for name, value in changes.items()}
    np.savez(tmp_path / "other.npz", **{name: value for name, value in arrays.items() if value is not None})
    return tmp_path / "other.npz"


def test_other_tools_can_write_one(tmp_path):
    (playback,) = load_playbacks(written(tmp_path))
    assert playback.num_frames == 3 and playback.contact_forces is None and playback.scene.parts[0].role == "collision"
    assert playback.orientations[0, 0].tolist() == [1.0, 0.0, 0.0, 0.0]


BOX = {"kind": "box", "size": [1.0, 1.0, 1.0], "body": "a"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"description": {"version": VERSION + 1}}, f"version {VERSION + 1}.*up to {VERSION}: update torchdojo"),
        ({"description": {"playbacks": []}}, "no playbacks"),
        ({"description": {"playbacks": [{"scene": 3}]}}, "does not follow the schema"),
        ({"description": {"scenes": [{}]}}, "lacks 'bodies'"),
        ({"times": np.zeros(0), "positions": np.zeros((0, 1, 3))}, "0 frames"),
        ({"times": np.array([0.0, 2.0, 1.0])}, "do not increase"),
        ({"times": None}, "lacks 'playback/0/times'"),
        ({"positions": np.zeros((3, 2, 3))}, r"positions of shape \(3, 2, 3\); allowed: \(3, 1, 3\)"),
        ({"curves/energy [J]": np.zeros(2)}, r"curve 'energy \[J\]' of shape \(2,\)"),
        ({"parts": [{**BOX, "kind": "cone"}]}, "part 0 of kind 'cone'"),
        ({"parts": [{**BOX, "size": [1.0]}]}, r"size \(1.0,\); kinds and sizes"),
        ({"parts": [{**BOX, "body": "b"}]}, r"body 'b'; bodies are \['a'\]"),
        ({"parts": [{**BOX, "color": [1.0]}]}, "color.*4 finite numbers"),
        ({"parts": [{**BOX, "kind": "mesh", "mesh": "0"}]}, "mesh '0'; meshes are"),
        ({"times": np.array([None, 1, 2], dtype=object)}, "holds Python objects, whose reading may run code; allowed: numbers and text"),
    ],
)
def test_bad_files(tmp_path, changes, message):
    path = written(tmp_path, **changes)
    with pytest.raises(ValueError, match=f"(?s)other.npz .*{message}"):
        load_playbacks(path)


def test_files_that_are_none(tmp_path, playbacks):
    whole = save_playbacks(tmp_path / "whole.npz", playbacks).read_bytes()
    cases = {
        "truncated.npz": (whole[: len(whole) // 2], "is truncated"),
        "damaged.npz": (whole[:300] + bytes(200) + whole[500:], "is truncated or damaged"),
        "text.npz": (b"hello", "is not an .npz file; torchdojo simulate"),
        "empty.npz": (b"", "is not an .npz file"),
    }
    for name, (data, message) in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=f"{name} {message}"):
            load_playbacks(tmp_path / name)
    np.savez(tmp_path / "old.npz", z=np.zeros((3, 13)), u=np.zeros((2, 0)))
    with pytest.raises(ValueError, match=r"old.npz has no drawing .*it has z, u; .*--mechanism NAME.*torchdojo simulate"):
        load_playbacks(tmp_path / "old.npz")
    with pytest.raises(FileNotFoundError, match=r"gone\.npz' does not exist"):
        load_playbacks(tmp_path / "gone.npz")
    for path, error, message in (
        (tmp_path / "a.txt", ValueError, "ends in .npz"),
        (tmp_path / "no" / "a.npz", FileNotFoundError, "folder .* does not exist"),
    ):
        with pytest.raises(error, match=message):
            save_playbacks(path, playbacks)
    with pytest.raises(ValueError, match="at least one Playback"):
        playback_arrays([], tmp_path)

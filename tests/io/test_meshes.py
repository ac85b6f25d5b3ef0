"""Collision meshes of robot files: found, read, turned into contacts, or refused."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import warnings
from pathlib import Path

import pytest
import torch
from mjcf_text import FLOOR, TETRAHEDRON, free_body, notes, quiet
from urdf_text import INERTIAL, collision, inertial, link

import torchdojo as td
from conftest import shared_path
from torchdojo.commands.main import main
from torchdojo.commands.simulate import place
from torchdojo.io.meshes import find_mesh, mesh_vertices

trimesh = pytest.importorskip("trimesh")
pytest.importorskip("scipy")

FLAT = "v 0 0 0\nv 1 0 0\nv 1 1 0\nv 0 1 0\nf 1 2 3\nf 1 3 4\n"
OPEN = TETRAHEDRON.rsplit("f", 1)[0]


def cube(folder: Path, name: str = "cube.stl", size: float = 0.2) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    trimesh.creation.box((size, size, size)).export(folder / name)
    return folder / name


def robot(folder: Path, filename: str, scale: str = "", more: str = "", pose: str = "0 0 0") -> Path:
    path = folder / "robot.urdf"
    scale = f'scale="{scale}"' if scale else ""
    mesh = f'<mesh filename="{filename}" {scale}/>'
    path.write_text(f'<robot name="r">{link("base", INERTIAL + collision(mesh, pose) + more)}</robot>')
    return path


def hulls(mech: td.Mechanism) -> list[td.Hull]:
    return [shape for body in mech.bodies.values() for shape in body.shapes if isinstance(shape, td.Hull)]


# -- URDF --------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cube.stl", "cube.obj", "cube.dae"])
def test_a_mesh_touches_the_ground_with_its_corners(tmp_path: Path, name: str) -> None:
    path = cube(tmp_path / "meshes", name)
    mech = td.load(robot(tmp_path, f"meshes/{name}", scale="1 2 -3", pose="0 0 1"))
    assert list(mech.contacts) == [f"base_{i}" for i in range(8)]
    points = torch.stack([contact.point for contact in mech.contacts.values()])
    expected = torch.tensor(list(itertools.product((-0.1, 0.1), (-0.2, 0.2), (0.7, 1.3))), dtype=torch.float64)
    torch.testing.assert_close(points[torch.cdist(points, expected).argmin(0)], expected, rtol=0.0, atol=1e-7)
    (hull,) = hulls(mech)
    assert (hull.source.path, hull.source.scale, hull.position.tolist()) == (path, (1.0, 2.0, -3.0), [0.0, 0.0, 1.0])


def test_a_box_on_a_mesh_stands(tmp_path: Path) -> None:
    cube(tmp_path)
    mech = td.load(robot(tmp_path, "cube.stl"))
    path = mech.rollout(mech.initial_state(on="ground"), steps=100)
    assert (path.status == td.Status.SUCCESS).all()
    assert float(mech.distances(path.z[1:]).min()) > 0
    assert float(path.z[-1, 2]) == pytest.approx(0.1, abs=1e-3)


def test_units_of_dae(tmp_path: Path) -> None:
    path = cube(tmp_path, "cube.dae", 200.0)
    path.write_text(path.read_text().replace("<asset>", '<asset><unit name="millimeter" meter="0.001"/>'))
    assert float(mesh_vertices(path).max()) == pytest.approx(0.1)


def test_number_of_points(tmp_path: Path) -> None:
    trimesh.creation.icosphere(radius=0.1).export(tmp_path / "ball.stl")
    path = robot(tmp_path, "ball.stl")
    gaps = []
    for count in (8, 16, 40):
        mech = td.load(path, mesh_points=count)
        assert len(mech.contacts) == count
        gaps.append(hulls(mech)[0].gap)
    assert gaps == sorted(gaps, reverse=True) and gaps[1] < 0.025
    assert len(td.load(path).contacts) == 16


def test_flat_meshes_touch(tmp_path: Path) -> None:
    (tmp_path / "flat.obj").write_text(FLAT)
    assert len(td.load(robot(tmp_path, "flat.obj")).contacts) == 4


# -- where files are ---------------------------------------------------------------------------------------------------------------------


def test_search_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = tmp_path / "arm" / "urdf", tmp_path / "other"
    own.mkdir(parents=True)
    file = own / "robot.urdf"
    mesh = cube(tmp_path / "arm" / "meshes")
    for name in ("package://arm/meshes/cube.stl", "model://arm/meshes/cube.stl", "../meshes/cube.stl", str(mesh), f"file://{mesh}"):
        assert find_mesh(name, file).samefile(mesh), name
    assert find_mesh("package://any/share/arm/meshes/cube.stl", file) == mesh  # a folder inside the package
    away = cube(other / "pkg" / "deep", "away.stl")
    monkeypatch.delenv("ROS_PACKAGE_PATH", raising=False)
    for folder in (other, other / "pkg", other / "pkg" / "deep", str(other), [tmp_path / "none", other]):
        assert find_mesh("package://pkg/deep/away.stl", file, folder) == away
    with pytest.raises(FileNotFoundError, match=rf"'package://pkg/deep/away.stl' is in none of the folders .*{own}, {own.parent}, "):
        find_mesh("package://pkg/deep/away.stl", file)
    with pytest.raises(FileNotFoundError, match=r"'/nowhere/x.stl' is not there"):
        find_mesh("/nowhere/x.stl", file)
    cube(tmp_path, "alone.stl")
    with pytest.raises(FileNotFoundError):  # a bare name means too little in a parent
        find_mesh("package://pkg/alone.stl", file)
    monkeypatch.setenv("ROS_PACKAGE_PATH", str(other))
    assert find_mesh("package://pkg/deep/away.stl", file) == away


def test_missing_mesh(tmp_path: Path) -> None:
    path = robot(tmp_path, "package://pkg/no.stl", more=collision('<sphere radius="1"/>'))
    message = rf"robot\.urdf: collision mesh of link 'base': 'package://pkg/no\.stl' is in none of .*{tmp_path}.*mesh_path=.*mesh='skip'"
    with pytest.raises(FileNotFoundError, match=message):
        td.load(path, mesh="hull")
    with pytest.warns(UserWarning, match=r"collision meshes of base \(package://pkg/no\.stl\): ignored; they are not there"):
        mech = td.load(path)
    assert list(mech.contacts) == ["base_0"]
    assert [entry.effect for entry in mech.load_report.of_kind("collision meshes")] == ["motion"]
    with pytest.raises(ValueError, match=r"(?s)strict=True, and 1 kinds of content.*collision meshes of base"):
        td.load(path, strict=True)
    with pytest.warns(UserWarning, match=r"collision meshes of base .*mesh=None"):
        assert list(td.load(path, mesh=None).contacts) == ["base_0"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        td.load(path, contacts=None)
    with pytest.raises(ValueError, match="mesh is 'all'; allowed: 'hull', 'skip'"):
        td.load(path, mesh="all")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [("m.obj", "", "m.obj is empty: it has no vertices"), ("m.stl", "solid x", "is empty"), ("m.dae", "<a/>", "cannot be read as a mesh")],
)
def test_meshes_that_cannot_be_read(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    path = robot(tmp_path, name)
    with pytest.raises(ValueError, match=rf"collision mesh of link 'base': .*{message}.*mesh='skip'"):
        td.load(path, mesh="hull")
    with pytest.warns(UserWarning, match=r"(?s)collision meshes of base .*floating base of base: used; the robot has no contact"):
        assert not td.load(path).contacts


def test_what_a_mesh_element_needs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a <mesh> of link 'base' has no filename"):
        td.load(robot(tmp_path, ""))
    with pytest.raises(ValueError, match=r"has scale='1 1'; allowed: 3 finite number"):
        td.load(robot(tmp_path, "m.stl", scale="1 1"))


def test_without_trimesh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cube(tmp_path)
    monkeypatch.setitem(sys.modules, "trimesh", None)
    with pytest.raises(ImportError, match=r'needs the package trimesh: pip install "torchdojo\[mesh\]"'):
        mesh_vertices(path)


# -- MJCF --------------------------------------------------------------------------------------------------------------------------------

MESH = '<geom name="g" type="mesh" mesh="m" pos=".5 0 0" euler="0 0 90"/>'


@pytest.fixture
def mjcf(tmp_path: Path):
    pytest.importorskip("mujoco")

    def write(mesh: str, geom: str = MESH, top: str = '<compiler meshdir="meshes"/>') -> Path:
        path = tmp_path / "robot.xml"
        body = free_body('<inertial mass="1" pos="0 0 0" diaginertia="1 1 1"/>' + geom, 'pos="0 0 1"')
        path.write_text(f"<mujoco>{top}<asset>{mesh}</asset><worldbody>{FLOOR}{body}</worldbody></mujoco>")
        return path

    return write


def test_mjcf_meshes_are_hulls_in_the_frame_of_their_file(tmp_path: Path, mjcf) -> None:
    vertices = "-.1 -.1 -.1 .3 -.1 -.1 -.1 .2 -.1 -.1 -.1 .4 0 0 0"
    inline = td.load(mjcf(f'<mesh name="m" vertex="{vertices}" scale="1 1 -2"/>'))
    (tmp_path / "meshes").mkdir()
    text = "".join(f"v {' '.join(vertices.split()[3 * i : 3 * i + 3])}\n" for i in range(4))
    (tmp_path / "meshes" / "m.obj").write_text(text + TETRAHEDRON.split("\n", 4)[4])
    from_file = td.load(mjcf('<mesh file="m.obj" scale="1 1 -2"/>'))
    expected = torch.tensor(
        [[0.6, -0.1, 0.2], [0.6, 0.3, 0.2], [0.3, -0.1, 0.2], [0.6, -0.1, -0.8]], dtype=torch.float64
    )  # turned by 90 degrees
    for mech in (inline, from_file):
        points = torch.stack([contact.point for contact in mech.contacts.values()])
        torch.testing.assert_close(points[torch.cdist(points, expected).argmin(0)], expected, rtol=0.0, atol=1e-6)
        (hull,) = hulls(mech)
        torch.testing.assert_close(hull.position, torch.tensor([0.5, 0.0, 0.0]), rtol=0.0, atol=1e-6)
        assert hull.source.scale == (1.0, 1.0, -2.0)
    assert hulls(inline)[0].source.path is None
    assert hulls(from_file)[0].source.path.samefile(tmp_path / "meshes" / "m.obj")


def test_mjcf_meshes_in_other_folders(tmp_path: Path, mjcf) -> None:
    cube(tmp_path / "away", "m.stl")
    path = mjcf('<mesh file="m.stl"/>')
    with pytest.raises(FileNotFoundError, match=r"collision mesh of body 'a': 'm\.stl' is in none of"):
        td.load(path)
    assert len(td.load(path, mesh_path=tmp_path / "away").contacts) == 8
    shutil.rmtree(tmp_path / "away")
    assert not quiet(path, mesh="skip").contacts


def test_masses_of_open_and_flat_meshes(tmp_path: Path, mjcf) -> None:
    (tmp_path / "m.obj").write_text(OPEN)
    heavy = MESH + '<geom type="mesh" mesh="m" density="6"/>'
    assert "the mass of body" not in notes(mjcf('<mesh file="m.obj"/>', heavy, ""))  # it has an <inertial>
    path = mjcf('<mesh file="m.obj"/>', heavy, '<compiler inertiafromgeom="true"/>')
    assert "mass from a mesh of m on body a (3 edges have one face)" in notes(path)
    assert "not closed" not in notes(mjcf('<mesh file="m.obj" inertia="convex"/>', heavy, '<compiler inertiafromgeom="true"/>'))
    (tmp_path / "flat.obj").write_text(FLAT)
    with pytest.raises(ValueError, match=r"MuJoCo refuses the file: mesh 'm' has coplanar vertices"):
        td.load(mjcf('<mesh name="m" file="flat.obj"/>', MESH, ""))


# -- inertias that no body can have ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moments", ['diaginertia="1 1 5"', 'fullinertia="1 1 5 0 0 .1"'])
def test_impossible_inertias_of_mjcf(tmp_path: Path, moments: str) -> None:
    pytest.importorskip("mujoco")
    path = tmp_path / "robot.xml"
    body = f'<body name="a"><freejoint/><inertial mass="1" pos="0 0 0" {moments}/><geom size=".1"/></body>'
    path.write_text(f"<mujoco><worldbody>{body}</worldbody></mujoco>")
    with pytest.raises(ValueError, match=r"inertia must satisfy A \+ B >= C[^$]*repair_inertia=True"):
        td.load(path)
    with pytest.warns(UserWarning, match=r"inertia of a: repaired; principal moments \[.* 5\..*\] -> .*, a change of \d+ %"):
        mech = td.load(path, repair_inertia=True)
    low, middle, high = torch.linalg.eigvalsh(mech.bodies["a"].inertia)
    assert 0 < high <= low + middle


def test_flags_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cube(tmp_path / "away")
    path = robot(tmp_path, "package://pkg/away/cube.stl").rename(tmp_path / "away" / "robot.urdf")
    text = path.read_text().replace(INERTIAL, inertial(1.0, moments=(0.1, 0.1, 0.5))).replace("away/cube.stl", "no/cube.stl")
    path = tmp_path / "away" / "sub" / "robot.urdf"
    path.parent.mkdir()
    path.write_text(text)

    def run(*options: str) -> tuple[int, str]:
        code = main(["simulate", str(path), "--steps", "2", "--json", *options])
        captured = capsys.readouterr()
        return code, captured.err + captured.out

    assert run()[0] == 2 and "repair_inertia=True" in run("--mesh", "skip")[1]
    code, out = run("--repair-inertia", "--mesh-path", str(tmp_path / "away"), "--mesh-points", "6")
    report = json.loads(out.splitlines()[-1])
    assert (code, report["contacts"], report["meshes"], report["mesh_points"]) == (0, 6, 1, 6)
    assert "1 as 6 points, at most" in out
    assert report["mesh_gap_m"] == pytest.approx(0.2 / 3**0.5, rel=0.3)
    assert "meshes" not in json.loads(run("--repair-inertia", "--mesh", "skip")[1].splitlines()[-1])
    assert main(["simulate", "box", "--mesh", "skip"]) == 2


# -- published robots --------------------------------------------------------------------------------------------------------------------

ROBOTS = {
    ("atlas", "atlas.urdf"): (28, {}),
    ("franka_panda", "panda.urdf"): (8, {"floating_base": False}),
    ("ur5", "ur5_robot.urdf"): (6, {"floating_base": False, "mesh_path": ("ur5", "meshes", "collision")}),
    ("xarm6", "xarm6_robot.urdf"): (6, {"floating_base": False, "repair_inertia": True}),
    ("contactnets", "contactnets_cube_mesh.urdf"): (1, {}),
    ("contactnets", "contactnets_elbow_mesh.urdf"): (2, {}),
}


@pytest.mark.parametrize("robot", ROBOTS, ids="/".join)
def test_published_robots(robot: tuple[str, str]) -> None:
    count, options = ROBOTS[robot]
    if "mesh_path" in options:
        options = {**options, "mesh_path": shared_path("models", *options["mesh_path"])}
    mech = quiet(shared_path("models", *robot), **options)
    found = hulls(mech)
    assert len(found) == count
    for hull in found:
        size = float((hull.vertices.amax(0) - hull.vertices.amin(0)).norm())
        assert hull.gap <= 0.07 * size
        assert hull.source.path.is_file()
    if robot[0] != "franka_panda":  # whose coordinates of zero are outside of its limits
        assert mech.step(place(mech, mech.initial_state(), 0.01)).status == td.Status.SUCCESS


@pytest.mark.slow
def test_atlas_lies_down_on_its_meshes() -> None:
    """Three seconds without input, from its soles on the ground: 460 contacts."""
    mech = td.load(shared_path("models", "atlas", "atlas.urdf"))
    path = mech.rollout(mech.initial_state(on="ground"), steps=300)
    assert (path.status == td.Status.SUCCESS).all()
    assert float(mech.distances(path.z[1:]).min()) >= 0
    velocity = path.z.unflatten(-1, (-1, 13))[..., 3:6].norm(dim=-1)
    assert float(velocity.max()) < 20 and float(velocity[-1].max()) < 0.1


@pytest.mark.slow
def test_atlas_stands_on_its_meshes() -> None:
    """Three seconds, held in its posture by springs: the soles of its feet are meshes."""
    mech = td.load(shared_path("models", "atlas", "atlas.urdf"))
    for joint in mech.joints.values():
        if joint.num_inputs:
            joint.spring, joint.damper, joint.implicit = 5000.0, 200.0, True
    path = mech.rollout(mech.initial_state(on="ground"), steps=300)
    assert (path.status == td.Status.SUCCESS).all()
    assert float((path.z[:, 2] - path.z[0, 2]).abs().max()) < 0.01
    assert float(mech.distances(path.z[1:]).min()) > 0

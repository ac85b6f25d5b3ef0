"""Pictures of robot files: poses, colors and meshes arrive in the scene, and what is missing stops nothing."""

import warnings

import numpy as np
import pytest
import torch
from urdf_text import inertial, joint, link

import torchdojo as td
from torchdojo import quaternion as quat
from torchdojo.geometry.hulls import MeshSource
from torchdojo.viewer import Scene
from torchdojo.viewer.scene import GRAY
from torchdojo.viewer.surfaces import MISSING

TETRAHEDRON = "v 0 0 0\nv 1 0 0\nv 0 2 0\nv 0 0 3\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
CORNERS = np.array([[0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 3]], dtype=float)
RED, BLUE = (1.0, 0.0, 0.0, 1.0), (0.0, 0.0, 1.0, 0.5)


def visual(geometry, material="", origin='<origin xyz="0.1 0.2 0.3" rpy="0 0 1.5707963267948966"/>'):
    return f"<visual>{origin}<geometry>{geometry}</geometry>{material}</visual>"


def robot(tmp_path, *elements):
    folder = tmp_path / "package" / "urdf"
    folder.mkdir(parents=True)
    (folder.parent / "meshes").mkdir()
    (folder.parent / "meshes" / "a.obj").write_text(TETRAHEDRON)
    path = folder / "robot.urdf"
    path.write_text(f'<robot name="r">{"".join(elements)}</robot>')
    return path


def corners(mech, z, part, surface):
    """Vertices of a part in the world."""
    q, p = (torch.tensor(numbers, dtype=torch.float64) for numbers in (part.orientation, part.position))
    local = p + quat.rotate(q, torch.as_tensor(surface.vertices).double())
    return (local if part.body is None else mech.body_points(z, part.body, local)).detach().numpy()


def same_points(a, b):
    gaps = np.linalg.norm(np.asarray(a)[:, None] - np.asarray(b), axis=-1)
    return max(gaps.min(0).max(), gaps.min(1).max()) < 1e-6


KINDS = ("box", "sphere", "cylinder", "mesh")
MATERIALS = '<material name="everywhere"><color rgba="1 0 0 1"/></material>'
BASE = link(
    "base",
    inertial(1.0, "0.5 0 0")
    + visual('<box size="1 2 3"/>', '<material name="everywhere"/>')
    + visual('<sphere radius="0.5"/>', '<material name="first seen here"><color rgba="0 0 1 0.5"/></material>')
    + visual('<cylinder radius="0.1" length="2"/>', '<material name="not there"/>')
    + visual('<cone radius="0.1"/>')
    + visual('<box size="1 2"/>'),
)
TOOL = link("tool", visual('<mesh filename="package://package/meshes/a.obj" scale="1 -1 2"/>', '<material name="first seen here"/>'))
HAND = link("hand", inertial(1.0) + visual('<mesh filename="package://package/meshes/gone.stl"/>'))
JOINTS = (
    joint("fix", "fixed", "base", "tool", '<origin xyz="0 0 1" rpy="0 1.5707963267948966 0"/>'),
    joint("turn", "continuous", "base", "hand", "<axis xyz='0 0 1'/>"),
)


@pytest.mark.parametrize("floating", [True, False])
def test_urdf_visuals(tmp_path, floating):
    """Merged links, global and shared materials, a mirrored mesh of a package, one that is gone, elements that cannot be read."""
    path = robot(tmp_path, MATERIALS, BASE, TOOL, HAND, *JOINTS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mech = td.load(path, floating_base=floating, contacts=None)
        scene = Scene.of(mech)
    box, ball, rod, mesh = (next(p for p in scene.parts if p.body != "hand" and p.kind == kind) for kind in KINDS)
    assert [p.role for p in (box, ball, rod, mesh)] == ["visual"] * 4 and box.body == ("base" if floating else None)
    assert (box.size, ball.size, rod.size) == ((1.0, 2.0, 3.0), (0.5,), (0.1, 2.0))
    assert (box.color, ball.color, mesh.color) == (RED, BLUE, BLUE) and rod.color not in (RED, BLUE)
    offset = np.array([0.5, 0, 0]) if floating else np.zeros(3)  # the body's frame is at its center of mass
    assert np.allclose(box.position, np.array([0.1, 0.2, 0.3]) - offset)
    assert np.allclose(box.orientation, [np.sqrt(0.5), 0, 0, np.sqrt(0.5)])
    z = mech.initial_state()
    about_z, about_y = np.array([[0, -1, 0], [1, 0, 0], [0, 0, 1.0]]), np.array([[0, 0, 1.0], [0, 1, 0], [-1, 0, 0]])
    expected = (CORNERS * [1, -1, 2] @ about_z.T + [0.1, 0.2, 0.3]) @ about_y.T + [0, 0, 1]
    assert same_points(corners(mech, z, mesh, scene.meshes[mesh.mesh]), expected)
    surface = scene.meshes[mesh.mesh]
    a, b, c = (surface.vertices[surface.faces[:, i]] for i in range(3))
    outward = (np.cross(b - a, c - a) * ((a + b + c) / 3 - surface.vertices.mean(0))).sum(-1)
    assert (outward > 0).all()  # also of a mirror image
    (gone,) = [p for p in scene.parts if p.body == "hand"]
    with pytest.warns(UserWarning, match=r"gone\.stl.* is not there; a box of 0.1 m in magenta is drawn"):
        placeholder = scene.meshes[gone.mesh]
    assert placeholder.missing and scene.color(gone) == MISSING and np.abs(placeholder.vertices).max() == np.float32(0.05)


MJCF = """<mujoco><compiler meshdir="meshes"/>
<asset><material name="blue" rgba="0 0 1 0.5"/><mesh name="a" file="a.obj" scale="1 2 1"/><mesh name="turned" file="a.obj" refpos="1 0 0"/>
  <mesh name="given" vertex="0 0 0 1 0 0 0 2 0 0 0 3"/>{missing}</asset>
<worldbody>
  <geom type="plane" size="5 5 0.1"/><geom type="box" size="0.1 0.2 0.3" pos="3 0 0" rgba="1 0 0 1"/>
  <body name="b" pos="0 0 1" quat="0.8 0 0.6 0"><freejoint/><inertial pos="0.3 0 0" mass="1" diaginertia="1 1 1"/>
    <geom type="mesh" mesh="a" material="blue" pos="0.1 0 0" quat="0.6 0 0 0.8" contype="0" conaffinity="0"/>
    <geom type="mesh" mesh="turned" rgba="1 0 0 1" contype="0" conaffinity="0"/>
    <geom type="mesh" mesh="given" contype="0" conaffinity="0"/>
    <geom type="capsule" size="0.1 0.5" group="1" contype="0" conaffinity="0"/>
    <geom type="sphere" size="0.4" group="3"/><geom type="sphere" size="0.2" rgba="0 0 0 0"/>{geom}
  </body>
</worldbody></mujoco>"""


def test_mjcf_visuals(tmp_path):
    """Meshes are where MuJoCo has them, whether a file or the model has the vertices; colors, groups and fixed geoms arrive."""
    mujoco = pytest.importorskip("mujoco")
    (tmp_path / "meshes").mkdir()
    (tmp_path / "meshes" / "a.obj").write_text(TETRAHEDRON)
    path = tmp_path / "robot.xml"
    path.write_text(MJCF.format(missing="", geom=""))
    mech = td.load(path)
    scene = Scene.of(mech)
    z = mech.initial_state()
    shown = [p for p in scene.parts if p.body == "b"]
    assert [p.kind for p in shown] == ["mesh", "mesh", "mesh", "capsule"] and shown[3].size == (0.1, 1.0)
    assert [p.color for p in shown[:2]] == [BLUE, RED] and {p.role for p in shown} == {"visual"}
    model = mujoco.MjModel.from_xml_path(str(path))
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    for g, part in enumerate(shown[:3], start=2):
        start = model.mesh_vertadr[model.geom_dataid[g]]
        vertices = model.mesh_vert[start : start + model.mesh_vertnum[model.geom_dataid[g]]]
        expected = vertices @ data.geom_xmat[g].reshape(3, 3).T + data.geom_xpos[g]
        assert same_points(corners(mech, z, part, scene.meshes[part.mesh]), expected)
    fixed = [p for p in scene.parts if p.body is None]
    assert [(p.kind, p.role) for p in fixed] == [("box", "visual"), ("plane", "ground")]
    assert fixed[0].size == (0.2, 0.4, 0.6) and fixed[0].color == RED and fixed[0].position == (3.0, 0.0, 0.0)


def test_mjcf_without_a_visual_mesh(tmp_path):
    pytest.importorskip("mujoco")
    path = tmp_path / "robot.xml"
    text = MJCF.replace('<mesh name="a" file="a.obj" scale="1 2 1"/><mesh name="turned" file="a.obj" refpos="1 0 0"/>', "")
    lines = [line for line in text.splitlines() if 'mesh="a"' not in line and 'mesh="turned"' not in line]
    geom = '<geom type="mesh" mesh="gone" pos="0 0 1" contype="0" conaffinity="0"/>'
    path.write_text("\n".join(lines).format(missing='<mesh name="gone" file="gone.stl"/>', geom=geom))
    mech = td.load(path)
    scene = Scene.of(mech)
    shown = [p for p in scene.parts if p.body == "b"]
    roles = [(p.kind, p.role) for p in shown]
    assert roles[-3:] == [("mesh", "visual"), ("sphere", "collision"), ("sphere", "collision")]  # what collides shows the body
    with pytest.warns(UserWarning, match=r"gone\.stl.*magenta"):
        assert scene.color(shown[-3]) == MISSING
    assert np.allclose(shown[-3].position, (-0.3, 0.0, 1.0))


def test_colors_of_mesh_files(tmp_path):
    """A mesh has the color of its file where the robot's file gives none."""
    (tmp_path / "a.mtl").write_text("newmtl red\nKd 1 0 0\n")
    (tmp_path / "red.obj").write_text("mtllib a.mtl\nusemtl red\n" + TETRAHEDRON)
    (tmp_path / "plain.obj").write_text(TETRAHEDRON)
    given = [("red.obj", None), ("red.obj", BLUE), ("plain.obj", None)]
    visuals = [td.Visual("mesh", mesh=MeshSource(tmp_path / name), color=color) for name, color in given]
    scene = Scene.of(td.Mechanism({"b": td.Body(1.0, (1.0, 1.0, 1.0), visuals=visuals)}))
    assert [scene.color(part) for part in scene.parts] == [RED, BLUE, GRAY] and len(scene.meshes) == 2


def test_visuals_of_a_body_take_the_place_of_its_shapes():
    mark = td.Visual("ellipsoid", (0.1, 0.2, 0.3), color=RED)
    mech = td.Mechanism({"b": td.Body(1.0, shape=td.Sphere(0.1), visuals=[mark])})
    assert [(p.kind, p.role, p.color) for p in Scene.of(mech).parts] == [("ellipsoid", "visual", RED)]
    assert [p.role for p in Scene.of(mech, collision=True).parts] == ["visual", "collision"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cone", (1.0,)), "kind 'cone'; allowed: 'sphere', 'box'"),
        (("box", (1.0, 2.0)), r"size=\(1.0, 2.0\) of a box; allowed: 3 finite"),
        (("sphere", (float("nan"),)), "size=.*1 finite"),
        (("mesh", ()), "a mesh needs mesh="),
    ],
)
def test_bad_visuals(arguments, message):
    with pytest.raises(ValueError, match=message):
        td.Visual(*arguments)

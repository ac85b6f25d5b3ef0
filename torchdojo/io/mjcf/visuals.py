"""Visuals of an MJCF model: the geoms of the visual groups that MuJoCo's own viewer draws at first, with their colors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchdojo.geometry.hulls import MeshSource
from torchdojo.geometry.visuals import Triangles, Visual
from torchdojo.io.mjcf.geoms import GeomMesh, mesh_of
from torchdojo.io.mjcf.model import CompiledMjcf, import_mujoco
from torchdojo.io.robot import Pose, compose

__all__ = ["read_visuals"]

SHOWN = 3  # groups 0, 1 and 2; by convention, the others hold what collides
READABLE = {".stl", ".obj"}  # by trimesh; a .msh is MuJoCo's own
DEFAULT = (0.5, 0.5, 0.5, 1.0)  # the color of a geom that gives none


def read_visuals(compiled: CompiledMjcf, group: Sequence[int], frames: Mapping[int, Pose]) -> tuple[Visual, ...]:
    """Visuals of the MJCF bodies of a group, whose frames are given. Planes, height fields and invisible geoms are none."""
    mujoco, model, visuals = import_mujoco(), compiled.model, []
    for b in group:
        start = int(model.body_geomadr[b])
        for g in range(start, start + int(model.body_geomnum[b])):
            visual = _visual(mujoco, compiled, g, frames[b]) if model.geom_group[g] < SHOWN else None
            if visual is not None:
                visuals.append(visual)
        for geom in compiled.missing:
            if int(geom.body.id) == b and geom.group < SHOWN:
                position = frames[b][1] + frames[b][0] @ np.array(geom.position)
                visuals.append(Visual("mesh", (), tuple(position.tolist()), mesh=MeshSource(geom.file)))
    return tuple(visuals)


def _visual(mujoco: Any, compiled: CompiledMjcf, g: int, frame: Pose) -> Visual | None:
    model, types = compiled.model, mujoco.mjtGeom
    color = _color(model, g)
    if color is not None and color[3] == 0:
        return None
    matrix = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, model.geom_quat[g])
    pose = compose(frame, (matrix.reshape(3, 3), np.array(model.geom_pos[g])))
    a, b, c = (float(number) for number in model.geom_size[g])
    solids = {
        types.mjGEOM_SPHERE: ("sphere", (a,)),
        types.mjGEOM_CAPSULE: ("capsule", (a, 2 * b)),
        types.mjGEOM_CYLINDER: ("cylinder", (a, 2 * b)),
        types.mjGEOM_BOX: ("box", (2 * a, 2 * b, 2 * c)),
        types.mjGEOM_ELLIPSOID: ("ellipsoid", (a, b, c)),
    }
    kind = types(int(model.geom_type[g]))
    if kind == types.mjGEOM_MESH:
        mesh = mesh_of(mujoco, model, g, pose)
        return Visual("mesh", (), *_place(mujoco, mesh.pose), color, _surface(compiled, mesh))
    return Visual(*solids[kind], *_place(mujoco, pose), color) if kind in solids else None


def _place(mujoco: Any, pose: Pose) -> tuple[tuple[float, ...], tuple[float, ...]]:
    quaternion = np.zeros(4)
    mujoco.mju_mat2Quat(quaternion, pose[0].flatten())
    return tuple(pose[1].tolist()), tuple(quaternion.tolist())


def _color(model: Any, g: int) -> tuple[float, ...] | None:
    """A color of the geom's own takes precedence over its material's."""
    color, material = tuple(float(channel) for channel in model.geom_rgba[g]), int(model.geom_matid[g])
    if color == DEFAULT:
        return None if material < 0 else tuple(float(channel) for channel in model.mat_rgba[material])
    return color


def _surface(compiled: CompiledMjcf, mesh: GeomMesh) -> MeshSource | Triangles:
    """The file of a mesh, or its triangles where no file has them as they are."""
    model, i, path = compiled.model, mesh.number, mesh.source.path
    turned = compiled.spec.mesh(str(model.mesh(i).name))
    plain = turned is not None and not np.any(turned.refpos) and np.array_equal(turned.refquat, (1.0, 0.0, 0.0, 0.0))
    if path is not None and path.suffix.lower() in READABLE and path.is_file() and plain:
        return mesh.source
    start = int(model.mesh_faceadr[i])
    faces = model.mesh_face[start : start + int(model.mesh_facenum[i])]
    return Triangles(mesh.vertices().astype(np.float32), faces.astype(np.int32))

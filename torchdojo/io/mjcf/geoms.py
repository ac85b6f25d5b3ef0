"""Geoms of an MJCF model: shapes of bodies, and which of their points touch which planes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from torchdojo.geometry.heights import HeightField
from torchdojo.geometry.hulls import Hull, MeshSource
from torchdojo.geometry.shapes import Box, Capsule, Cylinder, Ellipsoid, Shape, Sphere
from torchdojo.io.mjcf.fields import read_ground
from torchdojo.io.mjcf.left_out import report_contacts
from torchdojo.io.mjcf.model import CompiledMjcf, disabled, import_mujoco
from torchdojo.io.pairs import PairInfo
from torchdojo.io.pieces import cut_mesh
from torchdojo.io.robot import Z_AXIS, Array, ContactInfo, LinkInfo, Pose, clean_name, compose
from torchdojo.quaternion import from_rotation_matrix

__all__ = ["GeomMesh", "GeomReader", "Points", "mesh_of"]

SAMPLES = 4  # configurations that tell whether a point can change its distance to a plane
CONSTANT = 1e-9  # [m]
INSIDE = 1e-9  # [m]


class Points(NamedTuple):
    """Numbers of contact points that shapes get."""

    rim: int  #: on each rim of a cylinder
    mesh: int | None  #: of a mesh, at most; None: meshes make no contact
    pieces: bool = False  #: whether convex pieces of meshes touch other bodies


@dataclass(frozen=True)
class _Plane:
    geom: int  #: -1: the ground z = 0, which no geom of the file is
    normal: Array
    offset: float
    field: HeightField | None = None  #: in place of the plane


class _Surface(NamedTuple):
    """The laws of contact of a geom and a plane."""

    friction: float | None  #: None: without friction
    laws: dict[str, float]  #: torsional and rolling friction [m]


@dataclass(frozen=True)
class _Ball:
    """A candidate for a contact: a point of a geom."""

    name: str
    geom: str
    link: int  #: MJCF body
    point: Array  #: (3,) in the frame of our body [m]
    radius: float  #: [m]
    surface: _Surface


@dataclass(frozen=True)
class GeomMesh:
    """The mesh of a geom in the frame of its file: MuJoCo moves its vertices into a frame of its own, and the geom with them."""

    pose: Pose  #: of the frame of the file
    source: MeshSource
    number: int
    vertices: Callable[[], Array]  #: gives (n, 3) in the frame of the file, scaled [m]


def mesh_of(mujoco: Any, model: Any, g: int, pose: Pose) -> GeomMesh:
    """The mesh of a geom of this pose."""
    i = int(model.geom_dataid[g])
    matrix = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, model.mesh_quat[i])
    turn, shift = matrix.reshape(3, 3), np.array(model.mesh_pos[i])

    def vertices() -> Array:
        start = int(model.mesh_vertadr[i])
        return np.asarray(model.mesh_vert[start : start + int(model.mesh_vertnum[i])].astype(np.float64) @ turn.T + shift)

    place = int(model.mesh_pathadr[i])
    name = "" if place < 0 else model.paths[place:].split(b"\0")[0].decode()
    x, y, z = (float(number) for number in model.mesh_scale[i])
    return GeomMesh(compose(pose, (turn.T, -turn.T @ shift)), MeshSource(Path(name) if name else None, (x, y, z)), i, vertices)


def _outer(balls: Sequence[_Ball]) -> list[_Ball]:
    """The balls that are not inside another one, whose contact they would only double; the first of equal ones stays."""
    if not balls:
        return []
    points, radii = np.stack([ball.point for ball in balls]), np.array([ball.radius for ball in balls])
    apart = np.linalg.norm(points[:, None] - points, axis=-1)
    inside = radii - radii[:, None] - apart >= -INSIDE  # [i, j]: i is inside j
    larger = radii > radii[:, None] + INSIDE
    covers = inside & (larger | np.tri(len(balls), k=-1, dtype=bool))
    return [ball for ball, covered in zip(balls, covers.any(1), strict=True) if not covered]


class GeomReader:
    """Reads the `shapes` of each body first, then the `contacts` of all; `findings` has what is left out.

    Args:
        names: of MJCF bodies. top: MJCF body -> topmost one of the body that it is part of. between: whether `pairs` is called, too.
    """

    def __init__(self, compiled: CompiledMjcf, names: Sequence[str], top: Sequence[int], points: Points, between: bool = False) -> None:
        self.mujoco, self.compiled, self.model = import_mujoco(), compiled, compiled.model
        self.names, self.top, self.points = names, top, points
        self.findings = compiled.contact_findings
        self.between = between
        self.touching: dict[int, str] = {}  #: geom -> label, of those that touch something
        self.placed: dict[int, Shape] = {}  #: geom -> shape in the frame of its body
        self.cut: dict[int, tuple[Hull, ...]] = {}  #: mesh -> its convex pieces, in the frame of its file
        self.types = self.mujoco.mjtGeom
        self._no_parents = self.mujoco.mjtDisableBit.mjDSBL_FILTERPARENT
        self.excluded = {
            frozenset(int(self.model.body(name).id) for name in (pair.bodyname1, pair.bodyname2)) for pair in compiled.spec.excludes
        }

    def shapes(self, group: Sequence[int], frames: Mapping[int, tuple[Array, Array]]) -> tuple[Shape, ...]:
        """Shapes of the MJCF bodies of a group: of the geoms that collide, or of all where none does.

        Args:
            frames: MJCF body -> its frame in the frame of the body that the group becomes.
        """
        colliding: list[Shape] = []
        others: list[Shape] = []
        for b in group:
            for g in self._geoms(b):
                shape = self._shape(g, *frames[b])
                if shape is not None:
                    self.placed[g] = shape
                    (colliding if self.model.geom_contype[g] or self.model.geom_conaffinity[g] else others).append(shape)
        return tuple(colliding or others)

    def contacts(
        self, links: Mapping[str, LinkInfo], tops: Sequence[int], floating_base: bool, on_ground: Callable[[int], set[str]]
    ) -> dict[str, ContactInfo]:
        """Every point of a geom against every plane that it can reach.

        Args:
            tops: topmost MJCF bodies of our bodies. on_ground: number of planes of the file -> bodies that touch the ground z = 0, too.
        """
        if disabled(self.model, "CONTACT"):
            return {}
        planes = self._planes()
        grounded = on_ground(len(planes))
        planes += [_Plane(-1, Z_AXIS, 0.0)] if grounded else []
        heights = self._sampled_poses(floating_base)
        result: dict[str, ContactInfo] = {}
        without, level = [], []
        for number, plane in enumerate(planes):
            for t in tops if plane.geom >= 0 else [t for t in tops if self.names[t] in grounded]:
                points: list[_Ball] = []
                for b in (b for b in range(1, self.model.nbody) if self.top[b] == t):
                    for n, g in enumerate(self._geoms(b)):
                        surface = self._surface(plane.geom, g)
                        if surface is None:
                            continue
                        self.touching[g] = label = self._label(g, n)
                        if g not in self.placed:
                            without.append(label)
                            continue
                        places, radius = self.placed[g].contact_points()
                        names = [label] if len(places) == 1 else [f"{label}_{i}" for i in range(len(places))]
                        points += [
                            _Ball(name, label, b, np.asarray(place), float(radius), surface)
                            for name, place in zip(names, places.numpy(), strict=True)
                        ]
                for ball in _outer(points):
                    if self._constant(ball, links, heights, plane):
                        level.append(ball.geom)
                        continue
                    name = ball.name if len(planes) == 1 else f"{ball.name}_{self._label(plane.geom, number)}"
                    while name in result:
                        name += "_"
                    friction, laws = ball.surface
                    shape = {} if plane.field is None else {"other_shape": plane.field}
                    result[name] = ContactInfo(
                        self.names[t], ball.point, ball.radius, friction, plane.normal, plane.offset, {**laws, **shape}
                    )
        reason = "moving height fields, signed distances, and meshes with mesh=None have no contact points"
        self.findings.add("ignored", "geoms", dict.fromkeys(without), reason)
        reason = "no joint can change the height of these points, so they make no contact; contacts= can give some all the same"
        self.findings.add("ignored", "collision geometry", dict.fromkeys(level), reason, "structure")
        report_contacts(self.compiled, self.touching, self.findings)
        if not self.between:
            self._report_pairs()
        return result

    def pairs(self, frames: Mapping[int, Pose]) -> dict[str, PairInfo]:
        """Every geom against every other one that MuJoCo lets it touch, of another body or of the world, but for planes.

        Args:
            frames: MJCF bodies that are part of the world -> their poses. The `shapes` of all others have been read.
        """
        if disabled(self.model, "CONTACT"):
            return {}
        labels = {g: self._label(g, g - int(self.model.body_geomadr[self.model.geom_bodyid[g]])) for g in range(self.model.ngeom)}
        touching = touching_geoms(self.model, self.excluded, bool(self.model.opt.disableflags & int(self._no_parents)))
        result, without = {}, []
        for pair in touching:
            bodies = [int(self.model.geom_bodyid[g]) for g in pair]
            if self.top[bodies[0]] == self.top[bodies[1]] or any(self._is_ground(g) for g in pair):
                continue
            (g, g_body), (p, p_body) = sorted(zip(pair, bodies, strict=True), key=lambda entry: self.top[entry[1]] == 0)
            for one, body in ((g, g_body), (p, p_body)):
                if one not in self.placed and body in frames and (shape := self._shape(one, *frames[body])) is not None:
                    self.placed[one] = shape
            surface = self._surface(p, g)
            if surface is None:
                continue
            self.touching |= {g: labels[g], p: labels[p]}
            if g not in self.placed or p not in self.placed:
                without.append(labels[g if g not in self.placed else p])
                continue
            other = None if self.top[p_body] == 0 else self.names[self.top[p_body]]
            name = f"{labels[g]}_{labels[p]}"
            while name in result:
                name += "_"
            shapes = self.placed[g], self.placed[p]
            result[name] = PairInfo(
                self.names[self.top[g_body]], shapes[0], other, shapes[1], surface.friction, dict(surface.laws), labels[p]
            )
        reason = "moving height fields, signed distances, and meshes with mesh=None touch no bodies"
        self.findings.add("ignored", "geoms", dict.fromkeys(without), reason)
        return result

    # -- geoms -----------------------------------------------------------------------------------------------------------------------------

    def _geoms(self, b: int) -> range:
        start = int(self.model.body_geomadr[b])
        return range(start, start + int(self.model.body_geomnum[b]))

    def _label(self, g: int, n: int) -> str:
        if g < 0:
            return "ground"
        name = str(self.model.geom(g).name)
        return clean_name(name) if name else f"{self.names[self.model.geom_bodyid[g]]}_{n}"

    def _shape(self, g: int, rotation: Array, position: Array) -> Shape | None:
        """The shape in the frame of our body, where the MJCF body has this pose. None for planes and for meshes that only draw."""
        matrix = np.zeros(9)
        self.mujoco.mju_quat2Mat(matrix, self.model.geom_quat[g])
        size = [float(number) for number in self.model.geom_size[g]]
        pose: dict[str, Any] = {
            "position": (position + rotation @ self.model.geom_pos[g]).tolist(),
            "orientation": from_rotation_matrix(torch.as_tensor(rotation @ matrix.reshape(3, 3))),
        }
        kind = self.types(int(self.model.geom_type[g]))
        if kind == self.types.mjGEOM_SPHERE:
            return Sphere(size[0], **pose)
        if kind == self.types.mjGEOM_CAPSULE:
            return Capsule(size[0], 2 * size[1], **pose)
        if kind == self.types.mjGEOM_CYLINDER:
            return Cylinder(size[0], 2 * size[1], rim_points=self.points.rim, **pose)
        if kind == self.types.mjGEOM_BOX:
            return Box([2 * edge for edge in size], **pose)
        if kind == self.types.mjGEOM_ELLIPSOID:
            return Ellipsoid(size, **pose)
        if kind == self.types.mjGEOM_MESH and self._touches(g) and self.points.mesh is not None:
            return self._hull(g, compose((rotation, position), (matrix.reshape(3, 3), np.array(self.model.geom_pos[g]))))
        return None

    def _touches(self, g: int) -> bool:
        pairs = (*self.model.pair_geom1, *self.model.pair_geom2)
        return bool(self.model.geom_contype[g] or self.model.geom_conaffinity[g] or g in pairs)

    def _hull(self, g: int, pose: Pose) -> Hull:
        mesh = mesh_of(self.mujoco, self.model, g, pose)
        pose_of_mesh = {"position": mesh.pose[1].tolist(), "orientation": from_rotation_matrix(torch.as_tensor(mesh.pose[0]))}
        try:
            hull = Hull(mesh.vertices(), count=self.points.mesh or 0, source=mesh.source, **pose_of_mesh)
            if self.points.pieces:
                start, count = (int(table[mesh.number]) for table in (self.model.mesh_faceadr, self.model.mesh_facenum))
                if mesh.number not in self.cut:
                    self.cut[mesh.number] = cut_mesh(mesh.vertices(), self.model.mesh_face[start : start + count].astype(np.int64))
                hull.pieces = tuple(Hull(piece.vertices, **pose_of_mesh) for piece in self.cut[mesh.number])
            return hull
        except ValueError as error:
            name = str(self.model.mesh(int(self.model.geom_dataid[g])).name)
            remedy = "; mesh='hull' takes its convex hull" if self.points.pieces else ""
            raise ValueError(f"{self.compiled.path}: mesh {name!r}: {error}{remedy}") from error

    # -- planes ----------------------------------------------------------------------------------------------------------------------------

    def _planes(self) -> list[_Plane]:
        """Planes and the height field of the world."""
        model, data = self.model, self.compiled.data
        planes, obstacles = [], []
        ground = read_ground(self.compiled, lambda g: self._label(g, g), self.findings)
        if ground is not None:
            planes.append(_Plane(ground[0], Z_AXIS, 0.0, ground[1]))
        for g in range(model.ngeom):
            if model.body_weldid[model.geom_bodyid[g]]:
                continue
            if model.geom_type[g] == int(self.types.mjGEOM_PLANE):
                normal = np.array(data.geom_xmat[g].reshape(3, 3)[:, 2])
                planes.append(_Plane(g, normal, float(normal @ data.geom_xpos[g])))
            elif (
                model.geom_type[g] != int(self.types.mjGEOM_HFIELD)
                and not self.between
                and (model.geom_contype[g] or model.geom_conaffinity[g])
            ):
                obstacles.append(self._label(g, g))
        self.findings.add(
            "ignored",
            "geoms of the world",
            obstacles,
            'only planes and a height field of the world touch bodies; contacts="all" adds these',
        )
        return planes

    def _is_ground(self, g: int) -> bool:
        """Whether a geom is a plane, or a height field of the world."""
        fixed = self.model.body_weldid[self.model.geom_bodyid[g]] == 0
        kind = self.model.geom_type[g]
        return bool(kind == int(self.types.mjGEOM_PLANE) or (fixed and kind == int(self.types.mjGEOM_HFIELD)))

    def _surface(self, p: int, g: int) -> _Surface | None:
        """The laws of contact of a geom with another one, or the ground (p = −1), as MuJoCo combines the numbers; None: no collision."""
        model = self.model
        if p < 0:  # MuJoCo's defaults, and the friction of the geom alone
            touching = bool(model.geom_contype[g] & 1 or model.geom_conaffinity[g] & 1)
            return _surface_of(model.geom_friction[g], int(model.geom_condim[g])) if touching else None
        for i in range(model.npair):
            if {int(model.pair_geom1[i]), int(model.pair_geom2[i])} == {g, p}:
                slide, other, spin, roll, other_roll = (float(number) for number in model.pair_friction[i])
                if slide != other or roll != other_roll:
                    reason = "friction differs between two directions; the mean of both acts in all"
                    self.findings.add("approximated", "friction of pairs", str(model.pair(i).name) or f"pair{i}", reason)
                return _surface_of(((slide + other) / 2, spin, (roll + other_roll) / 2), int(model.pair_dim[i]))
        if not self._collide(g, p):
            return None
        ahead = int(model.geom_priority[g]) - int(model.geom_priority[p])
        who = [g, p] if ahead == 0 else [g] if ahead > 0 else [p]
        return _surface_of(model.geom_friction[who].max(0), int(model.geom_condim[who].max()))

    def _collide(self, g: int, p: int) -> bool:
        model = self.model
        if not (model.geom_contype[g] & model.geom_conaffinity[p] or model.geom_contype[p] & model.geom_conaffinity[g]):
            return False
        return frozenset((int(model.geom_bodyid[g]), int(model.geom_bodyid[p]))) not in self.excluded

    def _report_pairs(self) -> None:
        """Report the pairs of bodies that MuJoCo lets touch."""
        model, weld = self.model, self.model.body_weldid[self.model.geom_bodyid]
        moving = np.flatnonzero((weld > 0) & ((model.geom_contype != 0) | (model.geom_conaffinity != 0)))
        contype, conaffinity, bodies = model.geom_contype[moving], model.geom_conaffinity[moving], weld[moving]
        touching = contype[:, None] & conaffinity | contype & conaffinity[:, None]
        first, second = np.nonzero(np.triu(touching != 0, 1))
        pairs = {(int(i), int(j)) for i, j in np.unique(np.sort(bodies[np.stack((first, second), -1)], axis=-1), axis=0) if i != j}
        parents = {(int(model.body_weldid[model.body_parentid[b]]), int(b)) for b in np.unique(bodies)}
        filtered = not model.opt.disableflags & int(self._no_parents)
        excluded = {tuple(sorted(int(model.body_weldid[b]) for b in pair)) for pair in self.excluded}
        left = sorted(pairs - excluded - (parents if filtered else set()))
        reason = 'only planes touch bodies; contacts="all" lets bodies touch each other, too'
        self.findings.add("ignored", "contacts between bodies", [f"{self.names[i]}-{self.names[j]}" for i, j in left], reason)

    # -- points that cannot move -----------------------------------------------------------------------------------------------------------

    def _sampled_poses(self, floating_base: bool) -> list[tuple[Array, Array]]:
        """(nbody, 3) positions and (nbody, 3, 3) orientations of the MJCF bodies in some configurations."""
        mujoco, model = self.mujoco, self.model
        data, generator, poses = mujoco.MjData(model), np.random.default_rng(0), []
        for _ in range(SAMPLES):
            step = generator.uniform(-1, 1, model.nv)
            if not floating_base:
                for j in np.flatnonzero(model.jnt_type == int(mujoco.mjtJoint.mjJNT_FREE)):
                    step[model.jnt_dofadr[j] : model.jnt_dofadr[j] + 6] = 0
            data.qpos[:] = model.qpos0
            mujoco.mj_integratePos(model, data.qpos, step, 1.0)
            mujoco.mj_kinematics(model, data)
            poses.append((data.xpos.copy(), data.xmat.reshape(-1, 3, 3).copy()))
        return poses

    def _constant(self, ball: _Ball, links: Mapping[str, LinkInfo], poses: Sequence[tuple[Array, Array]], plane: _Plane) -> bool:
        """Whether a point of the body has the same distance to the plane, or place above the height field, in every configuration.

        Such a contact could neither close nor open; where it starts below the ground (the lower end of a pendulum's pole) no step exists.
        """
        link = links[self.names[ball.link]]
        local = link.rotation.T @ (ball.point - link.position)
        places = np.stack([x[ball.link] + axes[ball.link] @ local for x, axes in poses])
        moved = places @ plane.normal[:, None] if plane.field is None else places
        return float(np.ptp(moved, axis=0).max()) <= CONSTANT * (1 + float(np.linalg.norm(local)))


def _surface_of(friction: Sequence[float] | Array, condim: int) -> _Surface:
    """`friction`: sliding, torsional [m] and rolling [m]; `condim` says how many of them act."""
    slide, spin, roll = (float(number) for number in friction)
    laws = {"torsional_friction": spin if condim >= 4 else 0.0, "rolling_friction": roll if condim >= 6 else 0.0}
    return _Surface(None if condim == 1 else slide, {name: value for name, value in laws.items() if value > 0})


def touching_geoms(model: Any, excluded: set[frozenset[int]], parents: bool) -> list[tuple[int, int]]:
    """Pairs of geoms that MuJoCo lets touch: pairs of <pair>, and pairs that contype, conaffinity, <exclude> and the parent filter leave.

    Args:
        excluded: pairs of MJCF bodies. parents: whether bodies touch the bodies that carry them; the world touches its children.
    """
    weld = model.body_weldid[model.geom_bodyid]
    above = model.body_weldid[model.body_parentid[weld]]
    bits = model.geom_contype[:, None] & model.geom_conaffinity
    allowed = ((bits | bits.T) != 0) & (weld[:, None] != weld)
    if not parents:
        allowed &= ~((weld[:, None] != 0) & (weld != 0) & ((weld[:, None] == above) | (above[:, None] == weld)))
    pairs = dict.fromkeys(tuple(sorted(map(int, pair))) for pair in zip(model.pair_geom1, model.pair_geom2, strict=True))
    for i, j in zip(*np.nonzero(np.triu(allowed, 1)), strict=True):
        if frozenset((int(model.geom_bodyid[i]), int(model.geom_bodyid[j]))) not in excluded:
            pairs[int(i), int(j)] = None
    return [(i, j) for i, j in pairs]

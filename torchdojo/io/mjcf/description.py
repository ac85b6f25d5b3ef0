"""An MJCF robot as plain numbers: bodies without joints merged into the body that carries them, joints placed from centers of mass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from torchdojo.io.meshes import Folders, MeshMode
from torchdojo.io.mjcf.actuators import Drive, Driven, read_drives
from torchdojo.io.mjcf.geoms import GeomReader, Points
from torchdojo.io.mjcf.joints import FIXED, Coordinate, Fit, fit_chain
from torchdojo.io.mjcf.light import light_body
from torchdojo.io.mjcf.model import CompiledMjcf, compile_mjcf, import_mujoco
from torchdojo.io.mjcf.visuals import read_visuals
from torchdojo.io.robot import (
    WORLD,
    Z_AXIS,
    Array,
    BodyInfo,
    CouplingInfo,
    JointInfo,
    LinkInfo,
    Pose,
    RobotInfo,
    clean_name,
    closing_joint,
    compose,
    composed_inertia,
    listed,
    poses_in_groups,
)

__all__ = ["MjcfInfo", "read_mjcf"]


@dataclass(frozen=True)
class Moved:
    """A body in the terms of the file: the MJCF body at its top as a part of that body's MJCF joints moves it."""

    top: int
    joints: tuple[int, ...]  #: those that move the body; a light body between joints of `top` lacks the joints after it
    frame: Array  #: (3, 3) axes of our body in the axes of the MJCF body, as columns


@dataclass(frozen=True)
class MjcfInfo(RobotInfo):
    """A `RobotInfo` with what only MJCF has. A link is an MJCF body.

    The frame of a body has the axes of its topmost link, or, where its joint has several axes, axes along these.
    """

    coordinates: dict[str, tuple[tuple[str, float], ...]]  #: joint -> (MJCF joint, sign) of each coordinate, which is sign (qpos - qpos0)
    drives: dict[str, Drive]  #: actuators of the file
    gravity: tuple[float, float, float]  #: [m/s^2]
    timestep: float  #: [s]
    notes: tuple[str, ...]  #: in words: what the mechanism lacks
    compiled: CompiledMjcf
    tops: dict[str, int]  #: body -> MJCF id of its topmost link; light bodies between the joints of one link have none
    moved: dict[str, Moved]  #: all bodies


def read_mjcf(
    path: str | Path,
    *,
    floating_base: bool = True,
    merge_fixed_joints: bool = True,
    ignore: Sequence[str] = (),
    rim_points: int = 4,
    repair_inertia: bool = False,
    mesh: MeshMode = None,
    mesh_path: Folders = (),
    mesh_points: int = 16,
) -> MjcfInfo:
    """Describe an MJCF file; arguments, conventions and errors are as in `torchdojo.io.load_mjcf`.

    Collision meshes are not read unless `mesh` says so.
    """
    compiled = compile_mjcf(path, mesh, mesh_path, repair_inertia)
    points = Points(rim_points, mesh_points if mesh else None)
    return _Reader(compiled, floating_base, merge_fixed_joints, ignore, points).read()


class Names:
    """Names that a ModuleDict accepts, each once."""

    def __init__(self) -> None:
        self.taken: set[str] = set()

    def make(self, *wishes: str) -> str:
        """The first wish that is free, or the last with a number."""
        cleaned = [clean_name(wish) for wish in wishes if wish]
        cleaned = [f"{name}_" if name == "world" else name for name in cleaned]
        numbered = (f"{cleaned[-1]}_{n}" for n in range(2, len(self.taken) + 3))
        name = next(name for name in (*cleaned, *numbered) if name not in self.taken)
        self.taken.add(name)
        return name


class _Reader:
    def __init__(self, compiled: CompiledMjcf, floating_base: bool, merge: bool, ignore: Sequence[str], points: Points) -> None:
        self.mujoco = import_mujoco()
        self.compiled, self.model, self.path = compiled, compiled.model, compiled.path
        self.floating_base, self.merge, self.points = floating_base, merge, points
        self.ignore = [ignore] if isinstance(ignore, str) else list(ignore)
        self.notes = list(compiled.notes)
        self.body_names = Names()
        self.names = [self.body_names.make(self.model.body(b).name or f"body{b}") if b else "world" for b in range(self.model.nbody)]

    def read(self) -> MjcfInfo:
        model = self.model
        drives, driven, notes = read_drives(self.compiled)
        self.notes += notes
        top = self._topmost()
        poses = poses_in_groups(dict(enumerate(top)), lambda b: (int(model.body_parentid[b]), self._local_pose(b)))
        groups = {t: [b for b in range(model.nbody) if top[b] == t] for t in dict.fromkeys(top)}
        moving = [t for t in groups if t]
        if not moving:
            remedy = "" if self.floating_base else "; pass floating_base=True"
            raise ValueError(f"{self.path}: no body can move: none has a joint{remedy}")
        fits = {t: (FIXED,) if self._fixed(t) else fit_chain(model, t, frozenset(driven)) for t in moving}
        geoms = GeomReader(self.compiled, self.names, top, self.points)
        solid = {t: self._body(t, groups[t], poses, fits[t][-1], geoms) for t in moving}
        links = {}
        for b in range(1, model.nbody):
            (rotation, position), body = poses[b], solid.get(top[b])
            if body is not None:
                rotation, position = _in_body(fits[top[b]][-1], body, (rotation, position))
            links[self.names[b]] = LinkInfo(self.names[b], body and body.name, position, rotation)
        names, joints, coordinates = Names(), {}, {}
        bodies: dict[str, BodyInfo] = {}
        moved: dict[str, Moved] = {}
        for t in moving:
            parent, pose = self._parent(t, links), self._local_pose(t)
            acting: tuple[int, ...] = ()
            for fit, following in zip(fits[t], (*fits[t][1:], None), strict=True):
                name = self._joint_name(names, t, fit)
                body = solid[t] if following is None else self._light_body(t, name, fit, following)
                bodies[body.name] = body
                joints[name] = self._joint(name, parent, pose, fit, body, driven)
                coordinates[name] = tuple((self._joint_label(c.joint), c.sign) for c in fit.coordinates)
                acting += tuple(dict.fromkeys(c.joint for c in fit.coordinates))
                moved[body.name] = Moved(t, acting, fit.frame)
                pose = np.eye(3), np.zeros(3)
                parent = LinkInfo(body.name, body.name, *reversed(_in_body(fit, body, pose)))
        self._note_joints()
        numbers = {self._joint_label(j): j for j in range(model.njnt)}
        places = {numbers[label]: (name, k, sign) for name, entries in coordinates.items() for k, (label, sign) in enumerate(entries)}
        loops, couplings = self._equalities(names, links, places)
        joints.update(loops)
        contacts = geoms.contacts(links, moving, self.floating_base)
        self._note_model()
        gravity = np.zeros(3) if self._disabled("GRAVITY") else model.opt.gravity
        return MjcfInfo(
            path=self.path,
            links=links,
            bodies=bodies,
            joints=joints,
            couplings=couplings,
            contacts=contacts,
            contact_notes=(*self.compiled.left_out, *geoms.notes),
            scenery=read_visuals(self.compiled, groups[0], {b: poses[b] for b in groups[0]}),
            coordinates=coordinates,
            drives=drives,
            gravity=(float(gravity[0]), float(gravity[1]), float(gravity[2])),
            timestep=float(model.opt.timestep),
            notes=tuple(self.notes),
            compiled=self.compiled,
            tops={self.names[t]: t for t in moving},
            moved=moved,
        )

    # -- bodies ----------------------------------------------------------------------------------------------------------------------------

    def _topmost(self) -> list[int]:
        """MJCF body -> topmost MJCF body of the body that it becomes part of; 0 is the world."""
        model, top = self.model, [0]
        free = int(self.mujoco.mjtJoint.mjJNT_FREE)
        for b in range(1, model.nbody):
            own = model.body_jntnum[b] > 0 or (not self.merge and model.body_mass[b] > 0 and model.body_mocapid[b] < 0)
            if own and model.body_jntnum[b] and model.jnt_type[model.body_jntadr[b]] == free and not self.floating_base:
                own = not self.merge and model.body_mass[b] > 0
            top.append(b if own else top[model.body_parentid[b]])
        return top

    def _fixed(self, b: int) -> bool:
        """Whether a topmost body has no joint of its own, because `floating_base` removes it or the file gives none."""
        adr = self.model.body_jntadr[b]
        free = int(self.mujoco.mjtJoint.mjJNT_FREE)
        return bool(self.model.body_jntnum[b] == 0 or (self.model.jnt_type[adr] == free and not self.floating_base))

    def _local_pose(self, b: int) -> Pose:
        """Pose of an MJCF body in its parent, at qpos0."""
        return self._rotation(self.model.body_quat[b]), np.array(self.model.body_pos[b])

    def _rotation(self, quaternion: Array) -> Array:
        matrix = np.zeros(9)
        self.mujoco.mju_quat2Mat(matrix, quaternion / np.linalg.norm(quaternion))
        return matrix.reshape(3, 3)

    def _body(self, t: int, group: list[int], poses: Mapping[int, Pose], fit: Fit, geoms: GeomReader) -> BodyInfo:
        """The MJCF bodies of a group as one, in axes along the axes of its joint."""
        model = self.model
        if sum(model.body_mass[b] for b in group) <= 0:
            raise ValueError(f"{self.path}: body {self.names[t]!r} moves but has no mass; give it an <inertial> or a geom with mass")
        parts = []
        for b in group:
            axes, position = compose(poses[b], (self._rotation(model.body_iquat[b]), model.body_ipos[b]))
            parts.append((model.body_mass[b], position, axes @ np.diag(model.body_inertia[b]) @ axes.T))
        mass, center, inertia = composed_inertia(parts)
        inertia = fit.frame.T @ inertia @ fit.frame
        frames = {b: (fit.frame.T @ poses[b][0], fit.frame.T @ (poses[b][1] - center)) for b in group}
        links = tuple(self.names[b] for b in group)
        shapes, visuals = geoms.shapes(group, frames), read_visuals(self.compiled, group, frames)
        return BodyInfo(self.names[t], links, mass, center, (inertia + inertia.T) / 2, shapes, visuals)

    def _light_body(self, t: int, joint: str, fit: Fit, following: Fit) -> BodyInfo:
        """The body between two joints of the MJCF body t."""
        mass, center, inertia = light_body(self.model, self.compiled.data, t, following)
        name = self.body_names.make(f"{self.names[t]}_{joint}")
        return BodyInfo(name, (), mass, center, inertia, (), ())

    # -- joints ----------------------------------------------------------------------------------------------------------------------------

    def _joint_label(self, j: int) -> str:
        return str(self.model.joint(j).name) or f"joint{j}"

    def _joint_name(self, names: Names, t: int, fit: Fit) -> str:
        """The name of the one MJCF joint, or what the names of several have in common, or the name of the body."""
        given = [str(self.model.joint(j).name) for j in dict.fromkeys(c.joint for c in fit.coordinates)]
        common = given[0] if given else ""
        if len(given) > 1:
            alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*given, strict=False))
            common = "".join(letters[0] for letters in alike).rstrip("_-. ")
        default = "floating_base" if fit.kind == "Floating" else ""
        return names.make(common, default, self.names[t])

    def _parent(self, t: int, links: Mapping[str, LinkInfo]) -> LinkInfo:
        parent = int(self.model.body_parentid[t])
        return links[self.names[parent]] if parent else WORLD

    def _joint(self, name: str, parent: LinkInfo, pose: Pose, fit: Fit, child: BodyInfo, driven: dict[int, Driven]) -> JointInfo:
        """A joint between a link and a body. `pose`: of the MJCF body that moves, in the parent link, at qpos0."""
        rotation, position = pose
        axes, anchor = parent.place((rotation, position + rotation @ fit.anchor))
        return JointInfo(
            name=name,
            kind=fit.kind,
            parent=parent.body,
            child=child.name,
            parent_anchor=anchor,
            child_anchor=fit.frame.T @ (fit.anchor - child.center),
            rotation=axes @ fit.frame,
            axis=fit.axis,
            options=self._options(fit.coordinates, driven),
        )

    def _options(self, coordinates: tuple[Coordinate, ...], driven: dict[int, Driven]) -> dict[str, Any]:
        """Keywords of the joint: lists with a value per coordinate, where any is not the default."""
        if not coordinates:
            return {}
        model, types = self.model, self.mujoco.mjtJoint
        dofs = [int(model.jnt_dofadr[c.joint]) + c.component for c in coordinates]
        values: dict[str, list[float]] = {
            "spring": [0.0 if self._disabled("SPRING") else float(model.jnt_stiffness[c.joint]) for c in coordinates],
            "damper": [0.0 if self._disabled("DAMPER") else float(model.dof_damping[dof]) for dof in dofs],
            "friction": [0.0 if self._disabled("FRICTIONLOSS") else float(model.dof_frictionloss[dof]) for dof in dofs],
            "armature": [float(model.dof_armature[dof]) for dof in dofs],
            "rest": [],
        }
        for i, c in enumerate(coordinates):
            if c.joint in driven:
                values["damper"][i] += float(driven[c.joint].damping[c.component])
                values["armature"][i] += float(driven[c.joint].armature[c.component])
        lower, upper = [], []
        for c in coordinates:
            adr = int(model.jnt_qposadr[c.joint])
            single = model.jnt_type[c.joint] in (int(types.mjJNT_HINGE), int(types.mjJNT_SLIDE))
            values["rest"].append(c.sign * float(model.qpos_spring[adr] - model.qpos0[adr]) if single else 0.0)
            limited = single and model.jnt_limited[c.joint] and not self._disabled("LIMIT")
            bounds = c.sign * (model.jnt_range[c.joint] - model.qpos0[adr]) if limited else np.array([-np.inf, np.inf])
            lower.append(float(bounds.min()))
            upper.append(float(bounds.max()))
        if not any(values["spring"]):
            values["rest"] = []
        options: dict[str, Any] = {key: value for key, value in values.items() if any(value)}
        if np.isfinite([*lower, *upper]).any():
            options["limits"] = (lower, upper)
        options["actuated"] = any(c.joint in driven for c in coordinates) and not self._disabled("ACTUATION")
        if options["actuated"]:
            efforts = [float(driven[c.joint].effort[c.component]) if c.joint in driven else 0.0 for c in coordinates]
            if np.isfinite(efforts).any():
                options["effort_limit"] = efforts
        return options

    def _note_joints(self) -> None:
        balls = [
            self._joint_label(j)
            for j in range(self.model.njnt)
            if self.model.jnt_limited[j] and self.model.jnt_type[j] == int(self.mujoco.mjtJoint.mjJNT_BALL)
        ]
        self._note("the cone that limits a ball joint is left out", balls)

    def _equalities(
        self, names: Names, links: dict[str, LinkInfo], places: dict[int, tuple[str, int, float]]
    ) -> tuple[dict[str, JointInfo], dict[str, CouplingInfo]]:
        """Equality constraints: between bodies as further joints, between joints as couplings. `places`: MJCF joint -> (joint, coordinate,
        sign)."""
        model, types = self.model, self.mujoco.mjtEq
        joints: dict[str, JointInfo] = {}
        couplings: dict[str, CouplingInfo] = {}
        coupled = Names()
        labels = [str(model.equality(i).name) or f"{types(int(model.eq_type[i])).name[5:].lower()}_{i}" for i in range(model.neq)]
        unknown = sorted(set(self.ignore) - set(labels))
        if unknown:
            raise ValueError(
                f"{self.path}: ignore names {unknown}, which are no equality constraints; there are {listed(labels) or 'none'}"
            )
        for i, label in enumerate(labels):
            kind = types(int(model.eq_type[i]))
            if label in self.ignore or self._disabled("EQUALITY"):
                continue
            if not model.eq_active0[i]:
                self._note("equality constraints that are not active at the start are left out", [label])
            elif kind == types.mjEQ_JOINT:
                self._couple(i, coupled.make(label), places, couplings)
            elif kind not in (types.mjEQ_CONNECT, types.mjEQ_WELD):
                self._note(
                    f"equality constraints of type {kind.name[5:].lower()} do not act (what they couple moves independently)", [label]
                )
            else:
                joint = self._loop(i, kind == types.mjEQ_WELD, links)
                if joint is None:
                    self._note("equality constraints within one body are left out", [label])
                else:
                    name = names.make(label)
                    joints[name] = replace(joint, name=name)
        return joints, couplings

    def _couple(self, i: int, label: str, places: dict[int, tuple[str, int, float]], couplings: dict[str, CouplingInfo]) -> None:
        """The linear part of y - y0 = a0 + a1 (x - x0) + ... between two joints, y the first; our coordinates are sign (qpos - qpos0)."""
        model = self.model
        follower, leader = int(model.eq_obj1id[i]), int(model.eq_obj2id[i])
        offset, ratio, *higher = (float(number) for number in model.eq_data[i, :5])
        if leader < 0:
            self._note("equality constraints on a single joint do not act", [label])
        elif any(higher):
            self._note("couplings of joints that are no linear function do not act (what they couple moves independently)", [label])
        else:
            (name, k, sign), (other, n, other_sign) = places[follower], places[leader]
            couplings[label] = CouplingInfo(other, name, sign * other_sign * ratio, sign * offset, n, k)

    def _loop(self, i: int, weld: bool, links: dict[str, LinkInfo]) -> JointInfo | None:
        """Between frame a and frame b on two bodies, which coincide (weld) or have the same origin (connect)."""
        model, data = self.model, self.model.eq_data[i]
        ids = [int(model.eq_obj1id[i]), int(model.eq_obj2id[i])]
        frames = [(np.eye(3), np.zeros(3)), (np.eye(3), np.zeros(3))]
        if model.eq_objtype[i] == int(self.mujoco.mjtObj.mjOBJ_SITE):
            frames = [(self._rotation(model.site_quat[site]), np.array(model.site_pos[site])) for site in ids]
            ids = [int(model.site_bodyid[site]) for site in ids]
        elif weld:
            relative = self._rotation(data[6:10])
            frames = [(relative, data[3:6] + relative @ data[0:3]), (np.eye(3), np.array(data[0:3]))]
        else:
            frames = [(np.eye(3), np.array(data[0:3])), (np.eye(3), np.array(data[3:6]))]
        ends = [(links[self.names[b]] if b else WORLD, frame) for b, frame in zip(ids, frames, strict=True)]
        joint = closing_joint("", "Fixed" if weld else "Spherical", ends, Z_AXIS, {"actuated": False})
        # A connect constraint gives points only: the coordinates count from where the axes of both bodies are parallel.
        return joint and replace(joint, axis=Z_AXIS, rotation=joint.rotation if weld else np.eye(3))

    # -- what is left out ------------------------------------------------------------------------------------------------------------------

    def _disabled(self, flag: str) -> bool:
        bit = int(getattr(self.mujoco.mjtDisableBit, f"mjDSBL_{flag}"))
        everything = int(self.mujoco.mjtDisableBit.mjDSBL_CONSTRAINT) if flag in ("LIMIT", "FRICTIONLOSS", "EQUALITY") else 0
        return bool(self.model.opt.disableflags & (bit | everything))

    def _note(self, text: str, names: Iterable[str]) -> None:
        listed = ", ".join(names)
        if listed:
            self.notes.append(f"{self.path}: {text}: {listed}")

    def _note_model(self) -> None:
        """Physics of the file that the mechanism does not have."""
        model = self.model
        bodies = [b for b in range(1, model.nbody) if model.body_weldid[b]]
        dofs = [self._joint_label(int(model.dof_jntid[i])) for i in np.flatnonzero(np.abs(model.dof_dampingpoly).sum(-1))]
        stiff = [self._joint_label(int(j)) for j in np.flatnonzero(np.abs(model.jnt_stiffnesspoly).sum(-1))]
        self._note("springs and dampers that are not linear keep their linear part", dict.fromkeys([*stiff, *dofs]))
        yielding = getattr(model, "jnt_springyield", np.zeros(model.njnt))  # new in MuJoCo 4
        self._note("springs that yield do not", [self._joint_label(int(j)) for j in np.flatnonzero(yielding)])
        self._note("gravity compensation does not act", [self.names[b] for b in bodies if model.body_gravcomp[b]])
        self._note("mocap bodies stay where the file has them", [self.names[b] for b in range(model.nbody) if model.body_mocapid[b] >= 0])
        tendons = [
            str(model.tendon(i).name) or f"tendon{i}"
            for i in range(model.ntendon)
            if model.tendon_limited[i]
            or any(np.any(getattr(model, f"tendon_{key}")[i]) for key in ("stiffness", "damping", "frictionloss", "armature"))
        ]
        self._note("tendons do not act", tendons)
        if model.opt.density or model.opt.viscosity:
            self.notes.append(
                f"{self.path}: the medium (density {float(model.opt.density):g} kg/m^3, viscosity "
                f"{float(model.opt.viscosity):g} Pa s) does not act: there is no drag"
            )
        if model.nflex:
            self.notes.append(f"{self.path}: flexible bodies (flex) are left out")


def _in_body(fit: Fit, body: BodyInfo, pose: Pose) -> Pose:
    """A pose in the frame of the MJCF body that `fit` moves, in the frame of our body."""
    return fit.frame.T @ pose[0], fit.frame.T @ (pose[1] - body.center)

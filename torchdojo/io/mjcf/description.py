"""An MJCF robot as plain numbers: bodies without joints merged into the body that carries them, joints placed from centers of mass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from torchdojo.elements.joint import TURN
from torchdojo.io.meshes import Folders, MeshMode
from torchdojo.io.mjcf.actuators import Drive, Driven, read_drives
from torchdojo.io.mjcf.equalities import Equalities
from torchdojo.io.mjcf.geoms import GeomReader, Points
from torchdojo.io.mjcf.joints import FIXED, Coordinate, Fit, fit_chain
from torchdojo.io.mjcf.left_out import report_model
from torchdojo.io.mjcf.light import light_body
from torchdojo.io.mjcf.model import OPEN, CompiledMjcf, compile_mjcf, disabled, import_mujoco, rotation_of
from torchdojo.io.mjcf.names import Names, joint_label
from torchdojo.io.mjcf.visuals import read_visuals
from torchdojo.io.robot import (
    ROUNDED_TURN,
    WORLD,
    Array,
    BodyInfo,
    Ground,
    JointInfo,
    LinkInfo,
    Pose,
    RobotInfo,
    bodies_on_ground,
    compose,
    composed_inertia,
    poses_in_groups,
)

__all__ = ["MjcfInfo", "read_mjcf"]

WIDE = "they reach beyond one turn (2 pi), the range of an angle here, and are read as none"


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
    compiled: CompiledMjcf
    tops: dict[str, int]  #: body -> MJCF id of its topmost link; light bodies between the joints of one link have none
    moved: dict[str, Moved]  #: all bodies
    strings: tuple[int, ...]  #: MJCF ids of equality constraints with a spatial tendon, but those to ignore


def read_mjcf(
    path: str | Path,
    *,
    floating_base: bool = True,
    merge_fixed_joints: bool = True,
    ignore: Sequence[str] = (),
    switches: bool = False,
    soft: bool = False,
    rim_points: int = 4,
    repair_inertia: bool = False,
    mesh: MeshMode = None,
    mesh_path: Folders = (),
    mesh_points: int = 16,
    ground: Ground = "auto",
    between: bool = False,
) -> MjcfInfo:
    """Describe an MJCF file; arguments, conventions and errors are as in `torchdojo.io.load_mjcf`.

    Collision meshes are not read unless `mesh` says so, and `pairs` is empty unless `between` says so.
    """
    compiled = compile_mjcf(path, mesh, mesh_path, repair_inertia)
    points = Points(rim_points, mesh_points if mesh else None, mesh == "pieces")
    return _Reader(compiled, floating_base, merge_fixed_joints, ignore, switches, soft, points, ground, between).read()


class _Reader:
    def __init__(
        self,
        compiled: CompiledMjcf,
        floating_base: bool,
        merge: bool,
        ignore: Sequence[str],
        switches: bool,
        soft: bool,
        points: Points,
        ground: Ground,
        between: bool,
    ) -> None:
        self.mujoco = import_mujoco()
        self.compiled, self.model, self.path = compiled, compiled.model, compiled.path
        self.floating_base, self.merge, self.points, self.ground, self.between = floating_base, merge, points, ground, between
        self.ignore, self.switches, self.soft = [ignore] if isinstance(ignore, str) else list(ignore), switches, soft
        self.findings = compiled.findings
        self.body_names = Names()
        self.names = [self.body_names.make(self.model.body(b).name or f"body{b}") if b else "world" for b in range(self.model.nbody)]

    def read(self) -> MjcfInfo:
        model = self.model
        drives, driven = read_drives(self.compiled, self.findings)
        top = self._topmost()
        poses = poses_in_groups(dict(enumerate(top)), lambda b: (int(model.body_parentid[b]), self._local_pose(b)))
        groups = {t: [b for b in range(model.nbody) if top[b] == t] for t in dict.fromkeys(top)}
        moving = [t for t in groups if t]
        if not moving:
            remedy = "" if self.floating_base else "; pass floating_base=True"
            raise ValueError(f"{self.path}: no body can move: none has a joint{remedy}")
        fits = {t: (FIXED,) if self._fixed(t) else fit_chain(model, t, frozenset(driven)) for t in moving}
        geoms = GeomReader(self.compiled, self.names, top, self.points, self.between)
        solid = {t: self._body(t, groups[t], poses, fits[t][-1], geoms) for t in moving}
        links = {}
        for b in range(1, model.nbody):
            (rotation, position), body = poses[b], solid.get(top[b])
            if body is not None:
                rotation, position = _in_body(fits[top[b]][-1], body, (rotation, position))
            links[self.names[b]] = LinkInfo(self.names[b], body.name if body else None, position, rotation)
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
                coordinates[name] = tuple((joint_label(model, c.joint), c.sign) for c in fit.coordinates)
                acting += tuple(dict.fromkeys(c.joint for c in fit.coordinates))
                moved[body.name] = Moved(t, acting, fit.frame)
                pose = np.eye(3), np.zeros(3)
                parent = LinkInfo(body.name, body.name, *reversed(_in_body(fit, body, pose)))
        numbers = {joint_label(model, j): j for j in range(model.njnt)}
        places = {numbers[label]: (name, k, sign) for name, entries in coordinates.items() for k, (label, sign) in enumerate(entries)}
        tree = dict(joints)
        equalities = Equalities(self.compiled, self.names, links, places, self.ignore, self.switches, self.soft, self.findings)
        loops, couplings = equalities.read(names)
        joints.update(loops)
        pairs = geoms.pairs({b: poses[b] for b in groups[0]}) if self.between else {}
        contacts = geoms.contacts(links, moving, self.floating_base, lambda planes: bodies_on_ground(self.ground, planes, tree))
        report_model(self.compiled, self.names, self.soft, self.findings)
        gravity = np.zeros(3) if disabled(model, "GRAVITY") else model.opt.gravity
        return MjcfInfo(
            path=self.path,
            links=links,
            bodies=bodies,
            joints=joints,
            couplings=couplings,
            contacts=contacts,
            pairs=pairs,
            contact_notes=geoms.findings.entries(),
            scenery=read_visuals(self.compiled, groups[0], {b: poses[b] for b in groups[0]}),
            coordinates=coordinates,
            drives=drives,
            gravity=(float(gravity[0]), float(gravity[1]), float(gravity[2])),
            timestep=float(model.opt.timestep),
            findings=self.findings,
            compiled=self.compiled,
            tops={self.names[t]: t for t in moving},
            moved=moved,
            strings=tuple(equalities.strings),
        )

    # -- bodies ----------------------------------------------------------------------------------------------------------------------------

    def _topmost(self) -> list[int]:
        """MJCF body -> topmost MJCF body of the body that it becomes part of; 0 is the world."""
        model, top = self.model, [0]
        free = int(self.mujoco.mjtJoint.mjJNT_FREE)
        for b in range(1, model.nbody):
            separate = model.body_jntnum[b] > 0 or (not self.merge and model.body_mass[b] > 0 and model.body_mocapid[b] < 0)
            if separate and model.body_jntnum[b] and model.jnt_type[model.body_jntadr[b]] == free and not self.floating_base:
                separate = not self.merge and model.body_mass[b] > 0
            top.append(b if separate else top[model.body_parentid[b]])
        return top

    def _fixed(self, b: int) -> bool:
        """Whether a topmost body has no joint of its own, because `floating_base` removes it or the file gives none."""
        adr = self.model.body_jntadr[b]
        free = int(self.mujoco.mjtJoint.mjJNT_FREE)
        return bool(self.model.body_jntnum[b] == 0 or (self.model.jnt_type[adr] == free and not self.floating_base))

    def _local_pose(self, b: int) -> Pose:
        """Pose of an MJCF body in its parent, at qpos0."""
        return rotation_of(self.model.body_quat[b]), np.array(self.model.body_pos[b])

    def _body(self, t: int, group: list[int], poses: Mapping[int, Pose], fit: Fit, geoms: GeomReader) -> BodyInfo:
        """The MJCF bodies of a group as one, in axes along the axes of its joint."""
        model = self.model
        if sum(model.body_mass[b] for b in group) <= 0:
            raise ValueError(f"{self.path}: body {self.names[t]!r} moves but has no mass; give it an <inertial> or a geom with mass")
        parts = []
        for b in group:
            axes, position = compose(poses[b], (rotation_of(model.body_iquat[b]), model.body_ipos[b]))
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

    def _joint_name(self, names: Names, t: int, fit: Fit) -> str:
        """The name of the one MJCF joint, or what the names of several have in common, or the name of the body."""
        joint_names = [str(self.model.joint(j).name) for j in dict.fromkeys(c.joint for c in fit.coordinates)]
        common = joint_names[0] if joint_names else ""
        if len(joint_names) > 1:
            alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*joint_names, strict=False))
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

    def _curves(self, coordinates: tuple[Coordinate, ...], driven: dict[int, Driven]) -> dict[str, Any]:
        """Polynomials of springs and dampers; reports those that a joint cannot have."""
        model = self.model
        springs = np.zeros((len(coordinates), 2))
        dampers = np.zeros((len(coordinates), 2))
        for i, c in enumerate(coordinates):
            if hasattr(model, "jnt_stiffnesspoly") and not disabled(model, "SPRING"):  # new in MuJoCo 4
                springs[i] = model.jnt_stiffnesspoly[c.joint] * (c.sign, 1.0)
            if hasattr(model, "dof_dampingpoly") and not disabled(model, "DAMPER"):
                dampers[i] = model.dof_dampingpoly[model.jnt_dofadr[c.joint] + c.component]
            if c.joint in driven:
                dampers[i] += driven[c.joint].damping_curve[c.component]
        curves = {name: numbers for name, numbers in (("spring_curve", springs), ("damper_curve", dampers)) if numbers.any()}
        turning = any(c.component for c in coordinates)
        if turning or dampers.min() < 0:
            lost = curves if turning else {"damper_curve": dampers}
            labels = [joint_label(model, c.joint) for i, c in enumerate(coordinates) if any(numbers[i].any() for numbers in lost.values())]
            reason = "those of balls and free joints, and dampers with negative numbers, keep their linear part"
            self.findings.add("approximated", "springs and dampers", list(dict.fromkeys(labels)), reason)
            curves = {name: numbers for name, numbers in curves.items() if name not in lost}
        return {name: numbers.tolist() for name, numbers in curves.items()}

    def _options(self, coordinates: tuple[Coordinate, ...], driven: dict[int, Driven]) -> dict[str, Any]:
        """Keywords of the joint: lists with a value per coordinate, where any is not the default."""
        if not coordinates:
            return {}
        model, types = self.model, self.mujoco.mjtJoint
        dofs = [int(model.jnt_dofadr[c.joint]) + c.component for c in coordinates]
        values: dict[str, list[float]] = {
            "spring": [0.0 if disabled(model, "SPRING") else float(model.jnt_stiffness[c.joint]) for c in coordinates],
            "damper": [0.0 if disabled(model, "DAMPER") else float(model.dof_damping[dof]) for dof in dofs],
            "friction": [0.0 if disabled(model, "FRICTIONLOSS") else float(model.dof_frictionloss[dof]) for dof in dofs],
            "armature": [float(model.dof_armature[dof]) for dof in dofs],
            "rest": [],
        }
        for i, c in enumerate(coordinates):
            if c.joint in driven:
                values["damper"][i] += float(driven[c.joint].damping[c.component])
                values["armature"][i] += float(driven[c.joint].armature[c.component])
        lower, upper = [], []
        options: dict[str, Any] = {}
        for c in coordinates:
            adr = int(model.jnt_qposadr[c.joint])
            single = model.jnt_type[c.joint] in (int(types.mjJNT_HINGE), int(types.mjJNT_SLIDE))
            values["rest"].append(c.sign * float(model.qpos_spring[adr] - model.qpos0[adr]) if single else 0.0)
            limited, ball = model.jnt_limited[c.joint] and not disabled(model, "LIMIT"), model.jnt_type[c.joint] == int(types.mjJNT_BALL)
            bounds = c.sign * (model.jnt_range[c.joint] - model.qpos0[adr]) if limited and single else np.array([-np.inf, np.inf])
            if limited and ball and model.jnt_range[c.joint, 1] < np.pi:
                options["cone"] = float(model.jnt_range[c.joint, 1])
            bounds = np.where(np.abs(bounds) >= OPEN, np.copysign(np.inf, bounds), bounds)
            wide = (np.abs(bounds) > TURN + ROUNDED_TURN) & np.isfinite(bounds) & (model.jnt_type[c.joint] == int(types.mjJNT_HINGE))
            if wide.any():
                self.findings.add("ignored", "joint limits", joint_label(model, c.joint), WIDE)
                bounds = np.where(wide, np.copysign(np.inf, bounds), bounds)
            lower.append(float(bounds.min()))
            upper.append(float(bounds.max()))
        curves = self._curves(coordinates, driven)
        if not any(values["spring"]) and "spring_curve" not in curves:
            values["rest"] = []
        options |= {key: value for key, value in values.items() if any(value)} | curves
        if np.isfinite([*lower, *upper]).any():
            options["limits"] = (lower, upper)
        options["actuated"] = any(c.joint in driven for c in coordinates) and not disabled(model, "ACTUATION")
        if options["actuated"]:
            efforts = [float(driven[c.joint].effort[c.component]) if c.joint in driven else 0.0 for c in coordinates]
            if np.isfinite(efforts).any():
                options["effort_limit"] = efforts
        return options


def _in_body(fit: Fit, body: BodyInfo, pose: Pose) -> Pose:
    """A pose in the frame of the MJCF body that `fit` moves, in the frame of our body."""
    return fit.frame.T @ pose[0], fit.frame.T @ (pose[1] - body.center)

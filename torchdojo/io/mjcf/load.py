"""Build a `Mechanism` from an MJCF file (MuJoCo's format)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchdojo.elements.actuators import Actuator, Servos, actuate, check_servos
from torchdojo.elements.near_rule import Near
from torchdojo.elements.touching import Filter
from torchdojo.io.meshes import Folders, MeshMode
from torchdojo.io.mjcf.description import MjcfInfo, read_mjcf
from torchdojo.io.mjcf.drives import add_drives, driven_tendons
from torchdojo.io.mjcf.passive import add_passive
from torchdojo.io.mjcf.sensors import add_sensors
from torchdojo.io.mjcf.state import keyframes
from torchdojo.io.mjcf.tendons import add_tendons
from torchdojo.io.pairs import between_bodies, of_geometry
from torchdojo.io.report import LoadReport, announce
from torchdojo.io.robot import Ground, assemble
from torchdojo.mechanism import Mechanism

__all__ = ["load_mjcf"]


def load_mjcf(
    path: str | Path,
    *,
    timestep: Any = None,
    gravity: Any = None,
    floating_base: bool = True,
    contacts: str | Filter | Mapping[str, Any] | None = "collision",
    friction: float | None = None,
    merge_fixed_joints: bool = True,
    ignore: Sequence[str] = (),
    switches: bool = False,
    soft: bool = False,
    rim_points: int = 4,
    repair_inertia: bool = False,
    mesh: MeshMode = "hull",
    mesh_path: Folders = (),
    mesh_points: int = 16,
    servos: Servos = "implicit",
    ground: Ground = "auto",
    near: Near = "auto",
    slots: int | None = None,
    tendons: bool = False,
    strict: bool = False,
) -> Mechanism:
    """Build a mechanism from an MJCF file, as MuJoCo's own compiler reads it (package `mujoco`).

    A body has the axes of its topmost MJCF body and its origin at its center of mass. At coordinate zero every joint has the pose that the
    file draws. So ``mech.initial_state()`` is MuJoCo's ``qpos0``, a coordinate is ``qpos - qpos0``, and limits and springs are shifted
    accordingly. The keyframes of the file are ``mech.poses``, those without a name under their number:
    ``mech.initial_state(pose="home", on="ground")``. `mjcf_state` gives the state of other ``qpos``. `torchdojo/io/README.md` lists the
    joint types, what acts, what is left out with a warning, and what is refused.

    Several MJCF joints on one body become one of the sixteen joints of torchdojo where it moves exactly as they do: slides along
    perpendicular axes with one hinge or with a ball. Otherwise they become a chain with light bodies between, named after the body and the
    joint before them, so that every hinge keeps its name, axis and numbers. To have coordinates along the axes of the file, the body
    frame is turned or a coordinate runs backwards if necessary; `read_mjcf` says which (``coordinates``). A name that MJCF joints of one
    joint share ("root_x", "root_z": "root") names the joint; otherwise its body does.

    Joints with an actuator are ``actuated``: u is the force or torque [N, N m] on the joint; ``effort_limit`` is the largest of the file.
    ``u = mech.actuators(ctrl, z)`` applies the file's motors, dampers, position and velocity servos to controls in the order of
    ``mech.actuators.names``, with gear, ctrlrange, forcerange and actuatorfrcrange. Sites and sensors are ``mech.sites`` and
    ``mech.sensors``, with the readings that MuJoCo has.

    Args:
        path: the file; its includes and meshes are looked up from there. Missing meshes that only draw are left out.
        timestep: [s]; None: the file's.
        gravity: (3,) [m/s^2], world frame; None: the file's.
        floating_base: True: what the file says. False: bodies with a free joint are part of the world at the pose that the file draws.
        contacts: "collision": every geom that MuJoCo would let touch a plane of the world has contacts at its contact points (sphere: 1,
            capsule: 2, box: 8, cylinder: 2 `rim_points`, ellipsoid: 18, mesh: at most `mesh_points`). Their names are ``<geom>_<i>``, or
            ``<body>_<n>_<i>`` for the body's n-th geom without a name. Points inside another ball of the same link, and points whose height
            no joint can change, are left out. "all": bodies touch each other and fixed geoms of the world, too, where MuJoCo lets them
            (contype, conaffinity, <exclude>, <pair>, parent filter), with near contacts where their shapes have no closed form; the report
            names them, and what touches nothing. Each contact costs time, so "collision" is the default. A `td.Filter` of names of
            bodies and geoms of the world leaves out pairs. None or an empty mapping: no contact. A mapping as in `load_urdf`; a link is an
            MJCF body.
        friction: coefficient of the contacts made here; None: MuJoCo's, from both geoms. Geoms of condim 1 have no friction.
        merge_fixed_joints: bodies without joints become part of what carries them. False: bodies of their own, on `Fixed` joints.
        ignore: names of equality constraints to leave out without a word.
        switches: whether equality constraints can be switched: each has a number ``active``, 1 or 0, which is the file's at first.
            ``mech.joints["grasp"].active = 1.0``, or a number for each environment. False: the active ones act for good, the others are
            left out.
        soft: whether equality constraints between joints or tendons yield as the file says: by the compliance and the damping of solref at
            the largest impedance of solimp. With `tendons`, linear ones of spatial tendons are a string with a spring. False: they are
            rigid. Those of spatial tendons are there with `tendons` only.
        rim_points: contact points on each rim of a cylinder.
        repair_inertia: replace an inertia that no rigid body can have by the nearest possible one. A warning gives both. Otherwise MuJoCo
            refuses the file.
        mesh, mesh_path, mesh_points: as in `load_urdf`, for meshes that collide. MuJoCo reads them, so `trimesh` is not needed, and flat
            ones are refused.
        servos: "implicit": position and velocity servos act at the next configuration, and their joints have their forcerange. Stable for
            all gains. "implicitfast": as MuJoCo's integrator of this name, with present positions. "explicit": present positions and
            velocities. elements/actuators.py compares them. The joints keep their servos where u does not come from ``mech.actuators``.
        ground: "auto": in a file without planes, bodies that float touch z = 0. True: all bodies touch it. False: none does.
        near, slots: of contacts between bodies, as in `td.combine`: "auto" gives near contacts to shapes without a closed form (cylinders,
            hulls), and to all but ellipsoids in files of more than 12 pairs, whose steps are faster then. True: to all but ellipsoids.
            False: to none. `slots` of each pair; None: by the shapes, at most 8 for two links.
        tendons: whether the mechanism gets the tendons of the file, `mech.tendons`, and the actuators on them, `mech.drives`. Their limits
            are springs and dampers by solreflimit and the largest impedance of solimplimit. False: they do not act, and the
            report says so.
        strict: refuse a file of which anything is lost that the motion depends on. Otherwise one warning has it, and
            ``mech.load_report`` has it as data.

    Raises:
        ImportError: `mujoco` is not installed, or, with meshes, `scipy`.
        FileNotFoundError: there is no such file, or no such mesh.
        ValueError: what MuJoCo refuses; a file in which nothing moves; unknown names; with `strict`, losses.
    """
    robot = read_mjcf(
        path,
        floating_base=floating_base,
        merge_fixed_joints=merge_fixed_joints,
        ignore=ignore,
        switches=switches,
        soft=soft,
        rim_points=rim_points,
        repair_inertia=repair_inertia,
        mesh=mesh if of_geometry(contacts) else None,
        mesh_path=mesh_path,
        mesh_points=mesh_points,
        ground=ground,
        between=between_bodies(contacts),
    )
    mech = assemble(
        robot,
        contacts=contacts,
        friction=friction,
        timestep=robot.timestep if timestep is None else timestep,
        gravity=robot.gravity if gravity is None else gravity,
        part="body",
        near=near,
        slots=slots,
        remedy="repair_inertia=True takes the nearest possible inertia",
    )
    strings = add_tendons(mech, robot, tendons, driven_tendons(robot), soft, switches)
    _actuate(mech, robot, servos)
    mech.poses.update(keyframes(mech, robot))
    reports = (strings, add_drives(mech, robot), add_sensors(mech, robot), add_passive(mech, robot))
    left_out = [entry for findings in reports for entry in findings.entries()]
    mech.load_report = LoadReport(robot.path, (*mech.load_report.entries, *left_out))
    announce(mech, strict)
    return mech


def _actuate(mech: Mechanism, robot: MjcfInfo, servos: Servos) -> None:
    """The actuators of the file that act: a coordinate is sign (qpos - qpos0)."""
    places = {label: (name, i, sign) for name, entries in robot.coordinates.items() for i, (label, sign) in enumerate(entries)}
    actuators: dict[str, Actuator] = {}
    ranges = np.tile(np.array([-np.inf, np.inf]), (mech.num_inputs, 1))
    for name, drive in robot.drives.items():
        joint, i, sign = places.get(drive.joint, ("", 0, 1.0))
        if not drive.acts or joint not in mech.input_layout:
            continue
        gain, bias = drive.gain, drive.bias
        actuators[name] = Actuator(joint, sign * drive.gear, gain, bias, drive.ctrlrange, drive.forcerange, drive.length0, i)
        if drive.inputrange is not None:
            ranges[mech.input_layout[joint].start + i] = np.sort(sign * np.array(drive.inputrange))
    check_servos(servos)
    if actuators:
        actuate(mech, actuators, servos, torch.as_tensor(ranges).to(mech.gravity))

"""Build a `Mechanism` from a URDF file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchdojo.elements.near_rule import Near
from torchdojo.elements.touching import Filter
from torchdojo.io.meshes import Folders, MeshMode
from torchdojo.io.pairs import between_bodies, of_geometry
from torchdojo.io.report import LoadEntry, announce
from torchdojo.io.robot import Ground, RobotInfo, assemble
from torchdojo.io.urdf.description import read_urdf
from torchdojo.io.urdf.tree import FloatingBase
from torchdojo.mechanism import Mechanism
from torchdojo.posing.loops import gaps

__all__ = ["load_urdf"]

DRAWN_CLOSED = 1e-6  # [m, rad] files round their numbers


def load_urdf(
    path: str | Path,
    *,
    timestep: float = 0.01,
    gravity: Any = (0.0, 0.0, -9.81),
    floating_base: FloatingBase = "auto",
    contacts: str | Filter | Mapping[str, Any] | None = "collision",
    friction: float | None = None,
    merge_fixed_joints: bool = True,
    ignore: Sequence[str] = (),
    rim_points: int = 4,
    repair_inertia: bool = False,
    mesh: MeshMode = "skip",
    mesh_path: Folders = (),
    mesh_points: int = 16,
    ground: Ground = "auto",
    near: Near = "auto",
    slots: int | None = None,
    srdf: str | Path | None = None,
    strict: bool = False,
) -> Mechanism:
    """Build a mechanism from a URDF file, standard, with Bullet's extensions, or in the dialect of the original Dojo.

    A body has the axes of its topmost link's frame and its origin at its center of mass. At coordinate zero every joint has the pose that
    the file draws. Names keep their spelling except that "." becomes "_". Joints are in tree order: a parent before its children, children
    as in the file, the base first. `torchdojo/io/README.md` lists the joint types, what acts, what is read otherwise than written, and what
    is refused.

    A ``<mimic joint multiplier offset>`` becomes a `JointCoupling` of the follower's name, and the follower is not actuated. A
    ``<loop_joint name type>`` with ``<link1 link xyz rpy>`` and ``<link2 link xyz rpy>``, a frame on either link, becomes a joint that
    closes a loop and comes after the others. Its frames coincide at its coordinate zero. Where loops are open with all coordinates at zero
    the report says by how much, and ``mech.initial_state()`` closes them.

    Args:
        path: the file.
        timestep: [s].
        gravity: (3,) [m/s^2], world frame.
        floating_base: True: the root moves freely, on a `Floating` joint ``floating_base`` whose coordinate is the pose of the root
            link's frame. False: the root link is part of the world, and with `merge_fixed_joints` also all links fixed to it. They have no
            body and no contact, and the root's frame is the world's. Without `merge_fixed_joints` a root with mass is a body on a `Fixed`
            joint ``fixed_base``. If the file uses such a name, the joint is ``<root>_floating_base`` or ``<root>_fixed_base``. "auto":
            False where the root link is named "world", or where it has no mass and joints move what is on it; True otherwise.
        contacts: "collision": every collision shape touches the ground with a `NonlinearContact` at each of its contact points, named
            ``<link>_<i>``, with the laws that ``<contact>`` gives the link. Bodies whose height no joint can change get none. "all":
            bodies touch each other and fixed links, too, except those that a joint connects, with the product of the frictions that the
            file gives, as Bullet does, and with near contacts where their shapes have no closed form; the report names them. Each contact
            costs time, so "collision" is the default. A `td.Filter` of names of bodies and fixed links leaves out
            pairs. None or an empty mapping: no contact. A mapping from names gives exactly these contacts. A value is a contact module,
            with its ``body`` a body and its point in that body's frame. Or a value is a mapping with ``link``, ``point`` (3,) in the frame
            of that link [m] and further keywords of `NonlinearContact`. The mapping works for merged links too.
        friction: coefficient of the contacts made here; None: the file's, and 0.5 where it has none.
        merge_fixed_joints: links fixed to each other become one body, named after the topmost, masses and inertias composed. False:
            `Fixed` joints instead; frames without mass are merged all the same.
        ignore: names of mimic joints to load as independent joints.
        rim_points: contact points on each rim of a cylinder.
        repair_inertia: replace an inertia that no rigid body can have (a triangle inequality violated) by the nearest possible one, and
            report both. Otherwise such an inertia is an error. A principal moment of zero becomes a small ball's in any case.
        mesh: what collision meshes become, where `contacts` asks for the collision geometry. "skip": contacts at vertices of their convex
            hulls; a mesh that is not there or cannot be read is left out and reported. "hull": the same, but such a mesh is an error.
            "pieces": likewise, and convex pieces of it (`td.decompose`) touch other bodies, where these touch each other.
            None: no contact.
        mesh_path: a folder or several that meshes are looked up in first. Then come the folder of the file and its parents, and those of
            the environment variable ROS_PACKAGE_PATH. For ``package://NAME/PATH`` it is the folder that holds the package, the package, or
            a folder inside it (`torchdojo.io.meshes.find_mesh`).
        mesh_points: largest number of contact points of a mesh. ``Hull.gap`` of the body's shapes is their distance from the hull [m].
        ground: "auto": the plane z = 0 where the robot floats, and no ground where its base is fixed. True: z = 0 in any case. False:
            none.
        near, slots: of contacts between bodies, as in `td.combine`: "auto" gives near contacts to shapes without a closed form (cylinders,
            hulls), and to all but ellipsoids in files of more than 12 pairs, whose steps are faster then. True: to all but ellipsoids.
            False: to none. `slots` of each pair; None: by the shapes, at most 8 for two links.
        srdf: a file whose ``<disable_collisions>`` leave out pairs of links; it matters where bodies touch each other.
        strict: refuse a file of which anything is lost that the motion depends on. Otherwise one warning has it, and
            ``mech.load_report`` as data (`torchdojo.io.LoadReport`).

    Raises:
        ImportError: with meshes, `trimesh` or `scipy` is not installed.
        FileNotFoundError: there is no such file or SRDF, or, with ``mesh="hull"``, no such mesh.
        ValueError: malformed or unsupported content, no link with mass, an impossible mass or inertia, unknown names, loops that cannot be
            closed. The message names the file and the element.
    """
    robot = read_urdf(
        path,
        floating_base=floating_base,
        merge_fixed_joints=merge_fixed_joints,
        ignore=ignore,
        rim_points=rim_points,
        repair_inertia=repair_inertia,
        mesh=mesh if of_geometry(contacts) else None,
        mesh_path=mesh_path,
        mesh_points=mesh_points,
        ground=ground,
        between=between_bodies(contacts),
        srdf=srdf,
    )
    mech = assemble(
        robot,
        contacts=contacts,
        friction=friction,
        timestep=timestep,
        gravity=gravity,
        part="link",
        ground=ground,
        near=near,
        slots=slots,
        remedy="Correct the file, or pass repair_inertia=True to use the nearest possible inertia",
    )
    _check_loops(robot, mech)
    announce(mech, strict)
    return mech


def _check_loops(robot: RobotInfo, mech: Mechanism) -> None:
    """Report loops that are open at coordinate zero.

    Raises:
        ValueError: they cannot be closed from there.
    """
    if len(mech.tree_joints) == len(mech.joints):
        return
    try:
        z = mech.initial_state()
        drawn = mech.to_maximal(torch.zeros_like(mech.to_minimal(z)[0]))
        apart = gaps(mech, drawn)
    except ValueError as error:
        raise ValueError(f"{robot.path}: {error}") from error
    open_by = [f"{name} by {m:.3g} m and {rad:.3g} rad" for name, (m, rad) in apart.items() if max(m, rad) > DRAWN_CLOSED]
    if open_by:
        entry = LoadEntry(
            "used",
            "closed loops",
            len(open_by),
            tuple(open_by),
            "they are open with all coordinates at zero; mech.initial_state() closes them, and its coordinates are not zero",
            "structure",
        )
        mech.load_report = mech.load_report.with_entries([entry])

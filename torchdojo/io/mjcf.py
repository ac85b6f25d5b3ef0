"""Build a `Mechanism` from an MJCF file (MuJoCo's format)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from torchdojo.elements.actuators import Actuator, actuate
from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import Contact, ImpactContact, NonlinearContact
from torchdojo.io.mjcf_description import MjcfInfo, read_mjcf
from torchdojo.io.mjcf_model import import_mujoco
from torchdojo.io.urdf import given_contact, joint_couplings, standard_joints
from torchdojo.mechanism import Mechanism
from torchdojo.quaternion import from_rotation_matrix

__all__ = ["load_mjcf", "mjcf_state"]


def load_mjcf(
    path: str | Path,
    *,
    timestep: Any = None,
    gravity: Any = None,
    floating_base: bool = True,
    contacts: str | Mapping[str, Any] | None = "collision",
    friction: float | None = None,
    merge_fixed_joints: bool = True,
    ignore: Sequence[str] = (),
    rim_points: int = 4,
    servos: Literal["implicit", "explicit"] = "implicit",
) -> Mechanism:
    """Build a mechanism from an MJCF file, as MuJoCo's own compiler reads it (package `mujoco`).

    Frames and coordinates: a body has the axes of its topmost MJCF body and its origin at its centre of mass. At coordinate zero every
    joint has the pose that the file draws, so that ``mech.initial_state()`` is MuJoCo's ``qpos0``, and a coordinate is ``qpos - qpos0``;
    limits and springs are shifted with it. `mjcf_state` gives the state of other ``qpos``, or of a keyframe.

    Joints: free -> Floating, hinge -> Revolute, slide -> Prismatic, ball -> Spherical; several on one body become one joint of
    `td.joints.JOINT_TYPES` where it has one: slides along perpendicular axes, then hinges about perpendicular axes through one point
    (three hinges: Spherical; two: Orbital; two slides and a hinge: PlanarAxis, ...). To have coordinates along the axes of the file, the
    body frame is turned or a coordinate runs backwards if necessary; `read_mjcf` says which (``coordinates``). The coordinates of two or
    three hinges are the components of one rotation vector: equal to the angles where one hinge alone is turned, to first order elsewhere.
    A stack of two hinges therefore reaches slightly other orientations when both are turned (a warning names such joints).
    A name that several MJCF joints share ("hip_x", "hip_y": "hip") names the joint; otherwise its body does.

    ``stiffness``, ``springref``, ``damping``, ``armature``, ``frictionloss`` and the range act. Joints with an actuator are ``actuated``:
    u is the force or torque [N, N m] on the joint; ``effort_limit`` is the largest of the file. ``u = mech.actuators(ctrl, z)`` is that of
    the file's motors, dampers, position and velocity servos, with gear, ctrlrange, forcerange and actuatorfrcrange, for controls
    in the order of ``mech.actuators.names``; their damping and armature are part of the joint's. Actuators with activation dynamics, of
    ball joints, or that do not drive a joint, muscles, tendons, fluid drag and gravity compensation do not act, and a warning names them.

    connect and weld constraints become further joints (Spherical, Fixed) that close loops, equalities between two joints a
    `JointCoupling` where they are linear (with a warning, nothing where they are not, or are on a single joint). They are exact here:
    ``solref`` and ``solimp`` have no meaning.

    Args:
        path: the file; its includes and meshes are looked up from there. Missing meshes are left out unless a mass depends on them.
        timestep: [s]; None: the file's.
        gravity: (3,) [m/s^2], world frame; None: the file's.
        floating_base: True: what the file says. False: bodies with a free joint are part of the world at the pose that the file draws.
        contacts: "collision": every geom that MuJoCo would let touch a plane of the world does so, with contacts at its contact points
            (sphere: 1, capsule: 2, box: 8, cylinder: 2 `rim_points`), named ``<geom>_<i>``, or ``<body>_<n>_<i>`` for its n-th geom
            without a name; except points inside another ball of the same link, and points whose height no joint can change. In a file
            without planes the ground is z = 0. None or an empty mapping: no contact. A mapping as in `load_urdf`; a link is an MJCF body.
        friction: coefficient of the contacts made here; None: as MuJoCo combines those of the two geoms. Geoms of condim 1 have none.
        merge_fixed_joints: bodies without joints become part of what carries them. False: bodies of their own, on `Fixed` joints.
        ignore: names of equality constraints to leave out without a word.
        rim_points: contact points on each rim of a cylinder.
        servos: "implicit": the joint's damper, which is implicit, carries gear² kv of its servo, also where u does not come from
            ``mech.actuators``. "explicit": it does not; stable with stiff servos at small timesteps only. See elements/actuators.py.

    Raises:
        ImportError: `mujoco` is not installed.
        FileNotFoundError: there is no such file.
        ValueError: what MuJoCo refuses; joints on one body that are no joint of the table; unknown names. The message names the file, the
            body and its joints.
    """
    if isinstance(contacts, str) and contacts != "collision":
        raise ValueError(f"contacts is {contacts!r}; allowed: 'collision', None, or a mapping from names to contacts")
    robot = read_mjcf(path, floating_base=floating_base, merge_fixed_joints=merge_fixed_joints, ignore=ignore, rim_points=rim_points)
    for note in (*robot.notes, *(robot.contact_notes if contacts == "collision" else ())):
        warnings.warn(note, UserWarning, stacklevel=2)
    if contacts == "collision":
        modules = _collision_contacts(robot, friction)
    else:
        assert contacts is None or isinstance(contacts, Mapping)
        given = 0.5 if friction is None else friction
        modules = {name: given_contact(robot, name, value, given) for name, value in (contacts or {}).items()}
    mech = Mechanism(
        bodies=_bodies(robot),
        joints=standard_joints(robot),
        contacts=modules,
        couplings=joint_couplings(robot),
        timestep=robot.timestep if timestep is None else timestep,
        gravity=robot.gravity if gravity is None else gravity,
    )
    _actuate(mech, robot, servos)
    return mech


def _actuate(mech: Mechanism, robot: MjcfInfo, servos: Literal["implicit", "explicit"]) -> None:
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
    if servos not in ("implicit", "explicit"):
        raise ValueError(f"servos is {servos!r}; allowed: 'implicit' or 'explicit'")
    if actuators:
        actuate(mech, actuators, servos).inputrange = torch.as_tensor(ranges).to(mech.gravity)


def mjcf_state(mech: Mechanism, robot: MjcfInfo, keyframe: str | int | None = None, *, qpos: Any = None, qvel: Any = None) -> Tensor:
    """The state (13 nb,) of a mechanism from `load_mjcf` at MuJoCo's qpos and qvel.

    Of a tree, the joint equations are satisfied exactly: what two hinges of one body, both turned, have that an Orbital joint cannot is
    left out. Loops and couplings that qpos leaves open stay so (``mech.close_loops`` closes them). Velocities are those of the step that
    leads to the configuration, as everywhere in z.

    Args:
        mech: the mechanism. robot: `read_mjcf` of the same file with the same options.
        keyframe: name or number of a keyframe of the file.
        qpos: (nq,), instead of a keyframe; default qpos0. qvel: (nv,), default zero.

    Raises:
        ValueError: an unknown keyframe, wrong sizes, another mechanism.
    """
    mujoco, model = import_mujoco(), robot.compiled.model
    if list(robot.bodies) != list(mech.bodies):
        raise ValueError(f"the bodies of {robot.path}, {list(robot.bodies)}, are not those of the mechanism, {list(mech.bodies)}")
    if keyframe is not None:
        if qpos is not None or qvel is not None:
            raise ValueError("give a keyframe, or qpos and qvel, not both")
        names = [str(model.key(i).name) for i in range(model.nkey)]
        if keyframe not in names and keyframe not in range(model.nkey):
            raise ValueError(f"{robot.path} has no keyframe {keyframe!r}; there are {model.nkey}: {names}")
        number = names.index(keyframe) if isinstance(keyframe, str) else keyframe
        qpos, qvel = model.key_qpos[number], model.key_qvel[number]
    now = _checked(model.qpos0 if qpos is None else qpos, model.nq, "qpos")
    velocity = _checked(np.zeros(model.nv) if qvel is None else qvel, model.nv, "qvel")
    h = float(mech.timestep)
    before = now.copy()
    mujoco.mj_integratePos(model, before, -velocity, h)
    (x, axes), (x_before, axes_before) = _poses(robot, now), _poses(robot, before)
    turn = from_rotation_matrix(torch.as_tensor(np.swapaxes(axes_before, -1, -2) @ axes))
    q = from_rotation_matrix(torch.as_tensor(axes))
    z = torch.cat((torch.as_tensor(x), torch.as_tensor(x - x_before) / h, q, 2 * turn[:, 1:] / h), dim=-1).flatten()
    z = z.to(mech.gravity)
    return mech.to_maximal(*mech.to_minimal(z)) if len(mech.tree_joints) == len(mech.joints) else z


def _checked(value: Any, size: int, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    array = np.array(value, dtype=np.float64)
    if array.shape != (size,):
        raise ValueError(f"{name}: got shape {array.shape}; allowed: ({size},)")
    return array


def _poses(robot: MjcfInfo, qpos: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Centres of mass (nb, 3) [m] and axes (nb, 3, 3) of our bodies where MuJoCo has them."""
    mujoco, model = import_mujoco(), robot.compiled.model
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_kinematics(model, data)
    ids = list(robot.tops.values())
    rotation, position = data.xmat.reshape(-1, 3, 3)[ids], data.xpos[ids]
    centers = np.stack([body.center for body in robot.bodies.values()])
    frames = np.stack([robot.links[name].rotation.T for name in robot.tops])
    return position + (rotation @ centers[..., None])[..., 0], rotation @ frames


def _bodies(robot: MjcfInfo) -> dict[str, Body]:
    bodies = {}
    for name, info in robot.bodies.items():
        try:
            bodies[name] = Body(mass=info.mass, inertia=torch.as_tensor(info.inertia), shape=info.shapes or None)
        except ValueError as error:
            raise ValueError(f'{robot.path}: body {name!r}: {error}. <compiler balanceinertia="true"/> repairs inertias') from error
    return bodies


def _collision_contacts(robot: MjcfInfo, friction: float | None) -> dict[str, Contact]:
    modules: dict[str, Contact] = {}
    for name, info in robot.contacts.items():
        place: dict[str, Any] = {"point": info.point.tolist(), "radius": info.radius}
        place |= {"normal": info.normal.tolist(), "offset": info.offset}
        if info.friction is None:
            modules[name] = ImpactContact(info.body, **place)
        else:
            modules[name] = NonlinearContact(info.body, friction=info.friction if friction is None else friction, **place)
    return modules

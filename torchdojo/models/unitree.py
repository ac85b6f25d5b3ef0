"""The quadruped: a Unitree A1 as Dojo models it.

Masses, inertias and lengths come from Unitree's URDF of the A1 (unitree_ros, BSD-3-Clause). Dampers, friction, contact spheres and the
standing pose come from DojoEnvironments (mechanisms/quadruped, MIT license). Left legs are mirror images of right ones, and rear hips are
mirror images of front ones. Inertia of the motors and friction of the joints, where asked for, come from MuJoCo Menagerie's A1
(BSD-3-Clause).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import Contact, NonlinearContact
from torchdojo.elements.joints import Floating, Joint, Revolute
from torchdojo.geometry import shapes
from torchdojo.mechanism import Mechanism
from torchdojo.models.built_in import add_motors, built_in

Vector = tuple[float, float, float]
Placed = tuple[str, Vector, Vector, Vector]  # a hinge: parent, axis, anchors on parent and child from their centers of mass [m]

LEGS = {"FR": (1, -1), "FL": (1, 1), "RR": (-1, -1), "RL": (-1, 1)}  # signs of (front, left)
STANDING = {"hip": 0.0, "thigh": 0.9, "calf": -1.425}
POSE = {f"{leg}_{part}_joint": {"q": angle} for leg in LEGS for part, angle in STANDING.items()}  # feet 2 cm above the ground
LIMITS = {"hip": (-0.5, 0.5), "thigh": (-0.5, 1.5), "calf": (-2.5, -1.0)}
EFFORT = 33.5  # [N·m] of every motor, as in Unitree's URDF
ARMATURE = 0.01  # of the motors, seen through their gears, in MuJoCo Menagerie's A1 [kg·m²]
JOINT_FRICTION = 0.2  # of the hinges there [N·m]
SPEED = 21.0  # of the hinges [rad/s]: `velocity` of Unitree's URDF
TRUNK_CENTER = (0.0, 0.0041, -0.0005)  # of mass, in the frame in which the hips are symmetric [m]
HIP_JOINT = (0.183, 0.047, 0.0)  # in that frame; |x|, |y|
HIP_CENTER = (-0.003311, 0.000635, 0.000031)  # of a front left hip, from its joint
THIGH_JOINT = 0.08505  # sideways from the hip joint
THIGH_CENTER = (-0.003237, -0.022327, -0.027326)  # of a left thigh
THIGH_LENGTH = 0.2
CALF_CENTER = (0.006435, 0.0, -0.107388)


@built_in(floating_base={"q": (0.0, 0.0, 0.33, 0.0, 0.0, 0.0)}, **POSE)
def quadruped(
    *,
    timestep: float = 0.01,
    gravity: Any = (0.0, 0.0, -9.81),
    friction: Any = 0.8,
    damper: Any = 0.05,
    spring: Any = 0.0,
    armature: Any = 0.0,
    joint_friction: Any = 0.0,
    limits: bool = False,
    velocity_limits: bool = False,
    contact: bool = True,
    contact_feet: bool = True,
    contact_body: bool = True,
    actuated_base: bool = False,
) -> Mechanism:
    """A Unitree A1: 13 bodies, joint "floating_base" and, per leg FR, FL, RR, RL, hinges "<leg>_hip_joint", "<leg>_thigh_joint",
    "<leg>_calf_joint".

    Args:
        timestep: [s]. gravity: [m/s²], world frame, (3,).
        friction: Coulomb coefficient of all contacts.
        damper: of the hinges [N·m·s/rad]. spring: of the hinges [N·m/rad], relaxed in the standing pose (hip 0, thigh 0.9,
            calf -1.425 rad); 30 holds the robot up.
        armature: of the hinges [kg·m²]. joint_friction: of the hinges [N·m]. Both are zero in Dojo's robot; `ARMATURE` (0.01) and
            `JOINT_FRICTION` (0.2) are those of MuJoCo Menagerie's A1.
        limits: put Dojo's joint limits on the hinges. velocity_limits: put the motors' largest speed on them, 21 rad/s. Large random
            torques otherwise spin the legs so fast that steps are split.
        contact: False leaves all contacts out. contact_feet: spheres at the feet. contact_body: spheres at knees and hips.
        actuated_base: whether the base has inputs (3 forces, 3 torques) as well; the hinges always do.
    """
    bodies = {
        "trunk": Body(
            6.0, _symmetric(0.0158533, 0.0377999, 0.0456542, -3.66e-05, -6.11e-05, -2.75e-05), shape=shapes.Box((0.267, 0.194, 0.114))
        )
    }
    joints: dict[str, Joint] = {
        "floating_base": Floating(None, "trunk", child_anchor=[-c for c in TRUNK_CENTER], actuated=actuated_base),
    }
    contacts: dict[str, Contact] = {}
    for leg, (_, left) in LEGS.items():
        parts, hinges = _leg(leg)
        bodies |= parts
        for part, (parent, axis, parent_anchor, child_anchor) in hinges.items():
            joints[f"{leg}_{part}_joint"] = Revolute(
                parent,
                f"{leg}_{part}",
                axis=axis,
                parent_anchor=parent_anchor,
                child_anchor=child_anchor,
                spring=spring,
                damper=damper,
                armature=armature,
                friction=joint_friction,
                rest=STANDING[part],
                limits=LIMITS[part] if limits else None,
                effort_limit=EFFORT,
                velocity_limits=SPEED if velocity_limits else None,
            )
        if contact and contact_feet:
            contacts[f"{leg}_foot"] = NonlinearContact(f"{leg}_calf", point=(-0.006, 0.0, -0.092), radius=0.021, friction=friction)
        if contact and contact_body:
            contacts[f"{leg}_knee"] = NonlinearContact(f"{leg}_thigh", point=(-0.005, left * 0.023, -0.16), radius=0.023, friction=friction)
            contacts[f"{leg}_hip"] = NonlinearContact(f"{leg}_hip", point=(0.0, 0.05, 0.0), radius=0.05, friction=friction)
    return add_motors(Mechanism(bodies, joints, contacts, timestep=timestep, gravity=gravity))


def _leg(leg: str) -> tuple[dict[str, Body], dict[str, Placed]]:
    """Bodies and hinges of a leg."""
    front, left = LEGS[leg]
    hip, thigh, calf = f"{leg}_hip", f"{leg}_thigh", f"{leg}_calf"
    hip_center = (front * HIP_CENTER[0], left * HIP_CENTER[1], HIP_CENTER[2])
    thigh_center = (THIGH_CENTER[0], left * THIGH_CENTER[1], THIGH_CENTER[2])
    hip_body = Body(
        0.696,
        _symmetric(0.000469246, 0.00080749, 0.000552929, -front * left * 9.409e-06, -front * 3.42e-07, -left * 4.66e-07),
        shape=shapes.Cylinder(radius=0.046, length=0.04, orientation=(0.5**0.5, 0.5**0.5, 0.0, 0.0)),
    )
    thigh_body = Body(
        1.013,
        _symmetric(0.005529065, 0.005139339, 0.001367788, left * 4.825e-06, 0.000343869, left * 2.2448e-05),
        shape=shapes.Box((0.0245, 0.034, THIGH_LENGTH), position=_minus((0.0, 0.0, -0.5 * THIGH_LENGTH), thigh_center)),
    )
    calf_body = Body(
        0.166,
        _symmetric(0.002997972, 0.003014022, 3.2426e-05, 0.0, -0.000141163, 0.0),
        shape=shapes.Box((0.016, 0.016, 0.2), position=_minus((0.0, 0.0, -0.1), CALF_CENTER)),
    )
    hip_joint = (front * HIP_JOINT[0], left * HIP_JOINT[1], HIP_JOINT[2])
    hinges: dict[str, Placed] = {
        "hip": ("trunk", (1, 0, 0), _minus(hip_joint, TRUNK_CENTER), _minus((0, 0, 0), hip_center)),
        "thigh": (hip, (0, 1, 0), _minus((0.0, left * THIGH_JOINT, 0.0), hip_center), _minus((0, 0, 0), thigh_center)),
        "calf": (thigh, (0, 1, 0), _minus((0.0, 0.0, -THIGH_LENGTH), thigh_center), _minus((0, 0, 0), CALF_CENTER)),
    }
    return {hip: hip_body, thigh: thigh_body, calf: calf_body}, hinges


def _symmetric(xx: float, yy: float, zz: float, xy: float, xz: float, yz: float) -> Tensor:
    """Inertia matrix [kg·m²], (3, 3)."""
    return torch.tensor([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]], dtype=torch.float64)


def _minus(a: Sequence[float], b: Sequence[float]) -> Vector:
    return (a[0] - b[0], a[1] - b[1], a[2] - b[2])

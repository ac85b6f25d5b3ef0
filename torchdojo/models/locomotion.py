"""Half-cheetah, ant and humanoid: the locomotion robots of Gymnasium, from the numbers of its MuJoCo files.

Lengths, densities, hinges, springs, dampers, gears and friction come from half_cheetah.xml, ant.xml and humanoid.xml (Gymnasium, MIT
license). Tables of links hold them here. Mass, center of mass and inertia follow from the capsules and spheres.

Differences from the files:
- Parts without a hinge belong to the link that carries them: the ant's inner leg segments to its torso, the humanoid's feet to its shins.
  The dynamics are the same with fewer bodies.
- Two or three hinges of one body are one `Orbital` or `Spherical` joint. Their axes are perpendicular to each other in the files, and the
  body's frame has its axes along them here. So coordinates, inputs, springs and dampers belong to the hinges one by one. The coordinates
  are components of one rotation vector, not angles of successive rotations: the same to first order.
- The ground is the only thing to collide with. A capsule touches the ground with the balls at its two ends. Balls inside another of the
  same link, and balls that coincide with the parent's at a joint, would only double a contact and are left out.
- Limits of joints with several free rotations bound the components of their rotation vector.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements import joints as joint_types
from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import Contact, NonlinearContact
from torchdojo.elements.element import orthonormal_complement, unit
from torchdojo.elements.joints import Joint, StandardJoint
from torchdojo.geometry import shapes
from torchdojo.mechanism import Mechanism
from torchdojo.models.built_in import built_in

Vector = tuple[float, float, float]
ORIGIN = (0.0, 0.0, 0.0)


class Geom(NamedTuple):
    """A capsule from `start` to `end` [m], frame of its link, with balls of `radius` [m] at both; a ball when they coincide."""

    name: str
    start: Vector
    end: Vector
    radius: float
    foot: bool = False


class Hinge(NamedTuple):
    """axis: frame of the link that it moves. limits [rad]; torque: largest one, gear times control range [N·m]; damper [N·m·s/rad];
    spring [N·m/rad], relaxed at zero; armature [kg·m²]."""

    name: str
    axis: Vector
    limits: tuple[float, float]
    torque: float
    damper: float
    spring: float = 0.0
    armature: float = 0.0


class Link(NamedTuple):
    """A link of a robot.

    position, orientation: of its frame in the parent's frame with all coordinates zero, [m] and wxyz.
    anchor: place of its hinges in its own frame [m].
    """

    name: str
    parent: str | None
    position: Vector
    hinges: tuple[Hinge, ...]
    geoms: tuple[Geom, ...]
    anchor: Vector = ORIGIN
    orientation: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)


class Options(NamedTuple):
    """The keywords of the three models."""

    timestep: float
    gravity: Any
    friction: Any
    spring: Any
    damper: Any
    limits: bool
    armature: bool
    contact: bool
    contact_body: bool


# -- half-cheetah --------------------------------------------------------------------------------------------------------------------------

CHEETAH_MASS = 14.0  # [kg], all links; their density is uniform
CHEETAH_RADIUS = 0.046


def _cheetah_geom(name: str, center: tuple[float, float], angle: float, half_length: float, foot: bool = False) -> Geom:
    """center: (x, z) [m]; angle [rad] about y from the z axis."""
    x, z = half_length * math.sin(angle), half_length * math.cos(angle)
    start, end = (center[0] - x, 0.0, center[1] - z), (center[0] + x, 0.0, center[1] + z)
    return Geom(name, start, end, CHEETAH_RADIUS, foot)


def _cheetah_hinge(name: str, limits: tuple[float, float], torque: float, damper: float, spring: float) -> tuple[Hinge]:
    return (Hinge(name, (0.0, 1.0, 0.0), limits, torque, damper, spring, armature=0.1),)


HALF_CHEETAH = (
    Link("torso", None, ORIGIN, (), (
        Geom("torso", (-0.5, 0.0, 0.0), (0.5, 0.0, 0.0), CHEETAH_RADIUS),
        _cheetah_geom("head", (0.6, 0.1), 0.87, 0.15),
    )),
    Link("bthigh", "torso", (-0.5, 0.0, 0.0), _cheetah_hinge("bthigh", (-0.52, 1.05), 120, 6.0, 240),
         (_cheetah_geom("bthigh", (0.1, -0.13), -3.8, 0.145),)),
    Link("bshin", "bthigh", (0.16, 0.0, -0.25), _cheetah_hinge("bshin", (-0.785, 0.785), 90, 4.5, 180),
         (_cheetah_geom("bshin", (-0.14, -0.07), -2.03, 0.15),)),
    Link("bfoot", "bshin", (-0.28, 0.0, -0.14), _cheetah_hinge("bfoot", (-0.4, 0.785), 60, 3.0, 120),
         (_cheetah_geom("bfoot", (0.03, -0.097), -0.27, 0.094, foot=True),)),
    Link("fthigh", "torso", (0.5, 0.0, 0.0), _cheetah_hinge("fthigh", (-1.0, 0.7), 120, 4.5, 180),
         (_cheetah_geom("fthigh", (-0.07, -0.12), 0.52, 0.133),)),
    Link("fshin", "fthigh", (-0.14, 0.0, -0.24), _cheetah_hinge("fshin", (-1.2, 0.87), 60, 3.0, 120),
         (_cheetah_geom("fshin", (0.065, -0.09), -0.6, 0.106),)),
    Link("ffoot", "fshin", (0.13, 0.0, -0.18), _cheetah_hinge("ffoot", (-0.5, 0.5), 30, 1.5, 60),
         (_cheetah_geom("ffoot", (0.045, -0.07), -0.6, 0.07, foot=True),)),
)  # fmt: skip


@built_in(root={"q": (0.0, 0.7, 0.0)})
def half_cheetah(
    *,
    timestep: float = 0.01,
    gravity: Any = (0.0, 0.0, -9.81),
    friction: Any = 0.4,
    spring: Any = None,
    damper: Any = None,
    limits: bool = True,
    armature: bool = True,
    contact: bool = True,
    contact_body: bool = True,
) -> Mechanism:
    """Gymnasium's half-cheetah: 7 bodies in the x-z plane, joint "root" (not actuated) and hinges "bthigh", "bshin", "bfoot", "fthigh",
    "fshin", "ffoot" about y. 14 kg.

    The root's coordinates are (x [m], height [m], nose-up angle [rad]) of the torso's middle: MuJoCo's rootx, rootz + 0.7 and -rooty.
    Inputs are torques [N·m]; Gymnasium's actions times 120, 90, 60, 120, 60, 30 (`effort_limit` of the joints).

    Args:
        timestep: [s]. gravity: [m/s²], world frame, (3,).
        friction: Coulomb coefficient of all contacts.
        spring, damper: of every hinge [N·m/rad, N·m·s/rad]; None: MuJoCo's, 240 to 60 and 6 to 1.5.
        limits: False leaves MuJoCo's joint limits out.
        armature: False leaves MuJoCo's armatures out.
        contact: False leaves all contacts out. contact_body: False leaves only the contacts of the two feet.
    """
    return _build(HALF_CHEETAH, CHEETAH_MASS / _volume(HALF_CHEETAH), Options(**locals()), planar=True)


# -- ant -----------------------------------------------------------------------------------------------------------------------------------

ANT_DENSITY = 5.0  # [kg/m³]
ANT_RADIUS = 0.08
ANT_ANGLE = 1.0  # of the ankles in the pose to start from [rad]: the file's init_qpos
#: name -> (number in the file, signs of x and y, axis of the ankle, sign of the ankle's range)
ANT_LEGS: dict[str, tuple[int, int, int, Vector, int]] = {
    "front_left": (1, 1, 1, (-1.0, 1.0, 0.0), 1),
    "front_right": (2, -1, 1, (1.0, 1.0, 0.0), -1),
    "back_left": (3, -1, -1, (-1.0, 1.0, 0.0), -1),
    "back_right": (4, 1, -1, (1.0, 1.0, 0.0), 1),
}
#: bent legs; the feet start 2 cm above the ground, since at the height of init_qpos, 3 cm lower, they are in it
ANT_POSE = {f"ankle_{number}": {"q": sign * ANT_ANGLE} for number, _, _, _, sign in ANT_LEGS.values()}


def _ant_links() -> tuple[Link, ...]:
    def outward(leg: str, length: float) -> Vector:
        return (ANT_LEGS[leg][1] * length, ANT_LEGS[leg][2] * length, 0.0)

    inner = [Geom(f"{leg}_hip", ORIGIN, outward(leg, 0.2), ANT_RADIUS) for leg in ANT_LEGS]
    links = [Link("torso", None, ORIGIN, (), (Geom("torso", ORIGIN, ORIGIN, 0.25), *inner))]
    for leg, (number, _, _, axis, sign) in ANT_LEGS.items():
        bent = sorted((sign * math.radians(30), sign * math.radians(70)))
        hip = Hinge(f"hip_{number}", (0.0, 0.0, 1.0), (math.radians(-30), math.radians(30)), 150, 1.0, armature=1.0)
        ankle = Hinge(f"ankle_{number}", axis, (bent[0], bent[1]), 150, 1.0, armature=1.0)
        upper, lower = f"{leg}_leg", f"{leg}_foot"
        links += [
            Link(upper, "torso", outward(leg, 0.2), (hip,), (Geom(upper, ORIGIN, outward(leg, 0.2), ANT_RADIUS),)),
            Link(lower, upper, outward(leg, 0.2), (ankle,), (Geom(lower, ORIGIN, outward(leg, 0.4), ANT_RADIUS, foot=True),)),
        ]
    return tuple(links)


ANT = _ant_links()


@built_in(root={"q": (0.0, 0.0, 0.58, 0.0, 0.0, 0.0)}, **ANT_POSE)
def ant(
    *,
    timestep: float = 0.01,
    gravity: Any = (0.0, 0.0, -9.81),
    friction: Any = 1.0,
    spring: Any = None,
    damper: Any = None,
    limits: bool = True,
    armature: bool = True,
    contact: bool = True,
    contact_body: bool = True,
) -> Mechanism:
    """Gymnasium's ant: 9 bodies, joint "root" (a free torso, not actuated) and hinges "hip_1", "ankle_1", ..., "ankle_4". 0.91 kg.

    Legs 1 to 4 are front left, front right, back left, back right; at coordinate zero they point outwards, level. Inputs are torques [N·m];
    Gymnasium's actions times 150 (`effort_limit` of the joints). This torque is large for legs of 0.1 kg. The file balances it with an
    armature of 1 kg·m² per hinge, a hundred times the legs' own inertia.

    Args:
        timestep: [s]. gravity: [m/s²], world frame, (3,).
        friction: Coulomb coefficient of all contacts.
        spring, damper: of every hinge [N·m/rad, N·m·s/rad]; None: MuJoCo's, 0 and 1.
        limits: False leaves MuJoCo's joint limits out.
        armature: False leaves MuJoCo's armatures out.
        contact: False leaves all contacts out. contact_body: False leaves only the contacts of the four feet.
    """
    return _build(ANT, ANT_DENSITY, Options(**locals()))


# -- humanoid ------------------------------------------------------------------------------------------------------------------------------

HUMANOID_DENSITY = 1000.0  # [kg/m³]
HUMANOID_CONTROL = 0.4  # largest action
TILT = (1.0, 0.0, -0.002, 0.0)  # of the waist against the torso and of the pelvis against the waist, not normalized


def _degrees(name: str, axis: Vector, lower: float, upper: float, gear: float, damper: float, spring: float, armature: float) -> Hinge:
    return Hinge(name, axis, (math.radians(lower), math.radians(upper)), gear * HUMANOID_CONTROL, damper, spring, armature)


def _humanoid_leg(side: str, out: float) -> tuple[Link, ...]:
    """out: +1 for the left side, -1 for the right one. Positive hip_x and hip_z turn the leg inwards on both sides."""
    thigh, shin = f"{side}_thigh", f"{side}_shin"
    hips = (
        _degrees(f"{side}_hip_x", (-out, 0.0, 0.0), -25, 5, 100, 5.0, 10.0, 0.01),
        _degrees(f"{side}_hip_y", (0.0, 1.0, 0.0), -110, 20, 300, 5.0, 20.0, 0.008 if side == "right" else 0.01),
        _degrees(f"{side}_hip_z", (0.0, 0.0, -out), -60, 35, 100, 5.0, 10.0, 0.01),
    )
    knee = _degrees(f"{side}_knee", (0.0, -1.0, 0.0), -160, -2, 200, 1.0, 0.0 if side == "right" else 1.0, 0.006)
    return (
        Link(thigh, "pelvis", (0.0, 0.1 * out, -0.04), hips, (Geom(thigh, ORIGIN, (0.0, -0.01 * out, -0.34), 0.06),)),
        Link(shin, thigh, (0.0, -0.01 * out, -0.403), (knee,), (
            Geom(shin, ORIGIN, (0.0, 0.0, -0.3), 0.049),
            Geom(f"{side}_foot", (0.0, 0.0, -0.35), (0.0, 0.0, -0.35), 0.075, foot=True),
        ), anchor=(0.0, 0.0, 0.02)),
    )  # fmt: skip


def _humanoid_arm(side: str, out: float) -> tuple[Link, ...]:
    upper, lower = f"{side}_upper_arm", f"{side}_lower_arm"
    ranges = (-85, 60) if side == "right" else (-60, 85)
    shoulders = (
        _degrees(f"{side}_shoulder1", (2.0, -out, 1.0), *ranges, 25, 1.0, 1.0, 0.0068),
        _degrees(f"{side}_shoulder2", (0.0, out, 1.0), *ranges, 25, 1.0, 1.0, 0.0051),
    )
    elbow = _degrees(f"{side}_elbow", (0.0, -1.0, -out), -90, 50, 25, 1.0, 0.0, 0.0028)
    hand = (0.18, -0.18 * out, 0.18)
    return (
        Link(upper, "torso", (0.0, 0.17 * out, 0.06), shoulders, (Geom(upper, ORIGIN, (0.16, 0.16 * out, -0.16), 0.04),)),
        Link(lower, upper, (0.18, 0.18 * out, -0.18), (elbow,), (
            Geom(lower, (0.01, -0.01 * out, 0.01), (0.17, -0.17 * out, 0.17), 0.031),
            Geom(f"{side}_hand", hand, hand, 0.04),
        )),
    )  # fmt: skip


HUMANOID = (
    Link("torso", None, ORIGIN, (), (
        Geom("torso", (0.0, -0.07, 0.0), (0.0, 0.07, 0.0), 0.07),
        Geom("head", (0.0, 0.0, 0.19), (0.0, 0.0, 0.19), 0.09),
        Geom("upper_waist", (-0.01, -0.06, -0.12), (-0.01, 0.06, -0.12), 0.06),
    )),
    Link("lower_waist", "torso", (-0.01, 0.0, -0.26), (
        _degrees("abdomen_z", (0.0, 0.0, 1.0), -45, 45, 100, 5.0, 20.0, 0.02),
        _degrees("abdomen_y", (0.0, 1.0, 0.0), -75, 30, 100, 5.0, 10.0, 0.02),
    ), (Geom("lower_waist", (0.0, -0.06, 0.0), (0.0, 0.06, 0.0), 0.06),), anchor=(0.0, 0.0, 0.065), orientation=TILT),
    Link("pelvis", "lower_waist", (0.0, 0.0, -0.165), (
        _degrees("abdomen_x", (1.0, 0.0, 0.0), -35, 35, 100, 5.0, 10.0, 0.02),
    ), (Geom("pelvis", (-0.02, -0.07, 0.0), (-0.02, 0.07, 0.0), 0.09),), anchor=(0.0, 0.0, 0.1), orientation=TILT),
    *_humanoid_leg("right", -1.0), *_humanoid_leg("left", 1.0), *_humanoid_arm("right", -1.0), *_humanoid_arm("left", 1.0),
)  # fmt: skip


@built_in(root={"q": (0.0, 0.0, 1.4, 0.0, 0.0, 0.0)})
def humanoid(
    *,
    timestep: float = 0.01,
    gravity: Any = (0.0, 0.0, -9.81),
    friction: Any = 1.0,
    spring: Any = None,
    damper: Any = None,
    limits: bool = True,
    armature: bool = True,
    contact: bool = True,
    contact_body: bool = True,
) -> Mechanism:
    """Gymnasium's humanoid: 11 bodies and 17 inputs, joint "root" (a free torso, not actuated). 42 kg.

    | joint                               | type      | coordinates and inputs, in order (names of the file)   |
    |-------------------------------------|-----------|--------------------------------------------------------|
    | "abdomen"                           | Orbital   | abdomen_z, abdomen_y                                   |
    | "abdomen_x"                         | Revolute  | abdomen_x                                              |
    | "right_hip", "left_hip"             | Spherical | hip_x, hip_y, hip_z (the file: x, z, y)                |
    | "right_knee", "left_knee"           | Revolute  | knee                                                   |
    | "right_shoulder", "left_shoulder"   | Orbital   | shoulder1, shoulder2                                   |
    | "right_elbow", "left_elbow"         | Revolute  | elbow                                                  |

    Inputs are torques [N·m]; Gymnasium's actions, -0.4 to 0.4, times 100 (abdomen, hip_x, hip_z), 300 (hip_y), 200 (knees), 25 (arms).
    `effort_limit` of the joints is 0.4 times that.

    Args:
        timestep: [s]. gravity: [m/s²], world frame, (3,).
        friction: Coulomb coefficient of all contacts.
        spring, damper: of every hinge [N·m/rad, N·m·s/rad]; None: MuJoCo's, 0 to 20 and 1 to 5.
        limits: False leaves MuJoCo's joint limits out.
        armature: False leaves MuJoCo's armatures out.
        contact: False leaves all contacts out. contact_body: False leaves only the ball of each foot.
    """
    return _build(HUMANOID, HUMANOID_DENSITY, Options(**locals()))


# -- from tables to a mechanism ------------------------------------------------------------------------------------------------------------


class _Placed(NamedTuple):
    """A link's frame against its body's: center of mass (3,) [m] in the link frame, and the rotation (4,) of body axes to link axes."""

    center: Tensor
    turn: Tensor

    def to_body(self, point: Tensor) -> Tensor:
        return quat.inverse_rotate(self.turn, point - self.center)


def _volume(links: Sequence[Link]) -> float:
    return sum(float(_shape(geom).volume) for link in links for geom in link.geoms)


def _build(links: Sequence[Link], density: float, options: Options, planar: bool = False) -> Mechanism:
    """planar: the root moves in the x-z plane."""
    bodies: dict[str, Body] = {}
    joints: dict[str, Joint] = {}
    contacts: dict[str, Contact] = {}
    placed: dict[str, _Placed] = {}
    balls: dict[str, list[tuple[Tensor, float]]] = {}  # that have a contact: center in the link frame, radius
    for link in links:
        bodies[link.name], here = _body(link, density)
        placed[link.name] = here
        if link.parent is None:
            # The axis -y makes the planar coordinates x and z.
            kind, axis = (joint_types.PlanarAxis, (0.0, -1.0, 0.0)) if planar else (joint_types.Floating, (0.0, 0.0, 1.0))
            joints["root"] = kind(None, link.name, axis=axis, child_anchor=here.to_body(_vector(ORIGIN)), actuated=False)
        else:
            joint_name, joint = _joint(link, placed[link.parent], here, options)
            joints[joint_name] = joint
        balls[link.name] = []
        for contact, point, radius, foot in _balls(link, balls):
            balls[link.name].append((point, radius))
            if options.contact and (foot or options.contact_body):
                contacts[contact] = NonlinearContact(link.name, point=here.to_body(point), radius=radius, friction=options.friction)
    return Mechanism(bodies, joints, contacts, timestep=options.timestep, gravity=options.gravity)


def _body(link: Link, density: float) -> tuple[Body, _Placed]:
    """The link's geoms as one body: masses add up, moments of inertia too once moved to the common center of mass."""
    masses = [density * _shape(geom).volume for geom in link.geoms]
    mass = torch.stack(masses).sum()
    centers = [0.5 * (_vector(geom.start) + _vector(geom.end)) for geom in link.geoms]
    center = torch.stack([m * c for m, c in zip(masses, centers, strict=True)]).sum(0) / mass
    turn = quat.from_rotation_matrix(_hinge_axes(link).mT) if len(link.hinges) > 1 else quat.identity()
    here = _Placed(center, turn)
    parts = [_shape(geom, here) for geom in link.geoms]
    inertia = torch.zeros(3, 3, dtype=torch.float64)
    for m, part in zip(masses, parts, strict=True):
        p = part.position
        inertia = inertia + part.inertia(m) + m * (p.dot(p) * torch.eye(3, dtype=torch.float64) - torch.outer(p, p))
    return Body(mass, inertia, shape=parts), here


def _joint(link: Link, parent: _Placed, here: _Placed, options: Options) -> tuple[str, StandardJoint]:
    hinges = link.hinges
    kind = (joint_types.Revolute, joint_types.Orbital, joint_types.Spherical)[len(hinges) - 1]
    turn = quat.normalize(torch.tensor(link.orientation, dtype=torch.float64))
    anchor = _vector(link.anchor)
    name = hinges[0].name if len(hinges) == 1 else hinges[0].name[:-1].rstrip("_")  # "left_hip_x", "left_hip_y", ... -> "left_hip"
    return name, kind(
        link.parent,
        link.name,
        axis=hinges[0].axis if len(hinges) == 1 else (0.0, 0.0, 1.0),
        parent_anchor=parent.to_body(_vector(link.position) + quat.rotate(turn, anchor)),
        child_anchor=here.to_body(anchor),
        orientation_offset=quat.multiply(quat.conjugate(parent.turn), quat.multiply(turn, here.turn)),
        spring=[hinge.spring for hinge in hinges] if options.spring is None else options.spring,
        damper=[hinge.damper for hinge in hinges] if options.damper is None else options.damper,
        limits=tuple(zip(*(hinge.limits for hinge in hinges), strict=True)) if options.limits else None,  # type: ignore[arg-type]
        armature=[hinge.armature for hinge in hinges] if options.armature else 0.0,
        effort_limit=[hinge.torque for hinge in hinges],
    )


def _hinge_axes(link: Link) -> Tensor:
    """The axes of two or three hinges, and of the third direction, as rows of a rotation, (3, 3)."""
    rows = [unit(_vector(hinge.axis)) for hinge in link.hinges]
    return torch.stack((rows[0], rows[1], quat.cross(rows[0], rows[1])))


def _balls(link: Link, kept: dict[str, list[tuple[Tensor, float]]]) -> list[tuple[str, Tensor, float, bool]]:
    """Contacts of a link: name, center in the link frame [m], radius [m], whether it is on a foot."""
    turn = quat.normalize(torch.tensor(link.orientation, dtype=torch.float64))
    balls: list[tuple[str, Tensor, float, bool]] = []
    for geom in link.geoms:
        ends = {"": geom.start} if geom.start == geom.end else {"_start": geom.start, "_end": geom.end}
        for suffix, end in ends.items():
            others = [(p, r) for _, p, r, _ in balls]
            if link.parent is not None and end == link.anchor:
                inward = [(quat.inverse_rotate(turn, p - _vector(link.position)), r) for p, r in kept[link.parent]]
                others += [(p, r) for p, r in inward if float((p - _vector(end)).norm()) <= 1e-12]
            if not any(float((p - _vector(end)).norm()) + geom.radius <= r + 1e-12 for p, r in others):
                balls.append((f"{geom.name}{suffix}", _vector(end), geom.radius, geom.foot))
    return balls


def _shape(geom: Geom, placed: _Placed | None = None) -> shapes.Sphere | shapes.Capsule:
    """In the frame of the body, or, not placed, anywhere."""
    start, end = _vector(geom.start), _vector(geom.end)
    position = quat.identity()[1:] if placed is None else placed.to_body(0.5 * (start + end))
    if geom.start == geom.end:
        return shapes.Sphere(geom.radius, position=position)
    along = unit(end - start)
    orientation = quat.from_rotation_matrix(torch.cat((orthonormal_complement(along), along[None])).mT)
    if placed is not None:
        orientation = quat.multiply(quat.conjugate(placed.turn), orientation)
    return shapes.Capsule(geom.radius, torch.linalg.vector_norm(end - start), position=position, orientation=orientation)


def _vector(value: Vector) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)

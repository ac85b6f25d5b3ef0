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
from typing import Any

from torchdojo.mechanism import Mechanism
from torchdojo.models.built_in import built_in
from torchdojo.models.links import ORIGIN, Geom, Hinge, Link, Options, Vector, build_links, total_volume

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
    return build_links(HALF_CHEETAH, CHEETAH_MASS / total_volume(HALF_CHEETAH), Options(**locals()), normal=(0.0, -1.0, 0.0))


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
    return build_links(ANT, ANT_DENSITY, Options(**locals()))


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
    return build_links(HUMANOID, HUMANOID_DENSITY, Options(**locals()))

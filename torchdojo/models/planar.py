"""Robots that move in a plane, from Gymnasium's MuJoCo files: hopper, walker2d, swimmer, reacher and the inverted double pendulum.

The numbers come from hopper.xml, walker2d_v5.xml, swimmer.xml, reacher.xml and inverted_double_pendulum.xml (Gymnasium, MIT license). The
files have 1000 kg/m³ everywhere. As in `locomotion`, a capsule touches the ground with the balls at its two ends, and nothing else touches.
"""

from __future__ import annotations

import math
from typing import Any

from torchdojo.elements.bodies import Body
from torchdojo.elements.joints import Prismatic, Revolute
from torchdojo.geometry.shapes import Capsule
from torchdojo.mechanism import Mechanism
from torchdojo.models.built_in import add_motors, built_in
from torchdojo.models.links import ORIGIN, Geom, Hinge, Link, Options, Vector, build_links

DENSITY = 1000.0  # [kg/m³]
UPRIGHT = (0.0, -1.0, 0.0)  # normal of the x-z plane: coordinates x, z, and a turn about -y
HORIZONTAL = (0.0, 0.0, 1.0)
ALONG_X = (math.sqrt(0.5), 0.0, math.sqrt(0.5), 0.0)  # orientation of a capsule

# -- hopper and walker2d -----------------------------------------------------------------------------------------------------------------


def _leg(side: str, torque: float, damper: float, armature: float, foot: tuple[float, float, float, float]) -> tuple[Link, ...]:
    """foot: place of its frame in the shin's along x, ends of its capsule along x in its own frame [m], friction."""

    def hinge(part: str, lower: float, upper: float) -> tuple[Hinge]:
        limits = (math.radians(lower), math.radians(upper))
        return (Hinge(f"{part}{side}_joint", (0.0, -1.0, 0.0), limits, torque, damper, armature=armature),)

    thigh, leg, toes = f"thigh{side}", f"leg{side}", f"foot{side}"
    x, start, end, friction = foot
    return (
        Link(thigh, "torso", (0.0, 0.0, -0.2), hinge("thigh", -150, 0), (Geom(thigh, ORIGIN, (0.0, 0.0, -0.45), 0.05),)),
        Link(leg, thigh, (0.0, 0.0, -0.7), hinge("leg", -150, 0), (
            Geom(leg, (0.0, 0.0, 0.25), (0.0, 0.0, -0.25), 0.04),
        ), anchor=(0.0, 0.0, 0.25)),
        Link(toes, leg, (x, 0.0, -0.35), hinge("foot", -45, 45), (
            Geom(toes, (start, 0.0, 0.1), (end, 0.0, 0.1), 0.06, foot=True, friction=friction),
        ), anchor=(-x, 0.0, 0.1)),
    )  # fmt: skip


TORSO = Link("torso", None, ORIGIN, (), (Geom("torso", (0.0, 0.0, -0.2), (0.0, 0.0, 0.2), 0.05),))
HOPPER = (TORSO, *_leg("", 200.0, 1.0, 1.0, (0.13, -0.26, 0.13, 2.0)))
WALKER2D = (TORSO._replace(geoms=(TORSO.geoms[0]._replace(friction=0.9),)), *(
    part._replace(geoms=tuple(geom if geom.foot else geom._replace(friction=0.9) for geom in part.geoms))
    for side in ("", "_left") for part in _leg(side, 100.0, 0.1, 0.01, (0.2, -0.2, 0.0, 1.9))
))  # fmt: skip


@built_in(root={"q": (0.0, 1.25, 0.0)})
def hopper(
    *,
    timestep: float = 0.01,
    gravity: Any = (0.0, 0.0, -9.81),
    friction: Any = None,
    spring: Any = None,
    damper: Any = None,
    limits: bool = True,
    armature: bool = True,
    contact: bool = True,
    contact_body: bool = True,
) -> Mechanism:
    """Gymnasium's hopper: 4 bodies in the x-z plane, joint "root" (not actuated) and hinges "thigh_joint", "leg_joint", "foot_joint".

    The root's coordinates are (x [m], height [m], angle [rad] about -y) of the torso's middle: MuJoCo's rootx, rootz and -rooty. Hinges
    turn about -y, as in the file. 15.8 kg; motors of 200 N·m, and armatures of 1 kg·m², larger than the legs' own inertia.

    Args:
        timestep: [s]. gravity: [m/s²], world frame, (3,).
        friction: Coulomb coefficient of all contacts; None: MuJoCo's, 2 at the foot and 1 elsewhere.
        spring, damper: of every hinge [N·m/rad, N·m·s/rad]; None: MuJoCo's, 0 and 1.
        limits: False leaves MuJoCo's joint limits out.
        armature: False leaves MuJoCo's armatures out.
        contact: False leaves all contacts out. contact_body: False leaves only the contacts of the foot.
    """
    return build_links(HOPPER, DENSITY, Options(**locals()), normal=UPRIGHT)


@built_in(root={"q": (0.0, 1.25, 0.0)})
def walker2d(
    *,
    timestep: float = 0.01,
    gravity: Any = (0.0, 0.0, -9.81),
    friction: Any = None,
    spring: Any = None,
    damper: Any = None,
    limits: bool = True,
    armature: bool = True,
    contact: bool = True,
    contact_body: bool = True,
) -> Mechanism:
    """Gymnasium's walker (v5): 7 bodies in the x-z plane, joint "root" (not actuated) and hinges "thigh_joint", "leg_joint", "foot_joint",
    and the same three with "_left" before "_joint". 23.7 kg; motors of 100 N·m.

    The root's coordinates are those of `hopper`. Both legs move in the same plane and do not touch each other.

    Args:
        timestep: [s]. gravity: [m/s²], world frame, (3,).
        friction: Coulomb coefficient of all contacts; None: MuJoCo's, 1.9 at the feet and 0.9 elsewhere.
        spring, damper: of every hinge [N·m/rad, N·m·s/rad]; None: MuJoCo's, 0 and 0.1.
        limits: False leaves MuJoCo's joint limits out.
        armature: False leaves MuJoCo's armatures of 0.01 kg·m² out.
        contact: False leaves all contacts out. contact_body: False leaves only the contacts of the feet.
    """
    return build_links(WALKER2D, DENSITY, Options(**locals()), normal=UPRIGHT)


# -- swimmer -----------------------------------------------------------------------------------------------------------------------------


def _joint(name: str, bound: float) -> tuple[Hinge]:
    return (Hinge(name, HORIZONTAL, (-math.radians(bound), math.radians(bound)), 150.0, 0.0, armature=0.1),)


SWIMMER = (
    Link("torso", None, ORIGIN, (), (Geom("torso", (1.5, 0.0, 0.0), (0.5, 0.0, 0.0), 0.1),)),
    Link("mid", "torso", (0.5, 0.0, 0.0), _joint("motor1_rot", 100.0), (Geom("mid", ORIGIN, (-1.0, 0.0, 0.0), 0.1),)),
    Link("back", "mid", (-1.0, 0.0, 0.0), _joint("motor2_rot", 100.0), (Geom("back", ORIGIN, (-1.0, 0.0, 0.0), 0.1),)),
)


@built_in()
def swimmer(
    *, timestep: float = 0.01, gravity: Any = (0.0, 0.0, -9.81), damper: Any = 0.0, limits: bool = True, armature: bool = True
) -> Mechanism:
    """Gymnasium's swimmer: 3 bodies in the x-y plane, joint "root" (not actuated) and hinges "motor1_rot", "motor2_rot" about z. 107 kg.

    The root's coordinates are (x [m], y [m], angle [rad]) of the torso's frame: MuJoCo's slider1, slider2 and free_body_rot. Motors of
    150 N·m. The file's joints have an armature of 0.1 each, the root's slides included.

    It swims by the drag of a medium, which is a wrench on its bodies and no part of the mechanism. `td.models.drag` has MuJoCo's law with
    the numbers of the file:

        out = mech.step(z, ctrl=ctrl, wrench=td.models.drag(mech, z))

    Args:
        timestep: [s]. gravity: [m/s²], world frame, (3,); the plane holds against it.
        damper: of both hinges [N·m·s/rad].
        limits: False leaves MuJoCo's limits of ±100° out. armature: False leaves MuJoCo's armatures out.
    """
    options = Options(timestep, gravity, damper=damper, limits=limits, armature=armature, contact=False)
    return build_links(SWIMMER, DENSITY, options, normal=HORIZONTAL, root_armature=0.1)


# -- reacher -----------------------------------------------------------------------------------------------------------------------------


def _reach(name: str, bound: float) -> tuple[Hinge]:
    return (Hinge(name, HORIZONTAL, (-bound, bound), 200.0, 1.0, armature=1.0),)


TIP: Vector = (0.11, 0.0, 0.0)
REACHER = (
    Link("body0", None, (0.0, 0.0, 0.01), _reach("joint0", math.inf), (Geom("link0", ORIGIN, (0.1, 0.0, 0.0), 0.01),)),
    Link("body1", "body0", (0.1, 0.0, 0.0), _reach("joint1", 3.0), (
        Geom("link1", ORIGIN, (0.1, 0.0, 0.0), 0.01), Geom("fingertip", TIP, TIP, 0.01),
    )),
)  # fmt: skip


@built_in()
def reacher(
    *,
    timestep: float = 0.01,
    gravity: Any = (0.0, 0.0, -9.81),
    damper: Any = None,
    limits: bool = True,
    armature: bool = True,
) -> Mechanism:
    """Gymnasium's reacher: an arm of two links in the x-y plane, hinges "joint0" and "joint1" about z. 75 g.

    The fingertip is 0.21 m from the base, part of "body1" at (0.11, 0, 0) m in the frame of the link. The target of the file, which no
    force moves, is left out. Motors of 200 N·m act on armatures of 1 kg·m², ten thousand times the links' own inertia.

    Args:
        timestep: [s]. gravity: [m/s²], world frame, (3,); the hinges hold against it.
        damper: of both hinges [N·m·s/rad]; None: MuJoCo's, 1.
        limits: False leaves MuJoCo's limits of ±3 rad of "joint1" out. armature: False leaves MuJoCo's armatures out.
    """
    options = Options(timestep, gravity, damper=damper, limits=limits, armature=armature, contact=False)
    return build_links(REACHER, DENSITY, options)


# -- inverted double pendulum ------------------------------------------------------------------------------------------------------------


@built_in(hinge={"q": 0.1})
def double_pendulum(
    *, timestep: float = 0.01, gravity: Any = (0.0, 0.0, -9.81), damper: Any = 0.05, limits: bool = True, effort: float = 500.0
) -> Mechanism:
    """Gymnasium's inverted double pendulum: a cart on the x axis, joint "slider", and two poles, joints "hinge" and "hinge2" about y.

    At coordinate zero both poles stand up. 18.9 kg. The slider has a motor of 500 N, and the hinges have no input.
    (`npendulum(2)` is the double pendulum that hangs.)

    Args:
        timestep: [s]. gravity: [m/s²], world frame, (3,). The file also has 1e-5 m/s² along x, which makes the upright pose fall.
        damper: of all three joints [N·s/m, N·m·s/rad].
        limits: False leaves the rail's ends, at ±1 m, out.
        effort: largest force of the motor [N].
    """
    pole = Capsule(0.045, 0.6)
    cart = Capsule(0.1, 0.2, orientation=ALONG_X)
    bodies = {name: Body(DENSITY * shape.volume, shape=shape) for name, shape in (("cart", cart), ("pole", pole), ("pole2", pole))}
    slider = Prismatic(None, "cart", axis=(1.0, 0.0, 0.0), damper=damper, limits=(-1.0, 1.0) if limits else None, effort_limit=effort)
    foot = {"axis": (0.0, 1.0, 0.0), "child_anchor": (0.0, 0.0, -0.3), "damper": damper, "actuated": False}
    joints = {
        "slider": slider,
        "hinge": Revolute("cart", "pole", **foot),
        "hinge2": Revolute("pole", "pole2", parent_anchor=(0.0, 0.0, 0.3), **foot),
    }
    return add_motors(Mechanism(bodies, joints, timestep=timestep, gravity=gravity))

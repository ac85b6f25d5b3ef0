"""Small built-in mechanisms: pendulums, cartpole, box, sphere and snake.

Sizes and masses are the defaults of DojoEnvironments (mechanisms/pendulum, npendulum, cartpole, block,
sphere, snake; MIT license). Inertias follow from the shapes; for capsules this differs slightly from the original's formula.
Everything is in meters, kilograms and radians; the world's z points up and the ground is z = 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from torchdojo.elements import joints as joint_types
from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import Contact, NonlinearContact
from torchdojo.elements.joints import Prismatic, Revolute, StandardJoint
from torchdojo.geometry import shapes
from torchdojo.mechanism import Mechanism
from torchdojo.models.built_in import built_in

GRAVITY = (0.0, 0.0, -9.81)


@built_in(hinge={"q": 0.25 * math.pi})
def pendulum(
    *,
    timestep: float = 0.01,
    gravity: Any = GRAVITY,
    mass: Any = 1.0,
    length: float = 1.0,
    spring: Any = 0.0,
    damper: Any = 0.0,
    rest: Any = 0.0,
    limits: tuple[Any, Any] | None = None,
) -> Mechanism:
    """A rod that swings about the x axis, body "rod", joint "hinge"; at coordinate zero it hangs.

    Args:
        timestep: [s].
        gravity: [m/s²], world frame, (3,).
        mass: of the rod [kg].
        length: [m]; the rod is a box of cross-section 0.1 m x 0.1 m, hinged at its upper end, 1.1 lengths above the ground.
        spring, damper, rest: of the hinge [N·m/rad, N·m·s/rad, rad].
        limits: (lower, upper) [rad].
    """
    body = Body(mass, shape=shapes.Box((0.1, 0.1, length)))
    hinge = Revolute(
        None,
        "rod",
        axis=(1.0, 0.0, 0.0),
        parent_anchor=(0.0, 0.0, 1.1 * length),
        child_anchor=(0.0, 0.0, 0.5 * length),
        spring=spring,
        damper=damper,
        rest=rest,
        limits=limits,
    )
    return Mechanism({"rod": body}, {"hinge": hinge}, timestep=timestep, gravity=gravity)


@built_in(hinge1={"q": 0.25 * math.pi})
def npendulum(
    n: int = 5,
    *,
    timestep: float = 0.01,
    gravity: Any = GRAVITY,
    mass: Any = 1.0,
    length: float = 1.0,
    spring: Any = 0.0,
    damper: Any = 0.0,
) -> Mechanism:
    """A chain of n rods hinged about the x axis, bodies and joints "rod1", "hinge1", ...; at coordinate zero it hangs.

    Args:
        n: number of rods.
        timestep: [s].
        gravity: [m/s²].
        mass, length: of each rod [kg, m]; a rod is a box of cross-section 0.05 m x 0.05 m. The chain hangs n + 0.5 lengths up.
        spring, damper: of every hinge [N·m/rad, N·m·s/rad].
    """
    _check_count("npendulum", n)
    bodies, joints = {}, {}
    for i in range(1, n + 1):
        bodies[f"rod{i}"] = Body(mass, shape=shapes.Box((0.05, 0.05, length)))
        joints[f"hinge{i}"] = Revolute(
            f"rod{i - 1}" if i > 1 else None,
            f"rod{i}",
            axis=(1.0, 0.0, 0.0),
            parent_anchor=(0.0, 0.0, -0.5 * length if i > 1 else (n + 0.5) * length),
            child_anchor=(0.0, 0.0, 0.5 * length),
            spring=spring,
            damper=damper,
        )
    return Mechanism(bodies, joints, timestep=timestep, gravity=gravity)


@built_in(hinge={"q": 0.25 * math.pi})
def cartpole(
    *,
    timestep: float = 0.01,
    gravity: Any = GRAVITY,
    cart_mass: Any = 1.0,
    pole_mass: Any = 1.0,
    length: float = 1.0,
    damper: Any = 0.0,
    actuated_pole: bool = False,
    limits: tuple[Any, Any] | None = None,
) -> Mechanism:
    """A cart that slides along y and a pole hinged on it about x, joints "slider" and "hinge"; at coordinate zero the pole stands up.

    Args:
        timestep: [s].
        gravity: [m/s²].
        cart_mass, pole_mass: [kg]. The cart is a capsule of radius 0.1125 m and cylinder length 1 m along y.
        length: of the cylinder of the pole, a capsule of radius 0.075 m hinged at one end of that cylinder [m].
        damper: of both joints [N·s/m, N·m·s/rad].
        actuated_pole: whether the hinge has an input [N·m] too; the slider's is a force [N].
        limits: (lower, upper) of the cart's position [m].
    """
    cart = Body(cart_mass, shape=shapes.Capsule(radius=0.1125, length=1.0, orientation=(math.sqrt(0.5), math.sqrt(0.5), 0.0, 0.0)))
    pole = Body(pole_mass, shape=shapes.Capsule(radius=0.075, length=length))
    joints = {
        "slider": Prismatic(None, "cart", axis=(0.0, 1.0, 0.0), damper=damper, limits=limits),
        "hinge": Revolute(
            "cart", "pole", axis=(1.0, 0.0, 0.0), child_anchor=(0.0, 0.0, -0.5 * length), damper=damper, actuated=actuated_pole
        ),
    }
    return Mechanism({"cart": cart, "pole": pole}, joints, timestep=timestep, gravity=gravity)


@built_in(box={"position": (0.0, 0.0, 0.75), "velocity": (2.0, 1.0, 0.0), "angular_velocity": (3.0, -2.0, 1.0)})
def box(
    *,
    timestep: float = 0.01,
    gravity: Any = GRAVITY,
    mass: Any = 1.0,
    size: Sequence[float] = (0.5, 0.5, 0.5),
    friction: Any = 0.8,
    contact: bool = True,
) -> Mechanism:
    """A free box, body "box", whose corners "corner1" ... "corner8" touch the ground.

    Args:
        timestep: [s]. gravity: [m/s²]. mass: [kg]. size: edge lengths x, y, z [m].
        friction: Coulomb coefficient of the corners. contact: False leaves the corners out.
    """
    body = Body(mass, shape=shapes.Box(tuple(size)))
    half = [0.5 * float(edge) for edge in size]
    corners = itertools.product((1, -1), repeat=3)
    contacts = {
        f"corner{i}": NonlinearContact("box", point=[s * a for s, a in zip(signs, half, strict=True)], friction=friction)
        for i, signs in enumerate(corners, start=1)
    }
    return Mechanism({"box": body}, (), contacts if contact else (), timestep=timestep, gravity=gravity)


@built_in(sphere={"position": (0.0, 0.0, 1.0), "velocity": (1.0, 0.0, 0.0), "angular_velocity": (0.0, -4.0, 0.0)})
def sphere(
    *, timestep: float = 0.01, gravity: Any = GRAVITY, mass: Any = 1.0, radius: float = 0.5, friction: Any = 0.4, contact: bool = True
) -> Mechanism:
    """A free solid sphere, body "sphere", with one contact "ground".

    Args:
        timestep: [s]. gravity: [m/s²]. mass: [kg]. radius: [m].
        friction: Coulomb coefficient. contact: False leaves the contact out.
    """
    body = Body(mass, shape=shapes.Sphere(radius))
    contacts = {"ground": NonlinearContact("sphere", radius=radius, friction=friction)}
    return Mechanism({"sphere": body}, (), contacts if contact else (), timestep=timestep, gravity=gravity)


@built_in(world_to_link1={"q": (0.0, 0.0, 0.5, 0.0, 0.0, 0.0)})
def snake(
    n: int = 5,
    joint: str = "Revolute",
    *,
    timestep: float = 0.01,
    gravity: Any = GRAVITY,
    mass: Any = 1.0,
    length: float = 1.0,
    axis: Sequence[float] = (1.0, 0.0, 0.0),
    spring: Any = 0.0,
    damper: Any = 0.0,
    friction: Any = 0.8,
    contact: bool = True,
) -> Mechanism:
    """A free chain of n links along x, bodies "link1", ..., connected by "joint1", ... of any of the sixteen types.

    Args:
        n: number of links. joint: one of the sixteen joints (torchdojo/elements/README.md), for example "Spherical".
        timestep: [s]. gravity: [m/s²].
        mass, length: of each link [kg, m]; a link is a box `length` x 0.15 m x 0.1 m.
        axis: of every joint, in the frame of the link before it.
        spring, damper: of every joint, on each free coordinate [N/m or N·m/rad, N·s/m or N·m·s/rad].
        friction: Coulomb coefficient of the links' ends. contact: False leaves the contacts out.

    Raises:
        ValueError: fewer than one link, or a joint type that does not exist.
    """
    _check_count("snake", n)
    if joint not in joint_types.JOINT_TYPES:
        raise ValueError(f"snake: got joint={joint!r}; allowed: {', '.join(joint_types.JOINT_TYPES)}")
    kind: type[StandardJoint] = getattr(joint_types, joint)
    bodies, joints, contacts = {}, {}, {}
    for i in range(1, n + 1):
        bodies[f"link{i}"] = Body(mass, shape=shapes.Box((length, 0.15, 0.1)))
        if i > 1:
            joints[f"joint{i - 1}"] = kind(
                f"link{i - 1}",
                f"link{i}",
                axis=axis,
                parent_anchor=(-0.5 * length, 0.0, 0.0),
                child_anchor=(0.5 * length, 0.0, 0.0),
                spring=spring,
                damper=damper,
            )
        for end, side in (("front", 0.5), ("back", -0.5)):
            contacts[f"link{i}_{end}"] = NonlinearContact(f"link{i}", point=(side * length, 0.0, 0.0), radius=0.05, friction=friction)
    chosen: dict[str, Contact] = dict(contacts) if contact else {}
    return Mechanism(bodies, joints, chosen, timestep=timestep, gravity=gravity)


def _check_count(name: str, n: int) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"{name}: got n={n!r}; allowed: a number of bodies, 1 or more")

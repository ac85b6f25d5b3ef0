"""Sets of contacts between shapes: several points where two bodies may lie on each other, and all pairs of a mechanism.

bodies = {f"box{i}": td.Body(1.0, shape=td.Box((.1, .1, .1))) for i in range(10)}
mech = td.Mechanism(bodies, contacts={**td.contacts_between(bodies, friction=.6), **feet})
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from torch import Tensor

from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import Contact, NonlinearContact
from torchdojo.elements.joints import Joint
from torchdojo.geometry.shapes import Box, Capsule, Ellipsoid, Shape, Sphere
from torchdojo.quaternion import rotate

__all__ = ["contact_manifold", "contacts_between"]

ROUNDING = 0.02  # default radius of a box's corners, in units of its shortest edge
SHARP = 1e-9  # radius of the world's sharp corners [m]: a `Sphere` has one

Filter = Callable[[str, str | None], bool]


def contact_manifold(
    a: str,
    shape_a: Shape,
    b: str | None,
    shape_b: Shape,
    *,
    model: Callable[..., Contact] = NonlinearContact,
    corner_radius: float | None = None,
    **arguments: Any,
) -> dict[str, Contact]:
    """Contacts through which two shapes can lie on each other.

    One contact is between the nearest points, which decide whether the shapes overlap at all. Shapes that may touch in a line or a face
    get more. The ends of capsules are balls against the other shape, and each corner of two boxes acts against the other box. Corners are
    balls inside their box. So the normal of a corner near the other's edge turns over a length that does not depend on the gap. Bare
    points would feel the edge of an equal box below them in every direction.

    Args:
        a, b: names of the bodies; b None: the world. shape_a, shape_b: `Sphere`, `Capsule`, `Box` or `Ellipsoid` in their
            frames.
        model: contact class (or a function with its arguments). arguments: of the model, the same for all (`friction=...`).
        corner_radius: of boxes' corners [m]; default: 2 % of the shortest edge. 0: sharp.

    Returns:
        Contacts by names that begin with "a_b".

    Raises:
        ValueError: shapes without a distance to each other.
    """
    label = f"{a}_{'world' if b is None else b}"
    contacts = {f"{label}_nearest": model(a, shape=shape_a, other=b, other_shape=shape_b, **arguments)}
    if any(isinstance(shape, Sphere | Ellipsoid) for shape in (shape_a, shape_b)):
        return contacts
    for suffix, first, mine, second, theirs in (("a", a, shape_a, b, shape_b), ("b", b, shape_b, a, shape_a)):
        if isinstance(mine, Capsule):
            points, radius = mine.contact_points()
        elif isinstance(theirs, Box):
            points, radius = _corners(cast(Box, mine), corner_radius)
        else:
            continue  # the nearest points cover a corner of a box on a capsule
        for i, point in enumerate(points.unbind(-2)):
            name = f"{label}_{suffix}{i}"
            if first is None:  # a corner of the world: the body comes first in its contacts
                ball = Sphere(radius.clamp_min(SHARP), position=point)
                contacts[name] = model(second, shape=theirs, other=None, other_shape=ball, **arguments)
            else:
                contacts[name] = model(first, point=point, radius=radius, other=second, other_shape=theirs, **arguments)
    return contacts


def contacts_between(
    bodies: Mapping[str, Body],
    joints: Mapping[str, Joint] | Iterable[tuple[str, Joint]] = (),
    *,
    world: Sequence[Shape] = (),
    model: Callable[..., Contact] = NonlinearContact,
    filter: Filter | None = None,
    corner_radius: float | None = None,
    **arguments: Any,
) -> dict[str, Contact]:
    """Contacts of every shape of every body with all shapes of other bodies, except between bodies that a joint connects.

    The result is what `Mechanism(contacts=...)` takes; contacts with the ground plane are not part of it.

    Args:
        bodies: by name, with shapes; bodies without shapes are skipped.
        joints: of the mechanism; neighbors do not touch each other.
        world: fixed shapes, in the world frame.
        filter: (name, name or None for the world) -> whether these two may touch; asked once per pair that is not excluded already.
        model, corner_radius, arguments: as in `contact_manifold`.

    Raises:
        ValueError: shapes without a distance to each other.
    """
    pairs = joints.items() if isinstance(joints, Mapping) else joints
    neighbors = {frozenset(joint.body_names) for _, joint in pairs}
    candidates: list[tuple[str, str | None]] = list(itertools.combinations(bodies, 2))
    candidates += [(name, None) for name in bodies] if world else []
    contacts: dict[str, Contact] = {}
    for a, b in candidates:
        joined = b is not None and frozenset((a, b)) in neighbors
        if joined or (filter is not None and not filter(a, b)):
            continue
        others = world if b is None else bodies[b].shapes
        several = len(bodies[a].shapes) * len(others) > 1
        for (i, shape_a), (j, shape_b) in itertools.product(enumerate(bodies[a].shapes), enumerate(others)):
            manifold = contact_manifold(a, shape_a, b, shape_b, model=model, corner_radius=corner_radius, **arguments)
            contacts |= {f"{name}_{i}_{j}" if several else name: contact for name, contact in manifold.items()}
    return contacts


def _corners(box: Box, radius: float | None) -> tuple[Tensor, Tensor]:
    """Centres (..., 8, 3) and radius (...,) of the balls in the corners of a box, in the body frame."""
    edge = box.size.detach().amin(-1)
    size = ROUNDING * edge if radius is None else edge.new_tensor(radius).expand(edge.shape)
    if bool((2 * size >= edge).any()):
        raise ValueError(f"corner_radius: got {radius}; allowed: below half the shortest edge, {float(edge.min()) / 2} m")
    inner = Box(box.size - 2 * size[..., None])
    return box.position[..., None, :] + rotate(box.orientation[..., None, :], inner.contact_points()[0]), size

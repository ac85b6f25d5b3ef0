"""Contacts with a height field in the place of those with planes of the world."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import Contact, LinearContact
from torchdojo.elements.near_rule import pieces_of
from torchdojo.geometry.heights import HeightField
from torchdojo.geometry.shapes import Ellipsoid, Shape
from torchdojo.geometry.surface_points import check_pitch, surface_points

__all__ = ["on_ground"]

SAME_PLACE = 1e-9  # [m]: points that are nearer to each other are the same one


def on_ground(there: Mapping[str, Contact], bodies: Mapping[str, Body], ground: HeightField, pitch: float | None) -> dict[str, Contact]:
    """Contacts of balls and ellipsoids with the world's planes, by name, as contacts with a height field that keep their other numbers.

    Those of an ellipsoid "NAME" are "NAME_0", "NAME_1" ...: a height field feels its contact points.

    Args:
        pitch: distance of points on edges and faces of the shapes whose contact points all touch [m]: "NAME_face0", "NAME_face1" ... after
            the first of them. None: contact points alone.

    Raises:
        ValueError: a bad pitch, or one without such shapes.
    """
    check_pitch(pitch)
    flat = {name: contact for name, contact in there.items() if _is_flat(contact)}
    made: dict[str, Contact] = {}
    if pitch is not None:
        for body in dict.fromkeys(contact.body for contact in flat.values()):
            for shape in bodies[body].shapes:
                own = {name: contact for name, contact in flat.items() if contact.body == body and name not in made}
                made |= _on_faces(own, there, shape, ground, pitch)
        if flat and not made:
            raise ValueError(
                f"replace_ground(pitch={pitch!r}): got no shape whose contact points all touch the plane; allowed: shapes with edges and "
                "faces, in contact at all corners, as td.combine makes them; leave pitch= out, and points alone touch"
            )
    for name, contact in flat.items():
        if name not in made:
            made |= _at_balls(name, contact, ground)
    return made


def _is_flat(contact: Contact) -> bool:
    """Whether a contact is one of a body with a plane of the world."""
    flat = contact.other_kind == "surface" and type(contact).signed_distance is Contact.signed_distance
    return flat and contact.other is None


def _at_balls(name: str, contact: Contact, ground: HeightField) -> dict[str, Contact]:
    """A contact as one or several of its ball, or of the contact points of its ellipsoid."""
    if contact.shape_kind != "ellipsoid":
        return {name: _at(contact, ground, contact.point, contact.radius)}
    numbers: dict[str, Any] = {key: getattr(contact, key) for key in ("semi_axes", "orientation")}
    points, radius = Ellipsoid(numbers["semi_axes"], position=contact.point, orientation=numbers["orientation"]).contact_points()
    return {f"{name}_{k}": _at(contact, ground, point, radius) for k, point in enumerate(points.unbind(-2))}


def _at(contact: Contact, ground: HeightField, point: Tensor, radius: Tensor) -> Contact:
    """A contact of a ball with the ground that has the other numbers of a contact with a plane."""
    gone = ("normal", "offset", "point", "radius", "orientation", "semi_axes")
    numbers: dict[str, Any] = {key: getattr(contact, key) for key in contact.fields if key not in gone}
    if isinstance(contact, LinearContact):
        numbers["facets"] = contact.facets
    return type(contact)(contact.body, other_shape=ground, point=point, radius=radius, **numbers)


def _on_faces(
    own: Mapping[str, Contact], there: Mapping[str, Contact], shape: Shape, ground: HeightField, pitch: float
) -> dict[str, Contact]:
    """Contacts of a shape at points of its edges and faces, if its contact points have contacts; each has the numbers of the nearest one.

    Args:
        own: contacts of the body that are left. there: all contacts, whose names are taken.
    """
    try:
        corners = shape.contact_points()[0].detach()
        points, radii = [], []
        for piece in pieces_of(shape):
            some, radius = surface_points(piece, pitch)
            points.append(some)
            radii.append(radius.expand(len(some)))
    except ValueError:  # no convex shape, or one that is too thin
        return {}
    balls = {name: contact.point.detach() for name, contact in own.items() if contact.shape_kind != "ellipsoid" and contact.point.ndim == 1}
    if not balls or corners.ndim != 2:
        return {}
    apart = torch.cdist(corners, torch.stack(list(balls.values())))
    nearest = apart.min(-1)
    if bool((nearest.values > SAME_PLACE).any()):
        return {}
    names = [list(balls)[k] for k in dict.fromkeys(nearest.indices.tolist())]
    places, radii_of_points = torch.cat(points), torch.cat(radii)
    templates = torch.cdist(places, torch.stack([balls[name] for name in names])).argmin(-1).tolist()
    labels = [*names, *(label for label in (f"{names[0]}_face{k}" for k in range(len(places) + len(there))) if label not in there)]
    return {
        label: _at(own[names[template]], ground, place, radius)
        for label, template, place, radius in zip(labels, templates, places, radii_of_points, strict=False)
    }

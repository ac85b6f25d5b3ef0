"""Contacts of a mechanism in an MJCF file: spheres and points on planes of the world, and pairs of shapes.

A sphere or point on a half-space of the world is a geom of its own, and the plane another one. Two shapes of bodies, or of a body and the
world, are geoms that touch nothing else and a `<pair>`, which ``load(contacts="all")`` reads.
"""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import torch
from torch import Tensor
from torch.nn.utils.parametrize import type_before_parametrizations

from torchdojo.elements.contact import Contact
from torchdojo.elements.contacts import ImpactContact, LinearContact, NonlinearContact
from torchdojo.io.mjcf.writing import Writing, text_of

__all__ = ["HARD", "TIMESTEP", "write_contacts"]

POINT = 1e-9  # radius of a point in MuJoCo, which has none without [m]
TIMESTEP = 0.002  # MuJoCo's own default [s]
HARD = {"solref": f"{2 * TIMESTEP:g} 1", "solimp": "0.95 0.99 0.001"}  # as hard as this timestep allows, critically damped
LOST_LAWS = ("restitution", "recovery_speed", "stiffness", "damping")
SHAPES = ("sphere", "capsule", "box", "ellipsoid")
ALONE = {"contype": "0", "conaffinity": "0", "mass": "0", "group": "3"}


def write_contacts(file: Writing) -> None:
    """Add the contacts; near contacts, height fields, half-spaces of bodies and laws of one's own are left out."""
    planes = dict[tuple[float, ...], str]()
    geoms = dict[tuple[str | None, str], str]()
    for name, contact in file.mech.named_contacts().items():
        known = type_before_parametrizations(contact) in (ImpactContact, LinearContact, NonlinearContact)
        if known and contact.other_kind in SHAPES:
            _write_pair(file, name, contact, geoms)
        elif known and contact.other is None and contact.other_kind == "surface" and contact.shape_kind == "sphere":
            _write_ball(file, name, contact)
            normal = torch.nn.functional.normalize(contact.normal, dim=-1)
            planes.setdefault((*normal.tolist(), float(contact.offset)), f"plane_{len(planes)}")
        else:
            file.left_out.append(name)
            continue
        lost = [law for law in LOST_LAWS if law in contact.fields and bool((getattr(contact, law) != 0).any())]
        file.left_out += [f"contacts.{name}.{law}" for law in (*lost, *(("facets",) if isinstance(contact, LinearContact) else ()))]
    for (*direction, offset), key in planes.items():
        axis = torch.tensor(direction, dtype=torch.float64)
        # of two frictions MuJoCo takes the larger one: that of the sphere
        surface: dict[str, Any] = {"contype": "0", "conaffinity": "1", "condim": "3", "friction": "0 0 0", **HARD}
        place = {"pos": text_of(offset * axis), "zaxis": text_of(axis)}
        ElementTree.SubElement(file.bodies[None], "geom", {"name": key, "type": "plane", "size": "0 0 1", **place, **surface})


def _write_ball(file: Writing, name: str, contact: Contact) -> None:
    condim, friction = _surface(contact)
    collides = {"contype": "1", "conaffinity": "0", "condim": condim, "friction": " ".join(friction), **HARD}
    shape = {"type": "sphere", "pos": text_of(contact.point), "size": str(max(float(contact.radius), POINT))}
    ElementTree.SubElement(file.bodies[contact.body], "geom", {"name": name, **shape, **collides})


def _write_pair(file: Writing, name: str, contact: Contact, geoms: dict[tuple[str | None, str], str]) -> None:
    """Two shapes that touch; `geoms` has those that are written, by body and shape."""
    ends = []
    for body, kind, prefix in ((contact.body, contact.shape_kind, ""), (contact.other, contact.other_kind, "other_")):
        shape = _shape(contact, kind, prefix)
        key = body, " ".join(shape.values())
        if key not in geoms:
            geoms[key] = f"{name}_{prefix}shape"
            ElementTree.SubElement(file.bodies[body], "geom", {"name": geoms[key], **shape, **ALONE})
        ends.append(geoms[key])
    condim, (sliding, turning, rolling) = _surface(contact)
    friction = " ".join((sliding, sliding, turning, rolling, rolling))
    numbers = {"condim": condim, "friction": friction, **HARD}
    ElementTree.SubElement(file.section("contact"), "pair", {"name": name, "geom1": ends[0], "geom2": ends[1], **numbers})


def _shape(contact: Contact, kind: str, prefix: str) -> dict[str, str]:
    """A shape as attributes of a geom, in the frame of its body."""

    def value(name: str) -> Tensor:
        return torch.as_tensor(getattr(contact, f"{prefix}{name}")).detach()

    sizes = {
        "sphere": lambda: value("radius").clamp_min(POINT),
        "capsule": lambda: torch.stack((value("radius"), 0.5 * value("length"))),
        "box": lambda: 0.5 * value("size"),
        "ellipsoid": lambda: value("semi_axes"),
    }
    turned = {"quat": text_of(value("orientation"))} if f"{prefix}orientation" in contact.fields else {}
    return {"type": kind, "size": text_of(sizes[kind]()), "pos": text_of(value("point")), **turned}


def _surface(contact: Contact) -> tuple[str, tuple[str, str, str]]:
    """condim, and friction against sliding, turning and rolling; MuJoCo's own numbers stand where a law does not act."""
    coefficients = [getattr(contact, law, None) for law in ("friction", "torsional_friction", "rolling_friction")]
    condim = "6" if coefficients[2] is not None else "4" if coefficients[1] is not None else "3"
    usual = (0.0, 0.005, 0.0001) if condim == "3" else (0.0, 0.0, 0.0)
    sliding, turning, rolling = (absent if value is None else float(value) for value, absent in zip(coefficients, usual, strict=True))
    return condim, (f"{sliding:.17g}", f"{turning:.17g}", f"{rolling:.17g}")

"""Friction and compliance of a link: ``<contact>`` as Bullet reads it, and the friction of ``<gazebo>``.

Both engines combine the numbers of a link with those of the ground: Bullet multiplies frictions, Gazebo takes the smaller one. A URDF says
nothing of the ground. It counts as one of friction 1 and restitution 1 (Bullet), and as one that never slips (Gazebo).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from torchdojo.io.report import Findings
from torchdojo.io.robot import clean_name

__all__ = ["Surface", "laws_between", "read_surfaces"]

#: child of ``<contact>`` -> keyword of a contact, or of `Surface`; Bullet's coefficients of rolling and spinning are lengths, as ours [m]
BULLET = {
    "lateral_friction": "friction",
    "spinning_friction": "torsional_friction",
    "rolling_friction": "rolling_friction",
    "restitution": "restitution",
    "stiffness": "stiffness",
    "damping": "damping",
    "inertia_scaling": "inertia_scaling",
}
SOLVER = {"contact_cfm", "contact_erp", "friction_anchor"}  # of Bullet's solver
#: children of ``<gazebo>`` with which a link or joint moves otherwise, where their text is not the value given here
GAZEBO_MOTION = {"turnGravityOff": "false", "gravity": "true", "kinematic": "false", "static": "false", "springStiffness": "0"}
#: Files write up to 1e14 for a surface that never slips, and a cone of 84 degrees hardly does. With 100, steps of the PR2 fail once a
#: finger touches the ground.
LARGEST_FRICTION = 10.0


@dataclass
class Surface:
    """The numbers that the contacts of a link share."""

    friction: float | None = None  #: coefficient; None: the file has none
    options: dict[str, float] = field(default_factory=dict)  #: laws of the contacts
    inertia_scaling: float = 1.0  #: Bullet multiplies the inertia of the link by it


def laws_between(one: Surface, other: Surface, *, default: float) -> dict[str, float]:
    """Laws of the contacts of two links, as Bullet combines their numbers. Restitution and compliance do not go together: it yields.

    Restitutions are multiplied, a coefficient of rolling or spinning belongs to the friction of the other link, springs are in series, and
    dampers add up.

    Args:
        default: friction of a link of which the file says nothing.
    """
    laws: dict[str, float] = {}
    friction = [default if surface.friction is None else surface.friction for surface in (one, other)]
    for name in ("torsional_friction", "rolling_friction"):
        laws[name] = one.options.get(name, 0.0) * friction[1] + other.options.get(name, 0.0) * friction[0]
    yielding = [1 / surface.options["stiffness"] for surface in (one, other) if "stiffness" in surface.options]
    if yielding:
        laws["stiffness"], laws["damping"] = 1 / sum(yielding), sum(surface.options.get("damping", 0.0) for surface in (one, other))
    else:
        laws["restitution"] = one.options.get("restitution", 0.0) * other.options.get("restitution", 0.0)
    return {name: value for name, value in laws.items() if value > 0}


def read_surfaces(root: Element, findings: Findings) -> dict[str, Surface]:
    """Surfaces by clean name of the link; links of which the file says nothing are left out."""
    surfaces: dict[str, Surface] = {}
    links = {clean_name(link.get("name", "")) for link in root.findall("link")}
    for element in root.findall("gazebo"):
        _read_gazebo(element, links, surfaces, findings)
    for link in root.findall("link"):
        for contact in link.findall("contact"):
            _read_contact(contact, clean_name(link.get("name", "")), surfaces, findings)
    return surfaces


def _read_contact(contact: Element, link: str, surfaces: dict[str, Surface], findings: Findings) -> None:
    values: dict[str, float] = {}
    for child in contact:
        tag, number = str(child.tag), _number(child)
        if tag in SOLVER:
            findings.add("ignored", f"<{tag}>", link, "it belongs to Bullet's solver", "none")
        elif tag not in BULLET:
            findings.add("ignored", "unknown elements", f"<{tag}> in <contact> of {link!r}", "this reader does not know them", "structure")
        elif number is None or number < 0:
            findings.add("ignored", f"<{tag}>", link, "its value is not a number of 0 or more")
        elif number > 0 or tag == "lateral_friction":
            values[BULLET[tag]] = number
    surface = surfaces.setdefault(link, Surface())
    if "friction" in values:
        surface.friction = _friction(values.pop("friction"), link, findings)
    surface.inertia_scaling = values.pop("inertia_scaling", 1.0)
    if "stiffness" not in values and values.pop("damping", 0.0):
        findings.add("ignored", "<damping>", link, "a hard contact has no damping; <stiffness> would make it compliant", "structure")
    if "stiffness" in values:
        values.setdefault("damping", 0.0)
        if values.pop("restitution", 0.0):
            findings.add("ignored", "<restitution>", link, "a compliant contact bounces by its stiffness")
    if values.get("restitution", 0.0) > 1.0:
        findings.add("approximated", "<restitution>", link, f"{values['restitution']:g} would add energy: it is 1 here")
        values["restitution"] = 1.0
    surface.options = values


def _read_gazebo(element: Element, links: set[str], surfaces: dict[str, Surface], findings: Findings) -> None:
    reference = element.get("reference", "")
    link = clean_name(reference)
    frictions = [number for tag in ("mu1", "mu2") for number in map(_number, element.findall(tag)) if number is not None and number >= 0]
    if frictions and link in links:
        if min(frictions) < max(frictions):
            findings.add("approximated", "<gazebo> friction", link, "mu1 and mu2 differ, and the smaller one acts in all directions")
        surfaces.setdefault(link, Surface()).friction = _friction(min(frictions), link, findings)
    for child in element:
        tag, text = str(child.tag), (child.get("value") or child.text or "").strip().lower()
        if tag in ("mu1", "mu2") and link in links:
            continue
        if tag in GAZEBO_MOTION and text not in (GAZEBO_MOTION[tag], {"false": "0", "true": "1"}.get(GAZEBO_MOTION[tag])):
            findings.add("ignored", f"<{tag}> of <gazebo>", reference, f"{text!r} of Gazebo does not act here")
        else:
            findings.add("ignored", "<gazebo>", tag.rpartition("}")[2], "it belongs to Gazebo", "none")


def _friction(number: float, link: str, findings: Findings) -> float:
    if number <= LARGEST_FRICTION:
        return number
    reason = f"beyond {LARGEST_FRICTION:g}, which is taken: a contact that never slips"
    findings.add("approximated", "friction", link, reason, "structure")
    return LARGEST_FRICTION


def _number(element: Element) -> float | None:
    """The finite number that an element has as its value or its text, or None."""
    try:
        number = float(element.get("value") or element.text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None

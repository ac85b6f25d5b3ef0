"""Tendons, couplings and joints that close loops as elements of an MJCF file.

| here | in the file |
|---|---|
| `FixedTendon` | `<fixed>`; its offset shifts rest lengths and limits |
| `SpatialTendon` | `<spatial>`, with sites "NAME_0", ... and geoms "NAME_surface_0", ... of its own that touch nothing |
| spring, rest, damper, friction, armature | `stiffness`, `springlength`, `damping`, `frictionloss`, `armature` |
| limits, with their springs and dampers | `range`, `solreflimit`, `solimplimit` |
| `JointCoupling`, `JointLock` | `<equality><joint>` |
| `SumCoupling` | `<equality><tendon>`, with fixed tendons "NAME_followers" and "NAME_leaders" without forces |
| `StringCoupling` | `<equality><tendon>`, with spatial tendons "NAME_follower" and "NAME_leader" without forces |
| compliance and damping of a coupling | `solref`, `solimp`, which ``load(soft=True)`` reads |
| `Spherical`, `Fixed` that close loops | `<connect>`, `<weld>` between sites "NAME_parent" and "NAME_child" |

MuJoCo has no pulleys of negative divisors, no coordinates of free joints in tendons and equalities, and no armature around geoms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast
from xml.etree import ElementTree

import torch
from torch import Tensor

from torchdojo.elements.coupling import Coupling
from torchdojo.elements.couplings import SumCoupling
from torchdojo.elements.curves import CURVES
from torchdojo.elements.joints import Fixed, Spherical, StandardJoint
from torchdojo.elements.servo import SERVO
from torchdojo.elements.string_coupling import StringCoupling
from torchdojo.elements.tendon import FAR, Tendon
from torchdojo.elements.tendon_paths import FixedTendon, Span, SpatialTendon
from torchdojo.io.mjcf.write_contacts import HARD
from torchdojo.io.mjcf.writing import Writing, text_of

__all__ = ["LOOPS", "write_couplings", "write_loops", "write_tendons"]

LOOPS: dict[type, str] = {Spherical: "connect", Fixed: "weld"}
LOST_LAWS = ("spring", "damper", "friction", "armature", "velocity_limits", *CURVES, *SERVO)  # of joints that close loops


def write_tendons(file: Writing) -> list[str]:
    """Add the tendons; the result has the names of those that are written."""
    written = []
    named = file.mech.named_tendons()
    arms = file.mech.tendon_moment_arms(torch.zeros(file.mech.num_coordinates, dtype=torch.float64)) if named else None
    for row, (name, tendon) in enumerate(named.items()):
        path = _path(file, name, tendon)
        if path is None:
            file.left_out.append(f"tendons.{name}")
            continue
        offset = tendon.offset if isinstance(tendon, FixedTendon) else torch.zeros((), dtype=torch.float64)
        assert arms is not None  # there are tendons
        inverse = float(arms[row] @ file.inverse_mass @ arms[row])
        laws = _laws(file, name, tendon, offset, inverse)
        tag = "fixed" if isinstance(tendon, FixedTendon) else "spatial"
        ElementTree.SubElement(file.section("tendon"), tag, {"name": name, **laws}).extend(path)
        written.append(name)
    return written


def _laws(file: Writing, name: str, tendon: Tendon, offset: Tensor, inverse: float) -> dict[str, str]:
    laws = {}
    for key, value in (("stiffness", tendon.stiffness), ("damping", tendon.damping), ("frictionloss", tendon.friction)):
        if value is not None and float(value):
            laws[key] = text_of(value)
    for key, linear, curve in (
        ("stiffness", tendon.stiffness, tendon.stiffness_curve),
        ("damping", tendon.damping, tendon.damping_curve),
    ):
        if curve is not None and bool(curve.any()):
            laws[key] = text_of([float(linear), *curve.tolist()])
    if "stiffness" in laws:
        low, high = (float(value - offset) for value in (tendon.rest_lower, tendon.rest_upper))
        if low == high == -1.0:
            high = -1.0 + 2e-16  # two numbers of -1 mean the length at qpos0
        laws["springlength"] = text_of([low, high])
    if tendon.armature is not None and float(tendon.armature):
        if getattr(tendon, "surfaces", ()):
            file.left_out.append(f"tendons.{name}.armature")
        else:
            laws["armature"] = text_of(tendon.armature)
    if tendon.limit_stiffness is not None and float(tendon.limit_stiffness):
        assert tendon.limit_lower is not None and tendon.limit_upper is not None and tendon.limit_time is not None  # they come together
        bounds = [float(bound if abs(float(bound)) == FAR else bound - offset) for bound in (tendon.limit_lower, tendon.limit_upper)]
        stiffness = float(tendon.limit_stiffness)
        laws |= {"range": text_of(bounds), **file.softness(inverse, stiffness, float(tendon.limit_time) * stiffness, "limit")}
    return laws


def _path(file: Writing, name: str, tendon: Tendon) -> list[ElementTree.Element] | None:
    """The elements of a path; None where MJCF has no such path."""
    if type(tendon) is FixedTendon:
        terms = dict(zip(tendon.places, tendon.coefficients.detach().tolist(), strict=True))
        return _terms(file, terms)
    if type(tendon) is SpatialTendon and ("divisors" not in tendon.fields or bool((tendon.divisors > 0).all())):
        return list(_string(file, name, tendon, tendon.spans))
    return None


def _terms(file: Writing, terms: Mapping[tuple[str, int], float]) -> list[ElementTree.Element] | None:
    """A sum of coordinates; None where one of them is that of a free joint."""
    if any(place not in file.coordinates for place in terms):
        return None
    return [ElementTree.Element("joint", joint=file.coordinates[place], coef=text_of(value)) for place, value in terms.items()]


def _string(file: Writing, name: str, tendon: SpatialTendon | StringCoupling, spans: Sequence[Span]) -> Iterator[ElementTree.Element]:
    used = sorted({i for span in spans for i in (span.start, span.end)})
    places = {i: file.site(f"{name}_{i}", tendon.bodies[tendon.site_bodies[i]], tendon.points[i]) for i in used}
    seen = sorted({tendon.surfaces[span.surface].side for span in spans if span.surface >= 0} - {-1})
    sides = {i: file.site(f"{name}_side_{i}", tendon.bodies[tendon.side_bodies[i]], tendon.sides[i]) for i in seen}
    last, pulley = -1, -1
    for span in spans:
        if span.pulley != pulley:
            yield ElementTree.Element("pulley", divisor=text_of(tendon.divisors[span.pulley]))
        if span.pulley != pulley or span.start != last:
            yield ElementTree.Element("site", site=places[span.start])
        if span.surface >= 0:
            yield _surface(file, name, tendon, span.surface, sides)
        yield ElementTree.Element("site", site=places[span.end])
        last, pulley = span.end, span.pulley


def _surface(
    file: Writing, name: str, tendon: SpatialTendon | StringCoupling, number: int, sides: Mapping[int, str]
) -> ElementTree.Element:
    surface, label, radius = tendon.surfaces[number], f"{name}_surface_{number}", text_of(tendon.radii[number])
    kind, size = ("cylinder", f"{radius} {radius}") if surface.cylinder else ("sphere", radius)
    place: dict[str, Any] = {"pos": text_of(tendon.centers[number]), "quat": text_of(getattr(tendon, tendon.orientations_field)[number])}
    alone: dict[str, Any] = {"contype": "0", "conaffinity": "0", "mass": "0", "group": "3"}
    ElementTree.SubElement(file.bodies[tendon.bodies[surface.body]], "geom", name=label, type=kind, size=size, **place, **alone)
    attributes = {"geom": label} | ({"sidesite": sides[surface.side]} if surface.side >= 0 else {})
    return ElementTree.Element("geom", attributes)


def write_couplings(file: Writing) -> None:
    """Add the couplings as equalities."""
    for name, coupling in file.mech.named_couplings().items():
        strung = isinstance(coupling, StringCoupling)
        element = _string_equality(file, name, cast(StringCoupling, coupling)) if strung else _equality(file, name, coupling)
        if element is None:
            file.left_out.append(f"couplings.{name}")
            continue
        if coupling.active is not None:
            element.set("active", "true" if float(coupling.active) else "false")
        file.section("equality").append(element)


def write_loops(file: Writing) -> None:
    """Add the joints that close loops as equalities; their springs, dampers and other laws are left out."""
    for name, joint in file.mech.named_joints().items():
        if name in file.mech.tree_joints:
            continue
        assert isinstance(joint, StandardJoint)  # `write_mjcf` refuses others
        law_values = {law: getattr(joint, law) for law in LOST_LAWS}
        lost = [law for law, value in law_values.items() if value is not None and bool((value != 0).any())]
        file.left_out += [f"joints.{name}.{law}" for law in lost] + ([f"joints.{name}.limits"] if joint.limits is not None else [])
        parent, child = joint.body_names
        first = file.site(f"{name}_parent", parent, joint.parent_anchor, quat=text_of(joint.orientation_offset))
        second = file.site(f"{name}_child", child, joint.child_anchor)
        options = {"name": name, "site1": first, "site2": second, **HARD}
        element = ElementTree.SubElement(file.section("equality"), LOOPS[type(joint)], options)
        if joint.active is not None:
            element.set("active", "true" if float(joint.active) else "false")


def _equality(file: Writing, name: str, coupling: Coupling) -> ElementTree.Element | None:
    if any((end.joint, end.coordinate) not in file.coordinates for end in coupling.ends):
        return None
    curve = torch.zeros(3) if coupling.curve is None else coupling.curve
    numbers = {"name": name, "polycoef": text_of([coupling.offset, coupling.ratio, *curve]), **_give(file, coupling)}
    leaders, followers = ([end for end in coupling.ends if end.leads is leads] for leads in (True, False))
    if not isinstance(coupling, SumCoupling):
        joints = {f"joint{i}": file.coordinates[end.joint, end.coordinate] for i, end in enumerate([*followers, *leaders], 1)}
        return ElementTree.Element("joint", {**numbers, **joints})
    factors = dict(zip(coupling.ends, coupling.coefficients.detach().tolist(), strict=True))
    for i, (side, ends) in enumerate((("followers", followers), ("leaders", leaders)), 1):
        terms = _terms(file, {(end.joint, end.coordinate): factors[end] for end in ends})
        if terms:
            numbers[f"tendon{i}"] = label = f"{name}_{side}"
            ElementTree.SubElement(file.section("tendon"), "fixed", name=label).extend(terms)
    return ElementTree.Element("tendon", numbers)


def _string_equality(file: Writing, name: str, coupling: StringCoupling) -> ElementTree.Element | None:
    """MuJoCo's polynomial is one of differences from the lengths where all coordinates are zero; None: pulleys of negative divisors."""
    if "divisors" in coupling.fields and not bool((coupling.divisors > 0).all()):
        return None
    with torch.enable_grad():
        q = torch.zeros(file.mech.num_coordinates, dtype=torch.float64, requires_grad=True)
        follower, leader = coupling.strings(*file.mech.element_poses(file.mech.to_maximal(q), coupling))
        lengths = [path.length for path in (follower, leader) if path.length.requires_grad]
        arms = [torch.autograd.grad(length, q, materialize_grads=True, retain_graph=True)[0] for length in lengths]
    x = (leader.length - coupling.leader_length).detach()
    powers = torch.tensor([0.0, float(coupling.ratio), *([0.0] * 3 if coupling.curve is None else coupling.curve.tolist())]).double()
    numbers = [sum(math.comb(k, i) * powers[k] * x ** (k - i) for k in range(i, 5)) for i in range(5)]
    numbers[0] = numbers[0] + coupling.offset - follower.length.detach()
    inverse = sum(float(arm @ file.inverse_mass @ arm) for arm in arms)
    options = {"name": name, "polycoef": text_of([float(number) for number in numbers]), **_give(file, coupling, inverse)}
    for i, (side, spans) in enumerate(zip(("follower", "leader"), coupling.parts, strict=True), 1):
        if spans:
            options[f"tendon{i}"] = label = f"{name}_{side}"
            ElementTree.SubElement(file.section("tendon"), "spatial", name=label).extend(_string(file, label, coupling, spans))
    return ElementTree.Element("tendon", options)


def _give(file: Writing, coupling: Coupling, inverse: float | None = None) -> dict[str, str]:
    """The softness of a coupling. MuJoCo's mass is that of both sides, without the ratio between them.

    inverse: of this mass at qpos0; None: that of the coordinates.
    """
    compliance = 0.0 if coupling.compliance is None else float(coupling.compliance)
    if not compliance:
        return dict(HARD)
    damping = 0.0 if coupling.damping is None else float(coupling.damping)
    if inverse is not None:
        return file.softness(inverse, 1 / compliance, damping)
    places, size = file.mech.coordinate_places(), file.mech.num_coordinates
    factors = coupling.coefficients if isinstance(coupling, SumCoupling) else torch.ones(len(coupling.ends), dtype=torch.float64)
    inverse = 0.0
    for leads in (True, False):
        row = torch.zeros(size, dtype=torch.float64)
        for end, factor in zip(coupling.ends, factors, strict=True):
            if end.leads is leads:
                row[places[end.joint].start + end.coordinate] += factor
        inverse += float(row @ file.inverse_mass @ row)
    return file.softness(inverse, 1 / compliance, damping)

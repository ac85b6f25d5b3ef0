"""The two objects of the ContactNets recordings as mechanisms with unknowns: a cube and a two-link hinged object.

Nominal numbers are those that came with the recordings (Pfrommer, Halm and Posa 2020; Bianchini, Halm and Posa 2023). Corners are spheres:
with the half-side a and the corner radius r their centres are at (a − r)(±1, ±1, ±1), so faces stay where they are.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import NonlinearContact
from torchdojo.elements.element import unit
from torchdojo.elements.joints import Joint, Orbital, Revolute
from torchdojo.geometry.shapes import Box
from torchdojo.identification.parameters import Parameter, ParametricMechanism, Tie
from torchdojo.mechanism import Mechanism
from torchdojo.solver.options import SolverOptions

__all__ = ["cube", "cube_model", "elbow", "elbow_model"]

ELBOW_HALF_EXTENTS = (0.05, 0.025, 0.025)


def cube(
    half_side: float, mass: float, inertia: float, friction: float, timestep: float, gravity: float, kappa: float, **laws: Any
) -> Mechanism:
    """A free cube, body "cube", with a contact at each corner; lengths [m], mass [kg], inertia about every axis [kg·m²].

    Args:
        laws: further keywords of the contacts (`restitution`, `recovery_speed`, ...).
    """
    body = Body(mass, (inertia,) * 3, shape=Box((2 * half_side,) * 3))
    points, _ = body.shapes[0].contact_points()
    contacts = {f"corner{i}": NonlinearContact("cube", point=p, friction=friction, **laws) for i, p in enumerate(points, start=1)}
    return Mechanism({"cube": body}, (), contacts, timestep=timestep, gravity=(0.0, 0.0, -gravity), options=SolverOptions(kappa=kappa))


def elbow(
    friction: float,
    timestep: float,
    gravity: float,
    kappa: float,
    *,
    hinge: Mapping[str, Any] | None = None,
    bends: bool = False,
    **laws: Any,
) -> Mechanism:
    """Two boxes of 0.1 × 0.05 × 0.05 m and 0.37 kg, bodies "elbow_1" and "elbow_2", with a hinge; contacts at the 16 corners.

    Args:
        hinge: further keywords of the hinge (`damper`, `friction`). laws: of the contacts.
        bends: whether the axis of the hinge can tilt against link 1. The hinge then turns on a body "pin", of a gram, which a joint
            "bending" carries, with a spring of stiffness zero.
    """
    bodies, contacts = {}, {}
    for name in ("elbow_1", "elbow_2"):
        box = Box(tuple(2 * s for s in ELBOW_HALF_EXTENTS))
        bodies[name] = Body(0.37, (0.0006167,) * 3, shape=box)
        for i, point in enumerate(box.contact_points()[0], start=1):
            contacts[f"{name}_corner{i}"] = NonlinearContact(name, point=point, friction=friction, **laws)
    axis, in_1, in_2 = (0, 1, 0), (-0.035, 0.06, 0), (-0.035, 0, 0)
    joints: dict[str, Joint] = {}
    if bends:
        bodies["pin"] = Body(1e-3, (1e-6,) * 3)
        joints["bending"] = Orbital("elbow_1", "pin", axis=axis, parent_anchor=in_1)
        joints["hinge"] = Revolute("pin", "elbow_2", axis=axis, child_anchor=in_2, **(hinge or {}))
    else:
        joints["hinge"] = Revolute("elbow_1", "elbow_2", axis=axis, parent_anchor=in_1, child_anchor=in_2, **(hinge or {}))
    options = SolverOptions(kappa=kappa)
    return Mechanism(bodies, joints, contacts, timestep=timestep, gravity=(0.0, 0.0, -gravity), options=options)


def _inertia(*names: str) -> Tie:
    """Inertia tr(Σ) 1 − Σ of principal second moments Σ = ∫ρ diag(x², y², z²): any positive ones are those of some body. They are the
    first of these parameters that there is."""

    def tie(values: Mapping[str, Tensor], nominal: Tensor) -> Tensor:
        moments = next(values[name] for name in names if name in values)
        return torch.diag_embed(moments.sum(-1, keepdim=True) - moments)

    return tie


def _gravity(values: Mapping[str, Tensor], nominal: Tensor) -> Tensor:
    """The vector of its downward component and of what is horizontal in a world that is not level."""
    down = -values["gravity"][..., None] if "gravity" in values else nominal[2:]
    level = values["tilt"] if "tilt" in values else nominal[:2]
    batch = torch.broadcast_shapes(down.shape[:-1], level.shape[:-1])
    return torch.cat((level.expand(*batch, 2), down.expand(*batch, 1)), dim=-1)


def _select(
    known: Sequence[Parameter], ties: Mapping[str, tuple[Tie, tuple[str, ...]]], names: Sequence[str]
) -> tuple[list[Parameter], dict[str, Tie]]:
    """The named parameters, and the ties that read any of them."""
    unknown = [name for name in names if name not in {p.name for p in known}]
    if unknown:
        raise ValueError(f"no parameter {', '.join(unknown)}; there are: {', '.join(p.name for p in known)}")
    return [p for p in known if p.name in names], {path: tie for path, (tie, reads) in ties.items() if any(r in names for r in reads)}


def _given(nominal: Mapping[str, Any], start: Mapping[str, Any] | None) -> dict[str, Any]:
    """Nominal values and those that replace them.

    Raises:
        ValueError: a value without a parameter.
    """
    unknown = [name for name in start or {} if name not in nominal]
    if unknown:
        raise ValueError(f"no parameter {', '.join(unknown)}; there are: {', '.join(nominal)}")
    return {**nominal, **(start or {})}


def _vector(value: Any) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64)


#: Laws of contacts that are parameters, and where they start if they are fitted and nothing else is said.
CONTACT_LAWS = {"restitution": 1e-2, "stiffness": 1e5, "damping": 1e2}


def _contact_laws(given: Mapping[str, Any], parameters: Sequence[str], laws: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of the contacts: those laws that are fitted or have a value, and `laws`."""
    acting = {name: given[name] or start for name, start in CONTACT_LAWS.items() if name in parameters or given[name]}
    return {**acting, **laws}


def _contact_parameters(given: Mapping[str, Any], laws: Mapping[str, Any]) -> list[Parameter]:
    """Parameters that all contacts share, and gravity, which a world that is not level turns. Those on a bound start off it; all others
    where they are, as what a fit has found comes back this way."""
    known = [
        Parameter("friction", given["friction"], "contacts.*.friction", lower=0.0),
        Parameter("corner_radius", given["corner_radius"] or 1e-3, "contacts.*.radius", lower=0.0),
        Parameter("plane_height", given["plane_height"], "contacts.*.offset", scale=1e-2),
        Parameter("gravity", given["gravity"], lower=0.0),
        Parameter("tilt", given["tilt"], scale=0.1),
    ]
    for name, start in CONTACT_LAWS.items():
        field, upper = f"contacts.*.{name}" * (name in laws) or (), 1.0 if name == "restitution" else None
        value = laws.get(name) or start
        known.append(Parameter(name, 0.99 if value == upper else value, field, lower=0.0, upper=upper))
    return known


def cube_model(
    timestep: float,
    parameters: Sequence[str] = ("friction", "half_side", "corner_radius", "plane_height", "gravity"),
    *,
    start: Mapping[str, Any] | None = None,
    kappa: float = 1e-6,
    **laws: Any,
) -> ParametricMechanism:
    """The cube and those of its unknowns that are named.

    friction; half_side or corners (8, 3), centres of the contacts [m]; corner_radius [m] (alone, contacts keep their centres);
    plane_height [m]; gravity [m/s²], downward; tilt (2,) [m/s²], its horizontal part; restitution, or stiffness [N/m] and damping [N·s/m]
    of compliant contacts; mass [kg]; second_moments (3,) [kg·m²], of which the inertia is made; centre_of_mass (3,) [m], where it is in the
    frame of the faces, whose origin is what is recorded.

    Args:
        start: where to start, and values of unknowns that are not fitted, by name; default: nominal. laws: of the contacts.
    """
    nominal: dict[str, Any] = {
        "friction": 0.18,
        "half_side": 0.0524,
        "corner_radius": 0.0,
        "plane_height": 0.0,
        "gravity": 9.81,
        "tilt": (0.0, 0.0),
        "mass": 0.37,
        "second_moments": (0.00081 / 2,) * 3,
        "centre_of_mass": (0.0, 0.0, 0.0),
        "corners": None,
        **dict.fromkeys(CONTACT_LAWS, 0.0),
    }
    given = _given(nominal, start)
    laws = _contact_laws(given, parameters, laws)
    mech = cube(given["half_side"], given["mass"], 0.00081, given["friction"], timestep, given["gravity"], kappa, **laws)
    contacts = [cast(NonlinearContact, contact) for contact in mech.contacts.values()]
    rounded = 1 - given["corner_radius"] / given["half_side"]
    corners = rounded * torch.stack([c.point.detach() for c in contacts]) if given["corners"] is None else _vector(given["corners"])
    mech.bodies["cube"].inertia = _inertia("second_moments")({"second_moments": _vector(given["second_moments"])}, corners)
    mech.gravity = torch.tensor((*given["tilt"], -given["gravity"]), dtype=torch.float64)
    for contact, corner in zip(contacts, corners, strict=True):
        contact.radius, contact.offset = given["corner_radius"], given["plane_height"]
        contact.point = corner - _vector(given["centre_of_mass"])
    known = [
        *_contact_parameters(given, laws),
        Parameter("half_side", given["half_side"], lower=0.0),
        Parameter("corners", corners, scale=1e-2),
        Parameter("mass", given["mass"], "bodies.cube.mass", lower=0.0),
        Parameter("second_moments", given["second_moments"], lower=0.0),
        Parameter("centre_of_mass", given["centre_of_mass"], scale=1e-2),
    ]

    def value(values: Mapping[str, Tensor], name: str) -> Tensor:
        return values[name] if name in values else _vector(given[name])

    def points(values: Mapping[str, Tensor], start: Tensor) -> Tensor:
        """Centres of corners from the centre of mass; in the frame of the faces on the diagonals, where the side is fitted."""
        place = start + _vector(given["centre_of_mass"])
        if "half_side" in values:
            place = (values["half_side"] - value(values, "corner_radius"))[..., None] * start.sign()
        return place - value(values, "centre_of_mass")

    def one_of_corners(i: int, values: Mapping[str, Tensor], start: Tensor) -> Tensor:
        return values["corners"][..., i, :] - _vector(given["centre_of_mass"])

    def recorded_points(values: Mapping[str, Tensor]) -> Tensor:
        return -value(values, "centre_of_mass")[..., None, :]

    ties: dict[str, tuple[Tie, tuple[str, ...]]] = {
        "contacts.*.point": (points, ("half_side", "centre_of_mass")),
        "gravity": (_gravity, ("gravity", "tilt")),
        "bodies.cube.inertia": (_inertia("second_moments"), ("second_moments",)),
    }
    for i, name in enumerate(mech.contacts):
        ties[f"contacts.{name}.point"] = (functools.partial(one_of_corners, i), ("corners",))
    shifted = "centre_of_mass" in parameters or any(given["centre_of_mass"])
    return ParametricMechanism(mech, *_select(known, ties, parameters), recorded_points=recorded_points if shifted else None)


def _hinge(given: Mapping[str, Any], bends: bool, timestep: float) -> dict[str, tuple[Tie, tuple[str, ...]]]:
    """Fields of the joints of the hinged object as functions of the parameters of `elbow_model` and of those given, with what they read."""

    def known(values: Mapping[str, Tensor], name: str) -> Tensor:
        return values[name] if name in values else _vector(given[name])

    def parent(values: Mapping[str, Tensor], _: Tensor) -> Tensor:
        return known(values, "parent_anchor") - known(values, "centre_of_mass_1")

    def child(values: Mapping[str, Tensor], _: Tensor) -> Tensor:
        return known(values, "child_anchor") - known(values, "centre_of_mass_2")

    def along(values: Mapping[str, Tensor]) -> Tensor:
        """From the hinge's anchor to the point about which its axis tilts."""
        axis = unit(known(values, "axis"))
        offset = known(values, "bending_point") - (known(values, "parent_anchor") * axis).sum(-1)
        return offset[..., None] * axis

    def spring(values: Mapping[str, Tensor], _: Tensor) -> Tensor:
        stiffness = known(values, "bending_stiffness")
        return stiffness[..., None].expand(*stiffness.shape, 2)

    def damper(values: Mapping[str, Tensor], nominal: Tensor) -> Tensor:
        return known(values, "bending_damping")[..., None] + 0.5 * timestep * spring(values, nominal)

    ends: dict[str, tuple[Tie, tuple[str, ...]]] = {
        "joints.hinge.child_anchor": (child, ("child_anchor", "centre_of_mass_2")),
    }
    if not bends:
        return {**ends, "joints.hinge.parent_anchor": (parent, ("parent_anchor", "centre_of_mass_1"))}
    return {
        **ends,
        "joints.bending.spring": (spring, ("bending_stiffness",)),
        "joints.bending.damper": (damper, ("bending_stiffness", "bending_damping")),
        "joints.bending.parent_anchor": (
            lambda values, nominal: parent(values, nominal) + along(values),
            ("parent_anchor", "centre_of_mass_1", "bending_point", "axis"),
        ),
        "joints.hinge.parent_anchor": (lambda values, _: -along(values), ("parent_anchor", "bending_point", "axis")),
    }


def elbow_model(
    timestep: float,
    parameters: Sequence[str] = ("friction", "parent_anchor", "child_anchor", "hinge_damping", "gravity"),
    *,
    start: Mapping[str, Any] | None = None,
    kappa: float = 1e-6,
    **laws: Any,
) -> ParametricMechanism:
    """The hinged object and those of its unknowns that are named.

    friction; parent_anchor, child_anchor (3,) [m]: the hinge in the frames of the links; axis (3,), of any length; hinge_damping [N·m·s];
    hinge_friction [N·m]; bending_stiffness [N·m/rad] and bending_damping [N·m·s] of the hinge's axis against tilting, about the point of it
    that is bending_point [m] along it from the middle of link 1 (stiffness zero stands for an axis that cannot tilt); gravity [m/s²],
    downward; tilt (2,) [m/s²], its horizontal part; plane_height, corner_radius [m]; size: factor on both boxes; restitution, or stiffness
    [N/m] and damping [N·s/m] of compliant contacts; second_moments (3,) [kg·m²], of which the inertias of the links are made, or of each
    link second_moments_1, second_moments_2; mass_2 [kg] of the second link (of masses and inertias motion shows ratios only);
    centre_of_mass_1, centre_of_mass_2 (3,) [m], where they are in the frames of the boxes, whose origins are what is recorded.

    Tilting is fast for a step h: its spring acts at the middle of the step, as the spring k of a joint, which acts at the beginning, and
    h k/2 more damping do, and is stable for any k.

    Args:
        start: where to start, and values of unknowns that are not fitted, by name; default: nominal. laws: of the contacts.
    """
    nominal: dict[str, Any] = {
        "friction": 0.3,
        "parent_anchor": (-0.035, 0.06, 0.0),
        "child_anchor": (-0.035, 0.0, 0.0),
        "axis": (0.0, 1.0, 0.0),
        "hinge_damping": 0.0,
        "hinge_friction": 0.0,
        "bending_stiffness": 0.0,
        "bending_damping": 0.0,
        "bending_point": 0.06,
        "gravity": 9.81,
        "tilt": (0.0, 0.0),
        "plane_height": 0.0,
        "corner_radius": 0.0,
        "size": 1.0,
        "mass_2": 0.37,
        "second_moments": (0.0006167 / 2,) * 3,
        "second_moments_1": None,
        "second_moments_2": None,
        "centre_of_mass_1": (0.0, 0.0, 0.0),
        "centre_of_mass_2": (0.0, 0.0, 0.0),
        **dict.fromkeys(CONTACT_LAWS, 0.0),
    }
    given = _given(nominal, start)
    laws = _contact_laws(given, parameters, laws)
    damping, rubbing = (float(_vector(given[name]).sum()) for name in ("hinge_damping", "hinge_friction"))
    hinge: dict[str, Any] = {"damper": damping}
    if "hinge_friction" in parameters or rubbing:
        hinge["friction"] = rubbing or 1e-4
    bends = bool(given["bending_stiffness"]) or "bending_stiffness" in parameters
    if bends:
        given = {**given, "bending_stiffness": given["bending_stiffness"] or 50.0, "bending_damping": given["bending_damping"] or 1e-2}
    mech = elbow(given["friction"], timestep, given["gravity"], kappa, hinge=hinge, bends=bends, **laws)
    mech.gravity = torch.tensor((*given["tilt"], -given["gravity"]), dtype=torch.float64)
    for joint in mech.joints.values():
        if isinstance(joint, Revolute | Orbital):
            joint.axis = given["axis"]
    mech.bodies["elbow_2"].mass = given["mass_2"]
    for contact in (cast(NonlinearContact, contact) for contact in mech.contacts.values()):
        contact.offset, contact.radius = given["plane_height"], given["corner_radius"]
    known = [
        *_contact_parameters(given, laws),
        Parameter("parent_anchor", given["parent_anchor"], scale=1e-2),
        Parameter("child_anchor", given["child_anchor"], scale=1e-2),
        Parameter("axis", given["axis"], ["joints.hinge.axis", *(["joints.bending.axis"] if bends else ())], scale=0.1),
        Parameter("hinge_damping", [damping or 1e-5], "joints.hinge.damper", lower=0.0),
        Parameter("hinge_friction", [rubbing or 1e-4], "joints.hinge.friction" * ("friction" in hinge) or (), lower=0.0),
        Parameter("bending_stiffness", given["bending_stiffness"] or 1.0, lower=0.0),
        Parameter("bending_damping", given["bending_damping"] or 1.0, lower=0.0),
        Parameter("bending_point", given["bending_point"], scale=1e-2),
        Parameter("size", given["size"], lower=0.0),
        Parameter("mass_2", given["mass_2"], "bodies.elbow_2.mass", lower=0.0),
        Parameter("second_moments", given["second_moments"], lower=0.0),
    ]

    def points(link: str, values: Mapping[str, Tensor], start: Tensor) -> Tensor:
        names = "size", "corner_radius", f"centre_of_mass_{link}"
        size, radius, middle = (values[name] if name in values else _vector(given[name]) for name in names)
        corner = torch.tensor(ELBOW_HALF_EXTENTS, dtype=torch.float64) * start.sign()
        return size[..., None] * corner - radius[..., None] * corner.sign() - middle

    def recorded_points(values: Mapping[str, Tensor]) -> Tensor:
        middle = values["centre_of_mass_1"] if "centre_of_mass_1" in values else _vector(given["centre_of_mass_1"])
        return -middle[..., None, :]

    ties = _hinge(given, bends, timestep)
    for link in ("1", "2"):
        own, middle, body = f"second_moments_{link}", f"centre_of_mass_{link}", f"elbow_{link}"
        moments = given[own] or given["second_moments"]
        known += [Parameter(own, moments, lower=0.0), Parameter(middle, given[middle], scale=1e-2)]
        mech.bodies[body].inertia = _inertia(own)({own: _vector(moments)}, torch.empty(3, 3))
        ties[f"bodies.{body}.inertia"] = (_inertia(own, "second_moments"), (own, "second_moments"))
        for name in (name for name, contact in mech.contacts.items() if contact.body == body):
            ties[f"contacts.{name}.point"] = (functools.partial(points, link), ("size", "corner_radius", middle))
    for field, (tie, _) in ties.items():
        module, _, name = field.rpartition(".")
        if name != "inertia":
            setattr(mech.get_submodule(module), name, tie({}, getattr(mech.get_submodule(module), name).detach()))
    ties["gravity"] = _gravity, ("gravity", "tilt")
    shifted = "centre_of_mass_1" in parameters or any(given["centre_of_mass_1"])
    return ParametricMechanism(
        mech,
        *_select(known, ties, parameters),
        recorded_points=recorded_points if shifted else None,
        unrecorded=("bending",) if bends else (),
    )

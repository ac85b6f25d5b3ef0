"""Two hinged links with unknowns, as an example of a user's object: ``object: torchdojo.identification.objects.elbow:elbow_model``.

Nominal numbers came with the recordings (Pfrommer, Halm and Posa 2020; Bianchini, Halm and Posa 2023). Corners are spheres, as the cube's.
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
from torchdojo.identification.objects import parts
from torchdojo.identification.objects.parts import Ties, reader, vector
from torchdojo.identification.parameters import Parameter, ParametricMechanism
from torchdojo.mechanism import Mechanism
from torchdojo.solver.options import SolverOptions

__all__ = ["WIDTH", "elbow", "elbow_model"]

#: Length [m] with which position errors are compared: the length of a link.
WIDTH = 0.1

HALF_EXTENTS = (0.05, 0.025, 0.025)

NOMINAL: dict[str, Any] = {
    **parts.NOMINAL,
    "friction": 0.3,
    "parent_anchor": (-0.035, 0.06, 0.0),
    "child_anchor": (-0.035, 0.0, 0.0),
    "axis": (0.0, 1.0, 0.0),
    "hinge_damping": 0.0,
    "hinge_friction": 0.0,
    "bending_stiffness": 0.0,
    "bending_damping": 0.0,
    "bending_point": 0.06,
    "size": 1.0,
    "mass_2": 0.37,
    "second_moments": (0.0006167 / 2,) * 3,
    "second_moments_1": None,
    "second_moments_2": None,
    "centre_of_mass_1": (0.0, 0.0, 0.0),
    "centre_of_mass_2": (0.0, 0.0, 0.0),
}


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
        box = Box(tuple(2 * s for s in HALF_EXTENTS))
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


def elbow_model(
    timestep: float,
    parameters: Sequence[str] = ("friction", "parent_anchor", "child_anchor", "hinge_damping", "gravity"),
    *,
    start: Mapping[str, Any] | None = None,
    kappa: float = 1e-6,
    **laws: Any,
) -> ParametricMechanism:
    """The hinged object with the named unknowns.

    | name | meaning |
    | --- | --- |
    | friction | Coulomb coefficient of all corners |
    | parent_anchor, child_anchor (3,) | the hinge in the frames of the links [m] |
    | axis (3,) | of the hinge, of any length |
    | hinge_damping; hinge_friction | [N·m·s]; [N·m] |
    | bending_stiffness, bending_damping | of the hinge's axis against tilting [N·m/rad], [N·m·s]; stiffness 0: an axis that cannot tilt |
    | bending_point | distance along the axis from the middle of link 1 to the point about which the axis tilts [m] |
    | gravity; tilt (2,) | downward [m/s²]; its horizontal part [m/s²] |
    | plane_height, corner_radius | [m] |
    | size | factor on both boxes |
    | restitution; stiffness, damping | laws of the contacts; of compliant ones [N/m], [N·s/m] |
    | second_moments (3,) | principal second moments of both links [kg·m²], from which the inertias follow |
    | second_moments_1, second_moments_2 (3,) | the same for one link |
    | mass_2 | of link 2 [kg]; motion shows only ratios of masses and inertias |
    | centre_of_mass_1, centre_of_mass_2 (3,) | in the frames of the boxes, whose origins are recorded [m] |

    Tilting is fast compared with a step h, so its spring acts at the middle of the step. A joint's spring k, which acts at the beginning,
    and additional damping h k/2 have the same effect. Both together are stable for any k.

    Args:
        start: values by name, where a fit starts and for unknowns that are not fitted; default: nominal.
        laws: further keywords of the contacts.
    """
    numbers = parts.merged(NOMINAL, start)
    laws = parts.acting_laws(numbers, parameters, laws)
    bends = bool(numbers["bending_stiffness"]) or "bending_stiffness" in parameters
    if bends:
        numbers = {
            **numbers,
            "bending_stiffness": numbers["bending_stiffness"] or 50.0,
            "bending_damping": numbers["bending_damping"] or 1e-2,
        }
    damping, rubbing = (float(vector(numbers[name]).sum()) for name in ("hinge_damping", "hinge_friction"))
    hinge: dict[str, Any] = {"damper": damping}
    if "hinge_friction" in parameters or rubbing:
        hinge["friction"] = rubbing or 1e-4
    mech = elbow(numbers["friction"], timestep, numbers["gravity"], kappa, hinge=hinge, bends=bends, **laws)
    ties = {**_hinge_ties(numbers, bends, timestep), **_link_ties(numbers, mech), "gravity": (parts.tilted_gravity, ("gravity", "tilt"))}
    _set_given(mech, numbers, ties)

    def recorded_points(values: Mapping[str, Tensor]) -> Tensor:
        return -reader(numbers)(values, "centre_of_mass_1")[..., None, :]

    shifted = "centre_of_mass_1" in parameters or any(numbers["centre_of_mass_1"])
    return ParametricMechanism(
        mech,
        *parts.choose(_unknowns(numbers, laws, hinge, bends), ties, parameters),
        recorded_points=recorded_points if shifted else None,
        unrecorded=("bending",) if bends else (),
    )


def _unknowns(given: Mapping[str, Any], laws: Mapping[str, Any], hinge: Mapping[str, Any], bends: bool) -> list[Parameter]:
    """All parameters, where the given values have them."""
    unknowns = [
        *parts.contact_parameters(given, laws),
        Parameter("parent_anchor", given["parent_anchor"], scale=1e-2),
        Parameter("child_anchor", given["child_anchor"], scale=1e-2),
        Parameter("axis", given["axis"], ["joints.hinge.axis", *(["joints.bending.axis"] if bends else ())], scale=0.1),
        Parameter("hinge_damping", [hinge["damper"] or 1e-5], "joints.hinge.damper", lower=0.0),
        Parameter("hinge_friction", [hinge.get("friction", 1e-4)], "joints.hinge.friction" * ("friction" in hinge) or (), lower=0.0),
        Parameter("bending_stiffness", given["bending_stiffness"] or 1.0, lower=0.0),
        Parameter("bending_damping", given["bending_damping"] or 1.0, lower=0.0),
        Parameter("bending_point", given["bending_point"], scale=1e-2),
        Parameter("size", given["size"], lower=0.0),
        Parameter("mass_2", given["mass_2"], "bodies.elbow_2.mass", lower=0.0),
        Parameter("second_moments", given["second_moments"], lower=0.0),
    ]
    for link in ("1", "2"):
        moments, middle = f"second_moments_{link}", f"centre_of_mass_{link}"
        unknowns.append(Parameter(moments, given[moments] or given["second_moments"], lower=0.0))
        unknowns.append(Parameter(middle, given[middle], scale=1e-2))
    return unknowns


def _set_given(mech: Mechanism, given: Mapping[str, Any], ties: Ties) -> None:
    """Set the fields of a mechanism to the given values."""
    mech.gravity = torch.tensor((*given["tilt"], -given["gravity"]), dtype=torch.float64)
    mech.bodies["elbow_2"].mass = given["mass_2"]
    for joint in mech.joints.values():
        if isinstance(joint, Revolute | Orbital):
            joint.axis = given["axis"]
    for contact in (cast(NonlinearContact, contact) for contact in mech.contacts.values()):
        contact.offset, contact.radius = given["plane_height"], given["corner_radius"]
    for link in ("1", "2"):
        moments = vector(given[f"second_moments_{link}"] or given["second_moments"])
        mech.bodies[f"elbow_{link}"].inertia = parts.inertia_from("moments")({"moments": moments}, moments)
    for field, (tie, _) in ties.items():
        module, _, name = field.rpartition(".")
        if module and name != "inertia":
            setattr(mech.get_submodule(module), name, tie({}, getattr(mech.get_submodule(module), name).detach()))


def _hinge_ties(given: Mapping[str, Any], bends: bool, timestep: float) -> Ties:
    """Fields of the joints that follow from several parameters."""
    value = reader(given)

    def parent(values: Mapping[str, Tensor], _: Tensor) -> Tensor:
        return value(values, "parent_anchor") - value(values, "centre_of_mass_1")

    def child(values: Mapping[str, Tensor], _: Tensor) -> Tensor:
        return value(values, "child_anchor") - value(values, "centre_of_mass_2")

    def along(values: Mapping[str, Tensor]) -> Tensor:
        """From the hinge's anchor to the point about which its axis tilts."""
        axis = unit(value(values, "axis"))
        offset = value(values, "bending_point") - (value(values, "parent_anchor") * axis).sum(-1)
        return offset[..., None] * axis

    def spring(values: Mapping[str, Tensor], _: Tensor) -> Tensor:
        stiffness = value(values, "bending_stiffness")
        return stiffness[..., None].expand(*stiffness.shape, 2)

    def damper(values: Mapping[str, Tensor], nominal: Tensor) -> Tensor:
        return value(values, "bending_damping")[..., None] + 0.5 * timestep * spring(values, nominal)

    ends: Ties = {"joints.hinge.child_anchor": (child, ("child_anchor", "centre_of_mass_2"))}
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


def _link_ties(given: Mapping[str, Any], mech: Mechanism) -> Ties:
    """Inertias and contact points of the links."""
    value = reader(given)

    def points(middle: str, values: Mapping[str, Tensor], start: Tensor) -> Tensor:
        corner = torch.tensor(HALF_EXTENTS, dtype=torch.float64) * start.sign()
        size, radius = value(values, "size"), value(values, "corner_radius")
        return size[..., None] * corner - radius[..., None] * corner.sign() - value(values, middle)

    ties: Ties = {}
    for link in ("1", "2"):
        moments, middle, body = f"second_moments_{link}", f"centre_of_mass_{link}", f"elbow_{link}"
        ties[f"bodies.{body}.inertia"] = (parts.inertia_from(moments, "second_moments"), (moments, "second_moments"))
        for name in (name for name, contact in mech.contacts.items() if contact.body == body):
            ties[f"contacts.{name}.point"] = (functools.partial(points, middle), ("size", "corner_radius", middle))
    return ties

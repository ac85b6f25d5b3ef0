"""A thrown cube with unknowns, as an example of a user's object: ``object: torchdojo.identification.objects.cube:cube_model``.

Nominal numbers came with the recordings of ContactNets (Pfrommer, Halm and Posa 2020). Corners are spheres: with the half-side a and the
corner radius r, their centers are at (a − r)(±1, ±1, ±1), so that the faces stay in place.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import NonlinearContact
from torchdojo.geometry.shapes import Box
from torchdojo.identification.objects import parts
from torchdojo.identification.objects.parts import Ties, reader, vector
from torchdojo.identification.parameters import Parameter, ParametricMechanism
from torchdojo.identification.recordings import DataError, Recordings
from torchdojo.mechanism import Mechanism
from torchdojo.solver.options import SolverOptions

__all__ = ["WIDTH", "check_heights", "check_recordings", "cube", "cube_model"]

#: Length [m] that position errors are compared with.
WIDTH = 0.1048

NOMINAL: dict[str, Any] = {
    **parts.NOMINAL,
    "friction": 0.18,
    "half_side": 0.0524,
    "mass": 0.37,
    "second_moments": (0.00081 / 2,) * 3,
    "centre_of_mass": (0.0, 0.0, 0.0),
    "corners": None,
}


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


def cube_model(
    timestep: float,
    parameters: Sequence[str] = ("friction", "half_side", "corner_radius", "plane_height", "gravity"),
    *,
    start: Mapping[str, Any] | None = None,
    kappa: float = 1e-6,
    **laws: Any,
) -> ParametricMechanism:
    """The cube with the named unknowns.

    | name | meaning |
    | --- | --- |
    | friction | Coulomb coefficient of all corners |
    | half_side | half the edge [m] |
    | corners (8, 3) | centers of the contacts in the frame of the faces [m], in the place of half_side |
    | corner_radius | [m]; alone, the contacts keep their centers |
    | plane_height | [m] |
    | gravity; tilt (2,) | downward [m/s²]; its horizontal part [m/s²] |
    | restitution; stiffness, damping | laws of the contacts; of compliant ones [N/m], [N·s/m] |
    | mass | [kg] |
    | second_moments (3,) | principal second moments [kg·m²], from which the inertia follows |
    | centre_of_mass (3,) | in the frame of the faces, whose origin is recorded [m] |

    Args:
        start: values by name, where a fit starts and for unknowns that are not fitted; default: nominal.
        laws: further keywords of the contacts.
    """
    numbers = parts.merged(NOMINAL, start)
    laws = parts.acting_laws(numbers, parameters, laws)
    mech = cube(numbers["half_side"], numbers["mass"], 0.00081, numbers["friction"], timestep, numbers["gravity"], kappa, **laws)
    contacts = [cast(NonlinearContact, contact) for contact in mech.contacts.values()]
    rounded = 1 - numbers["corner_radius"] / numbers["half_side"]
    corners = rounded * torch.stack([c.point.detach() for c in contacts]) if numbers["corners"] is None else vector(numbers["corners"])
    mech.bodies["cube"].inertia = parts.inertia_from("second_moments")({"second_moments": vector(numbers["second_moments"])}, corners)
    mech.gravity = torch.tensor((*numbers["tilt"], -numbers["gravity"]), dtype=torch.float64)
    for contact, corner in zip(contacts, corners, strict=True):
        contact.radius, contact.offset = numbers["corner_radius"], numbers["plane_height"]
        contact.point = corner - vector(numbers["centre_of_mass"])
    unknowns = [
        *parts.contact_parameters(numbers, laws),
        Parameter("half_side", numbers["half_side"], lower=0.0),
        Parameter("corners", corners, scale=1e-2),
        Parameter("mass", numbers["mass"], "bodies.cube.mass", lower=0.0),
        Parameter("second_moments", numbers["second_moments"], lower=0.0),
        Parameter("centre_of_mass", numbers["centre_of_mass"], scale=1e-2),
    ]
    value = reader(numbers)

    def recorded_points(values: Mapping[str, Tensor]) -> Tensor:
        return -value(values, "centre_of_mass")[..., None, :]

    shifted = "centre_of_mass" in parameters or any(numbers["centre_of_mass"])
    ties = _ties(list(mech.contacts), numbers)
    return ParametricMechanism(mech, *parts.choose(unknowns, ties, parameters), recorded_points=recorded_points if shifted else None)


def _ties(contacts: Sequence[str], given: Mapping[str, Any]) -> Ties:
    """Fields that follow from several parameters."""
    value = reader(given)

    def points(values: Mapping[str, Tensor], start: Tensor) -> Tensor:
        """Centers of the contacts from the center of mass; on the diagonals of the faces where the side is fitted."""
        place = start + vector(given["centre_of_mass"])
        if "half_side" in values:
            place = (values["half_side"] - value(values, "corner_radius"))[..., None] * start.sign()
        return place - value(values, "centre_of_mass")

    def one_of_corners(i: int, values: Mapping[str, Tensor], start: Tensor) -> Tensor:
        return values["corners"][..., i, :] - vector(given["centre_of_mass"])

    return {
        "contacts.*.point": (points, ("half_side", "centre_of_mass")),
        "gravity": (parts.tilted_gravity, ("gravity", "tilt")),
        "bodies.cube.inertia": (parts.inertia_from("second_moments"), ("second_moments",)),
        **{f"contacts.{name}.point": (functools.partial(one_of_corners, i), ("corners",)) for i, name in enumerate(contacts)},
    }


def check_recordings(recordings: Recordings, label: str) -> None:
    """Refuse recordings of another cube, or in other units (`check_heights`)."""
    check_heights(recordings, recordings.numbers.get("half_side", NOMINAL["half_side"]), label)


def check_heights(recordings: Recordings, half_side: float, label: str = "data") -> None:
    """A cube at rest has its center half a side (on a corner √3 of it) above the board.

    Raises:
        DataError: the cubes end higher or lower: other units, or another cube.
    """
    height = float(recordings.bodies()[recordings.offsets[1:] - 1, 0, 2].median())
    if not 0.5 * half_side < height < 2.0 * half_side:
        guess = "; are positions in half-sides? multiply positions and velocities by half_side" if abs(height - 1) < 0.2 else ""
        raise DataError(
            f"{label}: tosses end with the cube's centre at a median height of {height:.4g} m, but half_side is {half_side:.4g} m{guess}"
        )

"""Numbers that no mechanism can have: they are refused where a field is assigned, and found here where one is written in place.

`parameter.data.sub_(step)` of an optimizer leaves a mass of −1 without an assignment that could refuse it. A step with such a number has no
meaning, so the environments that have it are invalid. The inequality of the principal moments is left out: an inertia that crosses it a
little still has a motion, and optimizers come back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from torchdojo.dynamics.system import Group, System
from torchdojo.elements.contacts import Contact
from torchdojo.elements.coupling import Coupling
from torchdojo.elements.joint_cones import JointElement
from torchdojo.elements.joints import StandardJoint
from torchdojo.elements.servo import SERVO
from torchdojo.elements.tendon import Tendon
from torchdojo.state.unknowns import FIRST_ELEMENT

__all__ = ["RANGES", "positive_definite", "ranges", "unphysical", "unphysical_environments"]

DIFFERENCE = 1e-3  # below zero: differences of a derivative at zero go there, and steps exist
POSITIVE, NOT_NEGATIVE = (torch.finfo(torch.float64).tiny, torch.inf), (-DIFFERENCE, torch.inf)

#: Kind of an element -> field -> least and largest value. None has the fields of the mechanism and of its bodies.
RANGES: dict[type | None, dict[str, tuple[float, float]]] = {
    None: {"timestep": POSITIVE, "mass": POSITIVE},
    StandardJoint: dict.fromkeys(("spring", "damper", "armature", "damper_curve", *SERVO), NOT_NEGATIVE),
    JointElement: dict.fromkeys(("friction", "velocity_limits", *SERVO), NOT_NEGATIVE),
    Coupling: {"active": (-DIFFERENCE, 1.0 + DIFFERENCE), "compliance": NOT_NEGATIVE, "damping": NOT_NEGATIVE},
    Tendon: dict.fromkeys(("stiffness", "damping", "limit_stiffness", "limit_time", "friction", "armature", "damping_curve"), NOT_NEGATIVE),
    Contact: {
        **dict.fromkeys(("radius", "other_radius", "friction", "damping", "torsional_friction", "rolling_friction"), NOT_NEGATIVE),
        **dict.fromkeys((f"{other}{name}" for other in ("", "other_") for name in ("length", "size")), POSITIVE),
        **dict.fromkeys(("stiffness", "recovery_speed"), POSITIVE),
        "restitution": (-DIFFERENCE, 1.0 + DIFFERENCE),
    },
}


def ranges(group: Group) -> dict[str, tuple[float, float]]:
    """Field -> least and largest value, of the elements of a group."""
    kinds = [kind for kind in RANGES if kind is not None and issubclass(group.cls, kind)]
    return RANGES[kinds[0]] if kinds else {}


def positive_definite(inertia: Tensor) -> Tensor:
    """Whether matrices (..., 3, 3) have positive leading minors, (...,)."""
    a, b, c, d, e, f = (inertia[..., i, j] for i, j in ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)))
    minor = a * d - b * b
    return (a > 0) & (minor > 0) & (f * minor > e * (a * e - b * c) - c * (b * e - c * d))


def _checked(system: System, parameters: Sequence[Tensor]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Name, values (N or 1, ...) and whether they are possible, of all stacked parameters with a range and of the inertias."""
    timestep, _, mass, inertia = parameters[:FIRST_ELEMENT]
    with_range = [("timestep", timestep, RANGES[None]["timestep"]), ("mass", mass, RANGES[None]["mass"])]
    for group, values in zip(system.groups, system.named_parameters(parameters), strict=True):
        allowed = ranges(group)
        with_range += [(f"{group.cls.__name__}.{name}", value, allowed[name]) for name, value in values.items() if name in allowed]
    yield "inertia", inertia, positive_definite(inertia)
    for name, value, (least, largest) in with_range:
        yield name, value, (value >= least) & (value <= largest)


def unphysical_environments(system: System, parameters: Sequence[Tensor], count: int) -> Tensor:
    """Which of `count` environments have numbers that no mechanism can have, (count,), among flat parameters (N or 1, ...)."""
    bad = torch.zeros(count, dtype=torch.bool, device=parameters[0].device)
    for _, value, possible in _checked(system, parameters):
        if not bool(possible.all()):
            bad |= ~possible.reshape(len(value), -1).all(-1)
    return bad


def unphysical(system: System, parameters: Sequence[Tensor], environment: int) -> list[str]:
    """Numbers of an environment that no mechanism can have, in words: "mass of 'rod' is -1"."""
    notes = []
    for name, value, possible in _checked(system, parameters):
        row = min(environment, len(value) - 1)
        for place in (~possible[row].reshape(-1)).nonzero().flatten().tolist()[:1]:
            values = value[row].flatten(0) if name != "inertia" else value[row, place]
            shown = values.tolist() if name == "inertia" else float(values[place])
            body = f" of body {system.body_names[place]!r}" if name in ("mass", "inertia") else ""
            notes.append(f"{name}{body} is {shown}")
    return notes

"""Parts of the example objects: values given and fitted, laws of contacts, inertias, gravity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchdojo.identification.parameters import Parameter, Tie
from torchdojo.parameters import broadcast_shapes

#: Field of a mechanism -> the tie that sets it, and the names of the parameters that the tie reads.
Ties = dict[str, tuple[Tie, tuple[str, ...]]]

#: Laws of contacts that are parameters, and the values at which a fit starts where none is given.
CONTACT_LAWS = {"restitution": 1e-2, "stiffness": 1e5, "damping": 1e2}

#: Nominal values that the objects share: contacts without those laws, on level ground.
NOMINAL = {"gravity": 9.81, "tilt": (0.0, 0.0), "plane_height": 0.0, "corner_radius": 0.0, **dict.fromkeys(CONTACT_LAWS, 0.0)}


def vector(value: Any) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64)


def merged(nominal: Mapping[str, Any], start: Mapping[str, Any] | None) -> dict[str, Any]:
    """Nominal values, replaced where `start` has others.

    Raises:
        ValueError: a value without a parameter.
    """
    _refuse_unknown(start or {}, list(nominal))
    return {**nominal, **(start or {})}


def reader(given: Mapping[str, Any]) -> Callable[[Mapping[str, Tensor], str], Tensor]:
    """A function (fitted values, name) -> the fitted value, or the given one of a parameter that is not fitted."""
    return lambda values, name: values[name] if name in values else vector(given[name])


def choose(parameters: Sequence[Parameter], ties: Ties, names: Sequence[str]) -> tuple[list[Parameter], dict[str, Tie]]:
    """The named parameters, in the order of `parameters`, and the ties that read any of them.

    Raises:
        ValueError: a name without a parameter.
    """
    _refuse_unknown(names, [p.name for p in parameters])
    return [p for p in parameters if p.name in names], {path: tie for path, (tie, reads) in ties.items() if any(r in names for r in reads)}


def _refuse_unknown(names: Mapping[str, Any] | Sequence[str], allowed: Sequence[str]) -> None:
    unknown = [name for name in names if name not in allowed]
    if unknown:
        raise ValueError(f"no parameter {', '.join(unknown)}; there are: {', '.join(allowed)}")


def inertia_from(*names: str) -> Tie:
    """Inertia tr(Σ) 1 − Σ of principal second moments Σ = ∫ρ diag(x², y², z²). Any positive moments belong to some body.

    Args:
        names: parameters that hold moments; the first one that is fitted counts.
    """

    def tie(values: Mapping[str, Tensor], nominal: Tensor) -> Tensor:
        moments = next(values[name] for name in names if name in values)
        return torch.diag_embed(moments.sum(-1, keepdim=True) - moments)

    return tie


def tilted_gravity(values: Mapping[str, Tensor], nominal: Tensor) -> Tensor:
    """Vector of gravity from its downward component and its horizontal part, which a world that is not level has."""
    down = -values["gravity"][..., None] if "gravity" in values else nominal[2:]
    level = values["tilt"] if "tilt" in values else nominal[:2]
    batch = broadcast_shapes(down.shape[:-1], level.shape[:-1])
    return torch.cat((level.expand(*batch, 2), down.expand(*batch, 1)), dim=-1)


def acting_laws(given: Mapping[str, Any], parameters: Sequence[str], laws: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of the contacts: the laws that are fitted or have a value, and `laws`."""
    acting = {name: given[name] or start for name, start in CONTACT_LAWS.items() if name in parameters or given[name]}
    return {**acting, **laws}


def contact_parameters(given: Mapping[str, Any], laws: Mapping[str, Any]) -> list[Parameter]:
    """Parameters that all contacts share, and gravity with its tilt.

    Values on a bound start off it. All others start at the given value, since fitted values are given again this way.
    """
    parameters = [
        Parameter("friction", given["friction"], "contacts.*.friction", lower=0.0),
        Parameter("corner_radius", given["corner_radius"] or 1e-3, "contacts.*.radius", lower=0.0),
        Parameter("plane_height", given["plane_height"], "contacts.*.offset", scale=1e-2),
        Parameter("gravity", given["gravity"], lower=0.0),
        Parameter("tilt", given["tilt"], scale=0.1),
    ]
    for name, start in CONTACT_LAWS.items():
        field, upper = f"contacts.*.{name}" * (name in laws) or (), 1.0 if name == "restitution" else None
        value = laws.get(name) or start
        parameters.append(Parameter(name, 0.99 if value == upper else value, field, lower=0.0, upper=upper))
    return parameters

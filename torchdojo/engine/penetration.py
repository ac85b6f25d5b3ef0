"""A warning about states that start with contacts inside a surface, given once, where a state enters.

The step solves for gaps that are not negative at its end, but undoes an overlap no faster than `SolverOptions.depenetration_speed`. A body
that starts a depth d inside the ground leaves it at d/h, at most at this speed. With None, a cube of 0.5 m, 50 mm deep at h = 0.01 s, flies
off at 5 m/s and 1.25 m high. Such a state is nearly always a mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.engine.backends import Backends
from torchdojo.engine.near_gaps import overlaps, terms_at
from torchdojo.engine.observables import distances, mapped
from torchdojo.native.tables import StateMap
from torchdojo.parameters import transforming, warn_user
from torchdojo.solver.options import SolverOptions
from torchdojo.state.layout import STATE_SIZE

__all__ = ["Penetration", "deepest_penetration", "warn_of_ground", "warn_of_penetration"]

TOLERANCE = 1e-6  # [m]; far above the rounding of positions of several meters and the gaps of resting contacts


class Penetration(NamedTuple):
    """Name of a contact, the depth of its point inside the surface [m], and the number of the environment in the flattened batch."""

    contact: str
    depth: float
    environment: int


@torch.no_grad()
def deepest_penetration(backends: Backends, options: SolverOptions, z: Tensor) -> Penetration | None:
    """The contact deepest inside its surface in the states z (..., 13 nb), or None where none is deeper than 1e-6 m.

    Distances that are not finite belong to states or numbers that the step refuses, and are left out here.
    """
    contacts = backends.structure.contacts
    if not contacts or not z.numel():
        return None
    gaps = _gaps(backends, options, z)
    least, place = gaps.flatten().nan_to_num(torch.inf, neginf=torch.inf).min(0)
    if not float(least) < -TOLERANCE:
        return None
    environment, number = divmod(int(place), gaps.shape[-1])
    if number >= len(contacts):
        number = backends.near[number - len(contacts)].contact
    return Penetration(list(contacts)[number], -float(least), environment)


def _gaps(backends: Backends, options: SolverOptions, z: Tensor) -> Tensor:
    """Gaps (..., contacts) [m], and those of pairs of shapes behind them, where the kernel searches these.

    A robot with self-collision has thousands of slots for its pairs. They stay empty here: to pack their terms for each environment took
    as long as the rollout.
    """
    rows = z.reshape(-1, z.shape[-1])
    if backends.near and z.dtype == torch.float64 and rows.shape[1] == STATE_SIZE * backends.structure.num_bodies:
        between = overlaps(backends, options, rows)
        if between is not None:
            plain = mapped(backends, backends.map_parameters(options), StateMap.DISTANCES, z)
            return torch.cat((plain, between.reshape(*z.shape[:-1], -1).expand(*plain.shape[:-1], -1)), dim=-1)
    backends.forget_terms_of_others(z.shape[:-1])
    with terms_at(backends, options, z, always=True):
        return distances(backends, options, z)


def warn_of_penetration(backends: Backends, options: SolverOptions, z: Tensor) -> bool:
    """Warn if contacts are inside a surface in the states z, and return whether they are. Transforms hide values: False there."""
    if torch.compiler.is_compiling() or transforming():
        return False
    inside = deepest_penetration(backends, options, z)
    if inside is None:
        return False
    where = f" of environment {inside.environment}" if z.ndim > 1 else ""
    at_once = inside.depth / float(backends.structure.timestep.detach().max())
    speed = min(at_once, options.depenetration_speed or at_once)
    steps = "the first step pushes" if speed == at_once else f"about {round(at_once / speed)} steps push"
    warn_user(
        f"contact {inside.contact!r}{where} starts {1000 * inside.depth:.3g} mm inside its surface, deepest of all: {steps} it out, at "
        f"about {speed:.2g} m/s, and the body flies on. Start higher: mech.place(z) puts it onto the ground"
    )
    return True


def warn_of_ground(backends: Backends, options: SolverOptions, z: Tensor, poses: Sequence[str | int]) -> bool:
    """Warn if a state of zero coordinates is inside a surface, with the remedy, and return whether it is."""
    if torch.compiler.is_compiling() or transforming():
        return False
    inside = deepest_penetration(backends, options, z)
    if inside is None:
        return False
    remedy = f"pose={poses[0]!r}, on='ground'" if poses else "on='ground'"
    warn_user(
        f"initial_state() has all coordinates zero, and contact {inside.contact!r} {1000 * inside.depth:.3g} mm inside its surface; "
        f"mech.initial_state({remedy}) stands on the ground, and mech.place(z) puts any state there"
    )
    return True

"""A warning about states that start with contacts inside a surface, given once, where a state enters.

The step solves for gaps that are not negative at its end, so it undoes any overlap at once. A body that starts a depth d inside the ground
leaves it at d/h. A cube of 0.5 m, 50 mm deep at h = 0.01 s, flies off at 5 m/s and 1.25 m high. Such a state is nearly always a mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from torchdojo.elements.contacts import Contact
from torchdojo.elements.element import Pose
from torchdojo.engine.backends import Backends
from torchdojo.parameters import transforming, warn_user
from torchdojo.solver.options import SolverOptions
from torchdojo.state.layout import split_state, with_world

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

    The distances equal `mech.distances`, but all contacts of a kind are computed together, in a tenth of the time.
    """
    contacts = backends.structure.contacts
    if not contacts or not z.numel():
        return None
    system = backends.system_on_device()
    x, q = with_world(split_state(z.detach()).pose)
    deepest: Penetration | None = None
    names = {id(contact): name for name, contact in contacts.items()}
    for group, element in zip(system.groups, system.bind_elements(backends.parameters(options)), strict=True):
        if not isinstance(group.template, Contact):
            continue
        poses = [Pose(x[..., place, :], q[..., place, :]) for place in group.body_index.T]
        distances = cast(Contact, element).distance(*poses)
        least, place = distances.flatten().min(0)
        depth = -float(least)
        if depth > (TOLERANCE if deepest is None else deepest.depth):
            environment, number = divmod(int(place), distances.shape[-1])
            deepest = Penetration(names[id(group.members[number])], depth, environment)
    return deepest


def warn_of_penetration(backends: Backends, options: SolverOptions, z: Tensor) -> bool:
    """Warn if contacts are inside a surface in the states z, and return whether they are. Transforms hide values: False there."""
    if torch.compiler.is_compiling() or transforming():
        return False
    inside = deepest_penetration(backends, options, z)
    if inside is None:
        return False
    where = f" of environment {inside.environment}" if z.ndim > 1 else ""
    speed = inside.depth / float(backends.structure.timestep.detach().max())
    warn_user(
        f"contact {inside.contact!r}{where} starts {1000 * inside.depth:.3g} mm inside its surface, deepest of all: the first step pushes "
        f"it out, at about {speed:.2g} m/s, and the body flies on. Start higher: mech.distances(z) says by how much"
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

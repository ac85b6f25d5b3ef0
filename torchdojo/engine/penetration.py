"""States that start with contacts inside a surface: found once, where a state enters, and told to the user.

The step solves for gaps that are not negative at its end, so it undoes any overlap at once: a body that starts a depth d inside the ground
leaves it at d/h. A cube of 0.5 m, 50 mm deep at h = 0.01 s, flies off at 5 m/s and 1.25 m high. Such a state is nearly always a mistake.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.dynamics.integrator import split_state
from torchdojo.elements.contacts import Contact
from torchdojo.elements.element import Pose
from torchdojo.gradients.implicit import transforming

if TYPE_CHECKING:
    from torchdojo.mechanism import Mechanism

__all__ = ["Penetration", "deepest_penetration", "warn_of_penetration"]

TOLERANCE = 1e-6  # [m]; rounding of positions of metres and the gaps of resting contacts are far below


class Penetration(NamedTuple):
    """Name of a contact, the depth of its point inside the surface [m], and the number of the environment in the flattened batch."""

    contact: str
    depth: float
    environment: int


@torch.no_grad()
def deepest_penetration(mech: Mechanism, z: Tensor) -> Penetration | None:
    """The contact deepest inside its surface in the states z (..., 13 nb), or None where none is deeper than 1e-6 m.

    The numbers are those of `mech.distances`, computed for all contacts of a kind together: that takes a tenth of the time.
    """
    if not mech.contacts or not z.numel():
        return None
    native = mech._native()
    parameters = mech._stacked() if native is None else mech._known(native).tensors
    system = mech._settings().system
    pose = split_state(z.detach()).pose
    batch = pose.x.shape[:-2]
    x = torch.cat((pose.x, z.new_zeros(*batch, 1, 3)), dim=-2)
    q = torch.cat((pose.q, quat.identity(z.dtype, z.device).expand(*batch, 1, 4)), dim=-2)
    deepest: Penetration | None = None
    names = {id(contact): name for name, contact in mech.contacts.items()}
    for group, element in zip(system.groups, system.bind_elements(parameters), strict=True):
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


def warn_of_penetration(mech: Mechanism, z: Tensor, stacklevel: int = 3) -> None:
    """Warn, the first time for this mechanism, if contacts are inside a surface in the states z. Nothing where values cannot be read."""
    if mech.warned_of_penetration or torch.compiler.is_compiling() or transforming():
        return
    found = deepest_penetration(mech, z)
    if found is None:
        return
    mech.warned_of_penetration = True
    where = f" of environment {found.environment}" if z.ndim > 1 else ""
    speed = found.depth / float(mech.timestep.detach().max())
    warnings.warn(
        f"contact {found.contact!r}{where} starts {1000 * found.depth:.3g} mm inside its surface, deepest of all: the first step pushes it "
        f"out, at about {speed:.2g} m/s, and the body flies on. Start higher: mech.distances(z) says by how much",
        stacklevel=stacklevel,
    )

"""Pairs of bodies whose contacts stay apart in all sampled configurations: contacts that only cost time."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchdojo.elements.joints import StandardJoint
from torchdojo.engine import minimal_steps, observables
from torchdojo.engine.backends import Backends
from torchdojo.engine.contact_report import pair_of
from torchdojo.engine.near_gaps import Cores
from torchdojo.engine.near_set import near_pairs
from torchdojo.geometry.near_terms import REACH
from torchdojo.parameters import PhysicalModule
from torchdojo.solver.options import SolverOptions
from torchdojo.structure import Structure

__all__ = ["configurations", "never_touching", "sampled_parts"]

AT_ONCE = 2**20  # distances that are computed at once: 8 MB
CORES_AT_ONCE = 64  # configurations, after which shapes that have met are left out


def never_touching(backends: Backends, options: SolverOptions, samples: Any, margin: Any, seed: int) -> list[tuple[str, str]]:
    """`Mechanism.never_touching`."""
    structure = backends.structure
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise ValueError(f"never_touching: got samples={samples!r}; allowed: whole numbers of 1 or more")
    if not isinstance(margin, (int, float)) or not 0 <= margin < math.inf:
        raise ValueError(f"never_touching: got margin={margin!r}; allowed: a distance of 0 or more [m]")
    part = sampled_parts(structure)
    order = {name: i for i, name in enumerate(structure.bodies)}
    places: dict[tuple[str, str], list[int]] = {}
    for i, contact in enumerate(structure.named_contacts().values()):
        if part[contact.body] == part[contact.other]:
            places.setdefault(pair_of(contact, order), []).append(i)
    if not places:
        return []
    generator = torch.Generator().manual_seed(seed)
    nearest = torch.full((len(structure.contacts),), torch.inf, dtype=torch.float64)
    near, numbers = near_pairs(structure), {id(contact): i for i, contact in enumerate(structure.named_contacts().values())}
    cores, apart = Cores(near), torch.arange(len(near))  # numbers of the pairs of cores that have not met yet
    firsts = torch.tensor([numbers[id(pair.slots[0])] for pair in near], dtype=torch.long)
    slots = torch.tensor([numbers[id(slot)] for pair in near for slot in pair.slots], dtype=torch.long)
    least, reach = torch.full((len(near),), torch.inf, dtype=torch.float64), max(float(margin), REACH)
    left, batched = samples, _batch_dimensions(structure)
    with torch.no_grad():
        while left:
            count = min(left, max(1, AT_ONCE // len(structure.contacts)), CORES_AT_ONCE if near else left)
            q = configurations(structure, count, generator)
            z = minimal_steps.to_maximal(backends, options, q.reshape(count, *(1,) * batched, -1), None)
            if len(slots) < len(structure.contacts):
                distances = observables.distances(backends, options, z)
                nearest = torch.minimum(nearest, distances.flatten(0, -2).amin(0).cpu())
            if len(apart):
                least[apart] = torch.minimum(least[apart], cores.gaps(z.flatten(0, -2).cpu(), reach, apart).amin(0))
                apart = apart[least[apart] > reach]
            left -= count
    # Near contacts act within their reach; the distances of slots say nothing.
    nearest[slots] = torch.inf
    nearest[firsts] = torch.where(least > reach, least, -torch.inf)
    return [pair for pair, several in places.items() if float(nearest[several].min()) > margin]


def sampled_parts(structure: Structure) -> dict[str | None, int]:
    """Body, or None for the world -> number of the part in which samples say all about the relative poses of bodies.

    Joints that float, or slide without limits, connect different parts.
    """
    names = list(structure.bodies)
    part: dict[str | None, int] = {None: -1}
    for entry in structure.tree_order():  # from the world outwards
        parent = None if entry.parent < 0 else names[entry.parent]
        part[names[entry.child]] = part[parent] if _bounded(entry.joint) else entry.child
    return part


def _batch_dimensions(structure: Structure) -> int:
    """Number of batch dimensions of the parameters. Samples stand behind them."""
    modules = [module for module in structure.modules() if isinstance(module, PhysicalModule)]
    fields = [(module, name) for module in modules for name in module.fields if name not in module.chosen]
    return max(getattr(module, name).ndim - module.fields[name] for module, name in fields)


def _bounded(joint: Any) -> bool:
    if not isinstance(joint, StandardJoint):
        return False
    limits = joint.limits
    lengths = slice(0, joint.free_translations)
    return joint.free_translations == 0 or (limits is not None and all(bool(torch.isfinite(bound[..., lengths]).all()) for bound in limits))


def configurations(structure: Structure, count: int, generator: torch.Generator) -> Tensor:
    """Coordinates (count, num_coordinates): within limits, and any rotation where there are none. Others are zero."""
    q = torch.zeros(count, structure.num_coordinates, dtype=torch.float64)
    for entry in structure.tree_order():
        joint, size = entry.joint, entry.coordinates.stop - entry.coordinates.start
        if not _bounded(joint) or not size:
            continue
        lower, upper = torch.full((size,), -math.pi, dtype=torch.float64), torch.full((size,), math.pi, dtype=torch.float64)
        if joint.limits is not None:
            # Batched limits: the widest.
            bounds = [bound.detach().cpu().double().reshape(-1, size) for bound in joint.limits]
            lower = torch.where(torch.isfinite(bounds[0].amin(0)), bounds[0].amin(0), lower)
            upper = torch.where(torch.isfinite(bounds[1].amax(0)), bounds[1].amax(0), upper)
        drawn = lower + (upper - lower) * torch.rand(count, size, generator=generator, dtype=torch.float64)
        q[:, entry.coordinates] = drawn
    return q.to(structure.gravity.device)

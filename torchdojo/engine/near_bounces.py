"""The near terms that bounce in a step (elements/near_contact.py).

A step is solved without bounces first. The terms that arrive in it and bear the impact bounce, and the step is solved once more, with the
law of restitution for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from torchdojo.elements.contact import arrives
from torchdojo.elements.element import Pose, Twist, previous_pose
from torchdojo.engine.near_slots import NearPair, keys
from torchdojo.geometry.near_terms import BEARING, BOUNCING, OUTSIDE, REACH, near_term
from torchdojo.state.layout import STATE_SIZE
from torchdojo.structure import Structure

__all__ = ["Bounces"]


class Bounces:
    """The terms of each pair that bounce in the present step, or in a part of it.

    Attributes:
        numbers: (N, K) of each pair, as `keys` has them; -1 where none bounces.
    """

    def __init__(self, structure: Structure, pairs: Sequence[NearPair], lead: torch.Size) -> None:
        self.pairs, self._structure, self._lead = pairs, structure, lead

    # Robots have hundreds of pairs, and most steps are taken by the kernel, which does not ask for these: they are made when they are read.

    @cached_property
    def numbers(self) -> list[Tensor]:
        return [torch.full((self._lead.numel(), len(pair.slots)), -1) for pair in self.pairs]

    @cached_property
    def _places(self) -> list[list[int]]:
        names = {id(contact): name for name, contact in self._structure.named_contacts().items()}
        layout = self._structure.impulse_layout
        return [[layout[f"contacts.{names[id(slot)]}"].start for slot in pair.slots] for pair in self.pairs]

    @cached_property
    def _laws(self) -> list[Tensor]:
        return [torch.tensor(["restitution" in slot.fields for slot in pair.slots]) for pair in self.pairs]

    def forget(self, rows: Tensor | None = None) -> None:
        """No term of these environments bounces. None: of no environment."""
        for numbers in self.numbers:
            numbers[slice(None) if rows is None else rows] = -1

    def begin(self, rows: Tensor, impulses: Tensor, chosen: Sequence[Tensor], start: Tensor, timestep: Tensor) -> Tensor:
        """Whether terms of environments (n,) bounce, whose numbers in the batch are `rows`.

        Args:
            impulses: (n, ni) of a step without bounces [N·s]. chosen: (n, K, 3) its terms, pair by pair.
            start: (n, 13 nb) states before it. timestep: (n,) [s].
        """
        impact = torch.zeros(len(start), dtype=torch.bool)
        for pair, terms, numbers, places, laws in zip(self.pairs, chosen, self.numbers, self._places, self._laws, strict=True):
            if bool(laws.any()) and len(start):
                bounces = _bear_an_impact(pair, terms, impulses[:, places], start, timestep) & laws
                numbers[rows] = torch.where(bounces, keys(terms), -1)
                impact |= bounces.any(-1)
        return impact

    def keep_acting(self, rows: Tensor, acted: Sequence[Tensor], impulses: Tensor, chosen: Sequence[Tensor], kappa: float) -> None:
        """Keep the terms of pairs with restitution that acted in the first half of a step.

        So the impulses of that half can be read after the second one, in which bodies may be beyond the reach.

        Args:
            rows: (n,) numbers of environments. acted: their terms (n, K, 3) in the first half. impulses: (n, ni) of this half.
            chosen: (N, K, 3) terms after the second half, which get the terms that acted where slots are empty.
        """
        for first, terms, numbers, places, laws in zip(acted, chosen, self.numbers, self._places, self._laws, strict=True):
            if not bool(laws.any()):
                continue
            acts, second = (impulses[:, places] > OUTSIDE * kappa / (2 * REACH)) & (keys(first) >= 0) & laws, terms[rows]
            terms[rows] = torch.where((acts & (keys(second) < 0))[..., None], first, second)
            numbers[rows] = torch.where(acts & (keys(terms[rows]) == keys(first)), keys(first), numbers[rows])

    def flagged(self, chosen: Sequence[Tensor]) -> list[Tensor]:
        """Terms (N, K, 3) of each pair, where those that bounce say so (`BOUNCING`). Pairs without restitution keep their tensors."""
        result = []
        for terms, numbers, laws in zip(chosen, self.numbers, self._laws, strict=True):
            if not bool(laws.any()):
                result.append(terms)
                continue
            term_keys = keys(terms)
            bounces = (term_keys[:, :, None] == numbers[:, None, :]).any(-1) & (term_keys >= 0)
            result.append(torch.cat((terms[..., :1] + BOUNCING * bounces.to(terms)[..., None], terms[..., 1:]), -1))
        return result


def _bear_an_impact(pair: NearPair, terms: Tensor, gamma: Tensor, start: Tensor, timestep: Tensor) -> Tensor:
    """Whether terms (n, K, 3) of a pair arrive in a step, and bear the impact in a step without bounces, (n, K).

    Corners that arrive a little later, and bear nothing, would ask for speeds of their own, and make the body spin.

    Args:
        gamma: (n, K) normal impulses of a step without bounces [N·s]. start: (n, 13 nb) states before it. timestep: (n,) [s].
    """
    still = start.new_tensor([1.0, 0.0, 0.0, 0.0])
    poses: list[list[tuple[Tensor, Tensor]]] = [[], []]  # now, and one step before
    for body in pair.bodies:
        state = start[:, None, STATE_SIZE * body : STATE_SIZE * (body + 1)] if body >= 0 else None
        present_pose = Pose(start.new_zeros(1, 1, 3), still) if state is None else Pose(state[..., :3], state[..., 6:10])
        earlier_pose = (
            present_pose
            if state is None
            else previous_pose(present_pose, Twist(state[..., 3:6], state[..., 10:13]), timestep[:, None, None])
        )
        for places, pose in zip(poses, (present_pose, earlier_pose), strict=True):
            places.append((pose.x.expand(*terms.shape[:2], 3), pose.q.expand(*terms.shape[:2], 4)))
    present_term, earlier_term = (near_term(*pair.slots[0].shapes, places[0], places[1], terms, 0.0) for places in poses)
    arriving = (terms[..., 0] >= 0) & (present_term.weight > 0) & arrives(present_term.line, earlier_term.line, timestep[:, None])
    impact = torch.where(arriving, gamma, 0.0)
    return arriving & (impact >= BEARING * impact.amax(-1, keepdim=True))

"""The terms of near contacts between steps in the kernel: one table, in place of a tensor in each slot.

Robots have thousands of slots. To give each the terms of its step, and to pack these among the parameters of the next one, took three
quarters of a call. So the terms stay here, and slots are empty, until somebody asks one of them for its term, or sets it. A rollout of the
kernel takes terms from here and puts the terms of its last step back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from torchdojo.elements.near_contact import NearContact
from torchdojo.engine.near_slots import NONE, numbers, terms_of

__all__ = ["NearMemory"]


class NearMemory:
    """The terms of slots after the last step.

    Args:
        slots: the near contacts of a structure, in the order in which they are declared.
    """

    def __init__(self, slots: Sequence[NearContact]) -> None:
        self.slots = list(slots)
        self._terms: Tensor | None = None  # (*batch, K) while they are here; None: there are none
        self._batch = torch.Size()
        self._here = False
        self._withheld = False
        self._empty: list[nn.Parameter] = []  # the empty terms that slots have meanwhile

    def take(self, batch: torch.Size) -> Tensor | None:
        """The terms (*batch, K), as `numbers`; None where slots have none, or those of another batch. Slots are empty from now on."""
        if not self._here:
            terms = [slot.term.detach() for slot in self.slots]
            same_batch = all([term.shape[:-1] == batch for term in terms])
            self._empty = self._empty or [nn.Parameter(NONE.clone(), requires_grad=False) for _ in terms]
            self._terms, self._batch = (numbers(torch.stack(terms, -2)) if same_batch else None), batch
            for slot, empty in zip(self.slots, self._empty, strict=True):
                slot.lend(empty, self.give_back)
            self._here = True
        return self._terms if self._batch == batch else None

    def put(self, terms: Tensor) -> None:
        """Keep the terms (*batch, K) of a step, after `take`."""
        self._terms, self._batch = terms, terms.shape[:-1]

    def forget_others(self, batch: torch.Size) -> None:
        """Empty the slots, if they have the terms of another batch."""
        if self._here:
            if self._batch != batch:
                self._terms = None
            return
        for slot in self.slots:
            if slot.term.shape[:-1] not in (batch, ()):
                slot.term = NONE.clone()

    def give_back(self) -> None:
        """Give the slots their terms, if these are here."""
        if not self._here or self._withheld:
            return
        terms, self._here, self._terms = self._terms, False, None
        rows: Sequence[Tensor] = (
            [NONE.clone() for _ in self.slots] if terms is None else terms_of(terms).movedim(-2, 0).contiguous().unbind(0)
        )
        for slot, row in zip(self.slots, rows, strict=True):
            slot.lend(nn.Parameter(row, requires_grad=False), None)

    @contextlib.contextmanager
    def withheld(self) -> Iterator[None]:
        """A block in which slots stay empty when they are asked, so that parameters without terms can be stacked."""
        before, self._withheld = self._withheld, True
        try:
            yield
        finally:
            self._withheld = before

"""Derivatives of one step by backward and by central differences, input by input: the loop of `check_gradients` and `gradient_report`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.gradients.reference_step import StepOutput
from torchdojo.mechanism import Mechanism
from torchdojo.solver.options import Status
from torchdojo.state.layout import TANGENT_SIZE, TWIST_SIZE
from torchdojo.testing import differences

__all__ = ["Comparison", "Gradients"]

#: Numbers of an output by name, one per environment: (..., 13 nb) -> (...,) each.
Losses = Callable[[StepOutput], dict[str, Tensor]]
#: Flat gradients of each loss by name, with respect to the tangent of z, u, the wrench, and parameters in order.
Gradients = dict[str, list[Tensor]]
DATA = ("z", "u", "wrench")
TOGETHER = 24  # directions, of which each takes the differences of 54 environments


class Input(NamedTuple):
    """An input of the step, or a part of one.

    pick: selects its gradient from all gradients. move: takes the step at displacements (n, entries) of the input.
    parameters: names of the parameters that it consists of, if all of them may have batch dimensions.
    """

    name: str
    pick: Callable[[list[Tensor]], Tensor]
    move: Callable[[Tensor], StepOutput]
    is_force: bool = False
    parameters: Sequence[str] = ()


class Comparison:
    """A step of one environment as a function of displacements of its inputs. `caller` stands in error messages.

    Raises:
        ValueError: batched states or parameters, another dtype than float64, a step that fails here.
    """

    def __init__(self, caller: str, mechanism: Mechanism, z: Tensor, u: Tensor | None, wrench: Tensor | None, seed: int) -> None:
        if z.ndim != 1 or z.dtype != torch.float64:
            raise ValueError(f"{caller}: got z of shape {tuple(z.shape)} and {z.dtype}; allowed: one environment, (13 nb,), float64")
        self.mechanism = mechanism
        sizes = (TANGENT_SIZE * mechanism.num_bodies, mechanism.num_inputs, TWIST_SIZE * mechanism.num_bodies)
        self.sizes = dict(zip(DATA, sizes, strict=True))
        sized_inputs = zip((u, wrench), sizes[1:], strict=True)
        self.data = (z.detach(), *(z.new_zeros(size) if value is None else value.detach() for value, size in sized_inputs))
        self.generator = torch.Generator().manual_seed(seed)
        z, u, wrench = self.data
        with torch.no_grad():
            self.base = mechanism.step(z, u, wrench=wrench)
        if self.base.status.ndim:
            raise ValueError(f"{caller}: parameters have batch dimensions {tuple(self.base.status.shape)}; allowed: one environment")
        if int(self.base.status) != Status.SUCCESS:
            raise ValueError(f"{caller}: the step fails at this state: {Status(int(self.base.status)).explain}")

    def random(self, size: int) -> Tensor:
        return torch.randn(size, generator=self.generator, dtype=torch.float64)

    def tangent(self, out: StepOutput) -> Tensor:
        """Tangent of the next state (..., 12 nb), from the next state of the undisturbed step."""
        return self.mechanism.difference(out.z, self.base.z.expand_as(out.z))

    def step(self, delta: Tensor | None = None, du: Tensor | None = None, force: Tensor | None = None) -> StepOutput:
        z, u, wrench = self.data
        z = z if delta is None else self.mechanism.retract(z, delta)
        u, wrench = (value if change is None else value + change for value, change in ((u, du), (wrench, force)))
        return self.mechanism.step(z, u, wrench=wrench, warm_start=self.base.solution)

    # -- inputs --------------------------------------------------------------------------------------------------------------------------

    def whole(self, kind: str, name: str | None = None, part: slice = slice(None)) -> Input:
        """z, u or the wrench, or the entries `part` of its displacement."""
        place = DATA.index(kind)

        def move(displacements: Tensor) -> StepOutput:
            changes: list[Tensor | None] = [None] * len(DATA)
            every = displacements.new_zeros(len(displacements), self.sizes[kind])
            every[:, part] = displacements
            changes[place] = every
            return self.step(*changes)

        return Input(name or kind, lambda grads: grads[place][part], move, kind != "z")

    def by_body(self, kind: str) -> list[Input]:
        """z or the wrench, body by body."""
        count = self.sizes[kind] // self.mechanism.num_bodies
        return [self.whole(kind, f"{kind}.{body}", slice(i * count, (i + 1) * count)) for i, body in enumerate(self.mechanism.bodies)]

    def parameters(self, groups: Mapping[str, Sequence[str]]) -> list[Input]:
        """Parameters by group; `groups` must equal the groups of `gradients`, in their order."""
        inputs, start = [], len(DATA)
        batchable = differences.batchable(self.mechanism, [name for group in groups.values() for name in group])
        for label, group in groups.items():
            places = slice(start, start + len(group))
            start += len(group)
            names = group if batchable.issuperset(group) else ()
            inputs.append(Input(label, lambda grads, places=places: torch.cat(grads[places]), self._mover(group), parameters=names))  # type: ignore[misc]
        return inputs

    def _mover(self, names: Sequence[str]) -> Callable[[Tensor], StepOutput]:
        return lambda displacements: differences.parameter_mover(self.mechanism, names, self.step)(displacements)

    # -- derivatives ---------------------------------------------------------------------------------------------------------------------

    def gradients(self, losses: Losses, names: Sequence[str]) -> Gradients:
        """By backward, with respect to the data of the step and to the parameters `names`. Losses without a graph are left out."""
        leaves = [self.data[0].new_zeros(size).requires_grad_() for size in self.sizes.values()]
        tensors = [self.mechanism.get_parameter(name) for name in names]
        with differences.requiring_grad(tensors):
            values = losses(self.step(*leaves))
            every = [*leaves, *tensors]
            derivatives = {
                key: torch.autograd.grad(value, every, retain_graph=True, allow_unused=True)
                for key, value in values.items()
                if value.requires_grad
            }

        def flat(grads: Sequence[Tensor | None]) -> list[Tensor]:
            pairs = zip(every, grads, strict=True)
            return [leaf.new_zeros(leaf.numel()) if grad is None else grad.detach().flatten() for leaf, grad in pairs]

        return {key: flat(grads) for key, grads in derivatives.items()}

    def along(
        self, inputs: Sequence[Input], losses: Losses, gradients: Gradients, bases: Sequence[Tensor]
    ) -> list[dict[str, tuple[Tensor, Tensor]]]:
        """Derivatives of each loss along the rows of each input's basis, by backward and by central differences, (directions,) each.

        A step takes milliseconds however few environments it has, so parameters share one, up to `TOGETHER` directions.
        """
        results: list[dict[str, tuple[Tensor, Tensor]]] = []
        while len(results) < len(inputs):
            start = len(results)
            stop = start + 1
            while stop < len(inputs) and inputs[start].parameters and inputs[stop].parameters:
                if sum(len(basis) for basis in bases[start : stop + 1]) > TOGETHER:
                    break
                stop += 1
            block, parts = inputs[start:stop], bases[start:stop]
            move = block[0].move if len(block) == 1 else self._mover([name for entry in block for name in entry.parameters])
            largest = differences.LARGEST_FORCE if block[0].is_force else differences.LARGEST_STEP
            with torch.no_grad():
                numeric = differences.central(lambda d, move=move: losses(move(d)), torch.block_diag(*parts), largest)  # type: ignore[misc]
            counts = [len(basis) for basis in parts]
            pieces = {key: numeric[key].split(counts) for key in gradients}
            for i, (entry, basis) in enumerate(zip(block, parts, strict=True)):
                results.append({key: (basis @ entry.pick(grads), pieces[key][i]) for key, grads in gradients.items()})
        return results

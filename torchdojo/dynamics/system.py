"""From a graph of modules to index tables and stacked parameters: which number of the unknown belongs to which element."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchdojo.elements.bodies import Body
from torchdojo.elements.element import Element
from torchdojo.parameters import bind, plain_class

__all__ = ["Group", "System"]


@dataclass(frozen=True)
class Group:
    """Elements of one kind, evaluated together. E elements between k bodies each, m impulses, d slacks, i inputs per element."""

    members: tuple[Element, ...]
    cls: type[Element]
    body_index: Tensor  # (E, k), the world is the number of bodies
    impulse_index: Tensor  # (E, m) positions in the unknown; the equality rows have the same positions in the residual
    slack_index: Tensor  # (E, d) positions of the slacks, and of the complementarity rows
    input_index: Tensor  # (E, i) positions in u
    extra: tuple[str, ...]  # tensors of a user-written element that are not physical fields

    @property
    def template(self) -> Element:
        return self.members[0]

    @property
    def fields(self) -> dict[str, int]:
        """Physical fields that are stacked: name -> dimensions of one value."""
        return self.template.stacked_fields

    def to(self, device: torch.device) -> Group:
        names = ("body_index", "impulse_index", "slack_index", "input_index")
        return dataclasses.replace(self, **{name: getattr(self, name).to(device) for name in names})


@dataclass(frozen=True)
class ParameterSpec:
    """One stacked parameter: dimensions of one value (elements included), and whether leading batch dimensions are allowed."""

    ndim: int
    batched: bool


class System:
    """Layout of the step's unknown, residual and parameters.

    Unknown w = [v⁺, ω⁺ per body (6) | multipliers of joints and couplings, in order | per contact its impulses, then its slacks]; the
    residual has the balance of momentum, the equations of joints and couplings, and per contact its equalities, then its complementarity
    products, in the same places.
    `elements` are named "joints.NAME", "couplings.NAME", "contacts.NAME", "limits.NAME" and "frictions.NAME".
    """

    def __init__(self, bodies: Mapping[str, Body], elements: Mapping[str, Element]) -> None:
        self.body_names = list(bodies)
        self.bodies = list(bodies.values())
        self.num_bodies = len(self.bodies)
        self.elements = dict(elements)
        number: dict[str | None, int] = {name: i for i, name in enumerate(self.body_names)}
        number[None] = self.num_bodies

        self.impulse_layout: dict[str, slice] = {}
        self.input_layout: dict[str, slice] = {}
        positions: dict[str, tuple[list[int], list[int], list[int]]] = {}
        offset, inputs = 6 * self.num_bodies, 0
        # Eliminated first means last in w: elements with cones follow those without, whatever they are called.
        for key, element in sorted(elements.items(), key=lambda item: item[1].cones.size > 0):
            count = element.cones.size or element.num_rows
            impulse = list(range(offset, offset + count))
            slack = list(range(offset + count, offset + count + element.cones.size))
            inputs_here = list(range(inputs, inputs + element.num_inputs))
            positions[key] = (impulse, slack, inputs_here)
            self.impulse_layout[key] = slice(offset, offset + count)
            if element.num_inputs:
                self.input_layout[key.partition(".")[2]] = slice(inputs, inputs + element.num_inputs)
            offset += count + element.cones.size
            inputs += element.num_inputs
        self.num_unknowns, self.num_inputs = offset, inputs
        self.num_primal = 6 * self.num_bodies + sum(e.num_rows for e in elements.values() if not e.cones.size)

        kinds: dict[tuple[object, ...], list[str]] = {}
        for key, element in elements.items():
            kinds.setdefault((*element.kind(), len(element.body_names)), []).append(key)
        self.groups: list[Group] = []
        for keys in kinds.values():
            members = tuple(elements[key] for key in keys)
            self.groups.append(
                Group(
                    members=members,
                    cls=plain_class(members[0]),
                    body_index=torch.tensor([[number[name] for name in e.body_names] for e in members]),
                    impulse_index=torch.tensor([positions[key][0] for key in keys], dtype=torch.long).reshape(len(keys), -1),
                    slack_index=torch.tensor([positions[key][1] for key in keys], dtype=torch.long).reshape(len(keys), -1),
                    input_index=torch.tensor([positions[key][2] for key in keys], dtype=torch.long).reshape(len(keys), -1),
                    extra=tuple(members[0].extra_state_names()),
                )
            )
        # Bodies, and the world behind them, that no joint holds, limits or rubs on, and that touch no other body.
        self.free_bodies = torch.ones(self.num_bodies + 1, dtype=torch.bool)
        for keys, group in zip(kinds.values(), self.groups, strict=True):
            if group.impulse_index.shape[-1] and (group.body_index.shape[1] > 1 or not keys[0].startswith("contacts.")):
                self.free_bodies[group.body_index.flatten()] = False
        self.free_bodies[-1] = True
        self._set_cones()

    def _set_cones(self) -> None:
        """Positions, over all elements, of the orthant pairs (n,) and of the second-order cones (n, 3) in the unknown."""
        orthant: list[tuple[int, int]] = []
        second: list[tuple[list[int], list[int]]] = []
        for group in self.groups:
            cones = group.template.cones
            for impulse, slack in zip(group.impulse_index.tolist(), group.slack_index.tolist(), strict=True):
                if not cones.size:
                    continue
                orthant += list(zip(impulse[: cones.orthant], slack[: cones.orthant], strict=True))
                for start in range(cones.orthant, cones.size, 3):
                    second.append((impulse[start : start + 3], slack[start : start + 3]))
        self.orthant_index = torch.tensor(orthant, dtype=torch.long).reshape(-1, 2)
        self.second_order_index = torch.tensor(second, dtype=torch.long).reshape(-1, 2, 3)

    @property
    def num_cones(self) -> int:
        return len(self.orthant_index) + len(self.second_order_index)

    def to(self, device: torch.device) -> System:
        """The same layout with its index tables on `device`."""
        clone = object.__new__(System)
        clone.__dict__.update(self.__dict__)
        clone.groups = [group.to(device) for group in self.groups]
        clone.free_bodies = self.free_bodies.to(device)
        clone.orthant_index = self.orthant_index.to(device)
        clone.second_order_index = self.second_order_index.to(device)
        return clone

    # -- parameters ----------------------------------------------------------------------------------------------------------------------

    def parameter_specs(self) -> list[ParameterSpec]:
        """One entry per tensor of `stack_parameters`."""
        specs = [ParameterSpec(0, True), ParameterSpec(1, True), ParameterSpec(1, True), ParameterSpec(3, True)]
        for group in self.groups:
            specs += [ParameterSpec(1 + ndim, True) for ndim in group.fields.values()]
            specs += [ParameterSpec(0, False) for _ in group.extra]
        return specs

    def stack_parameters(self, timestep: Tensor, gravity: Tensor) -> list[Tensor]:
        """Every physical number as a flat list, equal fields of equal elements stacked: [h, gravity, masses, inertias, group by group].

        Stacking happens outside the autograd Function, so gradients flow on to the modules, to parametrizations, and to networks whose
        outputs were assigned as parameters.
        """
        tensors = [timestep, gravity, _stack([b.mass for b in self.bodies], 0), _stack([b.inertia for b in self.bodies], 2)]
        for group in self.groups:
            for name, ndim in group.fields.items():
                tensors.append(_stack([getattr(member, name) for member in group.members], ndim))
            tensors += [_lookup(group.template, name) for name in group.extra]
        return tensors

    def bind_elements(self, parameters: Sequence[Tensor]) -> list[Element]:
        """Per group, its template reading the stacked `parameters` (those after the first four)."""
        bound, start = [], 4
        for group in self.groups:
            names = [*group.fields, *group.extra]
            bound.append(bind(group.template, dict(zip(names, parameters[start : start + len(names)], strict=True)), group.cls))
            start += len(names)
        return bound


def _stack(values: list[Tensor], event_ndim: int) -> Tensor:
    """Stack over elements in front of the event dimensions, broadcasting batch dimensions."""
    if len({value.shape for value in values}) > 1:
        values = list(torch.broadcast_tensors(*values))
    return torch.stack(values, dim=values[0].ndim - event_ndim)


def _lookup(module: nn.Module, name: str) -> Tensor:
    path, _, leaf = name.rpartition(".")
    value: Tensor = getattr(module.get_submodule(path), leaf)
    return value

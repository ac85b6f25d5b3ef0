"""Index tables and stacked parameters of a graph of modules. They assign the numbers of the unknown to the elements."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import FrictionalContact
from torchdojo.elements.element import Element
from torchdojo.elements.path_maps import BRACING_CONTACTS
from torchdojo.elements.per_environment import bind_environments
from torchdojo.parameters import PhysicalModule, bind, plain_class, stacked
from torchdojo.state.layout import TWIST_SIZE
from torchdojo.state.unknowns import FIRST_ELEMENT, NUM_DATA, ParameterSpec, UnknownLayout

__all__ = ["Group", "System", "select_rows"]

_T = TypeVar("_T")


@dataclass(frozen=True)
class Group:
    """Elements of one kind, evaluated together. E elements between k bodies each, m impulses, d slacks, i inputs per element."""

    members: tuple[Element, ...]
    cls: type[Element]
    body_index: Tensor  # (E, k), the world is the number of bodies
    impulse_index: Tensor  # (E, m) positions in the unknown; the equality rows have the same positions in the residual
    slack_index: Tensor  # (E, d) positions of the slacks, and of the complementarity rows
    input_index: Tensor  # (E, i) positions in u
    extra: dict[str, int]  # tensors of a user-written element that are not physical fields: name -> dimensions

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


class System:
    """The elements of a mechanism, grouped by kind, with their places in the unknown w, in u and among the stacked parameters.

    `elements` are named "joints.NAME", "couplings.NAME", "contacts.NAME", and "limits.NAME", "frictions.NAME", "velocity_limits.NAME",
    "drives.NAME" of joints. `layout` has their places.
    """

    def __init__(self, bodies: Mapping[str, Body], elements: Mapping[str, Element], layout: UnknownLayout) -> None:
        self.body_names = list(bodies)
        self.bodies = list(bodies.values())
        self.num_bodies = len(self.bodies)
        self.elements = dict(elements)
        number: dict[str | None, int] = {name: i for i, name in enumerate(self.body_names)}
        number[None] = self.num_bodies
        self.impulse_layout = layout.impulses
        self.num_unknowns, self.num_inputs, self.num_primal = layout.num_unknowns, layout.num_inputs, layout.num_primal

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
                    impulse_index=_positions([layout.places[key].impulse for key in keys]),
                    slack_index=_positions([layout.places[key].slack for key in keys]),
                    input_index=_positions([layout.places[key].input for key in keys]),
                    extra={name: _dimensions(members[0], name) for name in members[0].extra_state_names()},
                )
            )
        # A body is free if it touches no other body and no joint holds, limits or rubs on it. The world stands behind the bodies.
        self.free_bodies = torch.ones(self.num_bodies + 1, dtype=torch.bool)
        for keys, group in zip(kinds.values(), self.groups, strict=True):
            if group.impulse_index.shape[-1] and (group.body_index.shape[1] > 1 or not keys[0].startswith("contacts.")):
                self.free_bodies[group.body_index.flatten()] = False
        self.free_bodies[-1] = True
        # Bodies that several contacts with friction hold against the world, whose impulses can squeeze them (elements/path_maps.py).
        held = [e.body_names[0] for e in elements.values() if isinstance(e, FrictionalContact) and len(e.body_names) == 1]
        self.braced_bodies = torch.tensor([held.count(name) >= BRACING_CONTACTS for name in self.body_names] + [False])
        self._set_cones()

    def _set_cones(self) -> None:
        """Set the positions, over all elements, of the orthant pairs (n,) and of the second-order cones (n, 3) in the unknown."""
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

    @property
    def impulse_index(self) -> list[int]:
        """Positions in w of the impulses of `StepOutput.impulses`, in that order."""
        return [k for piece in self.impulse_layout.values() for k in range(piece.start, piece.stop)]

    def twists(self, w: Tensor) -> Tensor:
        """v⁺, ω⁺ of the bodies, (..., nb, 6), in the unknown w (..., num_unknowns or more)."""
        return w[..., : TWIST_SIZE * self.num_bodies].unflatten(-1, (-1, TWIST_SIZE))

    def having(self, groups: list[Group]) -> System:
        """The same layout with other groups in place of its own, which have other tensors."""
        clone = object.__new__(System)
        clone.__dict__.update(self.__dict__)
        clone.groups = groups
        return clone

    def to(self, device: torch.device) -> System:
        """The same layout with its index tables on `device`."""
        clone = self.having([group.to(device) for group in self.groups])
        clone.free_bodies = self.free_bodies.to(device)
        clone.braced_bodies = self.braced_bodies.to(device)
        clone.orthant_index = self.orthant_index.to(device)
        clone.second_order_index = self.second_order_index.to(device)
        return clone

    # -- parameters ----------------------------------------------------------------------------------------------------------------------

    def parameter_specs(self) -> list[ParameterSpec]:
        """One entry per tensor of `stack_parameters`."""
        specs = [ParameterSpec(0), ParameterSpec(1), ParameterSpec(1), ParameterSpec(3)]
        for group in self.groups:
            specs += [ParameterSpec(1 + ndim) for ndim in group.fields.values()]
            specs += [ParameterSpec(ndim) for ndim in group.extra.values()]
        return specs

    def step_specs(self) -> list[ParameterSpec]:
        """Specs of all data of a step: z, u, wrench, then the parameters."""
        return [ParameterSpec(1)] * NUM_DATA + self.parameter_specs()

    def stack_parameters(self, timestep: Tensor, gravity: Tensor) -> list[Tensor]:
        """Every physical number as a flat list, equal fields of equal elements stacked: [h, gravity, masses, inertias, group by group].

        All are float64, whatever an assigned tensor is. Stacking happens outside the autograd Function. So gradients flow on to the
        modules, to parametrizations, and to networks whose outputs are assigned as parameters.
        """
        tensors = [timestep, gravity, stacked([b.mass for b in self.bodies], 0), stacked([b.inertia for b in self.bodies], 2)]
        for group in self.groups:
            for name, ndim in group.fields.items():
                tensors.append(stacked([getattr(member, name) for member in group.members], ndim))
            tensors += [self._own(group, name) for name in group.extra]
        return [tensor.double() if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor for tensor in tensors]

    def _own(self, group: Group, name: str) -> Tensor:
        """A tensor that a user registered, which must be float64."""
        tensor = _lookup(group.template, name)
        if tensor.is_floating_point() and tensor.dtype != torch.float64:
            key = next(key for key, element in self.elements.items() if element is group.template)
            raise TypeError(
                f"{key}: its tensor {name!r} is {tensor.dtype}, the mechanism torch.float64 (plain numbers of physical modules are "
                f"float64); convert it before, nn.Parameter(torch.tensor(1.0).double()), or all at once, mech.to(torch.float64)"
            )
        return tensor

    def named_parameters(self, parameters: Sequence[_T]) -> list[dict[str, _T]]:
        """Per group, its stacked `parameters`, or values that belong to them, by name: physical fields, then tensors of its own."""
        named, start = [], FIRST_ELEMENT
        for group in self.groups:
            names = [*group.fields, *group.extra]
            named.append(dict(zip(names, parameters[start : start + len(names)], strict=True)))
            start += len(names)
        return named

    def bind_elements(self, parameters: Sequence[Tensor]) -> list[Element]:
        """Per group, a copy of its template that reads the stacked `parameters`."""
        named = zip(self.groups, self.named_parameters(parameters), strict=True)
        return [
            bind_environments(group.template, tensors, group.extra, group.cls) if group.extra else bind(group.template, tensors, group.cls)
            for group, tensors in named
        ]


def select_rows(parameters: Sequence[Tensor], index: Tensor) -> list[Tensor]:
    """Parameters (N or 1, ...) of the environments `index`; one row that all environments share stays."""
    return [value[index] if len(value) > 1 else value for value in parameters]


def _positions(places: Sequence[slice]) -> Tensor:
    """(elements, numbers of each) from slices of equal length."""
    return torch.tensor([list(range(place.start, place.stop)) for place in places], dtype=torch.long).reshape(len(places), -1)


def _dimensions(module: nn.Module, name: str) -> int:
    """Dimensions of one value: of a physical field of a submodule, those behind its batch dimensions."""
    path, _, leaf = name.rpartition(".")
    owner = module.get_submodule(path)
    return owner.fields[leaf] if isinstance(owner, PhysicalModule) and leaf in owner.fields else _lookup(module, name).ndim


def _lookup(module: nn.Module, name: str) -> Tensor:
    path, _, leaf = name.rpartition(".")
    value: Tensor = getattr(module.get_submodule(path), leaf)
    return value

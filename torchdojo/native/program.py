"""From a `System` to what the kernel reads: tables of integers, the elimination schedule, and one vector of packed parameters."""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchdojo.dynamics.system import Group, System
from torchdojo.elements import joints as joints_module
from torchdojo.elements.contacts import Contact, ImpactContact, LinearContact, NonlinearContact
from torchdojo.elements.couplings import JointCoupling
from torchdojo.elements.element import Element, orthonormal_complement, unit
from torchdojo.elements.joint_cones import JointElement, JointFriction
from torchdojo.elements.joints import BOUNDS, StandardJoint
from torchdojo.native import graph
from torchdojo.native.loader import library
from torchdojo.quaternion import normalize
from torchdojo.state.minimal import JointOrder, spanning_order
from torchdojo.state.unknowns import ParameterSpec

__all__ = ["Packed", "Program", "by_number", "program", "supported", "unsupported"]

JOINT_FIXED_PARAMETERS = 28  # two bases (9 + 9), two anchors (3 + 3), an orientation (4); then spring, damper and rest
BODY_PARAMETERS = 10
CONTACT_PARAMETERS = 15
COUPLING_PARAMETERS = 2
CONTACT_MODELS = (ImpactContact, NonlinearContact, LinearContact)
MOST_FACETS = 32
COUPLES = ("torsional_friction", "rolling_friction")  # behind those, as LAWS of contact_base.py has them
SHAPES = {"sphere": 4, "capsule": 9, "box": 11, "surface": 4}  # numbers of each kind of shape, in the order of geometry.hpp
CONTACT_LAWS = ("restitution", "recovery_speed", "stiffness", "damping")  # behind the others, in this order, where they are given
FIRST_BODY_PARAMETER = 4  # behind the timestep and gravity

_JOINTS = tuple(getattr(joints_module, name) for name in joints_module.JOINT_TYPES)


def unsupported(system: System) -> str | None:
    """What the kernel does not know of a system: an element written by a user, or one with tensors of its own; None if nothing."""
    for group in system.groups:
        if isinstance(group.template, JointElement):
            continue  # (as supported as its joint is)
        if group.cls not in (*_JOINTS, *CONTACT_MODELS, JointCoupling):
            return f"{group.cls.__name__} is not a built-in joint, coupling or contact"
        if isinstance(group.template, LinearContact) and group.template.facets > MOST_FACETS:
            return f"it knows pyramids of {MOST_FACETS} facets, not of {group.template.facets}"
        if group.extra:
            return f"a {group.cls.__name__} has tensors that are not physical fields: {list(group.extra)}"
    return None


def supported(system: System) -> bool:
    """Whether the kernel knows every joint and contact: the built-in ones, not subclasses written by users."""
    return unsupported(system) is None


class Packed(NamedTuple):
    """Parameters as the kernel reads them: (N or 1, num_parameters), and its object for the springs and dampers that act in them."""

    values: Tensor
    handle: int


class Program:
    """A system lowered for the kernel.

    Springs and dampers that are zero in every environment cost nothing, so there is one table per combination of those that act.
    Operators know a program by its `number`. Copies and unpickled programs are programs of their own, lowered anew.
    """

    def __init__(self, system: System) -> None:
        self.system = system
        self.groups = system.groups
        self.num_bodies, self.num_unknowns = system.num_bodies, system.num_unknowns
        self.num_inputs, self.num_cones = system.num_inputs, system.num_cones
        self.joint_groups = [g for g in system.groups if issubclass(g.cls, StandardJoint)]
        self.joint_cone_groups = [g for g in system.groups if isinstance(g.template, JointElement)]
        self.coupling_groups = [g for g in system.groups if issubclass(g.cls, JointCoupling)]
        self.contact_groups = [g for g in system.groups if isinstance(g.template, Contact)]
        self.impulse_index = [k for piece in system.impulse_layout.values() for k in range(piece.start, piece.stop)]
        self.num_impulses = len(self.impulse_index)
        self.tree = self._tree()
        self.num_coordinates = sum(entry.joint.num_coordinates for entry in self.tree)
        size = FIRST_BODY_PARAMETER + BODY_PARAMETERS * system.num_bodies
        self.parameter_offset: list[list[int]] = []  # per group of the four kinds, in this order, per member
        for group in self.joint_groups + self.joint_cone_groups + self.contact_groups + self.coupling_groups:
            width = _parameter_width(group)
            self.parameter_offset.append([size + width * e for e in range(len(group.members))])
            size += width * len(group.members)
        self.num_parameters = size
        self.parameter_specs: list[ParameterSpec] = system.parameter_specs()
        self._begin()

    def _tree(self) -> list[JointOrder]:
        """The joints from the world outwards; none where their coordinates depend on each other (loops, couplings)."""
        pairs = [tuple(pair) for group in self.joint_groups for pair in group.body_index.tolist()]
        if self.coupling_groups or graph.has_loops(self.num_bodies, pairs):
            return []
        joints = {key.partition(".")[2]: element for key, element in self.system.elements.items() if isinstance(element, StandardJoint)}
        return spanning_order(self.system.body_names, joints)

    def _begin(self) -> None:
        self.number = next(_numbers)
        self._handles: dict[tuple[bool, ...], int] = {}
        self._lock = threading.Lock()
        self._last: tuple[Tensor, Packed] | None = None
        _by_number[self.number] = self
        _by_system[id(self.system)] = self  # (a program keeps its system, so that the id stays taken)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("number", "_handles", "_lock", "_last")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    # -- parameters ----------------------------------------------------------------------------------------------------------------------

    def pack(self, parameters: Sequence[Tensor]) -> Tensor:
        """Stacked parameters (`System.stack_parameters`, batch dimensions flattened to N or 1) as (N or 1, num_parameters), float64.

        Axes become bases, normals become contact frames: what the kernel needs is computed once per call.
        """
        count = max(p.shape[0] for p in parameters)

        def column(value: Tensor) -> Tensor:
            return value.reshape(value.shape[0], -1).expand(count, -1)

        timestep, gravity, mass, inertia = parameters[:4]
        columns = [column(timestep), column(gravity), column(_concatenate((mass[..., None], inertia.flatten(-2))))]
        by_group = self.fields(parameters)
        for group in self.joint_groups:
            f = by_group[id(group)]
            cls = group.cls
            pieces = [
                _basis(f["axis"], cls.free_translations),  # type: ignore[attr-defined]
                _basis(f["axis"], cls.free_rotations),  # type: ignore[attr-defined]
                *(f[name] for name in ("parent_anchor", "child_anchor")),
                normalize(f["orientation_offset"]),
                *(f[name] for name in ("spring", "damper", "rest", "armature") if name in f),
            ]
            columns.append(column(_concatenate(pieces)))
        for group in self.joint_cone_groups:
            f = by_group[id(group)]
            # (Limits that do not act are infinite, and nothing reads them.)
            pieces = [f["friction"]] if group.cls is JointFriction else [f[name].nan_to_num(posinf=0.0, neginf=0.0) for name in BOUNDS]
            columns.append(column(_concatenate(pieces)))
        for group in self.contact_groups:
            f = by_group[id(group)]
            friction = f.get("friction", torch.zeros_like(f["radius"]))
            if _is_plain(group):
                normal = unit(f["normal"])
                tangents = orthonormal_complement(normal).flatten(-2)
                pieces = [f["point"], f["radius"][..., None], f["offset"][..., None], normal, tangents, friction[..., None]]
            else:
                blank = torch.zeros(*friction.shape, CONTACT_PARAMETERS - 1, dtype=friction.dtype)
                pieces = [blank, friction[..., None]]
            pieces += [f[name][..., None] for name in CONTACT_LAWS + COUPLES if name in f]
            if not _is_plain(group):
                kind, other = _kinds(group)
                pieces += _shape(f, kind, "") + _shape(f, other, "other_")
            columns.append(column(_concatenate(pieces)))
        for group in self.coupling_groups:
            f = by_group[id(group)]
            columns.append(column(_concatenate([f[name][..., None] for name in ("ratio", "offset")])))
        return torch.cat(columns, dim=1).contiguous()

    def fields(self, parameters: Sequence[Tensor]) -> dict[int, dict[str, Tensor]]:
        """The physical fields of each group, by its id, among stacked parameters."""
        fields, start = {}, 4
        for group in self.groups:
            names = list(group.fields)
            fields[id(group)] = dict(zip(names, parameters[start : start + len(names)], strict=True))
            start += len(names)
        return fields

    def _acting(self, parameters: Sequence[Tensor]) -> tuple[bool, ...]:
        """Per joint group: whether any spring, and any damper, is not zero."""
        fields = self.fields(parameters)
        return tuple(bool(fields[id(group)][name].any()) for group in self.joint_groups for name in ("spring", "damper"))

    # -- tables --------------------------------------------------------------------------------------------------------------------------

    def handle(self, parameters: Sequence[Tensor]) -> int:
        """The kernel's object for these parameters."""
        acting = self._acting(parameters)
        with self._lock:
            if acting not in self._handles:
                self._handles[acting] = self._create(acting)
            return self._handles[acting]

    def packed(self, parameters: Sequence[Tensor]) -> Packed:
        """`pack` and `handle` of parameters whose batch dimensions are flattened to N or 1; those of the last call if they are the same."""
        if max(len(p) for p in parameters) > 1:
            return Packed(self.pack(parameters), self.handle(parameters))
        numbers = torch.cat([p.reshape(-1) for p in parameters])
        last = self._last
        if last is None or not torch.equal(last[0], numbers):
            last = self._last = numbers, Packed(self.pack(parameters), self.handle(parameters))
        return last[1]

    def _create(self, acting: tuple[bool, ...]) -> int:
        table, schedule = self.tables(acting)
        kernel = kernel_library()
        handle = kernel.td_mechanism_create(_pointer(table), _pointer(schedule.table))
        weakref.finalize(self, kernel.td_mechanism_destroy, ctypes.c_void_p(handle))
        return int(handle)

    def tables(self, acting: tuple[bool, ...]) -> tuple[np.ndarray, graph.Schedule]:
        """The table of `MechanismTable` in mechanism.hpp, and the schedule of the condensed matrix.

        Nodes are bodies, then joints with rows: held directions, and the free ones of joints with dampers, armature, limits or friction,
        whose impulses are rows of their own so that they couple their bodies through the joint and not directly; then couplings, of one
        row each.
        """
        nb = self.num_bodies
        sizes, edges, indefinite = [6] * nb, [], []
        joints = self._joint_rows(acting)
        for joint in joints:
            if joint.size:
                joint.node = len(sizes)
                sizes.append(joint.size)
                edges.append((joint.child, joint.node))
                if joint.parent < nb:
                    edges.append((joint.parent, joint.node))
                if joint.held:
                    indefinite.append(joint.node)
        # Contacts between bodies couple them directly.
        touching = [tuple(pair) for g in self.contact_groups if g.body_index.shape[1] > 1 for pair in g.body_index.tolist()]
        added = [pair for pair in sorted(set(touching)) if max(pair) < nb]
        contacts, coupled = self._placed(self.contact_groups), self._placed(self.coupling_groups)
        coupling_nodes = range(len(sizes), len(sizes) + len(coupled))
        sizes += [1] * len(coupled)
        for node, (group, member, _) in zip(coupling_nodes, coupled, strict=True):
            added += [(body, node) for body in sorted(set(group.body_index[member].tolist())) if body < nb]
        schedule = graph.schedule(sizes, edges + added, indefinite=[*indefinite, *coupling_nodes], whole=coupling_nodes)
        pairs: list[list[int]] = []
        couples: list[list[int]] = []

        # (Blocks that several elements add to are set to zero first, as those filled in are.)
        fill = sorted(set(schedule.offset) - {pair for i, j in edges for pair in ((i, j), (j, i))})
        cones = [cone for joint in joints for cone in joint.cones]
        table = [nb, self.num_unknowns, self.num_inputs, self.num_parameters, len(joints), len(contacts), self.num_impulses, self.num_cones]
        # (Couplings may repeat each other, as joints in loops may.)
        table += [int(not self.tree), len(fill), len(cones)]
        table += [sum(joint.has_free_data for joint in joints), sum(int(not _is_plain(group)) for group, _, _ in contacts)]
        table.append(sum(any(name in group.fields for name in CONTACT_LAWS) for group, _, _ in contacts))
        table += [sum(name in group.fields for name in COUPLES for group, _, _ in contacts), len(coupled)]
        table += [len(self.tree), self.num_coordinates]
        for body in range(nb):
            table += [schedule.diagonal_offset[body], schedule.rhs_offset[body]]
        free_data, laws, first_cone = itertools.count(), itertools.count(), 0
        for joint in joints:
            parent, child, node = joint.parent, joint.child, joint.node
            table += [parent, child, joint.held_translations, joint.held_rotations, joint.row, joint.input, joint.parameters]
            table += [int(joint.has_spring), int(joint.has_damper), joint.armature, joint.lower, joint.upper, joint.limited_rotations]
            table += [
                joint.extra,
                first_cone,
                len(joint.cones),
                int(any(cone[2] == 2 for cone in joint.cones)),
                next(free_data) if joint.has_free_data else -1,
            ]
            table += [joint.size, schedule.rhs_offset[node] if joint.size else -1, schedule.diagonal_offset[node] if joint.size else -1]
            for pair in ((child, node), (node, child), (parent, node), (node, parent)):
                table.append(schedule.offset.get(pair, -1))
            first_cone += len(joint.cones)
        for contact, (group, member, offset) in enumerate(contacts):
            friction, facets = CONTACT_MODELS.index(group.cls), getattr(group.template, "facets", 0)
            impulse, slack = group.impulse_index[member].tolist(), group.slack_index[member].tolist()
            table += [int(group.body_index[member, 0]), friction, facets, impulse[0], slack[0], offset]
            given = [name for name in CONTACT_LAWS + COUPLES if name in group.fields]
            places = {name: offset + CONTACT_PARAMETERS + k for k, name in enumerate(given)}
            has_law, turning = any(name in CONTACT_LAWS for name in given), [name for name in COUPLES if name in given]
            table.append(-1 if _is_plain(group) else len(pairs))
            table += [places.get(name, -1) for name in CONTACT_LAWS[:3]]
            # Torsional friction, which is an orthant, comes before the second-order cones of sliding and rolling.
            table += [next(laws) if has_law else -1, group.template.cones.orthant if friction == 1 else 1, len(couples), len(turning)]
            for name in turning:
                own, model, directions = (1, 2, 2) if name == COUPLES[0] else (len(impulse) - 3, 1, 0)
                couples.append([contact, places[name], -1, model, directions, impulse[own], slack[own], *[-1] * 6, 0, 0, 0])
            if not _is_plain(group):
                body, solids = int(group.body_index[member, 0]), _kinds(group)
                other = int(group.body_index[member, 1]) if group.body_index.shape[1] > 1 else nb
                kinds = [list(SHAPES).index(kind) for kind in solids]
                shape = offset + CONTACT_PARAMETERS + len(given)
                blocks = [schedule.offset.get(pair, -1) for pair in ((body, other), (other, body))]
                pairs.append([other, *kinds, shape, shape + SHAPES[solids[0]], *blocks])
        table += self.impulse_index
        for i, j in fill:
            table += [schedule.offset[i, j], sizes[i] * sizes[j]]
        for number, joint in enumerate(joints):
            for cone in joint.cones:
                table += [number, *cone]
        for numbers in pairs + couples:
            table += numbers
        joint_numbers = {id(joint.module): number for number, joint in enumerate(joints)}
        for node, (group, member, offset) in zip(coupling_nodes, coupled, strict=True):
            element, bodies = group.members[member], group.body_index[member].tolist()
            assert isinstance(element, JointCoupling)
            table += [*(joint_numbers[id(joint)] for joint in element.joints), *element.coordinates]
            table += [int(group.impulse_index[member, 0]), offset, schedule.rhs_offset[node], schedule.diagonal_offset[node], *bodies]
            table += [schedule.offset.get((body, node), -1) for body in bodies] + [schedule.offset.get((node, body), -1) for body in bodies]
        for entry in self.tree:
            table += [joint_numbers[id(entry.joint)], entry.coordinates.start]
        return np.asarray(table, dtype=np.int32), schedule

    def _placed(self, groups: Sequence[Group]) -> list[tuple[Group, int, int]]:
        """Members of contact or coupling groups: group, number in it, position of its parameters."""
        everything = self.joint_groups + self.joint_cone_groups + self.contact_groups + self.coupling_groups
        offsets = {id(group): offset for group, offset in zip(everything, self.parameter_offset, strict=True)}
        return [(group, member, offset) for group in groups for member, offset in enumerate(offsets[id(group)])]

    def _joint_rows(self, acting: tuple[bool, ...]) -> list[_JointRow]:
        rows: dict[int, _JointRow] = {}
        for number, group in enumerate(self.joint_groups):
            cls, (has_spring, has_damper) = group.cls, acting[2 * number : 2 * number + 2]
            for member, (parent, child) in enumerate(group.body_index.tolist()):
                impulse, inputs = group.impulse_index[member].tolist(), group.input_index[member].tolist()
                free = cls.free_translations + cls.free_rotations  # type: ignore[attr-defined]
                offset = self.parameter_offset[number][member]
                rows[id(group.members[member])] = _JointRow(
                    module=group.members[member],
                    parent=parent,
                    child=child,
                    held_translations=3 - cls.free_translations,  # type: ignore[attr-defined]
                    held_rotations=3 - cls.free_rotations,  # type: ignore[attr-defined]
                    row=impulse[0] if impulse else -1,
                    input=inputs[0] if inputs else -1,
                    parameters=offset,
                    has_spring=has_spring,
                    has_damper=has_damper,
                    armature=offset + JOINT_FIXED_PARAMETERS + 3 * free if "armature" in group.fields else -1,
                )
        for number, group in enumerate(self.joint_cone_groups):
            for member, element in enumerate(group.members):
                assert isinstance(element, JointElement)
                impulse, slack = group.impulse_index[member].tolist(), group.slack_index[member].tolist()
                offset = self.parameter_offset[len(self.joint_groups) + number][member]
                rows[id(element.joint)].add(element, impulse, slack, offset)
        return list(rows.values())


@dataclass
class _JointRow:
    """A joint in the kernel's table (`JointTable` in mechanism.hpp), and its limits and frictions (`JointConeTable`, but for the joint)."""

    module: Element
    parent: int
    child: int
    held_translations: int
    held_rotations: int
    row: int
    input: int
    parameters: int
    has_spring: bool
    has_damper: bool
    armature: int
    lower: int = -1
    upper: int = -1
    limited_rotations: int = 0
    extra: int = 0
    node: int = -1
    cones: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def held(self) -> int:
        return self.held_translations + self.held_rotations

    @property
    def has_free_data(self) -> bool:
        return self.armature >= 0 or bool(self.cones)

    @property
    def size(self) -> int:
        return 6 + self.extra if self.has_damper or self.has_free_data else self.held

    def add(self, element: JointElement, impulse: list[int], slack: list[int], offset: int) -> None:
        """The cones of a `JointLimits` or `JointFriction` whose parameters are at `offset`."""
        joint = element.joint
        free, translations = joint.num_coordinates, joint.free_translations
        if isinstance(element, JointFriction):
            self.cones += [(i, self.held + i, 2, impulse[i], slack[i], free, offset + i) for i in range(free)]
            return
        self.lower, self.upper = offset, offset + free
        turns = [any(i >= translations for i in side) for side in joint.limited]
        self.limited_rotations = turns[0] + 2 * turns[1]
        if joint.free_rotations > 1 and self.limited_rotations:
            # Components of a rotation vector push in other directions than inputs do: rows behind those of the free directions.
            self.extra = joint.free_rotations
        place = iter(zip(impulse, slack, strict=True))
        for kind, side in enumerate(joint.limited):
            for i in side:
                row = 6 + i - translations if self.extra and i >= translations else self.held + i
                self.cones.append((i, row, kind, *next(place), 1, offset + kind * free + i))


_numbers = itertools.count()
_by_number: weakref.WeakValueDictionary[int, Program] = weakref.WeakValueDictionary()
_by_system: weakref.WeakValueDictionary[int, Program] = weakref.WeakValueDictionary()


def program(system: System) -> Program:
    """The program of a system, lowered at its first use and kept by whoever asked for it."""
    return _by_system.get(id(system)) or Program(system)


def by_number(number: int) -> Program:
    """The program that an operator was given the number of.

    Raises:
        RuntimeError: it is gone, together with its mechanism.
    """
    found = _by_number.get(number)
    if found is None:
        raise RuntimeError("torchdojo: the mechanism of this step no longer exists; keep it alive until its gradients are taken")
    return found


def _parameter_width(group: Group) -> int:
    if issubclass(group.cls, StandardJoint):
        per_coordinate = 3 + ("armature" in group.fields)
        return JOINT_FIXED_PARAMETERS + per_coordinate * (group.cls.free_translations + group.cls.free_rotations)
    if isinstance(group.template, JointElement):
        return (1 if group.cls is JointFriction else 2) * group.template.joint.num_coordinates
    if isinstance(group.template, JointCoupling):
        return COUPLING_PARAMETERS
    shapes = 0 if _is_plain(group) else sum(SHAPES[kind] for kind in _kinds(group))
    return CONTACT_PARAMETERS + sum(name in group.fields for name in CONTACT_LAWS + COUPLES) + shapes


def _is_plain(group: Group) -> bool:
    """Whether the contacts of a group are those of a sphere with a half-space of the world, and without couples."""
    return _kinds(group) == ("sphere", "surface") and group.body_index.shape[1] == 1 and not any(name in group.fields for name in COUPLES)


def _kinds(group: Group) -> tuple[str, str]:
    """Shapes of the contacts of a group, and of what they touch: names of `SHAPES`."""
    contact = group.template
    assert isinstance(contact, Contact)
    return contact.shape_kind, contact.other_kind


def _shape(fields: dict[str, Tensor], kind: str, prefix: str) -> list[Tensor]:
    """Numbers of a shape as geometry.hpp reads them."""
    if kind == "surface":
        return [unit(fields["normal"]), fields["offset"][..., None]]
    pieces = [fields[f"{prefix}point"], fields[f"{prefix}radius"][..., None]]
    if kind != "sphere":
        pieces.append(normalize(fields[f"{prefix}orientation"]))
        pieces.append(0.5 * (fields[f"{prefix}length"][..., None] if kind == "capsule" else fields[f"{prefix}size"]))
    return pieces


def _basis(axis: Tensor, free: int) -> Tensor:
    """Rows of held directions, then of free ones, (..., 9), as `StandardJoint._rows` chooses them."""
    if free in (0, 3):
        return torch.eye(3, dtype=axis.dtype).flatten().expand(*axis.shape[:-1], 9)
    axis = unit(axis)
    across = orthonormal_complement(axis).flatten(-2)
    return torch.cat((across, axis) if free == 1 else (axis, across), dim=-1)


def _concatenate(pieces: Sequence[Tensor]) -> Tensor:
    """Along the last dimension, batch dimensions broadcast."""
    count = max(piece.shape[0] for piece in pieces)
    return torch.cat([piece if len(piece) == count else piece.expand(count, *piece.shape[1:]) for piece in pieces], dim=-1)


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@functools.cache
def kernel_library() -> ctypes.CDLL:
    """The loaded kernel with the argument types of step_api.cpp."""
    kernel = library()
    kernel.td_mechanism_create.restype = ctypes.c_void_p
    kernel.td_mechanism_create.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    kernel.td_mechanism_destroy.restype = None
    kernel.td_mechanism_destroy.argtypes = [ctypes.c_void_p]
    kernel.td_lanes.restype = ctypes.c_int64
    kernel.td_same.restype = ctypes.c_int64
    kernel.td_same.argtypes = [ctypes.c_int64, *[ctypes.c_void_p] * 3]
    entries = {"td_rollout": 3, "td_rollout_adjoint": 4, "td_near_limit": 4, "td_jacobian": 4, "td_minimal_jacobian": 6}
    for name, count in entries.items():
        function = getattr(kernel, name)
        function.restype = None
        function.argtypes = [ctypes.c_void_p] * count
    kernel.td_states.restype = None
    kernel.td_states.argtypes = [ctypes.c_void_p, *[ctypes.c_int64] * 2, ctypes.c_void_p, ctypes.c_int64, *[ctypes.c_void_p] * 3]
    return kernel

"""A system lowered for the kernel: tables, elimination schedule, packed parameters, and the kernel's objects made from them."""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdojo.dynamics.system import Group, System
from torchdojo.elements import joints as joints_module
from torchdojo.elements.contact import SAMPLED
from torchdojo.elements.contacts import Contact, LinearContact
from torchdojo.elements.coupling import Coupling
from torchdojo.elements.couplings import JointCoupling, JointLock, SumCoupling
from torchdojo.elements.curves import CURVES
from torchdojo.elements.joint_cones import JointElement
from torchdojo.elements.joints import StandardJoint
from torchdojo.elements.servo import SERVO
from torchdojo.elements.string_coupling import StringCoupling
from torchdojo.elements.tendon import Tendon
from torchdojo.elements.tendon_paths import FixedTendon
from torchdojo.native import calls, graph, header
from torchdojo.native.loader import NativeUnavailable, library
from torchdojo.native.lowering import lower
from torchdojo.native.packing import Packed, bounds, mark_unphysical, pack, pieces_of, samples_of
from torchdojo.native.tables import CONTACT_MODELS, MOST_FACETS, StateMap
from torchdojo.native.tendons import TENDONS, unsupported_tendon
from torchdojo.state.layout import STATE_SIZE
from torchdojo.state.minimal import JointOrder, spanning_order
from torchdojo.state.unknowns import ParameterSpec

__all__ = ["Packed", "Program", "by_number", "program", "unsupported"]

Acting = tuple[tuple[bool, bool], ...]  # per group of joints, and then of tendons: see `lower`

_JOINTS = tuple(getattr(joints_module, name) for name in joints_module.JOINT_TYPES)
_COUPLINGS = (JointCoupling, JointLock, StringCoupling, SumCoupling)


def unsupported(system: System) -> str | None:
    """An element of the system that the kernel lacks: one written by a user, or one with tensors of its own. None if there is none."""
    for group in system.groups:
        if isinstance(group.template, JointElement):
            continue  # supported if its joint is supported
        name = next(key for key, element in system.elements.items() if element is group.template)
        if group.cls not in (*_JOINTS, *CONTACT_MODELS, *_COUPLINGS, *TENDONS):
            return f"{name}, a {group.cls.__name__}, is not a built-in joint, coupling, tendon or contact"
        if isinstance(group.template, Tendon | StringCoupling):
            reason = unsupported_tendon(group.template, _JOINTS)
            if reason is not None:
                return f"{name}: {reason}"
        if isinstance(group.template, LinearContact) and group.template.facets > MOST_FACETS:
            return f"{name}: it knows pyramids of {MOST_FACETS} facets, not of {group.template.facets}"
        if group.extra and not (isinstance(group.template, Contact) and group.template.other_kind in SAMPLED):
            return f"{name}, a {group.cls.__name__}, has tensors that are not physical fields: {list(group.extra)}"
    return None


class Program:
    """A system lowered for the kernel.

    Springs and dampers that are zero in every environment cost nothing, so there is one table per combination that acts. Operators
    identify a program by its `number`. Copies and unpickled programs have numbers of their own, and are lowered anew.
    """

    def __init__(self, system: System) -> None:
        self.system = system
        self.groups = system.groups
        self.num_bodies, self.num_unknowns = system.num_bodies, system.num_unknowns
        self.num_inputs, self.num_cones = system.num_inputs, system.num_cones
        self.pieces, self.num_parameters = pieces_of(system)
        self.bounds = bounds(self.pieces, samples_of(self.pieces, self.num_parameters)[1])
        self.tendon_groups = [g for g in system.groups if isinstance(g.template, Tendon)]
        #: whether the reference takes gradients by numbers: the kernel has none by joints of sums of the rate before the step
        self.leaves_numbers = any(isinstance(g.template, FixedTendon) and "armature" in g.fields for g in self.tendon_groups)
        #: energies that the kernel does not know, since tendons and couplings that yield have parts in them
        self.unknown_energies = {
            which
            for which, unknown in (
                (StateMap.POTENTIAL_ENERGY, bool(self.tendon_groups) or any("compliance" in g.fields for g in self.groups)),
                (StateMap.KINETIC_ENERGY, any("armature" in g.fields for g in self.tendon_groups)),
            )
            if unknown
        }
        self.joint_groups = [g for g in system.groups if isinstance(g.template, StandardJoint)]
        self.num_impulses = sum(piece.stop - piece.start for piece in system.impulse_layout.values())
        self.tree, self.has_loops = self._tree(), self._has_loops()
        self.num_coordinates = sum(entry.joint.num_coordinates for entry in self.tree)
        self.map_sizes = self._map_sizes()
        self.parameter_specs: list[ParameterSpec] = system.parameter_specs()
        self._begin()

    def _tree(self) -> list[JointOrder]:
        """The joints of the spanning tree from the world outwards; none where no chain of joints leads to a body."""
        joints = {key.partition(".")[2]: element for key, element in self.system.elements.items() if isinstance(element, StandardJoint)}
        try:
            return spanning_order(self.system.body_names, joints)
        except ValueError:
            return []

    def _map_sizes(self) -> dict[StateMap, tuple[int, int]]:
        """Sizes of argument and value of the functions of states."""
        state, contacts = STATE_SIZE * self.num_bodies, sum(isinstance(e, Contact) for e in self.system.elements.values())
        return {
            StateMap.TO_MINIMAL: (state, 2 * self.num_coordinates),
            StateMap.TO_MAXIMAL: (2 * self.num_coordinates, state),
            StateMap.DISTANCES: (state, contacts),
            StateMap.CONTACT_POINTS: (state, 3 * contacts),
            StateMap.KINETIC_ENERGY: (state, 1),
            StateMap.POTENTIAL_ENERGY: (state, 1),
        }

    def _has_loops(self) -> bool:
        """Whether joints outside the tree, or couplings, may repeat what other joints hold."""
        pairs = [tuple(pair) for group in self.joint_groups for pair in group.body_index.tolist()]
        return any(isinstance(g.template, Coupling) for g in self.groups) or graph.has_loops(self.num_bodies, pairs)

    def _begin(self) -> None:
        self.number = next(_numbers)
        self._handles: dict[Acting, int] = {}
        self._lock = threading.Lock()
        self._last: tuple[Tensor, Packed] | None = None
        _by_number[self.number] = self
        _by_system[id(self.system)] = self  # a program keeps its system, so the id stays taken

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("number", "_handles", "_lock", "_last")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    # -- parameters ----------------------------------------------------------------------------------------------------------------------

    def pack(self, parameters: Sequence[Tensor]) -> Tensor:
        """Stacked parameters, batch dimensions flattened to N or 1, as (N or 1, num_parameters), float64."""
        return pack(self.pieces, self.fields(parameters), parameters)

    def fields(self, parameters: Sequence[Tensor]) -> dict[int, dict[str, Tensor]]:
        """The physical fields of each group, by its id, among stacked parameters."""
        return {id(group): fields for group, fields in zip(self.groups, self.system.named_parameters(parameters), strict=True)}

    def _acting(self, parameters: Sequence[Tensor]) -> Acting:
        fields = self.fields(parameters)
        joints = [fields[id(group)] for group in self.joint_groups]
        curved = [any(name in values for name in CURVES) for values in joints]
        acting = [
            (curve or bool(values["spring"].any()), curve or _damps(group, values))
            for group, values, curve in zip(self.joint_groups, joints, curved, strict=True)
        ]
        for group in self.tendon_groups:
            values, implicit = fields[id(group)], bool(getattr(group.template, "implicit", False))
            always = any(name in values for name in Tendon.optional)
            acting.append((always or bool(values["damping"].any()) or (implicit and bool(values["stiffness"].any())), False))
        return tuple(acting)

    def handle(self, parameters: Sequence[Tensor]) -> int:
        """The kernel's object for these parameters."""
        acting = self._acting(parameters)
        with self._lock:
            if acting not in self._handles:
                self._handles[acting] = self._create(acting)
            return self._handles[acting]

    def packed(self, parameters: Sequence[Tensor]) -> Packed:
        """`pack` and `handle` of parameters whose batch dimensions are flattened to N or 1, kept for equal numbers in the next call."""
        if max(len(p) for p in parameters) > 1:
            return Packed(self._marked(parameters), self.handle(parameters))
        numbers = torch.cat([p.reshape(-1) for p in parameters])
        last = self._last
        if last is None or not torch.equal(last[0], numbers):
            last = self._last = numbers, Packed(self._marked(parameters), self.handle(parameters))
        return last[1]

    def _marked(self, parameters: Sequence[Tensor]) -> Tensor:
        return mark_unphysical(self.pack(parameters), *self.bounds, self.num_bodies)

    def _create(self, acting: Acting) -> int:
        table, schedule = lower(self.system, self.pieces, self.tree, self.has_loops, acting, self.num_parameters)
        handle = create(table, schedule.table)
        weakref.finalize(self, kernel_library().td_mechanism_destroy, ctypes.c_void_p(handle))
        return handle


def _damps(group: Group, own: Mapping[str, Tensor]) -> bool:
    """Whether any damper, implicit spring or servo of a group of joints is not zero."""
    joint = group.template
    assert isinstance(joint, StandardJoint)
    names = ("damper", *(("spring",) if joint.implicit else ()), *(name for name in SERVO if name in own))
    return any(bool(own[name].any()) for name in names)


def create(table: np.ndarray, schedule: np.ndarray, layout: int | None = None) -> int:
    """The kernel's object for these tables.

    Raises:
        NativeUnavailable: the kernel has other declarations than this process, or the length of a table differs from that in its head.
    """
    actual = header.layout() if layout is None else layout, table.size, schedule.size
    expected = (ctypes.c_uint64 * 3)()
    handle = kernel_library().td_mechanism_create(
        actual[0], table.ctypes.data, table.size, schedule.ctypes.data, schedule.size, ctypes.addressof(expected)
    )
    if handle:
        return int(handle)
    if actual[0] != expected[0]:
        raise NativeUnavailable(
            f"the native kernel was compiled with the layout {expected[0]:016x} of its tables, and this process has {actual[0]:016x}: "
            "torchdojo's files changed after the kernel was loaded. Start the process again."
        )
    names = ("tables", "schedule")
    wrong = [f"{n} of {g} numbers where its head says {e}" for n, g, e in zip(names, actual[1:], expected[1:], strict=True) if g != e]
    raise NativeUnavailable(f"the native kernel refuses {' and '.join(wrong)}; this is a defect of torchdojo, report it.")


_numbers = itertools.count()
_by_number: weakref.WeakValueDictionary[int, Program] = weakref.WeakValueDictionary()
_by_system: weakref.WeakValueDictionary[int, Program] = weakref.WeakValueDictionary()


def program(system: System) -> Program:
    """The program of a system, lowered at its first use and kept alive by its users."""
    return _by_system.get(id(system)) or Program(system)


def by_number(number: int) -> Program:
    """The program with this number.

    Raises:
        RuntimeError: the program is gone, together with its mechanism.
    """
    lowered = _by_number.get(number)
    if lowered is None:
        raise RuntimeError(
            "torchdojo: the mechanism of this step does not exist here, or exists no longer; keep it alive until its gradients are taken. "
            "A program of torch.export runs in the process that made it: export in the process that runs it"
        )
    return lowered


@functools.cache
def kernel_library() -> ctypes.CDLL:
    """The loaded kernel with the types of its functions."""
    return calls.bind(library())

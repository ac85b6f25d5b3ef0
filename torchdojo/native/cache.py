"""Stacked and packed parameters of a mechanism, kept while its numbers stay the same.

Stacking and packing the 179 tensors of a quadruped takes 0.4 ms, longer than its step of 0.15 ms on one core.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import itertools
import pathlib
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from torchdojo.elements.actuators import Actuators
from torchdojo.elements.contact import SAMPLED, Contact
from torchdojo.elements.joints import Joint
from torchdojo.gradients.batching import flatten_batch
from torchdojo.native.actuation import Law, lower_law
from torchdojo.native.program import Packed, Program, kernel_library
from torchdojo.parameters import PhysicalModule, differentiated
from torchdojo.state.unknowns import NUM_DATA

#: `c10::TensorImpl::requires_grad() const`, as C++ compilers name it
REQUIRES_GRAD = "_ZNK3c1010TensorImpl13requires_gradEv"

END = object()  # stands behind all parameters, so that one more or one fewer shows

__all__ = ["ParameterCache", "Parameters", "modules_of"]


class Parameters:
    """Stacked parameters, and the form that the kernel reads: once for all environments, or with a row for each."""

    def __init__(self, program: Program, tensors: Sequence[Tensor]) -> None:
        self._program = program
        self.tensors = tensors
        self.serial: int | None = None  # live.py finds these parameters again by this number
        self.law: Law | None = None  # turns controls into inputs

    @functools.cached_property
    def requires_grad(self) -> bool:
        return any(t.requires_grad for t in self.tensors)

    @functools.cached_property
    def _flattened(self) -> tuple[list[Tensor], torch.Size]:
        tensors = [t.detach() for t in self.tensors]
        none = torch.empty(1)
        flat, batch = flatten_batch(self._program.system.step_specs(), [none] * NUM_DATA + tensors)
        return flat[NUM_DATA:], batch

    @property
    def flat(self) -> list[Tensor]:
        return self._flattened[0]

    @property
    def batch(self) -> torch.Size:
        return self._flattened[1]

    @functools.cached_property
    def packed(self) -> Packed:
        return self._program.packed(self.flat)

    @property
    def shared(self) -> bool:
        """Whether all environments have the same parameters."""
        return self.batch.numel() == 1

    def with_law(self, law: Law) -> Parameters:
        """These parameters, for calls that take controls."""
        _ = self.packed, self.requires_grad  # once for all copies
        other = copy.copy(self)
        other.law, other.serial = law, None
        return other

    @functools.cached_property
    def finite(self) -> bool:
        """Whether the `packed` parameters are finite, or the kernel looks, because environments differ."""
        return not self.shared or bool(torch.isfinite(self.packed.values).all())

    def rows(self, batch: torch.Size) -> tuple[list[Tensor], Packed]:
        """Flat and packed parameters (N or 1, ...) of the environments of `batch`, with which the batch dimensions broadcast."""
        if self.shared or self.batch == batch:
            return self.flat, self.packed

        def spread(tensor: Tensor) -> Tensor:
            event = tensor.shape[1:]
            return tensor if len(tensor) == 1 else tensor.reshape(*self.batch, *event).expand(*batch, *event).reshape(-1, *event)

        return [spread(tensor) for tensor in self.flat], self.packed._replace(values=spread(self.packed.values))


@functools.cache
def _data_address() -> int:
    """The address of PyTorch's C function that gives the address of a tensor's data."""
    folder = pathlib.Path(torch.__file__).parent / "lib"
    name = "libtorch_cpu.dylib" if sys.platform == "darwin" else "libtorch_cpu.so"
    return ctypes.cast(ctypes.CDLL(str(folder / name)).aoti_torch_get_data_ptr, ctypes.c_void_p).value or 0


@functools.cache
def _requires_grad() -> int | None:
    """The address of PyTorch's method that tells whether a tensor requires grad; None where its library has no such symbol."""
    folder = pathlib.Path(torch.__file__).parent / "lib"
    try:
        method = getattr(ctypes.CDLL(str(folder / ("libc10.dylib" if sys.platform == "darwin" else "libc10.so"))), REQUIRES_GRAD)
    except (OSError, AttributeError):
        return None
    return ctypes.cast(method, ctypes.c_void_p).value


class Snapshot:
    """The present parameters of modules: their tensors, addresses and numbers.

    A look at the 179 tensors of a quadruped comes with every call, so it is made of few calls into C.
    """

    def __init__(self, modules: Sequence[PhysicalModule], chosen: bool) -> None:
        whole, parts = [module for module in modules if chosen or not module.chosen], defaultdict(list)
        for module in modules:
            if module.chosen and not chosen:
                parts[tuple(_looked_at(module, chosen))].append(module._parameters)
        self._values = [*(module._parameters.values() for module in whole), (END,)]  # these views see what changes
        self._parts = [(itemgetter(*names, names[0]), slots) for names, slots in parts.items()]  # of at least two: tuples
        self._kept = list(self._all())  # so that no other object gets their addresses
        self._objects = self._present()
        self._tensors = tensors = [cast(Tensor, module._parameters[name]) for module in modules for name in _looked_at(module, chosen)]
        self._implementations = np.array([t._cdata for t in tensors], dtype=np.uintp)
        self._addresses = np.array([t.data_ptr() for t in tensors], dtype=np.uintp)
        self._sizes = np.array([t.numel() * t.element_size() for t in tensors], dtype=np.int64)
        self._same, self._any = kernel_library().td_same, kernel_library().td_any
        method = _requires_grad()
        self._question = None if method is None else (len(tensors), self._implementations.ctypes.data, method)
        self._views = [t.detach().reshape(-1) for t in tensors]  # they share the numbers, since all tensors are contiguous
        self._remember()

    def _remember(self) -> None:
        """Copy the present numbers, to compare with later ones."""
        self._copy = torch.cat(self._views)
        arrays = self._implementations.ctypes.data, _data_address(), self._addresses.ctypes.data, self._sizes.ctypes.data
        self._arguments = len(self._tensors), *arrays, self._copy.data_ptr()

    def renewed(self) -> Snapshot | None:
        """A snapshot of new numbers in the same tensors, for a third of the time of `take`; None where anything else has changed."""
        tensors, sizes = self._tensors, self._sizes.tolist()
        if not self._unmoved() or self._differentiated():
            return None
        places = zip(tensors, self._addresses.tolist(), sizes, strict=True)
        if not all([t.data_ptr() == address and 8 * t.numel() == size and t.is_contiguous() for t, address, size in places]):
            return None
        if any([t.dtype != torch.float64 for t in tensors]):
            return None
        other = copy.copy(self)
        other._remember()
        return other

    @staticmethod
    def take(modules: Iterable[PhysicalModule], chosen: bool = True) -> Snapshot | None:
        """A snapshot; None where parameters are differentiated, computed (parametrized), or not plain arrays of float64 on the host.

        Args:
            chosen: whether fields that steps choose (`PhysicalModule.chosen`) belong to it.
        """
        present = [module for module in modules if _looked_at(module, chosen)]
        for module in present:
            for name in _looked_at(module, chosen):
                tensor = module._parameters.get(name)
                if tensor is None or tensor.dtype != torch.float64 or not tensor.is_contiguous() or tensor.device.type != "cpu":
                    return None
                if differentiated(tensor) or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
                    return None
        return Snapshot(present, chosen)

    def holds(self, constant: bool | None = None) -> bool:
        """Whether the modules still have these parameters with these numbers.

        The numbers are compared because writing to `parameter.data` leaves no other trace. The comparison takes about 1 µs.

        Args:
            constant: whether a parameter that now requires grad counts as changed; None: it does where gradients are enabled.
        """
        if not self._unmoved():
            return False
        if (torch.is_grad_enabled() if constant is None else constant) and self._differentiated():
            return False
        # The same objects at the same addresses keep their data alive.
        return bool(self._same(*self._arguments))

    def _unmoved(self) -> bool:
        """Whether the same objects are parameters as before."""
        try:
            return self._present() == self._objects
        except (ValueError, KeyError):  # fewer than before, or a graph in the place of a parameter
            return False

    def _all(self) -> Iterator[Any]:
        parts = (itertools.chain.from_iterable(map(getter, slots)) for getter, slots in self._parts)
        return itertools.chain(itertools.chain.from_iterable(self._values), *parts)

    def _present(self) -> bytes:
        """The addresses of the objects that are parameters now. Comparing these takes half as long as `is` for each."""
        return np.fromiter(self._all(), object, len(self._kept)).tobytes()

    def _differentiated(self) -> bool:
        """Whether a tensor requires grad: one question to C, since each from Python takes 0.1 µs."""
        return any([t.requires_grad for t in self._tensors]) if self._question is None else bool(self._any(*self._question))


def _looked_at(module: PhysicalModule, chosen: bool) -> Iterable[str]:
    return module.fields if chosen or not module.chosen else [name for name in module.fields if name not in module.chosen]


class ParameterCache:
    """The last `Parameters` of a mechanism, and the last `Law` of its actuators. Copies and unpickled ones are empty.

    Args:
        chosen: whether fields that steps choose, such as the terms of near contacts, are among the parameters.
    """

    def __init__(self, chosen: bool = True) -> None:
        self._chosen = chosen
        self._last: tuple[Snapshot, Parameters] | None = None
        self._held = threading.local()
        self._law: tuple[Actuators, Snapshot, Law] | None = None
        self._driven: tuple[Parameters, Parameters] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ParameterCache, (self._chosen,)

    def law(self, program: Program, joints: Mapping[str, Joint], actuators: Actuators, constant: bool | None = None) -> Law | None:
        """The law of the actuators; None where its numbers require grad (`Snapshot.holds`) or are computed."""
        if self._law is None or self._law[0] is not actuators or not self._law[1].holds(constant):
            snapshot = Snapshot.take([actuators])
            self._law = None if snapshot is None else (actuators, snapshot, lower_law(program, joints, actuators))
        return None if self._law is None else self._law[2]

    def driven(self, parameters: Parameters, law: Law) -> Parameters:
        """`Parameters.with_law`, the same object for the same parameters and law."""
        last = self._driven
        if last is None or last[0] is not parameters or last[1].law is not law:
            last = self._driven = parameters, parameters.with_law(law)
        return last[1]

    @contextlib.contextmanager
    def holding(self, parameters: Parameters) -> Iterator[None]:
        """Parameters of a call that has just asked for them, and asks again in this thread: `get` compares no numbers."""
        before, self._held.parameters = getattr(self._held, "parameters", None), parameters
        try:
            yield
        finally:
            self._held.parameters = before

    def get(self, program: Program, mechanism: PhysicalModule, stack: Callable[[], Sequence[Tensor]]) -> Parameters:
        held: Parameters | None = getattr(self._held, "parameters", None)
        if held is not None:
            return held
        last = self._last
        if last is not None and last[0].holds():
            return last[1]
        snapshot = (None if last is None else last[0].renewed()) or Snapshot.take(modules_of(program, mechanism), self._chosen)
        with torch.set_grad_enabled(snapshot is None and torch.is_grad_enabled()):
            parameters = Parameters(program, stack())
        self._last = None if snapshot is None else (snapshot, parameters)
        return parameters

    def get_held(
        self, program: Program, mechanism: PhysicalModule, stack: Callable[[], Sequence[Tensor]], constant: bool = True
    ) -> Parameters | None:
        """`get` inside of transforms, forward mode and traced code; None where a parameter is part of them, or requires grad."""
        last = self._last
        held = last is not None and last[0].holds(constant)
        if last is None or not held or "packed" not in last[1].__dict__:
            with temporarily_clear_interpreter_stack(), torch.no_grad():
                if last is None or not held:
                    snapshot = Snapshot.take(modules_of(program, mechanism), self._chosen)
                    if snapshot is None:
                        return None
                    last = self._last = snapshot, Parameters(program, stack())
                # These are computed here, since inside of transforms results would be wrapped.
                last[1].batch, last[1].packed
        return last[1]

    def still_has(self, parameters: Parameters) -> bool:
        """Whether the last call had these parameters, and no number has changed since."""
        return self._last is not None and self._last[1] is parameters and self._last[0].holds(False)

    def last(self, driven: bool) -> Parameters | None:
        """The parameters of the last call, with its law if `driven`; None where they have another law."""
        parameters = None if self._last is None else self._last[1]
        if not driven:
            return parameters
        fits = self._driven is not None and self._law is not None and self._driven[0] is parameters and self._driven[1].law is self._law[2]
        return self._driven[1] if fits and self._driven is not None else None


def modules_of(program: Program, mechanism: PhysicalModule) -> list[PhysicalModule]:
    """The modules whose numbers are parameters of a step."""
    system = program.system
    members = [member for group in system.groups for member in group.members]
    grounds = dict.fromkeys(member.ground for member in members if isinstance(member, Contact) and member.other_kind in SAMPLED)
    return [mechanism, *system.bodies, *members, *grounds]

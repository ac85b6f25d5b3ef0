"""Numbers that operators look up when they run, so that code of `torch.compile` neither stacks nor passes them.

While Dynamo traces, `are_present` asks whether the tensors that it sees are those of the mechanism itself. Then the operators get no
parameters, and read those that the mechanism has when they run, from the cache of eager calls. Tensors that the traced code assigns, swaps
(`torch.func.functional_call`) or writes to before the step are passed as before. What it writes into a parameter after a step acts from the
next call on.
"""

from __future__ import annotations

import collections
import itertools
import weakref
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from torchdojo.gradients.request import Request
from torchdojo.native.cache import Parameters
from torchdojo.native.program import Program, by_number

__all__ = ["NOT_KEPT", "are_present", "batch_of", "given", "kept", "present", "provide", "serial_of"]

NOT_KEPT = -1  # the serial of parameters that are passed
MOST_KEPT = 4  # parameters of a mechanism that wait for backward


class Provider(Protocol):
    """The owner of a mechanism's parameters (`Backends`)."""

    def numbers(self, driven: bool) -> list[Tensor] | None: ...

    def present(self, driven: bool) -> Parameters: ...

    def present_batch(self, driven: bool) -> torch.Size: ...


_serials = itertools.count()
_providers: weakref.WeakValueDictionary[int, Provider] = weakref.WeakValueDictionary()
_kept: weakref.WeakKeyDictionary[Program, collections.OrderedDict[int, Parameters]] = weakref.WeakKeyDictionary()


def provide(program: Program, provider: Provider) -> None:
    """Let operators of this program ask `provider`."""
    _providers[program.number] = provider


def are_present(number: int, driven: bool, *tensors: Tensor) -> bool:
    """Whether these are the tensors of the mechanism of a program, and the code being traced has not written to them."""
    provider = _providers.get(number)
    own = None if provider is None else provider.numbers(driven)
    if own is None or len(own) != len(tensors) or any(a is not b for a, b in zip(own, tensors, strict=True)):
        return False
    return _unwritten({id(tensor) for tensor in own})


# This has the effect of torch.compiler.assume_constant_result, without importing the compiler: Dynamo calls it with the tensors themselves.
are_present._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _unwritten(numbers: set[int]) -> bool:
    """Whether no operation traced so far writes to tensors with these ids. `.data` counts as a write: it hides them."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    for tracer in InstructionTranslator.current_tx().output.tracers:
        for node in tracer.graph.find_nodes(op="placeholder"):
            argument = node.meta.get("grapharg")
            if argument is None or id(argument.example) not in numbers:
                continue
            if node.meta["example_value"]._version or any("get_data" in str(user.target) for user in node.users):
                return False
    return True


def given(program: Program, request: Request, parameters: Sequence[Tensor]) -> tuple[Sequence[Tensor], Parameters | None]:
    """The parameters of an operator: those that were passed, or those that the mechanism has now."""
    if parameters:
        return parameters, None
    own = present(program, request.driven)
    return own.tensors, own


def present(program: Program, driven: bool) -> Parameters:
    """The parameters that the mechanism has now."""
    return _provider(program).present(driven)


def batch_of(program: Program, driven: bool) -> torch.Size:
    """The batch dimensions of the parameters that a mechanism has now."""
    return _provider(program).present_batch(driven)


def serial_of(program: Program, parameters: Parameters | None) -> int:
    """A number by which backward finds these parameters again, although the mechanism may have others by then."""
    if parameters is None:
        return NOT_KEPT
    if parameters.serial is None:
        parameters.serial = next(_serials)
    kept = _kept.setdefault(program, collections.OrderedDict())
    kept[parameters.serial] = parameters
    kept.move_to_end(parameters.serial)
    while len(kept) > MOST_KEPT:
        kept.popitem(last=False)
    return parameters.serial


def kept(program: Program, serial: int) -> Parameters | None:
    """The parameters with this number; None where they were passed.

    Raises:
        RuntimeError: the parameters of the mechanism have changed too often since.
    """
    if serial == NOT_KEPT:
        return None
    found = _kept[program].get(serial) if program in _kept else None
    if found is None:
        raise RuntimeError(
            f"torchdojo: the numbers of the mechanism changed more than {MOST_KEPT - 1} times between a compiled step and its backward(); "
            "call backward() earlier, or compile the code without the step"
        )
    return found


def _provider(program: Program) -> Provider:
    provider = _providers.get(program.number)
    if provider is None:
        by_number(program.number)
        raise RuntimeError("torchdojo: the mechanism of this step no longer exists; keep it alive until its gradients are taken")
    return provider

"""Numbers that operators look up when they run, so that code of `torch.compile` neither stacks nor passes nor guards them.

While Dynamo traces, `own_batch` asks whether a step takes the mechanism's own numbers. Then the operators get no parameters, and read those
that the mechanism has when they run, from the cache of eager calls. Dynamo sees no physical module: one guard of our own looks at the
numbers before each call, packs those that have changed, and compiles anew where numbers are differentiated, or have other batch dimensions.
With ``torch.compiler.set_stance(skip_guard_eval_unsafe=True)`` nothing looks, and numbers stay as they are.

Tensors that the traced code assigns, swaps (`torch.func.functional_call`) or writes to before the step are passed to the operators. A
write to a parameter after a step acts from the next call on.
"""

from __future__ import annotations

import collections
import functools
import itertools
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from torchdojo.gradients.request import Request
from torchdojo.native.cache import Parameters
from torchdojo.native.program import Program, by_number
from torchdojo.parameters import PhysicalModule

__all__ = ["GUARD", "NOT_KEPT", "batch_of", "given", "kept", "own_batch", "present", "provide", "serial_of"]

NOT_KEPT = -1  # the serial of parameters that are passed
MOST_KEPT = 4  # parameters of a mechanism that wait for backward


class Provider(Protocol):
    """The owner of a mechanism's parameters (`Backends`)."""

    def modules(self, driven: bool) -> list[PhysicalModule]: ...

    def refresh(self, driven: bool, constant: bool) -> Parameters | None: ...

    def present(self, driven: bool) -> Parameters: ...


_serials = itertools.count()
_providers: weakref.WeakValueDictionary[int, Provider] = weakref.WeakValueDictionary()
_kept: weakref.WeakKeyDictionary[Program, collections.OrderedDict[int, Parameters]] = weakref.WeakKeyDictionary()


def provide(program: Program, provider: Provider) -> None:
    """Let operators of this program ask `provider`."""
    _providers[program.number] = provider


def own_batch(number: int, driven: bool) -> tuple[int, ...] | None:
    """The batch dimensions of a mechanism's numbers; None where code being traced changes or differentiates some."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        output = InstructionTranslator.current_tx().output
    except AttributeError:
        return None  # torch.export traces without Dynamo
    provider = _providers.get(number)
    constant = torch.is_grad_enabled()
    parameters = None if provider is None or output.export else provider.refresh(driven, constant)
    if provider is None or parameters is None:
        return None
    modules = provider.modules(driven)
    numbers = {id(module._parameters[name]) for module in modules for name in module.fields}
    if _assigned(output, modules) or not _unwritten(output, numbers) or not _guarded(provider, driven, constant, parameters.batch):
        return None
    return tuple(parameters.batch)


# This has the effect of torch.compiler.assume_constant_result, without importing the compiler.
own_batch._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _assigned(output: Any, modules: Iterable[PhysicalModule]) -> bool:
    """Whether the code traced so far has given other tensors to these modules, or swapped them."""
    effects = output.side_effects
    for module in modules:
        for owner in (module, module.__dict__, module._parameters, module._buffers):
            variable = effects.id_to_variable.get(id(owner))
            if variable is not None and effects.is_modified(variable):
                return True
    return False


def _unwritten(output: Any, numbers: set[int]) -> bool:
    """Whether no operation traced so far writes to tensors with these ids. `.data` counts as a write: it hides them."""
    for tracer in output.tracers:
        for node in tracer.graph.find_nodes(op="placeholder"):
            argument = node.meta.get("grapharg")
            if argument is None or id(argument.example) not in numbers:
                continue
            if node.meta["example_value"]._version or any("get_data" in str(user.target) for user in node.users):
                return False
    return True


def _guarded(provider: Provider, driven: bool, constant: bool, batch: torch.Size) -> bool:
    """Let Dynamo ask the provider before each call of the code being traced. False where this version of PyTorch has no such guard."""
    try:
        from torch._C._dynamo.guards import RootGuardManager
        from torch._dynamo.source import GlobalStateSource
        from torch._guards import Guard, TracingContext
    except ImportError:
        return False
    if not hasattr(RootGuardManager, "add_epilogue_lambda_guard"):
        return False
    guards = TracingContext.get().guards_context.dynamo_guards
    arguments = weakref.ref(provider), driven, constant, batch
    if all(getattr(guard.create_fn, "args", None) != arguments for guard in guards):
        guards.add(Guard(GlobalStateSource(), functools.partial(_build_guard, *arguments)))
    return True


def _build_guard(reference: weakref.ref[Provider], driven: bool, constant: bool, batch: torch.Size, builder: Any, _: Any) -> None:
    def holds(_: object) -> bool:
        provider = reference()
        parameters = None if provider is None else provider.refresh(driven, constant)
        return parameters is not None and parameters.batch == batch

    # It runs after all other guards, so that it runs for one of several compiled variants alone.
    builder.guard_manager.root.add_epilogue_lambda_guard(holds, ["the numbers of a torchdojo mechanism"], None)


#: name of the guard above among those that `guard_filter_fn` of `torch.compile` chooses from; without it, numbers are never looked at anew
GUARD = _build_guard.__name__


def given(program: Program, request: Request, parameters: Sequence[Tensor]) -> tuple[Sequence[Tensor], Parameters | None]:
    """The parameters of an operator: those that were passed, or those that the mechanism has now."""
    if parameters:
        return parameters, None
    current = present(program, request.driven)
    return current.tensors, current


def present(program: Program, driven: bool) -> Parameters:
    """The parameters that the mechanism has now: at the last look of a guard."""
    return _provider(program).present(driven)


def batch_of(program: Program, driven: bool) -> torch.Size:
    """The batch dimensions of the parameters that a mechanism has now."""
    return present(program, driven).batch


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
    parameters = _kept[program].get(serial) if program in _kept else None
    if parameters is None:
        raise RuntimeError(
            f"torchdojo: the numbers of the mechanism changed more than {MOST_KEPT - 1} times between a compiled step and its backward(); "
            "call backward() earlier, or compile the code without the step"
        )
    return parameters


def _provider(program: Program) -> Provider:
    provider = _providers.get(program.number)
    if provider is None:
        by_number(program.number)
        raise RuntimeError("torchdojo: the mechanism of this step no longer exists; keep it alive until its gradients are taken")
    return provider

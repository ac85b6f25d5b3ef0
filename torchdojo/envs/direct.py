"""Compiled functions that skip what `torch.compile` checks in every call, while nothing that it checks can change."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchdojo.native import live

__all__ = ["Direct", "light_guards"]

#: guards of a compiled step that are kept, see `light_guards`
GUARDS = ("TENSOR_MATCH", "GRAD_MODE", "GLOBAL_STATE", "DETERMINISTIC_ALGORITHMS", "TORCH_FUNCTION_STATE", "DEFAULT_DEVICE", live.GUARD)
Tensors = Sequence[Tensor]


def light_guards(entries: Sequence[Any]) -> list[bool]:
    """For `torch.compile(..., options={"guard_filter_fn": light_guards})`: check tensors, global switches and numbers of mechanisms alone.

    The other guards look at every attribute of the mechanism in every call, a tenth of the time of training an ant in batches of 32.
    """
    return [entry.guard_type in GUARDS for entry in entries]


class Direct:
    """A function (*tensors or None) -> tuple of tensors, compiled. It has no side effects and is not differentiated.

    `first` calls it through `torch.compile`, which looks at all that the code depends on, and remembers which code ran with which tensors.
    Calls after it run this code at once with other tensors of the same shapes. All that the function reads besides its arguments, such as
    weights, must stay as it was in `first`. For 32 ants, a call takes 0.05 ms less.

    fixed: a promise that all of this changes in place alone, ever, as weights do under an optimizer. Then `first` looks once for each
    shapes of its arguments, which saves 0.6 ms in every later one.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, ...]], *, fixed: bool = False) -> None:
        # Dynamo keeps compiled code by code object, which functions made in one place would share.
        copy = types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__, None, function.__closure__)
        # Not dynamic: a number that differs between two robots, such as a height, would become a symbol, which `math.isinf` does not take.
        self._checked = torch.compile(copy, fullgraph=True, dynamic=False, backend=self._compile)
        self._ran: tuple[Callable[[list[Any]], Tensors], list[Any], Tensors] | None = None
        self._plan: tuple[Callable[[list[Any]], Tensors], list[Any], list[tuple[int, int]], list[int]] | None = None
        self.fixed, self._layout = fixed, list[Any]()

    def _compile(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        """The default compiler of `torch.compile`, with a look at its innermost code."""
        from torch._functorch import config
        from torch._inductor import config as inductor
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner

        def inner(*arguments: Any, **options: Any) -> Any:
            code: Any = compile_fx_inner(*arguments, **options)
            run = getattr(code, "current_callable", None)
            if run is None:
                return code

            def watched(given: list[Any]) -> Tensors:
                kept = list(given)  # the code empties the list
                results: Tensors = run(given)
                self._ran = run, kept, results
                return results

            code.current_callable = watched
            return code

        # The cache would bring back code that no one looked at. Asserting the sizes of each product of matrices takes 0.05 ms in a call.
        # A value of more operations than six that several others need is computed once: the default of 30 would compute ELU thrice.
        with config.patch(enable_autograd_cache=False), inductor.patch(size_asserts=False, realize_opcount_threshold=6):
            return compile_fx(graph, inputs, inner_compile=inner)

    def first(self, *arguments: Tensor | None) -> Tensors:
        """The results, after all checks."""
        if self.fixed:
            layout = [None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype) for tensor in arguments]
            if self._plan is not None and layout == self._layout:
                return self(*arguments)
            self._layout = layout
        self._ran = self._plan = None
        results: Tensors = self._checked(*arguments)
        if self._ran is not None:
            self._plan = plan(*self._ran, arguments, results)
            self._ran = None
            if self.fixed and self._plan is not None:
                run, *rest = self._plan
                self._plan = Kept.of(run, self._plan[1]) or run, *rest
        return results

    @property
    def used(self) -> set[int] | None:
        """Numbers of the arguments that the code reads; None before it has run, or where this cannot be told."""
        return None if self._plan is None else {number for _, number in self._plan[2]} | {~k for k in self._plan[3] if k < 0}

    def __call__(self, *arguments: Tensor | None) -> Tensors:
        if self._plan is None:
            checked: Tensors = self._checked(*arguments)
            return checked
        run, held, places, order = self._plan
        inputs = held.copy()
        for place, number in places:
            inputs[place] = arguments[number]
        results = run(inputs)
        return [results[k] if k >= 0 else arguments[~k] for k in order]  # type: ignore[misc]  # None is no result


class Kept:
    """Code of the compiler, called always alike, with memory of its own for all that it does not return.

    This code allocates each intermediate value and each view anew, a hundred for a control step, in 1.6 µs each. Here they are allocated
    in the first call. Calls are the same sequence of allocations and views, so each is known by its number.

    Args:
        code: with globals `EMPTY` and `VIEW`. held: inputs of the code that are the same in every call; None: others.
    """

    EMPTY, VIEW = "empty_strided_cpu", "reinterpret_tensor"

    def __init__(self, code: types.FunctionType, owner: Any, held: Sequence[Any]) -> None:
        names = code.__globals__
        self._empty, self._view = names[self.EMPTY], names[self.VIEW]
        namespace = {**names, self.EMPTY: self._first_empty, self.VIEW: self._first_view}
        self._run: Any = types.MethodType(
            types.FunctionType(code.__code__, namespace, code.__name__, code.__defaults__, code.__closure__), owner
        )
        self._names, self._held = namespace, [tensor for tensor in held if tensor is not None]
        self._tensors: list[tuple[Tensor, int]] | None = []  # of the first call, with the number of what each is a view of
        self._next: Any = None

    @classmethod
    def of(cls, run: Any, held: Sequence[Any]) -> Kept | None:
        """None for code that is not of this kind."""
        code = getattr(run, "__func__", None)
        if not isinstance(code, types.FunctionType) or not {cls.EMPTY, cls.VIEW} <= code.__globals__.keys():
            return None
        return cls(code, run.__self__, held)

    def __call__(self, given: list[Any]) -> Tensors:
        if self._tensors is None:
            try:
                results: Tensors = self._run(given)
                return results
            except BaseException:
                self._next.restart()
                raise
        self._tensors = []
        results = self._run(given)
        self._keep(results)
        return results

    def _first_empty(self, *arguments: Any) -> Tensor:
        tensor: Tensor = self._empty(*arguments)
        self._tensors.append((tensor, -1))  # type: ignore[union-attr]
        return tensor

    def _first_view(self, base: Tensor, *arguments: Any) -> Tensor:
        assert self._tensors is not None
        tensor: Tensor = self._view(base, *arguments)
        bases = [k for k, (other, _) in enumerate(self._tensors) if other is base]
        held = any(base is other for other in self._held)
        self._tensors.append((tensor, bases[0] if bases else -2 if held else -3))
        return tensor

    def _keep(self, results: Tensors) -> None:
        """Choose what later calls use again: neither results, nor memory of results, nor views of arguments."""
        assert self._tensors is not None
        returned = {result.untyped_storage().data_ptr() for result in results}
        kept = list[Tensor | None]()
        for tensor, base in self._tensors:
            owned = (base == -2 or (base == -1 or (base >= 0 and kept[base] is not None))) and base != -3
            kept.append(tensor if owned and tensor.untyped_storage().data_ptr() not in returned else None)
        following = self._next = _Cycle(kept)
        empty, view = self._empty, self._view

        def own_empty(*arguments: Any) -> Tensor:
            tensor = following.take()
            return empty(*arguments) if tensor is None else tensor

        def own_view(base: Tensor, *arguments: Any) -> Tensor:
            tensor = following.take()
            return view(base, *arguments) if tensor is None else tensor

        self._names.update({self.EMPTY: own_empty, self.VIEW: own_view})
        self._tensors = None


class _Cycle:
    """Entries of a list, over and over."""

    def __init__(self, entries: list[Tensor | None]) -> None:
        self.entries = entries
        self.restart()

    def restart(self) -> None:
        """From the first again."""
        self.take = itertools.cycle(self.entries).__next__


def plan(run: Callable[[list[Any]], Tensors], given: list[Any], raw: Tensors, arguments: Sequence[Tensor | None], results: Tensors) -> Any:
    """How to run code at once: where its inputs come from, and where results are; None where this cannot be told.

    Tensors are recognized as objects. An input that is no argument is held. A result is one of the code, or else an argument (~number).
    Code with other results writes to something.
    """
    numbers = {id(tensor): number for number, tensor in enumerate(arguments) if tensor is not None}
    origins = {id(tensor): number for number, tensor in enumerate(raw)}
    origins = {**{key: ~number for key, number in numbers.items()}, **origins}
    tensors = sum(tensor is not None for tensor in arguments)
    if len(numbers) < tensors or not all(isinstance(tensor, Tensor) for tensor in given) or any(id(t) not in origins for t in results):
        return None
    order = [origins[id(tensor)] for tensor in results]
    if len(set(order) - {k for k in order if k < 0}) < len(raw):
        return None
    places = [(place, numbers[id(tensor)]) for place, tensor in enumerate(given) if id(tensor) in numbers]
    held = list(given)
    for place, _ in places:
        held[place] = None
    return run, held, places, order

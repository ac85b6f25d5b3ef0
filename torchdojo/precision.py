"""One precision inside, two outside: calls compute in float64, and take and return float32 where the state is float32.

Contact needs the digits of float64, and networks are written in float32. So `in_float64` stands around the calls of users: float32 tensors
come in as float64, results leave in the dtype of the first argument, the state. The conversions are operators of PyTorch, which
`.backward()`, forward mode, `torch.func` and `torch.compile` follow; gradients come back in the dtype of each input. Physical numbers of
modules stay float64 under `.float()` (`PhysicalModule._apply`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from torchdojo.parameters import result_tensor

__all__ = ["in_float64"]

_F = TypeVar("_F", bound=Callable[..., Any])
_SINGLE, _DOUBLE = torch.float32, torch.float64

AS_GIVEN = ("grad_kappa", "out")  # the first is compared with kappa in its own dtype
OPAQUE = "solution"  # a field of results that only warm starts read; it stays float64


def in_float64(method: _F) -> _F:
    """A method that takes tensors of float32, too, and returns tensors in the dtype of its first argument.

    A function among the arguments, a policy, gets states in this dtype, and may answer in either. Fields named "solution" stay float64. A
    float32 `out` of a pair of Jacobians is filled with both.

    Raises:
        TypeError: a tensor of another dtype, float16 or integers.
    """
    names = list(inspect.signature(method).parameters)[1:]

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_plain(args) and (not kwargs or _is_plain(kwargs.values())):
            return method(self, *args, **kwargs)
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            if isinstance(value, Tensor) and value.dtype not in (_DOUBLE, _SINGLE) and name not in AS_GIVEN:
                raise TypeError(f"{name}: got {value.dtype}; allowed: torch.float64 or torch.float32; convert it: {name}.double()")
        state = args[0] if args else kwargs.get(names[0])
        dtype = _SINGLE if isinstance(state, Tensor) and state.dtype == _SINGLE else _DOUBLE
        out = kwargs.pop("out", None) if dtype == _SINGLE else None
        named = {name: value if name in AS_GIVEN else _raised(value, dtype) for name, value in kwargs.items()}
        result = method(self, *(_raised(value, dtype) for value in args), **named)
        if dtype == _SINGLE:
            result = _lowered(result)
        return result if out is None else _written(result, out)

    return cast(_F, call)


def _is_plain(values: Iterable[Any]) -> bool:
    """Whether all values are as the method takes them: no tensor that is not float64, no function."""
    for value in values:
        if isinstance(value, Tensor):
            if value.dtype is not _DOUBLE:
                return False
        elif value is not None and callable(value):
            return False
    return True


def _raised(value: Any, dtype: torch.dtype) -> Any:
    """A float32 tensor as float64. A policy that gets its states in `dtype`, and whose answer is raised."""
    if isinstance(value, Tensor):
        return value.double() if value.dtype == _SINGLE else value
    if value is None or not callable(value):
        return value
    return lambda *states: _raised(value(*(state.to(dtype) for state in states)), dtype)


def _lowered(result: Any) -> Any:
    """Float64 tensors of a result as float32."""
    if isinstance(result, Tensor):
        return result.float() if result.dtype == _DOUBLE else result
    if not isinstance(result, tuple):
        return result
    names = getattr(result, "_fields", None)
    if names is None:
        return tuple(_lowered(value) for value in result)
    return type(result)(*(value if name == OPAQUE else _lowered(value) for name, value in zip(names, result, strict=True)))


def _written(blocks: tuple[Tensor, ...], out: Any) -> tuple[Tensor, ...]:
    """Blocks (..., n, k) side by side in `out`, as views of it."""
    sizes = [block.shape[-1] for block in blocks]
    whole = result_tensor(out, (*blocks[0].shape[:-1], sum(sizes)), blocks[0])
    return tuple(part.copy_(block) for part, block in zip(whole.split(sizes, dim=-1), blocks, strict=True))

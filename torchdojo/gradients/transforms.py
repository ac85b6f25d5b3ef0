"""PyTorch's side of the step's autograd Functions: forward mode, saved tensors beside hooks, derivatives that are refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

__all__ = ["LastDerivative", "apart_from_hooks", "forward_mode", "hooked", "save"]

Result = TypeVar("Result")


def forward_mode() -> bool:
    """Whether tensors may carry tangents: inside `torch.autograd.forward_ad.dual_level()`, which `torch.func.jvp` enters, too."""
    return forward_ad._current_level >= 0


def _top_hooks() -> Callable[[bool], Any] | None:
    """PyTorch's function that returns the innermost hooks of saved tensors. Version 2.6 has none."""
    return getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


def hooked() -> bool:
    """Whether tensors that autograd saves may go through hooks: inside of checkpoints, and where they are offloaded."""
    top = _top_hooks()
    return top is None or top(True) is not None


def save(ctx: Any, *tensors: Tensor) -> None:
    """Save tensors for backward and, in forward mode, for `jvp`.

    PyTorch keeps the tensors of `jvp` beside all hooks until the graph goes, and outputs among them would keep themselves alive. So
    nothing is saved for `jvp` without need.
    """
    ctx.save_for_backward(*tensors)
    if forward_mode():
        ctx.save_for_forward(*tensors)


def apart_from_hooks(forward: Callable[..., Result]) -> Callable[..., Result]:
    """Keep the caller's hooks of saved tensors away from graphs that `forward` makes and uses up.

    `torch.utils.checkpoint` and offloading would take such graphs for parts of the caller's graph. A checkpoint would compute its whole
    segment again whenever the solver asks for a Jacobian, and again within that. PyTorch 2.6 cannot return its hooks, so there they stay.
    """

    @functools.wraps(forward)
    def wrapped(*args: Any) -> Result:
        stack, top = torch._C._autograd, _top_hooks()
        hooks = []
        while top is not None and (pair := top(True)) is not None:
            hooks.append(pair)
            stack._pop_saved_tensors_default_hooks()
        try:
            return forward(*args)
        finally:
            for pack, unpack in reversed(hooks):
                stack._push_saved_tensors_default_hooks(pack, unpack)

    return wrapped


class LastDerivative(torch.autograd.Function):
    """A Function that is not differentiated further. A subclass has `forward`, `vmap`, and the error text `refusal`."""

    refusal = ""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @classmethod
    def jvp(cls, ctx: Any, *_: Any) -> Any:
        raise RuntimeError(cls.refusal)

    @classmethod
    def backward(cls, ctx: Any, *_: Any) -> Any:
        raise RuntimeError(cls.refusal)

"""What autograd Functions of the step need of PyTorch: forward mode, saved tensors past hooks, and derivatives that are refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

__all__ = ["LastDerivative", "apart_from_hooks", "forward_mode", "save"]

Result = TypeVar("Result")


def forward_mode() -> bool:
    """Whether tensors may carry tangents: inside `torch.autograd.forward_ad.dual_level()`, which `torch.func.jvp` enters, too."""
    return forward_ad._current_level >= 0


def save(ctx: Any, *tensors: Tensor) -> None:
    """For backward, and, where tangents may be asked for, for `jvp`: what is saved for that goes with the graph only, past all hooks, and
    outputs among it would keep themselves alive."""
    ctx.save_for_backward(*tensors)
    if forward_mode():
        ctx.save_for_forward(*tensors)


def apart_from_hooks(forward: Callable[..., Result]) -> Callable[..., Result]:
    """Keep the caller's hooks of saved tensors from the graphs that are made and used up inside.

    To `torch.utils.checkpoint` and to offloading they look like parts of the caller's graph: a checkpoint would compute its whole segment
    again whenever the solver asks for a Jacobian, and inside of that again.
    """

    @functools.wraps(forward)
    def wrapped(*args: Any) -> Result:
        stack = torch._C._autograd
        hooks = []
        while (top := stack._top_saved_tensors_default_hooks(True)) is not None:
            hooks.append(top)
            stack._pop_saved_tensors_default_hooks()
        try:
            return forward(*args)
        finally:
            for pack, unpack in reversed(hooks):
                stack._push_saved_tensors_default_hooks(pack, unpack)

    return wrapped


class LastDerivative(torch.autograd.Function):
    """A Function that is not differentiated further: a subclass has a `forward`, a `vmap`, and the error text `refusal`."""

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

"""Derivatives of sensors through the step that they read: C and D of `Mechanism.linearize(sensors=...)`.

With y = s(z, u, z⁺, λ), and the state z⁺ and the impulses λ of the step from z under u, the chain rule has

    C = s_z + s_z⁺ z⁺_z + s_λ λ_z        D = s_u + s_z⁺ z⁺_u + s_λ λ_u

on the tangent space of z. The derivatives of s by its arguments, a row for each number of y, come from one backward pass: row i belongs to
the i-th of m copies of the arguments. Rows that depend on the step, of forces and accelerations, take a batch of cotangents through it.

A tangent turns a quaternion as q ⊗ exp(δ), so that a gradient g by q is one of vec(q* ⊗ g) / 2 by δ.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.state.layout import ORIENTATION, STATE_SIZE

if TYPE_CHECKING:
    from torchdojo.engine.linearize import Linearization
    from torchdojo.sensors.reading import Given

__all__ = ["sensor_derivatives"]

#: States that are read together, copies included: they bound the memory, and are enough for the kernel's lanes.
TOGETHER = 16384


class _Caller(torch.nn.Module):
    """Methods of a mechanism as those of a module, whose parameters `torch.func.functional_call` replaces."""

    def __init__(self, mech: Any) -> None:
        super().__init__()
        self.mech = mech

    def forward(self, method: str, *arguments: Any, **options: Any) -> Any:
        return getattr(self.mech, method)(*arguments, **options)


class _Reader:
    """The sensors as a function of what a step starts from and gives."""

    def __init__(
        self, mech: Any, z: Tensor, given: Given, names: Sequence[str] | None, solved: Linearization, by_wrench: bool = False
    ) -> None:
        self.mech, self.given, self.names = mech, given, names
        self.key = "u" if given.ctrl is None else "ctrl"
        driven = given.u if given.ctrl is None else given.ctrl
        size = mech.num_inputs if given.ctrl is None else given.ctrl.shape[-1]
        driven = z.new_zeros(size) if driven is None else driven.detach()
        self.batch = solved.z.shape[:-1]
        self.z, self.driven = z.detach().expand(*self.batch, z.shape[-1]), driven.expand(*self.batch, size)
        self.numbers = {f"mech.{name}": value.detach() for name, value in mech.named_parameters() if value.requires_grad}
        self.arguments = [self.z, self.driven, solved.z.detach(), solved.impulses.detach()]
        if by_wrench:
            assert given.wrench is not None  # drives act by it
            self.arguments.append(given.wrench.detach().expand(*self.batch, given.wrench.shape[-1]))

    def read(self, z: Tensor, inputs: Tensor, after: Tensor, impulses: Tensor, wrench: Tensor | None = None) -> Tensor:
        """y (..., m)."""
        out = SimpleNamespace(z=after, impulses=impulses)
        wrench = self.given.wrench if wrench is None else wrench
        options: dict[str, Any] = {self.key: inputs, "wrench": wrench, "time": self.given.time, "repeat": self.given.repeat}
        return self._call("read_sensors", z, out, names=self.names, **options)

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """A method of the mechanism whose numbers are held: beside their gradients, the kernel reads no sensors."""
        if not self.numbers:
            return getattr(self.mech, method)(*arguments, **options)
        return torch.func.functional_call(_Caller(self.mech), self.numbers, (method, *arguments), options)

    def gradients(self, count: int) -> list[Tensor]:
        """Gradients of all `count` numbers by the arguments, (..., count, size of the argument) each."""
        together = max(1, TOGETHER // max(1, self.batch.numel()))
        if not count:
            return [value.new_zeros(*self.batch, 0, value.shape[-1]) for value in self.arguments]
        parts = [self._rows(range(first, min(first + together, count))) for first in range(0, count, together)]
        return [torch.cat(rows).movedim(0, -2) for rows in zip(*parts, strict=True)]

    def _rows(self, chosen: range) -> tuple[Tensor, ...]:
        """Gradients of the chosen numbers, which are in front."""
        with torch.enable_grad():
            leaves = [value.expand(len(chosen), *value.shape).clone().requires_grad_() for value in self.arguments]
            y = self.read(*leaves)
            total = y[..., chosen.start : chosen.stop].diagonal(dim1=0, dim2=-1).sum()
            if not total.requires_grad:
                return tuple(torch.zeros_like(leaf) for leaf in leaves)
            return torch.autograd.grad(total, leaves, materialize_grads=True)

    def through_step(self, by_after: Tensor, by_impulses: Tensor, options: dict[str, Any]) -> tuple[Tensor, ...]:
        """Products of rows (k, ..., 13 nb) and (k, ..., n) with the derivatives of z⁺ and impulses by z, by inputs, and by the wrench.

        The results are (k, ..., 13 nb), (k, ..., nu), and (k, ..., 6 nb) where it is wanted.
        """
        with torch.enable_grad():
            leaves = [value.clone().requires_grad_() for value in (self.z, self.driven, *self.arguments[4:])]
            wrench = leaves[2] if len(leaves) > 2 else self.given.wrench
            out = self._call("step", leaves[0], **{self.key: leaves[1]}, repeat=self.given.repeat, wrench=wrench, **options)

            def pull(after: Tensor, impulses: Tensor) -> tuple[Tensor, ...]:
                outputs, rows = (out.z, out.impulses), (after, impulses)
                return torch.autograd.grad(outputs, leaves, rows, retain_graph=True, materialize_grads=True)

            together = max(1, TOGETHER // max(1, self.batch.numel()))
            return torch.vmap(pull, chunk_size=together)(by_after, by_impulses)


def _tangent(gradient: Tensor, z: Tensor) -> Tensor:
    """Rows of gradients by states z (..., 13 nb), (..., k, 13 nb), as rows on the tangent spaces, (..., k, 12 nb)."""
    x, v, q, omega = gradient.unflatten(-1, (-1, STATE_SIZE)).split((3, 3, 4, 3), dim=-1)
    orientation = z.unflatten(-1, (-1, STATE_SIZE))[..., None, :, ORIENTATION]
    turn = 0.5 * quat.multiply(quat.conjugate(orientation), q)[..., 1:]
    return torch.cat((x, v, turn, omega), dim=-1).flatten(-2)


def sensor_derivatives(
    mech: Any, z: Tensor, given: Given, names: Sequence[str] | None, solved: Linearization, *, by_wrench: bool = False, **options: Any
) -> tuple[Tensor, ...]:
    """y (..., m), C (..., m, 12 nb) and D (..., m, nu), or by ctrl, and with `by_wrench` (..., m, 6 nb).

    Derivatives are zero where the step fails.

    Args:
        mech: with `step` and `read_sensors`. z: (..., 13 nb). given: of the reading, without `out`.
        solved: the linearization of the step. by_wrench: whether the derivative by the wrench is wanted. options: of the step.
    """
    reader = _Reader(mech, z, given, names, solved, by_wrench)
    with torch.no_grad():
        y = reader.read(*reader.arguments)
    by_state, by_inputs, by_after, by_impulses, *by_push = reader.gradients(y.shape[-1])
    results = [by_state, by_inputs, *by_push]
    depends = (by_after != 0).any(-1) | (by_impulses != 0).any(-1)
    stepped = depends.reshape(reader.batch.numel(), y.shape[-1]).any(0)
    if bool(stepped.any()):
        rows = (by_after[..., stepped, :].movedim(-2, 0), by_impulses[..., stepped, :].movedim(-2, 0))
        for result, through in zip(results, reader.through_step(*rows, options), strict=True):
            result[..., stepped, :] += through.movedim(0, -2)
    results[0] = _tangent(results[0], reader.z)
    good = (solved.status == 0)[..., None, None]
    return y, *(torch.where(good, result, 0.0) for result in results)

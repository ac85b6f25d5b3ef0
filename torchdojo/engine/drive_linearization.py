"""A step under controls of drives together with its derivatives, activations included, and those of sensors.

With inputs u and wrenches f of the drives, both functions of the state z, the activations a and the controls c before the step,

    δu = U_z δz + U_a δa + U_c δc        δf likewise
    δz⁺ = A δz + B δu + F δf             δy = C δz + D δu + G δf
    δa⁺ = D_a δa + D_c δc

A, B, C and D are those of `Mechanism.linearize`, in the kernel. F and G take a backward pass through the step, and only where drives act by
wrenches. The other derivatives are those of PyTorch, of the laws alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchdojo.state.layout import TANGENT_SIZE

__all__ = ["DriveLinearization", "LinearizedDrives", "law_slopes"]


class DriveLinearization(NamedTuple):
    """A step of drives with its derivatives. The changes of a state are [dx, dv, dphi, domega] of each body, then those of activations.

    z: (..., 13 nb) and act: (..., na) after it. A: (..., 12 nb + na, 12 nb + na) by z and act. B: (..., 12 nb + na, n) by the controls.
    status, iterations: (...). solution: (..., num_unknowns), for a warm start.
    y, C, D: with `sensors=`, what the sensors read (..., m), and its derivatives (..., m, 12 nb + na) and (..., m, n).
    Where a step fails, z is that of its start, and the derivatives of z and y are zero.
    """

    z: Tensor
    act: Tensor
    A: Tensor
    B: Tensor
    status: Tensor
    iterations: Tensor
    solution: Tensor
    y: Tensor | None = None
    C: Tensor | None = None
    D: Tensor | None = None


class LinearizedDrives:
    """The part of `Drives` that linearizes its steps."""

    if TYPE_CHECKING:
        mech: Any
        names: tuple[str, ...]
        _check_size: Any
        advance: Any
        inputs: Any
        initial_activation: Any

        @property
        def num_activations(self) -> int: ...

    def linearize(
        self,
        z: Tensor,
        ctrl: Tensor,
        act: Tensor | None = None,
        *,
        warm_start: Tensor | None = None,
        wrench: Tensor | None = None,
        grad_kappa: float | Tensor | None = None,
        sensors: bool | Sequence[str] = False,
    ) -> DriveLinearization:
        """A step under controls, and its derivatives by state, activations and controls.

        Args:
            z: (..., 13 nb). ctrl: (..., n). act: (..., na); None: zeros. Leading dimensions broadcast.
            warm_start, wrench: as in `step`. grad_kappa: as in `Mechanism.linearize`.
            sensors: True, or names: y, C and D of `Mechanism.read_sensors` at z and of this step.

        Environments that fail are flagged. Nothing here is differentiable.

        Raises:
            ValueError: wrong shapes, an unknown name, sensors of actuators, which read controls; and as `Mechanism.linearize`.
        """
        mech, act = self.mech, self.initial_activation() if act is None else act
        self._check_size("ctrl", ctrl, len(self.names))
        self._check_size("act", act, self.num_activations)
        mech.check_state(z)
        dtype, size = z.dtype, TANGENT_SIZE * mech.num_bodies
        batch = torch.broadcast_shapes(z.shape[:-1], ctrl.shape[:-1], act.shape[:-1])
        z, ctrl, act = (value.detach().double().expand(*batch, value.shape[-1]) for value in (z, ctrl, act))

        def parts(change: Tensor) -> tuple[Tensor, Tensor]:
            return mech.retract(z, change[..., :size]), act + change[..., size:]

        u, push, by_all = law_slopes(self, parts, ctrl, size + self.num_activations)
        pushed = push is not None
        total = wrench if push is None else push if wrench is None else push + wrench
        options: dict[str, Any] = {"warm_start": warm_start, "grad_kappa": grad_kappa}
        solved = mech.linearize(z, u, wrench=total, wrt=("wrench",) if pushed else (), **options)
        by_forces = torch.cat((solved.B, *solved.by), dim=-1)
        acting, advancing = by_all.split((by_forces.shape[-1], self.num_activations), dim=-2)

        def chained(by_state: Tensor, by_force: Tensor) -> tuple[Tensor, Tensor]:
            rows = by_force @ acting
            rows[..., :size] += by_state
            first, second = rows.split((size + self.num_activations, ctrl.shape[-1]), dim=-1)
            return first, second

        motion = torch.cat(chained(solved.A, by_forces), dim=-1)
        A, B = torch.cat((motion, advancing), dim=-2).split((size + self.num_activations, len(self.names)), dim=-1)
        with torch.no_grad():
            after = self.advance(ctrl, act)
        result = DriveLinearization(solved.z.to(dtype), after, A, B, solved.status, solved.iterations, solved.solution)
        if sensors is False:
            return result
        y, C, *D = mech._sensor_derivatives(z, sensors, solved, {"u": u, "wrench": total}, by_wrench=pushed, **options)
        by_act, by_ctrl = chained(C, torch.cat(D, dim=-1))
        return result._replace(y=y, C=by_act, D=by_ctrl)


def law_slopes(
    drives: Any, parts: Callable[[Tensor], tuple[Tensor, Tensor]], ctrl: Tensor, size: int
) -> tuple[Tensor, Tensor | None, Tensor]:
    """u, the wrench, and the derivatives (..., nu + 6 nb + na, size + n) of u, wrench and next activations by changes and controls.

    Each number is a backward pass through the laws alone. States with numbers that are not finite have no derivatives.

    Args:
        parts: changes (..., size) -> z and act. ctrl: (..., n), of the same leading dimensions.
    """
    batch = ctrl.shape[:-1]
    with torch.enable_grad():
        change = ctrl.new_zeros(*batch, size + ctrl.shape[-1], requires_grad=True)
        z, act = parts(change[..., :size])
        moved = ctrl + change[..., size:]
        u, wrench, _ = drives.inputs(moved, act, z)
        pieces = [u, *(() if wrench is None else (wrench,)), drives.advance(moved, act)]
        values = torch.cat([piece.expand(*batch, piece.shape[-1]) for piece in pieces], dim=-1)
        values = values + 0 * change.sum(-1, keepdim=True)  # no number is without a graph
        each = [torch.autograd.grad(value.sum(), change, retain_graph=True)[0] for value in values.unbind(-1)]
    slopes = torch.stack(each, dim=-2)
    return u.detach(), None if wrench is None else wrench.detach(), torch.where(slopes.isfinite(), slopes, 0.0)

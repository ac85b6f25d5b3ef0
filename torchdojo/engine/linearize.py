"""A step, or a control period, together with its derivatives: `Mechanism.linearize` and `Mechanism.linearize_minimal`.

A single step is one call of the kernel. The derivatives of a period are products of the derivatives of its steps, with the controls' law

    δu = U_z δz + U_c δc,    A ← (A_t + B_t U_z) A,    B ← (A_t + B_t U_z) B + B_t U_c,

one call for each step. Derivatives by anything else come from a backward pass for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchdojo.elements.actuators import Actuators
from torchdojo.engine import minimal_steps
from torchdojo.engine.backend import Backend, check_given
from torchdojo.engine.backends import Backends
from torchdojo.engine.periods import added, check_repeat, law_of
from torchdojo.engine.requests import refuse_jacobian, request_of
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.gradients.request import Request, StepInputs
from torchdojo.parameters import PhysicalModule, broadcast_shapes, result_tensor
from torchdojo.solver.options import SolverOptions
from torchdojo.state.layout import TANGENT_SIZE
from torchdojo.structure import Structure

__all__ = [
    "Call",
    "Linearization",
    "MinimalLinearization",
    "derivatives",
    "linearize",
    "linearize_minimal",
    "period",
]


class Linearization(NamedTuple):
    """A step or period with its derivatives on the tangent space, per body [dx, dv, dphi, domega].

    z: (..., 13 nb) after it. A: (..., 12 nb, 12 nb) by z. B: (..., 12 nb, nu), or (..., 12 nb, number of actuators), by u or ctrl.
    by: for each name of `wrt`, (..., 12 nb, k). impulses, status, iterations, solution, substeps: as in `StepOutput`.
    y, C, D: with `sensors=`, what the sensors read (..., m), and its derivatives by z (..., m, 12 nb) and by u or ctrl (..., m, nu).
    Where a step fails, z is that of its start, and its derivatives are zero.
    """

    z: Tensor
    A: Tensor
    B: Tensor
    by: tuple[Tensor, ...]
    impulses: Tensor
    status: Tensor
    iterations: Tensor
    solution: Tensor
    substeps: Tensor
    y: Tensor | None = None
    C: Tensor | None = None
    D: Tensor | None = None


class MinimalLinearization(NamedTuple):
    """A step or period with its derivatives in minimal coordinates, rows [q, qd] after it.

    q, qd: (..., n) after it, and z (..., 13 nb). A: (..., 2n, 2n) by [q, qd]. B: (..., 2n, nu) by u, or by the controls.
    by: for each name of `wrt`, (..., 2n, k). The other fields, and failures, are as in `Linearization`.
    """

    q: Tensor
    qd: Tensor
    z: Tensor
    A: Tensor
    B: Tensor
    by: tuple[Tensor, ...]
    impulses: Tensor
    status: Tensor
    iterations: Tensor
    solution: Tensor
    substeps: Tensor


class Call(NamedTuple):
    """The keywords of `Mechanism.linearize` and `linearize_minimal`."""

    repeat: int
    wrt: Sequence[str]
    warm_start: Tensor | None
    wrench: Tensor | None
    grad_kappa: float | Tensor | None
    out: Tensor | None


def linearize(backends: Backends, options: SolverOptions, z: Tensor, u: Tensor | None, ctrl: Tensor | None, call: Call) -> Linearization:
    """`Mechanism.linearize`."""
    structure = backends.structure
    law = law_of(structure, u, ctrl)
    step_inputs = check_given(structure, law, z, u if law is None else ctrl, call.wrench, call.warm_start)
    expanded, request = request_of(backends.system, options, step_inputs.z, call.grad_kappa)
    _check(structure, request, call)
    with torch.no_grad():
        backend = backends.select(request)
        solved, jacobian = period(backend, law, check_repeat(call.repeat), step_inputs._replace(z=expanded), call.out)

    def rows(wrench: Tensor | None) -> Tensor:
        after = _steps(backends, request, call, law, z, u if law is None else ctrl, wrench).z
        return structure.difference(after, after.detach())

    by = derivatives(structure, rows, call.wrt, solved.z.shape[:-1], call.wrench)
    size = TANGENT_SIZE * structure.num_bodies
    return Linearization(solved.z, jacobian[..., :size], jacobian[..., size:], by, *solved[1:])


def linearize_minimal(
    backends: Backends, options: SolverOptions, q: Tensor, qd: Tensor, u: Tensor | None, ctrl: Tensor | None, call: Call
) -> MinimalLinearization:
    """`Mechanism.linearize_minimal`."""
    structure = backends.structure
    law, n = law_of(structure, u, ctrl), structure.num_coordinates
    inputs = u if law is None else ctrl
    with torch.no_grad():
        minimal_steps.check(structure, q, qd)
        expanded, request = request_of(backends.system, options, torch.broadcast_tensors(q, qd)[0], call.grad_kappa)
        start = minimal_steps.Coordinates(backends, options, expanded, qd.expand(expanded.shape))
        step_inputs = check_given(structure, law, start.z, inputs, call.wrench, call.warm_start)
        _check(structure, request, call)
        single, out = check_repeat(call.repeat) == 1, call.out
        if law is None and single:
            solved, jacobian = minimal_steps.linearize(backends, request, start, step_inputs.u, step_inputs.wrench, step_inputs.warm, out)
        elif law is not None and law.tree_coordinates is not None and single:
            u_now, by_ctrl, by_q, by_rate = slopes(law, step_inputs.u, step_inputs.z)
            solved, by_input = minimal_steps.linearize(backends, request, start, u_now, step_inputs.wrench, step_inputs.warm, None)
            jacobian = driven_minimal(law, (by_ctrl, by_q, by_rate), by_input, n)
            jacobian = jacobian if out is None else result_tensor(out, jacobian.shape, jacobian).copy_(jacobian)
        else:
            maximal, whole = period(backends.select(request), law, call.repeat, step_inputs, None)
            jacobian = minimal_steps.of_period(structure, start, maximal, whole, out)
            solved = start.after_step(maximal)

    def rows(wrench: Tensor | None) -> Tensor:
        moved = minimal_steps.Coordinates(backends, options, q, qd)
        after = moved.after_step(_steps(backends, request, call, law, moved.z, inputs, wrench))
        return torch.cat((after.q, after.qd), dim=-1)

    by = derivatives(structure, rows, call.wrt, solved.z.shape[:-1], call.wrench)
    return MinimalLinearization(*solved[:3], jacobian[..., : 2 * n], jacobian[..., 2 * n :], by, *solved[3:])


def _check(structure: Structure, request: Request, call: Call) -> None:
    refuse_jacobian(request.options)
    if call.warm_start is not None:
        structure.check_tensor("warm_start", call.warm_start, structure.layout.num_unknowns)


def _steps(
    backends: Backends, request: Request, call: Call, law: Actuators | None, z: Tensor, given: Tensor | None, wrench: Tensor | None
) -> StepOutput:
    """The steps of a period under another wrench, with their graph."""
    stepper = backends.stepper(replace(request, repeat=call.repeat), law)
    return stepper.step(check_given(backends.structure, law, z, given, wrench, call.warm_start))


def period(backend: Backend, law: Actuators | None, repeat: int, given: StepInputs, out: Tensor | None) -> tuple[StepOutput, Tensor]:
    """`repeat` steps of a backend, with their Jacobian (..., 12 nb, 12 nb + m). With a law, given.u are controls."""
    if law is None and repeat == 1:
        return backend.linearize(given, out)
    total: StepOutput | None = None
    whole: Tensor | None = None
    current = given
    for _ in range(repeat):
        solved, jacobian = backend.linearize(current if law is None else current._replace(u=law(given.u, current.z)))
        size = jacobian.shape[-2]
        if law is not None:
            jacobian = _driven(backend.structure, law, given.u, current.z, jacobian)
        if whole is None or total is None:
            whole, total = jacobian, solved
        else:
            chained = jacobian[..., :size] @ whole
            chained[..., size:] += jacobian[..., size:]
            whole, total = chained, added(total, solved)
        current = current._replace(z=solved.z, warm=solved.solution)
    assert whole is not None and total is not None
    return total, whole if out is None else result_tensor(out, whole.shape, whole).copy_(whole)


def _driven(structure: Structure, law: Actuators, ctrl: Tensor, z: Tensor, jacobian: Tensor) -> Tensor:
    """The Jacobian by state and controls, from the one by state and inputs."""
    size = jacobian.shape[-2]
    batch = jacobian.shape[:-2]
    z, ctrl = z.expand(*batch, -1), ctrl.expand(*batch, -1)
    finite = torch.isfinite(z).all(-1, keepdim=True)
    neutral = torch.zeros_like(z).unflatten(-1, (-1, 13))
    neutral[..., 6] = 1.0
    z = torch.where(finite, z, neutral.flatten(-2))

    with torch.enable_grad():
        change = z.new_zeros(*batch, size + ctrl.shape[-1]).requires_grad_()
        u = law(ctrl + change[..., size:], structure.retract(z, change[..., :size]))
        # Coordinates of the kernel take one gradient at a time.
        by_both = torch.stack([torch.autograd.grad(column.sum(), change, retain_graph=True)[0] for column in u.unbind(-1)], dim=-2)
    result = jacobian[..., size:] @ by_both
    result[..., :size] += jacobian[..., :size]
    return result


def slopes(law: Actuators, ctrl: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """u (..., nu) at states z, and its derivatives (..., m) by control, coordinate and rate of each actuator.

    An actuator acts on one input, `input_index`, so these are all the entries that are not zero. Where a range clips, the derivative is
    zero.
    """
    ctrl, q, rate = torch.broadcast_tensors(ctrl, *law.measure(z))

    def within(value: Tensor, bounds: Tensor) -> tuple[Tensor, Tensor]:
        clipped = torch.clamp(value, bounds[..., 0], bounds[..., 1])
        return clipped, clipped == value

    held, free = within(ctrl, law.ctrlrange)
    terms = torch.stack((torch.ones_like(q), law.length0 + law.gear * q, law.gear * rate), dim=-1)
    gain, bias = (law.gain * terms).sum(-1), (law.bias * terms).sum(-1)
    force, pushes = within(gain * held + bias, law.forcerange)
    u, acts = within(law.sum_inputs(law.gear * force), law.inputrange)
    lever = law.gear * (pushes & acts[..., law.input_index])
    by_q, by_rate = ((lever * law.gear)[..., None] * (law.gain[..., 1:] * held[..., None] + law.bias[..., 1:])).unbind(-1)
    return u + law.sum_inputs(law.carried_damping * rate), lever * gain * free, by_q, by_rate + law.carried_damping


def driven_minimal(law: Actuators, slopes: Sequence[Tensor], jacobian: Tensor, n: int) -> Tensor:
    """The Jacobian (..., 2n, 2n + m) by coordinates and controls, from the one by coordinates and inputs (..., 2n, 2n + nu).

    slopes: (..., m) derivatives of the input of each of m actuators by its control, coordinate and rate.
    """
    by_ctrl, by_q, by_rate = (slope[..., None, :] for slope in slopes)
    columns = jacobian[..., 2 * n :][..., law.input_index]
    whole = torch.cat((jacobian[..., : 2 * n], columns * by_ctrl), dim=-1)
    places = law.tree_coordinates
    assert places is not None
    whole.index_add_(-1, torch.cat((places, places + n)), torch.cat((columns * by_q, columns * by_rate), dim=-1))
    return whole


# -- other derivatives -------------------------------------------------------------------------------------------------------------------


class _Call(nn.Module):
    """A call of a mechanism as a module of its own, whose parameters `torch.func.functional_call` replaces."""

    def __init__(self, mech: nn.Module, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.mech, self.call = mech, call

    def forward(self, *arguments: Any, **options: Any) -> Tensor:
        return self.call(*arguments, **options)


def derivatives(
    mech: Structure, rows: Callable[..., Tensor], names: Sequence[str], batch: torch.Size, wrench: Tensor | None
) -> tuple[Tensor, ...]:
    """Derivatives of rows(wrench) (..., r) by the wrench and by parameters, one (..., r, k) for each name.

    Each environment of `batch` has parameters of its own here, so that one backward pass per row separates the environments.

    Raises:
        ValueError: an unknown name.
    """
    if not names:
        return ()
    numbers = dict(mech.named_parameters())
    unknown = [name for name in names if name != "wrench" and name not in numbers]
    if unknown:
        last = unknown[0].split(".")[-1]
        near = [name for name in numbers if name.endswith(last)] or list(numbers)
        raise ValueError(f"wrt: got {unknown[0]!r}; allowed: 'wrench', or a name of mech.named_parameters(), such as {near[:6]}")
    leaves: dict[str, Tensor] = {}
    for name in names:
        value = _wrench(mech, wrench) if name == "wrench" else numbers[name].detach()
        ndim = 1 if name == "wrench" else _dimensions(mech, name, value)
        lead = value.ndim - ndim
        leaves[name] = value.expand(*broadcast_shapes(batch, value.shape[:lead]), *value.shape[lead:]).clone().requires_grad_()
    replaced = {f"mech.{name}": leaf for name, leaf in leaves.items() if name != "wrench"}
    with torch.enable_grad():
        value = torch.func.functional_call(_Call(mech, rows), replaced, (leaves.get("wrench", wrench),))
        count = value.shape[-1]
        wanted = list(leaves.values())
        if not value.requires_grad:
            grads = [leaf.new_zeros(count, *leaf.shape) for leaf in wanted]
        else:
            each = [torch.autograd.grad(row.sum(), wanted, retain_graph=True, materialize_grads=True) for row in value.unbind(-1)]
            grads = [torch.stack(column) for column in zip(*each, strict=True)]
    lead = value.ndim - 1
    return tuple(grad.reshape(count, *value.shape[:-1], -1).movedim(0, lead) for grad in grads)


def _wrench(mech: Structure, wrench: Tensor | None) -> Tensor:
    return mech.check_forces(None, wrench)[1].detach()


def _dimensions(mech: nn.Module, name: str, value: Tensor) -> int:
    """Number of dimensions of one value of a parameter. The others are batch dimensions."""
    path, _, field = name.rpartition(".")
    owner = mech.get_submodule(path)
    return owner.fields.get(field, value.ndim) if isinstance(owner, PhysicalModule) else value.ndim

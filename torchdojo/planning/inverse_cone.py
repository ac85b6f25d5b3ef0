"""Inverse dynamics where the next state is given: a convex problem over inputs and impulses.

For given z and z_next the balance of momentum is linear in inputs u, multipliers λ of joints, and impulses γ of contacts and limits:

    r = b + A (u, λ) + C γ,   minimize ½|r|² + ½ ε |γ|², in the metric of the kinetic energy, over the friction cones of γ

(Todorov 2014; Moreau 1966). (u, λ) are eliminated by least squares. ADMM and Newton steps on the faces of the cones find γ. Gaps at z_next
that are open carry nothing. Where a contact slides, its friction lies on the cone against the slip (maximum dissipation).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.dynamics.integrator import next_pose
from torchdojo.dynamics.residual import StepProblem
from torchdojo.elements.contacts import ImpactContact, NonlinearContact
from torchdojo.elements.joint import Joint
from torchdojo.elements.joint_cones import JointLimits
from torchdojo.gradients.batching import flatten_batch
from torchdojo.mechanism import Mechanism
from torchdojo.planning.plan import PlanStatus
from torchdojo.state.layout import TWIST_SIZE, join_state, neutral_state, split_state
from torchdojo.state.unknowns import NUM_DATA

__all__ = ["ConeInverse", "cone_inverse_dynamics"]

RIDGE = 1e-10  # of the impulses, relative to the largest eigenvalue
TAKEN = 1e-10  # part of an impulse's effect that counts as rounding
BALANCE_EVERY = 25
POLISHING = 10  # steps on the faces of the cones
CONVERGED = 1e-10  # largest change by a step of projected gradients, relative to the impulses


class ConeInverse(NamedTuple):
    """value: inputs (..., nu) [N, N·m]. impulses: (..., n) as `StepOutput.impulses` [N·s, N·m·s]. residual: largest velocity error (...,)
    [m/s, rad/s]. status: (...,) of `PlanStatus`. INFEASIBLE: nothing explains the step; ITERATION_LIMIT: more iterations may; DIVERGED: a
    state is not finite, and value and impulses are NaN."""

    value: Tensor
    impulses: Tensor
    residual: Tensor
    status: Tensor

    @property
    def solved(self) -> Tensor:
        return self.status == int(PlanStatus.SOLVED)


def cone_inverse_dynamics(
    mech: Mechanism,
    z: Tensor,
    z_next: Tensor,
    *,
    gap: float = 1e-4,
    slip: float = 1e-4,
    tolerance: float = 1e-5,
    max_iterations: int = 3000,
) -> ConeInverse:
    """Inputs and impulses of a step from z to z_next (..., 13 nb), of hard contact, whatever kappa.

    A mechanism without inputs is asked whether impulses alone explain its step. Where several impulses do, as under a table with four legs,
    the smallest are taken.

    Args:
        gap: contacts and limits with more room than this at z_next carry no impulse [m, rad].
        slip: contacts that slide faster have friction against the slip [m/s].
        tolerance: largest residual of a solution, and largest contradiction between poses and velocities of z_next [m/s, rad/s].
        max_iterations: of ADMM.

    Raises:
        ValueError: states of a wrong shape, numbers that are not positive, elements of a kind that is not supported: it takes joints, joint
            limits, and `NonlinearContact` and `ImpactContact` without compliance or friction of couples.
    """
    _check(mech, z, z_next, {"gap": gap, "slip": slip, "tolerance": tolerance, "max_iterations": max_iterations})
    problem, targets, finite, batch = _problem(mech, z, z_next)
    system, n = mech.backends.system, TWIST_SIZE * mech.num_bodies
    w = targets.new_zeros(len(targets), system.num_unknowns)
    after = targets.unflatten(-1, (-1, 13))
    w[:, :n] = torch.cat((after[..., 3:6], after[..., 10:]), -1).flatten(1)
    rows = problem.residual(w)
    by_impulse = _impulse_columns(problem, w)
    inputs = problem.linearize_data(w)[1][:, :n]
    columns, scale, places, free = _cones(problem, rows, by_impulse, gap, slip)

    root = torch.linalg.cholesky(_mass(problem)).expand(len(w), -1, -1)
    b = torch.linalg.solve_triangular(root, rows[:, :n, None], upper=False)
    A = torch.linalg.solve_triangular(root, torch.cat((inputs, by_impulse[:, :, free]), -1), upper=False)
    C = torch.linalg.solve_triangular(root, columns, upper=False)
    held, gamma, converged = _explain(A, C, b, scale, max_iterations)
    left = b + C @ gamma[..., None] + A @ held[..., None]
    error = torch.linalg.solve_triangular(root.mT, left, upper=True)[..., 0].abs().amax(-1)

    state = split_state(targets)
    ahead = join_state(next_pose(problem.state.pose, state.twist, problem.timestep[:, None, None]), state.twist)
    error = torch.maximum(error, mech.difference(ahead, targets).abs().amax(-1) / problem.timestep)
    status = torch.where(error <= tolerance, int(PlanStatus.SOLVED), int(PlanStatus.INFEASIBLE))
    status = torch.where(converged | (error <= tolerance), status, int(PlanStatus.ITERATION_LIMIT))
    nan = torch.nan
    impulses = w.new_zeros(w.shape)
    impulses[:, free] = held[:, system.num_inputs :]
    impulses += (places @ gamma[..., None])[..., 0]
    return ConeInverse(
        torch.where(finite[:, None], held[:, : system.num_inputs], nan).reshape(*batch, -1),
        torch.where(finite[:, None], impulses[:, system.impulse_index], nan).reshape(*batch, -1),
        torch.where(finite, error, torch.inf).reshape(batch),
        torch.where(finite, status, int(PlanStatus.DIVERGED)).reshape(batch),
    )


def _check(mech: Mechanism, z: Tensor, z_next: Tensor, numbers: dict[str, float]) -> None:
    """Raise as `cone_inverse_dynamics` says."""
    mech.check_state(z, "z")
    mech.check_state(z_next, "z_next")
    for name, value in numbers.items():
        if not (math.isfinite(value) and value > 0) or (name == "max_iterations" and not isinstance(value, int)):
            raise ValueError(f"cone_inverse_dynamics.{name}: got {value}; allowed: positive finite numbers, whole ones for max_iterations")
    for key, element in mech.backends.system.elements.items():
        hard = isinstance(element, (NonlinearContact, ImpactContact)) and element.cones.size in (1, 4) and "stiffness" not in element.fields
        if not (hard or isinstance(element, (Joint, JointLimits))):
            raise ValueError(
                f"cone_inverse_dynamics: got {key} of kind {type(element).__name__}; allowed: joints, joint limits, and hard "
                "NonlinearContact or ImpactContact without torsional or rolling friction; use inverse_dynamics for others"
            )


def _problem(mech: Mechanism, z: Tensor, z_next: Tensor) -> tuple[StepProblem, Tensor, Tensor, torch.Size]:
    """The equations of the steps, their ends (N, 13 nb), whether both states are finite (N,), and the batch. Others are put at rest."""
    system = mech.backends.system
    try:
        states, targets = torch.broadcast_tensors(z.detach().double(), z_next.detach().double())
    except RuntimeError:
        shapes = f"{tuple(z.shape)} and {tuple(z_next.shape)}"
        raise ValueError(f"cone_inverse_dynamics: got z and z_next of shapes {shapes}; their leading dimensions must broadcast") from None
    shape = states.shape[:-1]
    data = [states, states.new_zeros(*shape, system.num_inputs), states.new_zeros(*shape, TWIST_SIZE * system.num_bodies)]
    parameters = [value.detach() for value in mech.stacked_parameters()]
    flat, batch = flatten_batch(system.step_specs(), [*data, *parameters])
    targets = targets.expand(*batch, -1).reshape(batch.numel(), -1)
    finite = flat[0].isfinite().all(-1) & targets.isfinite().all(-1)
    safe = neutral_state(flat[0])
    flat[0], targets = torch.where(finite[:, None], flat[0], safe), torch.where(finite[:, None], targets, safe)
    problem = StepProblem(system, flat[NUM_DATA:], *flat[:NUM_DATA], depenetration_speed=mech.options.depenetration_speed)
    return problem, targets, finite, batch


def _explain(A: Tensor, C: Tensor, b: Tensor, scale: Tensor, iterations: int) -> tuple[Tensor, Tensor, Tensor]:
    """The minimum of |b + A x + C γ|: x (N, m), γ (N, 3 c) in cones of widths `scale`, and whether it was reached (N,)."""
    inverse = torch.linalg.pinv(A, rtol=1e-12)
    keep = torch.eye(A.shape[1], dtype=A.dtype) - A @ inverse
    resisted = keep @ C
    # Inputs and joints take up these impulses whole, and what is left of them is rounding.
    supported = torch.linalg.vector_norm(resisted, dim=1, keepdim=True) <= TAKEN * torch.linalg.vector_norm(C, dim=1, keepdim=True)
    gamma, converged = _solve(torch.where(supported, 0.0, resisted), (keep @ b)[..., 0], scale, iterations)
    return -(inverse @ (b + C @ gamma[..., None]))[..., 0], gamma, converged


def _mass(problem: StepProblem) -> Tensor:
    """(N or 1, 6 nb, 6 nb): blocks m I and the inertia, the derivative of the momentum but for second order in h ω."""
    inertia = problem.inertia
    mass = problem.mass[..., None, None].expand(*inertia.shape[:-2], 1, 1) * torch.eye(3, dtype=inertia.dtype)
    blocks = torch.stack((mass, inertia), -3).flatten(-4, -3)
    full = blocks.new_zeros(len(blocks), blocks.shape[1], 3, blocks.shape[1], 3)
    index = torch.arange(blocks.shape[1])
    full[:, index, :, index, :] = blocks.movedim(1, 0)
    return full.flatten(1, 2).flatten(-2)


def _impulse_columns(problem: StepProblem, w: Tensor) -> Tensor:
    """Derivative of the balance by all of w, (N, 6 nb, num_unknowns); columns of velocities and slacks are zero."""
    system = problem.system
    result = w.new_zeros(len(w), system.num_bodies + 1, 6, system.num_unknowns)
    for group, block in zip(system.groups, problem.linearize(w)[1], strict=True):
        k, m = group.body_index.shape[1], group.impulse_index.shape[1]
        wrench = block.wrench[..., 6 * k : 6 * k + m].unflatten(2, (k, 6)).expand(len(w), -1, -1, -1, -1)
        for e, (bodies, places) in enumerate(zip(group.body_index.tolist(), group.impulse_index.tolist(), strict=True)):
            for i, body in enumerate(bodies):
                result[:, body, :, places] -= wrench[:, e, i]
    return result[:, :-1].flatten(1, 2)


def _cones(problem: StepProblem, rows: Tensor, by_impulse: Tensor, gap: float, slip: float) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    """Columns (N, 6 nb, 3 c) of (γ, β) per cone, μ (N, c), their places (N, num_unknowns, 3 c), and places of the free multipliers."""
    system, count = problem.system, len(rows)
    maps, mus, free = [], [], []
    for group, element in zip(system.groups, problem.elements, strict=True):
        if not element.cones.size:
            free += group.impulse_index.flatten().tolist()
            continue
        friction = element.friction if isinstance(element, NonlinearContact) else None
        for e, where in enumerate(group.impulse_index.tolist()):
            for row in where[:1] if friction is not None else where:
                place = rows.new_zeros(count, system.num_unknowns, 3)
                closed = (rows[:, row] <= gap).to(rows.dtype)
                mu = rows.new_zeros(count) if friction is None else friction[:, e].detach().expand(count)
                place[:, row, 0] = closed
                if friction is not None:
                    place[:, where[1], 0] = mu * closed
                    speed = rows[:, where[2:]]
                    size = torch.linalg.vector_norm(speed, dim=-1)
                    slides = size > slip
                    along = -mu[:, None] * speed / size.clamp_min(1e-30)[:, None]
                    place[:, where[2:], 0] = torch.where(slides[:, None], closed[:, None] * along, 0.0)
                    sticks = closed * ~slides
                    place[:, where[2], 1], place[:, where[3], 2] = sticks, sticks
                    mu = mu * sticks  # a cone without width keeps β at zero
                maps.append(place)
                mus.append(mu)
    if not maps:
        return rows.new_zeros(count, by_impulse.shape[1], 0), rows.new_zeros(count, 0), rows.new_zeros(count, system.num_unknowns, 0), free
    places = torch.cat(maps, -1)
    return by_impulse @ places, torch.stack(mus, -1), places, free


def _project(x: Tensor, mu: Tensor) -> Tensor:
    """The nearest points (N, c, 3) of the cones |β| <= μ γ."""
    gamma, beta = x[..., 0], x[..., 1:]
    size = torch.linalg.vector_norm(beta, dim=-1)
    inside, polar = size <= mu * gamma, mu * size <= -gamma
    on = ((gamma + mu * size) / (1 + mu * mu)).clamp_min(0)
    edge = torch.cat((on[..., None], (mu * on / size.clamp_min(1e-300))[..., None] * beta), -1)
    return torch.where(inside[..., None], x, torch.where(polar[..., None], 0.0, edge))


def _solve(C: Tensor, b: Tensor, mu: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """argmin ½|C x + b|² + ½ ε|x|² over the cones, (N, 3 c), and whether it was reached (N,)."""
    if not C.shape[-1]:
        return C.new_zeros(len(C), 0), torch.ones(len(C), dtype=torch.bool)
    H = C.mT @ C
    top = torch.linalg.eigvalsh(H)[:, -1:].clamp_min(1e-300)
    H = H + RIDGE * top[..., None] * torch.eye(C.shape[-1], dtype=C.dtype)
    g = (C.mT @ b[..., None])[..., 0]
    x = _polish(_admm(H, g, top, mu, iterations), H, g, mu)
    ahead = _project_all(x - ((H @ x[..., None])[..., 0] + g) / top, mu)
    return x, (ahead - x).abs().amax(-1) <= CONVERGED * torch.maximum(x.abs().amax(-1), (g / top).abs().amax(-1))


def _project_all(x: Tensor, mu: Tensor) -> Tensor:
    return _project(x.unflatten(-1, (-1, 3)), mu).flatten(-2)


def _admm(H: Tensor, g: Tensor, top: Tensor, mu: Tensor, iterations: int) -> Tensor:
    """min ½ xᵀHx + gᵀx over the cones, by ADMM (Boyd et al. 2011, section 5). Its penalty balances the two residuals (section 3.4.1)."""
    values, vectors = torch.linalg.eigh(H)
    x = z = y = torch.zeros_like(g)
    rho = 0.01 * top
    for k in range(iterations):
        target = rho * (z - y) - g
        x = (vectors @ ((vectors.mT @ target[..., None])[..., 0] / (values + rho))[..., None])[..., 0]
        old, relaxed = z, 1.6 * x + (1 - 1.6) * z
        z = _project_all(relaxed + y, mu)
        y = y + relaxed - z
        if k % BALANCE_EVERY == BALANCE_EVERY - 1:
            scale = z.abs().amax(-1, keepdim=True).clamp_min(1e-12)
            primal, dual = (x - z).abs().amax(-1, keepdim=True) / scale, (z - old).abs().amax(-1, keepdim=True) / scale
            if bool(((primal < 1e-14) & (dual < 1e-14)).all()):
                break
            factor = (primal / dual.clamp_min(1e-30)).sqrt().clamp(0.2, 5.0)
            factor = torch.where((factor > 0.5) & (factor < 2), 1.0, factor)
            rho, y = rho * factor, y / factor
    return z


def _polish(x: Tensor, H: Tensor, g: Tensor, mu: Tensor) -> Tensor:
    """Newton steps on the faces of the cones that x lies on, each as far as the cones allow.

    A robot on two feet may press them together, which moves it so little that ADMM is slow there: H has eigenvalues 1e-8 apart.
    """
    eye = torch.eye(3, dtype=x.dtype)
    count = mu.shape[-1]
    block = torch.arange(count)
    for _ in range(POLISHING):
        gamma, beta = x.unflatten(-1, (-1, 3)).split((1, 2), -1)
        gamma, size = gamma[..., 0], torch.linalg.vector_norm(beta, dim=-1)
        tiny = 1e-9 * gamma.amax(-1, keepdim=True)
        closed = gamma > tiny
        inside = closed & (mu * gamma - size > tiny)
        ray = torch.cat((torch.ones_like(beta[..., :1]), (mu / size.clamp_min(1e-300))[..., None] * beta), -1)
        ray = torch.where(closed[..., None], ray / torch.linalg.vector_norm(ray, dim=-1, keepdim=True), 0.0)
        onto = torch.where(inside[..., None, None], eye, ray[..., None] * ray[..., None, :])
        S = x.new_zeros(len(x), count, 3, count, 3)
        S[:, block, :, block] = onto.movedim(1, 0)
        S = S.flatten(3).flatten(1, 2)
        left = torch.eye(3 * count, dtype=x.dtype) - S
        slope = (H @ x[..., None])[..., 0] + g
        step = -torch.linalg.solve(S @ H @ S + left, S @ slope[..., None])[..., 0]
        ahead = _project_all(x + _largest(x, step, mu, inside)[:, None] * step, mu)
        change = ((ahead - x) * (slope + 0.5 * (H @ (ahead - x)[..., None])[..., 0])).sum(-1)
        x = torch.where((change < 0)[:, None], ahead, x)
    return x


def _largest(x: Tensor, step: Tensor, mu: Tensor, inside: Tensor) -> Tensor:
    """How far along `step` (N, 3 c), at most 1, all impulses stay in their cones, (N,). Those not inside move along rays."""
    (gamma, beta), (dgamma, dbeta) = (value.unflatten(-1, (-1, 3)).split((1, 2), -1) for value in (x, step))
    gamma, dgamma = gamma[..., 0], dgamma[..., 0]
    most = torch.where(dgamma < 0, -gamma / dgamma, torch.inf)
    # the least positive root of μ²(γ + t dγ)² = |β + t dβ|²
    a = (mu * dgamma).square() - dbeta.square().sum(-1)
    half = mu * mu * gamma * dgamma - (beta * dbeta).sum(-1)
    c = (mu * gamma).square() - beta.square().sum(-1)
    turn = (half * half - a * c).clamp_min(0).sqrt()
    roots = torch.stack((c / (turn - half), c / (-turn - half)))
    least = torch.where(roots > 0, roots, torch.inf).amin(0)
    return torch.minimum(most, torch.where(inside, least, torch.inf)).amin(-1).clamp(0.0, 1.0)

"""The instants of impacts within a step, and what they add to its derivative: the saltation matrix of contacts with restitution.

The step gives bodies that bounce their new velocity for all of its length, wherever in it they arrive (`Contact.gap`). As a motion that is
right to first order in h. As something to differentiate it is not: x⁺ = x + h v⁺, with v⁺ = −e v, says dx⁺/dx = 1 of a ball, whereas a ball
that starts higher arrives later, and is lower afterwards, dx⁺/dx = −e, at any h (the gradients through elastic contact of Nimble, Werling
et al. 2021, correct the same). With D the derivative
of the step, τ(z) the time from z to the impact, and f⁻ and f⁺ the rates of change of the state in the motion without the impact, through z
and through z⁺,

    dz⁺ = D (dz + f⁻ dτ) − f⁺ dτ :

motion to the instant of the impact, which dz has moved by dτ, the impact, and motion back. That is the saltation matrix
D + (D f⁻ − f⁺) ∂τ/∂z (Aizerman and Gantmakher 1958; Kong et al. 2024, "Saltation matrices: the essential tool for linearizing hybrid
dynamical systems"). The values of the step remain, so differences of the step do not show it.

Of each contact that bounces, τ = h φ/(φ⁻ − φ), with the gaps φ at z and φ⁻ one step before. Bodies that act on each other, through joints
or through contacts that press, share the mean of those among them, weighted by the impulses, so that equal contacts (the corners of a box
that lands flat) say what one would; others know nothing of them. f⁻ and f⁺ are central differences over two steps, in neither of which
contacts that bounce take part. Like the step, it is right to first order in h, and derivatives by positions are exact, at any h, where
velocities are constant but for the impact (balls without gravity). Impacts in one step at different instants on bodies that are connected
have an order that the step does not know; of those the mean is an approximation.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.contact_base import Contact
from torchdojo.dynamics.integrator import STATE_SIZE, TANGENT_SIZE, join_state, next_pose
from torchdojo.dynamics.residual import StepProblem, add_blocks
from torchdojo.dynamics.system import Group, System
from torchdojo.elements import Twist
from torchdojo.solver.limit import LIMIT_REFINEMENTS, at_limit, limit_system, opened, point_of_derivative
from torchdojo.solver.options import SolverOptions

__all__ = ["Impacts", "add_impacts", "ambient", "can_bounce", "find_impacts", "shifted_by"]


class Impacts(NamedTuple):
    """Those of K environments with nb bodies.

    rows: (K,) which environments. instant: τ (K, nb) of the component of each body [s], zero where nothing bounces, with a graph where the
    problem has one. component: (K, nb) the first body of each body's component. before, after: f⁻ and f⁺, (K, nb, 12), per body
    [ẋ, v̇, ω, ω̇].
    """

    rows: Tensor
    instant: Tensor
    component: Tensor
    before: Tensor
    after: Tensor

    def slope(self, z: Tensor) -> Tensor:
        """∂τ/∂z of each body's component by the state of this body, (K, nb, 13), for the leaf z (K, 13 nb)."""
        first = self.component == torch.arange(self.component.shape[1], device=z.device)
        (slope,) = torch.autograd.grad(self.instant[first].sum(), z, retain_graph=True)
        return slope.unflatten(-1, (-1, STATE_SIZE))


def can_bounce(system: System) -> bool:
    return any(_bounces(group) for group in system.groups)


def _bounces(group: Group) -> bool:
    return issubclass(group.cls, Contact) and "restitution" in group.fields


def find_impacts(problem: StepProblem, w: Tensor, options: SolverOptions, point: Tensor | None = None) -> Impacts | None:
    """Of the solutions w (N, n) of a problem, whose data may have a graph. point: (N, n) of `point_of_derivative`, where it is known."""
    with torch.no_grad():
        rows = torch.cat([of.weight for of in _contacts(problem, w)], dim=1).any(1).nonzero().squeeze(-1)
        if not len(rows):
            return None
    w, problem = w[rows], problem.select(rows)
    contacts = _contacts(problem, w)
    with torch.no_grad():
        component = _components(problem, w)
        point = point_of_derivative(problem, w, options) if point is None else point[rows]
        before, after = _rates(problem, point, contacts)
    total = problem.z.new_zeros(component.shape)
    instant = problem.z.new_zeros(component.shape)
    for of in contacts:
        where = component[:, of.bodies]
        total = total.scatter_add(1, where, of.weight)
        instant = instant.scatter_add(1, where, of.weight * of.instant)
    instant = (instant / torch.where(total > 0, total, 1.0)).gather(1, component)
    return Impacts(rows, instant, component, before, after)


def add_impacts(jacobian: Tensor, problem: StepProblem, w: Tensor, options: SolverOptions, point: Tensor | None = None) -> None:
    """Add what impacts do to the derivative D of the step, (N, 12 nb, 12 nb + nu), in place; the arguments are those of `find_impacts`."""
    with torch.enable_grad():
        z = problem.z.detach().requires_grad_()
        found = find_impacts(StepProblem(problem.system, problem.parameters, z, problem.u, problem.wrench), w, options, point)
        if found is None:
            return
        slope = found.slope(z)[found.rows]
    q = problem.state.pose.q[found.rows].detach()
    turn = 0.5 * quat.multiply(quat.conjugate(q), slope[..., 6:10])[..., 1:]
    slope = torch.cat((slope[..., :6], turn, slope[..., 10:]), dim=-1)
    nb = found.component.shape[1]
    same = torch.nn.functional.one_hot(found.component, nb).to(slope)  # (K, nb, components)
    by_z, before, after = ((same[..., None] * t[:, :, None]).transpose(1, 2).flatten(2) for t in (slope, found.before, found.after))
    by_state = jacobian[found.rows, :, : TANGENT_SIZE * nb]
    jacobian[found.rows, :, : TANGENT_SIZE * nb] = by_state + (by_state @ before.mT - after.mT) @ by_z


def shifted_by(impacts: Impacts, problem: StepProblem, w: Tensor) -> tuple[StepProblem, Tensor]:
    """The problem at z + f⁻ τ, and what that and −f⁺ τ move z⁺ by at the velocities of w (N, n), (N, 12 nb) on its tangent space: both with
    the values that they have without impacts, z and zero, and with these derivatives."""
    rows, nb = impacts.rows, problem.system.num_bodies
    instant = (impacts.instant - impacts.instant.detach())[..., None]
    z = problem.z.index_add(0, rows, (instant * ambient(problem.state.pose.q[rows].detach(), impacts.before)).flatten(1))
    turn = quat.increment(w[rows, : 6 * nb].unflatten(-1, (nb, 6))[..., 3:], problem.timestep.detach().expand(len(w))[rows, None, None])
    moved = torch.zeros_like(impacts.before)
    moved[..., :3], moved[..., 6:9] = impacts.before[..., :3], quat.inverse_rotate(turn, impacts.before[..., 6:9])
    shift = problem.z.new_zeros(len(w), TANGENT_SIZE * nb).index_add(0, rows, (instant * (moved - impacts.after)).flatten(1))
    return StepProblem(problem.system, problem.parameters, z, problem.u, problem.wrench), shift


class _Bouncing(NamedTuple):
    """Contacts of the group with this number, (N, E): impulses of those that bounce, else zero, and τ."""

    number: int
    bodies: Tensor  # (E,)
    weight: Tensor
    instant: Tensor
    elastic: Tensor  # whether e > 0


def _contacts(problem: StepProblem, w: Tensor) -> list[_Bouncing]:
    twists, found = problem.body_twists(w), []
    for number, (group, element, mass) in enumerate(zip(problem.system.groups, problem.elements, problem.effective_masses(), strict=True)):
        if not _bounces(group):
            continue
        assert isinstance(element, Contact)
        pose, twist, incoming, impulse, slack, _ = problem.gather(group, w, twists)
        motions = problem.motions(pose, twist, incoming)
        bounces, instant = element.impact(motions, impulse[..., :1], problem.timestep[:, None, None])
        weight = torch.where(bounces & _presses(problem, impulse, slack, mass), impulse[..., 0], 0.0)
        found.append(_Bouncing(number, group.body_index[:, 0], weight.detach(), instant, element.restitution > 0))
    return found


def _presses(problem: StepProblem, impulse: Tensor, slack: Tensor, mass: Tensor) -> Tensor:
    return impulse[..., 0] * problem.timestep[:, None] > mass[..., 0] * slack[..., 0]


def _components(problem: StepProblem, w: Tensor) -> Tensor:
    """The first body of those that each body is connected with, (N, nb)."""
    count, nb = len(w), problem.system.num_bodies
    touching = w.new_zeros(count, nb + 1, nb + 1)
    for group, mass in zip(problem.system.groups, problem.effective_masses(), strict=True):
        bodies = group.body_index
        acts = w.new_ones(1, len(bodies))
        if issubclass(group.cls, Contact):
            acts = _presses(problem, w[:, group.impulse_index], w[:, group.slack_index], mass).to(w)
        elif group.slack_index.shape[-1] or not group.impulse_index.shape[-1]:
            continue  # (limits and frictions are those of joints)
        add_blocks(touching, bodies, bodies, acts[..., None, None].expand(-1, -1, bodies.shape[1], bodies.shape[1]))
    reached = touching[:, :nb, :nb] + torch.eye(nb, dtype=w.dtype, device=w.device)
    for _ in range((nb - 1).bit_length()):
        reached = ((reached @ reached) > 0).to(w)
    return (reached > 0).to(w).argmax(-1)


def _rates(problem: StepProblem, point: Tensor, contacts: list[_Bouncing]) -> tuple[Tensor, Tensor]:
    """f⁻ and f⁺, (N, nb, 12), from the point (N, n) of the step. Contacts that bounce are open; those with e = 0 stay closed behind z⁺."""
    nb, h, law = problem.system.num_bodies, problem.timestep[:, None, None], torch.zeros_like(point, dtype=torch.bool)
    for of in contacts:
        law[:, problem.system.groups[of.number].impulse_index[:, 0]] = of.weight > 0

    def through(here: StepProblem, released: Tensor) -> Tensor:
        # One step of Newton's method from the velocities that led here, which leaves h³ or less of velocities that change by h or less.
        back = torch.cat(here.state.twist, dim=-1)
        released = torch.cat((back.flatten(1), released[:, 6 * nb :]), dim=1)
        exact = at_limit(here, released, compliance=0.0)
        missing = here.residual(exact).masked_fill(law, 0.0)  # (of those that stay closed, the gap just does not change)
        free = exact - limit_system(here, released).solve(missing, LIMIT_REFINEMENTS)
        forth = free[:, : 6 * nb].unflatten(-1, (nb, 6))
        mean, change = 0.5 * (back + forth), (forth - back) / h
        return torch.cat((mean[..., :3], change[..., :3], mean[..., 3:], change[..., 3:]), dim=-1)

    twist = Twist(*point[:, : 6 * nb].unflatten(-1, (nb, 6)).split(3, dim=-1))
    after = StepProblem(
        problem.system, problem.parameters, join_state(next_pose(problem.state.pose, twist, h), twist), problem.u, problem.wrench
    )
    left = opened(problem, point, {of.number: of.weight > 0 for of in contacts})
    rebounding = opened(problem, point, {of.number: (of.weight > 0) & of.elastic for of in contacts})
    return through(problem, left), through(after, rebounding)


def ambient(q: Tensor, rate: Tensor) -> Tensor:
    """Changes (..., 12) on the tangent space at orientations q to (..., 13)."""
    v, change, omega, other = rate.split(3, dim=-1)
    turning = 0.5 * quat.multiply(q, torch.cat((torch.zeros_like(omega[..., :1]), omega), dim=-1))
    return torch.cat((v, change, turning, other), dim=-1)

"""The instants of impacts within a step, and what they add to its derivative: the saltation matrix of contacts with restitution.

The step gives bodies that bounce their new velocity for all of its length, wherever in it they arrive (`Contact.gap`). As a motion that is
right to first order in h. As something to differentiate it is not: x⁺ = x + h v⁺, with v⁺ = −e v, says dx⁺/dx = 1 of a ball, whereas a ball
that starts higher arrives later, and is lower afterwards, dx⁺/dx = −e, at any h (Nimble, Werling et al. 2021, corrects its gradients of
elastic contacts for the same reason). With D the derivative of the step, τ(z) the time from z to the impact, and f⁻ and f⁺ the rates of
change of the state in the motion without the impact, through z and through z⁺,

    dz⁺ = D (dz + f⁻ dτ) − f⁺ dτ :

motion to the instant of the impact, which dz has moved by dτ, the impact, and motion back. That is the saltation matrix
D + (D f⁻ − f⁺) ∂τ/∂z (Aizerman and Gantmakher 1958; Kong et al. 2024, "Saltation matrices: the essential tool for linearizing hybrid
dynamical systems"). The values of the step remain, so differences of the step do not show it.

Of each contact that bounces, τ = h φ/(φ⁻ − φ), with the gaps φ at z and φ⁻ one step before. Bodies that act on each other, through joints
or through contacts that press, share the mean of those among them, weighted by the impulses, so that equal contacts (the corners of a box
that lands flat) say what one would; others know nothing of them. f⁻ and f⁺ are central differences over two steps, the second of which is
taken with no other contacts than those that press throughout.

Like the step, it is right to first order in h; derivatives of positions by positions are exact, at any h, where velocities are constant but
for the impact (balls without gravity). Impacts in one step at different instants on bodies that are connected have an order that the step
does not know; of those the mean is an approximation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.dynamics.integrator import next_pose
from torchdojo.dynamics.residual import StepProblem, add_blocks
from torchdojo.dynamics.system import Group, System
from torchdojo.elements.contact import Contact
from torchdojo.elements.element import Twist
from torchdojo.gradients.hard_limit import limit_options
from torchdojo.solver.interior_point import solve_step
from torchdojo.solver.options import OnFailure, SolverOptions, Status
from torchdojo.solver.solution import Solution
from torchdojo.state.layout import ORIENTATION, STATE_SIZE, TANGENT_SIZE, join_state

#: From a problem, a warm start or None, and options to a solution.
Solve = Callable[[StepProblem, Tensor | None, SolverOptions], Solution]
FAR = 100.0  # by how much the radius of a contact that is not to touch is smaller [m]

__all__ = ["Impacts", "Solve", "add_impacts", "ambient", "bouncing", "can_bounce", "find_impacts", "shifted_by"]


class Impacts(NamedTuple):
    """Those of K environments with nb bodies.

    instant: τ (K, nb) of the component of each body [s], zero where nothing bounces, with a graph where the problem has one.
    component: (K, nb) the first body of each body's component. before, after: f⁻ and f⁺, (K, nb, 12), per body [ẋ, v̇, ω, ω̇].
    """

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


def bouncing(problem: StepProblem, w: Tensor) -> Tensor:
    """Which of the environments have an impact in their step, (K,), of solutions w (N, n)."""
    with torch.no_grad():
        pressed = torch.zeros(len(w), dtype=torch.bool, device=w.device)
        for number, group in enumerate(problem.system.groups):
            if _bounces(group):
                pressed |= _presses(problem, w, number).any(1)
        rows = pressed.nonzero().squeeze(-1)
        weights = [of.weight for of in _contacts(problem.select(rows), w[rows])]
        return rows[torch.cat(weights, dim=1).any(1)]


def find_impacts(problem: StepProblem, w: Tensor, point: Tensor, options: SolverOptions, solve: Solve = solve_step) -> Impacts:
    """Of solutions w (N, n) of steps that all have one (`bouncing`), and the points (N, n) near the limit κ → 0 that belong to them. The
    problem's data may have a graph. `solve` takes the steps without impacts."""
    contacts = _contacts(problem, w)
    with torch.no_grad():
        component = _components(problem, w)
        before, after = _rates(problem, w, point, contacts, options, solve)
    total, instant = problem.z.new_zeros(component.shape), problem.z.new_zeros(component.shape)
    for of in contacts:
        where = component[:, problem.system.groups[of.number].body_index[:, 0]]
        total = total.scatter_add(1, where, of.weight)
        instant = instant.scatter_add(1, where, of.weight * of.instant)
    instant = (instant / torch.where(total > 0, total, 1.0)).gather(1, component)
    return Impacts(instant, component, before, after)


def add_impacts(
    jacobian: Tensor, problem: StepProblem, w: Tensor, point: Tensor, options: SolverOptions, solve: Solve = solve_step
) -> None:
    """Add what impacts do to the derivative D of the step, (N, 12 nb, 12 nb + nu), in place; the other arguments are those of
    `find_impacts`."""
    nb = problem.system.num_bodies
    with torch.enable_grad():
        z = problem.z.detach().requires_grad_()
        here = StepProblem(problem.system, problem.parameters, z, problem.u, problem.wrench)
        found = find_impacts(here, w, point, options, solve)
        slope = found.slope(z)
    turn = 0.5 * quat.multiply(quat.conjugate(problem.state.pose.q), slope[..., ORIENTATION])[..., 1:]
    slope = torch.cat((slope[..., : ORIENTATION.start], turn, slope[..., ORIENTATION.stop :]), dim=-1)
    same = torch.nn.functional.one_hot(found.component, nb).to(slope)  # (K, nb, components)
    by_z, before, after = ((same[..., None] * t[:, :, None]).transpose(1, 2).flatten(2) for t in (slope, found.before, found.after))
    by_state = jacobian[..., : TANGENT_SIZE * nb]
    by_state += (by_state @ before.mT - after.mT) @ by_z


def shifted_by(problem: StepProblem, w: Tensor, point: Tensor, options: SolverOptions) -> tuple[StepProblem, Tensor] | None:
    """The problem at z + f⁻ τ, and what that and −f⁺ τ move z⁺ by at the velocities of w (N, n), (N, 12 nb) on its tangent space: both with
    the values that they have without impacts, z and zero, and with these derivatives. None without impacts."""
    rows, nb = bouncing(problem, w), problem.system.num_bodies
    if not len(rows):
        return None
    here = problem.select(rows)
    found = find_impacts(here, w[rows], point[rows], options)
    instant = (found.instant - found.instant.detach())[..., None]
    z = problem.z.index_add(0, rows, (instant * ambient(here.state.pose.q.detach(), found.before)).flatten(1))
    turn = quat.increment(problem.system.twists(w[rows])[..., 3:], here.timestep.detach()[:, None, None])
    moved = torch.zeros_like(found.before)
    moved[..., :3], moved[..., 6:9] = found.before[..., :3], quat.inverse_rotate(turn, found.before[..., 6:9])
    shift = problem.z.new_zeros(len(w), TANGENT_SIZE * nb).index_add(0, rows, (instant * (moved - found.after)).flatten(1))
    return StepProblem(problem.system, problem.parameters, z, problem.u, problem.wrench), shift


class _Bouncing(NamedTuple):
    """Contacts of the group with this number, (N, E): impulses of those that bounce, else zero, and τ."""

    number: int
    weight: Tensor
    instant: Tensor


def _contacts(problem: StepProblem, w: Tensor) -> list[_Bouncing]:
    twists, found = problem.body_twists(w), []
    for number, (group, element) in enumerate(zip(problem.system.groups, problem.elements, strict=True)):
        if not _bounces(group):
            continue
        assert isinstance(element, Contact)
        pose, twist, incoming, impulse, *_ = problem.gather(group, w, twists)
        motions = problem.motions(pose, twist, incoming)
        bounces, instant = element.impact(motions, impulse[..., :1], problem.timestep[:, None, None])
        weight = torch.where(bounces & _presses(problem, w, number), impulse[..., 0], 0.0)
        found.append(_Bouncing(number, weight.detach(), instant))
    return found


def _presses(problem: StepProblem, w: Tensor, number: int) -> Tensor:
    group, mass = problem.system.groups[number], problem.effective_mass(number)
    return w[:, group.impulse_index[:, 0]] * problem.timestep[:, None] > mass[..., 0] * w[:, group.slack_index[:, 0]]


def _components(problem: StepProblem, w: Tensor) -> Tensor:
    """The first body of those that each body is connected with, (N, nb)."""
    count, nb = len(w), problem.system.num_bodies
    touching = w.new_zeros(count, nb + 1, nb + 1)
    for number, group in enumerate(problem.system.groups):
        bodies = group.body_index
        acts = w.new_ones(1, len(bodies))
        if issubclass(group.cls, Contact):
            acts = _presses(problem, w, number).to(w)
        elif group.slack_index.shape[-1] or not group.impulse_index.shape[-1]:
            continue  # (limits and frictions are those of joints)
        add_blocks(touching, bodies, bodies, acts[..., None, None].expand(-1, -1, bodies.shape[1], bodies.shape[1]))
    reached = touching[:, :nb, :nb] + torch.eye(nb, dtype=w.dtype, device=w.device)
    for _ in range((nb - 1).bit_length()):
        reached = ((reached @ reached) > 0).to(w)
    return (reached > 0).to(w).argmax(-1)


def _rates(
    problem: StepProblem, w: Tensor, point: Tensor, contacts: list[_Bouncing], options: SolverOptions, solve: Solve
) -> tuple[Tensor, Tensor]:
    """f⁻ and f⁺, (N, nb, 12), from steps in the limit κ → 0: that of the solution w, and those from both its ends with no other contacts
    than those that press throughout."""
    h = problem.timestep[:, None, None]
    free = dataclasses.replace(limit_options(options), max_halvings=0, on_failure=OnFailure.FLAG)
    parameters, places = list(problem.parameters), problem.system.named_parameters(range(len(problem.parameters)))
    hit = {of.number: of.weight > 0 for of in contacts}
    for number, group in enumerate(problem.system.groups):
        if issubclass(group.cls, Contact):
            place = places[number]["radius"]
            keeps = _presses(problem, w, number) & ~hit.get(number, torch.zeros_like(w[:, :1], dtype=torch.bool))
            parameters[place] = parameters[place] - FAR * ~keeps

    def rate(z: Tensor, back: Tensor) -> Tensor:
        found = solve(StepProblem(problem.system, parameters, z, problem.u, problem.wrench), None, free)
        solved = (found.status == int(Status.SUCCESS))[:, None, None]  # (where there is no such step, as if there were no forces)
        forth = torch.where(solved, problem.system.twists(found.w), back)
        mean, change = 0.5 * (back + forth), (forth - back) / h
        return torch.cat((mean[..., :3], change[..., :3], mean[..., 3:], change[..., 3:]), dim=-1)

    left = problem.system.twists(point)
    twist = Twist(*left.split(3, dim=-1))
    after = join_state(next_pose(problem.state.pose, twist, h), twist)
    return rate(problem.z, torch.cat(problem.state.twist, dim=-1)), rate(after, left)


def ambient(q: Tensor, rate: Tensor) -> Tensor:
    """Changes (..., 12) on the tangent space at orientations q to (..., 13)."""
    v, change, omega, other = rate.split(3, dim=-1)
    turning = 0.5 * quat.multiply(q, torch.cat((torch.zeros_like(omega[..., :1]), omega), dim=-1))
    return torch.cat((v, change, turning, other), dim=-1)

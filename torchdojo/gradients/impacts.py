"""The instants of impacts within a step, and their part of its derivative: the saltation matrix of contacts with restitution.

The step gives bodies that bounce their new velocity for all of its length, whenever within the step they arrive (`Contact.gap`). As a
motion, this is right to first order in h. Its derivative is wrong at any h: x⁺ = x + h v⁺, with v⁺ = −e v, says dx⁺/dx = 1 for a ball. But
a ball that starts higher arrives later and is lower afterwards, dx⁺/dx = −e. Nimble (Werling et al. 2021) corrects its gradients of elastic
contacts for the same reason.

Let D be the derivative of the step, and τ(z) the time from z to the impact. Let f⁻ and f⁺ be the rates of change of the state in the motion
without the impact, through z and through z⁺. Then

    dz⁺ = D (dz + f⁻ dτ) − f⁺ dτ :

motion to the instant of the impact, which dz moves by dτ, the impact, and motion back. That is the saltation matrix
D + (D f⁻ − f⁺) ∂τ/∂z (Aizerman and Gantmakher 1958; Kong et al. 2024, "Saltation matrices: the essential tool for linearizing hybrid
dynamical systems"). The values of the step remain, so differences of the step do not show the added part.

A contact that bounces has τ = h φ/(φ⁻ − φ), with the gaps φ at z and φ⁻ one step before. Bodies that act on each other, through joints or
through contacts that press, form a component. A component takes the mean of τ over its contacts, weighted by the impulses. So equal
contacts, such as the corners of a box that lands flat, count like one. Each of f⁻ and f⁺ is a central difference over two steps. The second
step keeps only the contacts that press throughout.

The correction is right to first order in h, like the step. Derivatives of positions by positions are exact at any h where only the impact
changes velocities, as for balls without gravity. A component may have impacts at different instants of one step. The step does not know
their order, and then the mean is an approximation.
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
from torchdojo.geometry.near_terms import NOTHING
from torchdojo.gradients.hard_limit import hard_options
from torchdojo.solver.interior_point import solve_step
from torchdojo.solver.options import OnFailure, SolverOptions, Status
from torchdojo.solver.solution import Solution
from torchdojo.state.layout import ORIENTATION, STATE_SIZE, TANGENT_SIZE, join_state

#: Maps a problem, a warm start or None, and options to a solution.
Solve = Callable[[StepProblem, Tensor | None, SolverOptions], Solution]
FAR = 100.0  # reduction of the radius of a contact that must not touch [m]

__all__ = ["Impacts", "Solve", "add_impacts", "ambient", "bouncing", "can_bounce", "find_impacts", "shifted_by"]


class Impacts(NamedTuple):
    """Impacts of K environments with nb bodies.

    instant: τ (K, nb) of the component of each body [s], zero where nothing bounces; with a graph where the problem has one.
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
    """Whether the system has contacts with restitution."""
    return any(_bounces(group) for group in system.groups)


def _bounces(group: Group) -> bool:
    return issubclass(group.cls, Contact) and "restitution" in group.fields


def bouncing(problem: StepProblem, w: Tensor) -> Tensor:
    """Rows (K,) of the environments that have an impact in their step, for solutions w (N, n)."""
    with torch.no_grad():
        pressed = torch.zeros(len(w), dtype=torch.bool, device=w.device)
        for number, group in enumerate(problem.system.groups):
            if _bounces(group):
                pressed |= _presses(problem, w, number).any(1)
        rows = pressed.nonzero().squeeze(-1)
        weights = [bounce.weight for bounce in _contacts(problem.select(rows), w[rows])]
        return rows[torch.cat(weights, dim=1).any(1)]


def find_impacts(problem: StepProblem, w: Tensor, point: Tensor, options: SolverOptions, solve: Solve = solve_step) -> Impacts:
    """Impacts of steps with solutions w (N, n), each of which has one (`bouncing`).

    Args:
        problem: its data may have a graph.
        point: (N, n) the points near the hard limit κ → 0 that belong to w.
        solve: solves the steps without impacts.
    """
    contacts = _contacts(problem, w)
    with torch.no_grad():
        component = _components(problem, w)
        before, after = _rates(problem, w, point, contacts, options, solve)
    total, instant = problem.z.new_zeros(component.shape), problem.z.new_zeros(component.shape)
    for bounce in contacts:
        target = component[:, problem.system.groups[bounce.number].body_index[:, 0]]
        total = total.scatter_add(1, target, bounce.weight)
        instant = instant.scatter_add(1, target, bounce.weight * bounce.instant)
    instant = (instant / torch.where(total > 0, total, 1.0)).gather(1, component)
    return Impacts(instant, component, before, after)


def add_impacts(
    jacobian: Tensor, problem: StepProblem, w: Tensor, point: Tensor, options: SolverOptions, solve: Solve = solve_step
) -> None:
    """Add the part of impacts to the derivative D of the step, (N, 12 nb, 12 nb + nu), in place.

    `find_impacts` explains the other arguments.
    """
    nb = problem.system.num_bodies
    with torch.enable_grad():
        z = problem.z.detach().requires_grad_()
        moved = problem.replace(z=z)
        impacts = find_impacts(moved, w, point, options, solve)
        slope = impacts.slope(z)
    turn = 0.5 * quat.multiply(quat.conjugate(problem.state.pose.q), slope[..., ORIENTATION])[..., 1:]
    slope = torch.cat((slope[..., : ORIENTATION.start], turn, slope[..., ORIENTATION.stop :]), dim=-1)
    same = torch.nn.functional.one_hot(impacts.component, nb).to(slope)  # shape (K, nb, components)
    by_z, before, after = ((same[..., None] * t[:, :, None]).transpose(1, 2).flatten(2) for t in (slope, impacts.before, impacts.after))
    by_state = jacobian[..., : TANGENT_SIZE * nb]
    by_state += (by_state @ before.mT - after.mT) @ by_z


def shifted_by(problem: StepProblem, w: Tensor, point: Tensor, options: SolverOptions) -> tuple[StepProblem, Tensor] | None:
    """The problem at z + f⁻ τ, and the change of z⁺ by f⁻ τ and −f⁺ τ, (N, 12 nb) on its tangent space. None without impacts.

    Both keep the values without impacts, z and zero, and have the derivatives of these terms. The change is that at the velocities of
    w (N, n).
    """
    rows, nb = bouncing(problem, w), problem.system.num_bodies
    if not len(rows):
        return None
    chosen = problem.select(rows)
    impacts = find_impacts(chosen, w[rows], point[rows], options)
    instant = (impacts.instant - impacts.instant.detach())[..., None]
    z = problem.z.index_add(0, rows, (instant * ambient(chosen.state.pose.q.detach(), impacts.before)).flatten(1))
    turn = quat.increment(problem.system.twists(w[rows])[..., 3:], chosen.timestep.detach()[:, None, None])
    moved = torch.zeros_like(impacts.before)
    moved[..., :3], moved[..., 6:9] = impacts.before[..., :3], quat.inverse_rotate(turn, impacts.before[..., 6:9])
    shift = problem.z.new_zeros(len(w), TANGENT_SIZE * nb).index_add(0, rows, (instant * (moved - impacts.after)).flatten(1))
    return problem.replace(z=z), shift


class _Bouncing(NamedTuple):
    """Contacts (N, E) of the group with this number: the impulse of a contact that bounces, else zero, and τ."""

    number: int
    weight: Tensor
    instant: Tensor


def _contacts(problem: StepProblem, w: Tensor) -> list[_Bouncing]:
    twists, contacts = problem.body_twists(w), []
    for number, (group, element) in enumerate(zip(problem.system.groups, problem.elements, strict=True)):
        if not _bounces(group):
            continue
        assert isinstance(element, Contact)
        pose, twist, incoming, impulse, *_ = problem.gather(group, w, twists)
        motions = problem.motions(pose, twist, incoming)
        bounces, instant = element.impact(motions, impulse[..., :1], problem.timestep[:, None, None])
        weight = torch.where(bounces & _presses(problem, w, number), impulse[..., 0], 0.0)
        contacts.append(_Bouncing(number, weight.detach(), instant))
    return contacts


def _presses(problem: StepProblem, w: Tensor, number: int) -> Tensor:
    group, mass = problem.system.groups[number], problem.effective_mass(number)
    return w[:, group.impulse_index[:, 0]] * problem.timestep[:, None] > mass[..., 0] * w[:, group.slack_index[:, 0]]


def _components(problem: StepProblem, w: Tensor) -> Tensor:
    """The first body of each body's component, (N, nb)."""
    count, nb = len(w), problem.system.num_bodies
    touching = w.new_zeros(count, nb + 1, nb + 1)
    for number, group in enumerate(problem.system.groups):
        bodies = group.body_index
        acts = w.new_ones(1, len(bodies))
        if issubclass(group.cls, Contact):
            acts = _presses(problem, w, number).to(w)
        elif group.slack_index.shape[-1] or not group.impulse_index.shape[-1]:
            continue  # limits and frictions connect bodies that their joint connects already
        add_blocks(touching, bodies, bodies, acts[..., None, None].expand(-1, -1, bodies.shape[1], bodies.shape[1]))
    reached = touching[:, :nb, :nb] + torch.eye(nb, dtype=w.dtype, device=w.device)
    for _ in range((nb - 1).bit_length()):
        reached = ((reached @ reached) > 0).to(w)
    return (reached > 0).to(w).argmax(-1)


def _rates(
    problem: StepProblem, w: Tensor, point: Tensor, contacts: list[_Bouncing], options: SolverOptions, solve: Solve
) -> tuple[Tensor, Tensor]:
    """f⁻ and f⁺, (N, nb, 12), from steps in the hard limit κ → 0.

    One of the steps is the solution at `point`. The others start at its two ends, and keep only the contacts that press throughout.
    """
    h = problem.timestep[:, None, None]
    hard = dataclasses.replace(hard_options(options), max_halvings=0, on_failure=OnFailure.FLAG)
    parameters, places = list(problem.parameters), problem.system.named_parameters(range(len(problem.parameters)))
    hit = {bounce.number: bounce.weight > 0 for bounce in contacts}
    for number, group in enumerate(problem.system.groups):
        if issubclass(group.cls, Contact):
            keeps = _presses(problem, w, number) & ~hit.get(number, torch.zeros_like(w[:, :1], dtype=torch.bool))
            if "term" in places[number]:  # of near contacts, whose slots are empty where they must not touch
                place, empty = places[number]["term"], w.new_tensor((float(NOTHING), 0.0, 0.0))
                parameters[place] = torch.where(keeps[..., None], parameters[place], empty)
            else:
                place = places[number]["radius"]
                parameters[place] = parameters[place] - FAR * ~keeps

    def rate(z: Tensor, back: Tensor) -> Tensor:
        solution = solve(problem.replace(parameters=parameters, z=z), None, hard)
        solved = (solution.status == int(Status.SUCCESS))[:, None, None]  # without a solution, the velocity stays as without forces
        forth = torch.where(solved, problem.system.twists(solution.w), back)
        mean, change = 0.5 * (back + forth), (forth - back) / h
        return torch.cat((mean[..., :3], change[..., :3], mean[..., 3:], change[..., 3:]), dim=-1)

    left = problem.system.twists(point)
    twist = Twist(*left.split(3, dim=-1))
    after = join_state(next_pose(problem.state.pose, twist, h), twist)
    return rate(problem.z, torch.cat(problem.state.twist, dim=-1)), rate(after, left)


def ambient(q: Tensor, rate: Tensor) -> Tensor:
    """Turn rates (..., 12) on the tangent space at orientations q into rates (..., 13) of the state."""
    v, dv, omega, domega = rate.split(3, dim=-1)
    turning = 0.5 * quat.multiply(q, torch.cat((torch.zeros_like(omega[..., :1]), omega), dim=-1))
    return torch.cat((v, dv, turning, domega), dim=-1)

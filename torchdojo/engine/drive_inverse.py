"""Inverse problems of drives: activations that give wanted forces on the coordinates, and controls that lead to activations.

A force is affine in what drives it, the activation, or the control of a drive without one: f = clip(G(l, v) x + B(l, v)). With moment
arms, forces on the coordinates are τ = A x + c. Redundant drives, such as muscles, have many x for one τ. The one with the least Σ w x² is
taken, as static optimization of muscles does (Crowninshield and Brand 1981, doi 10.1016/0021-9290(81)90035-X). x stays in its range:

    min ½ Σ w x²   with A x = τ − c,  lower ≤ x ≤ upper

With the multipliers λ of the equations, x = clip(Aᵀλ/w). Proximal rounds find them, each by Newton's method for the convex, piecewise
quadratic function of λ whose gradient, with w = 1, is

    F(λ) = A clip(Aᵀλ) + ε (λ − λ_k) − r,     r = τ − c

with an exact line search, by bisection, so that it converges from anywhere. Where no x gives τ, λ grows from round to round, and x tends to
the least missing force. The last x is that of least norm with the entries at their bounds held, through the pseudoinverse, and so are
its derivatives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.actuator_laws import DYNAMICS, SMALLEST, ExactFilter, Filter, Integrator, Muscle
from torchdojo.engine.drive_tables import Bounds, ordered
from torchdojo.engine.drive_targets import on_coordinate, transmission
from torchdojo.parameters import as_tensor

if TYPE_CHECKING:
    from torchdojo.engine.drive_tables import Table

__all__ = ["DriveInverse", "ForceMap", "InverseDrives"]

EASE = 1e-6  # ε, with A scaled to length 1
ROUNDS, NEWTON_STEPS, BISECTIONS = 12, 40, 40
SOLVED = 1e-14  # the gradient that ends a round, relative to what is wanted
SETTLED = 1e-13  # change of what is missing, relative to what is wanted, that ends the rounds
RANK_TOL = 1e-9  # singular values below this part of the largest one are zero
UNIT = 0.0, 1.0  # range of a muscle's activation, which its law keeps


class ForceMap(NamedTuple):
    """Forces on the coordinates of the tree [N, N·m] as τ = matrix x + constant, (..., nc, n) and (..., nc), in a box.

    x (..., n), in the order of `Drives.names`: activations, or controls of drives without one.
    lower, upper: (..., n), the range of x: of activations and controls, and within which no force leaves its `forcerange`.
    """

    matrix: Tensor
    constant: Tensor
    lower: Tensor
    upper: Tensor


class DriveInverse(NamedTuple):
    """value: (..., n), what was asked for, in its range. error: what it leaves, zero where the problem has a solution.

    The error of activations is the force that is missing on each coordinate, (..., nc) [N, N·m], that of controls the difference between
    the activations after a step and the wanted ones, (..., na).
    """

    value: Tensor
    error: Tensor


class InverseDrives:
    """The part of `Drives` that solves inverse problems."""

    if TYPE_CHECKING:
        mech: Any
        names: tuple[str, ...]
        activated: tuple[str, ...]
        drives: dict[str, Any]
        _stateful: list[int]
        _check_size: Any
        advance: Any

        def _gain_and_bias(self, z: Tensor) -> tuple[Tensor, Tensor]: ...
        @property
        def delays(self) -> dict[str, slice]: ...
        @property
        def num_activations(self) -> int: ...
        @property
        def _numbers(self) -> Table: ...

    def force_map(self, z: Tensor) -> ForceMap:
        """Forces on the coordinates of the tree as a function of activations and controls, at z.

        The forces are conjugate to the rates of `mech.to_minimal`, as those of `mech.inverse_dynamics` are. Differentiable in z and in the
        numbers of drives.

        Args:
            z: (..., 13 nb).

        Raises:
            ValueError: drives of `mech.actuators`, whose laws are their own; and as `Mechanism.mass_matrix`.
        """
        shared = [name for name, drive in self.drives.items() if drive is None]
        if shared:
            raise ValueError(
                f"force_map: got drives of mech.actuators, {shared}; allowed: drives with laws of their own, td.Drive(joint=...). "
                "mech.actuators(ctrl, z) has the forces of the others"
            )
        gain, bias = self._gain_and_bias(z)
        arms, table = self._arms(z), self._numbers
        low, high = self._ranges()
        # A force is in its range between the x of both ends. Without a gain, or such an x, it is what `clip` makes of it.
        sign, size = torch.where(gain < 0, -1.0, 1.0), gain.abs().clamp_min(SMALLEST)
        ends = []
        for end in table.force:
            given = end.isfinite()  # infinite numbers have derivatives of NaN
            ends.append(torch.where(given, sign * (torch.where(given, end, 0.0) - bias) / size, sign * end))
        inner = torch.maximum(low, torch.minimum(*ends)), torch.minimum(high, torch.maximum(*ends))
        steady = (gain.abs() < SMALLEST) | (inner[0] > inner[1])
        lower, upper = torch.where(steady, low, inner[0]), torch.where(steady, high, inner[1])
        nearest = torch.where(lower.isfinite(), lower, torch.where(upper.isfinite(), upper, 0.0))
        held = torch.where(steady, table.force.clip(gain * nearest + bias), bias)
        matrix = arms * torch.where(steady, 0.0, gain)[..., None, :]
        return ForceMap(matrix, (arms * held[..., None, :]).sum(-1), *(bound.expand(steady.shape) for bound in (lower, upper)))

    def activations_for(self, z: Tensor, tau: Tensor, *, cost: Any = 1.0) -> DriveInverse:
        """Activations, and controls of drives without one, that give forces on the coordinates, those of least Σ cost x².

        ``drives.activations_for(mech.to_maximal(q, qd), mech.inverse_dynamics(q, qd, qdd))`` is what a motion needs. Springs, dampers,
        friction and contacts of the mechanism are forces, too: take them from tau. The result is differentiable in z, in tau and in the
        numbers of drives, with the entries at an end of their range held.

        Args:
            z: (..., 13 nb). tau: (..., nc) [N, N·m], on the coordinates of the tree. cost: (n,) or a number, above zero.

        Raises:
            ValueError: shapes that do not fit, costs that are not above zero; and as `force_map`.
        """
        weights = as_tensor(cost, "activations_for cost").double()
        if weights.shape not in ((), (len(self.names),)) or not bool((weights > 0).all()):
            raise ValueError(f"activations_for.cost: got {cost}; allowed: a number above 0, or one for each of {list(self.names)}")
        forces = self.force_map(z)
        if tau.shape[-1:] != forces.constant.shape[-1:]:
            size = forces.constant.shape[-1]
            raise ValueError(f"activations_for.tau: got shape {tuple(tau.shape)}; allowed: (..., {size}), a force for each coordinate")
        scale = weights.sqrt()
        columns, wanted = forces.matrix / scale, tau - forces.constant
        x = bounded_least_norm(columns, wanted, forces.lower * scale, forces.upper * scale)
        value = x / scale
        return DriveInverse(value, (forces.matrix @ value[..., None])[..., 0] - wanted)

    def controls_for(self, act: Tensor, after: Tensor) -> DriveInverse:
        """Controls (..., n) that lead from activations to others in one step, clipped to their ranges; zeros for drives without one.

        Args:
            act, after: (..., na), before and after the step.

        Raises:
            ValueError: laws whose rate is not affine in the control: muscles with a smooth switch, laws of one's own; delays.
        """
        for label, value in (("act", act), ("after", after)):
            self._check_size(label, value, self.num_activations)
        if self.delays:
            raise ValueError(
                f"controls_for: got drives with a delay, {list(self.delays)}; allowed: delay=0, since other controls arrive before"
            )
        table, batch = self._numbers, torch.broadcast_shapes(act.shape[:-1], after.shape[:-1])
        ctrl = act.new_zeros(*batch, len(self.names))
        for group in table.dynamics:
            columns = [self._stateful.index(place) for place in group.places]
            before, wanted = (value.expand(*batch, value.shape[-1])[..., columns] for value in (act, after))
            names = [self.names[place] for place in group.places]
            found = _control(group.law, names, before, wanted, group.numbers, self.mech.timestep)
            ctrl = ctrl.index_copy(-1, torch.tensor(group.places), found.expand(*batch, len(columns)))
        ctrl = table.ctrl.clip(ctrl)
        return DriveInverse(ctrl, self.advance(ctrl, act) - after)

    def _ranges(self) -> tuple[Tensor, Tensor]:
        """The range of activations, and of controls that act themselves, (..., n) each.

        A filter follows its control, so its activation stays in the range of both. A muscle's stays between zero and one.
        """
        table = self._numbers
        low, high = (list(bound.unbind(-1)) for bound in table.ctrl)
        for k, place in enumerate(self._stateful):
            law = DYNAMICS[self.drives[self.names[place]].dynamics]
            lower, upper = table.act.lower[..., k], table.act.upper[..., k]
            if isinstance(law, Muscle):
                lower, upper = lower.clamp_min(UNIT[0]), upper.clamp_max(UNIT[1])
            elif isinstance(law, Filter):
                lower, upper = torch.maximum(lower, low[place]), torch.minimum(upper, high[place])
            low[place], high[place] = lower, upper
        return tuple(torch.stack(torch.broadcast_tensors(*bounds), dim=-1) for bounds in (low, high))  # type: ignore[return-value]

    def _arms(self, z: Tensor) -> Tensor:
        """Forces on the coordinates per force of each drive, (..., nc, n)."""
        mech, table = self.mech, self._numbers
        q = mech.to_minimal(z)[0]
        places, tendons = mech.coordinate_places(), {name: i for i, name in enumerate(mech.tendons)}
        strings = mech.tendon_moment_arms(q) if any(drive.tendon for drive in self.drives.values()) else None
        columns: list[tuple[list[int], Tensor]] = []
        for i, drive in enumerate(self.drives.values()):
            if on_coordinate(drive):
                unit = q.new_zeros(mech.num_coordinates)
                unit[places[drive.joint].start + drive.coordinate] = 1.0
                column = table.gear[..., i, None] * unit
            elif drive.tendon:
                assert strings is not None  # some drive pulls at a tendon
                column = table.gear[..., i, None] * strings[..., tendons[drive.tendon], :]
            else:
                column = _along_coordinates(mech, q, z, transmission(mech, z, drive)[0].wrenches)
            columns.append(([i], column[..., None]))
        return ordered(columns)


def _along_coordinates(mech: Any, q: Tensor, z: Tensor, wrenches: Any) -> Tensor:
    """Wrenches of a transmission as forces on the coordinates, (..., nc)."""
    total = torch.zeros_like(q)
    for body, force, torque in wrenches:
        if body is not None:
            wrench = torch.cat(torch.broadcast_tensors(force, quat.rotate(mech.body_state(z, body).q, torque)), dim=-1)
            total = total + (mech.point_jacobian(q, body) * wrench[..., :, None]).sum(-2)
    return total


def _control(law: str, names: list[str], act: Tensor, after: Tensor, numbers: Tensor, timestep: Tensor) -> Tensor:
    """The control of a law that leads from `act` to `after` in a step, (..., k)."""
    kind, change = type(DYNAMICS[law]), after - act
    if kind is Integrator:
        return change / timestep
    if kind is ExactFilter:
        return act - change / torch.expm1(-timestep / numbers[..., 0].clamp_min(SMALLEST))
    if kind is Filter:
        return act + change * numbers[..., 0] / timestep
    if kind is Muscle and not bool((numbers[..., 2] >= SMALLEST).any()):
        scale = 0.5 + 1.5 * act.clamp(*UNIT)
        constant = torch.where(change > 0, numbers[..., 0] * scale, numbers[..., 1] / scale)
        return (act + change * constant / timestep).clamp(*UNIT)
    got = "muscles with a smooth switch" if kind is Muscle else f"the law {law!r}"
    raise ValueError(
        f"controls_for: got {got}, of {names}, whose rate is not affine in the control; allowed: integrators, filters, and muscles with "
        "smooth=0. advance(ctrl, act) has the activations after any control"
    )


def bounded_least_norm(A: Tensor, wanted: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """x (..., n) between its bounds with A x = wanted and the least |x|, or, without such an x, with the least |A x − wanted|.

    Args:
        A: (..., m, n). wanted: (..., m). lower, upper: (..., n), infinite where there is none.
    """
    batch = torch.broadcast_shapes(A.shape[:-2], wanted.shape[:-1], lower.shape[:-1], upper.shape[:-1])
    A, wanted = A.expand(*batch, *A.shape[-2:]), wanted.expand(*batch, wanted.shape[-1])
    with torch.no_grad():
        length = torch.linalg.matrix_norm(A).clamp_min(SMALLEST)[..., None]
        unit, r = A / length[..., None], wanted / length
        box = Bounds(*(bound.detach().expand(*batch, A.shape[-1]) for bound in (lower, upper)))
        multiplier, missing = torch.zeros_like(r), torch.full_like(r, torch.inf)
        for _ in range(ROUNDS):
            multiplier = _proximal(unit, r, box, multiplier)
            x = box.clip((unit.mT @ multiplier[..., None])[..., 0])
            before, missing = missing, r - (unit @ x[..., None])[..., 0]
            if bool(((missing - before).abs() <= SETTLED * r.abs().amax(-1, keepdim=True)).all()):
                break
        at_lower, at_upper = x <= box.lower, x >= box.upper
    held = torch.where(at_lower, lower, torch.where(at_upper, upper, 0.0))
    free = torch.where((at_lower | at_upper)[..., None, :], 0.0, A)
    inverse = torch.linalg.pinv(free, rtol=RANK_TOL)
    rest = (inverse @ (wanted - (A @ held[..., None])[..., 0])[..., None])[..., 0]
    return torch.where(at_lower | at_upper, held, rest.clamp(lower, upper))


def _proximal(A: Tensor, r: Tensor, box: Bounds, center: Tensor) -> Tensor:
    """λ (..., m) with A clip(Aᵀλ) + ε (λ − center) = r, by Newton's method from the center."""

    def gradient(multiplier: Tensor) -> Tensor:
        x = box.clip((A.mT @ multiplier[..., None])[..., 0])
        return (A @ x[..., None])[..., 0] + EASE * (multiplier - center) - r

    multiplier, largest = center, r.abs().amax(-1).clamp_min(SMALLEST)
    for _ in range(NEWTON_STEPS):
        slope = gradient(multiplier)
        if bool((slope.abs().amax(-1) <= SOLVED * largest).all()):
            break
        along = (A.mT @ multiplier[..., None])[..., 0]
        inside = A * ((along > box.lower) & (along < box.upper))[..., None, :]
        matrix = inside @ inside.mT + EASE * torch.eye(A.shape[-2], dtype=A.dtype, device=A.device)
        direction = -torch.linalg.solve(matrix, slope[..., None])[..., 0]
        low, high = torch.zeros_like(largest), torch.ones_like(largest)
        for _ in range(BISECTIONS):  # the slope along the direction grows from below zero
            rising = (gradient(multiplier + high[..., None] * direction) * direction).sum(-1) > 0
            middle = 0.5 * (low + high)
            if not bool(rising.any()):
                break
            below = (gradient(multiplier + middle[..., None] * direction) * direction).sum(-1) <= 0
            low, high = torch.where(rising & below, middle, low), torch.where(rising & ~below, middle, high)
            if bool((high - low <= SETTLED).all()):
                break
        multiplier = multiplier + high[..., None] * direction
    return multiplier

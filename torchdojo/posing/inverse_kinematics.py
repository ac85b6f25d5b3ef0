"""Inverse kinematics: joint coordinates within limits at which bodies have given positions and orientations.

The rows r of all targets are position errors, and rotation vectors from the wanted orientation to the present one, in the world frame.
Levenberg and Marquardt's iteration makes them small, with a damping that vanishes with the rows (Sugihara 2011, equation 27):

    δ = −Jᵀ(J Jᵀ + μI)⁻¹ r   with   μ = ½|r|²

Coordinates at a limit are held while δ would move them outwards. The iteration may end in a local minimum, mostly at limits. So it starts
anew from the random configuration whose poses are nearest to the targets, then from the next nearest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.ball_cones import ConedJoint
from torchdojo.elements.string_coupling import StringCoupling
from torchdojo.parameters import as_tensor, broadcast_shapes, require, transforming
from torchdojo.state.kinematics import Geometry, Tree, apply, cross, geometry, kinematics, modules_of, turned
from torchdojo.structure import Structure

__all__ = ["PoseTarget", "Posture", "Search", "inverse_kinematics"]

SEEDS = 1024  # random configurations, among which further starts are chosen
LARGEST_CHANGE = 1.0  # [m, rad] of a coordinate in one iteration
WIDTH = 256  # number of starts that go side by side
ROUNDS = 3  # in which coordinates at limits are held


class PoseTarget(NamedTuple):
    """Where a body is to be: ``td.PoseTarget("hand", position=(0.5, 0.0, 0.4), orientation=(0.0, 1.0, 0.0, 0.0))``.

    body: its name. position: (..., 3) of `point` [m], world frame; None: any. orientation: (..., 4), wxyz, body to world; None: any.
    point: (3,) [m], in the body's frame, from its center of mass. weight: of its errors beside those of other targets.
    """

    body: str
    position: Any = None
    orientation: Any = None
    point: Any = (0.0, 0.0, 0.0)
    weight: float = 1.0


class Posture(NamedTuple):
    """Result of `Mechanism.inverse_kinematics`.

    q: (..., n) coordinates, the best that were found. success: (...,) whether all errors are within the tolerance.
    position_error: (...,) largest distance from a target [m]. orientation_error: (...,) largest angle [rad].
    iterations: (...,) over all starts.
    """

    q: Tensor
    success: Tensor
    position_error: Tensor
    orientation_error: Tensor
    iterations: Tensor


class Search(NamedTuple):
    """Arguments of `Mechanism.inverse_kinematics`."""

    hold: Sequence[str]
    starts: int
    iterations: int
    tolerance: float
    seed: int


class _Target(NamedTuple):
    """A target with its numbers for B environments."""

    place: int  # of the body in the tree
    moved: Tensor  # (n,) which coordinates move the body
    position: Tensor | None  # (B, 3)
    orientation: Tensor | None  # (B, 4)
    point: Tensor  # (3,)
    weight: float

    def each(self, function: Callable[[Tensor], Tensor]) -> _Target:
        """With a function of the numbers."""
        position, orientation = (None if value is None else function(value) for value in (self.position, self.orientation))
        return self._replace(position=position, orientation=orientation)


class _Problem(NamedTuple):
    tree: Tree
    numbers: Geometry  # of the joints, (B, E, ·) or (E, ·)
    targets: list[_Target]
    lower: Tensor  # (B, n)
    upper: Tensor

    def of(self, rows: Tensor) -> _Problem:
        """For some environments."""
        numbers = Geometry(*(value[rows] if value.ndim > 2 else value for value in self.numbers))
        return _Problem(
            self.tree, numbers, [target.each(lambda value: value[rows]) for target in self.targets], self.lower[rows], self.upper[rows]
        )


def inverse_kinematics(
    mech: Structure,
    tree: Tree,
    targets: PoseTarget | Sequence[PoseTarget],
    q: Tensor | None,
    search: Search,
) -> Posture:
    """`Mechanism.inverse_kinematics`."""
    if transforming():
        raise RuntimeError("inverse_kinematics: it decides by values, and works inside no torch.func transform; give it a batch of targets")
    wanted = [targets] if isinstance(targets, PoseTarget) else list(targets)
    read = [_read(mech, tree, target) for target in wanted]
    if not read:
        raise ValueError('inverse_kinematics: got no target; allowed: one or more, td.PoseTarget("hand", position=(0.5, 0.0, 0.4))')
    for name, value, least in (("starts", search.starts, 1), ("iterations", search.iterations, 1), ("tolerance", search.tolerance, 0.0)):
        if not value >= least or (least == 0.0 and value == 0):
            raise ValueError(f"inverse_kinematics: got {name}={value!r}; allowed: {'numbers above 0' if least == 0.0 else '1 or more'}")
    n = mech.num_coordinates
    bounds = _bounds(mech, tree)
    has_start = q is not None
    if q is None:
        q = torch.maximum(torch.minimum(mech.gravity.new_zeros(n, dtype=torch.float64), bounds[1]), bounds[0])
    dtype = q.dtype if has_start else mech.state_dtype
    q = q.double() if dtype == torch.float32 else q
    mech.check_tensor("q", q, n)
    numbers = geometry(tree, mech.named_joints(), mech.gravity)
    free = _free(mech, tree, read, search.hold)
    numbers_given = [value for target in read for value in (target.position, target.orientation) if value is not None]
    batch = broadcast_shapes(*(v.shape[:-1] for v in (q, *bounds, *numbers_given)), *(v.shape[:-2] for v in numbers))

    def spread(value: Tensor, core: int = 1) -> Tensor:
        return value.expand(*batch, *value.shape[value.ndim - core :]).flatten(0, -core - 1) if batch else value[None]

    problem = _Problem(
        tree,
        Geometry(*(spread(value, 2) if value.ndim > 2 else value for value in numbers)),
        [target.each(spread) for target in read],
        *(spread(bound) for bound in bounds),
    )
    q = spread(q)
    with torch.no_grad():
        q, count = _search(problem, q, has_start, free, search)
    q = _with_gradient(problem, q, free)
    with torch.no_grad():
        _, position, angle, _ = _rows(problem, q)
    reached = (position <= search.tolerance) & (angle <= search.tolerance)
    shaped = [value.reshape((*batch, *value.shape[1:])) for value in (q, reached, position, angle, count)]
    return Posture(*(value.to(dtype) if value.is_floating_point() else value for value in shaped))


def _read(mech: Structure, tree: Tree, target: PoseTarget) -> _Target:
    if not isinstance(target, PoseTarget):
        raise TypeError(f"inverse_kinematics: got {target!r} as a target; allowed: td.PoseTarget(body, position=..., orientation=...)")
    if target.body not in mech.bodies:
        raise ValueError(f"inverse_kinematics: got a target for {target.body!r}; bodies are {list(mech.bodies)}")
    if target.position is None and target.orientation is None:
        raise ValueError(f"inverse_kinematics: the target of {target.body!r} has neither; give a position, an orientation, or both")
    if not (isinstance(target.weight, (int, float)) and 0 < target.weight < math.inf):
        raise ValueError(f"inverse_kinematics: {target.body!r} got the weight {target.weight!r}; allowed: finite numbers above 0")
    values: dict[str, Tensor | None] = {"position": None, "orientation": None, "point": None}
    for name, size in (("position", 3), ("orientation", 4), ("point", 3)):
        entry = getattr(target, name)
        if entry is None and name != "point":
            continue
        value = as_tensor((0.0, 0.0, 0.0) if entry is None else entry, f"{target.body}.{name}").to(mech.gravity.device, torch.float64)
        if value.shape[-1:] != (size,) or (name == "point" and value.ndim != 1):
            allowed = f"({size},)" if name == "point" else f"(..., {size})"
            raise ValueError(f"inverse_kinematics: {target.body}.{name}: got shape {tuple(value.shape)}; allowed: {allowed}")
        require(torch.isfinite(value), f"{target.body}.{name}", value, "finite numbers")
        if name == "orientation":
            norm = torch.linalg.vector_norm(value, dim=-1)
            require((norm - 1).abs() <= 1e-6, f"{target.body}.{name}", value, "unit quaternions wxyz (within 1e-6); divide by the norm")
            value = quat.normalize(value)
        values[name] = value
    place = tree.bodies.index(list(mech.bodies).index(target.body))
    return _Target(place, tree.moves[place] > 0, values["position"], values["orientation"], values["point"], float(target.weight))  # type: ignore[arg-type]


def _bounds(mech: Structure, tree: Tree) -> tuple[Tensor, Tensor]:
    """Limits of all coordinates, (..., n) each, infinite where there are none."""
    bounds = []
    for side in (0, 1):
        columns = [mech.gravity.new_full((), -math.inf if side == 0 else math.inf, dtype=torch.float64)] * mech.num_coordinates
        for joint, places in zip(modules_of(tree, mech.named_joints()), tree.coordinates, strict=True):
            limits = joint.inner_limits if isinstance(joint, ConedJoint) else joint.limits
            if limits is not None:
                columns[places] = limits[side].detach().unbind(-1)
        bounds.append(torch.stack(torch.broadcast_tensors(*columns), dim=-1))
    return bounds[0], bounds[1]


def _free(mech: Structure, tree: Tree, targets: Sequence[_Target], hold: Sequence[str]) -> Tensor:
    """Which coordinates the search may move, (n,): those of bodies with targets that are not held.

    Raises:
        ValueError: an unknown name; loops or couplings that the motion would open.
    """
    places = dict(zip(tree.joints, tree.coordinates, strict=True))
    free = torch.stack([target.moved for target in targets]).any(0)
    for name in [hold] if isinstance(hold, str) else hold:
        if name not in places:
            raise ValueError(f"inverse_kinematics: hold names {name!r}; allowed: {mech.tree_joints}")
        free[places[name]] = False
    bodies = {name: tree.moves[tree.bodies.index(i)] > 0 for i, name in enumerate(mech.bodies)}
    for name, joint in mech.named_joints().items():
        if name not in places and joint.num_rows:
            ends = [torch.zeros_like(free) if body is None else bodies[body] for body in joint.body_names]
            _refuse(f"joint {name!r}", free & (ends[0] ^ ends[-1]), places)
    for name, coupling in mech.named_couplings().items():
        coupled = torch.zeros_like(free)
        if isinstance(coupling, StringCoupling):  # what moves some of its bodies, and not all
            moved = torch.stack([torch.zeros_like(free) if body is None else bodies[body] for body in coupling.body_names])
            coupled = moved.any(0) & ~moved.all(0)
        for end in coupling.ends:
            if end.joint in places:
                coupled[places[end.joint]] = True
        _refuse(f"coupling {name!r}", free & coupled, places)
    return free.to(mech.gravity.device)


def _refuse(label: str, opened: Tensor, places: Mapping[Any, slice]) -> None:
    if bool(opened.any()):
        names = [str(name) for name, place in places.items() if bool(opened[place].any())]
        raise ValueError(
            f"inverse_kinematics: {label} closes a loop or couples coordinates of {names}, which lead to a target; allowed: trees; hold "
            f"these joints, hold={names}, or take the mechanism without {label}"
        )


# -- the search ----------------------------------------------------------------------------------------------------------------------------


def _rows(problem: _Problem, q: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weighted rows (B, m), largest distance and angle (B,), and the Jacobian of the rows (B, m, n), at q (B, n)."""
    place = kinematics(problem.tree, problem.numbers, q.mT, q.shape[:1])
    s, w = place.screws[:3], place.screws[3:]
    rows, columns, distances, angles = [], [], [torch.zeros_like(q[:, 0])], [torch.zeros_like(q[:, 0])]
    for target in problem.targets:
        e, moved = target.place, target.weight * target.moved.to(q)[:, None]
        rotation = place.rotation[:, :, e]
        if target.position is not None:
            arm = place.position[:, e] + apply(rotation, target.point[:, None])
            error = (arm + place.origin[:, 0]).mT - target.position
            rows.append(target.weight * error)
            columns.append((s + cross(w, arm[:, None])) * moved)
            distances.append(torch.linalg.vector_norm(error.detach(), dim=-1))
        if target.orientation is not None:
            turn = rotation.movedim(-1, 0) @ quat.rotation_matrix(target.orientation).mT
            error = quat.rotation_vector(quat.from_rotation_matrix(turn))
            rows.append(target.weight * error)
            columns.append(w * moved)
            angles.append(torch.linalg.vector_norm(error.detach(), dim=-1))
    jacobian = torch.cat(columns)
    flat = jacobian.flatten(0, 1).mT.contiguous().reshape(len(q), *jacobian.shape[:2])
    return torch.cat(rows, dim=-1), torch.stack(distances).amax(0), torch.stack(angles).amax(0), flat


def _search(problem: _Problem, q: Tensor, given: bool, free: Tensor, search: Search) -> tuple[Tensor, Tensor]:
    """The best coordinates (B, n), and the number of iterations of each environment, over all its starts (B,).

    While few environments are left, each has several starts at a time: small batches take as long as smaller ones.
    """
    best, least = q.clone(), q.new_full(q.shape[:1], math.inf)
    count = torch.zeros(len(q), dtype=torch.long, device=q.device)
    left, used, seeds = torch.arange(len(q), device=q.device), 0, None
    while len(left) and used < search.starts:
        width = min(search.starts - used, max(1, WIDTH // len(left)))
        if used == 0 and given:
            width, start = 1, q[left]
        else:
            seeds = seeds or _seeds(problem, q, free, search)
            chosen = seeds[1][left, used : used + width].flatten()
            start = torch.where(free, seeds[0][chosen], q[left].repeat_interleave(width, 0))
        owner = left.repeat_interleave(width)
        solved, error, iterations = _iterate(problem.of(owner), start, owner, free, search)
        error, number = error.unflatten(0, (-1, width)).min(-1)
        better = error < least[left]
        rows = (torch.arange(len(left), device=q.device) * width + number)[better]
        best[left[better]], least[left[better]] = solved[rows], error[better]
        count[left] += iterations.unflatten(0, (-1, width)).sum(-1)
        used += width
        left = left[error > 0]
    return best, count


def _iterate(problem: _Problem, q: Tensor, owner: Tensor, free: Tensor, search: Search) -> tuple[Tensor, Tensor, Tensor]:
    """The best of the iterates from q (C, n), the square of its rows, zero with success, and the number of iterations (C,).

    Starts with the `owner` (C,) of one that succeeds end.
    """
    best, least = q, q.new_full(q.shape[:1], math.inf)
    count = torch.zeros_like(owner)
    active = torch.arange(len(q), device=q.device)
    for iteration in range(search.iterations + 1):
        rows, distance, angle, jacobian = _rows(problem, q)
        arrived = (distance <= search.tolerance) & (angle <= search.tolerance)
        error = torch.where(arrived, 0.0, (rows * rows).sum(-1))
        better = error < least[active]
        best = best.index_copy(0, active[better], q[better])
        least = least.index_copy(0, active[better], error[better])
        if iteration == search.iterations:
            break
        going = ~torch.isin(owner, owner[arrived])
        if not bool(going.all()):
            keep = going.nonzero()[:, 0]
            if not len(keep):
                break
            active, owner, problem = active[keep], owner[keep], problem.of(keep)
            q, rows, error, jacobian = q[keep], rows[keep], error[keep], jacobian[keep]
        count[active] += 1
        q = _step(problem, q, rows, error, jacobian, free)
    return best, least, count


def _step(problem: _Problem, q: Tensor, rows: Tensor, error: Tensor, jacobian: Tensor, free: Tensor) -> Tensor:
    """One damped step (B, n) within the limits."""
    free = free.expand(q.shape)
    eye = torch.eye(rows.shape[-1], dtype=q.dtype, device=q.device)
    damping = (0.5 * error + 1e-12)[:, None, None] * eye
    delta = torch.zeros_like(q)
    for _ in range(ROUNDS):
        along = jacobian * free[:, None]
        factor, _ = torch.linalg.cholesky_ex(along @ along.mT + damping)
        delta = -(along.mT @ torch.cholesky_solve(rows[..., None], factor))[..., 0]
        blocked = free & (((q <= problem.lower) & (delta < 0)) | ((q >= problem.upper) & (delta > 0)))
        if not bool(blocked.any()):
            break
        free = free & ~blocked
    delta = delta * free * (LARGEST_CHANGE / delta.abs().amax(-1, keepdim=True).clamp_min(LARGEST_CHANGE))
    moved = turned(problem.tree, problem.numbers, q, delta)
    return torch.maximum(torch.minimum(moved, problem.upper), problem.lower)


def _seeds(problem: _Problem, q: Tensor, free: Tensor, search: Search) -> tuple[Tensor, Tensor]:
    """Random coordinates (K, n) within limits, and for each environment the numbers of those with the nearest targets (B, starts).

    Angles without limits are in (−π, π). Translations without limits stay.
    """
    count = max(SEEDS, search.starts)
    random = torch.rand(count, q.shape[-1], generator=torch.Generator().manual_seed(search.seed), dtype=torch.float64).to(q.device)
    single = torch.zeros_like(free)
    for place in problem.tree.rotations.flatten().tolist():
        if place < len(single):
            single[place] = True
    lower, upper = problem.lower[0], problem.upper[0]
    bounded = torch.isfinite(lower) & torch.isfinite(upper)
    low, high = torch.where(bounded, lower, -math.pi), torch.where(bounded, upper, math.pi)
    values = torch.where(free & (bounded | single), low + random * (high - low), q[0])
    values = torch.maximum(torch.minimum(values, upper), lower)
    numbers = Geometry(*(value[0] if value.ndim > 2 else value for value in problem.numbers))
    place = kinematics(problem.tree, numbers, values.mT, values.shape[:1])
    apart = q.new_zeros(len(q), count)
    for target in problem.targets:
        rotation = place.rotation[:, :, target.place]
        if target.position is not None:
            points = (place.position[:, target.place] + place.origin[:, 0] + apply(rotation, target.point[:, None])).mT
            apart = apart + target.weight**2 * torch.cdist(target.position, points).square()
        if target.orientation is not None:
            turns = quat.from_rotation_matrix(rotation.movedim(-1, 0))
            cosine = (target.orientation @ turns.mT).abs().clamp_max(1.0)
            apart = apart + target.weight**2 * (2 * torch.acos(cosine)).square()
    return values, apart.topk(search.starts, dim=-1, largest=False).indices


def _with_gradient(problem: _Problem, q: Tensor, free: Tensor) -> Tensor:
    """q (B, n) as a function of the targets and of the joints' numbers.

    r(q; θ) = 0 moves with dq = −J⁺ ∂r/∂θ dθ along the coordinates that are not at a limit (implicit function theorem, least norm). As in
    loops.py, this is one step of no length whose right-hand side carries the graph.
    """
    if not torch.is_grad_enabled():
        return q
    rows, _, _, jacobian = _rows(problem, q)
    if not rows.requires_grad:
        return q
    inside = free & (q > problem.lower) & (q < problem.upper)
    inverse = torch.linalg.pinv(jacobian.detach() * inside[:, None], rtol=1e-10)
    step = (inverse @ rows[..., None])[..., 0] * inside
    numbers = Geometry(*(value.detach() for value in problem.numbers))
    return turned(problem.tree, numbers, q, step.detach() - step)

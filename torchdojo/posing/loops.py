"""States with closed loops: joint coordinates of a spanning tree that satisfy the joints outside the tree, and the couplings.

The rows r of these joints and couplings are functions of the tree's coordinates y. Levenberg and Marquardt's iteration solves r(y) = 0:

    δ = −Jᵀ(J Jᵀ + μI)⁻¹ r   with   μ = |r|².

It needs no full rank of J: loops have redundant rows, and stretched loops are singular. It still converges quadratically where the
solutions are not isolated (Yamashita and Fukushima 2001). Started at y, it ends next to y.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchdojo.elements.coupling import Coupling
from torchdojo.elements.couplings import SumCoupling
from torchdojo.elements.element import Twist, previous_pose
from torchdojo.elements.joints import StandardJoint
from torchdojo.elements.string_coupling import StringCoupling
from torchdojo.parameters import broadcast_shapes
from torchdojo.state import minimal, signs
from torchdojo.state.forks import use_own_threads
from torchdojo.state.layout import ANGULAR_VELOCITY, ORIENTATION, POSITION, STATE_SIZE, VELOCITY, join_state, split_state
from torchdojo.state.redundancy import check_misfit
from torchdojo.state.tangent import local_jacobian
from torchdojo.structure import Structure

__all__ = ["close_loops", "gaps", "initial_state"]

CLOSED = 1e-9  # [m, rad] in float64: the solver's residual_tol
ITERATIONS = 100
STATIONARY = 1e-9  # [m, rad] a smaller change with a gap left is a dead end
ATTEMPTS = 3  # after the first, each from coordinates bent by up to BEND
BEND = 0.3  # [m, rad]
PLACES = {"position": POSITION, "velocity": VELOCITY, "orientation": ORIENTATION, "angular_velocity": ANGULAR_VELOCITY}
LARGEST_CHANGE = 0.5  # [m, rad] of a coordinate in one iteration: trigonometric rows are far from linear beyond


def initial_state(
    mech: Structure, batch: tuple[int, ...], values: Mapping[str, Mapping[str, Any]], start: Mapping[str, Mapping[str, Any]]
) -> Tensor:
    """`Mechanism.initial_state` with the values of a keyframe to start from, which loops may change."""
    values = {name: _named(mech, name, value) for name, value in values.items()}
    held, values = values, {name: {**start.get(name, {}), **values.get(name, {})} for name in {**start, **values}}
    use_own_threads()
    order = mech.tree_order()
    by_name = {entry.name: entry for entry in order}
    names = list(mech.bodies)
    free = {names[e.child]: e for e in order if e.joint.num_coordinates == 6 and e.parent == -1 and e.name in mech.joints}
    q = mech.gravity.new_zeros(*batch, mech.num_coordinates, dtype=torch.float64)
    qd = torch.zeros_like(q)
    given_mask = torch.zeros(2, mech.num_coordinates, dtype=torch.bool, device=q.device)
    for name, value in values.items():
        if name in mech.joints and name not in by_name:
            raise ValueError(
                f"initial_state: joint {name!r} closes a loop, and its coordinates follow from those of the others; give some of "
                f"{mech.tree_joints}"
            )
        keys = ("q", "qd") if name in by_name else tuple(PLACES)
        if name not in by_name and name not in free:
            raise ValueError(f"initial_state: unknown name {name!r}; joints are {list(by_name)}, free bodies {list(free)}")
        for key in value:
            if key not in keys:
                raise ValueError(f"initial_state: {name!r} got {key!r}; allowed: {list(keys)}")
        if name in by_name:
            piece = by_name[name].coordinates
            q = _put(q, piece, value.get("q", 0.0), f"{name}.q")
            qd = _put(qd, piece, value.get("qd", 0.0), f"{name}.qd")
            if name in mech.joints:  # poses of joints without coordinates only start the search
                given_mask[0, piece], given_mask[1, piece] = "q" in held.get(name, {}), "qd" in held.get(name, {})
    placed = {name: value for name, value in values.items() if name not in by_name}
    if any(_carries(mech, name) for name in placed):
        # Bodies that hang on a placed one come along: its pose and velocity become coordinates of its joint.
        z = _place(minimal.to_maximal(order, mech.num_bodies, q, qd, mech.timestep), free, placed)
        at_z = minimal.to_minimal(order, mech.num_bodies, z, mech.timestep)
        for name in placed:
            piece = free[name].coordinates
            q, qd = (_put(old, piece, new[..., piece], name) for old, new in zip((q, qd), at_z, strict=True))
            kept = held.get(name, {}).keys()
            given_mask[0, piece] |= bool(kept & {"position", "orientation"})
            given_mask[1, piece] |= bool(kept & {"velocity", "angular_velocity"})
    if mech.has_loops:
        z = _closed(mech, order, q, qd, given_mask, "at these joint coordinates")
    else:
        z = minimal.to_maximal(order, mech.num_bodies, q, qd, mech.timestep)
    return signs.carry_signs(order, z, _place(z, free, placed))


def _named(mech: Structure, name: str, value: Any) -> Mapping[str, Any]:
    """The keywords of a joint or body. Numbers alone are the coordinates of a joint."""
    if isinstance(value, Mapping):
        return value
    if name in mech.bodies and name not in mech.joints:
        raise TypeError(f"initial_state: {name!r} got {value!r}; allowed: a dictionary of {list(PLACES)}, {name}={{'position': (0, 0, 1)}}")
    if not isinstance(value, (int, float, Tensor, Sequence)) or isinstance(value, (bool, str)):
        raise TypeError(f"initial_state: {name!r} got {value!r}; allowed: {name}={{'q': ..., 'qd': ...}}, or numbers, which are q")
    return {"q": value}


def _carries(mech: Structure, body: str) -> bool:
    """Whether other bodies hang on a body by joints."""
    return any(joint.parent == body for joint in mech.named_joints().values())


def _place(z: Tensor, free: Mapping[str, minimal.JointOrder], placed: Mapping[str, Mapping[str, Any]]) -> Tensor:
    """z with the given positions, orientations and velocities of free bodies."""
    for name, value in placed.items():
        start = STATE_SIZE * free[name].child
        for key, place in PLACES.items():
            if key in value:
                z = _put(z, slice(start + place.start, start + place.stop), value[key], f"{name}.{key}")
    return z


def close_loops(mech: Structure, z: Tensor, hold: Sequence[str]) -> Tensor:
    """`Mechanism.close_loops`."""
    mech.check_state(z)
    order = mech.tree_order()
    by_name = {entry.name: entry.coordinates for entry in order}
    held_mask = torch.zeros(2, mech.num_coordinates, dtype=torch.bool, device=z.device)
    for name in [hold] if isinstance(hold, str) else hold:
        if name not in by_name:
            raise ValueError(f"close_loops: hold names {name!r}; allowed: {mech.tree_joints}")
        held_mask[:, by_name[name]] = True
    return _closed(mech, order, *minimal.to_minimal(order, mech.num_bodies, z, mech.timestep), held_mask, "next to this state")


@torch.no_grad()
def gaps(mech: Structure, z: Tensor) -> dict[str, tuple[float, float]]:
    """Gaps at z of the joints outside the tree and of the couplings, largest of a batch: name -> (distance [m], angle [rad]).

    Rows that repeat others of a loop do not count (redundancy.py).
    A coupling has (gap of its row, 0) if its last follower slides, and (0, gap) if it turns.
    """
    openings: dict[str, tuple[float, float]] = {}
    tree = mech.tree_joints
    for name, joint in mech.named_joints().items():
        if name not in tree:
            rows = joint.kept_constraint(*mech.element_poses(z, joint))
            split = 3 - joint.free_translations if isinstance(joint, StandardJoint) else joint.num_rows  # a user's rows are distances
            distance = torch.linalg.vector_norm(rows[..., :split], dim=-1)
            sine = torch.linalg.vector_norm(rows[..., split:], dim=-1).clamp_max(1.0)
            openings[f"joint {name!r}"] = float(distance.max()), float(2 * torch.asin(sine).max())
    for name, coupling in mech.named_couplings().items():
        gap = float(coupling.kept_constraint(*mech.element_poses(z, coupling)).abs().max())
        slides = not coupling.ends or coupling.ends[-1].coordinate < coupling.joints[-1].free_translations  # or a string
        openings[f"coupling {name!r}"] = (gap, 0.0) if slides else (0.0, gap)
    return openings


def _closed(mech: Structure, order: Sequence[minimal.JointOrder], q: Tensor, qd: Tensor, given: Tensor, where: str) -> Tensor:
    """z (..., 13 nb) next to the tree coordinates q and rates qd (..., n). Coordinates and rates that are `given` (2, n) stay."""
    h = mech.timestep

    def place(q: Tensor, qd: Tensor) -> Tensor:
        return minimal.to_maximal(order, mech.num_bodies, q, qd, h)

    def rows_now(q: Tensor) -> Tensor:
        return _rows(mech, place(q, torch.zeros_like(q)))

    def rows_before(change: Tensor) -> Tensor:
        """Rows at the configuration one step earlier, whose coordinates are `change` [m, rad] behind."""
        pose, twist = split_state(place(q, change / h[..., None]))
        earlier = previous_pose(pose, twist, h[..., None, None])
        return _rows(mech, join_state(earlier, Twist(torch.zeros_like(twist.v), torch.zeros_like(twist.omega))))

    q, qd = torch.broadcast_tensors(q, qd)
    if not mech.has_loops:
        return place(q, qd)
    q, qd = _follow(mech, order, q, qd, given)
    q, settled = _solve(rows_now, q, ~given[0])
    if not settled:
        raise ValueError(_open_message(mech, place(q, torch.zeros_like(q)), where))
    for name, joint in mech.named_joints().items():
        if isinstance(joint, StandardJoint):
            check_misfit(name, joint, joint.constraint(*mech.element_poses(place(q, torch.zeros_like(q)), joint)))
    change, settled = _solve(rows_before, qd * h[..., None], ~given[1])
    if not settled:
        raise ValueError(
            f"the loops are closed {where}, but no velocities with the given ones keep them closed: give fewer rates, or consistent "
            "ones (z holds the velocity that led to the configuration)"
        )
    z = place(q, change / h[..., None])
    signs.warn_of_turns(mech.named_joints(), mech.tree_joints, lambda joint: mech.element_poses(z, joint))
    return z


def _follow(mech: Structure, order: Sequence[minimal.JointOrder], q: Tensor, qd: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates and rates in which followers that are not given follow from their leaders."""
    places = {entry.name: entry.coordinates.start for entry in order}
    for _ in mech.couplings:  # chains of any order
        for coupling in mech.named_couplings().values():
            if isinstance(coupling, SumCoupling | StringCoupling) or any(end.joint not in places for end in coupling.ends):
                continue  # coordinates of a joint that closes a loop are no unknowns, and a sum does not say which of its parts moves
            numbers = [places[end.joint] + end.coordinate for end in coupling.ends]
            follower, label = numbers[-1], coupling.ends[-1].joint
            x, rate = (q[..., numbers[0], None], qd[..., numbers[0]]) if len(numbers) > 1 else (q.new_zeros(1), q.new_zeros(()))
            if not given[0, follower]:
                q = _put(q, slice(follower, follower + 1), _where_on(coupling, coupling.law(x)[..., 0], q[..., follower]), label)
            if not given[1, follower]:
                followed = coupling.slope(x)[..., 0] * rate
                qd = _put(qd, slice(follower, follower + 1), _where_on(coupling, followed, qd[..., follower]), label)
    q, qd = torch.broadcast_tensors(q, qd)
    return q, qd


def _where_on(coupling: Coupling, value: Tensor, other: Tensor) -> Tensor:
    """`value` where a coupling is switched on, `other` elsewhere."""
    return value if coupling.active is None else torch.where(coupling.active != 0, value, other)


def _rows(mech: Structure, z: Tensor) -> Tensor:
    """Rows that must vanish: of the joints outside the tree, then of the couplings, (..., m) [m, half-angle or rad]."""
    tree = mech.tree_joints
    elements = [joint for name, joint in mech.named_joints().items() if name not in tree] + list(mech.named_couplings().values())
    return mech.constraint_rows(z, elements, kept=True)


def _solve(rows: Callable[[Tensor], Tensor], y: Tensor, free: Tensor) -> tuple[Tensor, bool]:
    """The root of `rows` next to y (..., n), and whether there is one. Only the coordinates `free` (n,) change."""
    with torch.no_grad():
        answer, error = _iterate(rows, y, free)
        number = torch.arange(y.shape[-1], dtype=y.dtype, device=y.device)
        for attempt in range(1, ATTEMPTS + 1):
            # A straight chain that is too long is stationary: no first-order change shortens it. A bent one is not stationary.
            failed = error > _tolerance(y)
            if not bool(failed.any()) or not bool(free.any()):
                break
            moved = answer + torch.where(failed[..., None], BEND * free * torch.cos(attempt * number), 0.0)
            other, other_error = _iterate(rows, moved, free)
            better = other_error < error
            answer, error = torch.where(better[..., None], other, answer), torch.where(better, other_error, error)
    return _with_gradient(rows, y, answer, free), bool((error <= _tolerance(y)).all())


def _with_gradient(rows: Callable[[Tensor], Tensor], y: Tensor, answer: Tensor, free: Tensor) -> Tensor:
    """`answer`, as a function of the coordinates y where the iteration starts, and of all else that enters the rows.

    r(answer; y, θ) = 0 moves with δ = −J⁺(J dy + ∂r/∂θ dθ) along the free coordinates on top of dy (implicit function theorem, least
    norm). This is one Newton step of no length, whose right-hand side carries the graph. Curvature is left out, so y must lie next to the
    answer.
    """
    if not torch.is_grad_enabled():
        return answer
    start = answer + (y - y.detach())
    value = rows(start)
    if not value.requires_grad:
        return start
    jacobian = local_jacobian(rows, answer)[1] * free
    inverse = torch.linalg.pinv(jacobian, rtol=1e-10).detach()
    step = (inverse @ value[..., None])[..., 0]
    return start - (step - step.detach())


def _iterate(rows: Callable[[Tensor], Tensor], y: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """The best of the iterates from y (..., n), and the norm of its rows (...)."""
    batch = rows(y).shape[:-1]
    y = y.expand(*batch, y.shape[-1]).clone()
    best = torch.full(batch, torch.inf, dtype=y.dtype, device=y.device)
    answer = y
    for _ in range(ITERATIONS):
        value, jacobian = local_jacobian(rows, y)
        error = torch.linalg.vector_norm(value, dim=-1)
        better = error < best
        answer, best = torch.where(better[..., None], y, answer), torch.where(better, error, best)
        # The iteration ends at rounding, so a closed state stays as it is.
        moving = (error > 1e-3 * _tolerance(y)) & torch.isfinite(error)
        if not bool(moving.any()) or not bool(free.any()):
            break
        u, s, vh = torch.linalg.svd((jacobian * free)[moving], full_matrices=False)
        value = value[moving]
        damping = (value * value).sum(-1, keepdim=True)
        weight = torch.where(s > 1e-10 * s[..., :1], s / (s * s + damping), 0.0)
        step = -(vh.mT @ (weight * (u.mT @ value[..., None])[..., 0])[..., None])[..., 0]
        if bool((step.abs() <= STATIONARY).all()):
            break
        step = step * (LARGEST_CHANGE / step.abs().amax(-1, keepdim=True).clamp_min(LARGEST_CHANGE))
        y = y.clone()
        y[moving] += step
    return answer, best


def _tolerance(z: Tensor) -> float:
    return max(CLOSED, 100 * torch.finfo(z.dtype).eps)


def _open_message(mech: Structure, z: Tensor, where: str) -> str:
    tolerance = _tolerance(z)
    still = [f"{name} by {m:.3g} m and {rad:.3g} rad" for name, (m, rad) in gaps(mech, z).items() if max(m, rad) > tolerance]
    return (
        f"a loop cannot be closed {where}: at the nearest state found, {', '.join(still)} stays open. Correct the anchors, axes and "
        "orientations of these joints (or ratio and offset of the coupling), or start from coordinates nearer to a closed loop: "
        "mech.initial_state(JOINT=dict(q=...)), with fewer joints given where several are"
    )


def _put(tensor: Tensor, piece: slice, value: Any, name: str) -> Tensor:
    """A copy of `tensor` with `value` in the last-dimension slice, broadcasting both batch shapes."""
    value = torch.as_tensor(value, dtype=tensor.dtype, device=tensor.device)
    size = piece.stop - piece.start
    if value.ndim and value.shape[-1] != size and size != 1:
        raise ValueError(f"initial_state: {name} got shape {tuple(value.shape)}; allowed: a number or (..., {size})")
    if size == 1 and (value.ndim == 0 or value.shape[-1] != 1):
        value = value[..., None]
    batch = broadcast_shapes(tensor.shape[:-1], value.shape[:-1])
    tensor = tensor.expand(*batch, -1)
    return torch.cat((tensor[..., : piece.start], value.expand(*batch, size), tensor[..., piece.stop :]), dim=-1)

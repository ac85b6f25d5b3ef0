"""Rows of loops that follow from the other rows of the loops wherever these are closed (redundancy.py).

Where the joints are declared in another order, a planar four-bar is closed by a hinge, and its ball is in the tree. The hinge's row along
the axis then repeats nothing at open configurations, where the ball tilts. At closed ones the Jacobian J of all rows has a left null space
N: νᵀJ = 0. A direction e of the rows may be left out if it has a part in N everywhere, |Nᵀe| > 0. The other rows then hold it.

Directions are constants of a joint frame. The null space may turn in it, as that of wheels coupled by three rods does. Then no direction
has a part in N everywhere, and none is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["dependent_directions"]

ITERATIONS = 20  # to close the loops from any configuration
LARGEST_STEP = 0.5  # [rad, fraction of the loop's size]
STEP = 1e-5  # of differences
SETTLED = 1e-4  # largest last step at a closed configuration
FEWEST = 4  # closed configurations from which directions are told
LEAST_PART = 0.05  # of a direction in the null space: the gap along the direction is at most twenty times the misfit
LEAST_RATIO = 0.9  # of the smallest to the largest part among the configurations; at others, a part that changes may vanish
DIGITS = 6  # of directions, which differences tell to 1e-9


def dependent_directions(
    rows: Callable[[Tensor], Tensor], y: Tensor, parts: Sequence[slice], units: Tensor, misfit: float, least: float
) -> list[tuple[int, Tensor]]:
    """Directions that may be left out: (number of the part of the rows, unit vector in this part), orthogonal within a part.

    Args:
        rows: (..., n) -> (..., m). y: where to start, (samples, environments..., n), dimensionless.
        units: of the rows [m, half-angle], (m,). A misfit of 1 m then counts as much as one of a half-angle of 1.
        misfit: norm of the rows, in their units, at which the loops count as closed.
        least: singular value of J below which rows depend on each other.
    """
    change = torch.zeros_like(y)

    def scaled(y: Tensor) -> Tensor:
        return rows(y) / units

    for _ in range(ITERATIONS):
        value, jacobian = _differences(scaled, y)
        damping = (value * value).sum(-1).clamp_min(least**2)[..., None, None] * torch.eye(value.shape[-1]).to(value)
        change = -(jacobian.mT @ torch.linalg.solve(jacobian @ jacobian.mT + damping, value[..., None]))[..., 0]
        change = change * (LARGEST_STEP / change.abs().amax(-1, keepdim=True).clamp_min(LARGEST_STEP))
        y = y + change
        if bool((change.abs() <= SETTLED**2).all()):
            break
    value, jacobian = _differences(scaled, y)
    closed = (torch.linalg.vector_norm(value, dim=-1) <= misfit) & (change.abs().amax(-1) <= SETTLED)
    if int(closed.sum()) < FEWEST:
        return []
    u, s, _ = torch.linalg.svd(jacobian[closed])
    missing = u.shape[-1] - (s > least).sum(-1)
    count = int(missing.min())  # more are missing where the loop is flat
    null = torch.linalg.qr(u[missing == count][..., u.shape[-1] - count :] / units[:, None])[0]
    directions = []
    while count and len(null) >= FEWEST:
        number, direction, strength = _best(null @ null.mT, parts)
        if strength < LEAST_PART:
            break
        directions.append((number, direction))
        count -= 1
        along = null.mT @ torch.nn.functional.pad(direction, (parts[number].start, u.shape[-1] - parts[number].stop))
        along = along / torch.linalg.vector_norm(along, dim=-1, keepdim=True)
        left = null - (null @ along[..., None]) * along[..., None, :]
        null = torch.linalg.svd(left, full_matrices=False)[0][..., :count]
    return directions


def _best(null: Tensor, parts: Sequence[slice]) -> tuple[int, Tensor, float]:
    """The direction with the largest part in the null spaces, given as projections (samples, m, m), and this part."""
    best = 0, null.new_zeros(0), 0.0
    for number, part in enumerate(parts):
        basis = null[:, part, part]
        for direction in torch.linalg.eigh(basis.mean(0))[1].mT:
            clean = (direction * 10**DIGITS).round()
            clean = clean / torch.linalg.vector_norm(clean)
            strength = (clean @ basis @ clean).clamp_min(0.0).sqrt()
            if float(strength.min()) > max(best[2], LEAST_RATIO * float(strength.max())):
                best = number, clean, float(strength.min())
    return best


def _differences(rows: Callable[[Tensor], Tensor], y: Tensor) -> tuple[Tensor, Tensor]:
    """Value (..., m) and Jacobian (..., m, n) of the rows, from central differences."""
    steps = (STEP * torch.eye(y.shape[-1]).to(y)).reshape(-1, *(1,) * (y.ndim - 1), y.shape[-1])
    return rows(y), ((rows(y + steps) - rows(y - steps)) / (2 * STEP)).movedim(0, -1)

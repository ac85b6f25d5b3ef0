"""The answer of every method of the solver, and the measure of how far a point is from one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.dynamics import cones
from torchdojo.dynamics.residual import StepProblem
from torchdojo.elements.element import Pose
from torchdojo.elements.joints import StandardJoint
from torchdojo.elements.tendon import Tendon

__all__ = ["MOST_SIZE", "ROUNDINGS", "Solution", "rounding_factors", "violations"]

# A damper d multiplies a change of a coordinate, a difference of numbers of order 1. Rounding of these numbers makes d ε of impulse, which
# for 1e9 N·m·s/rad is 2e-7: above any tolerance of an ordinary step. It acts on both bodies, as equal and opposite, so no momentum is lost.
ROUNDINGS = 8.0  # rounding errors ε of what is added up, that a row may be violated by
MOST_SIZE = 1e3  # [m] of a mechanism; dampers below `residual_tol`/(ROUNDINGS ε MOST_SIZE), 560 N·m·s/rad by default, change nothing


class Solution(NamedTuple):
    """w (N, num_unknowns); status (N,) of `Status` values; iterations (N,), all attempts counted."""

    w: Tensor
    status: Tensor
    iterations: Tensor


def violations(problem: StepProblem, r: Tensor, kappa: Tensor, residual_tol: float) -> tuple[Tensor, Tensor, Tensor]:
    """Largest absolute violation of the equations, and of the complementarity rows, of a residual r (N, n), each (N,).

    Rows of bodies with very large dampers, and of very stiff tendons, count less, so that what rounding leaves there is within
    `residual_tol` (`rounding_factors`). The third value is the violation of the equations in which they count like all others. Where it
    is larger than the tolerance, another iteration is made from a point whose first violation is within it: Newton's step then leaves
    nothing but rounding.
    """
    system = problem.system
    rows = torch.cat((system.orthant_index[:, 1], system.second_order_index[:, 1].flatten()))
    gap = r[:, rows] - kappa[:, None] * cones.identity_rows(system, r)[rows]
    mask = torch.ones(system.num_unknowns, dtype=torch.bool, device=r.device)
    mask[rows] = False
    complementarity = gap.abs().amax(-1) if len(rows) else r.new_zeros(len(r))
    plain = r[:, mask].abs().amax(-1)
    factors = rounding_factors(problem, residual_tol)
    if factors is None:
        return plain, complementarity, plain
    return (factors * r)[:, mask].abs().amax(-1), complementarity, plain


def rounding_factors(problem: StepProblem, residual_tol: float) -> Tensor | None:
    """Factors (N, n), at most one, of the rows of bodies and tendons: `residual_tol` over what rounding leaves, where that is more.

    None where no damper and no tendon is so stiff.
    """
    unit = ROUNDINGS * torch.finfo(problem.z.dtype).eps
    nb = problem.system.num_bodies
    scale = problem.z.new_zeros(len(problem.z), nb + 1, 2)
    large = torch.zeros_like(scale[:, 0, 0], dtype=torch.bool)
    row_sizes = problem.z.new_zeros(len(problem.z), problem.system.num_unknowns)  # of tendons: the kernel has them in the rows of bodies
    x = problem.pose.x
    for group, joint in zip(problem.system.groups, problem.elements, strict=True):
        if isinstance(joint, Tendon):
            steepness = joint.steepness(problem.timestep[:, None]).detach().expand(len(x), -1)
            steep = (steepness > residual_tol / (unit * MOST_SIZE)).any(-1)
            if bool(steep.any()):
                large = large | steep
                poses = [Pose(x[:, body], problem.pose.q[:, body]) for body in group.body_index.unbind(-1)]
                size = joint.path(*poses).length.detach().abs() + sum(pose.x.abs().sum(-1) for pose in poses)
                row_sizes[:, group.impulse_index[:, 0]] = steepness * size
            continue
        if not isinstance(joint, StandardJoint) or not joint.num_coordinates:
            continue
        damping = joint.damping(problem.timestep[:, None, None]).detach()
        large = large | (damping > residual_tol / (unit * MOST_SIZE)).flatten(1).any(-1)
        if not bool(large.any()):
            continue
        parent, child = (x[:, body] for body in group.body_index.unbind(-1))
        along, about = (part.sum(-1) for part in damping.tensor_split([joint.free_translations], dim=-1))
        child_lever = joint.child_anchor.detach().abs().sum(-1)
        parent_lever = (child - parent).abs().sum(-1) + child_lever
        force = along * (parent.abs().sum(-1) + child.abs().sum(-1) + child_lever)
        for body, lever in zip(group.body_index.unbind(-1), (parent_lever, child_lever), strict=True):
            scale = scale.index_add(1, body, torch.stack((force, lever * force + about), dim=-1).expand(len(scale), -1, -1))
    if not bool(large.any()):
        return None
    row_sizes[:, : 6 * nb] = scale[:, :nb].repeat_interleave(3, dim=-1).flatten(1)
    return torch.where(large[:, None], residual_tol / (unit * row_sizes).clamp_min(residual_tol), 1.0)

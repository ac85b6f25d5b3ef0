"""The Jacobian of a step in minimal coordinates through the kernel.

A step that is split in two, or has an impact whose instant counts, uses the Jacobian in maximal coordinates between both maps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdojo.gradients.request import Request
from torchdojo.native import kernel
from torchdojo.native.cache import Parameters
from torchdojo.native.execution import flat_problem, impact_jacobian, special_steps, split_jacobian
from torchdojo.native.program import Program
from torchdojo.parameters import bind, result_tensor
from torchdojo.state.layout import TANGENT_SIZE
from torchdojo.state.minimal import JointOrder
from torchdojo.state.minimal_jacobians import maximal_jacobian, minimal_products, without_rates
from torchdojo.state.unknowns import TIMESTEP

__all__ = ["bound_tree", "linearize"]


def linearize(
    program: Program,
    request: Request,
    x: Tensor,
    u: Tensor,
    wrench: Tensor,
    warm: Tensor | None,
    parameters: Sequence[Tensor],
    packed_parameters: Parameters | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, kernel.Outputs]:
    """The Jacobian (..., 2n, 2n + nu) of one step with u (..., 1, nu), and what the step gives, (N, ...).

    x (..., 2n) are coordinates and rates.
    """
    problem, batch = flat_problem(program, request, parameters, packed_parameters, x, u, wrench, warm)
    x = problem.z
    q, qd = x.chunk(2, dim=-1)
    packed = problem.packed or program.packed(problem.parameters)
    problem = problem._replace(z=kernel.states(program, packed, x), packed=packed)
    size, nb = 2 * program.num_coordinates, program.num_bodies
    result = result_tensor(out, (*batch, size, size + program.num_inputs), q)
    solved = kernel.linearize(problem, result, x)
    hit, split = special_steps(problem, solved)
    special = []
    if len(hit):
        special.append((hit, impact_jacobian(problem, solved, hit)))
    if len(split):
        special.append((split, split_jacobian(problem, solved, split)))
    for rows, whole in special:
        timestep, tangents = problem.parameters[TIMESTEP], TANGENT_SIZE * nb
        fast = without_rates(solved.z[rows, 1], timestep[rows] if len(timestep) > 1 else timestep)
        result.view(len(q), *result.shape[-2:])[rows[fast]] = 0.0
        rows, whole = rows[~fast], whole[~fast]
        if not len(rows):
            continue
        selected = [p[rows] if len(p) > 1 else p for p in problem.parameters]
        order, h = bound_tree(program, selected), selected[TIMESTEP]
        (product,) = minimal_products(order, nb, solved.z[rows, 1], h, [whole])
        by_state = product[..., :tangents] @ maximal_jacobian(order, nb, q[rows], qd[rows], problem.z[rows], h)
        result.view(len(q), *result.shape[-2:])[rows] = torch.cat((by_state, product[..., tangents:]), dim=-1)
    return result, solved


def bound_tree(program: Program, parameters: Sequence[Tensor]) -> list[JointOrder]:
    """The joints of the tree, outwards, with their numbers taken from stacked parameters (..., members of the group, ...)."""
    joints, fields = {}, program.fields(parameters)
    for group in program.joint_groups:
        for e, member in enumerate(group.members):
            numbers = {name: value.select(-1 - group.fields[name], e) for name, value in fields[id(group)].items()}
            joints[id(member)] = bind(member, numbers, group.cls)
    return [entry._replace(joint=joints[id(entry.joint)]) for entry in program.tree]

"""Jacobians between joint coordinates, composed of the Jacobians of a step and of both maps, for backends without their own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchdojo.elements.joints import StandardJoint
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.gradients.request import StepInputs
from torchdojo.parameters import result_tensor
from torchdojo.solver.options import Status
from torchdojo.state import minimal
from torchdojo.state.layout import TANGENT_SIZE, neutral_state
from torchdojo.state.minimal_jacobians import maximal_jacobian, minimal_products, without_rates
from torchdojo.state.tangent import local_jacobian
from torchdojo.structure import Structure

__all__ = ["in_coordinates", "minimal_linearization"]


def minimal_linearization(
    structure: Structure,
    lift: Callable[[Tensor, Tensor], Tensor],
    linearize: Callable[[StepInputs], tuple[StepOutput, Tensor]],
    given: StepInputs,
    out: Tensor | None,
) -> tuple[StepOutput, Tensor]:
    """A step from coordinates and rates given.z (..., 2n), and its Jacobian (..., 2n, 2n + nu).

    lift: the map from coordinates and rates to states. linearize: a step from a state, with its Jacobian.
    """
    x = given.z
    valid = torch.isfinite(x).all(-1, keepdim=True)
    z = torch.where(valid, lift(*torch.where(valid, x, 0.0).chunk(2, dim=-1)), torch.nan)
    solved, jacobian = linearize(given._replace(z=z))
    return solved, in_coordinates(structure, x, z, solved, jacobian, out)


def in_coordinates(structure: Structure, x: Tensor, z: Tensor, solved: StepOutput, jacobian: Tensor, out: Tensor | None) -> Tensor:
    """The Jacobian (..., 2n, 2n + m) of steps between coordinates, from that on the tangent space (..., 12 nb, 12 nb + m).

    x: (..., 2n) coordinates and rates before the steps, of the states z. Failed steps get zeros.
    """
    order, nb, h = structure.tree_order(), structure.num_bodies, structure.timestep
    good = ((solved.status == int(Status.SUCCESS)) & ~without_rates(solved.z, h))[..., None]
    after, tangents = torch.where(good, solved.z, neutral_state(solved.z)), TANGENT_SIZE * nb
    jacobian = torch.where(good[..., None], jacobian, 0.0)
    by_state, by_input = jacobian[..., :tangents], jacobian[..., tangents:]
    valid = torch.isfinite(z).all(-1, keepdim=True)
    x, z = torch.where(valid, x, 0.0), torch.where(valid, z, neutral_state(z))
    if all(isinstance(entry.joint, StandardJoint) for entry in order):
        by_state, by_input = minimal_products(order, nb, after, h, [by_state, by_input])
        q, qd = x.chunk(2, dim=-1)
        result = torch.cat((by_state @ maximal_jacobian(order, nb, q, qd, z, h), by_input), dim=-1)
    else:  # a user declares these coordinates, so autograd differentiates both maps

        def lifted(y: Tensor) -> Tensor:
            q, qd = y.chunk(2, dim=-1)
            return structure.difference(minimal.to_maximal(order, nb, q, qd, h), z)

        def projected(delta: Tensor) -> Tensor:
            return torch.cat(minimal.to_minimal(order, nb, structure.retract(after, delta), h), dim=-1)

        _, by_coordinates = local_jacobian(lifted, x)
        _, projection = local_jacobian(projected, torch.zeros_like(by_state[..., 0]))
        result = torch.cat((projection @ by_state @ by_coordinates, projection @ by_input), dim=-1)
    return result if out is None else result_tensor(out, result.shape, result).copy_(result)

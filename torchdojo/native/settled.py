"""Steps with their Jacobians in minimal coordinates where each step has a solution, in one call of the kernel."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from torchdojo.gradients.reference_step import StepOutput
from torchdojo.gradients.request import Request, StepInputs
from torchdojo.native import kernel
from torchdojo.native.cache import Parameters
from torchdojo.native.program import Program
from torchdojo.native.step import Held
from torchdojo.parameters import result_tensor
from torchdojo.state.layout import STATE_SIZE

__all__ = ["linearize_settled"]


def linearize_settled(
    program: Program, request: Request, parameters: Parameters, given: StepInputs, out: Tensor | None
) -> tuple[StepOutput, Tensor] | None:
    """`minimal.linearize` where each step has a solution and no part of its own: results and Jacobian. None where some step has not.

    given.z are coordinates and rates (..., 2n). The packed parameters are finite, and `Step` differentiates the request.
    """
    held, new, nb = Held(program, request, parameters, given), given.z.new_empty, program.num_bodies
    batch, columns, x = held.batch, 2 * program.num_coordinates, cast(Tensor, held.given[0])
    result = result_tensor(out, (*batch, columns, columns + program.num_inputs), x)
    if not batch.numel():
        return None
    lifted = kernel.states(program, held.packed, x.reshape(-1, columns))
    z, impulses, w = new((*batch, STATE_SIZE * nb)), new((*batch, program.num_impulses)), new((*batch, program.num_unknowns))
    counts = new((3, *batch), dtype=torch.int64)
    status, iterations, substeps = counts.unbind()
    held.arguments.z0, held.arguments.z0_stride = lifted.data_ptr(), lifted.shape[1]
    held.into(z, impulses, w, [status, iterations, substeps], 1)
    held.call(held.kernel.td_linearize, x.data_ptr(), result.data_ptr())
    if int(status.max()) or int(substeps.max()) > 1:
        return None
    return StepOutput(z, impulses, status, iterations, w, substeps), result

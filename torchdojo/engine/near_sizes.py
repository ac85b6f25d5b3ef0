"""Derivatives of steps with near contacts by the sizes of their shapes.

The kernel has the cores of shapes as constants. So it takes the steps, and the reference differentiates them at the kernel's solutions: its
residual reads the numbers of cores, which are functions of the sizes (geometry/core_sizes.py). That costs 0.1 s a step in backward, where
sizes require grad and a graph is asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from torch import Tensor

from torchdojo.dynamics.system import Group
from torchdojo.elements.near_contact import NearContact
from torchdojo.elements.sized_contact import SizedContact, numbers_of
from torchdojo.engine.backend import Backend
from torchdojo.engine.near_parts import Part, rows_of, system_of
from torchdojo.engine.near_slots import NearPair
from torchdojo.engine.reference import Reference
from torchdojo.gradients.implicit import SolvedStepFunction
from torchdojo.gradients.reference_step import StepOutput, next_state
from torchdojo.gradients.request import StepInputs
from torchdojo.solver.options import Status
from torchdojo.state.layout import split_state
from torchdojo.state.unknowns import FIRST_ELEMENT, TIMESTEP

__all__ = ["have_sizes", "sized", "with_graph"]


def have_sizes(pairs: Sequence[NearPair]) -> bool:
    """Whether sizes of shapes of these pairs are differentiated."""
    return any(core.sizes is not None for pair in pairs for core in pair.slots[0].shapes)


def sized(backend: Backend) -> Reference:
    """The reference with the parameters of a backend, and numbers of cores with a graph among them."""
    system = system_of(backend)
    groups: list[Group] = []
    parameters, place = list(backend.stacked[:FIRST_ELEMENT]), FIRST_ELEMENT
    for group in system.groups:
        end = place + len(group.fields) + len(group.extra)
        parameters += backend.stacked[place:end]
        place, template = end, group.template
        numbers = numbers_of(template.shapes) if isinstance(template, NearContact) else {}
        if numbers:
            group = dataclasses.replace(group, cls=SizedContact, extra={name: value.ndim for name, value in numbers.items()})
            parameters += numbers.values()
        groups.append(group)
    return Reference(backend.structure, system.having(groups), parameters, backend.request)


def with_graph(backend_of: Callable[[Part], Backend], part: Part, given: StepInputs, out: StepOutput) -> StepOutput:
    """A step of a part with its derivatives, where it has a solution.

    Args:
        backend_of: the backend that takes steps of a part. given, out: the step of all environments of the part.
    """
    good = (out.status == int(Status.SUCCESS)).reshape(-1).nonzero().squeeze(-1)
    if not len(good):
        return out
    lead, n, again = out.status.shape, len(part.rows), sized(backend_of(part.at(good)))
    system, parameters, status = again.system, again.parameters, out.status.reshape(n)[good]
    data = rows_of(given, good).data
    w = SolvedStepFunction.apply(system, again.request, out.solution.detach().reshape(n, -1)[good], status, *data, *parameters)
    z, impulses = next_state(system, split_state(data[0]).pose, w, parameters[TIMESTEP]), w[..., system.impulse_index]

    def joined(values: Tensor, differentiable: Tensor) -> Tensor:
        """Values, with derivatives."""
        rows = values.detach().reshape(n, values.shape[-1])
        return rows.index_add(0, good, differentiable - differentiable.detach()).reshape(*lead, -1)

    return out._replace(z=joined(out.z, z), impulses=joined(out.impulses, impulses))

"""Functions of states that users read beside the step: in the kernel where it has them, in the reference elsewhere."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from torchdojo.dynamics import energy
from torchdojo.engine.backends import Backends
from torchdojo.engine.periods import check_repeat
from torchdojo.native import live
from torchdojo.native.cache import Parameters
from torchdojo.native.maps import TREE, compiled_map, covers, has_dimensions, state_map
from torchdojo.native.tables import StateMap
from torchdojo.solver.options import SolverOptions
from torchdojo.state.layout import STATE_SIZE
from torchdojo.structure import Structure

__all__ = ["contact_forces", "contact_points", "coordinates", "distances", "in_kernel", "kinetic_energy", "potential_energy"]


def in_kernel(backends: Backends, parameters: Parameters | None, which: StateMap, state: Tensor) -> Tensor | None:
    """The value (..., size) of a function at `state` by the kernel; None where the reference must compute it.

    parameters: from `Backends.map_parameters`.
    """
    program = backends.program
    if program is None or (which in TREE and not program.tree):
        return None
    if not torch.compiler.is_compiling():
        return None if parameters is None or not covers(parameters, state) else state_map(program, parameters, which, state)
    # Tracing the reference's loops over joints would take minutes, so the operator has the reference, too.
    tensors = backends.stacked() if parameters is None else parameters.tensors
    if not tensors:  # the operator looks them up when it runs
        own = live.own_batch(program.number, False)
        if own is not None and has_dimensions(state.shape[:-1], torch.Size(own)):
            return compiled_map(program, (), which, state, native=True)
        tensors = backends.stacked()
    shared = all(t.ndim == spec.ndim and not t.requires_grad for t, spec in zip(tensors, program.parameter_specs, strict=True))
    if which not in TREE and (parameters is None or not shared):
        return None
    return compiled_map(program, tensors, which, state, native=parameters is not None)


def _observed(backends: Backends, options: SolverOptions, which: StateMap, z: Tensor) -> Tensor | None:
    if z.dtype != torch.float64 or z.shape[-1:] != (STATE_SIZE * backends.structure.num_bodies,):
        return None  # the reference says what is wrong
    return in_kernel(backends, backends.map_parameters(options), which, z)


def coordinates(backends: Backends, options: SolverOptions, z: Tensor) -> tuple[Tensor, Tensor] | None:
    """`Mechanism.quick_coordinates`."""
    value = _observed(backends, options, StateMap.TO_MINIMAL, z)
    return None if value is None else cast(tuple[Tensor, Tensor], value.chunk(2, dim=-1))


def distances(backends: Backends, options: SolverOptions, z: Tensor) -> Tensor:
    """`Mechanism.distances`."""
    value = _observed(backends, options, StateMap.DISTANCES, z)
    if value is not None:
        return value
    structure = backends.structure
    values = [contact.distance(*structure.element_poses(z, contact)) for contact in structure.named_contacts().values()]
    return torch.stack(torch.broadcast_tensors(*values), dim=-1) if values else z.new_zeros(*z.shape[:-1], 0)


def contact_points(backends: Backends, options: SolverOptions, z: Tensor) -> Tensor:
    """`Mechanism.contact_points`."""
    value = _observed(backends, options, StateMap.CONTACT_POINTS, z)
    if value is not None:
        return value.unflatten(-1, (-1, 3))
    structure = backends.structure
    values = [contact.place(*structure.element_poses(z, contact)) for contact in structure.named_contacts().values()]
    return torch.stack(torch.broadcast_tensors(*values), dim=-2) if values else z.new_zeros(*z.shape[:-1], 0, 3)


def contact_forces(structure: Structure, z: Tensor, impulses: Tensor, repeat: int) -> dict[str, Tensor]:
    """`Mechanism.contact_forces`."""
    forces = structure.contact_impulses(z, impulses) / (check_repeat(repeat) * structure.timestep[..., None, None])
    return dict(zip(structure.named_contacts(), forces.unbind(-2), strict=True))


def kinetic_energy(backends: Backends, options: SolverOptions, z: Tensor, z_next: Tensor | None) -> Tensor:
    """`Mechanism.kinetic_energy`; with `z_next` by the reference."""
    value = None if z_next is not None else _observed(backends, options, StateMap.KINETIC_ENERGY, z)
    return energy.kinetic_energy(backends.structure, z, z_next) if value is None else value.squeeze(-1)


def potential_energy(backends: Backends, options: SolverOptions, z: Tensor) -> Tensor:
    """`Mechanism.potential_energy`."""
    value = _observed(backends, options, StateMap.POTENTIAL_ENERGY, z)
    return energy.potential_energy(backends.structure, z) if value is None else value.squeeze(-1)

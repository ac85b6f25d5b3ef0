"""Functions of states that users read beside the step: in the kernel where it has them, in the reference elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from torchdojo.dynamics import energy
from torchdojo.engine.backend import visiting
from torchdojo.engine.backends import Backends
from torchdojo.engine.near_gaps import terms_at
from torchdojo.engine.periods import check_repeat
from torchdojo.native import live
from torchdojo.native.cache import Parameters
from torchdojo.native.maps import TREE, compiled_map, covers, has_dimensions, state_map
from torchdojo.native.tables import StateMap
from torchdojo.solver.options import SolverOptions
from torchdojo.state import minimal
from torchdojo.state.layout import STATE_SIZE
from torchdojo.structure import Structure

__all__ = [
    "contact_forces",
    "contact_points",
    "coordinates",
    "distances",
    "kinetic_energy",
    "mapped",
    "potential_energy",
    "quick_coordinates",
]


def _distances(structure: Structure, z: Tensor) -> Tensor:
    values = [contact.distance(*structure.element_poses(z, contact)) for contact in structure.named_contacts().values()]
    return torch.stack(torch.broadcast_tensors(*values), dim=-1) if values else z.new_zeros(*z.shape[:-1], 0)


def _contact_points(structure: Structure, z: Tensor) -> Tensor:
    values = [contact.place(*structure.element_poses(z, contact)) for contact in structure.named_contacts().values()]
    return torch.cat(torch.broadcast_tensors(*values), dim=-1) if values else z.new_zeros(*z.shape[:-1], 0)


def _to_minimal(structure: Structure, z: Tensor) -> Tensor:
    return torch.cat(minimal.to_minimal(structure.tree_order(), structure.num_bodies, z, structure.timestep), dim=-1)


def _to_maximal(structure: Structure, state: Tensor) -> Tensor:
    q, qd = state.chunk(2, dim=-1)
    return minimal.to_maximal(structure.tree_order(), structure.num_bodies, q, qd, structure.timestep)


#: each function of a state (..., n) in PyTorch, (..., size)
REFERENCE: dict[StateMap, Callable[[Structure, Tensor], Tensor]] = {
    StateMap.TO_MINIMAL: _to_minimal,
    StateMap.TO_MAXIMAL: _to_maximal,
    StateMap.DISTANCES: _distances,
    StateMap.CONTACT_POINTS: _contact_points,
    StateMap.KINETIC_ENERGY: lambda structure, z: energy.kinetic_energy(structure, z, None)[..., None],
    StateMap.POTENTIAL_ENERGY: lambda structure, z: energy.potential_energy(structure, z)[..., None],
}


class _Held:
    """A function in PyTorch, with the numbers that the kernel had when it computed the function and its first derivative."""

    def __init__(self, backends: Backends, parameters: Parameters, which: StateMap) -> None:
        self.backends, self.parameters, self.which = backends, parameters, which

    def __call__(self, state: Tensor) -> Tensor:
        if not self.backends.still_has(self.parameters):
            raise RuntimeError(
                "torchdojo: numbers of the mechanism changed, or require grad, since the kernel took a first derivative, so that no second "
                'one fits to it; take both before numbers change, or both with SolverOptions(backend="reference")'
            )
        return REFERENCE[self.which](self.backends.structure, state)


def mapped(backends: Backends, parameters: Parameters | None, which: StateMap, state: Tensor) -> Tensor:
    """The value (..., size) of a function at `state`. parameters: from `Backends.map_parameters`."""
    if visiting(backends.structure, state) is not None:
        return mapped(backends, parameters, which, state.to(backends.structure.gravity.device)).to(state.device)
    value = _in_kernel(backends, parameters, which, state)
    return REFERENCE[which](backends.structure, state) if value is None else value


def _in_kernel(backends: Backends, parameters: Parameters | None, which: StateMap, state: Tensor) -> Tensor | None:
    """The value (..., size) of a function at `state` by the kernel; None where the reference must compute it."""
    program = backends.program
    if program is None or state.device.type != "cpu" or (which in TREE and not program.tree):
        return None
    if which in program.unknown_energies:
        return None
    if not torch.compiler.is_compiling():
        if parameters is None or not covers(parameters, state):
            return None
        return state_map(program, parameters, which, _Held(backends, parameters, which), state)
    # Tracing the reference's loops over joints would take minutes, so the operator has the reference, too.
    tensors = backends.stacked() if parameters is None else parameters.tensors
    if not tensors:  # the operator looks them up when it runs
        own_batch = live.own_batch(program.number, False)
        if own_batch is not None and has_dimensions(state.shape[:-1], torch.Size(own_batch)):
            return compiled_map(program, (), which, state, native=True)
        tensors = backends.stacked()
    shared = all(t.ndim == spec.ndim and not t.requires_grad for t, spec in zip(tensors, program.parameter_specs, strict=True))
    if which not in TREE and (parameters is None or not shared):
        return None
    return compiled_map(program, tensors, which, state, native=parameters is not None)


def _observed(backends: Backends, options: SolverOptions, which: StateMap, z: Tensor) -> Tensor | None:
    if z.dtype != torch.float64 or z.shape[-1:] != (STATE_SIZE * backends.structure.num_bodies,):
        return None  # the reference says what is wrong
    terms = which in (StateMap.DISTANCES, StateMap.CONTACT_POINTS)
    return _in_kernel(backends, backends.map_parameters(options, terms=terms), which, z)


def coordinates(backends: Backends, options: SolverOptions, z: Tensor) -> Tensor:
    """Coordinates and rates (..., 2n) of states (..., 13 nb)."""
    return mapped(backends, backends.map_parameters(options), StateMap.TO_MINIMAL, z)


def quick_coordinates(backends: Backends, options: SolverOptions, z: Tensor) -> tuple[Tensor, Tensor] | None:
    """`Mechanism.quick_coordinates`."""
    value = _observed(backends, options, StateMap.TO_MINIMAL, z)
    return None if value is None else cast(tuple[Tensor, Tensor], value.chunk(2, dim=-1))


def _value(backends: Backends, options: SolverOptions, which: StateMap, z: Tensor) -> Tensor:
    if visiting(backends.structure, z) is not None:
        return _value(backends, options, which, z.to(backends.structure.gravity.device)).to(z.device)
    value = _observed(backends, options, which, z)
    if value is not None:
        return value
    backends.structure.check_state(z)
    return REFERENCE[which](backends.structure, z)


def distances(backends: Backends, options: SolverOptions, z: Tensor) -> Tensor:
    """`Mechanism.distances`."""
    with terms_at(backends, options, z):
        return _value(backends, options, StateMap.DISTANCES, z)


def contact_points(backends: Backends, options: SolverOptions, z: Tensor) -> Tensor:
    """`Mechanism.contact_points`."""
    with terms_at(backends, options, z):
        return _value(backends, options, StateMap.CONTACT_POINTS, z).unflatten(-1, (-1, 3))


def contact_forces(structure: Structure, z: Tensor, impulses: Tensor, repeat: int) -> dict[str, Tensor]:
    """`Mechanism.contact_forces`."""
    forces = structure.contact_impulses(z, impulses) / (check_repeat(repeat) * structure.timestep[..., None, None])
    return dict(zip(structure.named_contacts(), forces.unbind(-2), strict=True))


def kinetic_energy(backends: Backends, options: SolverOptions, z: Tensor, z_next: Tensor | None) -> Tensor:
    """`Mechanism.kinetic_energy`; with `z_next` by the reference."""
    if z_next is None:
        return _value(backends, options, StateMap.KINETIC_ENERGY, z).squeeze(-1)
    backends.structure.check_state(z)
    backends.structure.check_state(z_next, "z_next")
    return energy.kinetic_energy(backends.structure, z, z_next)


def potential_energy(backends: Backends, options: SolverOptions, z: Tensor) -> Tensor:
    """`Mechanism.potential_energy`."""
    return _value(backends, options, StateMap.POTENTIAL_ENERGY, z).squeeze(-1)

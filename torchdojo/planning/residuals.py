"""Residuals r of nodes: costs are Σ weight r², constraints are r = 0 or r ≤ 0. All have derivatives, so Hessians are Gauss-Newton's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchdojo.elements.contact import Contact
from torchdojo.elements.contacts import ImpactContact, LinearContact, NonlinearContact
from torchdojo.planning.driven import DrivenDynamics
from torchdojo.planning.dynamics import Dynamics, Nodes
from torchdojo.sensors.kind import KINDS
from torchdojo.state.layout import TANGENT_SIZE

__all__ = ["Activation", "Bound", "ContactForce", "Function", "Input", "Residual", "Sensors", "State", "bind"]

At = int | Sequence[int] | slice | None
QUANTITIES = ("normal", "vector")
DRIVEN = ("joint_actuator_force", "actuator_force")  # kinds of sensors that read controls or inputs
#: laws whose first multiplier is the impulse along the normal
NORMAL_FIRST = tuple(law.force for law in (ImpactContact, NonlinearContact, LinearContact))


@dataclass(frozen=True)
class State:
    """The error of the state: the numbers that lead from `target` to it, in the coordinates of the problem.

    In minimal coordinates, whole turns of an angle do not count (`Dynamics.miss`).

    Args:
        target: states (13 nb), (K, 13 nb) or (P, K, 13 nb), for K nodes and P problems.
        weight: a number, (d,), (K, d) or (P, K, d), at least 0, for d entries.
        rows: entries of the error; None: all, which is 2 n in minimal coordinates (q, then qd) and 12 nb in tangent ones. `Activation`
            has those of activations.
        matrix: (d, 2 n) or (d, 12 nb) combinations of the entries, in the place of rows.
        at: nodes, 0 to T, or negative from the end; None: all.
    """

    target: Tensor
    weight: Any = 1.0
    rows: Sequence[int] | None = None
    matrix: Tensor | None = None
    at: At = None


@dataclass(frozen=True)
class Input:
    """The input v minus `target`. Arguments as of `State`, for nodes 0 to T − 1 and m entries."""

    weight: Any = 1.0
    target: Any = 0.0
    at: At = None


@dataclass(frozen=True)
class Activation:
    """Activations of drives minus `target`, of problems with ``controls=True`` for a mechanism with `mech.drives`.

    Args:
        weight, target, at: as of `State`, for nodes 0 to T and d activations.
        names: of drives with an activation, or one name; None: all, in the order of `mech.drives.activated`.
    """

    weight: Any = 1.0
    target: Any = 0.0
    names: str | Sequence[str] | None = None
    at: At = None


@dataclass(frozen=True)
class Function:
    """A function of the state minus `target`: points of bodies or contacts, heights, coordinates, energies.

    Args:
        function: maps z (..., 13 nb) to (..., d), each state by itself, with gradients. Methods of the mechanism have these.
        weight, target, at: as of `State`.
    """

    function: Callable[[Tensor], Tensor]
    weight: Any = 1.0
    target: Any = 0.0
    at: At = None


@dataclass(frozen=True)
class ContactForce:
    """Forces of contacts over the steps from the nodes, h of an impulse each [N], minus `target`: f = P/h.

    Args:
        contacts: names, or one name; None: all contacts in their order.
        weight, target, at: as of `State`, for nodes 0 to T − 1 and d entries.
        quantity: "normal": one number for each contact, the force that presses the surfaces apart, at least 0. "vector": the force on the
            contact's body, friction included, three numbers for each contact in the world frame.
    """

    contacts: str | Sequence[str] | None = None
    weight: Any = 1.0
    target: Any = 0.0
    quantity: str = "normal"
    at: At = None


@dataclass(frozen=True)
class Sensors:
    """Readings of the mechanism's sensors minus `target`: an accelerometer, forces at a wrist, a touch.

    Accelerations, forces and readings of actuators are those of the step from a node. Others are those of the node.

    Args:
        names: in `mech.sensors`, or one name. weight, target, at: as of `State`, for the d numbers of these sensors side by side. Nodes
            are 0 to T − 1 where a sensor reads a step or a control, and 0 to T where none does.
    """

    names: str | Sequence[str]
    weight: Any = 1.0
    target: Any = 0.0
    at: At = None


Residual = State | Input | Activation | Function | ContactForce | Sensors


@dataclass(frozen=True)
class Bound:
    """A residual at K nodes of P problems.

    nodes: (K,). target: (P or 1, 1, K, size) in coordinates. weight: (P or 1, 1, K, d). rows: entries, or None for all; those of
    `Dynamics.forces` for contact forces. matrix: (d, n).
    """

    residual: Residual
    nodes: Tensor
    target: Tensor
    weight: Tensor
    rows: Tensor | None
    matrix: Tensor | None = None

    @property
    def everywhere(self) -> bool:
        """Whether the nodes are all that there are, in their order."""
        return self.residual.at is None

    def _at(self, values: Tensor) -> Tensor:
        return values if self.everywhere else values[..., self.nodes, :]

    @property
    def of_input(self) -> bool:
        return isinstance(self.residual, Input)

    @property
    def of_forces(self) -> bool:
        """Whether the residual depends on state and input of its nodes together."""
        return isinstance(self.residual, ContactForce | Sensors)

    def is_linear(self, dynamics: Dynamics) -> bool:
        """Whether `jacobian` is the same everywhere."""
        return isinstance(self.residual, Input | Activation) or (isinstance(self.residual, State) and dynamics.minimal)

    def select(self, problems: Tensor) -> Bound:
        target, weight = (value[problems] if len(value) > 1 else value for value in (self.target, self.weight))
        return replace(self, target=target, weight=weight)

    def value(self, dynamics: Dynamics, nodes: Nodes) -> Tensor:
        """r (P, C, K, d) at C candidates with x (P, C, T+1, size), and so on."""
        if isinstance(self.residual, Input):
            return self._at(nodes.v) - self.target
        if isinstance(self.residual, ContactForce | Sensors):
            assert self.rows is not None
            z = nodes.z[..., self.nodes, :]
            return dynamics.forces_of(z, self._at(nodes.v), self._at(nodes.end), self._at(nodes.w), self.rows) - self.target
        if isinstance(self.residual, State):
            error = dynamics.miss(self._at(nodes.x), self.target)
            if self.matrix is not None:
                return error @ self.matrix.T
            return error if self.rows is None else error[..., self.rows]
        if isinstance(self.residual, Activation):
            assert self.rows is not None
            return self._at(nodes.x)[..., self.rows - dynamics.size] - self.target  # the last of coordinates and of changes alike
        return self.residual.function(dynamics.motion(self._at(nodes.z))) - self.target

    def jacobian(self, dynamics: Dynamics, x: Tensor) -> Tensor | None:
        """∂r by changes of the node (P, K, d, n), or None where these are the unit rows `rows`. x: (P, T+1, size).

        Contact forces have theirs from `Lagrangian.force_jacobian`, as they depend on the smoothing of the iteration.
        """
        assert not isinstance(self.residual, ContactForce | Sensors)
        if isinstance(self.residual, Input | Activation) or (isinstance(self.residual, State) and dynamics.minimal and self.matrix is None):
            return None
        x = self._at(x)
        if isinstance(self.residual, State):
            if self.matrix is not None and dynamics.minimal:
                return self.matrix.expand(*x.shape[:-1], *self.matrix.shape)
            whole = _error_jacobian(dynamics.difference(x, self.target[:, 0]), dynamics.size - dynamics.num_activations)
            if self.matrix is not None:
                return self.matrix @ whole
            return whole if self.rows is None else whole[..., self.rows, :]
        with torch.enable_grad():
            delta = x.new_zeros(*x.shape[:-1], dynamics.size, requires_grad=True)
            r = self.residual.function(dynamics.motion(dynamics.states(dynamics.retract(x, delta))))
            last = r.shape[-1] - 1
            rows = [torch.autograd.grad(r[..., i].sum(), delta, retain_graph=i < last)[0] for i in range(r.shape[-1])]
        return torch.stack(rows, dim=-2)


def _error_jacobian(error: Tensor, size: int) -> Tensor:
    """Derivative (..., n, n) of errors (..., n) by changes of the state that they lead to. The first `size`, 12 nb, are tangents.

    A rotation vector φ changes by Jr⁻¹(φ) δ, with Jr⁻¹ = I + ½ [φ]× + (1/θ² − (1 + cos θ)/(2 θ sin θ)) [φ]×² (Solà et al. 2018, eq. 144).
    """
    n = error.shape[-1]
    whole = torch.eye(n, dtype=error.dtype).expand(*error.shape, n).clone()
    for first in range(6, size, TANGENT_SIZE):
        phi = error[..., first : first + 3]
        angle = torch.linalg.vector_norm(phi, dim=-1)[..., None, None]
        safe = angle.clamp(min=1e-4)
        factor = torch.where(angle < 1e-4, 1 / 12, 1 / safe**2 - (1 + torch.cos(safe)) / (2 * safe * torch.sin(safe)))
        x, y, z = phi.unbind(-1)
        zero = torch.zeros_like(x)
        cross = torch.stack((zero, -z, y, z, zero, -x, -y, x, zero), -1).unflatten(-1, (3, 3))
        turn = torch.eye(3, dtype=error.dtype) + 0.5 * cross + factor * cross @ cross
        whole[..., first : first + 3, first : first + 3] = turn
    return whole


def bind(name: str, residual: Residual, dynamics: Dynamics, problems: int, steps: int, z: Tensor) -> Bound:
    """A residual for `problems` of `steps` steps that start at z (P, 13 nb).

    Raises:
        TypeError, ValueError: something that does not fit, with the name of the residual.
    """
    if not isinstance(residual, State | Input | Activation | Function | ContactForce | Sensors):
        raise TypeError(f"{name}: got {type(residual).__name__}; allowed: State, Input, Activation, Function, ContactForce, Sensors")
    if isinstance(residual, Sensors):
        residual = _of_states(name, residual, dynamics)
    count = steps if isinstance(residual, Input | ContactForce | Sensors) else steps + 1
    nodes = _nodes(f"{name}.at", residual.at, count)
    rows: Tensor | None = None
    matrix: Tensor | None = None
    if isinstance(residual, State):
        target = _expanded(f"{name}.target", residual.target, problems, len(nodes), z.shape[-1])
        dynamics.mech.check_state(target, f"{name}.target")
        with torch.no_grad():
            target = dynamics.coordinates(dynamics.joined(target))
        size = dynamics.size - dynamics.num_activations
        if residual.rows is not None:
            rows = torch.as_tensor(list(residual.rows), dtype=torch.long)
            if not len(rows) or int(rows.min()) < 0 or int(rows.max()) >= size or len(rows.unique()) != len(rows):
                raise ValueError(f"{name}.rows: got {list(residual.rows)}; allowed: different numbers from 0 to {size - 1}")
            size = len(rows)
        matrix = residual.matrix
        if matrix is not None:
            if rows is not None or matrix.ndim != 2 or matrix.shape[-1] != size or matrix.dtype != torch.float64:
                beside = " beside rows" if rows is not None else ""
                raise ValueError(
                    f"{name}.matrix: got shape {tuple(matrix.shape)}{beside}; allowed: (d, {dynamics.size - dynamics.num_activations}) in "
                    "float64, without rows"
                )
            size, matrix = len(matrix), torch.nn.functional.pad(matrix, (0, dynamics.num_activations))
        elif rows is None and dynamics.num_activations:
            rows = torch.arange(size)
    else:
        size = dynamics.num_inputs
        if isinstance(residual, Function):
            with torch.no_grad():
                sample = residual.function(z[:1, None])
            if not isinstance(sample, Tensor) or sample.ndim != 3 or sample.shape[:2] != (1, 1):
                got = tuple(sample.shape) if isinstance(sample, Tensor) else type(sample).__name__
                raise ValueError(f"{name}.function: got {got} for a state (1, 1, {z.shape[-1]}); allowed: (1, 1, d)")
            size = sample.shape[-1]
        elif isinstance(residual, Activation):
            rows = _activation_rows(name, residual, dynamics)
            size = len(rows)
        elif isinstance(residual, ContactForce):
            rows = _force_rows(name, residual, dynamics)
            size = len(rows)
        elif isinstance(residual, Sensors):
            layout, first = dynamics.mech.sensors.layout, dynamics.first_reading
            rows = torch.cat([first + torch.arange(layout[sensor].start, layout[sensor].stop) for sensor in residual.names])
            size = len(rows)
        target = _expanded(f"{name}.target", residual.target, problems, len(nodes), size)
    weight = _expanded(f"{name}.weight", residual.weight, problems, len(nodes), size)
    if not bool((weight >= 0).all()) or not bool(torch.isfinite(weight).all()):
        raise ValueError(f"{name}.weight: got {float(weight.min())}; allowed: finite numbers of 0 or more")
    return Bound(residual, nodes, target[:, None], weight[:, None], rows, matrix)


def _of_states(name: str, residual: Sensors, dynamics: Dynamics) -> Sensors | Function:
    """The residual with its names checked; a function of states where no sensor reads a step or a control."""
    mech = dynamics.mech
    names = (residual.names,) if isinstance(residual.names, str) else tuple(residual.names)
    unknown = [sensor for sensor in names if sensor not in mech.sensors]
    if unknown or not names or len(set(names)) < len(names):
        raise ValueError(
            f"{name}.names: got {residual.names!r}; allowed: different names of {list(mech.sensors)}; add sensors to mech.sensors"
        )
    kinds = [mech.sensors[sensor].kind for sensor in names]
    if "clock" in kinds:
        raise ValueError(f"{name}.names: got {names[kinds.index('clock')]!r}, a clock; allowed: sensors of states and steps")
    if isinstance(dynamics, DrivenDynamics) and any(kind in DRIVEN for kind in kinds):
        raise ValueError(f"{name}.names: got {list(names)}, forces of actuators; allowed, for plans with drives: other sensors")
    if any(KINDS[kind].needs_step or kind in DRIVEN for kind in kinds):
        return replace(residual, names=names)
    return Function(lambda z: mech.read_sensors(z, names=names), residual.weight, residual.target, residual.at)


def _activation_rows(name: str, residual: Activation, dynamics: Dynamics) -> Tensor:
    """Their places among changes of the state."""
    drives = dynamics.mech.drives
    if drives is None or not dynamics.num_activations:
        raise ValueError(
            f"{name}: got an Activation for a plan without activations; allowed: controls=True, for mech.drives that have some"
        )
    names = drives.activated if residual.names is None else (residual.names,) if isinstance(residual.names, str) else tuple(residual.names)
    unknown = [drive for drive in names if drive not in drives.activated]
    if unknown or not names or len(set(names)) < len(names):
        raise ValueError(f"{name}.names: got {residual.names!r}; allowed: different names of {list(drives.activated)}, or None for all")
    first = dynamics.size - dynamics.num_activations
    return torch.tensor([first + drives.activated.index(drive) for drive in names])


def _force_rows(name: str, residual: ContactForce, dynamics: Dynamics) -> Tensor:
    """Rows of `Dynamics.forces`."""
    contacts = dynamics.mech.named_contacts()
    if residual.quantity not in QUANTITIES:
        raise ValueError(f"{name}.quantity: got {residual.quantity!r}; allowed: {', '.join(map(repr, QUANTITIES))}")
    if not contacts:
        raise ValueError(f"{name}: got a ContactForce for a mechanism without contacts; give td.Mechanism contacts=, or leave it out")
    selection = residual.contacts
    names = list(contacts) if selection is None else [selection] if isinstance(selection, str) else list(selection)
    unknown = [contact for contact in names if contact not in contacts]
    if unknown or not names or len(set(names)) < len(names):
        raise ValueError(f"{name}.contacts: got {selection!r}; allowed: different names of {', '.join(contacts)}, or None for all")
    for contact in names:
        law = type(contacts[contact]).force
        if law is Contact.force:
            raise ValueError(f"{name}.contacts: {contact!r} is a {type(contacts[contact]).__name__} without `force`; write this method")
        if residual.quantity == "normal" and law not in NORMAL_FIRST:
            kind = type(contacts[contact]).__name__
            raise ValueError(f"{name}.contacts: {contact!r} is a {kind} with a `force` of its own; allowed: quantity='vector'")
    places = [list(contacts).index(contact) for contact in names]
    if residual.quantity == "vector":
        places = [len(contacts) + 3 * place + i for place in places for i in range(3)]
    return torch.tensor(places)


def _nodes(name: str, at: At, count: int) -> Tensor:
    every = torch.arange(count)
    if at is None:
        return every
    try:
        nodes = every[at] if isinstance(at, slice) else every[[at] if isinstance(at, int) else list(at)]
    except (IndexError, TypeError):
        nodes = every[:0]
    if not len(nodes):
        raise ValueError(f"{name}: got {at}; allowed: nodes from {-count} to {count - 1}")
    return nodes


def _expanded(name: str, value: Any, problems: int, nodes: int, size: int) -> Tensor:
    """Numbers as (P or 1, K, size)."""
    value = torch.as_tensor(value, dtype=torch.float64)
    shape = (value.shape[0] if value.ndim == 3 else 1, nodes, size)
    fits = all(length in (1, wanted) for length, wanted in zip(value.shape[::-1], shape[::-1], strict=False))
    if not fits or value.ndim > 3 or shape[0] not in (1, problems):
        raise ValueError(
            f"{name}: got shape {tuple(value.shape)}; allowed: a number, ({size},), ({nodes}, {size}) or ({problems}, {nodes}, {size})"
        )
    return value.expand(shape).contiguous()

"""The unknown numbers of a mechanism as one flat vector, and the mechanism as a function of this vector.

A `Parameter` is a named tensor that sets fields of a mechanism, several at once where they are shared ("contacts.*.friction"). A tie sets a
field from several parameters: the contact points of a box from its half-side and corner radius. Bounds are kept by reparametrization: the
solver moves a vector `raw` of unconstrained numbers,

    value = scale raw                               without bounds
    value = lower + exp(raw)                        with a lower bound
    value = lower + (upper − lower) σ(raw)          with both

A batch of vectors may be given, one per row. The fields then carry the batch dimension, and one backward pass gives the derivatives of
every row with respect to its own parameters. `torchdojo.parametrize` keeps one value for all rows in the module, and does not allow such a
batch.
"""

from __future__ import annotations

import copy
import fnmatch
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from torchdojo import quaternion as quat
from torchdojo.elements.joints import Joint
from torchdojo.identification.recordings import DataError, Recordings
from torchdojo.mechanism import Mechanism, StepOutput, Trajectory
from torchdojo.parameters import PhysicalModule, as_tensor, broadcast_shapes
from torchdojo.state.layout import ANGULAR_VELOCITY, ORIENTATION, POSITION, VELOCITY

__all__ = ["Parameter", "ParametricMechanism", "Tie"]

#: Maps values by name, each (..., *shape), and the mechanism's own value of a field to the field's value, (..., *shape of the field).
Tie = Callable[[Mapping[str, Tensor], Tensor], Tensor]


@dataclass(frozen=True)
class Parameter:
    """A named unknown.

    Args:
        value: the start, in physical units; a number, a sequence or a tensor, between `lower` and `upper`. It has the shape of its fields,
            and one number fits fields of one number, (), such as masses, as well as (1,), such as the damper of a hinge.
        fields: paths of fields that take this value, as in ``mech.named_parameters()``, with wildcards: "contacts.*.friction". None where
            only ties read the parameter.
        lower, upper: bounds, excluded; `upper` needs `lower`.
        scale: a typical magnitude, positive, in which steps without bounds are measured. Default: the magnitude of the value, or 1 if zero.
    """

    name: str
    value: Any
    fields: str | Sequence[str] = ()
    lower: float | None = None
    upper: float | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        value = as_tensor(self.value, f"Parameter {self.name!r}").detach().to(torch.float64)
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "fields", (self.fields,) if isinstance(self.fields, str) else tuple(self.fields))
        if self.upper is not None and self.lower is None:
            raise ValueError(f"Parameter {self.name!r}: got upper={self.upper} without lower; give both, or lower alone")
        if not self.allows(value):
            low, high = -torch.inf if self.lower is None else self.lower, torch.inf if self.upper is None else self.upper
            raise ValueError(f"Parameter {self.name!r} starts at {value.tolist()}; allowed: values between {low} and {high}, both excluded")
        if self.scale is not None and not self.scale > 0:
            raise ValueError(f"Parameter {self.name!r}: got scale={self.scale}; allowed: positive numbers")

    def allows(self, value: Tensor) -> bool:
        """Whether a value is finite and between the bounds."""
        low, high = -torch.inf if self.lower is None else self.lower, torch.inf if self.upper is None else self.upper
        return bool(((value > low) & (value < high)).all())

    @property
    def magnitude(self) -> float:
        """`scale`, or the largest magnitude of the value, or 1."""
        return self.scale or float(self.value.abs().max()) or 1.0

    def decode(self, raw: Tensor) -> Tensor:
        """The value, of the shape of `raw`."""
        if self.lower is None:
            return self.magnitude * raw
        return self.lower + (raw.exp() if self.upper is None else (self.upper - self.lower) * raw.sigmoid())

    def encode(self, value: Tensor) -> Tensor:
        """Inverse of `decode`."""
        if self.lower is None:
            return value / self.magnitude
        return (value - self.lower).log() if self.upper is None else ((value - self.lower) / (self.upper - self.lower)).logit()


class ParametricMechanism(nn.Module):
    """A mechanism as a function of a flat vector of unconstrained parameters.

    Args:
        mechanism: is copied. Its timestep is fixed: the time between samples, or a whole part of it.
        parameters: the unknowns; none: the mechanism as it is. ties: fields (paths with wildcards) that are functions of parameters.
        recorded_points: values by name -> the points of the recorded bodies whose positions are recorded, in the frames of the bodies,
            (..., b, 3) [m]. None: the centers of mass.
        clearance: [m]. A sample is in free flight where all contacts are farther away than this, now and one sample before. There, the mean
            velocity over dt is g (dt − h)/2 behind the velocity of the last substep h, which a state holds.
        unrecorded: names of joints without recorded coordinates. Samples leave them at rest at zero.

    `raw` (P,) is an `nn.Parameter`, so that any optimizer of torch can move it. Methods take another vector, (P,) or (..., P).

    Raises:
        ValueError: names given twice, patterns without a field, fields set twice, values that do not fit, parameters that set nothing.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        parameters: Sequence[Parameter],
        ties: Mapping[str, Tie] | None = None,
        *,
        recorded_points: Callable[[Mapping[str, Tensor]], Tensor] | None = None,
        clearance: float = 5e-3,
        unrecorded: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.mechanism = copy.deepcopy(mechanism)
        self.mechanism.warned_of_penetration = True  # recordings overlap the ground by their errors, which calls for no warning
        self.parameters_by_name = {parameter.name: parameter for parameter in parameters}
        if len(self.parameters_by_name) < len(parameters):
            raise ValueError(f"ParametricMechanism: got parameters {[p.name for p in parameters]}; allowed: names that all differ")
        self.recorded_points, self.clearance = recorded_points, clearance
        self.unrecorded = tuple(unrecorded)
        unknown = [name for name in self.unrecorded if name not in self.mechanism.tree_joints]
        if unknown:
            raise ValueError(f"unrecorded: no tree joint {', '.join(unknown)}; there are: {', '.join(self.mechanism.tree_joints)}")
        self._setters: dict[str, str | Tie] = {}
        for parameter in parameters:
            for pattern in parameter.fields:
                self._set(pattern, parameter.name)
        for pattern, tie in (ties or {}).items():
            self._set(pattern, tie)
        fields = {path: tensor.detach().clone() for path, tensor in self._fields().items()}
        self._nominal = {path: fields[path] for path in self._setters}
        self.raw = nn.Parameter(self.encode({name: p.value for name, p in self.parameters_by_name.items()}))
        self._check_setters()

    def _fields(self) -> dict[str, Tensor]:
        """All physical fields by path, also of the floating joints that a mechanism adds by itself."""
        return {
            f"{path}.{name}".lstrip("."): getattr(module, name)
            for path, module in self.mechanism.named_modules()
            if isinstance(module, PhysicalModule)
            for name in module.fields
        }

    def _set(self, pattern: str, setter: str | Tie) -> None:
        fields = self._fields()
        paths = [path for path in fields if fnmatch.fnmatchcase(path, pattern)]
        if not paths:
            raise ValueError(f"no field of the mechanism matches {pattern!r}; its fields: {', '.join(fields)}")
        for path in paths:
            if path in self._setters:
                raise ValueError(f"{path} is set by two parameters or ties; give it to one of them")
            if path == "timestep":
                raise ValueError("timestep: is no unknown, as it belongs to the recording")
            self._setters[path] = setter

    def _check_setters(self) -> None:
        read: set[str] = set()

        class Recording(dict[str, Tensor]):
            def __getitem__(self, name: str) -> Tensor:
                read.add(name)
                return super().__getitem__(name)

        values = Recording(self.values())
        if self.recorded_points is not None:
            self.recorded_points(values)
        for path, tensor in self._computed(values).items():
            if tensor.shape != self._nominal[path].shape:
                raise ValueError(
                    f"{path} has shape {tuple(self._nominal[path].shape)} and would be set to {tuple(tensor.shape)}; allowed: its shape"
                )
            owner, _, name = path.rpartition(".")
            cast(PhysicalModule, self.mechanism.get_submodule(owner)).check_field(name, tensor.detach())
        idle = [name for name in self.parameters_by_name if name not in read]
        if idle:
            raise ValueError(f"parameters {', '.join(idle)} set no field; give them fields, or a tie that reads them")

    # -- the vector ----------------------------------------------------------------------------------------------------------------------

    @property
    def layout(self) -> dict[str, slice]:
        """Place of each parameter in the flat vector."""
        pieces, start = {}, 0
        for name, parameter in self.parameters_by_name.items():
            pieces[name] = slice(start, start + parameter.value.numel())
            start += parameter.value.numel()
        return pieces

    @property
    def labels(self) -> list[str]:
        """One name per entry of the flat vector: "friction", "points[0,2]", ..."""
        return [
            f"{name}[{','.join(map(str, index))}]" if index else name
            for name, parameter in self.parameters_by_name.items()
            for index in itertools.product(*(range(n) for n in parameter.value.shape))
        ]

    def values(self, raw: Tensor | None = None) -> dict[str, Tensor]:
        """Parameters in physical units, name -> (..., *shape), of `raw` (..., P)."""
        raw = self.raw if raw is None else raw
        return {
            name: parameter.decode(raw[..., piece]).reshape((*raw.shape[:-1], *parameter.value.shape))
            for (name, piece), parameter in zip(self.layout.items(), self.parameters_by_name.values(), strict=True)
        }

    def encode(self, values: Mapping[str, Tensor]) -> Tensor:
        """The flat vector (P,) of parameters in physical units. Parameters without a value keep theirs."""
        pieces = [torch.zeros(0, dtype=torch.float64)]
        for name, parameter in self.parameters_by_name.items():
            value = torch.as_tensor(values[name] if name in values else self.values()[name], dtype=torch.float64).detach()
            pieces.append(parameter.encode(value.expand(parameter.value.shape)).reshape(-1))
        return torch.cat(pieces)

    # -- the mechanism -------------------------------------------------------------------------------------------------------------------

    def _computed(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            path: self._fitting(setter, values[setter], self._nominal[path])
            if isinstance(setter, str)
            else setter(values, self._nominal[path])
            for path, setter in self._setters.items()
        }

    def _fitting(self, name: str, value: Tensor, own: Tensor) -> Tensor:
        """A value (..., *shape) of a parameter for a field like `own`: one number is one number, whether its shape is () or (1,)."""
        shape = self.parameters_by_name[name].value.shape
        if shape == own.shape or shape.numel() != 1 or own.numel() != 1:
            return value
        return value.reshape((*value.shape[: value.ndim - len(shape)], *own.shape))

    def call(self, method: str, *args: Any, raw: Tensor | None = None, added: Mapping[str, Tensor] | None = None, **kwargs: Any) -> Any:
        """`method` of the mechanism with these parameters. A batch of parameters (..., P) broadcasts with the batch of states.

        Args:
            added: what is added to fields, by path; broadcasts as well.
        """
        fields = self._computed(self.values(raw))
        for path, change in (added or {}).items():
            owner, _, name = path.rpartition(".")
            fields[path] = (fields[path] if path in fields else getattr(self.mechanism.get_submodule(owner), name)) + change
        swapped = {f"mechanism.{path}": tensor for path, tensor in fields.items()}
        return torch.func.functional_call(_Caller(self.mechanism), swapped, (method, *args), kwargs)

    def step(self, z: Tensor, raw: Tensor | None = None, **kwargs: Any) -> StepOutput:
        """`Mechanism.step` with these parameters."""
        return cast(StepOutput, self.call("step", z, raw=raw, **kwargs))

    def rollout(self, z: Tensor, steps: int, raw: Tensor | None = None, u: Tensor | None = None) -> Trajectory:
        """`Mechanism.rollout` with these parameters, under inputs u (..., steps, m)."""
        return cast(Trajectory, self.call("rollout", z, u, steps=steps, raw=raw))

    def baked(self, raw: Tensor | None = None) -> Mechanism:
        """A mechanism with these parameters as plain numbers."""
        result = copy.deepcopy(self.mechanism)
        with torch.no_grad():
            for path, tensor in self._computed(self.values(raw)).items():
                owner, _, name = path.rpartition(".")
                setattr(result.get_submodule(owner), name, tensor.detach().clone())
        return result

    def stepper(self, raw: Tensor | None = None) -> Callable[..., StepOutput]:
        """`step` for many steps with the same parameters, whose fields are set once, as plain numbers."""
        if type(self).step is ParametricMechanism.step:
            return self.baked(raw).step
        return functools.partial(self.step, raw=raw)

    def forward(self, samples: Tensor, recordings: Recordings, steps: int, raw: Tensor | None = None) -> Tensor:
        """States (..., steps + 1, 13 nb) of rollouts from recorded samples (..., width), one per sample of the recording.

        Raises:
            DataError: recordings with inputs, which a single sample does not have for several steps; use `WindowResidual`.
        """
        if recordings.num_inputs:
            raise DataError("ParametricMechanism(samples): the recording has inputs; compare windows instead, WindowResidual(model, data)")
        substeps = self.substeps(recordings)
        return self.rollout(self.states(samples, recordings, raw), steps * substeps, raw).z[..., ::substeps, :]

    def recorded_inputs(self, recordings: Recordings, samples: Tensor | None = None) -> Tensor | None:
        """Inputs (..., m) of samples (..., width), by default all; None where the recording has none.

        Raises:
            DataError: another number of inputs than the mechanism has.
        """
        if not recordings.num_inputs:
            return None
        if recordings.num_inputs != self.mechanism.num_inputs:
            raise DataError(
                f"the recording has {recordings.num_inputs} inputs; this mechanism has {self.mechanism.num_inputs}, in the order of "
                f"{list(self.mechanism.input_layout)}"
            )
        return recordings.inputs(samples)

    def held_inputs(self, recordings: Recordings, samples: Tensor) -> Tensor | None:
        """Inputs (..., K substeps, m) of the steps from samples (..., K, width), each held over the steps to the next; or None."""
        inputs = self.recorded_inputs(recordings, samples)
        return None if inputs is None else inputs.repeat_interleave(self.substeps(recordings), dim=-2)

    # -- recorded samples ----------------------------------------------------------------------------------------------------------------

    def substeps(self, recordings: Recordings) -> int:
        """Steps of the mechanism between two samples.

        Raises:
            DataError: the timestep is not a whole part of the recording's, which would need resampling.
        """
        ratio = recordings.dt / float(self.mechanism.timestep)
        count = round(ratio)
        if count < 1 or abs(ratio - count) > 1e-6 * count:
            raise DataError(
                f"the recording has a sample every {recordings.dt:.6g} s, the mechanism has a timestep of "
                f"{float(self.mechanism.timestep):.6g} s; "
                f"allowed: {recordings.dt:.6g} s or a whole part of it (1/2, 1/3, ...). Recordings are not resampled; change the timestep"
            )
        return count

    def states(self, samples: Tensor, recordings: Recordings, raw: Tensor | None = None) -> Tensor:
        """States z (..., 13 nb) of recorded samples (..., 13 b + 2 j + m), in the mechanism's own convention of velocities.

        With joint coordinates, bodies behind joints follow from the mechanism's kinematics and so from its parameters.

        Raises:
            DataError: bodies or joint coordinates that do not fit the mechanism; timesteps that differ.
        """
        substeps = self.substeps(recordings)
        recorded, (angle, rate) = recordings.bodies(samples), recordings.joints(samples)
        body = self.centred(recorded, recordings.dt, raw)
        mech = self.mechanism
        if substeps > 1:
            fields = self._computed(self.values(raw))
            gravity = fields.get("gravity", mech.gravity)
            late = 0.5 * (recordings.dt - float(mech.timestep)) * gravity
            flying = self._in_flight(self.centred(recorded, recordings.dt, self.raw.detach()), angle, recordings)
            shift = torch.where(flying[..., None], late, 0.0)
            pieces = (body[..., POSITION], body[..., VELOCITY] + shift[..., None, :], body[..., VELOCITY.stop :])
            body = torch.cat([piece.expand(*shift.shape[:-1], *piece.shape[-2:]) for piece in pieces], dim=-1)
        return self._place(body, angle, rate, recordings, raw)

    def centred(self, body: Tensor, dt: float, raw: Tensor | None = None) -> Tensor:
        """Recorded bodies (..., b, 13) with positions of their centers of mass, and the backward differences of these."""
        if self.recorded_points is None:
            return body
        x, v, q, omega = body.split((3, 3, 4, 3), dim=-1)
        points = self.recorded_points(self.values(raw))
        arm, before = quat.rotate(q, points), quat.rotate(quat.multiply(q, quat.exp(-dt * omega)), points)
        return torch.cat([t.expand(*arm.shape[:-1], t.shape[-1]) for t in (x - arm, v - (arm - before) / dt, q, omega)], dim=-1)

    def positions(self, body: Tensor, raw: Tensor | None = None) -> Tensor:
        """Positions (..., b, 3) [m] of the recorded points of bodies (..., b, 13), parts of a state."""
        if self.recorded_points is None:
            return body[..., POSITION]
        return body[..., POSITION] + quat.rotate(body[..., ORIENTATION], self.recorded_points(self.values(raw)))

    def _place(self, body: Tensor, angle: Tensor, rate: Tensor, recordings: Recordings, raw: Tensor | None) -> Tensor:
        mech = self.mechanism
        floating, others = self.observed_joints
        if not recordings.num_joints and recordings.num_bodies == mech.num_bodies:
            omega = chord_velocity(body[..., ANGULAR_VELOCITY], mech.timestep)
            z = torch.cat((body[..., : ORIENTATION.stop], omega), dim=-1).flatten(-2)
            return z if len(floating) == mech.num_bodies else mech.unwind(z)
        if recordings.num_bodies != len(floating) or recordings.num_joints != sum(n for _, n in others):
            raise DataError(
                f"the recording has {recordings.num_bodies} bodies and {recordings.num_joints} joint coordinates; this mechanism has "
                f"{mech.num_bodies} bodies, or {len(floating)} floating ones and {sum(n for _, n in others)} joint coordinates"
            )
        pieces, b, j = [], 0, 0
        counts = dict(others)
        for name in mech.tree_joints:
            if name in floating:
                x, v, q, omega = body[..., b, :].split((3, 3, 4, 3), dim=-1)
                pieces.append((torch.cat((x, quat.rotation_vector(q)), -1), torch.cat((v, quat.rotate(q, omega)), -1)))
                b += 1
            elif name in counts:
                pieces.append((angle[..., j : j + counts[name]], rate[..., j : j + counts[name]]))
                j += counts[name]
            else:
                still = body.new_zeros(cast(Joint, mech.joints[name]).num_coordinates)
                pieces.append((still, still))
        batch = broadcast_shapes(*(t.shape[:-1] for pair in pieces for t in pair))
        q, qd = (torch.cat([pair[i].expand(*batch, -1) for pair in pieces], dim=-1) for i in (0, 1))
        return cast(Tensor, self.call("to_maximal", q, qd, raw=raw))

    @property
    def observed_joints(self) -> tuple[list[str], list[tuple[str, int]]]:
        """Tree joints that float from the world, and the other recorded joints with their numbers of coordinates."""
        joints = {name: cast(Joint, self.mechanism.joints[name]) for name in self.mechanism.tree_joints if name not in self.unrecorded}
        floating = [name for name, joint in joints.items() if joint.parent is None and joint.num_coordinates == 6]
        return floating, [(name, joint.num_coordinates) for name, joint in joints.items() if name not in floating]

    def observed(self, recordings: Recordings) -> tuple[list[int], list[int]]:
        """Numbers of the recorded bodies, and positions of the recorded joint coordinates in the coordinate vector."""
        if not recordings.num_joints and recordings.num_bodies == self.mechanism.num_bodies:
            return list(range(self.mechanism.num_bodies)), []
        return tree_layout(self)

    def _in_flight(self, body: Tensor, angle: Tensor, recordings: Recordings) -> Tensor:
        """Whether all contacts are `clearance` away at the sample and at the one before it, (...,)."""
        mech = self.mechanism
        if not mech.contacts:
            return torch.ones(body.shape[:-2], dtype=torch.bool)
        with torch.no_grad():
            before = body.clone()
            before[..., POSITION] -= recordings.dt * before[..., VELOCITY]
            still = torch.zeros_like(angle)
            lowest = [mech.distances(self._place(b.detach(), angle.detach(), still, recordings, self.raw)).amin(-1) for b in (body, before)]
        return torch.minimum(*lowest) > self.clearance


class _Caller(nn.Module):
    def __init__(self, mechanism: Mechanism) -> None:
        super().__init__()
        self.mechanism = mechanism

    def forward(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.mechanism, method)(*args, **kwargs)


def tree_layout(model: ParametricMechanism) -> tuple[list[int], list[int]]:
    """Numbers of the floating bodies, and positions of the recorded joint coordinates in the coordinate vector."""
    mech, (floating, others) = model.mechanism, model.observed_joints
    names = list(mech.bodies)
    bodies = [names.index(cast(Joint, mech.joints[name]).child) for name in floating]
    counts, columns, start = dict(others), list[int](), 0
    for name in mech.tree_joints:
        columns += range(start, start + counts.get(name, 0))
        start += cast(Joint, mech.joints[name]).num_coordinates
    return bodies, columns


def chord_velocity(omega: Tensor, timestep: Tensor) -> Tensor:
    """Angular velocities of the step, for which q⁺ = q ⊗ [√(1 − |hω/2|²), hω/2], from ω for which q⁺ = q exp(hω)."""
    half = 0.5 * timestep * torch.linalg.vector_norm(omega, dim=-1, keepdim=True)
    return omega * torch.sinc(half / torch.pi)

"""Actuators: from controls to the input u of a mechanism, with MuJoCo's affine law.

An actuator drives one free coordinate q of an actuated joint through a gear g, with a control c. The MuJoCo documentation, chapter
Computation, "Actuation model", has the transmission, the force, and the clamps of the XML attributes ctrlrange and forcerange:

    length l = l₀ + g q,  velocity l̇ = g q̇
    force f = clip(gain · clip(c, ctrlrange) + bias, forcerange),  gain = (1, l, l̇) · (gain₀, gain₁, gain₂),  bias likewise
    input u = Σ g f over the actuators of the coordinate, clipped to inputrange (MuJoCo: actuatorfrcrange of the joint)

A motor has gain (1, 0, 0) and bias 0. A position servo has gain (kp, 0, 0) and bias (0, −kp, −kv), so f = kp (c − l) − kv l̇. A velocity
servo has gain (kv, 0, 0) and bias (0, 0, −kv).

The state z gives the present q and q̇. Three modes say which of these the step replaces by values at the next configuration. Let
k = −g² bias₁ and d = −g² bias₂ be the stiffness and the damping of the servo, where these are positive.

    servos           force on the coordinate                   u                     in the joint
    "implicit"       clip(g f − h k q̇⁺ − d (q̇⁺ − q̇))          g f + d q̇, not clipped   servo_stiffness k, servo_damping d, servo_range
    "implicitfast"   clip(g f) − d (q̇⁺ − q̇)                   clip(g f) + d q̇       damper grows by d
    "explicit"       clip(g f)                                 clip(g f)             nothing

For a position servo "implicit" is clip(g kp (c − l − h l̇⁺) − g kv l̇⁺): the servo at the next configuration (servo.py). This servo is stable
for all gains and timesteps, and it brakes with no more than its range (joint_drive.py). The range that the joint has, g forcerange within
inputrange, is taken out of the fields of the actuators. A coordinate with several actuators, one of them with a forcerange, or with a range
that is open on one side, has no such clip, and is as with "implicitfast".

"implicitfast" equals MuJoCo's integrators "implicit" and "implicitfast", (M + h d)(q̇⁺ − q̇) = h g f, where f is not clipped. Its position
part acts like an explicit spring, and is stable while h² k is below four times the inertia that the coordinate moves. Where f is clipped,
it differs from g f by h d times the acceleration, as if the inertia were larger by h d. MuJoCo leaves d out there, and chatters where
that is not stable. "explicit" needs h d below twice the inertia.

The table compares with MuJoCo at h = 1e-4 s, with the base held and targets of all servos up to 0.1 rad away. It has the largest error of
an angle over 0.2 s, relative to the largest motion (scripts/bench_servos.py):

                                          implicit   implicitfast   explicit   MuJoCo "implicitfast", same h
    Panda, kv to 450 N m s/rad, h = 2 ms     0.007      0.087          0.55       0.47
    UR5e, kv to 400 N m s/rad, h = 2 ms      0.0036     0.0058         0.14       0.016

With targets up to 0.005 and 0.01 rad away, no force is clipped. With "implicitfast", both arms are then within 2e-8 of MuJoCo at the same h
after 0.5 s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from torchdojo.elements.element import Pose
from torchdojo.elements.joint_cones import KINEMATIC_FIELDS
from torchdojo.elements.joints import StandardJoint
from torchdojo.parameters import PhysicalModule, as_tensor, bind, broadcast_shapes, require, stacked, transforming
from torchdojo.precision import in_float64

__all__ = ["Actuator", "Actuators", "Servos", "actuate", "check_servos"]

Range = tuple[Any, Any]
Servos = Literal["implicit", "implicitfast", "explicit"]
RANGES = ("ctrlrange", "forcerange", "inputrange")


class Driven(Protocol):
    """The part of a mechanism that `Actuators` read (`torchdojo.structure.Structure`)."""

    actuators: Actuators | None
    joints: nn.ModuleDict
    bodies: nn.ModuleDict
    timestep: Tensor
    gravity: Tensor

    @property
    def num_inputs(self) -> int: ...

    @property
    def input_layout(self) -> dict[str, slice]: ...

    def check_state(self, z: Any) -> None: ...

    def configurations(self, z: Tensor) -> tuple[Pose, Pose]: ...

    def coordinate_places(self) -> dict[str, slice]: ...

    def quick_coordinates(self, z: Tensor) -> tuple[Tensor, Tensor] | None: ...

    def rebuild(self) -> None: ...


@dataclass(frozen=True)
class Actuator:
    """The drive of one coordinate of a joint: numbers, or tensors (...,) that may carry a graph.

    Args:
        joint: name of an actuated joint.
        coordinate: which of its free coordinates, translations first.
        gear: g, length per coordinate and force on the coordinate per force.
        gain, bias: three numbers each, constant, per length and per velocity; a single gain is constant.
        ctrlrange, forcerange: (lower, upper), before the gear; None: not clipped.
        length0: l₀, the length at coordinate zero.
    """

    joint: str
    gear: Any = 1.0
    gain: Any = 1.0
    bias: tuple[Any, Any, Any] = (0.0, 0.0, 0.0)
    ctrlrange: Range | None = None
    forcerange: Range | None = None
    length0: Any = 0.0
    coordinate: int = 0

    @classmethod
    def motor(cls, joint: str, **options: Any) -> Actuator:
        """A force or torque that is the control [N, N m] times the gear."""
        return cls(joint, **options)

    @classmethod
    def position(cls, joint: str, kp: Any, kv: Any = 0.0, **options: Any) -> Actuator:
        """A position servo: f = kp (control − length) − kv velocity. kp [N/m, N m/rad], kv [N s/m, N m s/rad]."""
        return cls(joint, gain=kp, bias=(0.0, -kp, -kv), **options)

    @classmethod
    def velocity(cls, joint: str, kv: Any, **options: Any) -> Actuator:
        """A velocity servo: f = kv (control − velocity). kv [N s/m, N m s/rad]."""
        return cls(joint, gain=kv, bias=(0.0, 0.0, -kv), **options)


def actuate(mech: Driven, actuators: Mapping[str, Actuator], servos: Servos = "implicit", inputrange: Any = None) -> Actuators:
    """Give a mechanism actuators: they become `mech.actuators`.

    With ``servos="implicit"``, driven joints get the servo of their actuators: `servo_stiffness`, `servo_damping`, and the range of their
    force. With "implicitfast" their dampers carry gear² kv, where kv is minus the third number of `bias` if that is negative. The head of
    this file compares. The joints keep both when u does not come from the actuators. Gains may change later and be learned: the law follows
    the new numbers, and only their implicit part stays, `servo_stiffness` and `Actuators.carried_damping`.

    Args:
        inputrange: (nu, 2), of the sum over the actuators of a coordinate [N, N·m], infinite where it is not clipped. None: infinite.

    Raises:
        ValueError: unknown names or joints without inputs, values that do not fit, a mechanism that has actuators already.
    """
    check_servos(servos)
    if mech.actuators is not None and not mech.actuators.replaceable:
        raise ValueError(f"the mechanism already has the actuators {list(mech.actuators.names)}; give all of them at once")
    module = Actuators(mech, actuators)
    if inputrange is not None:
        module.inputrange = inputrange
    if servos == "implicitfast":
        _add_dampers(mech, module)
    elif servos == "implicit":
        _add_servos(mech, module)
    mech.actuators = module
    return module


def check_servos(servos: Any) -> None:
    """Raise unless `servos` is a mode of `actuate`."""
    *names, last = get_args(Servos)
    if servos not in (*names, last):
        raise ValueError(f"servos is {servos!r}; allowed: {', '.join(map(repr, names))} or {last!r}")


def _add_dampers(mech: Driven, module: Actuators) -> None:
    """Let the joints' dampers carry gear² kv."""
    with torch.no_grad():
        module.carried_damping = module.gear**2 * (-module.bias[..., 2]).clamp_min(0.0)
    extra = module.sum_inputs(module.carried_damping)
    for name in dict.fromkeys(module.joints):
        more = extra[..., mech.input_layout[name]]
        if bool(more.any()):
            joint = cast(StandardJoint, mech.joints[name])
            joint.damper = joint.damper + more


def _add_servos(mech: Driven, module: Actuators) -> None:
    """Let the joints carry the servos, with their ranges, which the actuators then lack."""
    stiffness, damping = (module.gear**2 * (-module.bias[..., i]).clamp_min(0.0) for i in (1, 2))
    acts = ((stiffness != 0) | (damping != 0)).reshape(-1, len(module)).any(0).tolist()
    places, infinite = module.input_index.tolist(), module.gear.new_tensor([-torch.inf, torch.inf])
    ranges = [infinite for _ in range(mech.num_inputs)]
    explicit, clipped_by_joint = [], []
    for place in dict.fromkeys(places):
        members = [i for i, other in enumerate(places) if other == place]
        if not any(acts[i] for i in members):
            continue
        servo_range = _servo_range(module, place, members)
        if servo_range is None:
            explicit += members
        elif bool(torch.isfinite(servo_range).any()):
            ranges[place] = servo_range
            clipped_by_joint += members
    if not any(acts):
        return
    module.carried_damping = damping
    every = torch.arange(len(module), device=stiffness.device)
    stiffness = torch.where(torch.isin(every, every.new_tensor(explicit)), 0.0, stiffness)
    if clipped_by_joint:
        driven = torch.isin(every, every.new_tensor(clipped_by_joint))
        inputs = torch.isin(torch.arange(mech.num_inputs, device=every.device), module.input_index[driven])
        module.forcerange = torch.where(driven[:, None], infinite, module.forcerange)
        module.inputrange = torch.where(inputs[:, None], infinite, module.inputrange)
    lower, upper = torch.stack(torch.broadcast_tensors(*ranges), dim=-2).unbind(-1)
    kp, kd = module.sum_inputs(stiffness), module.sum_inputs(damping)
    for name in dict.fromkeys(module.joints):
        piece = mech.input_layout[name]
        bounds = lower[..., piece], upper[..., piece]
        cast(StandardJoint, mech.joints[name]).add_servo(kp[..., piece], kd[..., piece], bounds)
    mech.rebuild()


def _servo_range(module: Actuators, place: int, own: list[int]) -> Tensor | None:
    """Range (..., 2) of the force of the actuators `own` on input `place`; None where no single range describes it."""
    lower, upper = module.inputrange[..., place, :].unbind(-1)
    forces = module.forcerange[..., own, :]
    if bool(torch.isfinite(forces).any()):
        if len(own) > 1:
            return None
        bounds = module.gear[..., own] * forces[..., 0, :]
        lower, upper = torch.maximum(lower, bounds.amin(-1)), torch.minimum(upper, bounds.amax(-1))
    lower, upper = torch.broadcast_tensors(lower, upper)
    finite = torch.isfinite(lower)
    one = bool((finite == torch.isfinite(upper)).all()) and bool((finite == finite.flatten()[0]).all()) and bool((lower < upper).all())
    return torch.stack((lower, upper), dim=-1) if one else None


class Actuators(PhysicalModule):
    """The actuators of a mechanism: ``u = mech.actuators(ctrl, z)``. Built by `actuate` and by the readers of files.

    The fields have n actuators in order, and may have leading batch dimensions. All may be assigned and learned. A position servo has kp
    in `gain` and in `bias`.

        gear (..., n), gain (..., n, 3), bias (..., n, 3), length0 (..., n): as in `Actuator`.
        ctrlrange, forcerange (..., n, 2): (lower, upper), infinite where nothing is clipped, or where the joint has the range.
        inputrange (..., nu, 2): the same of u, the sum over the actuators of a coordinate [N, N m].
        carried_damping (..., n): gear² kv that the joints carry already [N s/m, N m s/rad]; see the head of this file.

    Attributes:
        names: names of the actuators, in the order of ctrl. joints: name of the joint of each. input_index: (n,) the entry of u of each.
        replaceable: True for motors that a built-in robot comes with: `actuate` replaces them.
        clipped: count of controls out of `ctrlrange` that `step` and `rollout` got as `ctrl`; set it to zero to count anew.

    A subclass with another `forward` sets `in_kernel` to False: PyTorch then takes its law before every step.

    Where a control or a force is clipped, its derivative with respect to the clipped value is zero, and with respect to the bound one.
    """

    in_kernel: ClassVar[bool] = True
    fields: ClassVar[dict[str, int]] = {
        "gear": 1,
        "gain": 2,
        "bias": 2,
        "length0": 1,
        "ctrlrange": 2,
        "forcerange": 2,
        "inputrange": 2,
        "carried_damping": 1,
    }
    gear: Tensor
    gain: Tensor
    bias: Tensor
    length0: Tensor
    ctrlrange: Tensor
    forcerange: Tensor
    inputrange: Tensor
    carried_damping: Tensor
    input_index: Tensor

    def __init__(self, mech: Driven, actuators: Mapping[str, Actuator]) -> None:
        super().__init__()
        self.__dict__["_mech"] = mech  # no submodule: the mechanism contains this module
        if not actuators:
            raise ValueError("Actuators: got none; give at least one, {'name': td.Actuator.motor('joint')}")
        self.clipped = 0
        self.replaceable = False
        self.names = tuple(actuators)
        self.joints = tuple(actuator.joint for actuator in actuators.values())
        self.coordinates = tuple(actuator.coordinate for actuator in actuators.values())
        for name, actuator in actuators.items():
            _check_place(mech, name, actuator)
        self.locate()
        specs = list(actuators.items())

        def column(label: str, values: list[Any]) -> Tensor:
            """Numbers (...,) of each actuator side by side, (..., n)."""
            tensors = [as_tensor(value, f"{name}: {label}").to(mech.gravity) for (name, _), value in zip(specs, values, strict=True)]
            return torch.stack(torch.broadcast_tensors(*tensors), dim=-1)

        def table(label: str, rows: list[tuple[Any, ...]]) -> Tensor:
            """(..., n, 3) or (..., n, 2)."""
            return torch.stack(torch.broadcast_tensors(*[column(label, list(values)) for values in zip(*rows, strict=True)]), dim=-1)

        self.gear = column("gear", [a.gear for _, a in specs])
        self.length0 = column("length0", [a.length0 for _, a in specs])
        self.gain = table("gain", [_three(name, "gain", a.gain) for name, a in specs])
        self.bias = table("bias", [_three(name, "bias", a.bias) for name, a in specs])
        self.ctrlrange = table("ctrlrange", [_pair(name, "ctrlrange", a.ctrlrange) for name, a in specs])
        self.forcerange = table("forcerange", [_pair(name, "forcerange", a.forcerange) for name, a in specs])
        self.inputrange = mech.gravity.new_tensor([[-torch.inf, torch.inf]] * mech.num_inputs)
        self.carried_damping = torch.zeros_like(self.gear).detach()

    def locate(self) -> None:
        """Find the places of the driven joints' coordinates, which an edit of the mechanism moves."""
        mech = self._mechanism
        self.num_inputs, layout = mech.num_inputs, mech.input_layout
        places = [layout[joint].start + i for joint, i in zip(self.joints, self.coordinates, strict=True)]
        self.register_buffer("input_index", torch.tensor(places, device=mech.gravity.device), persistent=False)
        self._groups = list(self._grouped())
        tree = mech.coordinate_places()
        #: coordinates of the actuators among the minimal ones; None where a joint closes a loop
        self._places: list[int] | None = None
        if all(joint in tree for joint in self.joints):
            self._places = [tree[joint].start + i for joint, i in zip(self.joints, self.coordinates, strict=True)]

    def check_field(self, name: str, value: Tensor) -> Tensor:
        if name in RANGES:
            shape: tuple[int, ...] = (self.num_inputs if name == "inputrange" else len(self.names), 2)
        else:
            shape = (len(self.names), 3) if self.fields[name] == 2 else (len(self.names),)
            value = super().check_field(name, value)
        if value.shape[-len(shape) :] != shape:
            listed = ", ".join(map(str, shape))
            raise ValueError(f"{self.label(name)}: got shape {tuple(value.shape)}; allowed: (..., {listed}), actuators: {list(self.names)}")
        if name in RANGES:
            require(value[..., 0] <= value[..., 1], self.label(name), value, "lower bounds at or below the upper ones, no NaN")
        if name == "carried_damping":
            require(value >= 0, self.label(name), value, "values >= 0")
        return value

    def __len__(self) -> int:
        return len(self.names)

    def out_of_range(self, ctrl: Tensor) -> Tensor:
        """Whether each of the controls (..., n) is below or above its `ctrlrange`, so that the law clips it."""
        return (ctrl < self.ctrlrange[..., 0]) | (ctrl > self.ctrlrange[..., 1])

    def count(self, ctrl: Tensor) -> None:
        """Add the controls out of range to `clipped`, except where values are hidden: in `torch.func` transforms and `torch.compile`."""
        if not (torch.compiler.is_compiling() or transforming()):
            self.clipped += int(self.out_of_range(ctrl).sum())

    @property
    def measures(self) -> bool:
        """Whether the input depends on the state: False for motors."""
        slopes = (self.gain[..., 1:], self.bias[..., 1:], self.carried_damping)
        return any(field.requires_grad or bool(field.any()) for field in slopes)

    @in_float64
    def forward(self, ctrl: Tensor, z: Tensor | None = None) -> Tensor:
        """The input u (..., nu) [N, N m] for controls (..., n) at a state z (..., 13 nb), which motors alone do without.

        u has the dtype of ctrl, and z may have another one.

        An angle is that in (−2π, 2π] of `StandardJoint`; z does not count further turns.

        Raises:
            ValueError: wrong shapes, servos without a z. TypeError: wrong dtype or device.
        """
        self.check(ctrl)
        ctrl = _clip(ctrl, self.ctrlrange)
        if z is None:
            if self.measures:
                raise ValueError(f"z: not given; the force of servos depends on it (actuators: {list(self.names)})")
            return self._input(_clip(self.gain[..., 0] * ctrl + self.bias[..., 0], self.forcerange))
        q, rate = self.measure(z)
        length, velocity = self.length0 + self.gear * q, self.gear * rate
        gain, bias = (p[..., 0] + p[..., 1] * length + p[..., 2] * velocity for p in (self.gain, self.bias))
        return self._input(_clip(gain * ctrl + bias, self.forcerange), self.carried_damping * rate)

    @property
    def tree_coordinates(self) -> Tensor | None:
        """The minimal coordinate of each actuator (n,); None where a joint closes a loop, or where a subclass has a law of its own."""
        own_law = type(self).forward is not Actuators.forward
        return None if self._places is None or own_law else torch.tensor(self._places)

    def on(self, mech: Driven) -> Actuators:
        """The same actuators, with tensors of the same numbers and graphs, for another mechanism whose joints have the same inputs."""
        if list(mech.input_layout.items()) != list(self._mechanism.input_layout.items()):
            raise ValueError(f"on: the mechanism has the inputs {mech.input_layout}; allowed: {self._mechanism.input_layout}")
        parts = zip(self.names, self.joints, self.coordinates, strict=True)
        other = Actuators(mech, {name: Actuator(joint, coordinate=coordinate) for name, joint, coordinate in parts})
        for field in self.fields:
            setattr(other, field, getattr(self, field) if getattr(self, field).requires_grad else getattr(self, field).detach())
        return other

    def _input(self, force: Tensor, carried: Tensor | None = None) -> Tensor:
        u = _clip(self.sum_inputs(self.gear * force), self.inputrange)
        return u if carried is None else u + self.sum_inputs(carried)

    def sum_inputs(self, value: Tensor) -> Tensor:
        """Sums (..., nu) over the actuators of each input, from values (..., n)."""
        return value.new_zeros(*value.shape[:-1], self.num_inputs).index_add(-1, self.input_index, value)

    @in_float64
    def measure(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Coordinate [m, rad] of each actuator at z, and its rate over the step that led there [m/s, rad/s], (..., n)."""
        mech = self._mechanism
        mech.check_state(z)
        quick = None if self._places is None else mech.quick_coordinates(z)
        if quick is not None:
            return quick[0][..., self._places], quick[1][..., self._places]
        configurations, h = mech.configurations(z), mech.timestep[..., None, None]
        values: list[Tensor] = []
        order: list[int] = []
        for group in self._groups:
            joint = group.bound(mech)
            current, before = ([Pose(x[..., index, :], q[..., index, :]) for index in group.bodies] for x, q in configurations)
            pair = torch.stack(torch.broadcast_tensors(joint.coordinates(current[0], current[1]), joint.rate(before, current, h)), dim=-1)
            values.append(pair[..., group.member, group.coordinate, :])
            order += group.actuators
        batch = broadcast_shapes(*(value.shape[:-2] for value in values))
        back = sorted(range(len(order)), key=order.__getitem__)
        both = torch.cat([value.expand(*batch, *value.shape[-2:]) for value in values], dim=-2)[..., back, :]
        return both[..., 0], both[..., 1]

    @property
    def _mechanism(self) -> Driven:
        return cast(Driven, self.__dict__["_mech"])

    def _grouped(self) -> Iterator[_Group]:
        mech = self._mechanism
        number = {name: i for i, name in enumerate(mech.bodies)}
        kinds: dict[tuple[object, ...], list[str]] = {}
        for name in dict.fromkeys(self.joints):
            kinds.setdefault(cast(StandardJoint, mech.joints[name]).kind(), []).append(name)
        for names in kinds.values():
            ends = [cast(StandardJoint, mech.joints[name]).body_names for name in names]
            driven = [i for i, joint in enumerate(self.joints) if joint in names]
            yield _Group(
                names,
                [[len(number) if pair[side] is None else number[cast(str, pair[side])] for pair in ends] for side in (0, 1)],
                driven,
                [names.index(self.joints[i]) for i in driven],
                [self.coordinates[i] for i in driven],
            )

    def check(self, ctrl: Any, like: Tensor | None = None) -> None:
        """Raise unless ctrl is a tensor (..., n) with the mechanism's dtype and device, or the device of `like`."""
        size, number = len(self.names), self._mechanism.gravity if like is None else like
        if not isinstance(ctrl, Tensor):
            raise TypeError(f"ctrl: got {type(ctrl).__name__}; allowed: a tensor of shape (..., {size}); torch.as_tensor(...)")
        if ctrl.ndim < 1 or ctrl.shape[-1] != size:
            raise ValueError(f"ctrl: got shape {tuple(ctrl.shape)}; allowed: (..., {size}), one per actuator: {list(self.names)}")
        if ctrl.dtype != torch.float64 or ctrl.device != number.device:
            raise TypeError(
                f"ctrl: got {ctrl.dtype} on {ctrl.device}; allowed: torch.float64 or torch.float32 on {number.device}; convert it"
            )


@dataclass(frozen=True)
class _Group:
    """Driven joints of one kind."""

    names: list[str]
    bodies: list[list[int]]  #: of the parents and of the children; the world is behind the last body
    actuators: list[int]
    member: list[int]  #: joint of each actuator, in `names`
    coordinate: list[int]  #: of each actuator

    def bound(self, mech: Driven) -> StandardJoint:
        """A joint with the numbers of all, stacked."""
        joints = [cast(StandardJoint, mech.joints[name]) for name in self.names]
        first = joints[0]
        read = {name: ndim for name, ndim in first.stacked_fields.items() if name in KINEMATIC_FIELDS or name not in StandardJoint.fields}
        fields = {name: stacked([getattr(joint, name) for joint in joints], ndim) for name, ndim in read.items()}
        return bind(first, fields, type_before_parametrizations(first))


def _clip(value: Tensor, bounds: Tensor) -> Tensor:
    return torch.clamp(value, bounds[..., 0], bounds[..., 1])


def _check_place(mech: Driven, name: str, actuator: Actuator) -> None:
    """Raise ValueError unless the mechanism has an input for the actuator."""
    if actuator.joint not in mech.joints:
        raise ValueError(f"actuator {name!r} drives {actuator.joint!r}; joints are {list(mech.joints)}")
    place = mech.input_layout.get(actuator.joint)
    if place is None:
        raise ValueError(f"actuator {name!r} drives {actuator.joint!r}, which has no input; allowed: {list(mech.input_layout)}")
    size = place.stop - place.start
    if not isinstance(mech.joints[actuator.joint], StandardJoint) or not 0 <= actuator.coordinate < size:
        raise ValueError(f"actuator {name!r} drives coordinate {actuator.coordinate} of {actuator.joint!r}, which has {size}")


def _three(name: str, label: str, value: Any) -> tuple[Any, Any, Any]:
    if isinstance(value, (tuple, list)):
        if len(value) != 3:
            raise ValueError(f"actuator {name!r}: {label} has {len(value)} numbers; allowed: three, constant, per length, per velocity")
        return value[0], value[1], value[2]
    return value, 0.0, 0.0


def _pair(name: str, label: str, value: Range | None) -> Range:
    if value is None:
        return -torch.inf, torch.inf
    if len(value) != 2:
        raise ValueError(f"actuator {name!r}: {label} is {value!r}; allowed: None or a pair (lower, upper)")
    return value

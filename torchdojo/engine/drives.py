"""Drives: actuators with activations, on joints, tendons and sites, and steps and rollouts that carry the activations.

A drive turns a control into a force by a law of elements/actuator_laws.py. Before each step, in this order, as MuJoCo does:

    control             that of now, or, with a delay, the one of some steps before
    length, velocity    of the transmission at z, times the gear
    a⁺                  the activation after the step, from the control
    force               clip(gain(l, v) · a + bias(l, v), forcerange); with `early`, a⁺ takes the place of a
    u, wrench           gear · force on the coordinate, along the tendon, or at the site, held over the step

So forces are explicit: they follow from the state and the activation at the beginning of the step. A drive whose force depends on
velocity, such as a muscle, needs small enough timesteps, as in MuJoCo's explicit integrators. Dampers belong into joints and tendons, which
are implicit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from torchdojo.elements.actuator_laws import DYNAMICS, FORCES, Dynamics, Force
from torchdojo.elements.tendon_paths import Frame
from torchdojo.engine.backend import Trajectory
from torchdojo.engine.delays import Delays, side_by_side
from torchdojo.engine.drive_inverse import InverseDrives
from torchdojo.engine.drive_linearization import LinearizedDrives
from torchdojo.engine.drive_tables import Table, has_tensors, numbers_of, ordered
from torchdojo.engine.drive_targets import check_frames, check_target, on_coordinate, resolved, transmission, warn_of_short_rod
from torchdojo.engine.driven import lower_drives
from torchdojo.engine.periods import added, check_repeat
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.native.driving import Periods
from torchdojo.parameters import as_tensor
from torchdojo.state.layout import TWIST_SIZE

__all__ = ["Drive", "DriveOutput", "DriveTrajectory", "Drives"]


@dataclass(frozen=True, eq=False)
class Drive:
    """An actuator with a law of its own; numbers, or tensors (...,) that may carry a graph.

    Args:
        joint, coordinate, tendon, site, crank, body: its target, exactly one: a coordinate of an actuated joint, an actuated tendon, a
            `td.Site` or the name of one in `mech.sites`, or the name of a body that holds on to what it touches, with a positive force.
        axes: "child" or "parent", for the turn of a joint with three rotations, instead of one of its coordinates: the axes of its frame in
            which the gear is, three numbers, a torque. Of a joint that floats in the world, the gear may have six numbers, a force in axes
            of the world at the anchor and a torque.
        reference: another site, which the force and the torque of `site` are relative to, in its frame; it gets the opposite ones.
        slider, rod: a site on whose z axis a slider is, and the length of the rod to it from the site `crank` [m].
        reach: gap below which contacts of `body` share its force, in equal parts along their normals [m]; of near ones at most 1 mm.
        gear: length per length of the target, and force per force; of a site six numbers, force and torque in its frame, or in that of
            its reference; of a joint with `axes` three or six.
        dynamics, dynamics_numbers: law of its activation, a name in `DYNAMICS`, and numbers of the law.
        gain, gain_numbers, bias, bias_numbers: laws of its force, names in `FORCES`, and numbers of the laws.
        ctrlrange, forcerange, actrange: (lower, upper) of control, of force before the gear, of activation; None: not clipped.
        early: whether the force has the activation after the step.
        length0: length at coordinate zero [m, rad]. lengths: (lower, upper) of the length [m], which muscles need.
        acc0: acceleration per force, which muscles without a peak force need.
        delay: time until a control arrives [s], rounded up to whole timesteps that the mechanism has when `td.Drives` is built.

    Raises:
        ValueError: nothing or several things to drive, axes of something else than a joint, a crank without its slider or rod, a rod that
            is not positive, a delay that is negative, unknown laws, too few numbers, a muscle without the range of its length.
    """

    joint: str | None = None
    coordinate: int = 0
    tendon: str | None = None
    site: Frame | str | None = None
    gear: Any = 1.0
    dynamics: str = "none"
    dynamics_numbers: Any = ()
    gain: str = "affine"
    gain_numbers: Any = (1.0, 0.0, 0.0)
    bias: str = "affine"
    bias_numbers: Any = (0.0, 0.0, 0.0)
    ctrlrange: tuple[Any, Any] | None = None
    forcerange: tuple[Any, Any] | None = None
    actrange: tuple[Any, Any] | None = None
    early: bool = False
    length0: Any = 0.0
    lengths: tuple[Any, Any] | None = None
    acc0: Any = 0.0
    reference: Frame | str | None = None
    crank: Frame | str | None = None
    slider: Frame | str | None = None
    rod: Any = None
    delay: float = 0.0
    body: str | None = None
    reach: Any = 1e-3
    axes: str | None = None

    def __post_init__(self) -> None:
        check_frames(self)
        for label, table, name in (("dynamics", DYNAMICS, self.dynamics), ("gain", FORCES, self.gain), ("bias", FORCES, self.bias)):
            if name not in table:
                raise ValueError(f"Drive {label}: got {name!r}; allowed: {', '.join(cast(Mapping[str, Any], table))}")
            numbers, law = numbers_of(getattr(self, f"{label}_numbers"), f"Drive {label}_numbers"), cast(Mapping[str, Any], table)[name]
            if numbers.shape[-1] < law.size:
                raise ValueError(f"Drive {label}_numbers: got {numbers.shape[-1]}; allowed: {law.size} or more numbers for {name!r}")
            if isinstance(law, Force) and law.needs_range and self.lengths is None:
                raise ValueError(f"Drive {label}={name!r}: got no lengths; give the range of the length, lengths=(lower, upper) [m]")
        if isinstance(self.delay, bool) or not isinstance(self.delay, int | float) or not 0 <= self.delay < math.inf:
            raise ValueError(f"Drive delay: got {self.delay!r}; allowed: a number of seconds from zero up")
        if self.lengths is not None:
            low, high = (as_tensor(value, "Drive lengths") for value in self.lengths)
            if not bool((low < high).all()):
                raise ValueError(f"Drive lengths: got {self.lengths}; allowed: a lower length below the upper one [m]")

    @classmethod
    def muscle(
        cls,
        *,
        lengths: tuple[Any, Any],
        force: Any = -1.0,
        scale: Any = 200.0,
        acc0: Any = 1.0,
        timeconst: tuple[Any, Any] = (0.01, 0.04),
        smooth: Any = 0.0,
        curve: tuple[Any, ...] = (0.75, 1.05, 0.5, 1.6, 1.5, 1.3, 1.2),
        **options: Any,
    ) -> Drive:
        """A muscle with MuJoCo's curves and their defaults: ``td.Drive.muscle(tendon="biceps", lengths=(0.2, 0.5), force=400.0)``.

        Args:
            lengths: range of the length [m]. force: peak force [N]; negative: scale / acc0. timeconst: of activation and deactivation [s].
            smooth: width of the switch between them. curve: operating range (2), lmin, lmax, vmax, fpmax, fvmax.
        """
        numbers = (*curve[:2], force, scale, *curve[2:])
        laws = {"dynamics": "muscle", "gain": "muscle", "bias": "muscle", "gain_numbers": numbers, "bias_numbers": numbers}
        common: dict[str, Any] = {"ctrlrange": (0.0, 1.0), "actrange": (0.0, 1.0), "dynamics_numbers": (*timeconst, smooth), "acc0": acc0}
        return cls(lengths=lengths, **{**common, **laws, **options})


class DriveOutput(NamedTuple):
    """A step, or a period: out as from `Mechanism.step`, the activations (..., na) after it, the forces (..., n) of its first step."""

    out: StepOutput
    act: Tensor
    force: Tensor


class DriveTrajectory(NamedTuple):
    """A rollout: path as from `Mechanism.rollout`, with controls as its u; activations (..., T+1, na); forces (..., T, n) [N, N·m].

    ``act[..., -1, :]`` and ``path.z[..., -1, :]`` continue the rollout.
    """

    path: Trajectory
    act: Tensor
    force: Tensor


class Drives(InverseDrives, LinearizedDrives):
    """The drives of a mechanism, by name: ``mech.drives = td.Drives(mech, {...})``, then ``mech.drives.rollout(z, ctrl)``.

    Controls (..., n) and forces are in the order of `names`, activations (..., na) in the order of `carried`: those of `activated`, then
    the controls that drives with a delay wait for, newest first, whose places are in `delays`. Nothing is hidden: a step takes the
    activations and returns them, and so does a rollout, whose periods hold their control over `repeat` steps.

    Args:
        mech: the mechanism.
        drives: name -> `td.Drive`; None: the actuator of this name in `mech.actuators`, so that one vector has the controls of all.

    Raises:
        ValueError: names that do not exist; joints or tendons without an input; delays with timesteps that differ between environments.
    """

    def __init__(self, mech: Any, drives: Mapping[str, Drive | None]) -> None:
        self.mech, self.drives = mech, dict(drives)
        self.names = tuple(self.drives)
        if not self.drives:
            raise ValueError("Drives: got none; give at least one, {'name': td.Drive(joint='hinge')}")
        self.activated = tuple(name for name, drive in self.drives.items() if drive is not None and self._dynamics(drive).stateful)
        shared = [name for name, drive in self.drives.items() if drive is None]
        there = () if mech.actuators is None else mech.actuators.names
        if shared and sorted(shared) != sorted(there):
            raise ValueError(f"Drives: got None for {shared}; allowed: None for all of mech.actuators, {list(there)}, or for none")
        self._shared = torch.tensor([self.names.index(name) for name in there if name in shared], dtype=torch.long)
        for name, drive in self.drives.items():
            if drive is not None:
                self.drives[name] = placed = resolved(mech, name, drive)
                check_target(mech, name, placed)
                warn_of_short_rod(mech, name, placed)
        every = list(enumerate(self.drives.values()))
        of_joints = {i: drive for i, drive in every if drive is not None and on_coordinate(drive)}
        of_tendons = {i: drive for i, drive in every if drive is not None and drive.tendon}
        rest = {i: drive for i, drive in enumerate(self.drives.values()) if i not in of_joints and i not in of_tendons}
        self._targets = of_joints, of_tendons, rest
        self._others = [i for i, drive in enumerate(self.drives.values()) if drive is None]
        self._stateful = [self.names.index(name) for name in self.activated]
        self._early = torch.tensor([cast(Drive, self.drives[name]).early for name in self.activated], dtype=torch.bool)
        # The force of a drive has its activation, the entry behind all controls, or its control.
        count = len(self.names)
        self._source = [count + self._stateful.index(i) if i in self._stateful else i for i in range(count)]
        self._delays = Delays.of(self.drives, self.activated, mech.timestep)
        constant = not any(has_tensors(drive) for drive in self.drives.values())
        self._kept: Table | None = Table.of(self.drives, self.activated) if constant else None
        self._lowered = lower_drives(self, constant)

    @staticmethod
    def _dynamics(drive: Drive) -> Dynamics:
        return DYNAMICS[drive.dynamics]

    @property
    def delays(self) -> dict[str, slice]:
        """Places of the controls on their way among the activations, by the names of drives with a delay."""
        return self._delays.places

    @property
    def carried(self) -> tuple[str, ...]:
        """A name for each activation."""
        return (*self.activated, *self._delays.names())

    @property
    def num_activations(self) -> int:
        return len(self.carried)

    def initial_activation(self, batch_shape: tuple[int, ...] = ()) -> Tensor:
        """Zeros (..., na)."""
        return torch.zeros(*batch_shape, self.num_activations, dtype=torch.float64)

    @property
    def _numbers(self) -> Table:
        """Numbers of all drives. They are kept where none is a tensor, which may change in place or carry a graph."""
        return Table.of(self.drives, self.activated) if self._kept is None else self._kept

    # -- laws ----------------------------------------------------------------------------------------------------------------------------

    def advance(self, ctrl: Tensor, act: Tensor, *, repeat: int = 1) -> Tensor:
        """The activations after a step (..., na), or after `repeat` steps under one control.

        They do not depend on the motion. Where a control or an activation of an environment is not finite, its activations stay.

        Args:
            ctrl: (..., n). act: (..., na), before the step.
        """
        self._check_size("ctrl", ctrl, len(self.names))
        self._check_size("act", act, self.num_activations)
        if not self.num_activations:
            return act
        table, good = self._numbers, _finite(ctrl, act)
        commands, activation = torch.where(good, ctrl, 0.0), torch.where(good, act, 0.0)
        columns = [(group, group.places, [self._stateful.index(place) for place in group.places]) for group in table.dynamics]
        for _ in range(check_repeat(repeat)):
            control = table.ctrl.clip(self._delays.arrived(commands, activation))
            parts = [
                (indices, DYNAMICS[group.law].advance(control[..., places], activation[..., indices], group.numbers, self.mech.timestep))
                for group, places, indices in columns
            ]
            after = [table.act.clip(ordered(parts))] if parts else []
            after += [self._delays.step(commands, activation)] if self.delays else []
            activation = side_by_side(*after)
        return torch.where(good, activation, act)

    def measure(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Lengths [m, rad] and velocities of the transmissions at z, (..., n). Drives of `mech.actuators` have zeros."""
        mech, table, parts = self.mech, self._numbers, list[tuple[list[int], tuple[Tensor, Tensor]]]()
        joints, tendons, others = self._targets
        if joints:
            places, (q, qd) = mech.coordinate_places(), mech.to_minimal(z)
            chosen = [places[drive.joint].start + drive.coordinate for drive in joints.values()]
            members, gear = list(joints), table.gear[..., list(joints)]
            parts.append((members, (table.length0[..., members] + gear * q[..., chosen], gear * qd[..., chosen])))
        if tendons:
            number = {name: i for i, name in enumerate(mech.tendons)}
            chosen, members = [number[cast(str, drive.tendon)] for drive in tendons.values()], list(tendons)
            gear = table.gear[..., members]
            parts.append((members, (gear * mech.tendon_lengths(z)[..., chosen], gear * mech.tendon_velocities(z)[..., chosen])))
        zero = z.new_zeros(z.shape[:-1])
        for i, drive in others.items():
            drive_transmission, velocity = (None, zero) if drive is None else transmission(mech, z, drive)
            length = zero if drive_transmission is None or drive_transmission.length is None else drive_transmission.length
            parts.append(([i], (length[..., None], velocity[..., None])))
        lengths, velocities = (ordered([(members, pair[k]) for members, pair in parts]) for k in (0, 1))
        return lengths, velocities

    def forces(self, ctrl: Tensor, act: Tensor, z: Tensor) -> Tensor:
        """Force of each drive before its gear [N, N·m], (..., n); zeros for drives of `mech.actuators`."""
        self._check_size("ctrl", ctrl, len(self.names))
        self._check_size("act", act, self.num_activations)
        table = self._numbers
        source = table.ctrl.clip(self._delays.arrived(ctrl, act))
        if self.activated:
            activations = act[..., : len(self.activated)]
            if bool(self._early.any()):
                activations = torch.where(self._early, self.advance(ctrl, act)[..., : len(self.activated)], activations)
            source = side_by_side(source, activations)[..., self._source]
        gain, bias = self._gain_and_bias(z)
        return table.force.clip(gain * source + bias)

    def _gain_and_bias(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Force of each drive per activation or control, and without, (..., n); zeros for drives of `mech.actuators`."""
        lengths, velocities = self.measure(z)
        parts: tuple[list[tuple[list[int], Tensor]], ...] = ([], [])
        for part, groups, name in zip(parts, (self._numbers.gain, self._numbers.bias), ("gain", "bias"), strict=True):
            for group in groups:
                motion = lengths[..., group.places], velocities[..., group.places]
                part.append((group.places, getattr(FORCES[group.law], name)(*motion, group.numbers, group.lengths, group.acc0)))
            if self._others:
                part.append((self._others, z.new_zeros(len(self._others))))
        gain, bias = (ordered(part) for part in parts)
        return gain, bias

    def inputs(self, ctrl: Tensor, act: Tensor, z: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """u (..., nu), wrench (..., 6 nb) of drives at sites, cranks and contacts or None, and the forces (..., n)."""
        mech, force = self.mech, self.forces(ctrl, act, z)
        batch = torch.broadcast_shapes(force.shape[:-1], ctrl.shape[:-1])
        u = force.new_zeros(*batch, mech.num_inputs)
        joints, tendons, others = self._targets
        if along := {**joints, **tendons}:
            places = mech.input_layout
            chosen = [places[d.joint].start + d.coordinate if d.joint else places[d.tendon].start for d in along.values()]
            members = list(along)
            pull = (self._numbers.gear[..., members] * force[..., members]).expand(*batch, len(members))
            u = u.index_add(-1, torch.tensor(chosen), pull)
        if len(self._shared):
            u = u + mech.actuators(ctrl[..., self._shared], z)
        wrench: Tensor | None = None
        for i, drive in others.items():
            if drive is None:
                continue
            one, bodies = force[..., i, None], list(mech.bodies)
            for body, push, turn in transmission(mech, z, drive)[0].wrenches:
                if body is not None:
                    start, size = TWIST_SIZE * bodies.index(body), TWIST_SIZE * len(bodies)
                    part = one * torch.cat(torch.broadcast_tensors(push, turn), dim=-1)
                    part = torch.nn.functional.pad(part, (start, size - start - TWIST_SIZE))
                    wrench = part if wrench is None else wrench + part
        wrench = None if wrench is None else wrench.expand(*batch, wrench.shape[-1])
        return u, wrench, force

    # -- steps ---------------------------------------------------------------------------------------------------------------------------

    def step(
        self,
        z: Tensor,
        ctrl: Tensor,
        act: Tensor | None = None,
        *,
        repeat: int = 1,
        warm_start: Tensor | None = None,
        wrench: Tensor | None = None,
    ) -> DriveOutput:
        """One step, or one period of `repeat` steps under one control, in one call of the kernel where it has the laws.

        An environment whose control or activation is not finite is flagged, and keeps its state and its activations.

        Args:
            z: (..., 13 nb). ctrl: (..., n). act: (..., na); None: zeros. repeat, warm_start: as in `Mechanism.step`.
            wrench: further external forces and torques, as in `Mechanism.step`, (..., 6 nb) [N, N·m].

        Raises:
            ValueError: wrong shapes; and as `Mechanism.step`.
        """
        act = self.initial_activation() if act is None else act
        self._check_size("ctrl", ctrl, len(self.names))
        self._check_size("act", act, self.num_activations)
        native = self._periods(z, ctrl, act, repeat, warm_start, wrench, single=True)
        if native is not None:
            after, activation, force, impulses, status, iterations, substeps, solution = native
            return DriveOutput(StepOutput(after, impulses, status, iterations, solution, substeps), activation, force)
        return self._step(z, ctrl, act, repeat, warm_start, wrench)

    def _step(self, z: Tensor, ctrl: Tensor, act: Tensor, repeat: int, warm_start: Tensor | None, wrench: Tensor | None) -> DriveOutput:
        """A period whose laws PyTorch takes between the steps."""
        total: StepOutput | None = None
        first: Tensor | None = None
        good = _finite(ctrl, act)
        # A law of NaN would pass NaN to gradients of other environments.
        control, activation = torch.where(good, ctrl, 0.0), torch.where(good, act, 0.0)
        for _ in range(check_repeat(repeat)):
            u, push, force = self.inputs(control, activation, z)
            u = torch.where(good, u, torch.nan)
            if wrench is not None or push is not None:
                push = wrench if push is None else push if wrench is None else push + wrench
            if not u.shape[-1] and push is not None:
                push = torch.where(good, push, torch.nan)
            out = self.mech.step(z, u, wrench=push, warm_start=warm_start)
            activation, z, warm_start = self.advance(control, activation), out.z, out.solution.detach()
            total = out if total is None else added(total, out)
            first = torch.where(good, force, torch.nan) if first is None else first
        act = torch.where(good, activation, act)
        return DriveOutput(cast(StepOutput, total), act.expand(*z.shape[:-1], self.num_activations), cast(Tensor, first))

    def _periods(
        self, z: Tensor, ctrl: Tensor, act: Tensor, repeat: int, warm_start: Tensor | None, wrench: Tensor | None, *, single: bool = False
    ) -> Periods | None:
        """The periods of controls (..., P, n), or the `single` one of (..., n), by the kernel; None where it cannot take them."""
        if self._lowered is None:
            return None

        def reference(z: Tensor, ctrl: Tensor, act: Tensor, wrench: Tensor | None) -> tuple[Tensor, ...]:
            warm, outs, start = warm_start, [], z
            for control in [ctrl] if single else ctrl.unbind(-2):
                outs.append(self._step(z, control, act, repeat, warm, wrench))
                z, act, warm = outs[-1].out.z, outs[-1].act, outs[-1].out.solution.detach()
            columns = [
                torch.broadcast_tensors(*values) for values in zip(*((o.out.z, o.act, o.force, o.out.impulses) for o in outs), strict=True)
            ]
            if single:
                return tuple(column[0] for column in columns)
            states, *others = columns
            return torch.stack([start.expand_as(states[0]), *states], dim=-2), *(torch.stack(column, dim=-2) for column in others)

        return self._lowered.periods(reference, (z, ctrl, act, wrench, warm_start), check_repeat(repeat), single)

    def rollout(
        self,
        z: Tensor,
        ctrl: Tensor | Callable[[Tensor, Tensor], Tensor],
        act: Tensor | None = None,
        *,
        steps: int | None = None,
        repeat: int = 1,
        warm_start: Tensor | None = None,
        wrench: Tensor | None = None,
    ) -> DriveTrajectory:
        """Many periods, each warm-started from the one before, as `Mechanism.rollout` with activations.

        Args:
            z: (..., 13 nb). ctrl: (..., T, n), or a policy (z, act) -> (..., n) with `steps`. act: (..., na); None: zeros.
            steps: T. repeat: steps of each period, which hold its control. warm_start, wrench: as in `Mechanism.rollout`.

        Raises:
            ValueError: wrong shapes, a policy without `steps`.
        """
        if callable(ctrl):
            if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
                raise ValueError(f"rollout: got a policy without steps, or steps={steps!r}; give steps=T, a whole number of 1 or more")
            policy = ctrl
        else:
            if not isinstance(ctrl, Tensor) or ctrl.ndim < 2 or not ctrl.shape[-2] or steps not in (None, ctrl.shape[-2]):
                got = tuple(ctrl.shape) if isinstance(ctrl, Tensor) else type(ctrl).__name__
                raise ValueError(f"ctrl: got shape {got} with steps={steps}; allowed: (..., T, {len(self.names)}), T of 1 or more")
            steps = ctrl.shape[-2]
        act = self.initial_activation() if act is None else act
        if isinstance(ctrl, Tensor):
            self._check_size("ctrl", ctrl, len(self.names))
            self._check_size("act", act, self.num_activations)
            native = self._periods(z, ctrl, act, repeat, warm_start, wrench)
            if native is not None:
                return _trajectory(native, ctrl, act)
        states, acts, controls, outs, forces = [z], [act], [], [], []
        for t in range(steps):
            control = policy(z, act) if callable(ctrl) else ctrl[..., t, :]
            out, act, force = self.step(z, control, act, repeat=repeat, warm_start=warm_start, wrench=wrench)
            z, warm_start = out.z, out.solution.detach()
            states.append(z)
            acts.append(act)
            controls.append(control)
            outs.append(out)
            forces.append(force)

        def stack(values: list[Tensor]) -> Tensor:
            return torch.stack([value.expand(*z.shape[:-1], value.shape[-1]) for value in values], dim=-2)

        status, iterations, substeps = (
            torch.stack([getattr(out, name) for out in outs], -1) for name in ("status", "iterations", "substeps")
        )
        path = Trajectory(
            stack(states),
            stack(controls),
            stack([out.impulses for out in outs]),
            status,
            iterations,
            substeps,
            stack([outs[-1].solution.detach()]),
        )
        return DriveTrajectory(path, stack(acts), stack(forces))

    def _check_size(self, name: str, value: Tensor, size: int) -> None:
        if not isinstance(value, Tensor) or value.ndim < 1 or value.shape[-1] != size:
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            names = self.names if name == "ctrl" else self.carried
            raise ValueError(f"{name}: got {got}; allowed: a tensor (..., {size}), one number for each of {list(names)}")


def _trajectory(native: Periods, ctrl: Tensor, act: Tensor) -> DriveTrajectory:
    """The rollout of periods by the kernel."""
    batch = native.z.shape[:-2]
    acts = torch.cat((act.expand(*batch, act.shape[-1]).unsqueeze(-2), native.act), dim=-2)
    controls, solution = ctrl.expand(*batch, *ctrl.shape[-2:]), native.solution.unsqueeze(-2)
    path = Trajectory(native.z, controls, native.impulses, native.status, native.iterations, native.substeps, solution)
    return DriveTrajectory(path, acts, native.force)


def _finite(ctrl: Tensor, act: Tensor) -> Tensor:
    """Whether all controls and activations of an environment are finite, (..., 1)."""
    return torch.isfinite(ctrl).all(-1, keepdim=True) & torch.isfinite(act).all(-1, keepdim=True)

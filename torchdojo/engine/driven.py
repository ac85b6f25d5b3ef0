"""Drives whose laws the kernel takes inside its steps: their choice and their table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.actuator_laws import DYNAMICS, FORCES
from torchdojo.elements.transmissions import JointFrame
from torchdojo.engine.drive_tables import numbers_of
from torchdojo.engine.drive_targets import carrier_of, frames_of, joint_frames, pushes
from torchdojo.engine.requests import request_of
from torchdojo.native import driving
from torchdojo.native.drive_kinds import DriveDynamics, DriveTarget
from torchdojo.native.step import differentiates
from torchdojo.state.layout import TWIST_SIZE

__all__ = ["Lowered", "lower_drives"]

#: Laws that the kernel has. A name of the tables that a user gave another law stays in PyTorch.
_DYNAMICS = dict(zip(DriveDynamics, (DYNAMICS[law.name.lower()] for law in DriveDynamics), strict=True))
_FORCES = {name: FORCES[name] for name in ("affine", "muscle")}
_INFINITE = -torch.inf, torch.inf


class Owner(Protocol):
    """`Drives`: its mechanism, its drives by name, the names of those with an activation, and the places of delayed controls."""

    mech: Any
    activated: tuple[str, ...]

    @property
    def delays(self) -> Mapping[str, slice]: ...

    @property
    def num_activations(self) -> int: ...

    @property
    def drives(self) -> Mapping[str, Any]: ...


def _curve(drive: Any, part: str) -> Tensor:
    """Numbers of the gain or the bias: three, or the numbers of a muscle's curves."""
    numbers = numbers_of(getattr(drive, f"{part}_numbers"))
    if getattr(drive, part) != "muscle":
        return numbers[..., :3]
    return driving.muscle_numbers(part, numbers, numbers_of(cast(Any, drive.lengths)), numbers_of(drive.acc0))


def _frame_numbers(drive: Any) -> tuple[DriveTarget, dict[str, Tensor]]:
    """Target and numbers of a drive on sites or a crank, in the axes of the bodies (elements/drive_frames.hpp)."""
    gear, own_frame, other_frame = numbers_of(drive.gear), drive.site or drive.crank, drive.reference or drive.slider
    if drive.crank is not None:
        axis = quat.rotate(other_frame.orientation, torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))
        target, numbers = DriveTarget.CRANK, {"gear": gear[..., None], "push": axis, "rod": numbers_of(drive.rod)[..., None]}
    else:
        frame = own_frame if other_frame is None else other_frame
        push, turn = (quat.rotate(frame.orientation, part) for part in gear.split(3, dim=-1))
        if other_frame is None:
            return DriveTarget.SITE, {"push": push, "turn": turn + quat.cross(own_frame.position.expand_as(push), push)}
        offset = quat.multiply(own_frame.orientation, quat.conjugate(other_frame.orientation))
        target, numbers = DriveTarget.SITES, {"push": push, "turn": turn, "offset": offset}
    return target, numbers | {"arm": own_frame.position, "other_arm": other_frame.position}


def _joint_numbers(drive: Any, parent: JointFrame, child: JointFrame) -> tuple[DriveTarget, JointFrame, JointFrame, dict[str, Tensor]]:
    """Target, frame, reference and numbers of a drive on the turn of a joint, or of a body that floats, in the axes of the bodies."""
    gear, in_child = numbers_of(drive.gear), drive.axes == "child"
    force, torque = gear[..., :-3], gear[..., -3:]
    if gear.shape[-1] == 6:
        target, frame, reference = DriveTarget.FLOATING, child, parent
        numbers = {"push": force, "own_turn" if in_child else "turn": torque}
    else:
        target, frame, reference = (DriveTarget.SITES, parent, child) if in_child else (DriveTarget.SITES, child, parent)
        numbers = {"turn": -torque if in_child else quat.rotate(parent.orientation, torque)}
    offset = quat.multiply(frame.orientation, quat.conjugate(reference.orientation))
    return target, frame, reference, numbers | {"offset": offset, "arm": frame.position, "other_arm": reference.position}


class Lowered:
    """The drives of a mechanism as the kernel takes them.

    constant: whether no number is a tensor, which may change in place. Then the table is kept, as long as sites stay where they are.
    """

    def __init__(self, owner: Owner, constant: bool) -> None:
        self._owner, self._program, self._constant = owner, cast(Any, None), constant
        self._table: driving.DriveTable | None = None
        self._frames = [frame for drive in owner.drives.values() for frame in frames_of(drive)]
        self._turning = [drive for drive in owner.drives.values() if drive.joint is not None and pushes(drive)]
        self._kept: list[Tensor] = []

    def table(self) -> driving.DriveTable | None:
        """The table; None where numbers require grad."""
        program, places = self._owner.mech.backends.program, self._places()
        if any(place.requires_grad for place in places):
            return None
        stays = program is self._program and self._constant and all(map(torch.equal, places, self._kept))
        if self._table is None or not stays:
            self._program, self._table = program, self._lower(program)
            self._kept = [place.detach().clone() for place in places]
        return self._table

    def _places(self) -> list[Tensor]:
        """Positions and orientations of all frames, those of joints as they are now."""
        frames: list[Any] = list(self._frames)
        for drive in self._turning:
            frames.extend(joint_frames(self._owner.mech, drive))
        return [place for frame in frames for place in (frame.position, frame.orientation)]

    def _lower(self, program: Any) -> driving.DriveTable | None:
        rows, numbers = [], []
        joints = {id(joint): i for i, joint in enumerate(joint for group in program.joint_groups for joint in group.members)}
        tendons = {id(tendon): i for i, tendon in enumerate(tendon for group in program.tendon_groups for tendon in group.members)}
        mech, activated, delays = self._owner.mech, self._owner.activated, self._owner.delays
        layout, bodies = mech.input_layout, list(mech.bodies)
        for name, drive in self._owner.drives.items():
            assert drive is not None
            drive_numbers: dict[str, Tensor] = {}
            values = dict.fromkeys(("body", "other", "carrier", "joint", "coordinate", "tendon", "input"), -1)
            numbered = {None: len(bodies), **{body: i for i, body in enumerate(bodies)}}  # the world is the last
            if drive.joint is not None and pushes(drive):
                target, frame, reference, drive_numbers = _joint_numbers(drive, *joint_frames(mech, drive))
                values |= {"target": target, "body": numbered[frame.body], "other": numbered[reference.body], "carrier": numbered[None]}
            elif frames_of(drive):
                target, drive_numbers = _frame_numbers(drive)
                body_name, other_frame = (drive.site or drive.crank).body, drive.reference or drive.slider
                values |= {"target": target, "body": numbered[body_name]}
                if other_frame is not None:
                    carrier = carrier_of(mech, drive) if drive.site is not None else None
                    values |= {"other": numbered[other_frame.body], "carrier": numbered[carrier]}
            elif drive.body is not None:
                values |= {"target": DriveTarget.BODY, "body": bodies.index(drive.body)}
                drive_numbers |= {"gear": numbers_of(drive.gear)[..., None], "reach": numbers_of(drive.reach)[..., None]}
            elif drive.tendon is not None:
                values |= {"target": DriveTarget.TENDON, "tendon": tendons[id(mech.tendons[drive.tendon])]}
                values |= {"input": layout[drive.tendon].start}
                drive_numbers |= {"gear": numbers_of(drive.gear)[..., None]}
            else:
                place = layout[drive.joint].start + drive.coordinate
                values |= {"target": DriveTarget.JOINT, "joint": joints[id(mech.joints[drive.joint])]}
                values |= {"coordinate": drive.coordinate, "input": place}
                drive_numbers |= {"gear": numbers_of(drive.gear)[..., None], "length0": numbers_of(drive.length0)[..., None]}
            dynamics = next(law for law, built_in in _DYNAMICS.items() if built_in is DYNAMICS[drive.dynamics])
            values |= {
                "activation": activated.index(name) if name in activated else -1,
                "delay": delays[name].start if name in delays else -1,
                "steps": delays[name].stop - delays[name].start if name in delays else 0,
                "dynamics": int(dynamics),
                "muscle_gain": drive.gain == "muscle",
                "muscle_bias": drive.bias == "muscle",
                "early": int(drive.early),
            }
            drive_numbers |= {
                "dynamics": numbers_of(drive.dynamics_numbers),
                **{part: _curve(drive, part) for part in ("gain", "bias")},
            }
            drive_numbers |= {key: numbers_of(getattr(drive, key) or _INFINITE) for key in ("ctrlrange", "forcerange", "actrange")}
            if any(value.requires_grad for value in drive_numbers.values()):
                return None
            rows.append(values)
            numbers.append(drive_numbers)
        return driving.drive_table(rows, numbers, self._owner.num_activations)

    def periods(self, reference: driving.Reference, given: driving.Given, repeat: int, single: bool) -> driving.Periods | None:
        """The period of controls (..., n), or the periods of (..., P, n); None where PyTorch takes the laws between the steps."""
        mech, (z, ctrl, act, wrench, warm) = self._owner.mech, given
        for tensor in (z, ctrl, act, wrench):
            if tensor is not None and not (isinstance(tensor, Tensor) and tensor.dtype == torch.float64 and not tensor.is_cuda):
                return None
        backends = mech.backends
        _, request = request_of(backends.system, mech.options, z, None, repeat=repeat)
        parameters = backends.driving(request)
        table = None if parameters is None else self.table()
        if parameters is None or table is None or (torch.is_grad_enabled() and not differentiates(request)):
            return None
        mech.check_state(z)
        if wrench is not None:
            mech.check_tensor("wrench", wrench, TWIST_SIZE * mech.num_bodies)
        if warm is not None:
            mech.check_tensor("warm_start", warm, mech.layout.num_unknowns)
            warm = warm.detach()
        return driving.periods(backends.program, request, parameters, table, reference, (z, ctrl, act, wrench, warm), single)


def lower_drives(owner: Owner, constant: bool) -> Lowered | None:
    """The drives for the kernel. None where it lacks one of them, as drives of `mech.actuators` or with a user's own law."""
    for drive in owner.drives.values():
        if drive is None:
            return None
        if not any(built_in is DYNAMICS[drive.dynamics] for built_in in _DYNAMICS.values()):
            return None
        if any(FORCES[name] is not _FORCES.get(name) for name in (drive.gain, drive.bias)):
            return None
    return Lowered(owner, constant)

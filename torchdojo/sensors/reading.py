"""One reading: a state, the step from it, and what kinds of sensors share of both, computed once when the first of them asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.utils.parametrize import type_before_parametrizations

from torchdojo import quaternion as quat
from torchdojo.elements.element import Motion, Pose, Twist, previous_pose
from torchdojo.elements.joints import Joint, StandardJoint
from torchdojo.engine.periods import check_repeat
from torchdojo.parameters import bind, stacked
from torchdojo.sensors.site import Site
from torchdojo.state.layout import split_state, with_world
from torchdojo.structure import Structure

__all__ = ["Frames", "Given", "Reading", "subtree_rows"]

Places = Sequence[tuple[str, int]]  # of joints and their coordinates


class Given(NamedTuple):
    """The data that a reading may have beside the state. The fields are as in `Mechanism.read_sensors`."""

    out: Any = None
    u: Tensor | None = None
    ctrl: Tensor | None = None
    wrench: Tensor | None = None
    time: Any = None
    repeat: int = 1


class Frames(NamedTuple):
    """Frames of sites: bodies (n,) with the world behind the last, places and orientations in the world (..., n, ·), levers from the
    centers of mass, world axes (..., n, 3) [m]."""

    body: list[int]
    pose: Pose
    lever: Tensor


class Reading:
    """A state z (..., 13 nb) of a mechanism, and the step or period that starts there.

    Attributes:
        pose, twist: of the bodies and, behind them, of the world, (..., nb + 1, ·). Angular velocities are in the axes of the bodies.
    """

    def __init__(
        self,
        structure: Structure,
        sites: dict[str, Site],
        magnetic: Tensor,
        z: Tensor,
        given: Given,
        measure: Callable[[Reading, Places], tuple[Tensor, Tensor] | None] | None = None,
    ) -> None:
        structure.check_state(z)
        self._quick = measure
        self.structure, self.sites, self.magnetic, self.given = structure, sites, magnetic, given
        self.period = check_repeat(given.repeat) * structure.timestep
        self.impulses: Tensor | None = None
        self.after: Tensor | None = None
        out, self.over_time = given.out, hasattr(given.out, "u")
        if out is not None:
            after, impulses = getattr(out, "z", None), getattr(out, "impulses", None)
            if not isinstance(after, Tensor) or not isinstance(impulses, Tensor):
                raise TypeError(f"read_sensors: got out={type(out).__name__}; allowed: what step or rollout returned, or None")
            if self.over_time:  # batch dimensions of parameters stand before the time: move the time in front of all
                if z.shape[:-2] != after.shape[:-2] or z.ndim < 2 or z.shape[-2] not in (after.shape[-2], after.shape[-2] - 1):
                    raise ValueError(
                        f"read_sensors: got z {tuple(z.shape)} for a trajectory {tuple(after.shape)}; allowed: the states before its "
                        "steps, path.z[..., :-1, :]"
                    )
                z = z[..., : after.shape[-2] - 1, :].movedim(-2, 0)
                after, impulses = after[..., 1:, :].movedim(-2, 0), impulses.movedim(-2, 0)
                moved: dict[str, Any] = {
                    key: value.movedim(-2, 0) for key in ("u", "ctrl", "wrench") if isinstance(value := getattr(given, key), Tensor)
                }
                self.given = given._replace(**moved)
            elif after.shape[-1] != z.shape[-1]:
                raise ValueError(f"read_sensors: got out.z of shape {tuple(after.shape)}; allowed: the step from z, (..., {z.shape[-1]})")
            self.after, self.impulses = after.double(), impulses.double()
        self.z = z
        self._joints: dict[str, tuple[Tensor, Tensor]] = {}

    @cached_property
    def number(self) -> dict[str | None, int]:
        return {name: i for i, name in enumerate([*self.structure.bodies, None])}

    @cached_property
    def pose(self) -> Pose:
        return with_world(split_state(self.z)[0])

    @cached_property
    def twist(self) -> Twist:
        twist = split_state(self.z)[1]
        zeros = torch.zeros_like(twist.v[..., :1, :])
        return Twist(torch.cat((twist.v, zeros), -2), torch.cat((twist.omega, zeros), -2))

    # -- frames --------------------------------------------------------------------------------------------------------------------------

    def site(self, given: str | Site | None) -> Site:
        """A site by name, or as given; None is the frame of the world."""
        if isinstance(given, Site) or given is None:
            site = given or Site(None)
        elif given in self.sites:
            site = self.sites[given]
        else:
            raise ValueError(f"sensors: got the site {given!r}; sites are {list(self.sites)}; mech.sites[{given!r}] = td.Site(...) adds it")
        if site.body not in self.number:
            raise ValueError(f"sensors: a site is on {site.body!r}; bodies are {list(self.structure.bodies)}, and the world is None")
        return site

    def frames(self, given: Sequence[str | Site | None]) -> Frames:
        """Frames of sites, in this order."""
        sites = [self.site(one) for one in given]
        body = [self.number[site.body] for site in sites]
        position, orientation = (torch.stack([getattr(site, key) for site in sites]).to(self.z) for key in ("position", "orientation"))
        q = self.pose.q[..., body, :]
        lever = quat.rotate(q, position)
        return Frames(body, Pose(self.pose.x[..., body, :] + lever, quat.multiply(q, orientation)), lever)

    @cached_property
    def spin(self) -> Tensor:
        """Angular velocities, world axes [rad/s], (..., nb + 1, 3)."""
        return quat.rotate(self.pose.q, self.twist.omega)

    def velocity(self, frames: Frames) -> tuple[Tensor, Tensor]:
        """Velocity [m/s] and angular velocity [rad/s] of frames, world axes, (..., n, 3)."""
        spin = self.spin[..., frames.body, :]
        return self.twist.v[..., frames.body, :] + quat.cross(spin, frames.lever), spin

    @cached_property
    def body_acceleration(self) -> tuple[Tensor, Tensor]:
        """(v⁺ − v)/h [m/s²], world axes, and (ω⁺ − ω)/h [rad/s²], axes of the bodies, (..., nb + 1, 3)."""
        assert self.after is not None
        after, h = split_state(self.after).twist, self.period[..., None, None]
        pairs = ((after.v, self.twist.v), (after.omega, self.twist.omega))
        values = [(b - a[..., :-1, :]) / h for b, a in pairs]
        linear, angular = (torch.cat((value, torch.zeros_like(value[..., :1, :])), -2) for value in values)
        return linear, angular

    def acceleration(self, frames: Frames) -> tuple[Tensor, Tensor]:
        """Acceleration less gravity [m/s²] and angular acceleration [rad/s²] of frames, world axes, (..., n, 3)."""
        linear, angular = self.body_acceleration
        spin, turning = self.spin[..., frames.body, :], quat.rotate(self.pose.q, angular)[..., frames.body, :]
        swing = quat.cross(turning, frames.lever) + quat.cross(spin, quat.cross(spin, frames.lever))
        return linear[..., frames.body, :] + swing - self.structure.gravity[..., None, :], turning

    # -- bodies --------------------------------------------------------------------------------------------------------------------------

    @cached_property
    def masses(self) -> tuple[Tensor, Tensor]:
        """Masses (..., nb) [kg] and inertias (..., nb, 3, 3) [kg·m²]."""
        bodies = self.structure.named_bodies().values()
        return stacked([body.mass for body in bodies], 0), stacked([body.inertia for body in bodies], 2)

    @cached_property
    def momenta(self) -> tuple[Tensor, Tensor]:
        """Momentum m v [N·s] and angular momentum J ω about the own center of mass [N·m·s], world axes, (..., nb, 3)."""
        mass, inertia = self.masses
        spin = quat.rotate(self.pose.q[..., :-1, :], (inertia @ self.twist.omega[..., :-1, :, None]).squeeze(-1))
        return mass[..., None] * self.twist.v[..., :-1, :], spin

    def subtrees(self, bodies: Sequence[str | None]) -> Tensor:
        """Which bodies hang on each of these in the spanning tree, (n, nb); None: all."""
        return torch.tensor(subtree_rows(self.structure, bodies), dtype=self.z.dtype, device=self.z.device)

    @cached_property
    def carried(self) -> tuple[Tensor, Tensor]:
        """Force [N] and torque about the origin of the world [N·m], (..., nb, 3), that joints of the tree put on each body.

        They are the change of momentum less gravity, contacts and the given wrench (Newton and Euler), at the configuration z.
        """
        mass, inertia = self.masses
        q, x, omega = self.pose.q[..., :-1, :], self.pose.x[..., :-1, :], self.twist.omega[..., :-1, :]
        linear, angular = (value[..., :-1, :] for value in self.body_acceleration)
        force = mass[..., None] * (linear - self.structure.gravity[..., None, :])
        turning, spun = ((inertia @ value[..., None]).squeeze(-1) for value in (angular, omega))
        torque = quat.rotate(q, turning + quat.cross(omega, spun)) + quat.cross(x, force)
        if self.given.wrench is not None:
            outer = self.given.wrench.unflatten(-1, (-1, 6))
            force = force - outer[..., :3]
            torque = torque - quat.rotate(q, outer[..., 3:]) - quat.cross(x, outer[..., :3])
        for body, sign, place, push in self.contact_forces():
            chosen = (torch.arange(mass.shape[-1], device=self.z.device)[:, None] == body).to(self.z)  # (nb, contacts)
            force = force - sign * chosen @ push
            torque = torque - sign * chosen @ quat.cross(place, push)
        return force, torque

    @cached_property
    def report(self) -> Any:
        """The contacts after the step, `ContactReport`."""
        assert self.after is not None and self.impulses is not None
        return cast(Any, self.structure).contact_report(self.after, self.impulses, self.given.repeat)  # of the mechanism

    def contact_forces(self) -> list[tuple[Tensor, float, Tensor, Tensor]]:
        """Both sides of contacts: number of the body (contacts,), sign, place [m] and force [N] (..., contacts, 3)."""
        if not len(self.structure.contacts):
            return []
        report, last = self.report, self.number[None]
        ends = [torch.tensor([self.number.get(pair[side], last) for pair in report.pairs], device=self.z.device) for side in (0, 1)]
        facing = report.points - report.gaps[..., None] * report.normals
        return [(ends[0], 1.0, report.points, report.forces), (ends[1], -1.0, facing, report.forces)]

    # -- joints --------------------------------------------------------------------------------------------------------------------------

    def joint(self, sensor: Any) -> Joint:
        """The joint of a sensor, with its coordinate checked."""
        joints = self.structure.named_joints()
        if sensor.joint not in joints:
            raise ValueError(f"sensors: got the joint {sensor.joint!r}; joints are {list(joints)}")
        joint = joints[cast(str, sensor.joint)]
        if not 0 <= sensor.coordinate < joint.num_coordinates:
            raise ValueError(f"sensors: got coordinate {sensor.coordinate} of {sensor.joint!r}, which has {joint.num_coordinates}")
        return joint

    def coordinates(self, places: Places) -> tuple[Tensor, Tensor]:
        """Coordinates [m, rad] and their velocities at the configuration z [m/s, rad/s], (..., n), of (joint, coordinate) pairs.

        Velocities follow from the velocities of the bodies (`StandardJoint.velocity`); a joint of one's own has its mean rate.
        """
        measured = None if self._quick is None else self._quick(self, places)
        if measured is not None:
            return measured
        missing = [name for name in dict.fromkeys(name for name, _ in places) if name not in self._joints]
        kinds: dict[object, list[str]] = {}
        for name in missing:
            kinds.setdefault(self.structure.named_joints()[name].kind(), []).append(name)
        for names in kinds.values():
            self._measure(names)
        pairs = [(self._joints[name][0][..., i], self._joints[name][1][..., i]) for name, i in places]
        q, qd = (torch.stack(torch.broadcast_tensors(*column), dim=-1) for column in zip(*pairs, strict=True))
        return q, qd

    def _measure(self, names: list[str]) -> None:
        joints = [self.structure.named_joints()[name] for name in names]
        first, h = joints[0], self.structure.timestep[..., None, None]
        ends = [[self.number[joint.body_names[side]] for joint in joints] for side in (0, 1)]
        poses = [Pose(self.pose.x[..., end, :], self.pose.q[..., end, :]) for end in ends]
        twists = [Twist(self.twist.v[..., end, :], self.twist.omega[..., end, :]) for end in ends]
        fields = {name: stacked([getattr(joint, name) for joint in joints], ndim) for name, ndim in first.stacked_fields.items()}
        bound: Any = bind(first, fields, type_before_parametrizations(first))
        q = bound.coordinates(*poses)
        if isinstance(first, StandardJoint):
            motions = [Motion(pose, twist, pose, twist, h) for pose, twist in zip(poses, twists, strict=True)]
            qd = bound.velocity(*motions)
        else:
            qd = bound.rate([previous_pose(*pair, h) for pair in zip(poses, twists, strict=True)], poses, h)
        self._joints |= dict(zip(names, zip(q.unbind(-2), qd.unbind(-2), strict=True), strict=True))

    def impulse(self, key: str) -> Tensor | None:
        """Mean force of an element over the step, (..., k), from its impulses; None where there is no such element."""
        assert self.impulses is not None
        place = self.structure.impulse_layout.get(key)
        return None if place is None else self.impulses[..., place] / self.period[..., None]

    def zeros(self, *size: int) -> Tensor:
        return self.z.new_zeros((*self.z.shape[:-1], *size))


def subtree_rows(structure: Structure, bodies: Sequence[str | None]) -> list[list[int]]:
    """For each body, 1 for the bodies that hang on it in the spanning tree, else 0; None: all."""
    for body in bodies:
        if body is not None and body not in structure.bodies:
            raise ValueError(f"sensors: got the body {body!r}; bodies are {list(structure.bodies)}, and None has all")
    above: dict[str, set[str | None]] = {}
    for entry in structure.tree_order():
        parent, child = entry.joint.body_names
        above[cast(str, child)] = {child, None, *above.get(cast(str, parent), ())}
    return [[int(body in above[name]) for name in structure.bodies] for body in bodies]

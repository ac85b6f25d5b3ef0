"""Forces that act on bodies by themselves: drag of a medium, wind, and the compensation of gravity.

They are a function of the state, for ``mech.rollout(z, u, wrench=mech.passive)`` and ``mech.step(z, u, wrench=mech.passive(z))``: explicit
forces, which follow from the velocities before a step and are held over it. The drag is that of MuJoCo's inertia model (documentation,
chapter Computation, "Passive forces", fluid). A part counts as the box of uniform density that has its mass m and principal moments I.
Half its edges are

    rᵢ = sqrt(3/(2m) (Iⱼ + Iₖ − Iᵢ)),

and with the mean half-edge r, density ρ, viscosity β, and velocities v, ω relative to the medium along the principal axes, the force at
the center of mass and the torque are

    force_i  = −2 ρ rⱼ rₖ |vᵢ| vᵢ − 6 π β r vᵢ
    torque_i = −½ ρ rᵢ (rⱼ⁴ + rₖ⁴) |ωᵢ| ωᵢ − 8 π β r³ ωᵢ.

Ellipsoids take the place of the boxes of their bodies, or parts (``fluid_ellipsoids.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.bodies import Body
from torchdojo.elements.tendon_paths import Frame
from torchdojo.engine.fluid_ellipsoids import FluidEllipsoid, added_forces, drag_forces, ellipsoid_numbers, lift_forces, stacked
from torchdojo.parameters import as_tensor, require
from torchdojo.precision import in_float64
from torchdojo.state.layout import TWIST_SIZE, split_state
from torchdojo.structure import Structure

__all__ = ["Boxes", "PassiveForces", "PassivePart", "box_drag", "boxes"]


class Boxes(NamedTuple):
    """The box of every body. axes: (..., nb, 3, 3) principal axes in columns, body frame. half: (..., nb, 3) half edges [m]."""

    axes: Tensor
    half: Tensor


def boxes(structure: Structure) -> Boxes:
    """The boxes whose drag is that of the bodies."""
    mass = torch.stack([cast(Body, body).mass for body in structure.bodies.values()], dim=-1)[..., None]
    inertia = torch.stack([cast(Body, body).inertia for body in structure.bodies.values()], dim=-3)
    fixed = inertia.detach()
    diagonal = torch.diag_embed(fixed.diagonal(dim1=-2, dim2=-1))
    along_axes = (fixed - diagonal).abs().amax((-2, -1), keepdim=True) <= 1e-12 * fixed.abs().amax((-2, -1), keepdim=True)
    axes = torch.where(along_axes, torch.eye(3).to(fixed), torch.linalg.eigh(fixed)[1])
    moments = (axes.mT @ inertia @ axes).diagonal(dim1=-2, dim2=-1)
    return Boxes(axes, _half_edges(mass, moments))


def _half_edges(mass: Tensor, moments: Tensor) -> Tensor:
    return torch.sqrt(1.5 / mass * (moments.sum(-1, keepdim=True) - 2 * moments).clamp_min(0.0))


def box_drag(v: Tensor, w: Tensor, half: Tensor, density: Any, viscosity: Any) -> tuple[Tensor, Tensor]:
    """Force [N] and torque [N·m] of a medium on boxes (..., 3), along their axes.

    v, w: (..., 3) velocity of the center [m/s] and angular velocity [rad/s] along the axes, relative to the medium. half: (..., 3) half
    edges [m]. density [kg/m³]. viscosity [Pa·s].
    """
    mean, others = half.mean(-1, keepdim=True), (half.roll(1, -1), half.roll(2, -1))
    force = -2 * density * others[0] * others[1] * v.abs() * v - 6 * math.pi * viscosity * mean * v
    torque = -0.5 * density * half * (others[0] ** 4 + others[1] ** 4) * w.abs() * w - 8 * math.pi * viscosity * mean**3 * w
    return force, torque


@dataclass(frozen=True, eq=False)
class PassivePart:
    """A part of a body with a mass of its own: a link that was merged with others into one body, say.

    Args:
        frame: its center of mass and principal axes, a `td.Site`.
        mass: [kg]. moments: (3,) principal moments of inertia [kg·m²].
        gravity_compensation: the share of its weight that is carried, 1 for all of it.
        ellipsoids: what feels the medium in place of the box of its mass and moments.

    Raises:
        ValueError: a mass or moments that are not positive, a frame without a body, ellipsoids of another body.
    """

    frame: Frame
    mass: Any
    moments: Any
    gravity_compensation: Any = 0.0
    ellipsoids: Sequence[FluidEllipsoid] = ()

    def __post_init__(self) -> None:
        for name, value in (("mass", self.mass), ("moments", self.moments)):
            number = as_tensor(value, f"PassivePart {name}")
            require(number > 0, f"PassivePart {name}", number, "positive numbers")
        if self.frame.body is None:
            raise ValueError("PassivePart: got a frame in the world; allowed: a td.Site of a body")
        others = sorted({str(one.frame.body) for one in self.ellipsoids} - {self.frame.body})
        if others:
            raise ValueError(f"PassivePart ellipsoids: got frames on {others}; allowed: {self.frame.body!r}, the body of the part")


def _share(value: Any) -> Tensor:
    return as_tensor(value, "gravity_compensation")


class _Frames(NamedTuple):
    """Places of n bodies, parts or ellipsoids.

    rows: (n,) numbers of their bodies; None: all. place: (n, 3) in the bodies [m]; None: centers of mass. axes: (..., n, 3, 3) columns.
    """

    rows: Tensor | None
    place: Tensor | None
    axes: Tensor


Law = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # velocity and angular velocity -> force and torque, (..., n, 3) along the axes


class PassiveForces:
    """Drag, wind and compensation of gravity on the bodies of a mechanism: a function z -> wrench (..., 6 nb) [N, N·m].

    Files in MJCF with a medium or ``gravcomp`` give the mechanism one, `mech.passive`. Numbers may be tensors that carry a graph.

    Args:
        mech: the mechanism.
        density: of the medium [kg/m³]; water has 1000, air 1.2. viscosity: [Pa·s]; water has 9e-4, air 1.8e-5.
        wind: (..., 3) velocity of the medium [m/s], world frame.
        gravity_compensation: body -> the share of its weight that is carried. Without `parts`.
        parts: of the bodies, each with its own mass; None: every body is one.
        ellipsoids: what feels the medium in place of the boxes of their bodies. Without `parts`.

    Raises:
        ValueError: unknown bodies; a density or viscosity below zero; both `parts` and what parts have themselves.
    """

    def __init__(
        self,
        mech: Structure,
        *,
        density: Any = 0.0,
        viscosity: Any = 0.0,
        wind: Any = (0.0, 0.0, 0.0),
        gravity_compensation: Mapping[str, Any] | None = None,
        parts: Sequence[PassivePart] | None = None,
        ellipsoids: Sequence[FluidEllipsoid] = (),
    ) -> None:
        self.mech, self.parts = mech, None if parts is None else tuple(parts)
        medium = {"density": density, "viscosity": viscosity, "wind": wind}
        self.density, self.viscosity, self.wind = (as_tensor(value, f"PassiveForces {name}") for name, value in medium.items())
        for name, value in (("density", self.density), ("viscosity", self.viscosity)):
            require(value >= 0, f"PassiveForces {name}", value, "numbers of zero or more")
        if self.wind.shape[-1:] != (3,):
            raise ValueError(f"PassiveForces wind: got shape {tuple(self.wind.shape)}; allowed: (..., 3) [m/s]")
        self.gravity_compensation = dict(gravity_compensation or {})
        for name, entries in (("gravity_compensation", self.gravity_compensation), ("ellipsoids", ellipsoids)):
            if entries and parts is not None:
                raise ValueError(f"PassiveForces: got {name}= and parts=; give it to the parts")
        self.ellipsoids = (*ellipsoids, *(one for part in self.parts or () for one in part.ellipsoids))
        frames = [*(part.frame for part in self.parts or ()), *(one.frame for one in self.ellipsoids)]
        named = [*self.gravity_compensation, *(str(frame.body) for frame in frames)]
        unknown = [name for name in named if name not in mech.bodies]
        if unknown:
            raise ValueError(f"PassiveForces: got bodies {unknown}; allowed: {list(mech.bodies)}")

    @in_float64
    def __call__(self, z: Tensor) -> Tensor:
        """The wrenches (..., 6 nb) at the states z (..., 13 nb), in their dtype.

        Raises:
            ValueError: another shape. TypeError: no tensor of float32 or float64.
        """
        self.mech.check_state(z)
        total = self._on_bodies(z) if self.parts is None else self._on_parts(z, self.parts)
        if self.ellipsoids:
            total = total + self._on_ellipsoids(z)
        return total.flatten(-2)

    def _on_bodies(self, z: Tensor) -> Tensor:
        bodies = self.mech.bodies
        shape = boxes(self.mech)
        mass = torch.stack([cast(Body, body).mass for body in bodies.values()], dim=-1)[..., None]
        lift = torch.stack([_share(self.gravity_compensation.get(name, 0.0)) for name in bodies], -1)[..., None]
        shaped = {one.frame.body for one in self.ellipsoids}
        law = self._box_law(shape.half, [name not in shaped for name in bodies])
        return self._on(z, _Frames(None, None, shape.axes), law, lift * mass)

    def _on_parts(self, z: Tensor, parts: Sequence[PassivePart]) -> Tensor:
        if not parts:
            return z.new_zeros(*z.shape[:-1], self.mech.num_bodies, TWIST_SIZE)
        mass = stacked([as_tensor(part.mass, "mass") for part in parts], 0)[..., None]
        half = _half_edges(mass, stacked([as_tensor(part.moments, "moments") for part in parts], 1))
        lift = stacked([_share(part.gravity_compensation) for part in parts], 0)[..., None]
        law = self._box_law(half, [not part.ellipsoids for part in parts])
        return self._on(z, self._frames([part.frame for part in parts], z), law, lift * mass)

    def _on_ellipsoids(self, z: Tensor) -> Tensor:
        numbers, density, viscosity = ellipsoid_numbers(self.ellipsoids), self.density[..., None, None], self.viscosity[..., None, None]

        def law(v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
            moved, turned = added_forces(v, w, numbers, density)
            rubbed, braked = drag_forces(v, w, numbers, density, viscosity)
            return moved + lift_forces(v, w, numbers, density) + rubbed, turned + braked

        return self._on(z, self._frames([one.frame for one in self.ellipsoids], z), law, None)

    def _frames(self, frames: Sequence[Frame], z: Tensor) -> _Frames:
        number = {name: i for i, name in enumerate(self.mech.bodies)}
        rows = torch.tensor([number[cast(str, frame.body)] for frame in frames], dtype=torch.long, device=z.device)
        axes = quat.rotation_matrix(torch.stack([frame.orientation for frame in frames]))
        return _Frames(rows, torch.stack([frame.position for frame in frames]), axes)

    def _box_law(self, half: Tensor, boxed: Sequence[bool]) -> Law:
        """The drag of boxes, zero where something else feels the medium. half: (..., n, 3) [m]."""
        there = torch.tensor(boxed, dtype=half.dtype, device=half.device)[:, None]
        density, viscosity = (there * number[..., None, None] for number in (self.density, self.viscosity))
        return lambda v, w: box_drag(v, w, half, density, viscosity)

    def _on(self, z: Tensor, frames: _Frames, law: Law, lifted: Tensor | None) -> Tensor:
        """Forces, world frame, and torques about the centers of mass, body frame, summed over what each body has: (..., nb, 6).

        lifted: (..., n, 1) masses whose weight is carried [kg]; None: none.
        """
        (rows, place, axes), state = frames, split_state(z)
        motion = state.pose.q, state.twist.v, state.twist.omega
        q, v, omega = motion if rows is None else (values.index_select(-2, rows) for values in motion)
        flow = quat.inverse_rotate(q, v - self.wind[..., None, :])
        if place is not None:
            flow = flow + quat.cross(omega, place)
        flow, spin = ((axes.mT @ part[..., None])[..., 0] for part in (flow, omega))
        force, torque = ((axes @ part[..., None])[..., 0] for part in law(flow, spin))
        if lifted is not None:
            force = force + quat.inverse_rotate(q, -lifted * self.mech.gravity[..., None, :])
        if place is not None:
            torque = torque + quat.cross(place.expand_as(force), force)
        wrench = torch.cat((quat.rotate(q, force), torque.expand_as(force)), -1)
        if rows is None:
            return wrench
        return wrench.new_zeros(*wrench.shape[:-2], self.mech.num_bodies, TWIST_SIZE).index_add(-2, rows, wrench)

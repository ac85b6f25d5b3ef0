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
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.bodies import Body
from torchdojo.elements.tendon_paths import Frame
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

    Raises:
        ValueError: a mass or moments that are not positive, a frame without a body.
    """

    frame: Frame
    mass: Any
    moments: Any
    gravity_compensation: Any = 0.0

    def __post_init__(self) -> None:
        for name, value in (("mass", self.mass), ("moments", self.moments)):
            number = as_tensor(value, f"PassivePart {name}")
            require(number > 0, f"PassivePart {name}", number, "positive numbers")
        if self.frame.body is None:
            raise ValueError("PassivePart: got a frame in the world; allowed: a td.Site of a body")


def _share(value: Any) -> Tensor:
    return as_tensor(value, "gravity_compensation")


class PassiveForces:
    """Drag, wind and compensation of gravity on the bodies of a mechanism: a function z -> wrench (..., 6 nb) [N, N·m].

    Files in MJCF with a medium or ``gravcomp`` give the mechanism one, `mech.passive`. Numbers may be tensors that carry a graph.

    Args:
        mech: the mechanism.
        density: of the medium [kg/m³]; water has 1000, air 1.2. viscosity: [Pa·s]; water has 9e-4, air 1.8e-5.
        wind: (..., 3) velocity of the medium [m/s], world frame.
        gravity_compensation: body -> the share of its weight that is carried. Without `parts`.
        parts: of the bodies, each with its own mass; None: every body is one.

    Raises:
        ValueError: unknown bodies; a density or viscosity below zero; both `gravity_compensation` and `parts`.
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
    ) -> None:
        self.mech, self.parts = mech, None if parts is None else tuple(parts)
        medium = {"density": density, "viscosity": viscosity, "wind": wind}
        self.density, self.viscosity, self.wind = (as_tensor(value, f"PassiveForces {name}") for name, value in medium.items())
        for name, value in (("density", self.density), ("viscosity", self.viscosity)):
            require(value >= 0, f"PassiveForces {name}", value, "numbers of zero or more")
        if self.wind.shape[-1:] != (3,):
            raise ValueError(f"PassiveForces wind: got shape {tuple(self.wind.shape)}; allowed: (..., 3) [m/s]")
        self.gravity_compensation = dict(gravity_compensation or {})
        if self.gravity_compensation and parts is not None:
            raise ValueError("PassiveForces: got gravity_compensation= and parts=; give it to the parts")
        named = [*self.gravity_compensation, *(str(part.frame.body) for part in self.parts or ())]
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
        mech, state = self.mech, split_state(z)
        if self.parts is None:
            shape = boxes(mech)
            mass = torch.stack([cast(Body, body).mass for body in mech.bodies.values()], dim=-1)[..., None]
            lift = torch.stack([_share(self.gravity_compensation.get(name, 0.0)) for name in mech.bodies], -1)[..., None]
            force, torque = self._on(state.pose.q, state.twist.v, state.twist.omega, None, shape, mass, lift)
            return torch.cat((force, torque), -1).flatten(-2)
        number = {name: i for i, name in enumerate(mech.bodies)}
        rows = torch.tensor([number[cast(str, part.frame.body)] for part in self.parts], dtype=torch.long, device=z.device)
        mass = torch.stack([as_tensor(part.mass, "mass") for part in self.parts])[:, None]
        moments = torch.stack([as_tensor(part.moments, "moments") for part in self.parts])
        lift = torch.stack([_share(part.gravity_compensation) for part in self.parts])[:, None]
        shape = Boxes(quat.rotation_matrix(torch.stack([part.frame.orientation for part in self.parts])), _half_edges(mass, moments))
        place = torch.stack([part.frame.position for part in self.parts])
        q, v, omega = (values.index_select(-2, rows) for values in (state.pose.q, state.twist.v, state.twist.omega))
        wrench = torch.cat(self._on(q, v, omega, place, shape, mass, lift), -1)
        total = wrench.new_zeros(*wrench.shape[:-2], len(number), TWIST_SIZE)
        return total.index_add(-2, rows, wrench).flatten(-2)

    def _on(
        self, q: Tensor, v: Tensor, omega: Tensor, place: Tensor | None, shape: Boxes, mass: Tensor, lift: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Forces (..., n, 3), world frame, and torques about the centers of mass of the bodies, body frame.

        place: (n, 3) of the parts in their bodies; None: the bodies' own centers of mass.
        """
        axes, half = shape
        flow = quat.inverse_rotate(q, v - self.wind[..., None, :])
        if place is not None:
            flow = flow + quat.cross(omega, place)
        flow, spin = ((axes.mT @ part[..., None])[..., 0] for part in (flow, omega))
        drag = box_drag(flow, spin, half, self.density[..., None, None], self.viscosity[..., None, None])
        force, torque = ((axes @ part[..., None])[..., 0] for part in drag)
        held = quat.inverse_rotate(q, -(lift * mass) * self.mech.gravity[..., None, :])
        force = force + held
        if place is not None:
            torque = torque + quat.cross(place.expand_as(force), force)
        return quat.rotate(q, force), torque.expand_as(force)

"""Parts of a mechanism put on the ground: each free part moves along the normal until its nearest contact has a given clearance.

A part is a set of bodies that joints connect with each other, not through the world. It is free if its joints to the world let it move
along the normal: a floating base, or the plane of a planar robot. With d the normal of the ground, the distance of a contact with a
half-space of normal n grows by n·d per meter. So the lift follows in closed form,

    s = max_i (clearance − φ_i)/(n_i·d).

Distances to shapes of the world and to surfaces of the user's own are not linear in s. A signed distance changes by at most a meter per
meter. So a step of clearance − φ never overshoots, neither up out of a surface nor down onto one (sphere tracing; Hart 1996). One Newton
step at the end has the derivative of the implicit function theorem. A part that starts below a surface, with nothing further down, goes up
in the same steps, through that surface, and rests on the side where it comes out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdojo.elements.contacts import Contact
from torchdojo.elements.element import Pose, unit
from torchdojo.elements.joints import Floating
from torchdojo.elements.near_contact import NearContact
from torchdojo.geometry.closest import distance
from torchdojo.geometry.convex import convex_of
from torchdojo.parameters import broadcast_shapes, transforming
from torchdojo.state.layout import STATE_SIZE
from torchdojo.structure import Structure

__all__ = ["movable", "parts", "place"]

STEEP = 1e-6  # n·d below which a surface counts as a wall: lifting does not leave it
HELD = 1e-9  # [m, rad] change of a joint's rows per meter of lift, above which the joint holds the part
TRACING = 200  # largest number of steps along the normal
ENTERING = 1e-3  # [m] a part on its way up enters a surface from this gap on; thinner shapes may be missed
ARRIVED = 1e-12  # [m] a smaller step ends the search
MISSED = 1e-6  # [m] a larger gap after the search is an error


def parts(mech: Structure) -> list[list[str]]:
    """Names of the bodies of each part: those that joints connect with each other, not through the world.

    A `Floating` joint holds nothing, so it connects no parts.
    """
    part = {name: {name} for name in mech.bodies}
    for joint in mech.named_joints().values():
        ends = [name for name in joint.body_names if name is not None]
        if len(ends) == 2 and not isinstance(joint, Floating) and part[ends[0]] is not part[ends[1]]:
            merged = part[ends[0]] | part[ends[1]]
            for name in merged:
                part[name] = merged
    distinct = {id(members): members for members in part.values()}.values()
    return [[name for name in mech.bodies if name in members] for members in distinct]


def place(mech: Structure, z: Tensor, clearance: Any) -> Tensor:
    """`Mechanism.place`."""
    mech.check_state(z)
    clearance = torch.as_tensor(clearance, dtype=z.dtype, device=z.device)
    if not transforming() and not bool(torch.isfinite(clearance).all()):
        raise ValueError(f"place: got clearance={clearance.tolist()}; allowed: finite numbers [m]")
    moving, reasons = _sorted(mech, z)
    if not moving:
        raise ValueError(
            f"place: no part of this mechanism can be put on the ground: {'; '.join(reasons)}. Give a robot a floating base and contacts "
            "with the world, or set its height through initial_state"
        )
    for part in moving:
        z = part.lifted(z, clearance)
    return z


def movable(mech: Structure, z: Tensor) -> bool:
    """Whether `place` moves some part at z (..., 13 nb)."""
    return bool(_sorted(mech, z)[0])


def _sorted(mech: Structure, z: Tensor) -> tuple[list[_Part], list[str]]:
    """The parts that move, and the reasons why others stay."""
    every = [_Part(mech, bodies) for bodies in parts(mech)]
    reasons = [part.reason_to_stay(z) for part in every]
    return [part for part, reason in zip(every, reasons, strict=True) if reason is None], [reason for reason in reasons if reason]


class _Cores:
    """The distance of two shapes with near contacts, in place of those of their slots, whose terms belong to the last step."""

    def __init__(self, contact: NearContact) -> None:
        self.body_names = contact.body_names
        self.shapes = [convex_of(core) for core in contact.shapes]

    def distance(self, pose: Pose) -> Tensor:
        return distance(self.shapes[0], (pose.x, pose.q), self.shapes[1], None).distance.to(pose.x)


class _Surface(NamedTuple):
    """A contact with the world, and whether its surface is a plain half-space."""

    contact: Any
    flat: bool


class _Part:
    """Bodies that move together, and their contacts with the world."""

    def __init__(self, mech: Structure, bodies: list[str]) -> None:
        self.mech, self.bodies = mech, bodies
        self.members = torch.tensor([name in bodies for name in mech.bodies], device=mech.gravity.device)
        touching = [contact for contact in mech.named_contacts().values() if contact.other is None and contact.body in bodies]
        self.surfaces = [
            _Surface(contact, contact.other_kind == "surface" and type(contact).signed_distance is Contact.signed_distance)
            for contact in touching
            if not isinstance(contact, NearContact)
        ]
        near = {(contact.body, *map(id, contact.shapes)): contact for contact in touching if isinstance(contact, NearContact)}
        self.surfaces += [_Surface(_Cores(contact), False) for contact in near.values()]

    def reason_to_stay(self, z: Tensor) -> str | None:
        """Why the part stays where it is; None if it moves."""
        name = repr(self.bodies[0])
        if not self.surfaces:
            return f"the part of body {name} has no contact with the world"
        for joint_name, joint in self.mech.named_joints().items():
            if None in joint.body_names and set(joint.body_names) & set(self.bodies) and self._holds(joint, z):
                return f"joint {joint_name!r} holds the part of body {name} along the ground's normal"
        return None

    def _holds(self, joint: Any, z: Tensor) -> bool:
        free = getattr(joint, "free_translations", 0)
        if any(i < free for side in joint.limited for i in side):
            return True
        if isinstance(joint, Floating):
            return False
        z = z.detach()
        moved = self.moved(z, z.new_ones(()), self.normal(z).detach())
        change = self.mech.constraint_rows(moved, [joint]) - self.mech.constraint_rows(z, [joint])
        return transforming() or bool((change.abs() > HELD).any())

    def normal(self, z: Tensor) -> Tensor:
        """The direction of the lift, a unit vector (..., 3): of the half-spaces' normals the one that points up most, or up itself."""
        gravity = self.mech.gravity
        strength = torch.linalg.vector_norm(gravity, dim=-1, keepdim=True)
        z_axis = gravity.new_tensor((0.0, 0.0, 1.0))
        up = torch.where(strength > 0, -gravity / torch.where(strength > 0, strength, 1.0), z_axis)
        normals = [unit(surface.contact.normal) for surface in self.surfaces if surface.flat]
        if not normals:
            return up.to(z)
        stacked = torch.stack(torch.broadcast_tensors(*normals, up)[:-1], dim=-2)
        steepest = (stacked * up[..., None, :]).sum(-1).detach().argmax(-1, keepdim=True)
        return torch.take_along_dim(stacked, steepest[..., None], dim=-2).squeeze(-2)

    def moved(self, z: Tensor, lift: Tensor, normal: Tensor) -> Tensor:
        """z with the bodies `lift` (...,) [m] further along the normal (..., 3)."""
        change = torch.nn.functional.pad(lift[..., None] * normal, (0, STATE_SIZE - 3))
        return (z.unflatten(-1, (-1, STATE_SIZE)) + change[..., None, :] * self.members[:, None].to(z)).flatten(-2)

    def distances(self, z: Tensor, surfaces: list[_Surface]) -> Tensor:
        values = [surface.contact.distance(*self.mech.element_poses(z, surface.contact)) for surface in surfaces]
        return torch.stack(torch.broadcast_tensors(*values), dim=-1)

    def lifted(self, z: Tensor, clearance: Tensor) -> Tensor:
        """z with the part at its clearance [m]."""
        normal = self.normal(z)
        flat, other = [s for s in self.surfaces if s.flat], [s for s in self.surfaces if not s.flat]
        lifts = []
        if flat:
            rates = torch.stack([(unit(s.contact.normal) * normal).sum(-1) for s in flat], dim=-1)
            needed = (clearance[..., None] - self.distances(z, flat)) / torch.where(rates > STEEP, rates, 1.0)
            lifts.append(torch.where(rates > STEEP, needed, -math.inf))
        if other:
            lifts.append(self._traced(z, normal, clearance, other, lifts[0].detach().amax(-1) if lifts else None))
        batch = broadcast_shapes(*(lift.shape[:-1] for lift in lifts))
        candidates = torch.cat([lift.expand(*batch, lift.shape[-1]) for lift in lifts], dim=-1)
        binding = candidates.detach().argmax(-1, keepdim=True)  # one contact, where several tie: a maximum has no derivative there
        return self.moved(z, torch.take_along_dim(candidates, binding, dim=-1).squeeze(-1), normal)

    def _traced(self, z: Tensor, normal: Tensor, clearance: Tensor, surfaces: list[_Surface], start: Tensor | None) -> Tensor:
        """Lifts (..., surfaces) to surfaces that are not flat, −∞ for those that the part does not meet.

        From `start`, the lift onto the half-spaces, the part only goes up. Without half-spaces it goes up or down, and up through what it
        meets where nothing is below.
        """
        fixed, along, gap = z.detach(), normal.detach(), clearance.detach()

        def distances(lift: Tensor) -> Tensor:
            return self.distances(self.moved(fixed, lift, along), surfaces)

        with torch.no_grad():
            lift = gap - distances(gap.new_zeros(())).amin(-1) if start is None else start
            for _ in range(TRACING):
                step = gap - distances(lift).amin(-1)
                step = step if start is None else step.clamp_min(0)
                lift = lift + step
                if not transforming() and not bool((step.abs() > ARRIVED).any()):
                    break
            missed = step.abs() > MISSED
            if start is None and not transforming() and bool(missed.any()):
                lift, missed = _risen(distances, gap, lift, missed)
        if not transforming() and bool(missed.any()):
            where = "below along the normal, and none above" if start is None else "to climb onto along the normal"
            raise ValueError(f"place: the part of body {self.bodies[0]!r} finds no surface {where}; place it by hand")
        slope = torch.func.jvp(distances, (lift,), (torch.ones_like(lift),))[1]
        lift = lift.detach()
        missing = clearance[..., None] - self.distances(self.moved(z, lift, normal), surfaces)
        meets = (missing.detach() >= -MISSED) & (slope > STEEP)
        return torch.where(meets, lift[..., None] + missing / torch.where(meets, slope, 1.0).detach(), -math.inf)


def _risen(distances: Callable[[Tensor], Tensor], gap: Tensor, lift: Tensor, missed: Tensor) -> tuple[Tensor, Tensor]:
    """Lifts with those that `missed` the surfaces below replaced by the way up from zero; and which ones miss the surfaces above, too."""
    up = torch.zeros_like(lift)
    for _ in range(TRACING):
        least, slope = torch.func.jvp(lambda s: distances(s).amin(-1), (up,), (torch.ones_like(up),))[:2]
        step = (gap - least).abs()
        entering = (step < ENTERING) & (slope < 0)
        up = up + torch.where(entering, ENTERING, step)
        step = torch.where(entering, torch.inf, step)
        if not bool((missed & ~(step <= ARRIVED)).any()):
            break
    return torch.where(missed, up, lift), missed & ~(step <= MISSED)

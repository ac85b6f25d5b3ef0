"""Dynamics of the bodies in joint coordinates: M(q) q̈ + c(q, q̇) = τ, Jacobians and momenta, differentiable to any order.

The file state/kinematics.py has the screw (s, w) of each coordinate, at a fixed point O. A coordinate moves all bodies behind its joint as
one. Their mass m, first moment m c and inertia J about O are sums over the subtree, so their momentum for a unit rate is

    p = m s + w × m c          L = J w + m c × s

and Mᵢⱼ = sᵢ · pⱼ + wᵢ · Lⱼ where i is an ancestor of j (composite rigid bodies, Featherstone 2008, chapter 6). Inverse dynamics is the
recursive Newton–Euler method with all quantities in the world frame (chapter 5): both recursions are sums over ancestors and subtrees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.elements.joints import StandardJoint
from torchdojo.parameters import broadcast_shapes, stacked
from torchdojo.precision import in_float64
from torchdojo.state.kinematics import (
    Double,
    Kinematics,
    Tree,
    apply,
    cross,
    dot,
    environments_last,
    geometry,
    kinematics,
    modules_of,
    tree_of,
)
from torchdojo.structure import Structure

__all__ = ["JointSpace"]


class _Bodies(NamedTuple):
    """A configuration with its bodies. As in state/kinematics.py, the B environments are the last dimension."""

    tree: Tree
    place: Kinematics
    batch: torch.Size  # dimensions of the environments
    mass: Tensor  # (E, B) [kg]
    inertia: Tensor  # (3, 3, E, B) body frame [kg·m²]

    def given(self, value: Tensor) -> Tensor:
        """(..., k) as (k, B)."""
        return environments_last(value.expand(*self.batch, value.shape[-1]), 1, self.batch)

    def rows(self, value: Tensor) -> Tensor:
        """(..., B) as (B, ...)."""
        # In two dimensions, PyTorch transposes four times as fast.
        return value.flatten(0, -2).mT.contiguous().reshape(value.shape[-1], *value.shape[:-1])

    def result(self, value: Tensor) -> Tensor:
        """(..., B) with the environments in front."""
        return self.rows(value).reshape(*self.batch, *value.shape[:-1])

    @property
    def center(self) -> Tensor:
        """The common center of mass, from the origin, (3, 1, B)."""
        return (self.mass * self.place.position).sum(1, keepdim=True) / self.mass.sum(0)

    def momenta(self) -> Tensor:
        """Momentum of the bodies behind each coordinate for a unit rate: linear [kg·m], angular about the origin, (6, n, B)."""
        place, behind = self.place, self.tree.moves.mT.to(self.mass.device)
        first = self.mass * place.position
        x, y, z = place.position.unbind(0)
        fx, fy, fz = first.unbind(0)
        inertia = self._inertia()
        (xx, xy, xz, yy, yz, zz), squares = inertia, (fx * x, fy * y, fz * z)
        moments = torch.stack(
            (
                xx + squares[1] + squares[2], xy - fx * y, xz - fx * z, yy + squares[0] + squares[2], yz - fy * z,
                zz + squares[0] + squares[1], fx, fy, fz,
            )
        )  # fmt: skip
        xx, xy, xz, yy, yz, zz, *rest = (behind @ moments).unbind(0)
        first, mass = torch.stack(rest), behind @ self.mass
        s, w = place.screws[:3], place.screws[3:]
        matrix = torch.stack((torch.stack((xx, xy, xz)), torch.stack((xy, yy, yz)), torch.stack((xz, yz, zz))))
        return torch.cat((mass * s + cross(w, first), apply(matrix, w) + cross(first, s)))

    def _inertia(self) -> list[Tensor]:
        """xx, xy, xz, yy, yz, zz of the inertias about the centers of mass, world frame, each (E, B)."""
        rotation = self.place.rotation
        half = apply(rotation[:, :, None], self.inertia)
        return [dot(half[i], rotation[j]) for i, j in ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))]

    def along(self, force: Tensor, torque: Tensor) -> Tensor:
        """Work of forces and of torques about the origin (3, E, B) by the rates, (n, B)."""
        behind = self.tree.moves.mT.to(force.device) @ torch.cat((force, torque))
        return dot(self.place.screws, behind)


class JointSpace(Structure):
    """The part of a mechanism's interface that knows its bodies in joint coordinates."""

    _tree_tables: Tree | None = None

    def _lay_out(self) -> None:
        super()._lay_out()
        self._tree_tables = None

    def _body_tree(self) -> Tree:
        """The tables of the spanning tree, made once for each layout."""
        if self._tree_tables is None:
            self._tree_tables = tree_of(self.tree_order(), self.named_joints())
        return self._tree_tables

    # -- equations of motion ---------------------------------------------------------------------------------------------------------------

    @in_float64
    def mass_matrix(self, q: Tensor) -> Tensor:
        """M(q), (..., n, n): the kinetic energy at rates qd is ½ qdᵀ M qd, with the armature of the tree's joints and of tendons.

        Coordinates and rates are those of `to_minimal`. A closed loop or a coupling is left open: M is that of the spanning tree.

        Args:
            q: (..., num_coordinates).

        Raises:
            ValueError: a joint of the user's own in the tree, coordinates that do not fit.
        """
        armature = self._armature()
        bodies = self._configuration(q, () if armature is None else armature.shape[:-1])
        screws, momenta = bodies.rows(bodies.place.screws), bodies.rows(bodies.momenta())
        if armature is None:
            half = screws.mT @ momenta
        else:
            diagonal = armature if armature.ndim == 1 else armature.expand(*bodies.batch, armature.shape[-1]).flatten(0, -2)
            half = torch.baddbmm(diagonal.diag_embed(), screws.mT, momenta)
        half.mul_(bodies.tree.pairs.to(q.device))  # in place: new memory takes longer than the product
        return (half + half.mT).reshape(*bodies.batch, *half.shape[1:])

    @in_float64
    def bias(self, q: Tensor, qd: Tensor) -> Tensor:
        """c(q, qd) of M q̈ + c = τ [N, N·m], (..., n): Coriolis, centrifugal and gravity forces.

        Springs, dampers, friction and limits of joints are forces τ, and not part of it.

        Args:
            q, qd: (..., num_coordinates), as in `to_minimal`.

        Raises:
            ValueError: as `mass_matrix`; a tendon with armature.
        """
        return self._inverse_dynamics(q, qd, None)

    @in_float64
    def gravity_forces(self, q: Tensor) -> Tensor:
        """`bias` at rest, (..., n): the forces that hold the bodies against gravity [N, N·m].

        Args:
            q: (..., num_coordinates).

        Raises:
            ValueError: as `mass_matrix`.
        """
        return self._inverse_dynamics(q, None, None)

    @in_float64
    def inverse_dynamics(self, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
        """τ = M q̈ + c, the forces on the coordinates that give the accelerations qdd [N, N·m], (..., n).

        The inputs of an actuated joint are ``tau[..., mech.coordinate_places()[name]]``, at ``mech.input_layout[name]`` in u.

        Args:
            q, qd, qdd: (..., num_coordinates). qdd is the derivative of qd by time.

        Raises:
            ValueError: as `mass_matrix`; a tendon with armature.
        """
        self.check_tensor("qdd", qdd, self.num_coordinates)
        return self._inverse_dynamics(q, qd, qdd)

    # -- Jacobians and momentum ------------------------------------------------------------------------------------------------------------

    @in_float64
    def point_jacobian(self, q: Tensor, body: str, point: Tensor | None = None) -> Tensor:
        """Velocity of a point of a body by the rates qd, (..., 6, n), world frame: linear [m/s], then angular of the body [rad/s].

        Args:
            q: (..., num_coordinates). body: its name.
            point: (..., 3) [m], in the body's frame, from its center of mass; None: the center of mass.

        Raises:
            ValueError: an unknown name, a point of another shape; and as `mass_matrix`.
        """
        number = self._number("point_jacobian", body)
        if point is not None:
            self.check_tensor("point", point, 3)
        bodies = self._configuration(q, () if point is None else point.shape[:-1])
        tree, place = bodies.tree, bodies.place
        e = tree.bodies.index(number)
        arm = place.position[:, e]
        if point is not None:
            arm = arm + apply(place.rotation[:, :, e], bodies.given(point))
        s, w = place.screws[:3], place.screws[3:]
        return bodies.result(torch.cat((s + cross(w, arm[:, None]), w)) * tree.moves[e].to(q.device)[:, None])

    @in_float64
    def center_of_mass(self, q: Tensor) -> Tensor:
        """The common center of mass of all bodies [m], world frame, (..., 3).

        Args:
            q: (..., num_coordinates).

        Raises:
            ValueError: as `mass_matrix`.
        """
        bodies = self._configuration(q)
        return bodies.result((bodies.center + bodies.place.origin)[:, 0])

    @in_float64
    def center_of_mass_jacobian(self, q: Tensor) -> Tensor:
        """Velocity of the common center of mass by the rates qd, world frame, (..., 3, n).

        Args:
            q: (..., num_coordinates).

        Raises:
            ValueError: as `mass_matrix`.
        """
        bodies = self._configuration(q)
        return bodies.result(bodies.momenta()[:3] / bodies.mass.sum(0))

    @in_float64
    def centroidal_matrix(self, q: Tensor) -> Tensor:
        """Momentum of all bodies by the rates qd, (..., 6, n), as in `centroidal_momentum`: A of h = A qd.

        Args:
            q: (..., num_coordinates).

        Raises:
            ValueError: as `mass_matrix`.
        """
        bodies = self._configuration(q)
        linear, angular = bodies.momenta().split(3)
        return bodies.result(torch.cat((linear, angular - cross(bodies.center, linear))))

    @in_float64
    def centroidal_momentum(self, q: Tensor, qd: Tensor) -> Tensor:
        """Momentum [linear N·s, angular about the common center of mass N·m·s], world frame, (..., 6), at the rates qd.

        `momentum` of a state is that of the step that led there, which differs by terms of the order of the timestep.

        Args:
            q, qd: (..., num_coordinates).

        Raises:
            ValueError: as `mass_matrix`.
        """
        self.check_tensor("qd", qd, self.num_coordinates)
        return (self.centroidal_matrix(q) @ qd[..., None])[..., 0]

    # -- parts -----------------------------------------------------------------------------------------------------------------------------

    def _configuration(self, q: Tensor, batch: Sequence[int] = ()) -> _Bodies:
        self.check_tensor("q", q, self.num_coordinates)
        tree, bodies = self._body_tree(), list(self.named_bodies().values())
        numbers = geometry(tree, self.named_joints(), q)
        mass = stacked([bodies[i].mass for i in tree.bodies], 0)
        inertia = stacked([bodies[i].inertia for i in tree.bodies], 2)
        fields = [*((value, 2) for value in numbers), (mass, 1), (inertia, 3), (self.gravity, 1)]
        batch = broadcast_shapes(batch, q.shape[:-1], *(value.shape[: value.ndim - core] for value, core in fields))
        q = environments_last(q.expand(*batch, q.shape[-1]), 1, batch)
        last = environments_last(mass, 1, batch), environments_last(inertia.movedim(-3, -1), 3, batch)
        return _Bodies(tree, kinematics(tree, numbers, q, batch), batch, *last)

    def _armature(self) -> Tensor | None:
        """The armatures of the tree's joints, (..., n), or None."""
        tree, zero = self._body_tree(), self.gravity.new_zeros(())
        values = [zero] * self.num_coordinates
        for joint, places in zip(modules_of(tree, self.named_joints()), tree.coordinates, strict=True):
            armature = joint.armature if isinstance(joint, StandardJoint) else None
            if armature is not None:
                values[places] = armature.unbind(-1)
        return None if all(value is zero for value in values) else stacked(values, 0)

    def _inverse_dynamics(self, q: Tensor, qd: Tensor | None, qdd: Tensor | None) -> Tensor:
        rates = [value for value in (qd, qdd) if value is not None]
        for name, value in (("qd", qd), ("qdd", qdd)):
            if value is not None:
                self.check_tensor(name, value, self.num_coordinates)
        bodies = self._configuration(q, broadcast_shapes(*(value.shape[:-1] for value in rates)))
        tree, place, mass = bodies.tree, bodies.place, bodies.mass
        position = place.position
        weight = -mass * environments_last(self.gravity, 1, bodies.batch)[:, None]
        if qd is None:
            return bodies.result(bodies.along(weight.expand(position.shape), cross(position, weight)))
        moves, rate = tree.moves.to(q.device), bodies.given(qd)
        twist = moves @ (place.screws * rate)
        v, w = twist.split(3)
        # Along a path, the changes of the joints' screws add up as the screws do.
        change = tree.above.to(q.device) @ _drift(tree, place, rate, v, w)
        if qdd is not None:
            change = change + moves @ (place.screws * bodies.given(qdd))
        a, alpha = change.split(3)
        force = mass * (a + cross(alpha, position) + cross(w, v + cross(w, position))) + weight
        back = place.rotation.transpose(0, 1)
        spin = apply(back, w)
        torque = apply(bodies.inertia, apply(back, alpha)) + cross(spin, apply(bodies.inertia, spin))
        result = bodies.result(bodies.along(force, apply(place.rotation, torque) + cross(position, force)))
        armature = None if qdd is None else self._armature()
        return result if qdd is None or armature is None else result + armature * qdd


def _drift(tree: Tree, place: Kinematics, qd: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """Change by time of the screws of each joint at constant rates, (6, E, B).

    The joint adds W to the angular velocity and T + P × W to the velocity at the origin. Its axes turn with the parent, and P is on the
    child:  Ẇ = ω_a × W + k̇ n,  Ṫ = ω_a × T,  Ṗ = v_a + ω_a × P + T.
    """
    belongs, rates = tree.own.to(qd.device), place.along * qd
    turning = tree.turning.to(qd.device)
    turn = belongs @ (rates * turning) if tree.slides else belongs @ rates
    v_a, w_a = (torch.cat((value, torch.zeros_like(value[:, :1])), dim=1)[:, tree.parents] for value in (v, w))
    turn_change = cross(w_a, turn)
    if place.double is not None:
        turn_change = turn_change + _held_change(place.double, turn)
    moving = v_a + cross(w_a, place.anchor)
    if not tree.slides:
        return torch.cat((cross(moving, turn) + cross(place.anchor, turn_change), turn_change))
    slide = belongs @ (rates * (1 - turning))
    return torch.cat((cross(moving + slide, turn) + cross(place.anchor, turn_change) + cross(w_a, slide), turn_change))


def _held_change(double: Double, turn: Tensor) -> Tensor:
    """k̇ n of joints with two free rotations, world frame, (3, E, B).

    k = n · (p⃗ × t)/p₀ with the turn t along the free axes, which does not change, and ṗ = ½ W ⊗ p in the joint frame.
    """
    normal, scalar, vector = double.normal, double.turn[0], double.turn[1:]
    local = apply(double.frame.transpose(0, 1), turn)
    held = dot(normal, local)
    free = local - held * normal
    scalar_change = -0.5 * dot(local, vector)
    vector_change = 0.5 * (scalar * local + cross(local, vector))
    change = dot(normal, cross(vector_change, free)) - held * scalar_change
    return apply(double.frame, normal * (change / torch.where((normal != 0).any(0), scalar, 1.0)))

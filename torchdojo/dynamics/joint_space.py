"""Dynamics of the bodies in joint coordinates: M(q) q̈ + c(q, q̇) = τ, Jacobians and momenta, differentiable to any order.

State/kinematics.py gives the screw (s, w) of each coordinate, at a fixed point O. A coordinate moves all bodies behind its joint as one. Their
mass m, first moment m c and inertia J about O are sums over the subtree, so their momentum for a unit rate is

    p = m s + w × m c          L = J w + m c × s

and Mᵢⱼ = sᵢ · pⱼ + wᵢ · Lⱼ where i is an ancestor of j (composite rigid bodies, Featherstone 2008, chapter 6). Inverse dynamics is the
recursive Newton–Euler method with all quantities in the world frame (chapter 5): both recursions are sums over ancestors and subtrees.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.joints import StandardJoint
from torchdojo.parameters import stacked
from torchdojo.precision import in_float64
from torchdojo.state.kinematics import Kinematics, Tree, kinematics, modules_of, tree_of
from torchdojo.structure import Structure

__all__ = ["JointSpace"]


class _Subtrees(NamedTuple):
    """Momentum of the bodies behind each coordinate for a unit rate: linear [kg·m/s], angular about the origin, (..., n, 3)."""

    linear: Tensor
    angular: Tensor


class JointSpace(Structure):
    """The part of a mechanism's interface that knows its bodies in joint coordinates."""

    _tree_tables: Tree | None = None

    def _lay_out(self) -> None:
        super()._lay_out()
        self._tree_tables = None

    def body_tree(self) -> Tree:
        """The tables of the spanning tree, made once for each layout."""
        if self._tree_tables is None:
            self._tree_tables = tree_of(self.tree_order(), self.named_joints())
        return self._tree_tables

    # -- equations of motion -----------------------------------------------------------------------------------------------------------------

    @in_float64
    def mass_matrix(self, q: Tensor) -> Tensor:
        """M(q), (..., n, n): the kinetic energy at rates qd is ½ qdᵀ M qd, with the armature of the tree's joints.

        Coordinates and rates are those of `to_minimal`. A closed loop or a coupling is left open: M is that of the spanning tree.

        Args:
            q: (..., num_coordinates).

        Raises:
            ValueError: a joint of the user's own in the tree, coordinates that do not fit.
        """
        tree, place = self._configuration(q)
        momenta = self._subtrees(tree, place)
        screws = torch.cat((place.linear, place.angular), dim=-1)
        half = screws @ torch.cat(momenta, dim=-1).mT * tree.pairs.to(q.device)
        return half + half.mT + self._armature(tree, q)

    @in_float64
    def bias(self, q: Tensor, qd: Tensor) -> Tensor:
        """c(q, qd) of M q̈ + c = τ [N, N·m], (..., n): Coriolis, centrifugal and gravity forces.

        Springs, dampers, friction and limits of joints are forces τ, and not part of it.

        Args:
            q, qd: (..., num_coordinates), as in `to_minimal`.

        Raises:
            ValueError: as `mass_matrix`.
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
            ValueError: as `mass_matrix`.
        """
        self.check_tensor("qdd", qdd, self.num_coordinates)
        return self._inverse_dynamics(q, qd, qdd)

    # -- Jacobians and momentum --------------------------------------------------------------------------------------------------------------

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
        tree, place = self._configuration(q)
        e = tree.bodies.index(number)
        arm = place.position[..., e, :]
        if point is not None:
            if point.shape[-1:] != (3,):
                raise ValueError(f"point_jacobian: got a point of shape {tuple(point.shape)}; allowed: (..., 3) [m]")
            arm = arm + (place.rotation[..., e, :, :] @ point[..., None])[..., 0]
        moved = tree.moves[e].to(q.device)[:, None]
        linear = place.linear + quat.cross(place.angular, arm[..., None, :])
        return torch.cat(torch.broadcast_tensors(linear * moved, place.angular * moved), dim=-1).mT

    @in_float64
    def center_of_mass(self, q: Tensor) -> Tensor:
        """The common center of mass of all bodies [m], world frame, (..., 3).

        Args:
            q: (..., num_coordinates).

        Raises:
            ValueError: as `mass_matrix`.
        """
        tree, place = self._configuration(q)
        mass = self._masses(tree)
        return _center(mass, place) + place.origin[..., 0, :]

    @in_float64
    def center_of_mass_jacobian(self, q: Tensor) -> Tensor:
        """Velocity of the common center of mass by the rates qd, world frame, (..., 3, n).

        Args:
            q: (..., num_coordinates).

        Raises:
            ValueError: as `mass_matrix`.
        """
        tree, place = self._configuration(q)
        return (self._subtrees(tree, place).linear / self._masses(tree).sum(-1)[..., None, None]).mT

    @in_float64
    def centroidal_matrix(self, q: Tensor) -> Tensor:
        """Momentum of all bodies by the rates qd, (..., 6, n), as in `centroidal_momentum`: A of h = A qd.

        Args:
            q: (..., num_coordinates).

        Raises:
            ValueError: as `mass_matrix`.
        """
        tree, place = self._configuration(q)
        linear, angular = self._subtrees(tree, place)
        center = _center(self._masses(tree), place)[..., None, :]
        return torch.cat((linear, angular - quat.cross(center, linear)), dim=-1).mT

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

    # -- parts -------------------------------------------------------------------------------------------------------------------------------

    def _configuration(self, q: Tensor) -> tuple[Tree, Kinematics]:
        self.check_tensor("q", q, self.num_coordinates)
        tree = self.body_tree()
        return tree, kinematics(tree, self.named_joints(), q)

    def _masses(self, tree: Tree) -> Tensor:
        bodies = list(self.named_bodies().values())
        return stacked([bodies[i].mass for i in tree.bodies], 0)

    def _inertias(self, tree: Tree, place: Kinematics) -> Tensor:
        """Inertias about the centers of mass, world frame, (..., E, 3, 3)."""
        bodies = list(self.named_bodies().values())
        inertia = stacked([bodies[i].inertia for i in tree.bodies], 2)
        return place.rotation @ inertia @ place.rotation.mT

    def _armature(self, tree: Tree, like: Tensor) -> Tensor:
        """The armatures of the tree's joints on the diagonal, (..., n, n)."""
        values = [like.new_zeros(())] * self.num_coordinates
        for joint, places in zip(modules_of(tree, self.named_joints()), tree.coordinates, strict=True):
            armature = joint.armature if isinstance(joint, StandardJoint) else None
            if armature is not None:
                values[places] = armature.unbind(-1)
        return torch.diag_embed(stacked(values, 0))

    def _subtrees(self, tree: Tree, place: Kinematics) -> _Subtrees:
        mass, position = self._masses(tree)[..., None], place.position
        first = mass * position
        square = (first * position).sum(-1)[..., None, None]
        eye = torch.eye(3, dtype=mass.dtype, device=mass.device)
        inertia = self._inertias(tree, place) + square * eye - first[..., :, None] * position[..., None, :]
        parts = torch.cat((mass.expand(*inertia.shape[:-2], 1), first.expand(inertia.shape[:-1]), inertia.flatten(-2)), dim=-1)
        behind = tree.moves.mT.to(mass.device) @ parts
        mass, first, inertia = behind[..., :1], behind[..., 1:4], behind[..., 4:].unflatten(-1, (3, 3))
        s, w = place.linear, place.angular
        return _Subtrees(mass * s + quat.cross(w, first), (inertia @ w[..., None])[..., 0] + quat.cross(first, s))

    def _inverse_dynamics(self, q: Tensor, qd: Tensor | None, qdd: Tensor | None) -> Tensor:
        tree, place = self._configuration(q)
        mass = self._masses(tree)[..., None]
        weight = -mass * self.gravity[..., None, :]
        if qd is None:
            force, torque = torch.broadcast_tensors(weight, quat.cross(place.position, weight))
            return _along(tree, place, force, torque)
        self.check_tensor("qd", qd, self.num_coordinates)
        moves, position = tree.moves.to(q.device), place.position
        screws = torch.cat((place.linear, place.angular), dim=-1)
        twist = moves @ (screws * qd[..., None])
        v, w = twist[..., :3], twist[..., 3:]
        # Over the joints of a path, the changes of the screws add up as the screws do.
        change = _paths(tree, _drift(tree, place, qd, v, w))
        if qdd is not None:
            change = change + moves @ (screws * qdd[..., None])
        alpha = change[..., 3:]
        a = change[..., :3] + quat.cross(alpha, position) + quat.cross(w, v + quat.cross(w, position))
        force = mass * a + weight
        inertia = self._inertias(tree, place)
        torque = (inertia @ alpha[..., None])[..., 0] + quat.cross(w, (inertia @ w[..., None])[..., 0]) + quat.cross(position, force)
        result = _along(tree, place, force, torque)
        return result if qdd is None else result + (self._armature(tree, q) @ qdd[..., None])[..., 0]


def _center(mass: Tensor, place: Kinematics) -> Tensor:
    """The common center of mass, from the origin, (..., 3)."""
    return (mass[..., None] * place.position).sum(-2) / mass.sum(-1, keepdim=True)


def _along(tree: Tree, place: Kinematics, force: Tensor, torque: Tensor) -> Tensor:
    """Work of forces and of torques about the origin (..., E, 3) by the rates, (..., n)."""
    behind = tree.moves.mT.to(force.device) @ torch.cat(torch.broadcast_tensors(force, torque), dim=-1)
    return (place.linear * behind[..., :3] + place.angular * behind[..., 3:]).sum(-1)


def _paths(tree: Tree, values: Tensor) -> Tensor:
    """Sums over the joints between the world and each body of values (..., E, k)."""
    return tree.above.to(values.device) @ values


def _drift(tree: Tree, place: Kinematics, qd: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """Change by time of the screws of each joint at constant rates, (..., E, 6).

    The joint adds W to the angular velocity and T + P × W to the velocity at the origin. Its axes turn with the parent, and P is on the
    child:  Ẇ = ω_a × W + k̇ n,  Ṫ = ω_a × T,  Ṗ = v_a + ω_a × P + T.
    """
    own = tree.own.to(qd.device)
    rates = place.along * qd[..., None]
    turning = tree.turning.to(qd.device)
    turn = own @ (rates * turning) if tree.slides else own @ rates
    parents = tree.parents
    pad = torch.nn.functional.pad
    v_a, w_a = (pad(value, (0, 0, 0, 1))[..., parents, :] for value in (v, w))
    turn_change = quat.cross(w_a, turn)
    if tree.double:
        turn_change = turn_change + _held_change(place, turn)
    moving = v_a + quat.cross(w_a, place.anchor)
    if tree.slides:
        slide = own @ (rates * (1 - turning))
        moving = moving + slide
    shift = quat.cross(moving, turn) + quat.cross(place.anchor, turn_change)
    if tree.slides:
        shift = shift + quat.cross(w_a, slide)
    return torch.cat((shift, turn_change), dim=-1)


def _held_change(place: Kinematics, turn: Tensor) -> Tensor:
    """k̇ n of joints with two free rotations, world frame, (..., E, 3).

    k = n · (p⃗ × t)/p₀ with the turn t along the free axes, which does not change, and ṗ = ½ W ⊗ p in the joint frame.
    """
    normal, p0, vector = place.normal, place.turn[..., :1], place.turn[..., 1:]
    local = (place.frame.mT @ turn[..., None])[..., 0]
    held = (normal * local).sum(-1, keepdim=True)
    free = local - held * normal
    double = (normal != 0).any(-1, keepdim=True)
    p0_change = -0.5 * (local * vector).sum(-1, keepdim=True)
    vector_change = 0.5 * (p0 * local + quat.cross(local, vector))
    change = ((normal * quat.cross(vector_change, free)).sum(-1, keepdim=True) - held * p0_change) / torch.where(double, p0, 1.0)
    return (place.frame @ (change * normal)[..., None])[..., 0]

"""Lengths, velocities and moment arms of the tendons of a mechanism."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.dynamics.joint_space import JointSpace
from torchdojo.elements.tendon_paths import Strings
from torchdojo.parameters import broadcast_shapes
from torchdojo.precision import in_float64
from torchdojo.state import minimal
from torchdojo.state.kinematics import cross, environments_last
from torchdojo.state.layout import split_state, with_world

__all__ = ["TendonSpace"]


class TendonSpace(JointSpace):
    """The part of a mechanism's interface that knows its tendons."""

    @in_float64
    def tendon_lengths(self, z: Tensor) -> Tensor:
        """Length of every tendon at z [m], (..., number of tendons), tendons in order.

        Args:
            z: (..., 13 nb).
        """
        self.check_state(z)
        return _side_by_side(z, [tendon.path(*self.element_poses(z, tendon)).length for tendon in self.named_tendons().values()])

    @in_float64
    def tendon_routes(self, z: Tensor) -> dict[str, Tensor]:
        """Points (..., n, 3) along the string of each spatial tendon at z [m], in the world, to draw; NaN between branches.

        Args:
            z: (..., 13 nb).
        """
        self.check_state(z)
        tendons = self.named_tendons()
        return {name: tendon.route(*self.element_poses(z, tendon)) for name, tendon in tendons.items() if isinstance(tendon, Strings)}

    @in_float64
    def tendon_velocities(self, z: Tensor) -> Tensor:
        """Rate of the length of every tendon at the poses and velocities of z [m/s], (..., number of tendons).

        Args:
            z: (..., 13 nb).
        """
        self.check_state(z)
        values = []
        for tendon in self.named_tendons().values():
            poses, twists = zip(*self.element_states(z, tendon), strict=True)
            values.append(tendon.path(*poses).rate(twists))
        return _side_by_side(z, values)

    @in_float64
    def mass_matrix(self, q: Tensor) -> Tensor:
        matrix = super().mass_matrix(q)
        armatures = [tendon.armature for tendon in self.named_tendons().values()]
        if all(armature is None for armature in armatures):
            return matrix
        arms = self.tendon_moment_arms(q)
        for row, armature in enumerate(armatures):
            if armature is not None:
                arm = arms[..., row, :]
                matrix = matrix + armature[..., None, None] * (arm[..., :, None] * arm[..., None, :])
        return matrix

    def _inverse_dynamics(self, q: Tensor, qd: Tensor | None, qdd: Tensor | None) -> Tensor:
        heavy = [name for name, tendon in self.named_tendons().items() if tendon.armature is not None]
        if heavy and not (qd is None and qdd is None):
            raise ValueError(
                f"bias and inverse_dynamics: got tendons with armature, {heavy}, whose moment arms change with q; allowed: armature=None. "
                "mass_matrix has it, and gravity_forces needs none"
            )
        return super()._inverse_dynamics(q, qd, qdd)

    @in_float64
    def tendon_moment_arms(self, q: Tensor) -> Tensor:
        """Rate of the length of every tendon by the rates qd, (..., number of tendons, n): [m/rad], [1] of slides.

        A force along a tendon acts on the coordinates with its row: τ = Jᵀ f. For joints of one coordinate, the row is the derivative of
        the length by q.

        Args:
            q: (..., num_coordinates).

        Raises:
            ValueError: as `mass_matrix`.
        """
        bodies = self._configuration(q)
        z = minimal.to_maximal(self.tree_order(), self.num_bodies, q, torch.zeros_like(q), self.timestep)
        pose = with_world(split_state(z)[0])
        number = {name: i for i, name in enumerate(self.bodies)}
        order = {body: e for e, body in enumerate(bodies.tree.bodies)}
        rows = []
        for tendon in self.named_tendons().values():
            batch = broadcast_shapes(bodies.batch, z.shape[:-1])
            force, torque = (z.new_zeros(*batch, len(order), 3) for _ in range(2))
            for name, (f, t) in zip(tendon.body_names, tendon.path(*self.element_poses(z, tendon)).pulls, strict=True):
                if name is not None:
                    place = torch.tensor([order[number[name]]], device=z.device)
                    turned = quat.rotate(pose.q[..., number[name], :], t)
                    force = force.index_add(-2, place, f.expand(*batch, 3)[..., None, :])
                    torque = torque.index_add(-2, place, turned.expand(*batch, 3)[..., None, :])
            f, t = (environments_last(value.movedim(-2, -1), 2, batch) for value in (force, torque))
            rows.append(bodies.result(bodies.along(f, t + cross(bodies.place.position, f))))
        return torch.stack(rows, dim=-2) if rows else q.new_zeros(*q.shape[:-1], 0, self.num_coordinates)


def _side_by_side(z: Tensor, values: list[Tensor]) -> Tensor:
    batch = broadcast_shapes(z.shape[:-1], *(value.shape for value in values))
    return torch.stack([value.expand(batch) for value in values], dim=-1) if values else z.new_zeros(*batch, 0)

"""The base class of joints and contacts: a local residual between a few bodies, written for many elements at once.

The residual of the whole mechanism is a sum over elements. Each sees only the bodies it touches, as tensors of shape (..., E, 3) or
(..., E, 4) over E elements of one kind. It answers with the impulses that it exerts on them, and with rows of its own that must vanish.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.parametrize import type_before_parametrizations

from torchdojo import quaternion as quat
from torchdojo.elements.path_maps import Change
from torchdojo.parameters import PhysicalModule

__all__ = ["Cones", "Element", "Motion", "Pose", "Twist", "orthonormal_complement", "previous_pose"]


class Pose(NamedTuple):
    """Position of the center of mass (..., 3) [m], world frame, and orientation (..., 4), wxyz, body to world."""

    x: Tensor
    q: Tensor

    def point(self, p: Tensor) -> Tensor:
        """World position of the body-frame point p."""
        return self.x + quat.rotate(self.q, p)


class Twist(NamedTuple):
    """Linear velocity (..., 3) [m/s], world frame, and angular velocity (..., 3) [rad/s], body frame."""

    v: Tensor
    omega: Tensor


class Motion(NamedTuple):
    """One body over one step of length `timestep` [s], broadcastable to (..., 1).

    pose: the current one. twist: the velocity that leads to the pose `next`. incoming: the velocity that led to `pose`.
    """

    pose: Pose
    twist: Twist
    next: Pose
    incoming: Twist
    timestep: Tensor


def previous_pose(pose: Pose, twist: Twist, timestep: Tensor) -> Pose:
    """The pose from which one step at this twist leads to `pose`."""
    return Pose(pose.x - timestep * twist.v, quat.multiply(pose.q, quat.conjugate(quat.increment(twist.omega, timestep))))


@dataclass(frozen=True)
class Cones:
    """The cone of an element's impulse and, dual to it, of its slack: an orthant followed by second-order cones of size 3."""

    orthant: int = 0
    second_order: int = 0

    @property
    def size(self) -> int:
        return self.orthant + 3 * self.second_order


class Element(PhysicalModule):
    """Base class of joints and contacts.

    An element acts between `body_names` (None is the world). It has `cones.size` impulses with as many slacks. Without cones it has
    `num_rows` equality rows with as many multipliers. Its `residual` is called on a clone whose fields are stacked over elements.

    Numbers of an element are best declared in `fields` (name -> number of dimensions of one value). They may then have batch dimensions,
    which the code reads in front of the E elements: `self.length[..., None]` beside a row. Plain numbers become float64. Other tensors and
    modules that a subclass registers, weights of a network say, keep the shape that the code expects, and receive gradients as well. They
    must have the mechanism's dtype: `nn.Linear(3, 1).double()`. `td.testing.check_element` tries an element in every way that counts.
    """

    cones: Cones = Cones()
    num_rows: int = 0
    num_inputs: int = 0
    reads_joint_inputs: bool = False  # whether an element that acts on a joint gets the inputs of this joint as u
    reads_incoming: bool = False  # whether `residual` depends on `Motion.incoming`, which derivatives then follow

    @property
    def body_names(self) -> tuple[str | None, ...]:
        raise NotImplementedError

    @property
    def stacked_fields(self) -> dict[str, int]:
        """The part of `fields` that `residual` reads."""
        return self.fields

    def kind(self) -> tuple[object, ...]:
        """Elements of equal kind are evaluated together, through one of them. User-written elements are evaluated one by one, since
        they may depend on attributes that are not stacked."""
        cls = type_before_parametrizations(self)
        return (cls,) if cls.__module__.startswith("torchdojo.") else (id(self),)

    def residual(
        self, motions: tuple[Motion, ...], impulse: Tensor, slack: Tensor, u: Tensor, timestep: Tensor
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        """Impulses on each body and the element's equality rows.

        Args:
            motions: one per body of `body_names`.
            impulse: (..., E, num_rows) multipliers, or (..., E, cones.size) cone impulses [N·s, N·m·s].
            slack: (..., E, cones.size), empty for joints.
            u: (..., E, num_inputs) inputs [N, N·m].
            timestep: h [s], broadcastable to (..., E, 1).

        Returns:
            Per body (linear impulse (..., E, 3) world frame, angular impulse (..., E, 3) body frame); rows (..., E, num_rows), or
            (..., E, cones.size).
        """
        raise NotImplementedError

    def start(self, motions: tuple[Motion, ...], level: Tensor) -> tuple[Tensor, Tensor]:
        """Interior impulses and slacks (..., E, cones.size) at given velocities, with products of about `level` (..., 1).

        The solver starts from them, and returns to them at a higher level where it gets stuck. Default: √level times the identity.
        """
        identity = motions[0].pose.x.new_zeros(*motions[0].pose.x.shape[:-1], self.cones.size)
        for i in (*range(self.cones.orthant), *range(self.cones.orthant, self.cones.size, 3)):
            identity[..., i] = level.sqrt()
        return identity, identity

    @property
    def fades(self) -> Tensor | None:
        """Whether impulses (..., E) act, in the end, only within `geometry.near_terms.REACH` of their places. Default: None: nowhere.

        Attempts of the solver then start near there (solver/start_level.py).
        """
        return None

    def effective_mass(self, poses: tuple[Pose, ...], mass: Tensor, inertia: Tensor, timestep: Tensor) -> Tensor:
        """Impulse per change of velocity, (..., E, 1) or one value per cone: a scale for `on_path`, without other effect.

        Default: the reduced mass of the bodies [kg].

        Args:
            poses: one per body of `body_names`. mass: (..., E, k) [kg] and inertia: (..., E, k, 3, 3) [kg·m²], infinite for the world.
            timestep: h [s], broadcastable to (..., E, 1).
        """
        return 1 / (1 / mass).sum(-1, keepdim=True)

    def on_path(
        self, impulse: Tensor, slack: Tensor, kappa: Tensor, mass: Tensor, timestep: Tensor, change: Change
    ) -> tuple[Tensor, Tensor] | None:
        """Impulses and slacks (..., E, cones.size) with products of exactly κ. Any real numbers may come in; points of the path stay.

        With this map, warm starts take the steps of `solver.path_newton`. Default: None, and the interior-point method takes them.

        Args:
            impulse, slack: (..., E, cones.size), inside their cones or not.
            kappa: broadcastable to (..., E). mass: of `effective_mass`.
            timestep: h [s], broadcastable to (..., E).
            change: changes of impulses and slacks since the previous Newton step, in their shapes, NaN in the first one. They tell the
                weight of a slack (`path_maps.weight_of`). Its third part says which contacts may squeeze their bodies.
        """
        return None

    def at_limit(self, impulse: Tensor, slack: Tensor, mass: Tensor, timestep: Tensor, compliance: float) -> tuple[Tensor, Tensor] | None:
        """Impulses and slacks (..., E, cones.size) whose linearized products equal the products of hard contact (κ → 0), from a small κ.

        With this map, `GradientMode.EXACT` and the modes that build on it are available (hard_maps.py has the theory). Default: None.

        Args:
            impulse, slack: (..., E, cones.size), on the central path, or already hard. mass: of `effective_mass`.
            timestep: h [s], broadcastable to (..., E).
            compliance: of closed pairs and of sticking slips, relative to the compliance of the bodies; may be zero.
        """
        return None


def orthonormal_complement(n: Tensor) -> Tensor:
    """Two unit vectors t₁, t₂ with t₁ × t₂ = n for a unit vector n, (..., 2, 3): x and y for n = z.

    They are x and y after the shortest rotation that takes z to n (Frisvad 2012), or its mirror image for n_z < −½. Both are smooth around
    every coordinate axis, so impulses along t₁, t₂ can be differentiated with respect to the direction.
    """
    flip = n[..., 2:] < -0.5
    x, y, z = torch.where(flip, -n, n).unbind(-1)
    a = 1 / (1 + z)
    first = torch.stack((1 - x * x * a, -x * y * a, -x), dim=-1)
    second = torch.stack((-x * y * a, 1 - y * y * a, -y), dim=-1)
    return torch.stack((first, torch.where(flip, -second, second)), dim=-2)


def unit(vector: Tensor) -> Tensor:
    return vector / torch.linalg.vector_norm(vector, dim=-1, keepdim=True)


def on_rows(rows: Tensor | None, vector: Tensor) -> Tensor:
    """rows · vector, (..., n); None stands for the three axes."""
    return vector if rows is None else (rows * vector[..., None, :]).sum(-1)


def along_rows(rows: Tensor | None, weights: Tensor) -> Tensor:
    """rowsᵀ weights, (..., 3); None stands for the three axes."""
    return weights if rows is None else (rows * weights[..., None]).sum(-2)

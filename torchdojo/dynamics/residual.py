"""The residual of one step, for a flat batch of environments: the specification of the engine. README.md beside it has the equations.

`StepProblem` holds all data of the step. The solver brings `residual(w)` to zero, and its complementarity rows to κ. `linearize` gives the
derivative with respect to the unknown, element by element. `linearize_data` gives the derivatives with respect to z and u.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdojo.dynamics import cones
from torchdojo.dynamics.integrator import LARGEST_SINE, momentum_change, next_pose
from torchdojo.dynamics.system import Group, System, select_rows
from torchdojo.elements.contacts import Contact
from torchdojo.elements.element import Element, Motion, Pose, Twist
from torchdojo.elements.joint_cones import JointLimits
from torchdojo.state.layout import TANGENT_SIZE, TWIST_SIZE, split_state, split_twists, with_world
from torchdojo.state.tangent import local_jacobian, retract
from torchdojo.state.unknowns import FIRST_ELEMENT

__all__ = ["StepProblem"]


_REMEDY = "make the constants in its code of the poses' dtype, parent.x.new_tensor(...), and its tensors {}"


class ElementJacobian(NamedTuple):
    """Derivatives of the elements of one group with respect to some local variables: impulses on the k bodies and the m own rows."""

    wrench: Tensor  # (N, E, 6k, n) by n variables
    rows: Tensor  # (N, E, m, n) by n variables


class StepProblem:
    """The equations of one step for N environments.

    Args:
        system: layout. parameters: result of `System.stack_parameters`, with batch dimensions flattened to N or 1.
        z: (N, 13 nb); u: (N, nu); wrench: (N, 6 nb).
        depenetration_speed: as in `SolverOptions`.
    """

    def __init__(
        self, system: System, parameters: Sequence[Tensor], z: Tensor, u: Tensor, wrench: Tensor, *, depenetration_speed: float | None
    ) -> None:
        self.system = system
        self.parameters = parameters
        self.z, self.u, self.wrench = z, u, wrench
        self.timestep, self.gravity, self.mass, self.inertia = parameters[:FIRST_ELEMENT]
        self.depenetration_speed = depenetration_speed
        self.elements = system.bind_elements(parameters)
        for element in self.elements:
            if isinstance(element, (Contact, JointLimits)):
                element.depenetration_speed = depenetration_speed
        self.state = split_state(z)
        # The world is one more body, at the origin and at rest.
        self.pose = with_world(self.state.pose)
        self.incoming = _with_still_world(torch.cat(self.state.twist, dim=-1))  # shape (N, nb + 1, 6)

    def select(self, index: Tensor) -> StepProblem:
        """The same problem for the environments `index`."""
        parameters = select_rows(self.parameters, index)
        return self.replace(parameters=parameters, z=self.z[index], u=self.u[index], wrench=self.wrench[index])

    def replace(self, **data: Any) -> StepProblem:
        """The same problem with other parameters, z, u or wrench."""
        same = {name: getattr(self, name) for name in ("parameters", "z", "u", "wrench")}
        return StepProblem(self.system, **(same | data), depenetration_speed=self.depenetration_speed)

    # -- residual ------------------------------------------------------------------------------------------------------------------------

    def body_twists(self, w: Tensor) -> Tensor:
        """v⁺, ω⁺ of the bodies and of the world, (N, nb + 1, 6)."""
        return _with_still_world(self.system.twists(w))

    def body_residual(self, twist: Tensor) -> Tensor:
        """Change of momentum without the impulses of elements, (N, nb, 6), for twists (N, nb, 6)."""
        return self.momentum_change(self.state.twist, split_twists(twist))

    def momentum_change(self, before: Twist, after: Twist) -> Tensor:
        """`integrator.momentum_change` between these velocities, (N, nb, 6)."""
        wrench = self.wrench.unflatten(-1, (-1, TWIST_SIZE))
        return momentum_change(self.mass, self.inertia, before, after, self.gravity[:, None], wrench, self.timestep[:, None, None])

    def element_residual(
        self, element: Element, pose: Pose, twist: Tensor, incoming: Tensor, impulse: Tensor, slack: Tensor, u: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(impulses on bodies (..., E, 6k), own rows (..., E, m)) from poses (..., E, k, ·), twists (..., E, k, 6) and local unknowns."""
        try:
            wrenches, rows = element.residual(self.motions(pose, twist, incoming), impulse, slack, u, self.timestep[:, None, None])
        except RuntimeError as error:
            if "dtype" in str(error) or "scalar type" in str(error):
                raise TypeError(f"{type(element).__name__}: {error}; {_REMEDY.format(twist.dtype)}") from error
            raise
        wrench = torch.cat([part for pair in wrenches for part in pair], dim=-1)
        if wrench.dtype != twist.dtype or rows.dtype != twist.dtype:
            raise TypeError(
                f"{type(element).__name__}: its impulses are {wrench.dtype} and its rows {rows.dtype} in a mechanism of {twist.dtype}; "
                f"{_REMEDY.format(twist.dtype)}"
            )
        return wrench, rows

    def motions(self, pose: Pose, twist: Tensor, incoming: Tensor) -> tuple[Motion, ...]:
        """One `Motion` per body of an element, from poses (..., E, k, ·) and twists (..., E, k, 6)."""
        h = self.timestep[:, None, None]
        result = []
        for i in range(twist.shape[-2]):
            body_pose = Pose(pose.x[..., i, :], pose.q[..., i, :])
            speed, before = split_twists(twist[..., i, :]), split_twists(incoming[..., i, :])
            result.append(Motion(body_pose, speed, next_pose(body_pose, speed, h), before, h))
        return tuple(result)

    def gather(self, group: Group, w: Tensor, twists: Tensor) -> tuple[Pose, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Arguments of `element_residual` for one group."""
        bodies = group.body_index
        pose = Pose(self.pose.x[:, bodies], self.pose.q[:, bodies])
        local = w[:, group.impulse_index], w[:, group.slack_index], self.u[:, group.input_index]
        return pose, twists[:, bodies], self.incoming[:, bodies], *local

    def effective_masses(self) -> list[Tensor]:
        """`Element.effective_mass` per group."""
        return [self.effective_mass(number) for number in range(len(self.elements))]

    def effective_mass(self, number: int) -> Tensor:
        """`Element.effective_mass` of the group with this number."""
        # Nothing moves the world.
        mass = torch.cat((self.mass, torch.full_like(self.mass[:, :1], torch.inf)), dim=1)
        rigid = torch.full_like(self.inertia[:, :1], torch.inf)
        inertia = torch.cat((self.inertia, rigid), dim=1)
        bodies = self.system.groups[number].body_index
        poses = tuple(Pose(self.pose.x[:, body], self.pose.q[:, body]) for body in bodies.unbind(-1))
        return self.elements[number].effective_mass(poses, mass[:, bodies], inertia[:, bodies], self.timestep[:, None, None])

    def residual(self, w: Tensor) -> Tensor:
        """(N, num_unknowns): momentum balance [N·s, N·m·s], joint and contact equations, complementarity products."""
        system = self.system
        twists = self.body_twists(w)
        residuals = self.body_residual(twists[:, :-1])
        # The angular momentum J ω √(1 − (h/2)²|ω|²) is largest at (h/2)|ω| = 1/√2. Faster velocities solve the equations, too, but on a
        # branch that is not the motion's. Thrown cubes at h = 0.05 would land there in 47 of 100,000 steps. So the rows become NaN there.
        sine = 0.5 * self.timestep[:, None] * torch.linalg.vector_norm(twists[:, :-1, 3:], dim=-1)
        residuals = torch.where((sine > LARGEST_SINE)[..., None], torch.nan, residuals)
        balance = torch.cat((residuals, torch.zeros_like(twists[:, :1])), dim=1)
        rows = []
        order = []
        for group, element in zip(system.groups, self.elements, strict=True):
            wrench, residuals = self.element_residual(element, *self.gather(group, w, twists))
            count = group.body_index.numel()
            balance = balance.index_add(1, group.body_index.flatten(), -wrench.reshape(len(w), count, 6))
            rows.append(residuals.flatten(1))
            order.append(group.impulse_index.flatten())
        products, product_index = cones.products(system, w)
        rows.append(products)
        order.append(product_index)
        values = torch.cat(rows, dim=1)
        r = torch.cat((balance[:, :-1].flatten(1), torch.zeros_like(values)), dim=1)
        return r.index_copy(1, torch.cat(order), values)

    def cold_start(self, level: float | Tensor) -> Tensor:
        """Velocities as before, no joint impulses, cone variables with products of about `level` (N,), (N, n).

        Bodies deep inside the world start at the speed at which they come out.
        """
        twist = self._leaving(torch.cat(self.state.twist, dim=-1)).flatten(1)
        w = torch.cat((twist, twist.new_zeros(len(twist), self.system.num_unknowns - twist.shape[1])), dim=1)
        return self.restart_cones(w, torch.as_tensor(level, dtype=w.dtype, device=w.device).expand(len(w)))

    def _leaving(self, twist: Tensor) -> Tensor:
        """Twists (N, nb, 6) with at least the speeds of `Contact.leaving`, contact by contact.

        From there, the first step of a humanoid 1 m deep takes 22 iterations. From rest it takes 191: it reaches continuation.
        """
        for group, element in zip(self.system.groups, self.elements, strict=True):
            if not isinstance(element, Contact) or group.body_index.shape[-1] > 1:
                continue
            body = group.body_index[:, 0]
            leaving = element.leaving(Pose(self.pose.x[:, body], self.pose.q[:, body]), self.timestep[:, None, None])
            if leaving is None or not bool((leaving[0] > 0).any()):
                continue
            twist = twist.clone()
            for speed, normal, i in zip(leaving[0].unbind(-1), leaving[1].unbind(-2), body.tolist(), strict=True):
                missing = (speed - (normal * twist[:, i, :3]).sum(-1)).clamp_min(0)
                twist[:, i, :3] += torch.where(speed > 0, missing, 0.0)[:, None] * normal
        return twist

    def restart_cones(self, w: Tensor, level: Tensor) -> Tensor:
        """A copy of w with all cone variables set anew for its velocities, with products of about `level` (N,)."""
        w = w.clone()
        twists = self.body_twists(w)
        for group, element in zip(self.system.groups, self.elements, strict=True):
            if group.slack_index.shape[-1]:
                motions = self.motions(*self.gather(group, w, twists)[:3])
                w[:, group.impulse_index], w[:, group.slack_index] = element.start(motions, level[:, None])
        return w

    # -- derivatives ---------------------------------------------------------------------------------------------------------------------

    def linearize(self, w: Tensor) -> tuple[Tensor, list[ElementJacobian]]:
        """Derivative of `body_residual` (N, nb, 6, 6), and per group the derivative by [k twists (6k), impulse (m), slack (d)]."""
        twists = self.body_twists(w)
        _, body = local_jacobian(self.body_residual, twists[:, :-1])
        blocks = []
        for group, element in zip(self.system.groups, self.elements, strict=True):
            pose, twist, incoming, impulse, slack, u = self.gather(group, w, twists)
            k, m = twist.shape[2], impulse.shape[-1]

            def local(
                y: Tensor,
                element: Element = element,
                args: tuple[Pose, Tensor, Tensor, int, int] = (pose, incoming, u, k, m),
            ) -> Tensor:
                pose, incoming, u, k, m = args
                twist, impulse, slack = y[..., : 6 * k].unflatten(-1, (k, 6)), y[..., 6 * k : 6 * k + m], y[..., 6 * k + m :]
                return torch.cat(self.element_residual(element, pose, twist, incoming, impulse, slack, u), dim=-1)

            _, jacobian = local_jacobian(local, torch.cat((twist.flatten(-2), impulse, slack), dim=-1))
            blocks.append(ElementJacobian(jacobian[..., : 6 * k, :], jacobian[..., 6 * k :, :]))
        return body, blocks

    def linearize_data(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Derivatives of the residual with respect to the tangent of z, (N, n, 12 nb), and to u, (N, n, nu)."""
        system, nb = self.system, self.system.num_bodies
        twists = self.body_twists(w)
        jac_z = w.new_zeros(len(w), system.num_unknowns + TWIST_SIZE, TANGENT_SIZE * (nb + 1))
        jac_u = w.new_zeros(len(w), system.num_unknowns + TWIST_SIZE, system.num_inputs)
        # The world's momentum comes after all other rows. It is cut off at the end.
        body_rows = torch.arange(TWIST_SIZE * nb, device=w.device).reshape(nb, TWIST_SIZE)
        world_rows = torch.arange(system.num_unknowns, system.num_unknowns + TWIST_SIZE, device=w.device)[None]
        momentum_rows = torch.cat((body_rows, world_rows))

        def balance(y: Tensor) -> Tensor:
            return self.momentum_change(split_twists(y), split_twists(twists[:, :-1]))

        _, velocity = local_jacobian(balance, torch.cat(self.state.twist, dim=-1))
        tangent = torch.arange(TANGENT_SIZE * (nb + 1), device=w.device).reshape(nb + 1, 4, 3)
        velocity_columns = tangent[:nb, 1::2].reshape(nb, 6)
        add_blocks(jac_z, body_rows, velocity_columns, velocity)

        for group, element in zip(system.groups, self.elements, strict=True):
            pose, twist, incoming, impulse, slack, u = self.gather(group, w, twists)
            k = twist.shape[2]
            moving = element.reads_incoming

            def local(
                y: Tensor,
                element: Element = element,
                args: tuple[Pose, Tensor, Tensor, Tensor, Tensor, int] = (pose, twist, incoming, impulse, slack, k),
            ) -> Tensor:
                pose, twist, incoming, impulse, slack, k = args
                delta, y = y[..., : 6 * k].unflatten(-1, (k, 6)), y[..., 6 * k :]
                if element.reads_incoming:
                    incoming, y = y[..., : 6 * k].unflatten(-1, (k, 6)), y[..., 6 * k :]
                moved = retract(pose, delta[..., :3], delta[..., 3:])
                wrench, rows = self.element_residual(element, moved, twist, incoming, impulse, slack, y)
                return torch.cat((-wrench, rows), dim=-1)

            data = (torch.zeros_like(twist).flatten(-2), *([incoming.flatten(-2)] if moving else []), u)
            _, jacobian = local_jacobian(local, torch.cat(data, dim=-1))
            rows = torch.cat((momentum_rows[group.body_index].flatten(-2), group.impulse_index), dim=-1)
            poses, jacobian = jacobian[..., : 6 * k], jacobian[..., 6 * k :]
            add_blocks(jac_z, rows, tangent[:, ::2].reshape(nb + 1, 6)[group.body_index].flatten(-2), poses)
            if moving:
                velocities, jacobian = jacobian[..., : 6 * k], jacobian[..., 6 * k :]
                add_blocks(jac_z, rows, tangent[:, 1::2].reshape(nb + 1, 6)[group.body_index].flatten(-2), velocities)
            if u.shape[-1]:
                add_blocks(jac_u, rows, group.input_index, jacobian)
        return jac_z[:, : system.num_unknowns, : TANGENT_SIZE * nb], jac_u[:, : system.num_unknowns]


def _with_still_world(twists: Tensor) -> Tensor:
    """Twists (N, nb, 6) with the zero twist of the world behind them."""
    return torch.cat((twists, torch.zeros_like(twists[:, :1])), dim=1)


def add_blocks(matrix: Tensor, rows: Tensor, columns: Tensor, blocks: Tensor) -> None:
    """Add blocks (N, E, a, b) into matrix (N, R, C), in place, at rows (E, a) and columns (E, b)."""
    index = (rows[:, :, None] * matrix.shape[-1] + columns[:, None, :]).flatten()
    matrix.view(len(matrix), -1).index_add_(1, index, blocks.expand(len(matrix), *blocks.shape[1:]).flatten(1))

"""The graph of a mechanism: every part that does not step.

The graph has modules and their names, sizes and layouts, poses, and the maps between coordinates. Steps (engine/) and the interface for
users (mechanism.py) stand on top of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from torchdojo import quaternion as quat
from torchdojo.elements.actuators import Actuators
from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import Contact
from torchdojo.elements.couplings import JointCoupling
from torchdojo.elements.element import Element, Pose, Twist, previous_pose
from torchdojo.elements.joint_cones import JointFriction, JointLimits
from torchdojo.elements.joint_drive import JointDrive
from torchdojo.elements.joints import Floating, Joint, StandardJoint
from torchdojo.elements.velocity_limits import JointVelocityLimits
from torchdojo.parameters import Modules, PhysicalModule, bind, check_tensor, module_dict, plain_class, require, stacked
from torchdojo.precision import in_float64
from torchdojo.state import minimal
from torchdojo.state.forks import use_own_threads
from torchdojo.state.layout import STATE_SIZE, TANGENT_SIZE, TWIST_SIZE, join_state, split_state, with_world
from torchdojo.state.redundancy import set_kept_rows
from torchdojo.state.unknowns import UnknownLayout

__all__ = ["Structure"]


class Structure(PhysicalModule):
    """Bodies, joints, contacts and couplings by name; `Mechanism` explains the arguments."""

    fields: ClassVar[dict[str, int]] = {"timestep": 0, "gravity": 1}
    timestep: Tensor
    gravity: Tensor
    bodies: nn.ModuleDict
    joints: nn.ModuleDict
    contacts: nn.ModuleDict
    couplings: nn.ModuleDict
    actuators: Actuators | None
    state_dtype: torch.dtype = torch.float64  #: of the states that `initial_state` builds; `.float()` changes it, and no number

    def __init__(self, bodies: Modules, joints: Modules, contacts: Modules, couplings: Modules, timestep: Any, gravity: Any) -> None:
        super().__init__()
        self.timestep = timestep
        self.gravity = gravity
        self.bodies = module_dict("bodies", bodies, Body)
        self.joints = module_dict("joints", joints, Joint)
        self.contacts = module_dict("contacts", contacts, Contact)
        self.couplings = module_dict("couplings", couplings, JointCoupling)
        self.actuators = None
        if not self.bodies:
            raise ValueError("Mechanism: got no bodies; give at least one, bodies={'name': td.Body(mass=..., inertia=...)}")
        for key, element in self.elements().items():
            for body in element.body_names:
                if body is not None and body not in self.bodies:
                    kind, _, name = key.partition("s.")
                    raise ValueError(f"{kind} {name!r} refers to body {body!r}; bodies are {list(self.bodies)}, and the world is None")
        self._add_floating_joints()
        self._attach_couplings()
        set_kept_rows(list(self.bodies), self.named_joints())
        #: Positions of each element's numbers in the unknown of the step and in u.
        self.layout: UnknownLayout
        Structure.rebuild(self)
        self._tree_joints = minimal.tree_names(self.named_joints())
        self._num_coordinates = sum(joint.num_coordinates for joint in minimal.tree_joints(self.named_joints()).values())

    def check_field(self, name: str, value: Tensor) -> Tensor:
        value = super().check_field(name, value)
        if name == "timestep":
            require(value > 0, self.label(name), value, "positive timesteps [s]")
        elif value.shape[-1] != 3:
            raise ValueError(f"{self.label(name)}: got shape {tuple(value.shape)}; allowed: (..., 3)")
        return value

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Structure:
        dtype = fn(torch.empty(0, dtype=self.state_dtype)).dtype
        if dtype in (torch.float32, torch.float64):
            self.state_dtype = dtype
        return super()._apply(fn, recurse)

    def _add_floating_joints(self) -> None:
        children = {joint.child for joint in self.named_joints().values()}
        for name in self.bodies:
            if name not in children:
                self.joints[f"world_to_{name}"] = Floating(None, name, actuated=False)

    def _attach_couplings(self) -> None:
        for name, coupling in self.named_couplings().items():
            try:
                coupling.attach(self.named_joints())
            except ValueError as error:
                raise ValueError(f"coupling {name!r}: {error}") from error

    # -- modules -------------------------------------------------------------------------------------------------------------------------

    def named_bodies(self) -> Mapping[str, Body]:
        """`bodies` with the type of its values, like the next three."""
        return cast(Mapping[str, Body], self.bodies)

    def named_joints(self) -> Mapping[str, Joint]:
        return cast(Mapping[str, Joint], self.joints)

    def named_contacts(self) -> Mapping[str, Contact]:
        return cast(Mapping[str, Contact], self.contacts)

    def named_couplings(self) -> Mapping[str, JointCoupling]:
        return cast(Mapping[str, JointCoupling], self.couplings)

    def elements(self) -> dict[str, Element]:
        """All joints, couplings and contacts ("joints.NAME", ...), and the elements that act on joints: "limits.NAME", "frictions.NAME",
        "velocity_limits.NAME", "drives.NAME"."""
        pairs = [
            (f"{kind}.{name}", element) for kind in ("joints", "couplings", "contacts") for name, element in getattr(self, kind).items()
        ]
        standard = {name: joint for name, joint in self.named_joints().items() if isinstance(joint, StandardJoint)}
        pairs += [(f"limits.{name}", JointLimits(joint)) for name, joint in self.named_joints().items() if any(joint.limited)]
        pairs += [(f"velocity_limits.{name}", JointVelocityLimits(joint)) for name, joint in standard.items() if joint.velocity_limited]
        pairs += [(f"frictions.{name}", JointFriction(joint)) for name, joint in standard.items() if joint.friction is not None]
        pairs += [(f"drives.{name}", JointDrive(joint)) for name, joint in standard.items() if joint.driven]
        return cast(dict[str, Element], dict(pairs))

    def rebuild(self) -> None:
        """Lay out the unknown of a step anew, after a joint got a servo (`StandardJoint.add_servo`). Solutions for warm starts change."""
        self.layout = UnknownLayout(len(self.bodies), self.elements())

    # -- sizes ---------------------------------------------------------------------------------------------------------------------------

    @property
    def num_bodies(self) -> int:
        return self.layout.num_bodies

    @property
    def num_inputs(self) -> int:
        return self.layout.num_inputs

    @property
    def num_coordinates(self) -> int:
        """Number of minimal coordinates: the sum over `tree_joints` (without loops and couplings, the degrees of freedom)."""
        return self._num_coordinates

    @property
    def tree_joints(self) -> list[str]:
        """Joints of the spanning tree whose coordinates are the minimal ones, in declared order; every other joint closes a loop.

        If several joints lead to a body, the tree has the first declared one that connects the body with the world. A user's joint that
        declares no coordinates closes a loop. If only such joints lead to a body, the body has six coordinates relative to the parent:
        position and rotation vector. They stand last, and are named "PARENT_to_BODY" ("world_to_BODY").
        """
        return list(self._tree_joints)

    @property
    def has_loops(self) -> bool:
        """Whether joints outside the spanning tree, or couplings, constrain its coordinates."""
        return not set(self.joints) <= set(self._tree_joints) or len(self.couplings) > 0

    @property
    def impulse_layout(self) -> dict[str, slice]:
        """Slices of each element's impulses in `StepOutput.impulses`: "joints.NAME", "contacts.NAME", ... -> slice.

        - "joints.NAME" of a standard joint: multipliers of the constrained translations, then rotations.
        - "contacts.NAME": γ; (γ, ξ₁, ξ₂, ξ₃) with a friction cone; (γ, ψ, β) with a pyramid. `NonlinearContact` gives the order of couples.
        - "couplings.NAME": the impulse on the follower's coordinate.
        - "limits.NAME" of a joint with limits: γ of the lower sides that act, coordinates in order, then of the upper sides.
        - "velocity_limits.NAME" of a joint with limits of speed: γ of the lower sides, rates of −v, then of the upper sides.
        - "frictions.NAME" of a joint with friction: p of all free coordinates, then q. The friction impulse is (p − q)/2.
        - "drives.NAME" of a joint whose servo has a range: p of these coordinates, then q. The impulse is (p − q)/2 + h (middle).
        """
        layout, start = {}, 0
        for key, piece in self.layout.impulses.items():
            layout[key] = slice(start, start + piece.stop - piece.start)
            start += piece.stop - piece.start
        return layout

    @property
    def input_layout(self) -> dict[str, slice]:
        """Slices of each actuated joint's inputs in u: name -> slice."""
        return dict(self.layout.inputs)

    # -- checks --------------------------------------------------------------------------------------------------------------------------

    def check_tensor(self, name: str, value: Any, size: int) -> None:
        """Raise unless `value` is a float64 tensor (..., size) on the mechanism's device."""
        use_own_threads()
        check_tensor(name, value, size, self.gravity, self.num_bodies)

    def check_state(self, z: Any, name: str = "z") -> None:
        self.check_tensor(name, z, STATE_SIZE * self.num_bodies)

    def check_inputs(self, z: Tensor, u: Tensor | None, wrench: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """z, u and wrench, checked, with zeros for None."""
        self.check_state(z)
        return z, *self.check_forces(u, wrench)

    def check_forces(self, u: Tensor | None, wrench: Tensor | None) -> tuple[Tensor, Tensor]:
        """u and wrench, checked, with zeros for None."""
        return self._checked("u", u, self.num_inputs), self._checked("wrench", wrench, TWIST_SIZE * self.num_bodies)

    def _checked(self, name: str, value: Tensor | None, size: int) -> Tensor:
        if value is None:
            return self.gravity.new_zeros(size, dtype=torch.float64)
        self.check_tensor(name, value, size)
        return value

    # -- poses ---------------------------------------------------------------------------------------------------------------------------

    def configurations(self, z: Tensor) -> tuple[Pose, Pose]:
        """Poses (..., nb + 1, ·) of the bodies and, behind them, of the world: at z, and one step before."""
        pose, twist = split_state(z)
        return with_world(pose), with_world(previous_pose(pose, twist, self.timestep[..., None, None]))

    def element_states(self, z: Tensor, element: Element) -> list[tuple[Pose, Twist]]:
        """Poses of the bodies of an element, and the velocities that led there. The world may be one of the bodies."""
        (x, q), (v, omega) = split_state(z)
        origin, number = z.new_zeros(3), {name: i for i, name in enumerate(self.bodies)}
        world = Pose(origin, quat.identity(z.dtype, z.device)), Twist(origin, origin)
        places = [None if name is None else number[name] for name in element.body_names]
        return [world if i is None else (Pose(x[..., i, :], q[..., i, :]), Twist(v[..., i, :], omega[..., i, :])) for i in places]

    def element_poses(self, z: Tensor, element: Element) -> list[Pose]:
        """Poses of the bodies of an element, as from `element_states`."""
        return [pose for pose, _ in self.element_states(z, element)]

    @in_float64
    def distances(self, z: Tensor) -> Tensor:
        """Signed distance of every contact [m], (..., number of contacts), contacts in order."""
        values = [contact.distance(*self.element_poses(z, contact)) for contact in self.named_contacts().values()]
        return torch.stack(torch.broadcast_tensors(*values), dim=-1) if values else z.new_zeros(*z.shape[:-1], 0)

    @in_float64
    def contact_points(self, z: Tensor) -> Tensor:
        """Point of every contact on the surface of its body, nearest to the other surface, world frame [m], (..., contacts, 3)."""
        values = [contact.place(*self.element_poses(z, contact)) for contact in self.named_contacts().values()]
        return torch.stack(torch.broadcast_tensors(*values), dim=-2) if values else z.new_zeros(*z.shape[:-1], 0, 3)

    @in_float64
    def contact_impulses(self, z: Tensor, impulses: Tensor) -> Tensor:
        """Impulse of every contact on its body, normal and friction together, world frame [N·s], (..., contacts, 3).

        A contact of the user's own whose `force` is not written has NaN.

        Args:
            z: (..., 13 nb), the states after the steps. impulses: (..., n) of these steps, as in `StepOutput` and `Trajectory`.
        """
        contacts, layout, pose = self.named_contacts(), self.impulse_layout, with_world(split_state(z)[0])
        number: dict[str | None, int] = {name: i for i, name in enumerate([*self.bodies, None])}
        kinds: dict[tuple[object, ...], list[str]] = {}
        for name, contact in contacts.items():
            kinds.setdefault((*contact.kind(), len(contact.body_names)), []).append(name)
        values: dict[str, Tensor] = {}
        for names in kinds.values():  # contacts of a kind at once: a robot of meshes has hundreds
            members = [contacts[name] for name in names]
            fields = {key: stacked([getattr(contact, key) for contact in members], ndim) for key, ndim in members[0].fields.items()}
            rows = torch.tensor([list(range(layout[f"contacts.{name}"].start, layout[f"contacts.{name}"].stop)) for name in names])
            places = torch.tensor([[number[body] for body in contact.body_names] for contact in members]).unbind(-1)
            poses = [Pose(pose.x[..., place, :], pose.q[..., place, :]) for place in places]
            value = bind(members[0], fields, plain_class(members[0])).world_impulse(impulses[..., rows], *poses)
            values |= dict(zip(names, value.unbind(-2), strict=True))
        together = torch.broadcast_tensors(*(values[name] for name in contacts))
        return torch.stack(together, dim=-2) if values else z.new_zeros(*z.shape[:-1], 0, 3)

    @in_float64
    def body_points(self, z: Tensor, body: str, points: Tensor) -> Tensor:
        """Points of a body in the world frame at z [m], (..., k, 3).

        Args:
            z: (..., 13 nb). body: its name. points: (..., k, 3) [m], in the body's frame, from its center of mass.

        Raises:
            ValueError: an unknown name, points of another shape.
        """
        self.check_state(z)
        if body not in self.bodies:
            raise ValueError(f"body_points: got {body!r}; bodies are {list(self.bodies)}")
        if points.ndim < 2 or points.shape[-1] != 3:
            raise ValueError(f"body_points: got points of shape {tuple(points.shape)}; allowed: (..., k, 3), one point as points[None]")
        start = STATE_SIZE * list(self.bodies).index(body)
        x, q = z[..., None, start : start + 3], quat.normalize(z[..., None, start + 6 : start + 10])
        return x + quat.rotate(q, points)

    @in_float64
    def joint_errors(self, z: Tensor) -> Tensor:
        """Rows of all joint equations [m, half-angle], then of the couplings [m, rad], at z, (..., n): zero when assembled."""
        return self.constraint_rows(z, [*self.named_joints().values(), *self.named_couplings().values()])

    def constraint_rows(self, z: Tensor, elements: list[Joint | JointCoupling], *, kept: bool = False) -> Tensor:
        """Rows of the equations of joints and couplings at z, side by side, (..., n); `kept`: only what loops do not repeat."""
        rows = [
            (element.kept_constraint if kept and isinstance(element, Joint) else element.constraint)(*self.element_poses(z, element))
            for element in elements
        ]
        batch = torch.broadcast_shapes(z.shape[:-1], *(row.shape[:-1] for row in rows))
        return torch.cat([z.new_zeros(*batch, 0), *(row.expand(*batch, row.shape[-1]) for row in rows)], dim=-1)

    # -- coordinates ---------------------------------------------------------------------------------------------------------------------

    def tree_order(self) -> list[minimal.JointOrder]:
        """The joints of the spanning tree from the world outwards.

        Raises:
            ValueError: no chain of joints with coordinates connects a body with the world.
        """
        return minimal.spanning_order(list(self.bodies), self.named_joints())

    def coordinate_places(self) -> dict[str, slice]:
        """Places of the coordinates of each tree joint in q; none where the tree does not reach a body."""
        try:
            return {entry.name: entry.coordinates for entry in self.tree_order()}
        except ValueError:
            return {}

    def quick_coordinates(self, z: Tensor) -> tuple[Tensor, Tensor] | None:
        """Minimal coordinates of a checked z where the kernel computes them (`Mechanism`), or None."""
        return None

    def check_coordinates(self, q: Tensor, qd: Tensor | None) -> tuple[Tensor, Tensor]:
        """q and qd (..., num_coordinates), checked and of one shape, with zeros for None."""
        self.check_tensor("q", q, self.num_coordinates)
        qd = torch.zeros_like(q) if qd is None else qd
        self.check_tensor("qd", qd, self.num_coordinates)
        q, qd = torch.broadcast_tensors(q, qd)
        return q, qd

    @in_float64
    def retract(self, z: Tensor, delta: Tensor) -> Tensor:
        """Move a state along the tangent (..., 12 nb), per body [dx, dv, dphi, domega]. Quaternions keep their unit norm."""
        self.check_state(z)
        self.check_tensor("delta", delta, TANGENT_SIZE * self.num_bodies)
        state = split_state(z)
        dx, dv, dphi, domega = delta.unflatten(-1, (-1, TANGENT_SIZE)).split(3, dim=-1)
        pose = Pose(state.pose.x + dx, quat.multiply(state.pose.q, quat.exp(dphi)))
        return join_state(pose, Twist(state.twist.v + dv, state.twist.omega + domega))

    @in_float64
    def difference(self, z: Tensor, reference: Tensor) -> Tensor:
        """Tangent (..., 12 nb) that leads from `reference` to z; inverse of `retract`."""
        self.check_state(z)
        self.check_state(reference, "reference")
        a, b = split_state(reference), split_state(z)
        turn = quat.rotation_vector(quat.multiply(quat.conjugate(a.pose.q), b.pose.q))
        return torch.cat((b.pose.x - a.pose.x, b.twist.v - a.twist.v, turn, b.twist.omega - a.twist.omega), dim=-1).flatten(-2)

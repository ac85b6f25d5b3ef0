"""The graph of a mechanism: every part that does not step.

The graph has modules and their names, sizes and layouts, poses, and the maps between coordinates. Steps (engine/) and the interface for
users (mechanism.py) stand on top of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn

from torchdojo import quaternion as quat
from torchdojo.elements.actuators import Actuators
from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import Contact
from torchdojo.elements.coupling import Coupling
from torchdojo.elements.couplings import check_ranges
from torchdojo.elements.element import Element, Pose, Twist, previous_pose
from torchdojo.elements.joint_cones import JointFriction, JointLimits
from torchdojo.elements.joint_drive import JointDrive
from torchdojo.elements.joints import Floating, Joint, StandardJoint
from torchdojo.elements.tendon import Tendon
from torchdojo.elements.together import contacts_by_kind
from torchdojo.elements.velocity_limits import JointVelocityLimits
from torchdojo.parameters import Modules, PhysicalModule, broadcast_shapes, check_tensor, plain_class, require, short
from torchdojo.precision import in_float64
from torchdojo.state import minimal
from torchdojo.state.forks import use_own_threads
from torchdojo.state.layout import STATE_SIZE, TANGENT_SIZE, TWIST_SIZE, join_state, split_state, with_world
from torchdojo.state.parts import Parts, checked_parts
from torchdojo.state.redundancy import set_kept_rows
from torchdojo.state.unknowns import UnknownLayout

__all__ = ["BodyState", "Structure"]

SINGULAR = {"bodies": "body", "joints": "joint", "contacts": "contact", "couplings": "coupling", "tendons": "tendon"}
MOST_SHOWN = 32  # parts of a kind in the representation
KINDS: dict[str, type[nn.Module]] = dict(zip(SINGULAR, (Body, Joint, Contact, Coupling, Tendon), strict=True))
DERIVED = "layout", "_tree_joints", "_has_loops", "_num_coordinates", "_free_joints", "backends"  # of a mechanism, from its modules


class BodyState(NamedTuple):
    """The part of z that belongs to one body.

    x: (..., 3) position of the center of mass [m], world frame. v: (..., 3) its velocity over the step that led there [m/s], world frame.
    q: (..., 4) orientation, unit quaternion wxyz, body to world. omega: (..., 3) angular velocity [rad/s], body frame.
    """

    x: Tensor
    v: Tensor
    q: Tensor
    omega: Tensor


class Structure(PhysicalModule):
    """Bodies, joints, contacts, couplings and tendons by name; `Mechanism` explains the arguments."""

    fields: ClassVar[dict[str, int]] = {"timestep": 0, "gravity": 1}
    timestep: Tensor
    gravity: Tensor
    bodies: nn.ModuleDict
    joints: nn.ModuleDict
    contacts: nn.ModuleDict
    couplings: nn.ModuleDict
    tendons: nn.ModuleDict
    actuators: Actuators | None
    state_dtype: torch.dtype = torch.float64  #: of the states that `initial_state` builds; `.float()` changes it, and no number

    def __init__(
        self, bodies: Modules, joints: Modules, contacts: Modules, couplings: Modules, tendons: Modules, timestep: Any, gravity: Any
    ) -> None:
        super().__init__()
        self.timestep = timestep
        self.gravity = gravity
        for kind in KINDS:
            self.add_module(kind, Parts({}))
        self.actuators = None
        self._free_joints: frozenset[str] = frozenset()  # names of the joints that bodies get to which no other joint leads
        #: Positions of each element's numbers in the unknown of the step and in u.
        self.layout: UnknownLayout
        self._assemble(bodies=bodies, joints=joints, contacts=contacts, couplings=couplings, tendons=tendons)
        self._claim()

    # -- building, and edits afterwards --------------------------------------------------------------------------------------------------

    def _claim(self) -> None:
        """Let edits of the dictionaries, and of attributes of their modules, come here."""
        for kind in KINDS:
            parts = cast(Parts, getattr(self, kind))
            parts._belongs_to(self, kind)
            for module in parts.values():
                cast(PhysicalModule, module)._belongs_to(self)

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        self._claim()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in KINDS and name in self._modules:
            self._edit(name, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in KINDS:
            raise AttributeError(f"{name}: a mechanism always has them; to remove all, mech.{name}.clear()")
        super().__delattr__(name)

    def _edit(self, kind: str, modules: Modules) -> None:
        """Take other modules as bodies, joints, contacts, couplings or tendons, and lay all out anew: `mech.contacts["tip"] = ...`.

        The result is the mechanism that would be built of these modules. Bodies that lose their last joint get a free one, and bodies that
        get a joint lose their free one. Solutions for warm starts change. Edits that raise leave the mechanism as it was.

        Raises:
            ValueError, TypeError: what building a mechanism refuses; the free joint of a body, or a joint that an actuator drives.
        """
        self._checked_edit({kind: checked_parts(kind, modules, KINDS[kind])})

    def rebuild(self) -> None:
        """Check and lay out the mechanism anew. Edits do so by themselves. It is needed where attributes of a user's own element change
        that decide on its rows, or after `StandardJoint.add_servo`. Solutions for warm starts change."""
        self._checked_edit({})

    def _checked_edit(self, given: dict[str, dict[str, Any]]) -> None:
        """`_assemble`, with everything as before if it raises."""
        before = {kind: dict(getattr(self, kind).items()) for kind in KINDS}
        joints = {**before["joints"], **given.get("joints", {})}
        derived = {name: self.__dict__.get(name) for name in DERIVED}
        rows = [(joint, joint.kept_rows) for joint in joints.values() if isinstance(joint, StandardJoint)]
        runs = [part for kind in ("couplings", "tendons") for part in (*before[kind].values(), *given.get(kind, {}).values())]
        ends = [(part, part.joints) for part in runs]
        try:
            self._refuse_edit(before["joints"], given)
            for part in (*before["couplings"].values(), *before["tendons"].values()):
                part.joints = ()
            self._assemble(**given)
        except Exception:
            for kind, modules in before.items():
                getattr(self, kind)._hold(modules)
            for joint, kept in rows:
                joint.kept_rows = kept
            for part, old in ends:
                part.joints = old
            self.__dict__.update({name: value for name, value in derived.items() if value is not None})
            raise
        for kind, modules in before.items():
            identities = [id(module) for module in getattr(self, kind).values()]
            for module in modules.values():
                if id(module) not in identities:
                    module._belongs_to(self, False)
        self._claim()
        if self.actuators is not None:
            self._arrange(self.actuators)

    def _arrange(self, actuators: Actuators) -> None:
        """Move what actuators have for each input to the places that their inputs have now."""
        before, ranges = actuators.input_index, actuators.inputrange
        actuators.locate()
        everywhere = ranges.new_tensor([-torch.inf, torch.inf]).expand(*ranges.shape[:-2], self.num_inputs, 2)
        moved = everywhere.index_copy(-2, actuators.input_index, ranges.index_select(-2, before))
        if moved.shape != ranges.shape or not torch.equal(moved, ranges):
            actuators.inputrange = moved

    def _refuse_edit(self, before: dict[str, Joint], given: dict[str, dict[str, Any]]) -> None:
        """Raise ValueError for edits that would have no effect, or would take a joint from its actuators."""
        after = given.get("joints", before)
        gone = [name for name in self._free_joints if name not in after]
        if gone and all(after.get(name) is joint for name, joint in before.items() if name not in self._free_joints):
            raise ValueError(
                f"joints: {gone[0]!r} is the free joint of body {before[gone[0]].child!r}, to which no other joint leads, and cannot be "
                f"deleted; give the body a joint, mech.joints[NAME] = td.Fixed(None, {before[gone[0]].child!r}), or delete the body"
            )
        for name, joint in () if self.actuators is None else zip(self.actuators.names, self.actuators.joints, strict=True):
            if after.get(joint) is not before.get(joint):
                raise ValueError(
                    f"joints: actuator {name!r} drives {joint!r}, which can be neither replaced nor deleted while it does; take the "
                    "actuators off, mech.actuators = None, edit, and give them anew with td.actuate"
                )

    def _assemble(self, **given: Modules) -> None:
        """Check the modules and those that stay, take them, and lay out what follows from them."""
        owned = {kind: {name: module for name, module in getattr(self, kind).items()} for kind in KINDS}
        parts = {kind: checked_parts(kind, given.get(kind, owned[kind]), cls) for kind, cls in KINDS.items()}
        if not parts["bodies"]:
            raise ValueError("Mechanism: got no bodies; give at least one, bodies={'name': td.Body(mass=..., inertia=...)}")
        free = {name: owned["joints"][name] for name in self._free_joints}
        joints = {name: joint for name, joint in parts["joints"].items() if free.get(name) is not joint}
        for kind in ("joints", "contacts", "tendons"):
            for name, element in (joints if kind == "joints" else parts[kind]).items():
                self._check_bodies(f"{kind[:-1]} {name!r}", element, parts["bodies"])
        children = {joint.child for joint in joints.values()}
        added = {f"world_to_{name}": name for name in parts["bodies"] if name not in children}
        for name, body in added.items():
            if name in joints:
                raise ValueError(
                    f"joints: {name!r} is the name of the free joint that body {body!r} gets, to which no joint leads; rename yours"
                )
        parts["joints"] = {**joints, **{name: free.get(name) or Floating(None, body, actuated=False) for name, body in added.items()}}
        for kind, modules in parts.items():
            getattr(self, kind)._hold(modules)
        self._free_joints = frozenset(added)
        for part, label in [(part, f"{SINGULAR[k]} {name!r}") for k in ("couplings", "tendons") for name, part in getattr(self, k).items()]:
            try:
                part.attach(self.named_joints())
            except ValueError as error:
                raise ValueError(f"{label}: {error}") from error
        check_ranges(self.named_couplings(), self.named_joints())
        set_kept_rows(list(self.bodies), self.named_joints())
        self._lay_out()

    def _check_bodies(self, label: str, element: Element, bodies: Mapping[str, Body]) -> None:
        if len(set(element.body_names)) < len(element.body_names) and not isinstance(element, Tendon):
            raise ValueError(f"{label} is between {element.body_names}; allowed: different bodies")
        for body in element.body_names:
            if body is not None and body not in bodies:
                raise ValueError(f"{label} refers to body {body!r}; bodies are {list(bodies)}, and the world is None")

    def _lay_out(self) -> None:
        """Compute what follows from the modules; `Mechanism` adds its backends."""
        self.layout = UnknownLayout(len(self.bodies), self.elements())
        self._tree_joints = minimal.tree_names(self.named_joints())
        chords = (joint for name, joint in self.named_joints().items() if name not in self._tree_joints)
        self._has_loops = len(self.couplings) > 0 or any(joint.num_rows for joint in chords)
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

    def __repr__(self) -> str:
        """Sizes, then one line for each part: what it is, between which bodies, its coordinates in q and its inputs in u, its numbers."""
        kinds = [f"{len(getattr(self, kind))} {kind if len(getattr(self, kind)) != 1 else SINGULAR[kind]}" for kind in KINDS]
        timestep = short(self.timestep)
        sizes = f"q has {self.num_coordinates} numbers, u has {self.num_inputs}, timestep {timestep} s"
        lines = [f"{plain_class(self).__name__}: {', '.join(kinds)}; {sizes}"]
        coordinates, inputs = self.coordinate_places(), self.input_layout
        for kind in KINDS:
            modules = getattr(self, kind)
            for name in list(modules)[:MOST_SHOWN]:
                places = [
                    f"{of}[{place.start}:{place.stop}]"
                    for of, place in (("q", coordinates.get(name)), ("u", inputs.get(name)))
                    if kind == "joints" and place is not None and place.stop > place.start
                ]
                lines.append(f"  {SINGULAR[kind]} {name}: {' '.join([repr(modules[name]), *places])}")
            if len(modules) > MOST_SHOWN:
                lines.append(f"  ... and {len(modules) - MOST_SHOWN} more {kind}")
        if self.actuators is not None:
            lines.append(f"  actuators: {', '.join(self.actuators.names)}")
        return "\n".join(lines)

    # -- modules -------------------------------------------------------------------------------------------------------------------------

    def named_bodies(self) -> Mapping[str, Body]:
        """`bodies` with the type of its values, like the next four."""
        return cast(Mapping[str, Body], self.bodies)

    def named_joints(self) -> Mapping[str, Joint]:
        return cast(Mapping[str, Joint], self.joints)

    def named_contacts(self) -> Mapping[str, Contact]:
        return cast(Mapping[str, Contact], self.contacts)

    def named_couplings(self) -> Mapping[str, Coupling]:
        return cast(Mapping[str, Coupling], self.couplings)

    def named_tendons(self) -> Mapping[str, Tendon]:
        return cast(Mapping[str, Tendon], self.tendons)

    def elements(self) -> dict[str, Element]:
        """All joints, couplings, tendons and contacts ("joints.NAME", ...), and the elements that act on joints: "limits.NAME",
        "frictions.NAME", "velocity_limits.NAME", "drives.NAME"."""
        pairs = [(f"{k}.{name}", e) for k in ("joints", "couplings", "tendons", "contacts") for name, e in getattr(self, k).items()]
        standard = {name: joint for name, joint in self.named_joints().items() if isinstance(joint, StandardJoint)}
        pairs += [(f"limits.{name}", JointLimits(joint)) for name, joint in self.named_joints().items() if any(joint.limited)]
        pairs += [(f"velocity_limits.{name}", JointVelocityLimits(joint)) for name, joint in standard.items() if joint.velocity_limited]
        pairs += [(f"frictions.{name}", JointFriction(joint)) for name, joint in standard.items() if joint.friction is not None]
        pairs += [(f"drives.{name}", JointDrive(joint)) for name, joint in standard.items() if joint.driven]
        return cast(dict[str, Element], dict(pairs))

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
        """Whether joints outside the spanning tree, or couplings, constrain its coordinates. Joints without rows do not."""
        return self._has_loops

    @property
    def impulse_layout(self) -> dict[str, slice]:
        """Slices of each element's impulses in `StepOutput.impulses`: "joints.NAME", "contacts.NAME", ... -> slice.

        - "joints.NAME" of a standard joint: multipliers of the constrained translations, then rotations.
        - "contacts.NAME": γ; (γ, ξ₁, ξ₂, ξ₃) with a friction cone; (γ, ψ, β) with a pyramid. `NonlinearContact` gives the order of couples.
        - "couplings.NAME": the impulse on the follower's coordinate.
        - "tendons.NAME": the impulse along the length, positive where it pushes.
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
        """Slices of the inputs of actuated joints and tendons in u: name -> slice."""
        return dict(self.layout.inputs)

    # -- checks --------------------------------------------------------------------------------------------------------------------------

    def check_tensor(self, name: str, value: Any, size: int, like: Tensor | None = None) -> None:
        """Raise unless `value` is a float64 tensor (..., size) on the mechanism's device, or on that of `like`."""
        use_own_threads()
        check_tensor(name, value, size, self.gravity, self.num_bodies, like)

    def check_state(self, z: Any, name: str = "z", like: Tensor | None = None) -> None:
        self.check_tensor(name, z, STATE_SIZE * self.num_bodies, like)

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
    def body_state(self, z: Tensor, body: str) -> BodyState:
        """Position, velocity, orientation and angular velocity of a body: ``mech.body_state(z, "trunk").x``.

        The tensors are views of z (..., 13 nb), which gradients pass, and writing into them writes into z.

        Raises:
            ValueError: an unknown name.
        """
        self.check_state(z)
        start = STATE_SIZE * self._number("body_state", body)
        return BodyState(*z[..., start : start + STATE_SIZE].split((3, 3, 4, 3), dim=-1))

    def _number(self, call: str, body: str) -> int:
        if body not in self.bodies:
            raise ValueError(f"{call}: got {body!r}; bodies are {list(self.bodies)}")
        return list(self.bodies).index(body)

    @in_float64
    def contact_impulses(self, z: Tensor, impulses: Tensor) -> Tensor:
        """Impulse of every contact on its body, normal and friction together, world frame [N·s], (..., contacts, 3).

        A contact of the user's own whose `force` is not written has NaN.

        Args:
            z: (..., 13 nb), the states after the steps. impulses: (..., n) of these steps, as in `StepOutput` and `Trajectory`.
        """
        contacts, layout = self.named_contacts(), self.impulse_layout
        values: dict[str, Tensor] = {}
        for names, contact, poses in contacts_by_kind(contacts, list(self.bodies), with_world(split_state(z)[0])):
            pieces = [layout[f"contacts.{name}"] for name in names]
            rows = torch.tensor([list(range(piece.start, piece.stop)) for piece in pieces])
            values |= dict(zip(names, contact.world_impulse(impulses[..., rows], *poses).unbind(-2), strict=True))
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
        number = self._number("body_points", body)
        if points.ndim < 2 or points.shape[-1] != 3:
            raise ValueError(f"body_points: got points of shape {tuple(points.shape)}; allowed: (..., k, 3), one point as points[None]")
        start = STATE_SIZE * number
        x, q = z[..., None, start : start + 3], quat.normalize(z[..., None, start + 6 : start + 10])
        return x + quat.rotate(q, points)

    @in_float64
    def joint_errors(self, z: Tensor) -> Tensor:
        """Rows of all joint equations [m, half-angle], then of the couplings [m, rad], at z, (..., n): zero when assembled."""
        return self.constraint_rows(z, [*self.named_joints().values(), *self.named_couplings().values()])

    def constraint_rows(self, z: Tensor, elements: list[Joint | Coupling], *, kept: bool = False) -> Tensor:
        """Rows of the equations of joints and couplings at z, side by side, (..., n); `kept`: only rows that act, once each."""
        rows = [(element.kept_constraint if kept else element.constraint)(*self.element_poses(z, element)) for element in elements]
        batch = broadcast_shapes(z.shape[:-1], *(row.shape[:-1] for row in rows))
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

    def check_coordinates(self, q: Tensor, qd: Tensor | None, like: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """q and qd (..., num_coordinates), checked and of one shape, with zeros for None."""
        self.check_tensor("q", q, self.num_coordinates, like)
        qd = torch.zeros_like(q) if qd is None else qd
        self.check_tensor("qd", qd, self.num_coordinates, like)
        return torch.broadcast_tensors(q, qd)

    @in_float64
    def retract(self, z: Tensor, delta: Tensor) -> Tensor:
        """Move a state along the tangent (..., 12 nb), per body [dx, dv, dphi, domega]. Quaternions keep their unit norm."""
        self.check_state(z)
        self.check_tensor("delta", delta, TANGENT_SIZE * self.num_bodies)
        (x, q), (v, omega) = split_state(z)
        dx, dv, dphi, domega = delta.unflatten(-1, (-1, TANGENT_SIZE)).split(3, dim=-1)
        return join_state(Pose(x + dx, quat.multiply(q, quat.exp(dphi))), Twist(v + dv, omega + domega))

    @in_float64
    def difference(self, z: Tensor, reference: Tensor) -> Tensor:
        """Tangent (..., 12 nb) that leads from `reference` to z; inverse of `retract`."""
        self.check_state(z)
        self.check_state(reference, "reference")
        a, b = split_state(reference), split_state(z)
        turn = quat.rotation_vector(quat.multiply(quat.conjugate(a.pose.q), b.pose.q))
        return torch.cat((b.pose.x - a.pose.x, b.twist.v - a.twist.v, turn, b.twist.omega - a.twist.omega), dim=-1).flatten(-2)

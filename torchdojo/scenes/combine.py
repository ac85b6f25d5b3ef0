"""Mechanisms, bodies and fixed shapes put together by name: one mechanism, which is stepped and differentiated as any other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from torchdojo.elements.actuators import Actuator, Actuators
from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import Contact, NonlinearContact
from torchdojo.elements.joints import Floating
from torchdojo.elements.near_contact import NearContact
from torchdojo.elements.near_rule import Near, NearRule
from torchdojo.elements.touching import Solids, contacts_of, selected
from torchdojo.geometry.grids import DistanceGrid
from torchdojo.geometry.heights import HeightField
from torchdojo.geometry.shapes import Shape
from torchdojo.geometry.world import Plane, World
from torchdojo.mechanism import Mechanism
from torchdojo.parameters import broadcast_shapes, differentiated, short, warn_user
from torchdojo.posing.poses import Keyframe
from torchdojo.scenes.copies import Renamer, copied
from torchdojo.scenes.scenery import drawn
from torchdojo.scenes.senses import add_senses
from torchdojo.solver.options import SolverOptions
from torchdojo.state.parts import Parts

__all__ = ["combine"]

TIMESTEP, GRAVITY = 0.01, (0.0, 0.0, -9.81)  # of a scene without a mechanism

Piece = Mechanism | Body | World


def combine(
    parts: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
    /,
    *,
    contacts: Any = "all",
    friction: Any = 0.5,
    model: Callable[..., Contact] = NonlinearContact,
    near: Near = "auto",
    slots: int | None = None,
    pitch: float | None = None,
    timestep: Any = None,
    gravity: Any = None,
    options: SolverOptions | None = None,
    **named: Any,
) -> Mechanism:
    """One mechanism of several: ``td.combine(arm=td.load("arm.urdf"), crate=td.Body(2.0, shape=td.Box((.2, .2, .2))), floor=td.Plane())``.

    The bodies, joints, contacts, couplings, actuators, tendons, sites, sensors and poses of a mechanism get its name in front,
    "robot/hand". A body has the name of its part, and floats. Shapes and planes stand still in the world. `mech.part("robot")` has the
    places of a part's numbers in the state, the coordinates, the inputs and the controls, which follow the order of the parts. States of
    parts side by side are one of the scene. ``mech.initial_state(robot={"pose": "home", "hip": 0.3}, crate={"position": (0, 0, 1)})`` gives
    values by part. `mech.poses` has the poses of each part, "robot/home", and under "home" those of all parts that have one of that name.

    The parts stay as they are. The scene has copies of their modules, with the same tensors where these require grad, so that gradients
    reach the numbers of the parts. Other numbers are copied: let those that are to be learned require grad first. Numbers of actuators of
    several parts become new tensors, which have the gradients of the parts' numbers, and not their later values.

    Args:
        parts, named: mechanisms, bodies with or without shapes, fixed shapes in the world frame, planes (`td.Plane`), by name.
        contacts: which bodies touch each other, besides the contacts that mechanisms bring with them. "all": every body those of other
            parts, the fixed shapes and the planes. A list of pairs of names of parts, bodies or patterns, or a `td.Filter`. None: none.
            Spheres, capsules, boxes, cylinders, hulls and meshes (as their hulls) touch each other, ellipsoids all but cylinders and hulls.
            A plane touches every shape with contact points. A warning names pairs without contacts, or with points alone. A pair without
            contacts raises if both its bodies are named. Bodies that a mechanism lets touch already keep these contacts.
        friction: Coulomb coefficient of the contacts made here; None for a model without one. model: their class, or a function with its
            arguments.
        near: "auto": shapes without a closed form, such as cylinders and hulls, get near contacts (`td.near_contacts`), of which steps
            take those that are near. True: all pairs of shapes do, but for ellipsoids. False: none; boxes then feel points of cylinders
            and hulls alone, other shapes nothing of them. Near contacts need the CPU, and refuse `torch.func` and ``adaptive=``.
        slots: places of contact of each pair of shapes with near contacts; None: by the shapes, 8 for two bodies of one part.
        pitch: distance of points on edges and faces of shapes that touch height fields [m], so that no peak enters between the corners:
            by at most K (pitch²/6 + r pitch/√3) of the curvature K, `HeightField.most_bend`, and the radius r of edges, at most 1 mm. None:
            the contact points of shapes alone. Shapes are constants then. Half of the field's cell is small enough for all surfaces.
        timestep, gravity, options: of the scene. None: those of the mechanisms, which then must have the same.

    Every contact costs time in every step, however far apart its bodies are. So pairs that never meet are best left out.

    Raises:
        ValueError: no body; names that are unusable, unknown or given twice; a mechanism given twice; mechanisms with other timesteps,
            gravity or options; contacts that cannot be made; actuators with a law of their own.
        TypeError: something else than these parts.
    """
    pieces, rule = _checked(parts, named), NearRule(near, slots, pitch)
    mechanisms = {name: piece for name, piece in pieces.items() if isinstance(piece, Mechanism)}
    single = {name: piece for name, piece in pieces.items() if isinstance(piece, Body)}
    world = {name: cast(World, piece) for name, piece in pieces.items() if name not in mechanisms and name not in single}
    if not mechanisms and not single:
        raise ValueError(f"combine: got no body that moves among {list(pieces)}; give a mechanism or a td.Body")
    modules: dict[str, dict[str, Any]] = {"bodies": {}, "joints": {}, "contacts": {}, "couplings": {}, "tendons": {}}
    for name, piece in pieces.items():
        if isinstance(piece, Mechanism):
            for kind, added in _renamed(name, piece).items():
                modules[kind].update(added)
        elif isinstance(piece, Body):
            modules["bodies"][name] = copied([piece])[0]
            modules["joints"][f"world_to_{name}"] = Floating(None, name, actuated=False)
    if contacts is not None:
        solids = Solids(modules["bodies"], modules["joints"].values(), world)
        modules["contacts"].update(_contacts(solids, modules["contacts"], contacts, model, friction, rule))
    mech = Mechanism(
        **modules,
        timestep=_common("timestep", mechanisms, timestep, TIMESTEP),
        gravity=_common("gravity", mechanisms, gravity, GRAVITY),
        options=_common_options(mechanisms, options),
    )
    mech.part_names = tuple(name for name in pieces if name not in world)
    fixed = [contact for contact in mech.named_contacts().values() if contact.other is None]
    touched = {contact.surface_name for contact in fixed if not isinstance(contact, NearContact)}
    for contact in fixed:
        if isinstance(contact, NearContact) and contact.surface_name in world:
            contact.in_scenery = True
    mech.scenery = tuple(visual for piece in mechanisms.values() for visual in piece.scenery) + drawn(world, touched)
    mech.load_report = {name: piece.load_report for name, piece in mechanisms.items() if piece.load_report is not None} or None
    dtypes = {piece.state_dtype for piece in mechanisms.values()}
    if len(dtypes) == 1:
        mech.state_dtype = dtypes.pop()
    _actuate(mech, mechanisms)
    driven = [name for name, piece in mechanisms.items() if piece.drives is not None]
    if driven:
        warn_user(f"combine: the drives of {driven} are left out, with their muscles and activations; give the scene td.Drives(scene, ...)")
    passive = [name for name, piece in mechanisms.items() if piece.passive is not None]
    if passive:
        warn_user(f"combine: the passive forces of {passive} are left out, drag and gravity compensation; see td.PassiveForces(scene, ...)")
    add_senses(mech, mechanisms)
    mech.poses = _poses(mech, mechanisms)
    return mech


def _checked(parts: Any, named: Mapping[str, Any]) -> dict[str, Piece]:
    """The parts by name, in order."""
    pairs = list(parts.items() if isinstance(parts, Mapping) else parts) + list(named.items())
    if not pairs:
        raise ValueError("combine: got no parts; give mechanisms, bodies and shapes by name, td.combine(robot=..., crate=...)")
    empty = Parts({})
    pieces: dict[str, Piece] = {}
    for name, piece in pairs:
        if not isinstance(name, str) or not name or any(sign in name for sign in "./*?[") or name == "world" or hasattr(empty, name):
            raise ValueError(
                f"combine: {name!r} cannot be the name of a part; allowed: non-empty strings without . / * ? [, not 'world', not a method "
                "of nn.ModuleDict"
            )
        if name in pieces:
            raise ValueError(f"combine: the name {name!r} is given twice; names of parts must differ")
        if not isinstance(piece, (Mechanism, Body, Shape, Plane, HeightField, DistanceGrid)):
            raise TypeError(f"combine: part {name!r} is a {type(piece).__name__}; allowed: td.Mechanism, td.Body, a shape, td.Plane")
        twice = [other for other, earlier_piece in pieces.items() if earlier_piece is piece and isinstance(piece, (Mechanism, Body))]
        if twice:
            raise ValueError(f"combine: {name!r} is the same object as {twice[0]!r}; give a copy, {name}=copy.deepcopy(...)")
        pieces[name] = piece
    return pieces


def _renamed(part: str, mech: Mechanism) -> dict[str, dict[str, Any]]:
    """Copies of the modules of a mechanism, under the names that they have in the scene."""
    kinds = {kind: dict(getattr(mech, kind).items()) for kind in ("bodies", "joints", "contacts", "couplings", "tendons")}
    every = iter(copied([module for modules in kinds.values() for module in modules.values()]))
    result = {kind: {f"{part}/{name}": next(every) for name in modules} for kind, modules in kinds.items()}
    names = Renamer(lambda body: f"{part}/{body}", lambda joint: f"{part}/{joint}")
    for kind in ("joints", "contacts", "couplings", "tendons"):
        for name, element in result[kind].items():
            names.rename(element, f"combine: {kind} {name!r}")
            if isinstance(element, Contact) and element.surface_name != "world":
                element.surface_name = f"{part}/{element.surface_name}"
    return result


def _contacts(
    solids: Solids, own: Mapping[str, Contact], contacts: Any, model: Callable[..., Contact], friction: Any, rule: NearRule
) -> dict[str, Contact]:
    """The contacts that the scene adds, with a warning of pairs that get none."""
    there = {frozenset(contact.body_names) for contact in own.values() if contact.other is not None}
    planes = {(contact.body, name) for contact in own.values() for name, item in solids.world.items() if _on_plane(contact, item)}
    chosen = [pair for pair in selected(solids, contacts) if frozenset(pair[:2]) not in there and (pair.body, pair.other) not in planes]
    made = contacts_of(solids, chosen, model, rule, **({} if friction is None else {"friction": friction}))
    if text := made.message():
        warn_user(f"combine: {text}. Give those bodies other shapes, or leave the pairs out, contacts=td.Filter(exclude=...)")
    clash = [name for name in made.contacts if name in own]
    if clash:
        raise ValueError(f"combine: the contact {clash[0]!r} of the scene has the name of one that a mechanism brings with it; rename one")
    return made.contacts


def _on_plane(contact: Contact, item: World) -> bool:
    """Whether a contact that a mechanism brings with it is with this plane of the scene."""
    flat = contact.other is None and contact.other_kind == "surface" and type(contact).signed_distance is Contact.signed_distance
    return isinstance(item, Plane) and flat and item.is_that_of(contact.normal, contact.offset)


# -- what belongs to all -----------------------------------------------------------------------------------------------------------------


def _common(name: str, mechanisms: Mapping[str, Mechanism], given: Any, default: Any) -> Any:
    """The number that is given, or that all mechanisms have."""
    if given is not None or not mechanisms:
        return default if given is None else given
    values: dict[str, Tensor] = {part: getattr(mech, name) for part, mech in mechanisms.items()}
    first = next(iter(values.values()))
    if any(value is not first and (value.shape != first.shape or not torch.equal(value, first)) for value in values.values()):
        listed = ", ".join(f"{part!r} {short(value)}" for part, value in values.items())
        raise ValueError(f"combine: the {name} differs between the parts: {listed}; give that of the scene, {name}=...")
    return first if differentiated(first) else first.detach()


def _common_options(mechanisms: Mapping[str, Mechanism], given: SolverOptions | None) -> SolverOptions | None:
    if given is not None or not mechanisms:
        return given
    first, *others = mechanisms.items()
    for name, mech in others:
        if mech.options != first[1].options:
            raise ValueError(
                f"combine: the options of {first[0]!r} and {name!r} differ, {first[1].options} and {mech.options}; give those of the "
                "scene, options=td.SolverOptions(...)"
            )
    return first[1].options


def _actuate(mech: Mechanism, mechanisms: Mapping[str, Mechanism]) -> None:
    """Give the scene the actuators of its parts. The joints have the servos already."""
    actuated = {part: one.actuators for part, one in mechanisms.items() if one.actuators is not None}
    if not actuated:
        return
    for part, actuators in actuated.items():
        if type(actuators).forward is not Actuators.forward:
            raise ValueError(
                f"combine: the actuators of {part!r} are a {type(actuators).__name__}, whose law is its own, and cannot be put together"
            )
    specs = {
        f"{part}/{name}": Actuator(f"{part}/{joint}", coordinate=coordinate)
        for part, actuators in actuated.items()
        for name, joint, coordinate in zip(actuators.names, actuators.joints, actuators.coordinates, strict=True)
    }
    together = Actuators(mech, specs)
    for field, dimensions in Actuators.fields.items():
        if field == "inputrange":
            continue
        values = [getattr(actuators, field) for actuators in actuated.values()]
        setattr(together, field, _side_by_side(values, dimensions))
    ranges = [
        actuated[part].inputrange if part in actuated else mech.gravity.new_tensor([[-torch.inf, torch.inf]] * one.num_inputs)
        for part, one in mechanisms.items()
        if one.num_inputs
    ]
    together.inputrange = _side_by_side(ranges, 2)
    together.replaceable = all(actuators.replaceable for actuators in actuated.values())
    mech.actuators = together


def _side_by_side(values: list[Tensor], dimensions: int) -> Tensor:
    """Numbers (..., n, ...) of several parts along n, with their graphs; batch dimensions broadcast."""
    if len(values) == 1:
        return values[0] if differentiated(values[0]) else values[0].detach()
    batch = broadcast_shapes(*(value.shape[: value.ndim - dimensions] for value in values))
    return torch.cat([value.expand(*batch, *value.shape[value.ndim - dimensions :]) for value in values], dim=-dimensions)


def _poses(mech: Mechanism, mechanisms: Mapping[str, Mechanism]) -> dict[str | int, Keyframe]:
    """The poses of all parts, "robot/home", and under the name alone those that parts have under this name."""
    result: dict[str | int, Keyframe] = {}
    together: dict[str | int, dict[str, Keyframe]] = {}
    for part, one in mechanisms.items():
        for name, pose in one.poses.items():
            together.setdefault(name, {})[part] = pose
            result[f"{part}/{name}"] = _pose(mech, mechanisms, {part: pose})
    return {**result, **{name: _pose(mech, mechanisms, poses) for name, poses in together.items()}}


def _pose(mech: Mechanism, mechanisms: Mapping[str, Mechanism], poses: Mapping[str, Keyframe]) -> Keyframe:
    """Poses of several parts as one. Controls of the others are zero."""
    values = {f"{part}/{name}": value for part, pose in poses.items() for name, value in pose.values.items()}
    if mech.actuators is None or all(pose.ctrl is None for pose in poses.values()):
        return Keyframe(values)
    controls = []
    for part, one in mechanisms.items():
        ctrl = poses[part].ctrl if part in poses else None
        if one.actuators is not None:
            zero = torch.zeros(len(one.actuators), dtype=torch.float64, device=mech.gravity.device)
            controls.append(zero if ctrl is None else torch.as_tensor(ctrl, dtype=torch.float64, device=mech.gravity.device))
    return Keyframe(values, _side_by_side(controls, 1))

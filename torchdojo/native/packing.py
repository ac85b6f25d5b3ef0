"""Packed parameters: all physical numbers that the kernel reads of an environment, one vector in the order that `tables.py` declares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchdojo.dynamics.physical import RANGES, positive_definite, ranges
from torchdojo.dynamics.system import Group, System
from torchdojo.elements.contact import SAMPLED
from torchdojo.elements.contacts import Contact
from torchdojo.elements.coupling import Coupling
from torchdojo.elements.curves import CURVES
from torchdojo.elements.element import orthonormal_complement, unit
from torchdojo.elements.joint_cones import JointElement
from torchdojo.elements.joint_drive import JointDrive
from torchdojo.elements.joints import StandardJoint
from torchdojo.elements.kept_rows import SWITCH
from torchdojo.elements.servo import SERVO, SERVO_RANGE, detour
from torchdojo.elements.string_coupling import StringCoupling
from torchdojo.elements.tendon import Tendon
from torchdojo.native.tables import (
    BODY_PARAMETERS,
    CONTACT_LAWS,
    CONTACT_PARAMETERS,
    COUPLES,
    COUPLING_PARAMETERS,
    DRIVE_PARAMETERS,
    FREE_PARAMETERS,
    GLOBAL_PARAMETERS,
    JOINT_PARAMETERS,
    SHAPES,
    TENDON_PARAMETERS,
    numbers,
    place,
    size,
)
from torchdojo.quaternion import normalize
from torchdojo.state.unknowns import FIRST_ELEMENT

__all__ = ["Packed", "Piece", "bounds", "is_plain", "mark_unphysical", "pack", "pieces_of", "samples_of", "shapes_of"]

#: packed name -> field from which it is packed, with the same range of numbers
RENAMED = {"stiffness": SERVO[0], "damping": SERVO[1], "off": "active"}
SHAPE_RANGES = {"radius": RANGES[Contact]["radius"], "half": RANGES[Contact]["size"]}

KINDS = (StandardJoint, JointElement, Contact, Coupling, Tendon)  # in the order of their parameters


class Packed(NamedTuple):
    """Parameters as the kernel reads them, (N or 1, num_parameters), and its object for the springs and dampers that act."""

    values: Tensor
    handle: int


class Piece(NamedTuple):
    """The packed parameters of a group: the layout of one member's parameters, and the position of the first member's."""

    group: Group
    layout: np.dtype
    start: int

    def place(self, member: int, name: str | None = None) -> int:
        """Position of a member's parameters, or of its field `name`; −1 where it has no such field."""
        first = self.start + size(self.layout) * member
        if name is None:
            return first
        return first + place(self.layout, name) if name in (self.layout.names or ()) else -1


def pieces_of(system: System) -> tuple[list[Piece], int]:
    """The pieces of all groups, and the number of all packed parameters."""
    pieces, end = [], size(GLOBAL_PARAMETERS) + size(BODY_PARAMETERS) * system.num_bodies
    for kind in KINDS:
        for group in system.groups:
            if isinstance(group.template, kind):
                pieces.append(Piece(group, _layout(group), end))
                end += size(pieces[-1].layout) * len(group.members)
    return pieces, end


def samples_of(pieces: Sequence[Piece], start: int = 0) -> tuple[dict[int, tuple[int, ...]], int]:
    """Place of the first sample, and counts along each axis, of the height field or grid of each group that has one, by its id; the end.

    Args:
        start: number of packed parameters, behind which samples stand.
    """
    places, end = {}, start
    for piece in grounds_of(pieces):
        contact = piece.group.template
        assert isinstance(contact, Contact)
        counts = getattr(contact.ground, SAMPLED[contact.other_kind]).shape[-2 if contact.other_kind == "heights" else -3 :]
        places[id(piece.group)] = end, *counts
        end += counts.numel()
    return places, end


def grounds_of(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces of contacts with height fields and grids, in the order of their samples."""
    return [piece for piece in pieces if isinstance(piece.group.template, Contact) and piece.group.template.other_kind in SAMPLED]


def _layout(group: Group) -> np.dtype:
    """Packed parameters of one member of a group."""
    element = group.template
    if isinstance(element, StandardJoint):
        straight = not any(name in group.fields for name in CURVES)
        absent = {"armature": "armature" not in group.fields, **dict.fromkeys(CURVES, straight)}
        absent["stiffness"] = straight and not element.implicit and SERVO[0] not in group.fields
        present = [name for name in FREE_PARAMETERS.names or () if not absent.get(name)]
        return numbers(JOINT_PARAMETERS, **{name: size(FREE_PARAMETERS[name]) * element.num_coordinates for name in present})
    if isinstance(element, JointElement):
        names = (DRIVE_PARAMETERS.names or ()) if isinstance(element, JointDrive) else element.own_fields
        return numbers(**dict.fromkeys(names, element.joint.num_coordinates))
    if isinstance(element, Coupling) and not isinstance(element, StringCoupling):
        counts = {name: len(element.ends) for name in ("coefficients",) if name in group.fields}
        return numbers(COUPLING_PARAMETERS, **counts)
    if isinstance(element, Tendon | StringCoupling):
        # Numbers of the path stand behind numbers of the law. Joints of a sum have packed parameters of their own.
        law = TENDON_PARAMETERS if isinstance(element, Tendon) else COUPLING_PARAMETERS
        path = {name: ndim for name, ndim in element.fields.items() if name not in (*(law.names or ()), "active")}
        return numbers(law, **{name: math.prod(getattr(element, name).shape[-ndim:] if ndim else ()) for name, ndim in path.items()})
    layout = numbers(CONTACT_PARAMETERS, **{name: 1 for name in CONTACT_LAWS + COUPLES if name in group.fields})
    if is_plain(group):
        return layout
    kind, other = shapes_of(group)
    return numbers(layout, shape_a=SHAPES[kind], shape_b=SHAPES[other])


def is_plain(group: Group) -> bool:
    """Whether the contacts of a group join a sphere and a half-space of the world, without couples."""
    return (
        shapes_of(group) == ("sphere", "surface") and group.body_index.shape[1] == 1 and not any(name in group.fields for name in COUPLES)
    )


def shapes_of(group: Group) -> tuple[str, str]:
    """Shapes of the contacts of a group, and shapes that they touch: names of `SHAPES`."""
    contact = group.template
    assert isinstance(contact, Contact)
    return contact.shape_kind, contact.other_kind


def pack(pieces: Sequence[Piece], fields: Mapping[int, dict[str, Tensor]], parameters: Sequence[Tensor]) -> Tensor:
    """Stacked parameters (`System.stack_parameters`, batch dimensions flattened to N or 1) as (N or 1, num_parameters), float64.

    The samples of height fields and grids follow behind.

    Axes become bases, and normals become contact frames, once per call.

    Args:
        fields: the physical fields among these parameters, by the id of the group.
    """
    timestep, gravity, mass, inertia = parameters[:FIRST_ELEMENT]
    bodies = _join(BODY_PARAMETERS, {"mass": mass, "inertia": inertia})
    columns = [timestep[:, None], gravity, bodies, *(_join(piece.layout, _values(piece, fields[id(piece.group)])) for piece in pieces)]
    for piece in grounds_of(pieces):
        columns.append(fields[id(piece.group)][f"ground.{SAMPLED[shapes_of(piece.group)[1]]}"])
    count = max(p.shape[0] for p in parameters)
    return torch.cat([column.reshape(len(column), -1).expand(count, -1) for column in columns], dim=1).contiguous()


def bounds(pieces: Sequence[Piece], count: int) -> tuple[Tensor, Tensor]:
    """Least and largest value of each of `count` packed parameters (`physical.RANGES`), (num_parameters,)."""
    least, largest = torch.full((count,), -torch.inf, dtype=torch.float64), torch.full((count,), torch.inf, dtype=torch.float64)

    def restrict(layout: np.dtype, start: int, allowed: Mapping[str, tuple[float, float]]) -> None:
        for name in layout.names or ():
            first = start + place(layout, name)
            if layout[name].names:
                restrict(layout[name], first, SHAPE_RANGES)
            elif name in allowed:
                least[first : first + size(layout[name])], largest[first : first + size(layout[name])] = allowed[name]

    restrict(GLOBAL_PARAMETERS, 0, RANGES[None])
    end = min((piece.start for piece in pieces), default=count)
    for start in range(size(GLOBAL_PARAMETERS), end, size(BODY_PARAMETERS)):
        restrict(BODY_PARAMETERS, start, RANGES[None])
    for piece in pieces:
        kinds = {name: allowed for name, allowed in ranges(piece.group).items()}
        packed = kinds | {new: kinds[old] for new, old in RENAMED.items() if old in kinds}
        for member in range(len(piece.group.members)):
            restrict(piece.layout, piece.place(member), packed)
    return least, largest


def mark_unphysical(packed: Tensor, least: Tensor, largest: Tensor, num_bodies: int) -> Tensor:
    """Packed parameters with NaN in the place of numbers that no mechanism can have. The kernel flags what is not finite."""
    possible = (packed >= least) & (packed <= largest)
    start, stride = size(GLOBAL_PARAMETERS), size(BODY_PARAMETERS)
    bodies = packed[:, start : start + stride * num_bodies].unflatten(-1, (num_bodies, stride))
    first = place(BODY_PARAMETERS, "inertia")
    definite = positive_definite(bodies[..., first : first + 9].unflatten(-1, (3, 3)))
    if bool(possible.all()) and bool(definite.all()):
        return packed
    marked = torch.where(possible, packed, torch.nan)
    marked[:, start + first : start + stride * num_bodies : stride] += torch.where(definite, 0.0, torch.nan)
    return marked


def _values(piece: Piece, fields: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors (N or 1, members, ...) for the fields of a piece. A missing field is zero."""
    group, element = piece.group, piece.group.template
    if isinstance(element, StandardJoint):
        bases = {
            "translations": _basis(fields["axis"], element.free_translations),
            "rotations": _basis(fields["axis"], element.free_rotations),
        }
        if element.kept_rows is not None:
            bases = dict(zip(bases, map(_keep, bases.values(), element.kept_rows.matrices(fields["axis"])), strict=True))
        if SWITCH in fields:
            held = 3 - element.free_translations, 3 - element.free_rotations
            bases = {name: _switched(basis, count, fields[SWITCH]) for (name, basis), count in zip(bases.items(), held, strict=True)}
        return fields | bases | {"orientation": normalize(fields["orientation_offset"])} | _implicit(element, fields)
    if isinstance(element, JointDrive):
        lower, upper = (fields[name] for name in SERVO_RANGE)
        return dict(zip(("stiffness", "damping"), (fields[name] for name in SERVO), strict=True)) | {
            "half": 0.5 * (upper - lower),
            "middle": 0.5 * (lower + upper),
        }
    if isinstance(element, JointElement):
        # Limits that do not act are infinite, and nothing reads them.
        return {name: value.nan_to_num(torch.nan, 0.0, 0.0) if name in element.own_fields else value for name, value in fields.items()}
    if isinstance(element, Coupling):
        fields = fields | ({"orientations": normalize(fields["orientations"])} if "orientations" in fields else {})
        return fields | ({"off": 1.0 - fields["active"]} if "active" in fields else {})
    if isinstance(element, Tendon):
        return fields | ({"turns": normalize(fields["turns"])} if "turns" in fields else {})
    laws = {name: fields[name] for name in ("friction", *CONTACT_LAWS, *COUPLES) if name in fields}
    if is_plain(group):
        normal = unit(fields["normal"])
        frame = {"normal": normal, "tangents": orthonormal_complement(normal)}
        return laws | frame | {name: fields[name] for name in ("point", "radius", "offset")}
    kind, other = shapes_of(group)
    if other == "heights":  # the place serves for bounds of the step
        laws |= {name: fields[name] for name in ("point", "radius")}
    return laws | {"shape_a": _shape(fields, kind, ""), "shape_b": _shape(fields, other, "other_")}


def _implicit(joint: StandardJoint, fields: dict[str, Tensor]) -> dict[str, Tensor]:
    """Damper and stiffness of a joint whose spring or servo is implicit (`ServoJoint.damping`)."""
    if not joint.implicit and SERVO[0] not in fields:
        return {}
    spring = fields["spring"]
    stiffness = spring * detour(fields["rest"], joint.free_translations) if joint.implicit else torch.zeros_like(spring)
    if SERVO[0] not in fields:
        return {"stiffness": stiffness}
    kp, kd = (fields[name] * joint.without_range(spring) if joint.driven else fields[name] for name in SERVO)
    return {"stiffness": stiffness + kp, "damper": fields["damper"] + kd}


def _shape(fields: dict[str, Tensor], kind: str, prefix: str) -> Tensor:
    """Numbers of a shape."""
    if kind == "surface":
        return _join(SHAPES[kind], {"normal": unit(fields["normal"]), "offset": fields["offset"]})
    if kind in SAMPLED:
        shared = {name: fields[f"ground.{name}"][:, None] for name in ("origin", "cell")}
        return _join(SHAPES[kind], {name: value.expand(-1, fields["point"].shape[1], -1) for name, value in shared.items()})
    if kind == "polytope":
        return _join(SHAPES[kind], {"term": fields["term"], "fading": fields["fading"]})
    values = {"point": fields[f"{prefix}point"], "radius": fields[f"{prefix}radius"]}
    if kind != "sphere":
        values["orientation"] = normalize(fields[f"{prefix}orientation"])
        name, share = {"capsule": ("length", 0.5), "box": ("size", 0.5), "ellipsoid": ("semi_axes", 1.0)}[kind]
        values["half"] = share * fields[f"{prefix}{name}"]
    return _join(SHAPES[kind], values)


def _basis(axis: Tensor, free: int) -> Tensor:
    """Rows of held directions, then of free directions, (..., 9), as `StandardJoint.directions` chooses them."""
    if free in (0, 3):
        return torch.eye(3, dtype=axis.dtype).flatten().expand(*axis.shape[:-1], 9)
    axis = unit(axis)
    across = orthonormal_complement(axis).flatten(-2)
    return torch.cat((across, axis) if free == 1 else (axis, across), dim=-1)


def _keep(basis: Tensor, p: Tensor) -> Tensor:
    """A basis (..., 9) whose held rows are projected by p."""
    rows = basis.unflatten(-1, (3, 3))
    return torch.cat((p @ rows[..., : len(p), :], rows[..., len(p) :, :]), dim=-2).flatten(-2)


def _switched(basis: Tensor, held: int, active: Tensor) -> Tensor:
    """A basis (..., 9) whose held rows are zero where the joint is switched off."""
    return basis * torch.where(torch.arange(9) < 3 * held, active[..., None], 1.0)


def _join(layout: np.dtype, values: Mapping[str, Tensor]) -> Tensor:
    """Tensors (N or 1, members, ...) in the order of a layout, (N or 1, members, numbers). A missing tensor is zero."""
    members = next(iter(values.values()))
    pieces = []
    for name in layout.names or ():
        value, count = values.get(name), size(layout[name])
        pieces.append(members.new_zeros(*members.shape[:2], count) if value is None else value.reshape(*value.shape[:2], count))
    many = max(len(piece) for piece in pieces)
    return torch.cat([piece if len(piece) == many else piece.expand(many, *piece.shape[1:]) for piece in pieces], dim=-1)

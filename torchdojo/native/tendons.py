"""Tendons as the kernel reads them: which ones, and their tables (src/elements/tendon.hpp, src/elements/tendon_path.hpp)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from torchdojo.elements.element import Element
from torchdojo.elements.joints import StandardJoint
from torchdojo.elements.string_coupling import StringCoupling
from torchdojo.elements.tendon import CURVES, Tendon
from torchdojo.elements.tendon_paths import FixedTendon, Span, SpatialTendon, Strings
from torchdojo.native.packing import Piece
from torchdojo.native.tables import MOST_TENDON_BODIES, TENDON, TENDON_PART, row
from torchdojo.parameters import plain_class

__all__ = ["TENDONS", "string_tables", "tendon_tables", "unsupported_tendon"]

TENDONS: tuple[type[Element], ...] = (FixedTendon, SpatialTendon)
NONE = -1  # the position of an absent part
#: numbers of an entry
SIZES = {"points": 3, "centers": 3, "turns": 4, "orientations": 4, "radii": 1, "sides": 3, "divisors": 1, "coefficients": 1}


def unsupported_tendon(tendon: Tendon | StringCoupling, joints: Sequence[type]) -> str | None:
    """The feature of a tendon that the kernel lacks; None if it has all. joints: the classes of built-in ones."""
    if len(tendon.body_names) > MOST_TENDON_BODIES:
        return f"it knows tendons with {MOST_TENDON_BODIES} places of bodies, not {len(tendon.body_names)}"
    if not isinstance(tendon, FixedTendon):
        return None
    for joint, (name, coordinate) in zip(tendon.joints, tendon.places, strict=True):
        if plain_class(joint) not in joints:
            return f"it runs over {name}, a {type(joint).__name__}, which is not a built-in joint"
        assert isinstance(joint, StandardJoint)
        if coordinate >= joint.free_translations and joint.free_rotations > 1:
            return f"it runs over a component of the rotation vector of {name}; the kernel has angles of single rotations"
    return None


def tendon_tables(
    tendons: Sequence[tuple[Piece, int, bool]], joints: Mapping[int, int], world: int, block: Callable[[int, int], int]
) -> dict[str, list]:
    """The tables of tendons.

    Args:
        tendons: piece, member, and whether the impulse depends on velocities. joints: their numbers, by id. world: number of bodies.
        block: of the condensed matrix for two bodies.
    """
    rows: list[tuple] = []
    bodies: list[int] = []
    parts: list[tuple] = []
    blocks: list[int] = []
    for piece, member, damped in tendons:
        group = piece.group
        tendon = group.members[member]
        assert isinstance(tendon, Tendon)
        places, inputs = group.body_index[member].tolist(), group.input_index[member].tolist()
        string = cast(SpatialTendon, tendon)
        spans = _sums(piece, member, tendon, joints) if isinstance(tendon, FixedTendon) else _spans(piece, member, string, string.spans)
        values = row(
            TENDON,
            row=int(group.impulse_index[member, 0]),
            input=inputs[0] if inputs else NONE,
            parameters=piece.place(member),
            offset=piece.place(member, "offset"),
            spatial=isinstance(tendon, SpatialTendon),
            implicit=tendon.implicit,
            damped=damped,
            limited="limit_stiffness" in tendon.fields,
            rubs="friction" in tendon.fields,
            armature="armature" in tendon.fields,
            curved=any(name in tendon.fields for name in CURVES),
            first_body=len(bodies),
            num_bodies=len(places),
            first_part=len(parts),
            num_parts=len(spans),
            first_block=len(blocks),
        )
        rows.append(values)
        bodies += places
        parts += spans
        blocks += [block(i, j) for i in places for j in places] if damped else []
    return {"tendons": rows, "tendon_bodies": bodies, "tendon_parts": parts, "tendon_blocks": blocks}


_NOTHING = dict.fromkeys(TENDON_PART.names or (), NONE) | {"cylinder": 0}


def _entry(piece: Piece, member: int, name: str, number: int) -> int:
    """Position of an entry of a field."""
    return NONE if number < 0 else piece.place(member, name) + SIZES[name] * number


def _sums(piece: Piece, member: int, tendon: FixedTendon, joints: Mapping[int, int]) -> list[tuple]:
    return [
        row(TENDON_PART, **_NOTHING | {"joint": joints[id(joint)], "coordinate": place, "start": _entry(piece, member, "coefficients", k)})
        for k, (joint, (_, place)) in enumerate(zip(tendon.joints, tendon.places, strict=True))
    ]


def string_tables(
    tables: dict[str, list], couplings: Sequence[tuple[Piece, int]], block: Callable[[int, int], int], nodes: Sequence[int]
) -> None:
    """Add the strings of couplings of lengths to the tables of tendons: followers and leaders, in turn, which share their places.

    block: of the condensed matrix for two nodes. nodes: of the couplings.
    """
    tables["strings"] = []
    for (piece, member), node in zip(couplings, nodes, strict=True):
        coupling = piece.group.members[member]
        assert isinstance(coupling, StringCoupling)
        places = piece.group.body_index[member].tolist()
        shared = {"first_body": len(tables["tendon_bodies"]), "num_bodies": len(places), "first_block": len(tables["tendon_blocks"])}
        for spans, constant in zip(coupling.parts, (NONE, piece.place(member, "leader_length")), strict=True):
            shared |= {"first_part": len(tables["tendon_parts"]), "num_parts": len(spans), "offset": constant, "spatial": 1}
            tables["strings"].append(row(TENDON, **dict.fromkeys(TENDON.names or (), 0) | shared))
            tables["tendon_parts"] += _spans(piece, member, coupling, spans)
        tables["tendon_bodies"] += places
        tables["tendon_blocks"] += [index for body in places for index in (block(body, node), block(node, body))]


def _spans(piece: Piece, member: int, tendon: Strings, spans: Sequence[Span]) -> list[tuple]:
    parts = []
    for span in spans:
        values = {name: _entry(piece, member, "points", getattr(span, name)) for name in ("start", "end")}
        values |= {f"{name}_body": tendon.site_bodies[getattr(span, name)] for name in ("start", "end")}
        values["divisor"] = _entry(piece, member, "divisors", span.pulley)
        if span.surface >= 0:
            surface = tendon.surfaces[span.surface]
            fields = {"center": "centers", "turn": tendon.orientations_field, "radius": "radii"}
            values |= {name: _entry(piece, member, field, span.surface) for name, field in fields.items()}
            values |= {
                "surface_body": surface.body,
                "cylinder": int(surface.cylinder),
                "side": _entry(piece, member, "sides", surface.side),
            }
            values["side_body"] = tendon.side_bodies[surface.side] if surface.side >= 0 else NONE
        parts.append(row(TENDON_PART, **_NOTHING | values))
    return parts

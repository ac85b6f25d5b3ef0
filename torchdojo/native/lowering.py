"""Lowering: the groups of a system become tables of integers for the kernel, and a schedule of its condensed matrix."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from torchdojo.dynamics.system import System
from torchdojo.elements.contacts import Contact
from torchdojo.elements.coupling import Coupling
from torchdojo.elements.joint_cones import JointElement, JointFriction, JointLimits
from torchdojo.elements.joint_drive import JointDrive
from torchdojo.elements.joints import StandardJoint
from torchdojo.elements.near_contact import NearContact
from torchdojo.elements.string_coupling import StringCoupling
from torchdojo.elements.tendon import Tendon
from torchdojo.elements.velocity_limits import JointVelocityLimits
from torchdojo.geometry.polytopes import Polytope
from torchdojo.native import graph
from torchdojo.native.packing import Piece, is_plain, samples_of, shapes_of
from torchdojo.native.polytopes import words
from torchdojo.native.tables import (
    BODY,
    CONTACT,
    CONTACT_LAWS,
    CONTACT_MODELS,
    COUPLE,
    COUPLES,
    COUPLING,
    COUPLING_END,
    FILL,
    HEAD,
    JOINT,
    JOINT_CONE,
    LINK,
    PAIR,
    SHAPE_KINDS,
    TABLES,
    ContactModel,
    JointCone,
    row,
)
from torchdojo.native.tendons import string_tables, tendon_tables
from torchdojo.solver.speed import slowed_by
from torchdojo.state.minimal import JointOrder

__all__ = ["lower"]

NONE = -1  # the position of an absent part


def lower(
    system: System,
    pieces: Sequence[Piece],
    tree: Sequence[JointOrder],
    has_loops: bool,
    acting: Sequence[tuple[bool, bool]],
    num_parameters: int,
) -> tuple[np.ndarray, graph.Schedule]:
    """The tables of a mechanism, head first, and the schedule of the condensed matrix.

    Args:
        tree: the spanning tree, whose coordinates the joints outside constrain, and couplings, if it `has_loops`.
        acting: per group of joints, whether any spring, and any damper, is not zero. Then per group of tendons, whether any damper or
            implicit spring is not zero.
    """
    return _Lowering(system, pieces, acting).tables(pieces, tree, has_loops, num_parameters)


@dataclass
class _Joint:
    """A joint, and its limits and frictions: rows of `JOINT_CONE` without the number of the joint."""

    piece: Piece
    member: int
    has_spring: bool
    has_damper: bool
    limits: tuple[int, int] = (NONE, NONE)  # positions of their parameters
    limited_rotations: int = 0
    cone: int = NONE  # position of the angle of a cone
    extra: int = 0
    node: int = NONE
    cones: list[dict[str, int]] = field(default_factory=list)
    fastest: dict[int, int] = field(default_factory=dict)  # coordinate -> position of its largest speed

    def __post_init__(self) -> None:
        group = self.piece.group
        self.module = group.members[self.member]
        assert isinstance(self.module, StandardJoint)
        self.parent, self.child = group.body_index[self.member].tolist()
        self.held_translations, self.held_rotations = 3 - self.module.free_translations, 3 - self.module.free_rotations
        self.driven = self.module.driven
        self.held = self.held_translations + self.held_rotations
        self.armature, self.stiffness, self.curve = (
            self.piece.place(self.member, name) for name in ("armature", "stiffness", "spring_curve")
        )

    @property
    def has_free_data(self) -> bool:
        return self.armature >= 0 or bool(self.cones)

    @property
    def size(self) -> int:
        """Rows of the node: held directions, and the free directions where a damper, armature, a limit or friction acts."""
        return 6 + self.extra if self.has_damper or self.has_free_data else self.held

    def add(self, piece: Piece, member: int) -> None:
        """The cones of a `JointLimits`, `JointFriction`, `JointVelocityLimits` or `JointDrive`."""
        element = piece.group.members[member]
        assert isinstance(element, JointElement)
        joint = element.joint
        free, translations = joint.num_coordinates, joint.free_translations
        impulse, slack = piece.group.impulse_index[member].tolist(), piece.group.slack_index[member].tolist()
        if isinstance(element, JointDrive):
            first, driven = piece.place(member, "half"), element.joint.driven
            for k, i in enumerate(driven):
                self._cone(JointCone.DRIVE, i, self.held + i, impulse[k], slack[k], len(driven), first + i)
            return
        if isinstance(element, JointFriction):
            first = piece.place(member, "friction")
            for i in range(free):
                self._cone(JointCone.FRICTION, i, self.held + i, impulse[i], slack[i], free, first + i)
            return
        if isinstance(element, JointVelocityLimits):
            first, place = piece.place(member), iter(zip(impulse, slack, strict=True))
            self.fastest = {i: first + i for i in element.joint.velocity_limited}
            for kind in (JointCone.LOWEST_RATE, JointCone.HIGHEST_RATE):
                for i in element.joint.velocity_limited:
                    self._cone(kind, i, self.held + i, *next(place), 1, first + i)
            return
        self.limits = piece.place(member, "lower"), piece.place(member, "upper")
        if isinstance(element, JointLimits) and element.coned is not None:
            self.cone, self.extra = self.limits[1] + translations, 1
        turns = [any(i >= translations for i in side) for side in joint.limited]
        self.limited_rotations = turns[0] + 2 * turns[1]
        if self.cone >= 0:
            self.limited_rotations = 0  # no component has a limit
        elif joint.free_rotations > 1 and self.limited_rotations:
            # Components of a rotation vector push in other directions than inputs do. Their rows follow the rows of the free directions.
            self.extra = joint.free_rotations
        place = iter(zip(impulse, slack, strict=True))
        for kind, side in zip((JointCone.LOWER, JointCone.UPPER), joint.limited, strict=True):
            for i in side:
                in_node = 6 + i - translations if self.extra and i >= translations else self.held + i
                self._cone(kind, i, in_node, *next(place), 1, self.limits[kind] + i)

    def _cone(self, kind: JointCone, coordinate: int, row: int, impulse: int, slack: int, stride: int, parameter: int) -> None:
        self.cones.append(dict(kind=kind, coordinate=coordinate, row=row, impulse=impulse, slack=slack, stride=stride, parameter=parameter))


class _Lowering:
    """The elements of a system as nodes and blocks of the condensed matrix.

    Nodes are bodies, then joints with rows, then couplings with one row each. The rows of a joint are its held directions. A joint with
    dampers, armature, limits or friction has its free directions, too. Their impulses are rows of their own, so that they couple the bodies
    through the joint and not directly.
    """

    def __init__(self, system: System, pieces: Sequence[Piece], acting: Sequence[tuple[bool, bool]]) -> None:
        self.system, self.world = system, system.num_bodies
        members = [(piece, member) for piece in pieces for member in range(len(piece.group.members))]
        declared = [element for element in system.elements.values() if isinstance(element, Contact)]
        self.declared = {id(contact): number for number, contact in enumerate(declared)}
        self.contacts = [(piece, member) for piece, member in members if isinstance(piece.group.template, Contact)]
        self.couplings = [(piece, member) for piece, member in members if isinstance(piece.group.template, Coupling)]
        joint_pieces = [piece for piece in pieces if isinstance(piece.group.template, StandardJoint)]
        self.joints = [
            _Joint(piece, member, *acts)
            for piece, acts in zip(joint_pieces, acting[: len(joint_pieces)], strict=True)
            for member in range(len(piece.group.members))
        ]
        tendon_pieces = [piece for piece in pieces if isinstance(piece.group.template, Tendon)]
        self.tendons = [
            (piece, member, damped)
            for piece, (damped, _) in zip(tendon_pieces, acting[len(joint_pieces) :], strict=True)
            for member in range(len(piece.group.members))
        ]
        self.number = {id(joint.module): number for number, joint in enumerate(self.joints)}
        for piece, member in members:
            element = piece.group.members[member]
            if isinstance(element, JointElement):
                self.joints[self.number[id(element.joint)]].add(piece, member)
        self._schedule()

    def _schedule(self) -> None:
        sizes, edges, indefinite = [6] * self.world, [], []
        for joint in self.joints:
            if joint.size:
                joint.node = len(sizes)
                sizes.append(joint.size)
                edges += [(body, joint.node) for body in (joint.child, joint.parent) if body != self.world]
                if joint.held:
                    indefinite.append(joint.node)
        # Contacts between bodies couple them directly.
        near: tuple[set, set] = set(), set()
        for piece, member in self.contacts:
            if piece.group.body_index.shape[1] > 1:
                near[isinstance(piece.group.template, NearContact)].add(tuple(piece.group.body_index[member].tolist()))
        added, rare = ([pair for pair in sorted(pairs) if max(pair) < self.world] for pairs in near)
        self.coupling_nodes = range(len(sizes), len(sizes) + len(self.couplings))
        sizes += [1] * len(self.couplings)
        for node, (piece, member) in zip(self.coupling_nodes, self.couplings, strict=True):
            added += [(body, node) for body in sorted(set(piece.group.body_index[member].tolist())) if body < self.world]
        # Dampers of tendons couple all bodies of the tendon.
        for piece, member, damped in self.tendons:
            bodies = sorted({body for body in piece.group.body_index[member].tolist() if body < self.world})
            added += itertools.combinations(bodies, 2) if damped else ()
        nodes = self.coupling_nodes
        self.schedule = graph.schedule(sizes, edges + added, indefinite=[*indefinite, *nodes], whole=nodes, rare=rare)
        # Blocks that are filled in, or that several elements add to, are set to zero first.
        fill = sorted(set(self.schedule.offset) - {pair for i, j in edges for pair in ((i, j), (j, i))})
        self.fill = [row(FILL, offset=self.schedule.offset[i, j], count=sizes[i] * sizes[j]) for i, j in fill]

    def tables(
        self, pieces: Sequence[Piece], tree: Sequence[JointOrder], has_loops: bool, num_parameters: int
    ) -> tuple[np.ndarray, graph.Schedule]:
        system, schedule = self.system, self.schedule
        impulses = [k for piece in system.impulse_layout.values() for k in range(piece.start, piece.stop)]
        self.cores: dict[int, tuple[int, Polytope]] = {}
        self.grounds, end = samples_of(pieces, num_parameters)
        contacts, pairs, couples = self._contact_rows()
        couplings, coupling_ends = self._coupling_rows()
        tendons = tendon_tables(self.tendons, self.number, self.world, self._body_block)
        chosen = [
            (node, coupling) for node, coupling in zip(self.coupling_nodes, self.couplings, strict=True) if self._couples_strings(*coupling)
        ]
        string_tables(tendons, [coupling for _, coupling in chosen], self._block, [node for node, _ in chosen])
        slowing = [NONE if element is None else self.number[id(element.joint)] for element in slowed_by(system)]
        # Bodies stand before the other nodes, so the shorter `slowing` ends the loop behind the last body.
        offsets = zip(schedule.diagonal_offset, schedule.rhs_offset, slowing, strict=False)
        tables: dict[str, list] = {
            "bodies": [row(BODY, diagonal=diagonal, right=right, slowed_by=number) for diagonal, right, number in offsets],
            "joints": self._joint_rows(),
            "contacts": contacts,
            "impulses": impulses,
            "fill": self.fill,
            "joint_cones": self._joint_cone_rows(),
            "pairs": pairs,
            "couples": couples,
            "couplings": couplings,
            "coupling_ends": coupling_ends,
            "tree": [row(LINK, joint=self.number[id(entry.joint)], coordinate=entry.coordinates.start) for entry in tree],
            **tendons,
            "polytopes": words([core for _, core in self.cores.values()]),
        }
        head = row(
            HEAD,
            num_unknowns=system.num_unknowns,
            num_inputs=system.num_inputs,
            num_parameters=num_parameters,
            num_samples=end - num_parameters,
            num_cones=system.num_cones,
            has_loops=has_loops,
            curved=any(joint.curve >= 0 for joint in self.joints),
            num_free_data=sum(joint.has_free_data for joint in self.joints),
            num_coordinates=sum(entry.joint.num_coordinates for entry in tree),
            num_damped_tendons=sum(damped for *_, damped in self.tendons),
            **{count: len(tables[name]) for name, (_, count) in TABLES.items()},
        )
        arrays = [np.array([head], dtype=HEAD), *(np.array(tables[name], dtype=dtype) for name, (dtype, _) in TABLES.items())]
        return np.concatenate([array.view(np.int32) for array in arrays]), schedule

    def _block(self, i: int, j: int) -> int:
        return self.schedule.offset.get((i, j), NONE)

    def _body_block(self, i: int, j: int) -> int:
        if max(i, j) >= self.world:
            return NONE
        return self.schedule.diagonal_offset[i] if i == j else self._block(i, j)

    def _joint_rows(self) -> list[tuple]:
        rows = []
        free_data, first_cone = itertools.count(), 0
        for joint in self.joints:
            group, node = joint.piece.group, joint.node
            impulse, inputs = group.impulse_index[joint.member].tolist(), group.input_index[joint.member].tolist()
            values = row(
                JOINT,
                parent=joint.parent,
                child=joint.child,
                held_t=joint.held_translations,
                held_r=joint.held_rotations,
                row=impulse[0] if impulse else NONE,
                input=inputs[0] if inputs else NONE,
                parameters=joint.piece.place(joint.member),
                has_spring=joint.has_spring,
                has_damper=joint.has_damper,
                implicit=joint.module.implicit,
                armature=joint.armature,
                stiffness=joint.stiffness,
                curve=joint.curve,
                lower=joint.limits[0],
                upper=joint.limits[1],
                limited_r=joint.limited_rotations,
                cone=joint.cone,
                extra=joint.extra,
                first_cone=first_cone,
                num_cones=len(joint.cones),
                has_rate_cones=any(cone["kind"] not in (JointCone.LOWER, JointCone.UPPER) for cone in joint.cones),
                driven=sum(1 << i for i in joint.driven),
                repeats=joint.module.leaves_out,
                free_data=next(free_data) if joint.has_free_data else NONE,
                size=joint.size,
                right=self.schedule.rhs_offset[node] if joint.size else NONE,
                diagonal=self.schedule.diagonal_offset[node] if joint.size else NONE,
                child_joint=self._block(joint.child, node),
                joint_child=self._block(node, joint.child),
                parent_joint=self._block(joint.parent, node),
                joint_parent=self._block(node, joint.parent),
            )
            rows.append(values)
            first_cone += len(joint.cones)
        return rows

    def _joint_cone_rows(self) -> list[tuple]:
        return [
            row(JOINT_CONE, joint=number, fastest=joint.fastest.get(cone["coordinate"], NONE), **cone)
            for number, joint in enumerate(self.joints)
            for cone in joint.cones
        ]

    def _contact_rows(self) -> tuple[list[tuple], list[tuple], list[tuple]]:
        """Rows of contacts, of pairs of shapes, and of couples."""
        rows: list[tuple] = []
        pairs: list[tuple] = []
        couples: list[tuple] = []
        for number, (piece, member) in enumerate(self.contacts):
            group = piece.group
            impulse, slack = group.impulse_index[member].tolist(), group.slack_index[member].tolist()
            model, body = CONTACT_MODELS[group.cls], int(group.body_index[member, 0])
            turning = [name for name in COUPLES if name in group.fields]
            values = row(
                CONTACT,
                body=body,
                number=self.declared[id(group.members[member])],
                friction=model,
                facets=getattr(group.template, "facets", 0),
                impulse=impulse[0],
                slack=slack[0],
                parameters=piece.place(member),
                pair=NONE if is_plain(group) else len(pairs),
                law=number,
                # Torsional friction, which is an orthant, comes before the second-order cones of sliding and rolling.
                cone=group.template.cones.orthant if model is ContactModel.DISC else 1,
                first_couple=len(couples),
                num_couples=len(turning),
                **{name: piece.place(member, name) for name in CONTACT_LAWS},
            )
            rows.append(values)
            for name in turning:
                couples.append(row(COUPLE, contact=number, parameter=piece.place(member, name), friction=_friction(name, impulse, slack)))
            if not is_plain(group):
                other = int(group.body_index[member, 1]) if group.body_index.shape[1] > 1 else self.world
                kind_a, kind_b = (SHAPE_KINDS.index(kind) for kind in shapes_of(group))
                shapes = {name: piece.place(member, name) for name in ("shape_a", "shape_b")}
                blocks = {"body_other": self._block(body, other), "other_body": self._block(other, body)}
                cores = [NONE, NONE]
                if isinstance(group.template, NearContact):
                    for i, core in enumerate(group.template.shapes):
                        cores[i] = self.cores.setdefault(id(core), (len(self.cores), core))[0]
                shapes |= dict.fromkeys(("rows", "columns", "layers"), 0) | {"samples": NONE}
                shapes |= zip(("samples", "rows", "columns", "layers"), self.grounds.get(id(group), ()), strict=False)
                pairs.append(row(PAIR, other=other, kind_a=kind_a, kind_b=kind_b, core_a=cores[0], core_b=cores[1], **shapes, **blocks))
        return rows, pairs, couples

    @staticmethod
    def _couples_strings(piece: Piece, member: int) -> bool:
        return isinstance(piece.group.members[member], StringCoupling)

    def _coupling_rows(self) -> tuple[list[tuple], list[tuple]]:
        """Rows of couplings and of their ends."""
        rows: list[tuple] = []
        ends: list[tuple] = []
        strings = 0
        for node, (piece, member) in zip(self.coupling_nodes, self.couplings, strict=True):
            element, bodies = piece.group.members[member], piece.group.body_index[member].tolist()
            assert isinstance(element, Coupling)
            values = row(
                COUPLING,
                row=int(piece.group.impulse_index[member, 0]),
                parameters=piece.place(member),
                right=self.schedule.rhs_offset[node],
                diagonal=self.schedule.diagonal_offset[node],
                first_end=len(ends),
                num_ends=len(element.ends),
                counts_turns=element.counts_turns,
                curved="curve" in piece.group.fields,
                damped="damping" in piece.group.fields,
                strings=strings if self._couples_strings(piece, member) else NONE,
            )
            strings += 2 * self._couples_strings(piece, member)
            rows.append(values)
            first = piece.place(member, "coefficients")
            for k, (end, joint) in enumerate(zip(element.ends, element.joints, strict=True)):
                pair = bodies[2 * k : 2 * k + 2]
                values = row(
                    COUPLING_END,
                    joint=self.number[id(joint)],
                    coordinate=end.coordinate,
                    leads=end.leads,
                    coefficient=NONE if first == NONE else first + k,
                    body=tuple(pair),
                    body_coupling=tuple(self._block(body, node) for body in pair),
                    coupling_body=tuple(self._block(node, body) for body in pair),
                )
                ends.append(values)
        return rows, ends


def _friction(name: str, impulse: Sequence[int], slack: Sequence[int]) -> tuple:
    """Row of torsional or rolling friction as a contact of its own. Torsional friction is a pyramid of two facets."""
    torsional = name == "torsional_friction"
    first = 1 if torsional else len(impulse) - 3
    nothing = dict.fromkeys(CONTACT.names or (), NONE) | dict.fromkeys(("cone", "first_couple", "num_couples"), 0)
    model, facets = (ContactModel.PYRAMID, 2) if torsional else (ContactModel.DISC, 0)
    return row(CONTACT, **(nothing | dict(friction=model, facets=facets, impulse=impulse[first], slack=slack[first])))

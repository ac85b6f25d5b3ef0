"""Scenes of bodies that touch at near terms (elements/near_contact.py): stacks, dominoes, a peg, walls, arches, grasps, drops, pours.

The experiments of `near_scenes` measure them, and the slow tests of near contacts differentiate them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdojo.elements.bodies import Body
from torchdojo.elements.joints import Prismatic
from torchdojo.elements.near_contact import NearContact, near_contacts
from torchdojo.geometry.closest import distance
from torchdojo.geometry.hulls import Hull
from torchdojo.geometry.polytopes import Polytope
from torchdojo.geometry.shapes import Box, Capsule, Cylinder, Ellipsoid, Shape, Sphere
from torchdojo.mechanism import Mechanism
from torchdojo.solver.options import SolverOptions

__all__ = [
    "SCENES", "Scene", "arch", "cradle", "cylinder", "dominoes", "drops", "grasp", "hull_on_box", "peg", "pinch", "pour", "round_hull",
    "stack", "wall",
]  # fmt: skip

GRAVITY, TIMESTEP, KAPPA = 9.81, 0.01, 1e-6
START = 2e-4  # gaps at the start [m]
FLOOR = Box((4.0, 4.0, 0.2), position=(0.0, 0.0, -0.1))


class Scene(NamedTuple):
    """A mechanism and a state to start from.

    pairs: bodies that touch (None: the world), and their cores. push: constant forces on bodies [N], by inputs u (nu,), which have a
    potential.
    """

    mech: Mechanism
    z: Tensor
    pairs: list[tuple[str, str | None, Polytope, Polytope]]
    u: Tensor | None = None
    push: Mapping[str, tuple[float, float, float]] = {}

    def gaps(self, z: Tensor) -> Tensor:
        """Distance [m] of the rounded shapes of each pair (..., pairs) in states (..., 13 nb), by a search that knows of no terms."""
        distances = []
        for a, b, one, two in self.pairs:
            poses = [
                None if name is None else (self.places(z)[..., i, :3], self.places(z)[..., i, 6:10]) for name, i in self._numbers(a, b)
            ]
            gap = distance(_core(one), poses[0], _core(two), poses[1]).distance
            distances.append(gap - sum(core.radius for core in (one, two) if len(core.vertices) > 2))
        return torch.stack(distances, -1)

    def places(self, z: Tensor) -> Tensor:
        """States of the bodies (..., nb, 13)."""
        return z.unflatten(-1, (-1, 13))

    def energy(self, z: Tensor) -> Tensor:
        """Energy [J] of a path z (T+1, 13 nb): kinetic of each step (T,), and the mean of the potential at both of its ends.

        A step moves bodies at one velocity, so that the sum is constant in free fall.
        """
        potential = self.mech.potential_energy(z)
        for name, force in self.push.items():
            potential = potential - (self.places(z)[..., list(self.mech.bodies).index(name), :3] * z.new_tensor(force)).sum(-1)
        return self.mech.kinetic_energy(z[1:]) + 0.5 * (potential[1:] + potential[:-1])

    def _numbers(self, *names: str | None) -> list[tuple[str | None, int]]:
        bodies = list(self.mech.bodies)
        return [(name, -1 if name is None else bodies.index(name)) for name in names]


def _core(core: Polytope) -> Shape:
    """A shape that is the core of a polytope; with its radius where that is round, a ball or a capsule."""
    points = core.vertices
    if core.semi_axes is not None and core.orientation is not None:
        return Ellipsoid(core.semi_axes, position=points[0].tolist(), orientation=tuple(core.orientation.tolist()))
    if len(points) == 1:
        return Sphere(core.radius, position=points[0].tolist())
    if len(points) == 2:
        along = points[1] - points[0]
        length = float(torch.linalg.vector_norm(along))
        x, y, z = (along / length).tolist()
        turn = (1 + z, -y, x, 0.0) if z > -0.999 else (0.0, 1.0, 0.0, 0.0)
        size = math.sqrt(sum(part * part for part in turn))
        return Capsule(core.radius, length, position=points.mean(0).tolist(), orientation=tuple(part / size for part in turn))
    return Hull(points)


def build(
    shapes: Mapping[str, Shape],
    masses: Mapping[str, float],
    start: Mapping[str, Any],
    *,
    world: Mapping[str, Shape] | None = None,
    pairs: Callable[[str, str], bool] = lambda a, b: True,
    grounded: Callable[[str], bool] = lambda name: True,
    joints: Mapping[str, Any] | None = None,
    slots: int = 24,
    friction: float = 0.6,
    gravity: bool = True,
    timestep: float = TIMESTEP,
    kappa: float = KAPPA,
    u: Tensor | None = None,
    push: Mapping[str, tuple[float, float, float]] | None = None,
    **laws: float,
) -> Scene:
    """A scene of these shapes by names, with near contacts between the pairs of bodies chosen, and of the grounded ones with the world."""
    world = {"floor": FLOOR} if world is None else world
    contacts: dict[str, NearContact] = {}
    pair_shapes: list[tuple[str, str | None, Polytope, Polytope]] = []
    for a, b in itertools.combinations(shapes, 2):
        if pairs(a, b):
            fresh = near_contacts(b, shapes[b], a, shapes[a], slots=slots, friction=friction, **laws)
            pair_shapes.append((b, a, *next(iter(fresh.values())).shapes))
            contacts |= fresh
    for name, (label, ground) in itertools.product(filter(grounded, shapes), world.items()):
        fresh = near_contacts(name, shapes[name], None, ground, slots=slots, friction=friction, **laws)
        pair_shapes.append((name, None, *next(iter(fresh.values())).shapes))
        contacts |= {f"{label}_{key}": contact for key, contact in fresh.items()}
    bodies = {name: Body(masses[name], shape=shape) for name, shape in shapes.items()}
    # Creep is far below the default tolerance of 1e-9 m/s, so the equations must hold to a tighter one.
    options = SolverOptions(kappa=kappa, residual_tol=1e-12)
    mech = Mechanism(
        bodies, dict(joints or {}), contacts, timestep=timestep, gravity=(0.0, 0.0, -GRAVITY if gravity else 0.0), options=options
    )
    return Scene(mech, mech.initial_state(**dict(start)), pair_shapes, u, push or {})


def _random(*size: int, seed: int = 0) -> Tensor:
    """Numbers from −1 to 1."""
    return 2 * torch.rand(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1


def _turn(angle: float, axis: tuple[float, float, float]) -> tuple[float, ...]:
    """The quaternion of a turn [rad] about an axis."""
    scale = math.sin(0.5 * angle) / math.sqrt(sum(part * part for part in axis))
    return (math.cos(0.5 * angle), *(scale * part for part in axis))


def _next(a: str, b: str, reach: int = 1) -> bool:
    return abs(int(a.strip("abcdefghijklmnopqrstuvwxyz")) - int(b.strip("abcdefghijklmnopqrstuvwxyz"))) <= reach


def round_hull(count: int, radius: float, seed: int = 0) -> Hull:
    """The hull of random points on a sphere, about its center of mass."""
    points = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if count == 4:
        points = torch.tensor([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]], dtype=torch.float64)
    points = radius * points / torch.linalg.vector_norm(points, dim=-1, keepdim=True)
    return Hull(points - Hull(points).center)


# -- what stands ---------------------------------------------------------------------------------------------------------------------------


def stack(count: int = 10, **options: Any) -> Scene:
    """Boxes of 0.1 m and 1 kg on each other, each up to 2 mm beside its place and turned by up to 0.1 rad."""
    beside = _random(count, 3)
    start = {
        f"box{i}": {
            "position": (2e-3 * x, 2e-3 * y, 0.05 + START + (0.1 + START) * i),
            "orientation": _turn(0.1 * turn, (0.0, 0.0, 1.0)),
        }
        for i, (x, y, turn) in enumerate(beside.tolist())
    }
    shapes = dict.fromkeys(start, Box((0.1, 0.1, 0.1)))
    return build(shapes, dict.fromkeys(start, 1.0), start, pairs=_next, grounded=lambda name: name == "box0", **options)


def dominoes(count: int = 12, **options: Any) -> Scene:
    """Dominoes of 2 × 5 × 10 cm and 0.1 kg, 4 cm apart. The first one is pushed, and each knocks over the next.

    Each stands up to 1 mm beside the row and is turned by up to 0.02 rad. In an exact row, corners meet the borders of faces, where normals
    have a kink and the step has a derivative on either side.
    """
    beside = _random(count, 2).tolist()
    start: dict[str, dict[str, Any]] = {
        f"tile{i}": {"position": (0.04 * i, 1e-3 * y, 0.05 + START), "orientation": _turn(0.02 * turn, (0.0, 0.0, 1.0))}
        for i, (y, turn) in enumerate(beside)
    }
    start["tile0"] |= {"velocity": (0.2, 0.0, 0.0), "angular_velocity": (0.0, 4.0, 0.0)}
    shapes = dict.fromkeys(start, Box((0.02, 0.05, 0.1)))
    return build(shapes, dict.fromkeys(start, 0.1), start, pairs=lambda a, b: _next(a, b, 2), **{"friction": 0.4, **options})


def peg(clearance: float = 0.5e-3, **options: Any) -> Scene:
    """A square peg of 4 × 4 × 10 cm and 0.3 kg falls into a hole that is wider by the clearance on each side, and starts askew in it."""
    inner, wide, deep = 0.02 + clearance, 0.05, 0.06
    sides: dict[str, Shape] = {"floor": FLOOR}
    for name, sign in (("east", 1), ("west", -1)):
        sides[name] = Box((wide, 0.2, deep), position=(sign * (inner + 0.5 * wide), 0.0, 0.5 * deep))
    for name, sign in (("north", 1), ("south", -1)):
        sides[name] = Box((2 * inner, wide, deep), position=(0.0, sign * (inner + 0.5 * wide), 0.5 * deep))
    tilt = 0.004  # [rad]
    start = {"peg": {"position": (1e-4, -1e-4, deep + 0.045), "orientation": _turn(tilt, (1.0, 0.6, 0.0))}}
    return build({"peg": Box((0.04, 0.04, 0.1))}, {"peg": 0.3}, start, world=sides, **{"friction": 0.3, **options})


def wall(courses: int = 4, **options: Any) -> Scene:
    """A wall of bricks of 20 × 10 × 6 cm and 2 kg in running bond, with half bricks at the ends of every other course."""
    length, height, joint = 0.2, 0.06, 1.5e-3
    widths: dict[str, float] = {}
    shapes: dict[str, Shape] = {}
    start: dict[str, dict[str, Any]] = {}
    for course in range(courses):
        lengths = [length] * 3 if course % 2 == 0 else [0.5 * (length - joint), length, length, 0.5 * (length - joint)]
        x = -0.5 * (sum(lengths) + joint * (len(lengths) - 1))
        for i, size in enumerate(lengths):
            shapes[f"brick{course}_{i}"], widths[f"brick{course}_{i}"] = Box((size, 0.1, height)), size
            start[f"brick{course}_{i}"] = {"position": (x + 0.5 * size, 0.0, 0.5 * height + START + (height + START) * course)}
            x += size + joint
    masses = {name: 2.0 * width / length for name, width in widths.items()}

    def near(a: str, b: str) -> bool:
        (xa, _, za), (xb, _, zb) = start[a]["position"], start[b]["position"]
        reach = 0.5 * (widths[a] + widths[b]) + 2 * joint
        return abs(xa - xb) < reach and abs(za - zb) < 1.5 * height

    return build(shapes, masses, start, pairs=near, grounded=lambda name: name.startswith("brick0"), **options)


def arch(count: int = 7, **options: Any) -> Scene:
    """A half circle of wedges from 40 to 60 cm that bear each other without mortar; the first and the last stand on the floor."""
    inner, outer, depth, slack = 0.4, 0.6, 0.2, 2e-5
    shapes: dict[str, Shape] = {}
    start: dict[str, dict[str, Any]] = {}
    for i in range(count):
        corners = [
            (r * math.cos(angle), y, r * math.sin(angle))
            for angle in (math.pi * i / count + slack, math.pi * (i + 1) / count - slack)
            for r in (inner, outer)
            for y in (-0.5 * depth, 0.5 * depth)
        ]
        points = torch.tensor(corners, dtype=torch.float64)
        center = Hull(points).center
        shapes[f"wedge{i}"] = Hull(points - center)
        start[f"wedge{i}"] = {"position": center.tolist()}
    ends = ("wedge0", f"wedge{count - 1}")
    return build(shapes, dict.fromkeys(shapes, 5.0), start, pairs=_next, grounded=lambda name: name in ends, **options)


def cylinder(**options: Any) -> Scene:
    """A cylinder of 10 cm and 0.5 kg, a prism of 24 sides, lies on a box, which lies on the floor; both fall by 0.2 mm, the box askew."""
    shapes = {"box": Box((0.2, 0.16, 0.1)), "can": Cylinder(0.04, 0.1)}
    start = {
        "box": {"position": (0.0, 0.0, 0.05 + START)},
        "can": {
            "position": (0.01, 0.005, 0.14 + 2 * START),
            "orientation": _turn(0.5 * math.pi, (1.0, 0.0, 0.0)),
            "angular_velocity": (0.0, 0.0, 0.1),
        },
    }
    return build(shapes, {"box": 2.0, "can": 0.5}, start, **{"slots": 48, **options})


# -- what moves ----------------------------------------------------------------------------------------------------------------------------


def cradle(**options: Any) -> Scene:
    """Five balls of 0.1 m and 1 kg in a row, 1 mm apart, without gravity; the first one arrives at 1 m/s."""
    start: dict[str, dict[str, Any]] = {"ball0": {"position": (-5e-3, 0.0, 0.0), "velocity": (1.0, 0.0, 0.0)}}
    start |= {f"ball{i}": {"position": (0.2 * i + 1e-3 * (i - 1) + 1e-3, 0.0, 0.0)} for i in range(1, 5)}
    settings = {"gravity": False, "slots": 2, "timestep": 1e-3, "kappa": 1e-12, **options}
    return build(dict.fromkeys(start, Sphere(0.1)), dict.fromkeys(start, 1.0), start, pairs=_next, grounded=lambda _: False, **settings)


def hull_on_box(**options: Any) -> Scene:
    """A box falls onto the floor, and a hull of 14 corners onto both."""
    shapes = {"box": Box((0.1, 0.08, 0.06)), "hull": round_hull(14, 0.05, 1)}
    start = {
        "box": {"position": (0, 0, 0.05), "velocity": (0.1, 0, -0.5), "angular_velocity": (2, 1, 3)},
        "hull": {"position": (0.01, 0.015, 0.13), "velocity": (0, 0.05, -1), "angular_velocity": (1, 2, 0)},
    }
    return build(shapes, {"box": 1.0, "hull": 0.6}, start, **{"friction": 0.5, **options})


CORNERS = (4, 8, 20, 50, 200)


def drops(**options: Any) -> Scene:
    """A tetrahedron and hulls of 8, 20, 50 and 200 corners of 5 cm and 0.5 kg fall 5 cm, thrown and turning, each for itself."""
    shapes = {f"hull{count}": round_hull(count, 0.05, count) for count in CORNERS}
    start = {
        name: {
            "position": (0.2 * i, 0.0, 0.1), "velocity": (0.3, 0.1, 0.0),
            "orientation": _turn(1.0, (1.0, 0.5, 0.2)), "angular_velocity": (3, -2, 1),
        }
        for i, name in enumerate(shapes)
    }  # fmt: skip
    return build(shapes, dict.fromkeys(shapes, 0.5), start, pairs=lambda a, b: False, **{"slots": 32, **options})


def pour(count: int = 6, **options: Any) -> Scene:
    """Hulls of 14 corners, 3 cm and 0.1 kg, three to a layer, are poured at 4 m/s into a bin of 20 cm."""
    half, thick, high = 0.1, 0.1, 0.6
    bin_sides: dict[str, Shape] = {"floor": FLOOR}
    for name, (x, y) in {"east": (1, 0), "west": (-1, 0), "north": (0, 1), "south": (0, -1)}.items():
        size = (thick, 2 * (half + thick), high) if x else (2 * half, thick, high)
        bin_sides[name] = Box(size, position=(x * (half + 0.5 * thick), y * (half + 0.5 * thick), 0.5 * high))
    shapes = {f"stone{i}": round_hull(14, 0.03, i) for i in range(count)}
    shift = _random(count, 3)
    start = {}
    for i, name in enumerate(shapes):
        angle = 2 * math.pi * (i % 3) / 3 + 0.5 * (i // 3)
        x, y, z = (5e-3 * shift[i]).tolist()
        start[name] = {
            "position": (0.05 * math.cos(angle) + x, 0.05 * math.sin(angle) + y, 0.08 + 0.08 * (i // 3) + z),
            "velocity": (0.0, 0.0, -4.0), "angular_velocity": (10 * shift[i]).tolist(),
        }  # fmt: skip
    return build(
        shapes, dict.fromkeys(shapes, 0.1), start, world=bin_sides, **{"slots": 32, "friction": 0.4, "timestep": 2.5e-3, **options}
    )


# -- what is held --------------------------------------------------------------------------------------------------------------------------

FORCE, FINGER_MASS, PAD = 8.0, 0.05, (0.01, 0.03, 0.03)  # FORCE: of each finger [N]


def grasp(**options: Any) -> Scene:
    """Two flat fingers on slides hold a cube of 6 cm and 0.5 kg, each with 8 N; friction could carry twice its weight."""
    return _held(Box((0.06, 0.06, 0.06)), 0.5, 0.03, **options)


def pinch(**options: Any) -> Scene:
    """The same with a lying capsule of 0.1 kg and a radius of 1 cm, longer than the fingers are wide."""
    return _held(Capsule(0.01, 0.06, orientation=_turn(0.5 * math.pi, (1.0, 0.0, 0.0))), 0.1, 0.01, **options)


def _held(shape: Shape, mass: float, half: float, **options: Any) -> Scene:
    away, gap = half + 0.5 * PAD[0], 1e-6
    shapes = {"object": shape, "left": Box(PAD), "right": Box(PAD)}
    joints = {"left_slide": Prismatic(None, "left", axis=(1, 0, 0)), "right_slide": Prismatic(None, "right", axis=(-1, 0, 0))}
    start = {"left_slide": -(away + gap), "right_slide": -(away + gap)}
    masses = {"object": mass, "left": FINGER_MASS, "right": FINGER_MASS}
    return build(
        shapes, masses, start, joints=joints, pairs=lambda a, b: a == "object", grounded=lambda _: False,
        u=torch.full((2,), FORCE, dtype=torch.float64), push={"left": (FORCE, 0.0, 0.0), "right": (-FORCE, 0.0, 0.0)},
        **{"kappa": 1e-8, **options},
    )  # fmt: skip


#: name -> scene
SCENES: dict[str, Callable[..., Scene]] = {
    "stack": stack, "dominoes": dominoes, "peg": peg, "wall": wall, "arch": arch, "cradle": cradle, "grasp": grasp, "pinch": pinch,
    "drops": drops, "cylinder": cylinder, "pour": pour, "hull_on_box": hull_on_box,
}  # fmt: skip

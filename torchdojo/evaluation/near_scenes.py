"""Scenes of convex bodies that touch wherever they are near each other: stacks, dominoes, walls, arches, drops, a grasp, a pour.

Contacts are the near terms of pairs (geometry/near_terms.py). Energy counts what the barrier holds. On the central path a contact of the
gap φ pushes with w(φ) κ/(h φ) [N], so it stores V(φ) = (κ/h) ∫_φ^R w(s)/s ds [J], with the fade w and the reach R. E is the total energy
with V. Steps evaluate forces at their end, so E of bodies that do not turn falls by m|Δv|²/2 in a step, also in free fall.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchdojo.elements.bodies import Body
from torchdojo.elements.joints import Joint, Prismatic
from torchdojo.elements.near_contact import NearContact, near_contacts
from torchdojo.engine.near_set import near_pairs
from torchdojo.evaluation.experiment import Line, Measurement, Outcome, Plot, Setting, count_flagged, flagged_steps, slug, smallest_distance
from torchdojo.geometry.hulls import Hull
from torchdojo.geometry.near_terms import REACH, fade, near_term
from torchdojo.geometry.shapes import Box, Cylinder, Shape
from torchdojo.mechanism import Mechanism
from torchdojo.solver.options import SolverOptions
from torchdojo.state.layout import STATE_SIZE

__all__ = [
    "bin_of_hulls",
    "box_tower",
    "brick_wall",
    "cylinder_on_box",
    "domino_row",
    "hull_drops",
    "near_grasp",
    "peg_in_hole",
    "stone_arch",
]

GRAVITY, TIMESTEP, KAPPAS = 9.81, 0.01, (1e-6, 1e-8)
FLOOR = Box((4.0, 4.0, 0.2), position=(0.0, 0.0, -0.1))
CUBE = 0.1  # edge of boxes [m]
LIFT = 1e-4  # gap that bodies start with [m]


class Scene(NamedTuple):
    """A mechanism, its first state (13 nb,), number of steps, and control of all of them (nu,)."""

    mechanism: Mechanism
    z: Tensor
    steps: int
    control: Tensor | None = None


class Trace(NamedTuple):
    """Results of a scene: states (T+1, 13 nb), statuses, substeps, iterations (T,), smallest gaps and energies E (T+1,) [m], [J]."""

    z: Tensor
    status: Tensor
    substeps: Tensor
    iterations: Tensor
    gap: Tensor
    energy: Tensor


def build(
    bodies: dict[str, Body], contacts: dict[str, NearContact], kappa: float, joints: dict[str, Joint] | None = None, **options: Any
) -> Mechanism:
    """A mechanism with the gravity, timestep and options of these scenes."""
    timestep = options.pop("timestep", TIMESTEP)
    chosen = SolverOptions(kappa=kappa, **options)
    return Mechanism(bodies, joints or {}, contacts, timestep=timestep, gravity=(0.0, 0.0, -GRAVITY), options=chosen)


def trace(scene: Scene) -> Trace:
    """Run a scene and measure it."""
    control = None if scene.control is None else scene.control.expand(scene.steps, -1)
    path = scene.mechanism.rollout(scene.z, control, steps=None if control is not None else scene.steps)
    gap, stored = near_gaps(scene.mechanism, path.z)
    energy = scene.mechanism.kinetic_energy(path.z) + scene.mechanism.potential_energy(path.z) + stored
    return Trace(path.z, path.status, path.substeps, path.iterations, gap, energy)


def near_gaps(mech: Mechanism, z: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest gaps (T,) [m] of all pairs in states z (T, 13 nb), at most the reach, and the energy in the barrier (T,) [J]."""
    gap, stored = torch.full((len(z),), REACH, dtype=z.dtype), torch.zeros(len(z), dtype=z.dtype)
    reach = torch.full((len(z),), REACH, dtype=z.dtype)
    still = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=z.dtype)
    for pair in near_pairs(mech):
        terms, _ = mech.backends._search(mech.options, pair, z, reach)
        poses = []
        for body in pair.bodies:
            state = z[:, STATE_SIZE * body : STATE_SIZE * (body + 1)] if body >= 0 else None
            x, q = (z.new_zeros(len(z), 3), still.expand(len(z), 4)) if state is None else (state[:, :3], state[:, 6:10])
            poses.append((x[:, None].expand(*terms.shape[:2], 3), q[:, None].expand(*terms.shape[:2], 4)))
        found = near_term(*pair.slots[0].shapes, poses[0], poses[1], terms, False)
        near = (terms[..., 0] >= 0) & (found.weight > 0)
        each = torch.where(near, found.gap, REACH)
        gap = torch.minimum(gap, each.amin(-1))
        stored = stored + barrier_energy(each, mech.options.kappa).sum(-1)
    return gap, stored


def barrier_energy(gap: Tensor, kappa: float) -> Tensor:
    """V(φ) [J] of gaps (...,) [m]: (κ/h) ∫_φ^R w(s)/s ds."""
    grid = torch.linspace(0.5 * REACH, REACH, 513, dtype=torch.float64)
    weights = fade(2 * grid / REACH - 1) / grid
    below = torch.cat((torch.zeros(1, dtype=torch.float64), torch.cumulative_trapezoid(weights, grid)))
    inside = torch.from_numpy(np.interp(gap.clamp(0.5 * REACH, REACH).numpy(), grid.numpy(), (below[-1] - below).numpy()))
    return kappa / TIMESTEP * (inside + torch.log(0.5 * REACH / gap.clamp(1e-300, 0.5 * REACH)))


def rise(energy: Tensor) -> float:
    """Largest growth of an energy (T+1,) over any of its earlier values [J]."""
    return float((energy - energy.cummin(0).values).max())


def rows(name: str, label: str, found: Trace, *, resting: float | None = 1e-9, energy: float | None = None) -> list[Measurement]:
    """Measurements of a scene. resting: bound of speeds at the end. energy: bound of the growth of E [J]."""
    speeds = found.z[-1].unflatten(-1, (-1, STATE_SIZE))
    last = float(torch.linalg.vector_norm(speeds[:, 3:6], dim=-1).max())
    measured = [
        Measurement(f"{name}_energy_rise_J", f"{label}: largest growth of E", rise(found.energy), "J", at_most=energy),
        Measurement(f"{name}_last_speed_m_per_s", "fastest body at the end", last, "m/s", at_most=resting),
        Measurement(f"{name}_split_steps", "split steps", int((found.substeps > 1).sum())),
        Measurement(f"{name}_iterations", "iterations of a step, mean", float(found.iterations.double().mean())),
        Measurement(f"{name}_last_iterations", "of the last 20, most", int(found.iterations[-20:].max())),
        smallest_distance(found.gap, name),
        flagged_steps(found.status, name=name),
    ]
    return measured


# -- boxes on boxes ------------------------------------------------------------------------------------------------------------------------


def tower(count: int, seconds: float, kappa: float, **options: Any) -> Scene:
    """Boxes of 1 kg on each other, each up to 2 mm beside its place."""
    box = Box((CUBE,) * 3)
    bodies = {f"box{i}": Body(1.0, shape=box) for i in range(count)}
    contacts = near_contacts("box0", box, None, FLOOR, friction=0.6)
    for i in range(1, count):
        contacts |= near_contacts(f"box{i}", box, f"box{i - 1}", box, friction=0.6, slots=20)
    mech = build(bodies, contacts, kappa, **options)
    beside = 2e-3 * (2 * torch.rand(count, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1)
    start: dict[str, Any] = {name: {"position": (*beside[i].tolist(), CUBE * (i + 0.5) + LIFT * (i + 1))} for i, name in enumerate(bodies)}
    return Scene(mech, mech.initial_state(**start), round(seconds / TIMESTEP))


def dominoes(count: int, seconds: float, kappa: float, **options: Any) -> Scene:
    """Dominoes of 20 × 100 × 200 mm and 0.3 kg, 80 mm apart; the first one is pushed at 4 rad/s."""
    box = Box((0.02, 0.1, 0.2))
    bodies = {f"domino{i}": Body(0.3, shape=box) for i in range(count)}
    contacts: dict[str, NearContact] = {}
    for i in range(count):
        contacts |= near_contacts(f"domino{i}", box, None, FLOOR, friction=0.5, slots=10)
        if i:
            contacts |= near_contacts(f"domino{i}", box, f"domino{i - 1}", box, friction=0.3, slots=20)
    mech = build(bodies, contacts, kappa, **options)
    start: dict[str, Any] = {name: {"position": (0.08 * i, 0.0, 0.1 + LIFT)} for i, name in enumerate(bodies)}
    start["domino0"]["angular_velocity"] = (0.0, 4.0, 0.0)
    return Scene(mech, mech.initial_state(**start), round(seconds / TIMESTEP))


BRICK = (0.2, 0.1, 0.06)  # [m]


def bricks(courses: int, seconds: float, kappa: float, **options: Any) -> Scene:
    """A wall of bricks of 2 kg: courses of three and of two, half a brick beside each other, 1 mm between neighbors."""
    brick, pitch = Box(BRICK), BRICK[0] + 1e-3
    places = {f"brick{c}_{k}": (pitch * (k + 0.5 * (c % 2)), c) for c in range(courses) for k in range(3 - c % 2)}
    contacts: dict[str, NearContact] = {}
    for name, (x, course) in places.items():
        if course == 0:
            contacts |= near_contacts(name, brick, None, FLOOR, friction=0.6)
        for other, (y, below) in places.items():
            beside = course == below and 0 < x - y < 1.1 * pitch
            if beside or (course == below + 1 and abs(x - y) < 0.9 * pitch):
                contacts |= near_contacts(name, brick, other, brick, friction=0.6, slots=20)
    mech = build({name: Body(2.0, shape=brick) for name in places}, contacts, kappa, **options)
    start: dict[str, Any] = {
        name: {"position": (x, 0.0, BRICK[2] * (course + 0.5) + LIFT * (course + 1))} for name, (x, course) in places.items()
    }
    return Scene(mech, mech.initial_state(**start), round(seconds / TIMESTEP))


INNER, OUTER, DEPTH = 0.3, 0.4, 0.1  # radii and depth of the arch [m]


def arch(stones: int, seconds: float, kappa: float, **options: Any) -> Scene:
    """Wedges on a half circle, on the floor at both ends; thickness 29 % of the mean radius (Heyman's least is 10.7 %)."""
    half = 0.5 * math.pi / stones
    corners = [
        (radius * math.sin(side * half), y, radius * math.cos(side * half))
        for radius in (INNER, OUTER)
        for side in (-1, 1)
        for y in (-0.5 * DEPTH, 0.5 * DEPTH)
    ]
    raw = Hull(corners)
    center = raw.center.detach()
    stone = Hull(np.array(corners) - center.numpy())
    height = float(center[2])
    names = [f"stone{i}" for i in range(stones)]
    contacts: dict[str, NearContact] = {}
    start: dict[str, Any] = {}
    for i, name in enumerate(names):
        angle = -0.5 * math.pi + (2 * i + 1) * half
        if i in (0, stones - 1):
            contacts |= near_contacts(name, stone, None, FLOOR, friction=0.6)
        if i:
            contacts |= near_contacts(name, stone, names[i - 1], stone, friction=0.6, slots=20)
        spread = height + LIFT / (2 * math.tan(half))  # neighbors are LIFT apart
        start[name] = {
            "position": (spread * math.sin(angle), 0.0, spread * math.cos(angle) + LIFT),
            "orientation": (math.cos(0.5 * angle), 0.0, math.sin(0.5 * angle), 0.0),
        }
    mech = build({name: Body(2.0, shape=stone) for name in names}, contacts, kappa, **options)
    return Scene(mech, mech.initial_state(**start), round(seconds / TIMESTEP))


# -- other shapes --------------------------------------------------------------------------------------------------------------------------


def random_hull(corners: int, size: float, generator: np.random.Generator) -> Hull:
    """A hull of points on an ellipsoid with half axes of 0.7 to 1.3 times `size` [m], about its center."""
    points = generator.normal(size=(corners, 3))
    points *= size * (0.7 + 0.6 * generator.random(3)) / np.linalg.norm(points, axis=1, keepdims=True)
    center = Hull(points).center.detach().numpy()
    return Hull(points - center)


def drop(corners: int, seconds: float, kappa: float, **options: Any) -> Scene:
    """A hull of 1 kg falls from 0.3 m and tumbles."""
    hull = random_hull(corners, 0.06, np.random.default_rng(0))
    mech = build({"hull": Body(1.0, shape=hull)}, near_contacts("hull", hull, None, FLOOR, friction=0.5, slots=64), kappa, **options)
    start = {"position": (0.0, 0.0, 0.3), "velocity": (0.5, 0.0, 0.0), "angular_velocity": (3.0, 2.0, 1.0)}
    return Scene(mech, mech.initial_state(hull=start), round(seconds / TIMESTEP))


def lying_cylinder(seconds: float, kappa: float, **options: Any) -> Scene:
    """A cylinder of 1 kg lies on a box and rolls at 5 cm/s at first. It is a prism of 24 sides, and comes to rest on one of them."""
    box = Box((0.3, 0.3, 0.1))
    cylinder = Cylinder(0.05, 0.2, orientation=(math.sqrt(0.5), math.sqrt(0.5), 0.0, 0.0))
    contacts = near_contacts("box", box, None, FLOOR) | near_contacts("cylinder", cylinder, "box", box, slots=24)
    mech = build({"box": Body(1.0, shape=box), "cylinder": Body(1.0, shape=cylinder)}, contacts, kappa, **options)
    start: dict[str, Any] = {
        "box": {"position": (0.0, 0.0, 0.05 + LIFT)},
        "cylinder": {"position": (0.0, 0.0, 0.15 + 2 * LIFT), "velocity": (0.05, 0.0, 0.0)},
    }
    return Scene(mech, mech.initial_state(**start), round(seconds / TIMESTEP))


def peg(seconds: float, kappa: float, **options: Any) -> Scene:
    """A cylinder of radius 20 mm falls into a hole of eight blocks with 0.5 mm of room, 0.02 rad askew."""
    cylinder = Cylinder(0.02, 0.1)
    contacts = near_contacts("peg", cylinder, None, FLOOR, friction=0.2, slots=26)
    for k in range(8):
        turn = 0.25 * math.pi * k
        where = (0.0405 * math.cos(turn), 0.0405 * math.sin(turn), 0.03)
        block = Box((0.04, 0.0345, 0.06), position=where, orientation=(math.cos(0.5 * turn), 0.0, 0.0, math.sin(0.5 * turn)))
        contacts |= {
            f"block{k}_{name}": contact for name, contact in near_contacts("peg", cylinder, None, block, friction=0.2, slots=16).items()
        }
    mech = build({"peg": Body(1.0, shape=cylinder)}, contacts, kappa, **options)
    start = {"position": (3e-4, 2e-4, 0.125), "orientation": (math.cos(0.01), math.sin(0.01), 0.0, 0.0)}
    return Scene(mech, mech.initial_state(peg=start), round(seconds / TIMESTEP))


FORCE, OBJECT = 8.0, 0.06  # of each finger [N]; edge of what they hold [m]


def grasp(seconds: float, kappa: float, **options: Any) -> Scene:
    """Two flat fingers hold a cube of 0.5 kg, each with 8 N; μ = 0.6."""
    box, pad = Box((OBJECT,) * 3), Box((0.01, 0.03, 0.03))
    bodies = {"object": Body(0.5, shape=box), "left": Body(0.05, shape=pad), "right": Body(0.05, shape=pad)}
    joints: dict[str, Joint] = {
        "left_slide": Prismatic(None, "left", axis=(1, 0, 0)), "right_slide": Prismatic(None, "right", axis=(-1, 0, 0)),
    }  # fmt: skip
    contacts = near_contacts("left", pad, "object", box, friction=0.6) | near_contacts("right", pad, "object", box, friction=0.6)
    mech = build(bodies, contacts, kappa, joints, **options)
    away = -(0.5 * OBJECT + 0.005 + 1e-6)
    z = mech.initial_state(left_slide=away, right_slide=away)
    return Scene(mech, z, round(seconds / TIMESTEP), torch.full((2,), FORCE, dtype=torch.float64))


BIN = 0.12  # half of the width of the bin [m]


def poured(count: int, seconds: float, kappa: float, **options: Any) -> Scene:
    """Hulls of 8 or 12 corners fall at 4 m/s into a bin, one over the other."""
    generator = np.random.default_rng(5)
    hulls = {f"hull{i}": random_hull(int(generator.choice([8, 12])), 0.04, generator) for i in range(count)}
    contacts: dict[str, NearContact] = {}
    walls: dict[str, Shape] = {"floor": FLOOR}
    for k, (x, y) in enumerate(((1, 0), (-1, 0), (0, 1), (0, -1))):
        thick = 0.04
        walls[f"wall{k}"] = Box(
            (thick if x else 0.5, thick if y else 0.5, 0.6), position=((BIN + 0.5 * thick) * x, (BIN + 0.5 * thick) * y, 0.3)
        )
    names = list(hulls)
    for i, name in enumerate(names):
        for wall, shape in walls.items():
            contacts |= {f"{wall}_{slot}": contact for slot, contact in near_contacts(name, hulls[name], None, shape, slots=32).items()}
        for other in names[:i]:
            contacts |= near_contacts(name, hulls[name], other, hulls[other], slots=32)
    mech = build({name: Body(0.3, shape=hull) for name, hull in hulls.items()}, contacts, kappa, **options)
    start: dict[str, Any] = {}
    for i, name in enumerate(names):
        q = generator.normal(size=4)
        start[name] = {
            "position": (*generator.uniform(-0.05, 0.05, 2).tolist(), 0.07 + 0.11 * i),
            "orientation": tuple((q / np.linalg.norm(q)).tolist()),
            "velocity": (0.0, 0.0, -4.0),
        }
    return Scene(mech, mech.initial_state(**start), round(seconds / TIMESTEP))


# -- experiments ---------------------------------------------------------------------------------------------------------------------------


def measured(
    setting: Setting, title: str, scene: Callable[..., Scene], *sizes: Any, resting: float | None = None, passive: bool = True
) -> Outcome:
    """A scene at both kappas; quick: at the larger one.

    sizes: arguments of the scene before kappa. resting: bound of the speeds at the end [m/s], at the smaller kappa, where sticking contacts
    creep least. passive: whether E must not grow by more than κ/h, which one contact stores where its gap shrinks by the factor e.
    """
    measurements: list[Measurement] = []
    lines: dict[str, Line] = {}
    for kappa in KAPPAS[:1] if setting.quick else KAPPAS:
        found = trace(scene(*sizes, kappa))
        name = slug(f"kappa_{kappa:g}")
        measurements += rows(
            name, f"kappa {kappa:g}", found,
            resting=resting if kappa == KAPPAS[-1] else None, energy=kappa / TIMESTEP if passive else None,
        )  # fmt: skip
        lines[f"kappa {kappa:g}"] = Line(TIMESTEP * np.arange(len(found.energy)), found.energy)
    return Outcome(measurements, [Plot("energy", title, "time [s]", "E [J]", lines)])


def box_tower(setting: Setting) -> Outcome:
    """Ten boxes stand on each other for 5 s. Near edges push beside their place, with κ/(hφ); this creeps with κ²."""
    return measured(setting, "Stack of boxes", tower, *((4, 0.3) if setting.quick else (10, 5.0)), resting=1e-9)


def domino_row(setting: Setting) -> Outcome:
    """Twelve dominoes fall, and lie on each other at the end. The growth of E has no bound: it exceeds κ/h while they turn at 4 rad/s."""
    return measured(setting, "Dominoes", dominoes, *((3, 0.3) if setting.quick else (12, 3.0)), passive=False)


def brick_wall(setting: Setting) -> Outcome:
    """A wall of four courses stands for 5 s."""
    return measured(setting, "Brick wall", bricks, *((2, 0.1) if setting.quick else (4, 5.0)))


def stone_arch(setting: Setting) -> Outcome:
    """An arch of nine stones closes its gaps and stands for 5 s. Its joints carry friction, so it creeps with κ."""
    return measured(setting, "Arch of nine stones", arch, 9, *((0.1,) if setting.quick else (5.0,)))


def peg_in_hole(setting: Setting) -> Outcome:
    """A peg falls askew into a hole with 0.5 mm of room."""
    return measured(setting, "Peg in a hole", peg, *((0.2,) if setting.quick else (3.0,)))


def cylinder_on_box(setting: Setting) -> Outcome:
    """A cylinder that lies on a box rolls, and comes to rest."""
    return measured(setting, "Cylinder on a box", lying_cylinder, *((0.3,) if setting.quick else (5.0,)))


def near_grasp(setting: Setting) -> Outcome:
    """A cube held by two fingers for 5 s creeps at κβ/((μγ)² − β²): four corners of each pad share the force F and half of the weight."""
    seconds, measurements = 0.5 if setting.quick else 5.0, []
    for kappa in KAPPAS[:1] if setting.quick else KAPPAS:
        found, name = trace(grasp(seconds, kappa)), slug(f"kappa_{kappa:g}")
        normal, shear = FORCE * TIMESTEP / 4, 0.5 * 0.5 * GRAVITY * TIMESTEP / 4
        predicted = kappa * shear / ((0.6 * normal) ** 2 - shear**2)
        creep = -float(found.z[-1, 5])
        measurements += [
            Measurement(f"{name}_creep_um_per_s", f"kappa {kappa:g}: speed downwards at the end", 1e6 * creep, "µm/s"),
            Measurement(f"{name}_creep_error_percent", "against κβ/((μγ)² − β²)", 100 * abs(creep / predicted - 1), "%", at_most=1.0),
            smallest_distance(found.gap, name),
            flagged_steps(found.status, name=name),
        ]
    return Outcome(measurements)


def hull_drops(setting: Setting) -> Outcome:
    """Hulls of 4 to 200 corners fall, tumble, and come to rest.

    The growth of E has no bound here: at h = 10, 5, 2.5, 1.25 ms it is 2.7, 0.20, 0.24, 0.15 mJ of 3 J (60 corners), against κ/h of 0.1,
    0.2, 0.4, 0.8 mJ. At 10 rad/s corners move on arcs whose height is 0.3 mm in a step of 10 ms.
    """
    measurements, lines = [], {}
    for corners in (4, 20) if setting.quick else (4, 8, 20, 60, 200):
        found = trace(drop(corners, 0.4 if setting.quick else 5.0, KAPPAS[0]))
        measurements += rows(f"corners_{corners}", f"{corners} corners", found, resting=None)
        lines[f"{corners} corners"] = Line(TIMESTEP * np.arange(len(found.energy)), found.energy)
    return Outcome(measurements, [Plot("energy", "Hulls that fall", "time [s]", "E [J]", lines)])


def bin_of_hulls(setting: Setting) -> Outcome:
    """Hulls are poured into a bin at 4 m/s, which is 40 mm in a step: as much as their size. So many steps with impacts are split."""
    count, seconds = (2, 0.05) if setting.quick else (6, 0.5)
    found = trace(poured(count, seconds, KAPPAS[0]))
    steps = len(found.status)
    return Outcome(
        [
            Measurement("flagged_percent", f"{count} hulls: flagged steps", 100 * count_flagged(found.status) / steps, "%", at_most=1.0),
            Measurement("split_percent", "split steps", 100 * int((found.substeps > 1).sum()) / steps, "%"),
            Measurement("iterations", "iterations of a step, mean", float(found.iterations.double().mean())),
            smallest_distance(found.gap),
        ]
    )

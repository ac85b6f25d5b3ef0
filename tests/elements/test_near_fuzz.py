"""Random scenes of bodies with near contacts: each step succeeds or says that it did not, stays finite, ends, and overlaps nothing."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.evaluation import near_worlds as worlds
from torchdojo.geometry.shapes import Shape
from torchdojo.native import loader

pytestmark = pytest.mark.skipif(not loader.available(), reason="needs the compiled kernel")

STARTS = ("apart", "overlapping", "touching")
KINDS = ("sphere", "capsule", "box", "cylinder", "hull", "large hull", "needle", "long capsule")
SLOTS = 48
# Steps of seeds 102 and 150 would end inside or across another body without halves. All of 100 to 159 take half an hour of processor time.
SEEDS = (*range(100, 106), 107, 109, 150)
LONGEST = 60.0  # processor time of a step [s]; a step that never ends would take longer


def random_shape(kind: str, generator: torch.Generator) -> Shape:
    a, b, c = (0.02 + 0.08 * torch.rand(3, generator=generator, dtype=torch.float64)).tolist()
    seed = int(torch.randint(1000, (1,), generator=generator))
    shapes: dict[str, Shape] = {
        "sphere": td.Sphere(a), "capsule": td.Capsule(0.5 * a, 2 * b), "box": td.Box((2 * a, 2 * b, 2 * c)),
        "cylinder": td.Cylinder(a, 2 * b),
        "needle": td.Box((0.5, 0.5e-3, 0.5e-3)), "long capsule": td.Capsule(0.25e-3, 0.5),
    }  # fmt: skip
    if "hull" in kind:
        count = 200 if kind == "large hull" else int(torch.randint(4, 30, (1,), generator=generator))
        return worlds.round_hull(count, a, seed)
    return shapes[kind]


class Drawn(NamedTuple):
    """Shapes, masses [kg] and starts of bodies by name, and how they start."""

    shapes: dict[str, Shape]
    masses: dict[str, float]
    start: dict[str, dict[str, Any]]
    how: str

    def build(self) -> worlds.Scene:
        return worlds.build(self.shapes, self.masses, self.start, slots=SLOTS, kappa=1e-6)


def draw(seed: int, most: int) -> Drawn:
    """2 to `most` bodies of random shapes and masses."""
    generator = torch.Generator().manual_seed(seed)
    how, count = STARTS[seed % len(STARTS)], 2 + int(torch.randint(most - 1, (1,), generator=generator))
    shapes: dict[str, Shape] = {}
    masses: dict[str, float] = {}
    start: dict[str, dict[str, Any]] = {}
    height = 0.0
    for i in range(count):
        name = f"body{i}"
        kind = "box" if how == "touching" else KINDS[int(torch.randint(len(KINDS), (1,), generator=generator))]
        shape = shapes[name] = random_shape(kind, generator)
        masses[name] = 10 ** (8 * float(torch.rand(1, generator=generator, dtype=torch.float64)) - 4)
        random = torch.randn(4, 3, generator=generator, dtype=torch.float64)
        if isinstance(shape, td.Box) and how == "touching":  # faces that lie exactly in one plane
            size = shape.size.tolist()
            start[name] = {"position": (0.0, 0.0, height + 0.5 * size[2])}
            height += size[2]
            continue
        turn = torch.cat((random[3, :1], random[0]))
        spread = 0.03 if how == "overlapping" else 0.3
        place = spread * random[1]
        place[2] = 0.05 + 0.05 * i if how == "overlapping" else 0.3 + 0.6 * i
        start[name] = {
            "position": place.tolist(), "orientation": (turn / torch.linalg.vector_norm(turn)).tolist(),
            "velocity": (random[2] + torch.tensor((0.0, 0.0, -6.0 * (how == "apart")), dtype=torch.float64)).tolist(),
            "angular_velocity": (2 * random[3]).tolist(),
        }  # fmt: skip
    return Drawn(shapes, masses, start, how)


def run_scene(seed: int, most: int, steps: int) -> list[int]:
    """Steps of a random scene; the statuses."""
    drawn = draw(seed, most)
    scene, how = drawn.build(), drawn.how
    mech, statuses = scene.mech, []
    known = {int(status) for status in td.Status}
    z, warm = scene.z, None
    before = scene.gaps(z).min()
    with torch.no_grad():
        for _ in range(steps):
            began = time.process_time()
            try:
                out = mech.step(z, warm_start=warm)
            except RuntimeError as error:
                assert "terms within" in str(error) and "slots" in str(error)  # clear, and no more steps of this scene
                break
            assert time.process_time() - began < LONGEST, f"seed {seed}: a step took {time.process_time() - began:.0f} s"
            assert int(out.status) in known
            assert_finite(seed, out.z, out.impulses)
            statuses.append(int(out.status))
            after = scene.gaps(out.z).min()
            if int(out.status) == int(td.Status.SUCCESS) and float(before) > 0:
                assert float(after) > 0, f"seed {seed} ({how}): an overlap of {-float(after):.1e} m after a step without a flag"
            z, warm, before = out.z, out.solution, after
    return statuses


def assert_finite(seed: int, *values: Tensor) -> None:
    for value in values:
        assert bool(torch.isfinite(value).all()), f"seed {seed}: values that are not finite"


@pytest.mark.parametrize("seed", range(3))
def test_random_scenes(seed: int) -> None:
    run_scene(seed, 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_many_random_scenes(seed: int) -> None:
    run_scene(seed, 6, 40)


def test_scenes_are_of_all_kinds() -> None:
    """The slow test draws every start, and masses over more than six decades."""
    masses = [mass for seed in (100, 101, 103, 104, 107) for mass in draw(seed, 6).masses.values()]
    assert {draw(seed, 2).how for seed in range(100, 103)} == set(STARTS)
    assert math.log10(max(masses) / min(masses)) > 6

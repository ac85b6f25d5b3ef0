"""Derivatives by the sizes of shapes that touch at near terms: rollouts, halves, substeps, distances, and a size that is identified."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.evaluation import near_worlds as worlds
from torchdojo.native import loader

pytest.importorskip("scipy")
needs_kernel = pytest.mark.skipif(not loader.available(), reason="needs the compiled kernel")

FLOOR = td.Box((2.0, 2.0, 0.2), position=(0.0, 0.0, -0.1))
TOP = td.Box((0.08, 0.07, 0.05))
Make = Callable[[Tensor], td.Shape]


def points(count: int = 14) -> list[list[float]]:
    cloud = torch.randn(count, 3, generator=torch.Generator().manual_seed(1))
    return (0.05 * cloud / torch.linalg.vector_norm(cloud, dim=-1, keepdim=True)).tolist()


SHAPES: dict[str, tuple[Any, Make]] = {
    "box": ([0.1, 0.08, 0.06], td.Box),
    "cylinder": ([0.04, 0.08], lambda sizes: td.Cylinder(sizes[0], sizes[1])),
    "sphere": ([0.05], lambda sizes: td.Sphere(sizes[0])),
    "capsule": ([0.03, 0.08], lambda sizes: td.Capsule(sizes[0], sizes[1])),
    "ellipsoid": ([0.05, 0.04, 0.03], td.Ellipsoid),
    "hull": (points(), td.Hull),
    "pose": ([0.01, -0.02, 0.005], lambda sizes: td.Box((0.1, 0.08, 0.06), position=sizes, orientation=(0.8, 0, 0.6, 0))),
}


def scene(shape: td.Shape, slots: int | None = None, **options: Any) -> td.Mechanism:
    """A shape, whose mass has no say in it, falls onto the floor, and a box onto it."""
    contacts = td.near_contacts("low", shape, None, FLOOR, friction=0.5, slots=slots)
    contacts |= td.near_contacts("top", TOP, "low", shape, friction=0.4, slots=slots)
    bodies = {"low": td.Body(1.0, (0.002, 0.003, 0.0025)), "top": td.Body(0.5, shape=TOP)}
    return td.Mechanism(bodies, (), contacts, options=td.SolverOptions(residual_tol=1e-12, kappa=1e-5, **options))


def start_of(mech: td.Mechanism) -> Tensor:
    low = {"position": (0, 0, 0.077), "velocity": (0.2, 0.1, -0.8), "angular_velocity": (1, 2, 0.5)}
    top = {"position": (0.01, 0.012, 0.177), "velocity": (0, 0, -1.4), "angular_velocity": (1, -1, 0.3)}
    return mech.initial_state(low=low, top=top)


def differences(value: Callable[[Tensor], Tensor], sizes: Tensor, places: list[int]) -> Tensor:
    """Central differences of fourth order by some of the sizes."""
    width, result = 1e-7, []
    with torch.no_grad():
        for place in places:
            along = width * torch.eye(sizes.numel())[place].view_as(sizes)
            ends = [float(value(sizes + step * along)) for step in (1, -1, 2, -2)]
            result.append((8 * (ends[0] - ends[1]) - ends[2] + ends[3]) / (12 * width))
    return torch.tensor(result)


def gradient(value: Callable[[Tensor], Tensor], sizes: Tensor, places: list[int]) -> Tensor:
    leaf = sizes.clone().requires_grad_(True)
    return torch.autograd.grad(value(leaf), leaf)[0].flatten()[places]


def check(value: Callable[[Tensor], Tensor], sizes: Tensor) -> None:
    places = list(range(min(3, sizes.numel())))
    expected = differences(value, sizes, places)
    scale = float(expected.abs().max())
    torch.testing.assert_close(gradient(value, sizes, places), expected, atol=1e-6 * scale, rtol=1e-6)


@needs_kernel
@pytest.mark.parametrize("kind", SHAPES)
def test_rollouts(kind: str) -> None:
    numbers, make = SHAPES[kind]
    weight = torch.randn(26, generator=torch.Generator().manual_seed(0))

    def value(sizes: Tensor) -> Tensor:
        mech = scene(make(sizes))
        path = mech.rollout(start_of(mech), steps=8)
        assert not path.status.any() and float(path.impulses[-1].detach().abs().max()) > 1e-3
        return (path.z[1:] @ weight).sum() + path.impulses.square().sum()

    check(value, torch.tensor(numbers))


@needs_kernel
def test_kernel_and_reference_have_the_same_derivatives() -> None:
    results = []
    for backend in ("native", "reference"):
        size = torch.tensor([0.1, 0.08, 0.06], requires_grad=True)
        box = td.Box(size)
        options = td.SolverOptions(residual_tol=1e-12, kappa=1e-5, backend=backend)
        mech = td.Mechanism({"box": td.Body(1.0, shape=box)}, (), td.near_contacts("box", box, None, FLOOR, slots=4), options=options)
        z = mech.initial_state((2,), box={"position": (0, 0, 0.0305), "velocity": (0.2, 0, -0.3), "angular_velocity": (0.02, 0.03, 1)})
        path = mech.rollout(z.requires_grad_(True), steps=2)
        results.append((path.z.detach(), *torch.autograd.grad((path.z[:, -1] @ torch.linspace(-1, 1, 13)).sum(), (size, z))))
    for own, expected in zip(*results, strict=True):
        torch.testing.assert_close(own, expected, atol=1e-8, rtol=1e-8)


TURN = torch.nn.functional.normalize(torch.tensor((1.0, 0.3, 0.2, 0.1), dtype=torch.float64), dim=0)


@needs_kernel
@pytest.mark.parametrize("adaptive", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_halves_and_substeps(adaptive: bool) -> None:
    """A box of 3 cm hits a plate at 9 m/s: the step is taken in seven, or split."""
    weight = torch.randn(26, generator=torch.Generator().manual_seed(0))
    moving = {"position": (0.01, 0.005, 0.09), "velocity": (0, 0, -9), "orientation": TURN.tolist()}
    start = {"plate": {"position": (0, 0, 0), "angular_velocity": (1, 2, 1)}, "box": moving}

    def value(size: Tensor) -> Tensor:
        shapes = {"plate": td.Box((0.1, 0.08, 0.01)), "box": td.Box(size)}
        world = worlds.build(shapes, {"plate": 1.0, "box": 0.5}, start, grounded=lambda _: False)
        world.mech.options = td.SolverOptions(kappa=1e-5, residual_tol=1e-12)
        path = world.mech.rollout(world.z.detach(), steps=2, adaptive=adaptive)
        assert not path.status.any() and int(path.substeps[0]) > 1
        return path.z[-1] @ weight

    check(value, torch.tensor([0.08, 0.06, 0.03]))


@needs_kernel
@pytest.mark.parametrize("kind", SHAPES)
def test_distances_and_points(kind: str) -> None:
    numbers, make = SHAPES[kind]
    sizes = torch.tensor(numbers)
    mech = scene(make(sizes))
    z = mech.rollout(start_of(mech), steps=8).z[-1:]

    def value(sizes: Tensor) -> Tensor:
        mech = scene(make(sizes))
        gaps = mech.distances(z)
        near = gaps < 9e-4
        assert bool(near.any())
        return (gaps[near] * torch.arange(1, int(near.sum()) + 1)).sum() + mech.contact_points(z)[near].sum()

    check(value, sizes)


def measured(height: Tensor, steps: int) -> Tensor:
    """The motion of a box of this height that is thrown onto the floor, with the inertia of its shape."""
    box = td.Box(torch.stack((height.new_tensor(0.1), height.new_tensor(0.08), height)))
    contacts = td.near_contacts("box", box, None, FLOOR, slots=8, friction=0.4)
    mech = td.Mechanism({"box": td.Body(1.0, shape=box)}, (), contacts, options=td.SolverOptions(kappa=1e-5))
    start = {"position": (0, 0, 0.055), "velocity": (0.3, 0.1, -1.0), "angular_velocity": (1.0, 0.5, 0.0)}
    path = mech.rollout(mech.initial_state(box=start), steps=steps)
    assert not path.status.any()
    return path.z[1:, :3]


@needs_kernel
def test_half_length_is_identified_from_a_motion() -> None:
    """Half the height, 3 cm, from where the box was: Gauss and Newton's method from 3.4 cm."""
    steps, half = 8, torch.tensor(0.034)
    seen = measured(torch.tensor(2 * 0.03), steps)
    for _ in range(5):
        leaf = half.clone().requires_grad_(True)
        apart = measured(2 * leaf, steps) - seen
        loss = apart.square().sum()
        (slope,) = torch.autograd.grad(loss, leaf)
        with torch.no_grad():
            along = (measured(2 * (half + 1e-6), steps) - seen - apart) / 1e-6  # the curvature need not be exact
            half = half - 0.5 * slope / along.square().sum()
    assert float(half) == pytest.approx(0.03, abs=1e-7)


def test_steps_without_a_graph_are_those_of_constant_sizes() -> None:
    """Also of copies. With a graph, values are the same, and the step is differentiated twice through one mechanism."""
    sizes = torch.tensor([0.1, 0.08, 0.06])
    plain, mech = scene(td.Box(sizes), slots=8), scene(td.Box(sizes.clone().requires_grad_(True)), slots=8)
    z = start_of(plain)
    with torch.no_grad():
        assert torch.equal(mech.rollout(z, steps=5).z, plain.rollout(z, steps=5).z)
        assert torch.equal(copy.deepcopy(mech).rollout(z, steps=5).z, plain.rollout(z, steps=5).z)
    torch.testing.assert_close(mech.rollout(z, steps=5).z.detach(), plain.rollout(z, steps=5).z, atol=1e-12, rtol=0)


@needs_kernel
def test_randomized_gradients_by_sizes() -> None:
    """Noise that changes nothing leaves the gradient as it is."""
    ends = []
    for smoothing in (None, td.RandomizedSmoothing(samples=2, wrench_deviation=1e-9)):
        radius = torch.tensor(0.05, requires_grad=True)
        mech = scene(td.Sphere(radius), gradient_mode="randomized" if smoothing else "central_path", randomized=smoothing)
        path = mech.rollout(start_of(mech), steps=4)
        ends.append(torch.autograd.grad(path.z[-1] @ torch.linspace(-1, 1, 26), radius)[0])
    torch.testing.assert_close(ends[1], ends[0], atol=0, rtol=1e-6)


@needs_kernel
def test_sizes_that_cannot_be_differentiated() -> None:
    for make in (td.Box, td.Ellipsoid):
        size = torch.tensor([0.1, 0.08, 0.06], requires_grad=True)
        mech = scene(make(size), slots=8 if make is td.Box else None)
        z = start_of(mech)
        with torch.no_grad():
            size[2] += 1e-3
        with pytest.raises(RuntimeError, match=f"{make.__name__} whose numbers have changed since its contacts were made; shapes are"):
            mech.rollout(z, steps=4)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.tensor(0.05), torch.tensor(1.0))
        with pytest.raises(RuntimeError, match=r"Sphere whose numbers are differentiated in forward mode.*reverse mode"):
            td.near_contacts("low", td.Sphere(dual), None, FLOOR)
    with pytest.raises(RuntimeError, match=r"torch\.func"):
        torch.func.grad(lambda radius: scene(td.Sphere(radius)).distances(z).sum())(torch.tensor(0.05))

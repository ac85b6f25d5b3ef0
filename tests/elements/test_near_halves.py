"""Near steps that lead bodies through each other are found, and are taken in halves, with gradients through them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.engine import near_set
from torchdojo.engine.near_overlap import pierced
from torchdojo.evaluation import near_worlds as worlds
from torchdojo.geometry.polytopes import polytope_of
from torchdojo.gradients.request import Request, StepInputs
from torchdojo.native import loader

needs_kernel = pytest.mark.skipif(not loader.available(), reason="needs the compiled kernel")


def state(x: tuple[float, ...], v: tuple[float, ...] = (0.0, 0.0, 0.0), omega: tuple[float, ...] = (0.0, 0.0, 0.0)) -> Tensor:
    return torch.tensor((*x, *v, 1.0, 0.0, 0.0, 0.0, *omega), dtype=torch.float64)


def moved(z: Tensor, timestep: float) -> Tensor:
    """The state of one body once it has moved on at its velocities."""
    a = 0.5 * timestep * z[10:13]
    return torch.cat((z[:3] + timestep * z[3:6], z[3:6], torch.sqrt(1 - (a * a).sum())[None], a, z[10:13]))


BOX, PLATE, NEEDLE, BALL = td.Box((0.1, 0.1, 0.1)), td.Box((0.2, 0.2, 2e-3)), td.Box((0.5, 1e-3, 1e-3)), td.Sphere(0.02)


@pytest.mark.parametrize(
    ("shapes", "first", "second", "expected"),
    [
        ((BOX, BOX), state((0, 0, 0.2), (0, 0, -15)), state((0, 0, 0)), True),  # ends 5 cm inside
        ((BOX, BOX), state((0, 0, 0.2), (0, 0, -40)), state((0, 0, 0)), True),  # ends beyond
        ((BOX, BOX), state((0, 0, 0.2), (0, 0, -9.9)), state((0, 0, 0)), False),  # ends before
        ((BOX, BOX), state((0.11, 0, 0.2), (0, 0, -40)), state((0, 0, 0)), False),  # passes by
        ((BOX, BOX), state((0, 0, 0.05), (0, 0, 1)), state((0, 0, 0)), False),  # began inside
        ((BOX, BOX), state((0, 0, 0.2), (0, 0, -40)), state((0, 0, 0), (0, 0, -40)), False),  # both move alike
        ((BALL, BALL), state((0, 0, 0.05), (0, 0, -10)), state((0, 0, 0)), True),
        ((BOX, PLATE), state((0, 0, 0.1), (0, 0, -20)), state((0, 0, 0)), True),
        ((NEEDLE, NEEDLE), state((0, 0, 0.01), (0, 0, -2)), state((0, 0, 0), (0, 0, 0), (0, 0, 100)), True),
        ((NEEDLE, PLATE), state((0.3, 0, 0), (0, 0, 0), (0, 90, 0)), state((0, 0.3, 0)), False),
    ],
)
def test_steps_through_each_other(shapes: tuple[td.Shape, td.Shape], first: Tensor, second: Tensor, expected: bool) -> None:
    timestep = 0.01
    start, end = torch.cat((first, second)), torch.cat((moved(first, timestep), moved(second, timestep)))
    cores = tuple(map(polytope_of, shapes))
    found = pierced(cores, (0, 1), start[None], end[None], torch.tensor([timestep], dtype=torch.float64))
    assert found.tolist() == [expected]
    swapped = pierced(cores[::-1], (1, 0), start[None], end[None], torch.tensor([timestep], dtype=torch.float64))
    assert swapped.tolist() == [expected]


class Slowly(near_set.NearSteps):
    """Steps whose terms are chosen in Python."""

    def _in_kernel(self, given, keep_solutions):
        return None


TURN = (1.0, 0.3, 0.2, 0.1)


def collision(**options: float) -> worlds.Scene:
    """A box of 3 cm hits a plate of 1 cm at 9 m/s, by 9 cm in a step."""
    shapes = {"plate": td.Box((0.1, 0.08, 0.01)), "box": td.Box((0.08, 0.06, 0.03))}
    turn = torch.tensor(TURN, dtype=torch.float64)
    start = {
        "plate": {"position": (0, 0, 0), "angular_velocity": (1, 2, 1)},
        "box": {"position": (0.01, 0.005, 0.09), "velocity": (0, 0, -9), "orientation": (turn / turn.norm()).tolist()},
    }
    return worlds.build(shapes, {"plate": 1.0, "box": 0.5}, start, grounded=lambda _: False, **options)


def steps_of(scene: worlds.Scene, kind: type[near_set.NearSteps]) -> near_set.NearSteps:
    quick = scene.mech.backends.select(Request(scene.mech.options))
    assert isinstance(quick, near_set.NearSteps)
    return kind(quick.structure, quick.request, quick.pairs, quick._select, quick._bare, quick._memory, quick._search)


@needs_kernel
def test_kernel_and_python_take_the_same_halves() -> None:
    """States, impulses and gradients by states and wrenches, of environments that are split in other ways."""
    ends = []
    for kind in (near_set.NearSteps, Slowly):
        scene = collision()
        start = torch.stack((scene.z, scene.z, scene.z))
        start[1, 15] += 0.05  # still apart at the end
        start[2, 13] += 0.003
        start.requires_grad_(True)
        wrench = torch.zeros(12, dtype=torch.float64, requires_grad=True)
        out = steps_of(scene, kind).step(StepInputs(start, torch.zeros(0, dtype=torch.float64), wrench))
        assert not out.status.any()
        assert float(scene.gaps(out.z.detach()).min()) > 0
        weight = torch.randn(out.z.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        normal = out.impulses.view(3, -1, 4)[..., 0].sum(-1)  # of all slots: which one has a term does not matter
        gradients = torch.autograd.grad((out.z * weight).sum() + (normal * normal).sum(), (start, wrench))
        ends.append((out, normal, gradients))
    (quick, own_normal, by_quick), (slow, normal, by_slow) = ends
    assert quick.substeps.tolist() == slow.substeps.tolist()
    assert quick.substeps[0] > 1 and quick.substeps[1] == 1 and quick.substeps[2] > 1
    torch.testing.assert_close(quick.z, slow.z, atol=1e-10, rtol=0)
    torch.testing.assert_close(own_normal, normal, atol=1e-10, rtol=0)
    for own, expected in zip(by_quick, by_slow, strict=True):
        torch.testing.assert_close(own, expected, atol=1e-8, rtol=1e-8)


@needs_kernel
def test_derivatives_through_halves() -> None:
    """The gradient of a split step, and its Jacobian, against differences."""
    scene = collision()
    mech, size = scene.mech, 26
    z = scene.z.clone().requires_grad_(True)
    out = mech.step(z)
    assert int(out.substeps) > 1
    weight = torch.randn(size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (gradient,) = torch.autograd.grad(out.z @ weight, z)
    velocities = [k for k in range(size) if k % 13 in (0, 1, 2, 3, 4, 5, 10, 11, 12)]
    width = 1e-6
    with torch.no_grad():
        for k in velocities:
            ends = []
            for sign in (1, -1):
                other = scene.z.clone()
                other[k] += sign * width
                after = mech.step(other)
                assert int(after.substeps) == int(out.substeps)
                ends.append(after.z @ weight)
            assert float(gradient[k]) == pytest.approx(float(ends[0] - ends[1]) / (2 * width), rel=1e-5, abs=1e-5)
        jacobian = mech.jacobians(scene.z)[0]
    linear = [k for k in range(size) if k % 13 < 6]  # positions and velocities, which are their own tangents
    tangents = [12 * (k // 13) + k % 13 for k in linear]
    out = mech.step(z)
    rows = torch.stack([torch.autograd.grad(out.z[k], z, retain_graph=True)[0][linear] for k in linear])
    torch.testing.assert_close(jacobian[tangents][:, tangents], rows, atol=1e-8, rtol=1e-6)


@needs_kernel
def test_a_step_without_halves_is_flagged() -> None:
    """Where halves are not allowed, an overlap is a status, and the environment keeps its state."""
    scene = collision()
    scene.mech.options = td.SolverOptions(kappa=1e-6, max_halvings=0, residual_tol=1e-12)
    with torch.no_grad():
        out = scene.mech.step(scene.z)
    assert int(out.status) == int(td.Status.MAX_ITERATIONS)
    assert torch.equal(out.z, scene.z)

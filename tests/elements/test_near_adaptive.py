"""Adaptive rollouts and randomized gradients of mechanisms with near contacts: the near set with stacked numbers of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.engine.smoothing import generator_of, random_inputs
from torchdojo.native import loader

GRAVITY = 9.81
FINER = 32
FLOOR = td.Box((2.0, 2.0, 0.2), position=(0.0, 0.0, -0.1))
LOWER, UPPER = td.Box((0.1, 0.08, 0.06)), td.Box((0.08, 0.07, 0.05))
CENTRAL = (8.0, -1.0)  # weights of the differences at one and two widths, over 12 widths: their error is O(width⁴)

needs_kernel = pytest.mark.skipif(not loader.available(), reason="needs the compiled kernel")


def boxes(timestep: float = 0.01, **options: Any) -> td.Mechanism:
    contacts = td.near_contacts("lower", LOWER, None, FLOOR, friction=0.5)
    contacts |= td.near_contacts("upper", UPPER, "lower", LOWER, friction=0.4)
    contacts |= td.near_contacts("upper", UPPER, None, FLOOR, friction=0.4)
    bodies = {"lower": td.Body(1.0, shape=LOWER), "upper": td.Body(0.5, shape=UPPER)}
    return td.Mechanism(bodies, (), contacts, timestep=timestep, options=td.SolverOptions(**options))


def drops(mech: td.Mechanism, count: int) -> Tensor:
    """Boxes that fall, askew, onto one that lies."""
    generator = torch.Generator().manual_seed(0)
    # The velocity of the state is that half a step before: so the boxes of all timesteps are on the same parabola.
    velocity = 0.3 * torch.randn(count, 3, generator=generator) + torch.tensor((0.0, 0.0, 0.5 * float(mech.timestep) * GRAVITY))
    spin = 2 * torch.randn(count, 3, generator=generator)
    start = {"position": (0.01, 0.02, 0.2), "velocity": velocity, "angular_velocity": spin}
    return mech.initial_state((count,), lower={"position": (0, 0, 0.0301)}, upper=start)


@needs_kernel
def test_an_impact_between_boxes_is_more_accurate() -> None:
    """Plain steps have 2.7 times the error of adaptive ones, at 1.3 substeps."""
    mech, finer, steps = boxes(kappa=1e-8), boxes(0.01 / FINER, kappa=1e-8), 40
    with torch.no_grad():
        truth = finer.rollout(drops(finer, 4), steps=FINER * steps).z[:, ::FINER]
        plain, careful = mech.rollout(drops(mech, 4), steps=steps), mech.rollout(drops(mech, 4), steps=steps, adaptive=True)

    def error(path: td.Trajectory) -> float:
        """Distance of the farther body, mean over time and throws [m]."""
        away = (path.z - truth).unflatten(-1, (-1, 13))[..., :3]
        return float(away.norm(dim=-1).amax(-1).mean())

    assert not plain.status.any() and not careful.status.any()
    assert 2 * error(careful) <= error(plain)
    assert 1 < float(careful.substeps.double().mean()) <= 1.5
    assert float(mech.distances(careful.z[:, 1:]).min()) > 0


@needs_kernel
def test_environments_that_are_not_split_keep_their_bits() -> None:
    """One slides, one flies and one hits: only the last one is split. The slots have the terms of the last step."""
    mech = boxes()
    z = drops(mech, 3)
    z[0, 13:16] = torch.tensor((0.0, 0.0, 0.0852))
    z[0, 16:19], z[0, 23:26], z[1, 15] = torch.tensor((0.2, 0.0, 0.0)), 0.0, 2.0
    with torch.no_grad():
        z = mech.rollout(z, steps=2).z[:, -1]
        plain, careful = mech.rollout(z, steps=24), mech.rollout(z, steps=24, adaptive=True)
    assert careful.substeps.amax(-1).tolist()[:2] == [1, 1] and int(careful.substeps[2].max()) > 1
    assert torch.equal(careful.z[:2], plain.z[:2]) and torch.equal(careful.impulses[:2], plain.impulses[:2])
    assert not torch.equal(careful.z[2], plain.z[2])
    assert {tuple(contact.term.shape) for contact in mech.contacts.values()} == {(3, 3)}
    after = mech.step(careful.z[:, -1], warm_start=careful.solution[:, -1])
    assert int(after.iterations[0]) <= 4  # it goes on from where it was


def meeting(mech: td.Mechanism, impact: float = -1.0) -> Tensor:
    """Two of a box that hits another one in the next steps."""
    start = {"position": (0.01, 0.02, 0.0925), "velocity": (0.2, 0.0, impact), "angular_velocity": (0.5, 1.0, 0.2)}
    z = mech.initial_state(lower={"position": (0, 0, 0.0301)}, upper=start)
    return torch.stack((z, z + 1e-3 * torch.eye(26)[15]))


ALWAYS = td.AdaptiveOptions(position_tol=1e-6, rotation_tol=1e-6, max_halvings=1)


@pytest.mark.slow
@needs_kernel
def test_kernel_and_reference_take_the_same_substeps() -> None:
    paths = []
    for backend in ("native", "reference"):
        rod = td.Capsule(radius=0.02, length=0.1)
        contacts = td.near_contacts("rod", rod, None, FLOOR, friction=0.5, slots=4)
        options = td.SolverOptions(backend=backend, residual_tol=1e-12)
        mech = td.Mechanism({"rod": td.Body(1.0, shape=rod)}, (), contacts, options=options)
        z = mech.initial_state(rod={"position": (0, 0, 0.04), "velocity": (0.1, 0, -1), "orientation": (0.8, 0, 0.6, 0)})
        with torch.no_grad():
            paths.append(mech.rollout(z, steps=4, adaptive=ALWAYS))
    assert paths[0].substeps.tolist() == paths[1].substeps.tolist() and int(paths[0].substeps.max()) > 1
    torch.testing.assert_close(paths[0].z, paths[1].z, atol=1e-10, rtol=0)


@needs_kernel
@pytest.mark.parametrize("numbers", [False, True], ids=["states and wrenches", "masses and gravity"])
def test_gradients_through_substeps(numbers: bool) -> None:
    mech = boxes(residual_tol=1e-12, kappa=1e-5)
    z, wrench = meeting(mech), torch.tensor((0.0, 0.5, -1.0, 0.01, 0.0, 0.0, 0.3, 0.0, -2.0, 0.0, 0.02, 0.0))
    weight = torch.randn(26, generator=torch.Generator().manual_seed(0))
    mass, gravity = mech.bodies["upper"].mass, mech.gravity

    def value() -> Tensor:
        path = mech.rollout(z, steps=3, wrench=wrench, adaptive=ALWAYS)
        assert not path.status.any() and int(path.substeps.max()) > 1
        return (path.z[:, -1] @ weight).sum()

    leaves = [mass, gravity] if numbers else [z, wrench]
    places = (
        [(mass, ()), (gravity, (2,))]
        if numbers
        else [(z, (0, 3)), (z, (0, 15)), (z, (1, 18)), (z, (1, 23)), (wrench, (8,)), (wrench, (3,))]
    )
    for leaf in leaves:
        leaf.requires_grad_(True)
    gradients = torch.autograd.grad(value(), leaves)
    for leaf in leaves:
        leaf.requires_grad_(False)
    for leaf, place in places:
        kept, width, difference = float(leaf[place]), 1e-5, 0.0
        for times, share in zip((1, 2), CENTRAL, strict=True):
            for sign in (1, -1):
                leaf[place] = kept + sign * times * width
                with torch.no_grad():
                    difference += sign * share * float(value()) / (12 * width)
        leaf[place] = kept
        gradient = next(g for g, other in zip(gradients, leaves, strict=True) if other is leaf)[place]
        assert float(gradient) == pytest.approx(difference, rel=1e-6, abs=1e-6)


@needs_kernel
def test_randomized_gradient_of_a_push_is_the_mean_over_samples() -> None:
    """One box pushes another one. The step keeps its values and its terms; Jacobians are means, too."""
    mech, count = boxes(residual_tol=1e-12), 20
    z = mech.initial_state(lower={"position": (0, 0, 0.0301)}, upper={"position": (0.0912, 0, 0.0251)})
    z = mech.rollout(z, steps=5).z[-1]
    push = torch.tensor((0.0,) * 6 + (-3.0,) + (0.0,) * 5)
    deviation = 2 * (5.0, 1.0, 1.0, 0.02, 0.02, 0.02)
    smoothing = td.RandomizedSmoothing(samples=count, wrench_deviation=deviation, mode="central_path")
    plain, smooth = mech.options, td.SolverOptions(gradient_mode="randomized", randomized=smoothing, residual_tol=1e-12)
    expected = mech.step(z, wrench=push)
    mech.options = smooth
    wrench = push.clone().requires_grad_(True)
    out = mech.step(z, wrench=wrench)
    (gradient,) = torch.autograd.grad(out.z[3] + 0.3 * out.z[16], wrench)
    torch.testing.assert_close(out.z, expected.z, atol=1e-12, rtol=0)
    assert {tuple(contact.term.shape) for contact in mech.contacts.values()} == {(3,)}
    jacobian, _ = mech.jacobians(z)
    assert {tuple(contact.term.shape) for contact in mech.contacts.values()} == {(3,)}
    zero, none = torch.zeros(12), torch.zeros(0)
    noise = random_inputs(smoothing, generator_of(smoothing, z.device), z, none, zero)[2]
    mech.options = plain
    several, width = z.expand(count, 26), 1e-5
    torch.testing.assert_close(jacobian, _mean_jacobian(mech, several, noise), atol=1e-9, rtol=1e-9)
    for place in (0, 2, 4, 6, 8):
        moved = width * torch.eye(12)[place]
        difference = 0.0
        for times, share in zip((1, 2), CENTRAL, strict=True):
            ends = [mech.step(several, wrench=push + noise + sign * times * moved).z for sign in (1, -1)]
            change = ((ends[0] - ends[1])[:, 3] + 0.3 * (ends[0] - ends[1])[:, 16]).mean()
            difference += share * float(change) / (12 * width)
        assert float(gradient[place]) == pytest.approx(difference, rel=1e-6, abs=1e-8)


def _mean_jacobian(mech: td.Mechanism, z: Tensor, wrench: Tensor) -> Tensor:
    return mech.linearize(z, wrench=wrench).A.mean(0)


@needs_kernel
def test_randomized_rollout() -> None:
    """Noise that changes nothing leaves the gradient through steps as it is."""
    ends = []
    for smoothing in (None, td.RandomizedSmoothing(samples=3, wrench_deviation=1e-9)):
        mech = boxes(kappa=1e-5, residual_tol=1e-12, gradient_mode="randomized" if smoothing else "central_path", randomized=smoothing)
        z = meeting(mech).requires_grad_(True)
        path = mech.rollout(z, steps=4)
        assert not path.status.any()
        ends.append([path.z.detach(), *torch.autograd.grad((path.z[:, -1] @ torch.linspace(-1, 1, 26)).sum(), z)])
    for plain, smooth in zip(*ends, strict=True):
        torch.testing.assert_close(smooth, plain, atol=1e-6, rtol=1e-6)

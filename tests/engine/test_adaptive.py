"""Adaptive rollouts: impacts on shorter steps, everything else as before."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo import models
from torchdojo.dynamics.integrator import body_momentum, change_timestep
from torchdojo.engine.adaptive import AdaptiveSteps
from torchdojo.gradients.request import Request, StepInputs

# Contacts float at κ/γ, and the impulse γ of a step 32 times shorter is 32 times smaller: at the default κ that would be what is compared.
OPTIONS = td.SolverOptions(kappa=1e-9)
FINER = 32
GRAVITY = 9.81
ALWAYS = td.AdaptiveOptions(position_tol=1e-12, rotation_tol=1e-12, max_halvings=2)  # four substeps wherever anything differs


def tumbling(timestep: float, **values: object) -> tuple[td.Mechanism, Tensor]:
    """A slab that no contact reaches, spinning about all its axes."""
    mech = td.Mechanism({"slab": td.Body(1.5, (0.02, 0.05, 0.06))}, timestep=timestep, **values)
    return mech, mech.initial_state(slab=dict(velocity=(1.0, 0.0, 2.0), angular_velocity=(4.0, -3.0, 2.0)))


def box_on_a_corner(timestep: float) -> tuple[td.Mechanism, Tensor]:
    """Eight thrown boxes of 0.5 m, an edge or a corner foremost."""
    mech = models.box(timestep=timestep)
    random = torch.Generator().manual_seed(0)
    q = torch.tensor((0.88, 0.36, 0.27, 0.15)) + 0.3 * torch.randn(8, 4, generator=random)
    # The velocity of the state is that half a step before: so the boxes of all timesteps are on the same parabola.
    v = torch.randn(8, 3, generator=random) + torch.tensor((0.0, 0.0, 0.5 * timestep * GRAVITY))
    return mech, mech.initial_state((8,), box=dict(position=(0, 0, 0.6), velocity=v, orientation=q / q.norm(dim=-1, keepdim=True)))


def dropped_quadruped(timestep: float) -> tuple[td.Mechanism, Tensor]:
    """Four quadrupeds thrown onto their feet, which bounce as their legs fold."""
    mech = models.quadruped(timestep=timestep)
    z = models.initial_state("quadruped", mech, (4,)).unflatten(-1, (-1, 13)).clone()
    z[..., 2] += 0.2
    z[..., 3:6] += 0.5 * torch.randn(4, 1, 3, generator=torch.Generator().manual_seed(1))
    z[..., 5] += 0.5 * timestep * GRAVITY
    return mech, z.flatten(-2)


# Plain steps have 5.4 times the error of adaptive steps for the box and 4.4 times for the quadruped, at 1.1 and 1.7 substeps.
@pytest.mark.parametrize(
    ("build", "steps", "better", "substeps", "dearer"), [(box_on_a_corner, 50, 5.0, 1.2, 3.5), (dropped_quadruped, 40, 3.5, 1.9, 6.5)]
)
def test_impacts_are_more_accurate(
    build: Callable[[float], tuple[td.Mechanism, Tensor]], steps: int, better: float, substeps: float, dearer: float
) -> None:
    (mech, z), (finer, z_finer) = build(0.01), build(0.01 / FINER)
    mech.options = finer.options = OPTIONS
    with torch.no_grad():
        truth = finer.rollout(z_finer, steps=FINER * steps).z[:, ::FINER]
        plain, careful = mech.rollout(z, steps=steps), mech.rollout(z, steps=steps, adaptive=True)

    def error(path: td.Trajectory) -> float:
        """Distance of the farthest body, mean over time and throws [m]."""
        away = (path.z - truth).unflatten(-1, (-1, 13))[..., :3]
        return float(away.norm(dim=-1).amax(-1).mean())

    assert not careful.status.any() and not plain.status.any()
    assert error(careful) * better <= error(plain)
    assert 1 < float(careful.substeps.double().mean()) <= substeps
    assert int(careful.iterations.sum()) <= dearer * int(plain.iterations.sum())


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_free_flight_is_not_split(backend: str) -> None:
    mech, z = tumbling(0.01)
    mech.options = td.SolverOptions(backend=backend)
    plain, careful = mech.rollout(z, steps=20), mech.rollout(z, steps=20, adaptive=True)
    assert (careful.substeps == 1).all()
    assert torch.equal(careful.z, plain.z)


def test_splitting_does_not_change_free_flight() -> None:
    """Forces act once per step, and momentum is handed on: the path is the same to O(h³) of the tumbling, momentum to rounding."""
    mech, z = tumbling(0.01)
    mech.options = dataclasses.replace(mech.options, residual_tol=1e-13)
    steps = 30
    plain, careful = mech.rollout(z, steps=steps), mech.rollout(z, steps=steps, adaptive=ALWAYS)
    assert (careful.substeps > 1).all()
    assert float((plain.z - careful.z)[:, :6].abs().max()) <= 1e-12
    assert float((plain.z - careful.z)[:, 6:10].abs().max()) <= 1e-3  # one step turns by 0.05 rad
    momentum = mech.momentum(careful.z)[:, 3:]
    assert float((momentum - momentum[0]).abs().max()) <= 1e-12


def test_springs_inputs_and_wrenches_act_once_per_step() -> None:
    """A slide on a spring goes where the whole step takes it, however it is divided: nothing implicit acts on it."""
    mech = td.Mechanism(
        {"cart": td.Body(2.0, (1.0, 1.0, 1.0))}, {"slide": td.Prismatic(None, "cart", axis=(1, 0, 0), spring=50.0, rest=0.1)}, timestep=0.02
    )
    z, u = mech.initial_state(slide=dict(q=0.3)), torch.linspace(-2, 2, 10)[:, None]
    wrench = torch.tensor((3.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    stepper = AdaptiveSteps(mech.backends, Request(mech.options), ALWAYS)
    for now in u:
        whole = stepper.whole.step(StepInputs(z, now, wrench))
        data, index = [t[None] for t in (z, now, wrench)], torch.arange(1)
        stepper.step(StepInputs(z, now, wrench))
        first = stepper.part(1, True, index, data, whole.solution[None])
        second = stepper.part(1, False, index, [first.z, *data[1:]], first.solution)
        assert float((second.z[0] - whole.z).abs().max()) <= 1e-10
        assert float((first.impulses + second.impulses - whole.impulses).abs().max()) <= 1e-10
        z = whole.z


def test_impulses_are_those_of_the_whole_step() -> None:
    """Linear momentum: m Δv = Σ γ − m g t over a flat landing."""
    mech = models.sphere(timestep=0.01)
    z = mech.initial_state((2,), sphere=dict(position=torch.tensor(((0, 0, 0.6), (0, 0, 0.8)))))
    path = mech.rollout(z, steps=40, adaptive=td.AdaptiveOptions(position_tol=1e-6))
    assert (path.substeps.amax(-1) > 1).all()
    gained = mech.bodies["sphere"].mass * (path.z[:, -1, 5] - path.z[:, 0, 5] + 40 * 0.01 * GRAVITY)
    assert float((path.impulses[..., 0].sum(-1) - gained).abs().max()) <= 1e-6  # 40 steps × residuals of 1e-9, four substeps


def test_environments_do_not_change_each_other() -> None:
    """Steps that are not split equal the ordinary rollout to the last bit; split steps equal a rollout alone to 1e-9."""
    mech, z = box_on_a_corner(0.01)
    z = torch.cat((z, z[:1]))
    z[-1, 2] += 10.0  # stays in the air
    plain, careful = mech.rollout(z, steps=40), mech.rollout(z, steps=40, adaptive=True)
    assert (careful.substeps[-1] == 1).all() and (careful.substeps[:-1].amax(-1) > 1).all()
    assert torch.equal(careful.z[-1], plain.z[-1])
    before = [int(row.argmax()) for row in (careful.substeps > 1).int()[:-1]]
    for i, steps in enumerate(before):
        assert torch.equal(careful.z[i, : steps + 1], plain.z[i, : steps + 1])
    alone = mech.rollout(z[3], steps=40, adaptive=True)
    assert torch.equal(alone.substeps, careful.substeps[3])
    assert float((alone.z - careful.z[3]).abs().max()) <= 1e-9


def test_parameters_with_a_batch() -> None:
    """Each environment with its own timestep and gravity: as if alone."""
    mech, z = box_on_a_corner(0.01)
    mech.timestep, mech.gravity = torch.tensor((0.01, 0.005)), torch.tensor(((0.0, 0.0, -9.81), (0.0, 0.0, -20.0)))
    together = mech.rollout(z[:2], steps=60, adaptive=True)
    for i, (timestep, gravity) in enumerate(((0.01, 9.81), (0.005, 20.0))):
        mech.timestep, mech.gravity = timestep, (0.0, 0.0, -gravity)
        alone = mech.rollout(z[i], steps=60, adaptive=True)
        assert torch.equal(alone.substeps, together.substeps[i]) and int(alone.substeps.max()) > 1
        assert float((alone.z - together.z[i]).abs().max()) <= 1e-8


@pytest.mark.slow
def test_backends_agree() -> None:
    mech, z = box_on_a_corner(0.02)
    z = mech.rollout(z[[0, 3]], steps=12).z[:, -1]  # shortly before the impacts
    paths = []
    for backend in ("native", "reference"):
        mech.options = td.SolverOptions(kappa=1e-4, residual_tol=1e-12, central_path_tol=1e-8, backend=backend)
        with torch.no_grad():
            paths.append(mech.rollout(z, steps=5, adaptive=True))
    assert torch.equal(paths[0].substeps, paths[1].substeps) and int(paths[0].substeps.max()) > 1
    assert float((paths[0].z - paths[1].z).abs().max()) <= 1e-7


@pytest.mark.parametrize("backend", ["native", pytest.param("reference", marks=pytest.mark.slow)])
def test_gradients_of_the_substeps_taken(backend: str) -> None:
    """Gradients of the final state by the first state, gravity, timestep, friction and inertia, against central differences."""
    mech, z = box_on_a_corner(0.02)
    # Few steps are taken, all around the first impact; after it neighboring paths come apart.
    mech.options = td.SolverOptions(kappa=1e-4, residual_tol=1e-13, central_path_tol=1e-9, backend=backend, min_iterations=2)
    start = mech.rollout(z[3], steps=14, adaptive=True).z[-1].detach()
    contact, body = next(iter(mech.contacts.values())), mech.bodies["box"]
    base = [torch.zeros(12), mech.gravity.clone(), mech.timestep.clone(), contact.friction.clone(), body.inertia.clone()]
    weights = torch.randn(13, generator=torch.Generator().manual_seed(2))

    def outcome(values: list[Tensor]) -> tuple[Tensor, Tensor]:
        delta, mech.gravity, mech.timestep, contact.friction, body.inertia = values
        path = mech.rollout(mech.retract(start.expand(*delta.shape[:-1], -1), delta), steps=6, adaptive=True)
        return (path.z[..., -1, :] * weights).sum(-1) + path.impulses[..., 0].sum(-1), path.substeps

    leaves = [value.requires_grad_() for value in base]
    loss, substeps = outcome(leaves)
    assert int(substeps.max()) >= 4
    grads = torch.autograd.grad(loss, leaves)
    # Environments 2k and 2k + 1 have value k moved either way.
    random, step = torch.Generator().manual_seed(3), 1e-6
    directions, moved = [], [leaf.detach().expand(2 * len(leaves), *leaf.shape).clone() for leaf in leaves]
    for k, leaf in enumerate(leaves):
        direction = torch.randn(leaf.shape, generator=random)
        directions.append(direction + direction.mT if leaf.ndim == 2 else direction)
        moved[k][2 * k] -= step * directions[k]
        moved[k][2 * k + 1] += step * directions[k]
    with torch.no_grad():
        values, same = outcome(moved)
    assert (same == substeps).all()
    for k, (direction, grad) in enumerate(zip(directions, grads, strict=True)):
        numeric, analytic = float(values[2 * k + 1] - values[2 * k]) / (2 * step), float((grad * direction).sum())
        assert abs(analytic - numeric) <= 1e-6 * max(1.0, abs(numeric)), (k, analytic, numeric)


def test_steps_without_a_solution_are_split() -> None:
    """Steps that the solver halves, since the body turns by more than 90° in one, become substeps, and raise only if all fail."""
    mech = td.Mechanism({"ball": td.Body(1.0, (1.0, 1.0, 1.0))}, timestep=0.01, gravity=(0.0, 0.0, 0.0))
    mech.options = td.SolverOptions(on_failure="raise")
    path = mech.rollout(mech.initial_state(ball=dict(angular_velocity=(0.0, 0.0, 150.0))), steps=3, adaptive=True)
    assert not path.status.any() and (path.substeps >= 2).all()
    assert float((path.z[:, 12] / 150 - 1).abs().max()) <= 1e-12
    mech.options = td.SolverOptions()
    flagged = mech.rollout(mech.initial_state(ball=dict(angular_velocity=(0.0, 0.0, 4600.0))), steps=2, adaptive=True)
    assert (flagged.status == td.Status.INVALID_INPUT).all()


def test_a_policy_and_inputs_are_held_over_a_step() -> None:
    mech, z = dropped_quadruped(0.01)
    u = 0.2 * torch.randn(25, mech.num_inputs, generator=torch.Generator().manual_seed(4))
    calls = iter(u)
    by_policy = mech.rollout(z[0], lambda z: next(calls), steps=25, adaptive=True)
    given = mech.rollout(z[0], u, adaptive=True)
    assert int(given.substeps.max()) > 1
    assert torch.equal(by_policy.z, given.z) and torch.equal(by_policy.u, given.u)


def test_no_halvings_is_the_ordinary_rollout() -> None:
    mech, z = box_on_a_corner(0.01)
    assert torch.equal(mech.rollout(z, steps=50, adaptive=td.AdaptiveOptions(max_halvings=0)).z, mech.rollout(z, steps=50).z)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (dict(position_tol=0.0), r"position_tol: got 0.0; allowed: positive finite numbers \[m\]"),
        (dict(position_tol="1 mm"), "position_tol: got '1 mm'"),
        (dict(rotation_tol=float("nan")), r"rotation_tol: got nan; allowed: positive finite numbers \[rad\]"),
        (dict(max_halvings=-1), "max_halvings: got -1; allowed: whole numbers from 0 to 20"),
        (dict(max_halvings=1.5), "max_halvings: got 1.5"),
        (dict(max_halvings=True), "max_halvings: got True"),
    ],
)
def test_bad_options(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        td.AdaptiveOptions(**values)  # type: ignore[arg-type]


def test_bad_uses() -> None:
    mech, z = tumbling(0.01)
    with pytest.raises(TypeError, match=r"adaptive: got 'yes'; allowed: True, False, or td\.AdaptiveOptions"):
        mech.rollout(z, steps=2, adaptive="yes")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="use adaptive=False"):
        torch.func.jacrev(lambda start: mech.rollout(start, steps=2, adaptive=True).z)(z)


def test_momentum_of_another_timestep() -> None:
    random = torch.Generator().manual_seed(5)
    omega = 20 * torch.randn(6, 2, 3, generator=random)
    factor = torch.randn(2, 3, 3, generator=random)
    inertia, h = factor @ factor.mT + torch.eye(3), torch.full((1, 1, 1), 0.01)
    shorter = change_timestep(omega, inertia, h, h / 8)
    assert float((body_momentum(shorter, inertia, h / 8, -1) - body_momentum(omega, inertia, h, -1)).abs().max()) <= 1e-11
    assert float((change_timestep(shorter, inertia, h / 8, h) - omega).abs().max()) <= 1e-11
    leaves = [t.requires_grad_() for t in (omega, inertia, h)]
    assert torch.autograd.gradcheck(lambda w, J, h: change_timestep(w, 0.5 * (J + J.mT), h, h / 8), leaves)
    fast = torch.full((1, 1, 3), 100.0)
    assert torch.equal(change_timestep(fast, torch.eye(3)[None], h / 8, h), fast)  # no step of 0.01 s turns that far

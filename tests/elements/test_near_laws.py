"""Laws of near contacts: compliance, recovery, torsional and rolling friction."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.native import loader

pytest.importorskip("scipy")

FLOOR = td.Box((2.0, 2.0, 0.2), position=(0.0, 0.0, -0.1))
BOX = td.Box((0.1, 0.08, 0.06))
COUPLES = [{"torsional_friction": 2e-3}, {"rolling_friction": 1e-3}, {"torsional_friction": 2e-3, "rolling_friction": 1e-3}]
LAWS = [{"stiffness": 1e4, "damping": 10.0}, {"recovery_speed": 0.1}, *COUPLES]
needs_kernel = pytest.mark.skipif(not loader.available(), reason="needs the compiled kernel")


def ball_hull(count: int, size: float, seed: int) -> td.Hull:
    points = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    points = size * points / torch.linalg.vector_norm(points, dim=-1, keepdim=True)
    return td.Hull(points - td.Hull(points).center)


@needs_kernel
@pytest.mark.parametrize("law", LAWS, ids=lambda law: "_".join(law))
def test_laws_in_both_backends(law: dict[str, float]) -> None:
    ball = td.Sphere(0.05)
    outs = []
    for backend in ("native", "reference"):
        contacts = td.near_contacts("ball", ball, None, FLOOR, slots=3, **law)
        options = td.SolverOptions(backend=backend, residual_tol=1e-12)
        mech = td.Mechanism({"ball": td.Body(1.0, shape=ball)}, (), contacts, options=options)
        start = {"position": (0, 0, 0.052), "velocity": (0.1, 0, -0.6), "angular_velocity": (1.0, 2.0, 5.0)}
        z = mech.initial_state(ball=start).requires_grad_(True)
        out = mech.step(mech.step(z).z)
        (gradient,) = torch.autograd.grad(out.z.sum(), z)
        outs.append((out.z.detach(), gradient, out.status))
    assert not outs[0][2].any() and not outs[1][2].any()
    torch.testing.assert_close(outs[0][0], outs[1][0], atol=1e-10, rtol=0)
    torch.testing.assert_close(outs[0][1], outs[1][1], atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("law", COUPLES, ids=lambda law: "_".join(law))
@needs_kernel
def test_couples_of_two_bodies_have_gradients(law: dict[str, float]) -> None:
    """A hull turns on a box that lies on the floor, its impulses fading partly: by states and by coefficients, as differences say."""
    hull = ball_hull(14, 0.05, 1)
    bodies = {"box": td.Body(1.0, shape=BOX), "hull": td.Body(0.6, shape=hull)}
    friction = {name: torch.nn.Parameter(torch.tensor(value, dtype=torch.float64)) for name, value in law.items()}
    contacts = td.near_contacts("box", BOX, None, FLOOR, slots=8) | td.near_contacts("hull", hull, "box", BOX, slots=12, **friction)
    mech = td.Mechanism(bodies, (), contacts, options=td.SolverOptions(residual_tol=1e-12))
    start = {"box": {"position": (0, 0, 0.0301)}, "hull": {"position": (0.01, 0.015, 0.112), "angular_velocity": (1, 2, 6)}}
    z = mech.rollout(mech.initial_state(**start), steps=12).z[-1]
    weight = torch.randn(26, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    own = [parameter for name, parameter in mech.named_parameters() if name.rpartition(".")[2] in law]
    assert own

    def value(step: float = 0.0, parameter: torch.nn.Parameter | None = None) -> Tensor:
        moved = z.detach().clone()
        if parameter is None:
            moved[24] += step
        with torch.no_grad():
            for each in own:
                each += step * (each is parameter)
        result = (mech.step(moved).z * weight).sum()
        with torch.no_grad():
            for each in own:
                each -= step * (each is parameter)
        return result

    leaf = z.detach().clone().requires_grad_(True)
    gradients = torch.autograd.grad((mech.step(leaf).z * weight).sum(), [leaf, *own])
    for gradient, parameter, step in [(gradients[0][24], None, 1e-4), *((g, p, 1e-6) for g, p in zip(gradients[1:], own, strict=True))]:
        with torch.no_grad():
            near, far = (float(value(k * step, parameter) - value(-k * step, parameter)) for k in (1, 2))
        assert abs(float(gradient)) > 1e-3
        assert float(gradient) == pytest.approx((8 * near - far) / (12 * step), rel=1e-6, abs=1e-7)
    mech.options = dataclasses.replace(mech.options, backend="reference")
    leaf = z.detach().clone().requires_grad_(True)
    expected = torch.autograd.grad((mech.step(leaf).z * weight).sum(), [leaf, *own])
    for gradient, reference in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, reference, atol=1e-8, rtol=1e-8)


def test_torsional_friction_of_places_adds_up() -> None:
    """A frictionless cylinder that stands turns ever slower, by μ_t m g however many places it has; a ball by as much."""
    rates = []
    for shape, height in ((td.Cylinder(0.05, 0.08), 0.0402), (td.Sphere(0.05), 0.0502)):
        contacts = td.near_contacts("body", shape, None, FLOOR, friction=0.0, torsional_friction=2e-3)
        mech = td.Mechanism({"body": td.Body(1.0, torch.eye(3) * 1e-3, shape=shape)}, (), contacts, options=td.SolverOptions(kappa=1e-8))
        start = {"position": (0, 0, height), "angular_velocity": (0, 0, 5.0)}
        path = mech.rollout(mech.initial_state(body=start), steps=22)
        assert not path.status.any()
        rates.append(float(path.z[12, 12] - path.z[22, 12]) / 0.1)
    # Steps of 0.01 s at up to 5 rad/s turn by 0.05 rad, whose square is the error of a step. κ rounds the cone of each place.
    assert rates == pytest.approx([2e-3 * 9.81 / 1e-3] * 2, rel=2e-3)

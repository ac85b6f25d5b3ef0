"""`SolverOptions.max_total_iterations`: all attempts of a step share their iterations, in the kernel as in the reference."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.native import loader

needs_kernel = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")
BACKENDS = [pytest.param("native", marks=needs_kernel), "reference"]


def fingers(**options: object) -> tuple[td.Mechanism, Tensor]:
    """Two fingers on a coupling, and states without a step: the limits of the second finger turn into ones that the coupling excludes."""
    joints = {
        name: td.Revolute(None, f"{name}_link", axis=(0, 0, 1), child_anchor=(-0.05, 0, 0), limits=bounds)
        for name, bounds in (("left", (0.1, 0.5)), ("right", (-0.5, -0.1)))
    }
    bodies = {f"{name}_link": td.Body(0.1, (1e-4, 1e-4, 1e-4)) for name in joints}
    mech = td.Mechanism(bodies, joints, couplings={"mimic": td.JointCoupling("left", "right", ratio=-1.0)}, timestep=0.01)
    mech.options = td.SolverOptions(depenetration_speed=None, **options)
    z = torch.stack([mech.initial_state(left={"q": q}, right={"q": -q}) for q in (0.2, 0.3)])
    with torch.no_grad():
        joints["right"].lower.fill_(0.1), joints["right"].upper.fill_(0.5)
    return mech, z


@needs_kernel
@pytest.mark.parametrize("bound", [4, 19, pytest.param(55, marks=pytest.mark.slow)])
def test_a_doomed_step_takes_as_many_iterations_in_both_backends(bound: int) -> None:
    """With few iterations per attempt, small bounds end in every rung of the ladder, half steps included."""
    outs = []
    for backend in ("native", "reference"):
        mech, z = fingers(backend=backend, max_iterations=4, max_halvings=2, max_total_iterations=bound)
        outs.append(mech.step(z))
    native, reference = outs
    for out in outs:
        assert out.status.tolist() == [1, 1] and out.iterations.tolist() == [bound, bound] and bool((out.z == z).all())
        assert out.substeps.tolist() == [1, 1]
    assert torch.equal(native.iterations, reference.iterations)


def spun(backend: str, **options: object) -> tuple[td.Mechanism, Tensor, Tensor]:
    """A ball that a torque takes past a spin of √2/h: two half steps replace the step."""
    mech = td.Mechanism({"ball": td.Body(1.0, (1.0, 1.0, 1.0))}, {"free": td.Floating(None, "ball")}, timestep=0.1, gravity=(0, 0, 0))
    mech.options = td.SolverOptions(backend=backend, **options)
    return mech, mech.initial_state(ball={"angular_velocity": (0.0, 0.0, 13.0)}), torch.tensor((0.0, 0.0, 0.0, 0.0, 0.0, 5.0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_within_the_bound_keeps_its_bits(backend: str) -> None:
    """A step that needs n iterations is the same with a bound of n, and flagged with n − 1, with zeros for derivatives."""
    mech, z, u = spun(backend, max_total_iterations=10_000)
    free = mech.step(z, u)
    jacobian = mech.jacobians(z, u)[0]
    assert int(free.status) == 0 and int(free.substeps) == 2
    needed = fewest(mech, z, u)
    for bound, solved in ((needed, True), (needed - 1, False)):
        mech.options = dataclasses.replace(mech.options, max_iterations=min(needed - 1, 50), max_total_iterations=bound)
        start = z.clone().requires_grad_()
        out = mech.step(start, u)
        assert (int(out.status) == 0) == solved
        assert torch.equal(out.z, free.z if solved else z)
        (gradient,) = torch.autograd.grad(out.z.sum(), start)
        assert bool(gradient.abs().max() > 0) == solved
        assert torch.equal(mech.jacobians(z, u)[0], jacobian if solved else torch.zeros_like(jacobian))


def fewest(mech: td.Mechanism, z: Tensor, u: Tensor) -> int:
    """The smallest bound with which the step succeeds. Halves of a step that is too fast do not share their iterations."""
    before = mech.options
    for bound in range(2, 60):
        mech.options = dataclasses.replace(before, max_iterations=min(bound, 50), max_total_iterations=bound)
        if int(mech.step(z, u).status) == 0:
            mech.options = before
            return bound
    raise AssertionError("no bound below 60 is enough")


def test_refusals() -> None:
    with pytest.raises(ValueError, match="max_total_iterations: got 49; allowed: max_iterations = 50 or more"):
        td.SolverOptions(max_total_iterations=49)

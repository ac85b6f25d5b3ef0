"""Rotors inside the kernel's steps, against their law in PyTorch between the steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.engine.periods import Periods
from torchdojo.gradients.request import Request, StepInputs
from torchdojo.native import loader

pytestmark = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")


@pytest.mark.parametrize("repeat", [1, 3])
def test_rotors_in_the_kernel(repeat: int) -> None:
    """States, inputs' gradients and clipping; six environments, two with thrusts of their own."""
    torch.manual_seed(0)
    mech = td.models.quadrotor(timestep=0.02)
    mech.options = td.SolverOptions(kappa=1e-4, backend="native")
    mech.actuators.gain = mech.actuators.gain * torch.linspace(0.8, 1.2, 6)[:, None, None]
    z = mech.to_maximal(torch.randn(6, 6) + torch.tensor((0, 0, 5.0, 0, 0, 0)), torch.randn(6, 6))
    ctrl = torch.randn(6, 5, len(mech.actuators))  # some beyond the range
    request = Request(mech.options, repeat=repeat)
    kernel = mech.backends.stepper(request, mech.actuators)
    assert kernel.in_one_call
    outside = Periods(mech.backends.select(request.of_a_step), repeat, mech.actuators)
    weights = torch.randn(6, 5, z.shape[-1])
    results: list[list[Tensor]] = []
    for inside in (True, False):
        start, controls = z.clone().requires_grad_(), ctrl.clone().requires_grad_()
        if inside:
            path = kernel.rollout(StepInputs(start, controls)).z[:, 1:]
        else:
            now, states = start, []
            for t in range(5):
                now = outside.step(StepInputs(now, controls[:, t])).z
                states.append(now)
            path = torch.stack(states, 1)
        grads = torch.autograd.grad((path * weights).sum(), (start, controls))
        results.append([path.detach(), *grads])
    for value, wanted in zip(*results, strict=True):
        assert float((value - wanted).abs().max()) < 1e-9 * max(1.0, float(wanted.abs().max()))
    assert bool((results[0][2] == 0).any()) and bool((results[0][2] != 0).any())


def test_feedback_on_thrusts() -> None:
    """A rollout under feedback by controls is one call, and its Jacobians are by controls."""
    torch.manual_seed(1)
    mech = td.models.quadrotor(timestep=0.02)
    z = mech.to_maximal(torch.tensor((0, 0, 5.0, 0.1, -0.2, 0.3)), torch.zeros(6))
    ctrl = 0.1 * torch.randn(10, 4)
    path = mech.rollout(z, ctrl=ctrl)
    gain, feedforward = 0.1 * torch.randn(10, 4, 12), torch.randn(10, 4)
    out = mech.rollout_feedback(z, path.z, ctrl=ctrl, gain=gain, feedforward=feedforward, scale=torch.tensor((0.1, 0.5)), bounds=(-1, 1))
    again = mech.rollout(z, ctrl=out.u)
    assert float((out.z - again.z).abs().max()) < 1e-10
    error = mech.difference(out.z[:, 3], path.z[3])
    wanted = ctrl[3] + torch.tensor((0.1, 0.5))[:, None] * feedforward[3] + error @ gain[3].mT
    assert float((out.u[:, 3] - wanted.clamp(-1, 1)).abs().max()) < 1e-10
    lin = mech.linearize(path.z[3], ctrl=ctrl[3])
    change = 1e-5 * torch.eye(4)
    moved = [mech.step(path.z[3].expand(4, -1), ctrl=ctrl[3] + sign * change).z for sign in (1, -1)]
    differences = (mech.difference(moved[0], lin.z.expand(4, -1)) - mech.difference(moved[1], lin.z.expand(4, -1))).mT / 2e-5
    assert float((lin.B - differences).abs().max()) < 1e-4 * float(lin.B.abs().max())

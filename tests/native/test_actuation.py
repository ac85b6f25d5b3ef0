"""Actuators inside the kernel's steps, against the law in PyTorch between the steps."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from hopper import EXACT, loss, same
from torchdojo.engine.periods import Periods
from torchdojo.gradients.request import Request, StepInputs
from torchdojo.native import loader

pytestmark = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")

OPTIONS = dataclasses.replace(EXACT, backend="native")


def chain(**fields: Any) -> td.Mechanism:
    """Joints with one to three coordinates in a row, with affine actuators on eight of them and two on one."""
    bodies = {name: td.Body(mass=1.0, inertia=(0.1, 0.2, 0.15)) for name in "abcde"}
    joints = {
        "slide": td.Prismatic(None, "a", axis=(0, 0.6, 0.8), child_anchor=(0.1, 0, 0)),
        "turn": td.Revolute("a", "b", axis=(0, 1, 0), parent_anchor=(0, 0, -0.2), child_anchor=(0, 0, 0.2), limits=(-6.0, 6.0)),
        "plane": td.PlanarAxis("b", "c", axis=(0.8, 0, 0.6), orientation_offset=(0.8, 0.6, 0, 0)),
        "two": td.Orbital("c", "d", axis=(0, 0, 1), child_anchor=(0, 0.1, 0)),
        "ball": td.Spherical("d", "e", parent_anchor=(0.1, 0, 0.2)),
    }
    mech = td.Mechanism(bodies, joints, timestep=0.01, options=OPTIONS)
    places = [("ball", 2), ("turn", 0), ("slide", 0), ("plane", 0), ("plane", 2), ("two", 1), ("turn", 0), ("ball", 0), ("two", 0)]
    kinds = {
        "affine": dict(gain=(1.0, 0.5, -0.3), bias=(0.1, -2.0, -0.4), length0=0.2),
        "servo": dict(gain=5.0, bias=(0.0, -5.0, -0.5), ctrlrange=(-0.5, 0.5), forcerange=(-2.0, 2.0)),
        "motor": dict(gain=2.0, ctrlrange=(-1.0, 1.0)),
    }
    actuators = {}
    for i, (joint, coordinate) in enumerate(places):
        values = kinds[("affine", "servo", "motor")[i % 3]] | fields
        actuators[f"{i}"] = td.Actuator(joint, coordinate=coordinate, gear=(-1.0) ** i * (0.5 + 0.1 * i), **values)
    td.actuate(mech, actuators, servos="explicit" if fields else "implicit")
    mech.actuators.inputrange = torch.tensor([[-3.0, 3.0]]).expand(mech.num_inputs, 2).clone()
    return mech


def states(mech: td.Mechanism, count: int) -> Tensor:
    return mech.to_maximal(0.4 * torch.randn(count, mech.num_coordinates), torch.randn(count, mech.num_coordinates))


def both(mech: td.Mechanism, z: Tensor, ctrl: Tensor, repeat: int) -> list[tuple[list[Tensor], tuple[Tensor, ...]]]:
    """States and impulses, and gradients, with the law in the kernel and between its steps."""
    request = Request(mech.options, None, False, repeat)
    mech.bodies["b"].mass.requires_grad_()
    kernel = mech.backends.stepper(request, mech.actuators)
    assert kernel.in_one_call
    outside = Periods(mech.backends.select(request.of_a_step), repeat, mech.actuators)
    results = []
    for stepper in (kernel, outside):
        out, warm = z, None
        values = []
        for t in range(ctrl.shape[-2]):
            step = stepper.step(StepInputs(out, ctrl[..., t, :], warm=warm))
            out, warm = step.z, step.solution
            values += [step.z, step.impulses]
        results.append((values, torch.autograd.grad(loss(*values), (z, ctrl, mech.bodies["b"].mass))))
    path = mech.rollout(z, ctrl=ctrl, repeat=repeat)
    assert torch.equal(path.z[..., -1, :], results[0][0][-2])
    return results


@pytest.mark.sanitize
@pytest.mark.parametrize("fields", [{}, {"gain": 1.5, "bias": (0.0, 0.0, 0.0)}], ids=["implicit", "motors"])
def test_every_joint(fields: dict[str, Any]) -> None:
    mech = chain(**fields)
    z, ctrl = states(mech, 11).requires_grad_(), torch.randn(11, 2, 9).requires_grad_()
    clipped = mech.actuators.out_of_range(ctrl).any()
    assert clipped
    kernel, outside = both(mech, z, ctrl, 3)
    same(kernel[0], outside[0])
    for actual, expected in zip(kernel[1], outside[1], strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.sanitize
def test_numbers_of_each_environment() -> None:
    mech = chain()
    mech.actuators.gain = mech.actuators.gain * (1 + 0.1 * torch.arange(3.0)[:, None, None, None])
    mech.bodies["b"].mass = torch.tensor([1.0, 1.5])
    z, ctrl = states(mech, 2).requires_grad_(), torch.randn(3, 1, 2, 9).requires_grad_()
    kernel, outside = both(mech, z, ctrl, 2)
    assert kernel[0][0].shape[:-1] == (3, 2)
    same(kernel[0], outside[0])
    for actual, expected in zip(kernel[1], outside[1], strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


def test_gradients_of_numbers_take_the_law_outside() -> None:
    mech = chain()
    request = Request(mech.options, None, False, 2)
    assert mech.backends.stepper(request, mech.actuators).in_one_call
    mech.bodies["a"].mass.requires_grad_()
    assert mech.backends.stepper(request, mech.actuators).in_one_call
    mech.joints["slide"].axis.requires_grad_()
    assert not mech.backends.stepper(request, mech.actuators).in_one_call
    mech.joints["slide"].axis.requires_grad_(False)
    mech.actuators.gain.requires_grad_()
    assert not mech.backends.stepper(request, mech.actuators).in_one_call


def test_new_numbers_and_new_actuators() -> None:
    mech = chain()
    z, ctrl = states(mech, 2), torch.randn(9)
    before = mech.step(z, ctrl=ctrl).z
    mech.actuators.bias.data[..., 0] += 1.0
    after = mech.step(z, ctrl=ctrl).z
    assert float((after - before).abs().max()) > 1e-3
    same(after, mech.step(z, mech.actuators(ctrl, z)).z)
    mech.actuators = None
    td.actuate(mech, {"one": td.Actuator.motor("slide")})
    same(mech.step(z, ctrl=torch.ones(1)).z, mech.step(z, mech.actuators(torch.ones(1), z)).z)

"""Gradients of steps whose transposed system is solved on the tree (src/gradient/tree_adjoint.hpp), against the reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from mechanisms import Sample, all_joints, close_to_limits, random_contact, random_tree
from parity import Leaves, derivatives, exact, parameter_errors, polished, relative
from torch import Tensor

import torchdojo as td
from torchdojo.native import loader

pytestmark = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")

SERVO: dict[str, Any] = dict(servo_stiffness=10.0, servo_damping=0.5)


def grounded(seed: int, model: type[td.Contact], bodies: int = 7) -> Sample:
    """A random tree with springs, dampers and inputs, and one contact on each of three bodies, of which some are pressed."""
    mech, z, u = random_tree(seed, bodies, 4)
    points = {f"contact{i}": random_contact(mech, z[0], i, model) for i in (0, 2, bodies - 1)}
    return Sample(td.Mechanism(dict(mech.bodies.items()), dict(mech.joints.items()), points, timestep=mech.timestep), z, u)


def robot(name: str) -> Sample:
    """A robot that has fallen and kicked for half a second."""
    mech = getattr(td.models, name)(timestep=0.01)
    torch.manual_seed(0)
    z = td.models.initial_state(name, mech).expand(4, -1).clone()
    with torch.no_grad():
        z = mech.rollout(z, 3.0 * torch.randn(4, 50, mech.num_inputs)).z[:, -1].clone()
    return Sample(mech, z, 3.0 * torch.randn(4, mech.num_inputs))


CASES: dict[str, tuple[Callable[[], Sample], float]] = {
    "all joints": (lambda: all_joints(True, True, True, 2), 1e-6),
    "friction, armature": (lambda: all_joints(False, True, True, 2, friction=0.5, armature=0.1), 1e-6),
    "limits": (lambda: close_to_limits(2, friction=0.5, armature=0.1), 1e-6),
    "servos, drives": (lambda: close_to_limits(2, **SERVO, servo_range=(-1.0, 2.0)), 1e-4),
    "discs": (lambda: grounded(5, td.NonlinearContact), 1e-6),
    "discs, pressed hard": (lambda: grounded(6, td.NonlinearContact), 1e-8),
    "pyramids": (lambda: grounded(7, td.LinearContact), 1e-6),
    "no friction": (lambda: grounded(8, td.ImpactContact), 1e-4),
    "quadruped": (lambda: robot("quadruped"), 1e-4),
    "humanoid": (lambda: robot("humanoid"), 1e-6),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_those_of_the_reference(name: str) -> None:
    """By state, input, wrench and parameters, of a loss of the next state and of all impulses, at one solution."""
    make, kappa = CASES[name]
    torch.manual_seed(3)
    mech, z, u = make()
    options = exact(kappa)
    given = dict(z=z, u=u, wrench=0.1 * torch.randn(len(z), 6 * mech.num_bodies))
    weights = torch.randn(z.shape[-1]), torch.randn(max(piece.stop for piece in mech.impulse_layout.values()))
    for parameter in mech.parameters():
        parameter.requires_grad_()
    solution = polished(mech, dataclasses.replace(options, backend="native"), *given.values()).solution

    def gradients(backend: str, weights: tuple[Tensor, Tensor] = weights) -> Leaves:
        mech.options = dataclasses.replace(options, backend=backend)
        leaves = {name: value.clone().requires_grad_() for name, value in given.items()}
        out = mech.step(**leaves, warm_start=solution)
        assert out.status.eq(0).all()
        return derivatives(mech, out, leaves, weights)

    ours, theirs = gradients("native"), gradients("reference")
    errors = {f"grad_{key}": relative(ours[key], theirs[key]) for key in given}
    rest = [key for key in theirs if key not in given]
    errors |= parameter_errors({key: ours[key] for key in rest}, {key: theirs[key] for key in rest})
    # 1e-9 is the promise; a pressed contact has a slack kappa / impulse, to which the reference itself is as exact as rounding / kappa.
    allowed = max(1e-9, 1e-16 / kappa)
    assert all(value <= allowed for value in errors.values()), errors

    # A loss of the state alone takes a shorter way.
    few = gradients("native", (weights[0], 0.0 * weights[1]))
    mech.options = dataclasses.replace(options, backend="native")
    leaves = {name: value.clone().requires_grad_() for name, value in given.items()}
    alone = torch.autograd.grad((mech.step(**leaves, warm_start=solution).z * weights[0]).sum(), list(leaves.values()))
    assert all(relative(value, few[key]) < 1e-10 for key, value in zip(leaves, alone, strict=True))


@pytest.mark.sanitize
@pytest.mark.parametrize("name", ["half_cheetah", "quadruped"])
def test_gradients_do_not_depend_on_the_batch(name: str) -> None:
    """Bit for bit: some environments have pressed contacts and refine, others fly."""
    mech = getattr(td.models, name)(timestep=0.01)
    mech.options = td.SolverOptions(backend="native")
    torch.manual_seed(1)
    z = td.models.initial_state(name, mech).expand(20, -1).clone()
    z.unflatten(-1, (-1, 13))[::2, :, 2] += 1.0
    u = torch.randn(20, 12, mech.num_inputs)
    wanted = None
    for rows in (torch.arange(20), torch.arange(20).flip(0), torch.randperm(20), torch.arange(5), torch.arange(3, 20, 2)):
        leaves = z[rows].clone().requires_grad_(), u[rows].clone().requires_grad_()
        out = mech.rollout(*leaves)
        found = torch.autograd.grad(out.z.square().sum(), leaves)
        wanted = wanted or found
        assert all(torch.equal(value, every[rows]) for value, every in zip(found, wanted, strict=True))

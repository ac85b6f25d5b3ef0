"""A small mechanism with a spring, a damper, an input and both kinds of contact, for tests that need a bit of everything."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

import torchdojo as td

# Converged to rounding, so that two ways to the same step differ by no more than that, whatever the solver's tolerance.
EXACT = td.SolverOptions(kappa=1e-4, residual_tol=1e-12, central_path_tol=1e-9)


def hopper(options: td.SolverOptions = EXACT) -> td.Mechanism:
    """A ball with a leg."""
    return td.Mechanism(
        bodies={"ball": td.Body(mass=1.0, inertia=(0.01, 0.012, 0.014)), "leg": td.Body(mass=0.3, inertia=(0.002, 0.002, 0.0005))},
        joints={
            "base": td.Floating(None, "ball", actuated=False),
            "hip": td.Revolute("ball", "leg", axis=(0, 1, 0), child_anchor=(0, 0, 0.2), spring=0.5, damper=0.05),
        },
        contacts={
            "foot": td.NonlinearContact("leg", point=(0, 0, -0.2), radius=0.02, friction=0.5),
            "top": td.ImpactContact("ball", radius=0.1),
        },
        timestep=0.01,
        options=options,
    )


def states(mechanism: td.Mechanism, *batch: int) -> Tensor:
    """In flight, in impact and sliding: the foot ends up to 1 cm above the ground, moving down and sideways."""
    height = 0.423 + 0.01 * torch.rand(*batch, 1)
    q = torch.cat((torch.randn(*batch, 2), height, 0.1 * torch.randn(*batch, 4)), -1)
    qd = torch.cat((torch.randn(*batch, 2), -torch.rand(*batch, 1), torch.randn(*batch, 4)), -1)
    return mechanism.to_maximal(q, qd)


ROUNDING = dict(rtol=0.0, atol=1e-10)  # gradients of contact steps reach 1e3


def on(mechanism: td.Mechanism, backend: str) -> td.Mechanism:
    mechanism.options = dataclasses.replace(mechanism.options, backend=backend)
    return mechanism


def require_grad(mechanism: td.Mechanism) -> list[nn.Parameter]:
    parameters = list(mechanism.parameters())
    for parameter in parameters:
        parameter.requires_grad_()
    return parameters


def loss(*tensors: Tensor) -> Tensor:
    """A linear function with weights that differ from entry to entry."""
    return torch.stack([(t * torch.cos(torch.arange(t.numel(), dtype=t.dtype) ** 2).reshape(t.shape)).sum() for t in tensors]).sum()


def same(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, **ROUNDING)

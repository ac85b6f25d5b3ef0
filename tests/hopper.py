"""A small mechanism with a spring, a damper, an input and both kinds of contact, for tests that need a bit of everything."""

from __future__ import annotations

import torch
from torch import Tensor

import torchdojo as td

__all__ = ["EXACT", "hopper", "states"]

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

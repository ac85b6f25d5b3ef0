"""Small mechanisms for PyTorch's own machinery, and how their derivatives are compared."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from torch import Tensor

import hopper as small
import torchdojo as td
from torchdojo.native import loader

NATIVE = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")
BACKENDS = [pytest.param("native", marks=NATIVE), "reference"]
#: Both modes differentiate the same solution, so what is left is rounding, amplified by the condition of contact.
ROUNDING = 1e-9
EXACT = dataclasses.replace(small.EXACT, min_iterations=4)


def hopper(backend: str = "reference", **options: Any) -> td.Mechanism:
    return small.hopper(dataclasses.replace(EXACT, backend=backend, **options))


def ball(backend: str = "reference", **options: Any) -> td.Mechanism:
    """The smallest mechanism with friction."""
    return td.Mechanism(
        {"ball": td.Body(1.0, (0.1, 0.1, 0.1))},
        {"base": td.Floating(None, "ball")},
        {"skin": td.NonlinearContact("ball", radius=0.2, friction=0.4)},
        options=dataclasses.replace(EXACT, backend=backend, **options),
    )


def rolling(mechanism: td.Mechanism) -> Tensor:
    """A ball that touches the ground, sliding and turning."""
    return mechanism.initial_state(ball=dict(position=(0.1, -0.2, 0.2005), velocity=(1.0, 0.5, -0.5), angular_velocity=(1.0, -2.0, 0.5)))


def close(actual: Tensor, expected: Tensor, tolerance: float = ROUNDING) -> None:
    """Relative to the largest entry."""
    assert actual.shape == expected.shape
    assert float((actual - expected).abs().max()) <= tolerance * max(1.0, float(expected.abs().max()))

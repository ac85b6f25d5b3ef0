"""Central differences of functions with known derivatives, curvature and rounding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchdojo.testing import differences


# A pressed contact bends within `width`, and a solver leaves noise. The surest step is far from both ends of the ladder.
@pytest.mark.parametrize(("size", "width", "noise"), [(1.0, 1e-4, 1e-14), (1e5, 1e-7, 1e-10), (1e10, 1e-7, 1e-6), (1e-2, 1.0, 1e-12)])
def test_curvature_and_rounding(size: float, width: float, noise: float) -> None:
    generator = torch.Generator().manual_seed(0)
    slopes = size * torch.tensor([1.0, -0.7, 0.3], dtype=torch.float64)

    def loss(d: Tensor) -> dict[str, Tensor]:
        bent = width * (torch.tanh(d / width + 0.4) - torch.tanh(torch.tensor(0.4, dtype=d.dtype)))
        return {"loss": bent @ slopes + noise * torch.randn(len(d), generator=generator, dtype=d.dtype)}

    exact = slopes / torch.cosh(torch.tensor(0.4, dtype=torch.float64)) ** 2
    numeric = differences.central(loss, torch.eye(3, dtype=torch.float64))["loss"]
    # Users compare gradients to a millionth of the largest derivative.
    assert float((numeric - exact).abs().max()) < 1e-6 * float(exact.abs().max())


def test_the_slope_at_the_smallest_steps_counts() -> None:
    """Beyond a micrometer this function is linear again, with another slope."""
    numeric = differences.central(lambda d: {"loss": (d + 1e-6 * torch.tanh(d / 1e-6)).sum(-1)}, torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(numeric["loss"], torch.full((2,), 2.0, dtype=torch.float64), rtol=1e-7, atol=0)

"""Height fields: planes are exact, normals continuous, gradients right, the ground goes on level outside, bad input is refused."""

from __future__ import annotations

import pytest
import torch

from torchdojo.geometry.heights import HeightField

CELL = 0.05


def rough(*batch: int) -> torch.Tensor:
    return 0.02 * torch.rand(*batch, 7, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def points(count: int, side: float = 0.3) -> torch.Tensor:
    return side * (2 * torch.rand(count, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) - 1)


def test_planes_of_any_slope_are_exact() -> None:
    x, y = (CELL * torch.arange(n, dtype=torch.float64) for n in (12, 14))
    field = HeightField(0.3 + 0.7 * x[:, None] - 0.4 * y, CELL, origin=(0.0, 0.0))
    normal = torch.tensor([-0.7, 0.4, 1.0], dtype=torch.float64) / (1 + 0.7**2 + 0.4**2) ** 0.5
    place = 0.1 + 0.35 * torch.rand(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    gap, direction = field.gap(place, 0.02)
    torch.testing.assert_close(gap, (place - torch.tensor([0.0, 0.0, 0.3])) @ normal - 0.02, rtol=0, atol=1e-14)
    torch.testing.assert_close(direction, normal.expand(50, 3), rtol=0, atol=1e-13)


def test_the_normal_has_the_direction_of_the_gradient() -> None:
    field, place = HeightField(rough(), (CELL, 1.3 * CELL)), points(200).requires_grad_()
    gap, normal = field.gap(place, 0.02)
    gradient = torch.autograd.grad(gap.sum(), place)[0]
    torch.testing.assert_close(normal, gradient / gradient.norm(dim=-1, keepdim=True), rtol=0, atol=1e-13)
    assert (gradient.norm(dim=-1) - 1).abs().max() > 0.01  # not on a plane


def test_slopes_and_bends_are_derivatives_of_the_height() -> None:
    field, place = HeightField(rough(), (CELL, 1.3 * CELL)), points(50)[:, :2].requires_grad_()
    surface = field.at(place)
    torch.testing.assert_close(surface.slope, torch.autograd.grad(surface.height.sum(), place, retain_graph=True)[0], rtol=0, atol=1e-13)
    for k in range(2):
        bend = torch.autograd.grad(surface.slope[..., k].sum(), place, retain_graph=True)[0]
        torch.testing.assert_close(surface.bend[..., k], bend, rtol=0, atol=1e-12)


def test_the_normal_is_continuous_across_cells_and_the_edge() -> None:
    line = torch.linspace(-0.4, 0.4, 80001, dtype=torch.float64)
    normal = HeightField(rough(), CELL).gap(torch.stack((line, 0.7 * line, 0 * line), -1))[1]
    # A step of 1e-5 m times the largest second derivative, 4 · 0.02/cell² for the samples, in two directions.
    assert normal.diff(dim=0).norm(dim=-1).max() < 2 * 1e-5 * 4 * 0.02 / CELL**2


def test_the_gradient_of_the_gap_is_continuous_across_cells() -> None:
    """With quadratic splines it jumps by D n_z³ ∂s/∂x times the jump of the curvature: more than 0.01 between these samples."""
    field = HeightField(rough(), CELL, origin=(0.0, 0.0))
    corner = CELL * torch.arange(-2, 22, dtype=torch.float64) / 2  # lines of samples and the middles between them
    across = torch.cartesian_prod(corner, 0.37 * CELL + corner)
    for swap in (False, True):
        sides = []
        for offset in (-1e-9, 1e-9):
            place = torch.cat((across + torch.tensor([offset, 0.0]), torch.full_like(across[:, :1], 0.05)), -1)
            place = (place[:, [1, 0, 2]] if swap else place).clone().requires_grad_()
            sides.append(torch.autograd.grad(field.gap(place, 0.02)[0].sum(), place)[0])
        # 2e-9 m times the second derivative of the gap: D times the third one of the surface, 8 · 0.02/cell³, and slack of 4.
        assert (sides[0] - sides[1]).abs().max() < 4 * 2e-9 * 0.05 * 8 * 0.02 / CELL**3


def test_samples_of_a_quadratic_are_smoothed_by_the_stated_error() -> None:
    x, y = (CELL * torch.arange(n, dtype=torch.float64) for n in (12, 14))
    place = 0.1 + 0.35 * torch.rand(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    a, b = 1.5, -0.8
    surface = HeightField(a * x[:, None] ** 2 + b * y**2, CELL, origin=(0.0, 0.0)).at(place)
    expected = a * place[:, 0] ** 2 + b * place[:, 1] ** 2 + CELL**2 / 6 * (2 * a + 2 * b)
    torch.testing.assert_close(surface.height, expected, rtol=0, atol=1e-14)


def test_beyond_the_grid_the_ground_is_level() -> None:
    heights = rough()
    surface = HeightField(heights, CELL).at(torch.tensor([[5.0, 7.0], [-5.0, -7.0], [1e30, -1e30]], dtype=torch.float64))
    torch.testing.assert_close(surface.height, torch.stack((heights[-1, -1], heights[0, 0], heights[-1, 0])), rtol=0, atol=1e-15)
    # Sums of weights that cancel, times heights of 2 cm over cells of 5 cm, once and twice.
    torch.testing.assert_close(surface.slope, torch.zeros_like(surface.slope), rtol=0, atol=1e-15)
    torch.testing.assert_close(surface.bend, torch.zeros_like(surface.bend), rtol=0, atol=1e-13)


def test_gradients_by_place_heights_radius_cell_and_origin() -> None:
    def gap(place: torch.Tensor, heights: torch.Tensor, radius: torch.Tensor, cell: torch.Tensor, origin: torch.Tensor):
        return HeightField(heights, cell, origin=origin).gap(place, radius)

    values = [points(6), rough(), 0.02, [0.05, 0.06], [-0.15, -0.2]]
    inputs = [torch.as_tensor(value, dtype=torch.float64).clone().requires_grad_() for value in values]
    assert torch.autograd.gradcheck(gap, inputs, eps=1e-6, atol=1e-7)


def test_a_batch_of_fields_equals_each_one() -> None:
    heights, place = rough(4), points(5)
    gaps = HeightField(heights[:, None], CELL).gap(place)[0]
    for i in range(4):
        torch.testing.assert_close(gaps[i], HeightField(heights[i], CELL).gap(place)[0], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("heights", "options", "message"),
    [
        ([], {}, "rows, columns"),
        ([0.0, 1.0], {}, "rows, columns"),
        ([[0.0, 1.0]] * 4, {}, "four or more"),
        ([[0.0] * 4] * 3, {}, "four or more"),
        ([[0.0, float("nan"), 0.0, 0.0]] * 4, {}, "finite"),
        ([[0.0] * 4] * 4, {"cell": 0.0}, "positive"),
        ([[0.0] * 4] * 4, {"cell": [1.0, 1.0, 1.0]}, "for x and y"),
        ([[0.0] * 4] * 4, {"origin": (0.0, 0.0, 0.0)}, "for x and y"),
    ],
)
def test_bad_input_is_refused(heights: list, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HeightField(heights, **{"cell": 0.1, **options})

"""Multiple shooting: what it finds without noise, and what it refuses."""

import pytest
import torch
from made_up import recorded

from torchdojo.identification import Scales, ShootingOptions, ShootingStage, WindowResidual, cube_model, multiple_shooting

TRUTH = {"friction": 0.21, "half_side": 0.05, "restitution": 0.3}


def residual(start):
    data = recorded(cube_model(1 / 148, tuple(TRUTH), start=TRUTH), 4, 50)
    return WindowResidual(cube_model(1 / 148, tuple(TRUTH), start=start), data, Scales(position=5e-4, rotation=9e-3))


@pytest.mark.slow
def test_friction_size_and_restitution_of_exact_recordings():
    costs = []
    solution = multiple_shooting(
        residual({"friction": 0.25, "half_side": 0.0505, "restitution": 0.25}),
        [ShootingStage(horizon=8, trim=0.3, iterations=12), ShootingStage(horizon=16, trim=0.3)],
        callback=lambda iteration, cost, raw: costs.append(cost),
    )
    assert solution.converged and len(costs) == len(solution.history) - 1
    assert solution.start.shape == (12, 13)  # three windows of 16 steps in each of 4 recordings of 50 samples
    for name, value in TRUTH.items():
        # exact data: what is left are the tolerances of the solver and of the last step
        assert float(solution.values[name]) == pytest.approx(value, rel=1e-3), name


def test_seeds_repeat():
    stage, options = [ShootingStage(horizon=8, iterations=1)], ShootingOptions(draws=2, seed=3)
    first, second = (multiple_shooting(residual(TRUTH), stage, options=options).raw for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("keywords", [{"horizon": 0}, {"horizon": 8, "trim": 1.0}, {"horizon": 8, "iterations": 0}])
def test_stages_that_mean_nothing_are_refused(keywords):
    with pytest.raises(ValueError, match=r"^ShootingStage\.(horizon|trim|iterations): got \S+; allowed: "):
        ShootingStage(**keywords)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [({"damping": 0.0}, "damping: got 0.0; allowed: positive"), ({"draws": -1}, "draws: got -1"), ({"refit": 0}, "refit: got 0")],
)
def test_options_that_mean_nothing_are_refused(keywords, message):
    with pytest.raises(ValueError, match=message):
        ShootingOptions(**keywords)


def test_no_stages_are_refused():
    with pytest.raises(ValueError, match="at least one stage"):
        multiple_shooting(residual(TRUTH), [])

"""Residual physics on the real cube: a network's wrench against the pure model, on throws held back."""

import pytest
import torch

from conftest import shared_path
from torchdojo.identification import ResidualWrench, RobustLoss, WindowDataset, WindowLoss, cube_model, open_loop, read_recordings


@pytest.mark.slow
def test_wrench_of_a_network_on_the_real_cube():
    """Trained by the loss that `gauss_newton` minimizes, on windows of 16 steps, from training throws only.

    It does not help: the loss falls by 1 %, and on throws held back position errors grow from 13.7 to 14.2 % of the width while rotation
    errors stay (16.4 and 16.3 degrees). A wrench that is smooth in the state is not what impacts lack.
    """
    torch.manual_seed(0)
    data = read_recordings(shared_path("data", "contactnets_cube", "contactnets_cube_train.npz")).with_heading()
    training, validation = data.split(0.2, seed=0)
    pure = cube_model(data.dt, ("friction",), start={"half_side": 0.0508, "gravity": 9.74, "tilt": (0.0, 0.08)})
    model = ResidualWrench(pure, hidden=(16, 16), force=0.02 * 0.37 * 9.81)
    model.raw.requires_grad_(False)
    windows = WindowDataset(training.first(120), 16, 16).stack()
    loss = WindowLoss(model, training, robust=RobustLoss("cauchy", 3.0))
    optimizer = torch.optim.Adam(model.network.parameters(), lr=1e-3, weight_decay=1e-3)
    with torch.no_grad():
        before = float(loss(windows))
    for _ in range(100):
        optimizer.zero_grad()
        loss(windows[torch.randint(len(windows), (256,))]).backward()
        optimizer.step()
    with torch.no_grad():
        after = float(loss(windows))
    errors = {name: open_loop(m, validation).summary(0.1048) for name, m in (("pure", pure), ("residual", model))}
    assert after < before
    for quantity in ("position_error_percent_of_width", "rotation_error_degrees"):
        assert errors["residual"][quantity] <= 1.1 * errors["pure"][quantity]  # measured: 1.04 and 0.995

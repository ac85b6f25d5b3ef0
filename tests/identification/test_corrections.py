"""A network learns the force that a mechanism lacks."""

import torch
from made_up import thrown_cubes

from torchdojo.identification import ResidualWrench, WindowDataset, WindowLoss, cube_model, open_loop
from torchdojo.identification.recordings import recordings_of


class Drag(ResidualWrench):
    """The truth: a cube in syrup, force −0.4 v [N·s/m]."""

    def wrench(self, z):
        return torch.cat((-0.4 * z[..., 3:6], torch.zeros_like(z[..., 3:6])), dim=-1)


def test_untrained_network_changes_nothing():
    model = cube_model(1 / 148, ("friction",))
    z = torch.tensor([0.0, 0, 0.06, 0.5, 0, -1, 1, 0, 0, 0, 1, 2, 3], dtype=torch.float64)
    torch.testing.assert_close(ResidualWrench(model).step(z).z, model.step(z).z)


def test_drag_is_learned_and_predicts_throws_held_back():
    torch.manual_seed(0)
    pure = cube_model(1 / 148, ("friction",))
    data = recordings_of(thrown_cubes(Drag(pure), 10, 40))
    training, validation = data.split(0.3, seed=0)
    model = ResidualWrench(pure, hidden=(16, 16))
    model.raw.requires_grad_(False)
    loss, windows = WindowLoss(model, training), WindowDataset(training, 4, 4).stack()
    optimizer = torch.optim.Adam(model.network.parameters(), lr=1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        loss(windows).backward()
        optimizer.step()
    error = {name: open_loop(m, validation).summary()["position_error_mm"] for name, m in (("pure", pure), ("residual", model))}
    assert error["residual"] <= 0.5 * error["pure"]

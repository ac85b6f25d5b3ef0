"""Modules and data modules for pytorch-lightning, by themselves."""

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from made_up import recorded, thrown_cubes

from torchdojo.identification import (
    DataError,
    GaussNewtonOptions,
    LeastSquares,
    ResidualWrench,
    WindowLoss,
    WindowResidual,
    cube_model,
    gauss_newton,
)
from torchdojo.identification.lightning import GaussNewtonModule, IdentificationModule, RecordingsDataModule, WindowBatches

TRUTH = {"friction": 0.25, "half_side": 0.05}
GUESS = {"friction": 0.22, "half_side": 0.051}


def model_of(start, substeps=1):
    return cube_model(1 / 148 / substeps, tuple(TRUTH), start=start)


@pytest.fixture(scope="module")
def tosses():
    return recorded(model_of(TRUTH), 8, 60)


def train(module, data, epochs, **keywords):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = pl.Trainer(accelerator="cpu", precision="64-true", max_epochs=epochs, num_sanity_val_steps=0, **quiet, **keywords)
    trainer.fit(module, data)
    return trainer


def test_windows_come_in_an_order_of_the_seed_and_the_epoch():
    batches = WindowBatches(10, 4, seed=1)
    orders = []
    for epoch in (0, 1, 0):
        batches.set_epoch(epoch)
        drawn = list(batches)
        assert [len(batch) for batch in drawn] == [4, 4, 2] and len(batches) == 3
        orders.append(torch.cat(drawn).tolist())
        assert sorted(orders[-1]) == list(range(10))
    assert orders[0] == orders[2] != orders[1]
    begun = iter(batches)  # what a resumed trainer does
    batches.set_epoch(1)
    assert torch.cat(list(begun)).tolist() == orders[1]
    assert list(map(len, WindowBatches(10, None))) == [10]
    assert torch.cat(list(WindowBatches(5, 2))).tolist() == [0, 1, 2, 3, 4]


def test_data_module_splits_by_throw(tmp_path):
    arrays = thrown_cubes(model_of(TRUTH), 8, 20)
    np.savez(tmp_path / "tosses.npz", **arrays, throw_id=np.array([0, 0, 1, 1, 2, 3, 4, 4]))
    data = RecordingsDataModule(tmp_path / "tosses.npz", horizon=4, stride=5, batch_size=3, validation=0.4, seed=1)
    data.setup("fit")
    assert len(data.training) + len(data.validation) == 8
    assert not set(data.training.throw_id.tolist()) & set(data.validation.throw_id.tolist())
    batches = list(data.train_dataloader())
    assert [batch.shape for batch in batches[:1]] == [(3, 5, 13)]
    assert sum(map(len, batches)) == 4 * len(data.training)  # starts 0, 5, 10, 15
    drawn, windows = torch.cat(batches), data.windows(data.training).stack()
    torch.testing.assert_close(drawn[:, 0].sum(0), windows[:, 0].sum(0))
    assert not torch.equal(drawn, windows)
    assert sum(map(len, data.val_dataloader())) == 4 * len(data.validation)
    whole = RecordingsDataModule(data.training, horizon=4, stride=None, validation=0.5)
    assert len(whole.windows(whole.training)) == len(whole.training)


def test_empty_splits_and_windows_are_refused(tosses):
    with pytest.raises(DataError, match=r"a split of 8 throws with a validation part of 0\.01"):
        RecordingsDataModule(tosses, validation=0.01).setup()
    with pytest.raises(DataError, match="a split of 1 throws"):
        RecordingsDataModule(tosses, limit=1).setup()
    data = RecordingsDataModule(tosses, horizon=60)
    with pytest.raises(DataError, match="no trajectory has the 61 samples"):
        data.train_dataloader()
    with pytest.raises(DataError, match="no file"):
        RecordingsDataModule("nowhere.npz").setup()


def test_parameters_by_an_optimizer_of_torch_are_those_of_a_loop_by_hand(tosses):
    data = RecordingsDataModule(tosses, horizon=2, stride=2, batch_size=16, validation=0.25)
    module = IdentificationModule(WindowLoss(model_of(GUESS), data.training), "SGD", {"lr": 1e-3, "momentum": 0.5}, seed=4)
    trainer = train(module, data, 2)

    by_hand = model_of(GUESS)
    loss = WindowLoss(by_hand, data.training)
    optimizer = torch.optim.SGD([by_hand.raw], lr=1e-3, momentum=0.5)
    loader = data.train_dataloader()
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        total, count = 0.0, 0
        for windows in loader:
            optimizer.zero_grad()
            value = loss(windows)
            value.backward()
            optimizer.step()
            total, count = total + float(value.detach()) * len(windows), count + len(windows)
    assert torch.equal(module.loss.model.raw, by_hand.raw)
    metrics = trainer.callback_metrics
    assert float(metrics["train_loss"]) == pytest.approx(total / count, rel=1e-12)
    assert float(metrics["friction"]) == float(by_hand.values()["friction"].detach())
    with torch.no_grad():
        assert float(metrics["validation_loss"]) == pytest.approx(float(loss(data.windows(data.validation).stack())), rel=1e-12)
    fields = [name for name, p in module.named_parameters() if p.requires_grad]
    assert fields == ["loss.model.raw"]  # the other numbers of the mechanism stay what they are


def test_gauss_newton_is_the_same_in_the_trainer(tosses):
    """With substeps, where what is in free flight depends on the parameters that the model begins with."""
    data = RecordingsDataModule(tosses, horizon=8, stride=4, validation=0.25)
    model, options = model_of(GUESS, substeps=2), GaussNewtonOptions(max_iterations=20)
    problem = LeastSquares(WindowResidual(model, data.training), data.windows(data.training).stack())
    expected = gauss_newton(problem, options=options)
    module = GaussNewtonModule(WindowLoss(model, data.training), problem, options)
    metrics = train(module, data, 30).callback_metrics
    state = module.state
    assert torch.equal(state.raw, expected.raw) and torch.equal(model.raw, expected.raw)
    assert (list(state.history), state.reason, state.converged) == (expected.history, expected.reason, True)
    assert len(module.losses) == expected.iterations
    assert float(metrics["friction"]) == float(expected.values["friction"])
    # the result again, of the model that the descent began with
    fresh = model_of(GUESS, substeps=2)
    problem = LeastSquares(WindowResidual(fresh, data.training), data.windows(data.training).stack())
    assert torch.equal(module.result(problem, "", False).covariance, expected.covariance)


def test_losses_of_nothing_end_training(tosses):
    """Steps that fail count nothing; where all do, a loss of zero would be no success."""
    data = RecordingsDataModule(tosses, horizon=4)
    module = IdentificationModule(WindowLoss(model_of(GUESS), data.training), "SGD", {"lr": 1.0})
    with torch.no_grad():
        module.loss.model.raw.fill_(torch.nan)
    with pytest.raises(ValueError, match=r"of 0 % of the samples .* Shorten the steps of SGD"):
        module.training_step(data.windows(data.training)[:2], 0)


class Drag(ResidualWrench):
    """The truth: a cube in syrup, force −0.4 v [N·s/m]."""

    def wrench(self, z):
        return torch.cat((-0.4 * z[..., 3:6], torch.zeros_like(z[..., 3:6])), dim=-1)


@pytest.mark.slow
def test_networks_of_residual_physics_are_trained_by_the_same_module():
    pure = cube_model(1 / 148, ("friction",))
    data = RecordingsDataModule(recorded(Drag(pure), 6, 40), horizon=4, stride=4, batch_size=8)
    model = ResidualWrench(pure, hidden=(8, 8))
    model.raw.requires_grad_(False)
    module = IdentificationModule(WindowLoss(model, data.training), "Adam", {"lr": 1e-2})
    with torch.no_grad():
        before = float(module.loss(data.windows(data.validation).stack()))
    after = float(train(module, data, 25).callback_metrics["validation_loss"])
    assert after <= 0.7 * before
    assert torch.equal(model.raw, pure.raw) and len(module.losses) == 25

"""Fits in the loop of pytorch-lightning (extra ``torchdojo[fit]``): any optimizer of torch, and Gauss-Newton, with checkpoints.

    data = RecordingsDataModule("tosses.npz", horizon=8, stride=4, batch_size=64)
    data.setup()
    module = IdentificationModule(WindowLoss(model, data.training), "Adam", {"lr": 0.02})
    pl.Trainer(max_epochs=50, precision="64-true").fit(module, data)

    fit(config, run=LightningRunner("out/"))     # the stages of a description; out/ then holds what it takes to go on after a kill

A resumed run gives, bit for bit, the results of an uninterrupted one with as many threads. A checkpoint holds the parameters and the state
of the optimizer or of `descend`. The order of batches and all other random numbers of an epoch depend on the seed and the number of the
epoch alone. A run that was killed inside an epoch begins that epoch again.
"""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

try:
    import pytorch_lightning as pl
except ImportError as error:
    raise ImportError('torchdojo.identification.lightning needs pytorch-lightning: pip install "torchdojo[fit]"') from error
from pytorch_lightning.callbacks import Callback, Checkpoint, EarlyStopping
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.utilities.seed import isolate_rng
from tqdm import tqdm

from torchdojo.identification.description import GAUSS_NEWTON, Stage
from torchdojo.identification.fitting import DivergenceError, derived_seed, problem_of
from torchdojo.identification.gauss_newton import (
    Fit,
    GaussNewtonOptions,
    GaussNewtonState,
    LeastSquares,
    NormalEquations,
    descend,
    report,
)
from torchdojo.identification.misfit import WindowLoss, batch_size
from torchdojo.identification.parameters import ParametricMechanism
from torchdojo.identification.recordings import Recordings, WindowDataset, read_recordings
from torchdojo.runs import locked, read_checkpoint
from torchdojo.runs.lightning import AtomicCheckpointIO, quiet

__all__ = ["GaussNewtonModule", "IdentificationModule", "LightningRunner", "RecordingsDataModule", "WindowBatches"]


class WindowBatches(Sampler[Tensor]):
    """Numbers of windows (B,), batch by batch, in order or, with a seed, shuffled anew for every epoch."""

    def __init__(self, count: int, size: int | None, seed: int | None = None) -> None:
        self.count, self.size, self.seed, self.epoch = count, size or count, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the trainer."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Tensor]:
        # A generator begins with its first batch: a trainer that resumes asks for an iterator before it calls set_epoch.
        order = torch.arange(self.count)
        if self.seed is not None:
            order = torch.randperm(self.count, generator=torch.Generator().manual_seed(derived_seed(self.seed, self.epoch)))
        yield from order.split(self.size)

    def __len__(self) -> int:
        return math.ceil(self.count / self.size)


class RecordingsDataModule(pl.LightningDataModule):
    """Windows of recordings, split by throw.

    Args:
        data: a file, recordings, or a pair that is split already (training, validation).
        horizon, stride: as in `WindowDataset`; stride None: one window per trajectory, from its first sample.
        batch_size: windows per batch; None: all windows.
        validation, seed: as in `Recordings.split`; the seed also orders batches.
        limit: number of trajectories to take.

    Raises:
        DataError: data that cannot be used; no window, or a part of the split that is empty (in `setup`).
    """

    def __init__(
        self,
        data: str | Path | Recordings | tuple[Recordings, Recordings],
        *,
        horizon: int = 1,
        stride: int | None = 1,
        batch_size: int | None = None,
        validation: float = 0.2,
        seed: int = 0,
        limit: int | None = None,
    ) -> None:
        super().__init__()
        self.data, self.horizon, self.stride, self.batch_size = data, horizon, stride, batch_size
        self.part, self.seed, self.limit = validation, seed, limit
        self._parts: tuple[Recordings, Recordings] | None = None

    def setup(self, stage: str | None = None) -> None:
        if self._parts is None:
            data = read_recordings(self.data) if isinstance(self.data, (str, Path)) else self.data
            self._parts = data if isinstance(data, tuple) else data.first(self.limit).split(self.part, self.seed)

    @property
    def training(self) -> Recordings:
        self.setup()
        assert self._parts is not None
        return self._parts[0]

    @property
    def validation(self) -> Recordings:
        self.setup()
        assert self._parts is not None
        return self._parts[1]

    def windows(self, recordings: Recordings) -> WindowDataset:
        return WindowDataset(recordings, self.horizon, self.stride or 1, first_only=self.stride is None)

    def train_dataloader(self) -> DataLoader[Tensor]:
        windows = self.windows(self.training)
        return DataLoader(windows, sampler=WindowBatches(len(windows), self.batch_size, self.seed), batch_size=None)

    def val_dataloader(self) -> DataLoader[Tensor]:
        windows = self.windows(self.validation)
        return DataLoader(windows, sampler=WindowBatches(len(windows), batch_size(windows[:1], 4)), batch_size=None)


class IdentificationModule(pl.LightningModule):
    """Parameters of a mechanism by an optimizer of torch.

    Args:
        loss: loss of windows. Every tensor of its model that requires grad is fitted: `raw`, and the network of a `CorrectedMechanism`.
        optimizer, options: name of a class of `torch.optim`, and its keywords.
        seed: for all random numbers of an epoch.

    The module logs train_loss and validation_loss, means over windows and samples. It also logs train_reached and validation_reached, the
    part of the samples before any failed step. Every parameter is logged in physical units by its label.

    Raises:
        DivergenceError: in training, where a loss is not finite, or no sample is reached.
    """

    def __init__(self, loss: WindowLoss, optimizer: str = "Adam", options: Mapping[str, Any] | None = None, *, seed: int = 0) -> None:
        super().__init__()
        self.loss, self.optimizer, self.options, self.seed = loss, optimizer, dict(options or {}), seed
        self.losses: list[float] = []
        self.seconds = 0.0

    def configure_optimizers(self) -> Any:
        return getattr(torch.optim, self.optimizer)([p for p in self.parameters() if p.requires_grad], **self.options)

    def on_train_epoch_start(self) -> None:
        pl.seed_everything(derived_seed(self.seed, self.current_epoch), verbose=False)
        self._begin = time.perf_counter()

    def training_step(self, windows: Tensor, _: int) -> Tensor:
        loss, reached = self.loss.evaluate(windows)
        if not bool(loss.isfinite()) or not float(reached):  # such a loss must not get into a checkpoint
            raise DivergenceError(
                f"epoch {self.current_epoch + 1}: the loss is {float(loss.detach()):g}, of {100 * float(reached):g} % of the samples (the "
                f"others are behind steps that failed); allowed: finite losses, of some samples. Shorten the steps of {self.optimizer}"
            )
        self._log("train", loss, reached, len(windows))
        return loss

    def validation_step(self, windows: Tensor, _: int) -> None:
        self._log("validation", *self.loss.evaluate(windows, self.raw), len(windows))

    def _log(self, part: str, loss: Tensor, reached: Tensor, windows: int) -> None:
        self.log_dict({f"{part}_loss": loss, f"{part}_reached": reached}, on_step=False, on_epoch=True, batch_size=windows)

    @property
    def raw(self) -> Tensor:
        """The present parameters, (P,)."""
        return self.loss.model.raw.detach()

    def on_train_epoch_end(self) -> None:
        self.losses.append(float(self.trainer.callback_metrics["train_loss"]))
        model = self.loss.model
        values = (entry for value in model.values(self.raw).values() for entry in value.flatten())
        self.log_dict(dict(zip(model.labels, values, strict=True)))
        self.seconds += time.perf_counter() - self._begin

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        stopped = self.trainer.should_stop
        finished = stopped or self.current_epoch + 1 >= (self.trainer.max_epochs or math.inf)
        checkpoint["identification"] = {"stopped": stopped, "finished": finished, "losses": self.losses, "seconds": self.seconds}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.losses, self.seconds = list(checkpoint["identification"]["losses"]), checkpoint["identification"]["seconds"]

    def result(self, problem: LeastSquares, reason: str, converged: bool) -> Fit:
        """The fit, with deviations from the Hessian of `problem` at the present parameters and losses of epochs as `history`."""
        raw = self.raw.clone()
        state = GaussNewtonState(raw, 0.0, tuple(self.losses), problem.start, converged, reason, self.seconds)
        return report(problem, state, problem.normal_equations(raw, problem.start))


class GaussNewtonModule(IdentificationModule):
    """Parameters of a mechanism by `descend`: an epoch is one iteration, and its batch all windows of `problem`.

    The model gets the fitted parameters when training ends. Before, it keeps its first parameters, as in `gauss_newton`: they decide once
    which samples are in free flight.
    """

    def __init__(self, loss: WindowLoss, problem: LeastSquares, options: GaussNewtonOptions, *, seed: int = 0) -> None:
        super().__init__(loss, GAUSS_NEWTON, seed=seed)
        self.automatic_optimization = False
        self.problem, self.gauss_newton = problem, options
        self.state: GaussNewtonState | None = None
        self._descent: Iterator[tuple[GaussNewtonState, NormalEquations]] | None = None

    def configure_optimizers(self) -> None:
        return None

    def on_fit_start(self) -> None:
        self._descent = descend(self.problem, self.gauss_newton, self.state)
        if self.state is not None:
            next(self._descent)  # the state from which it goes on

    def training_step(self, windows: Tensor, _: int) -> None:  # type: ignore[override]
        assert self._descent is not None
        self.state, system = next(self._descent)
        samples = len(windows) * (windows.shape[1] - (self.problem.start is None))
        reached = system.cost.new_tensor(system.reached / samples)
        self._log("train", system.cost / max(1, system.reached), reached, len(windows))
        if self.state.reason:
            self.trainer.should_stop = True

    @property
    def raw(self) -> Tensor:
        return self.loss.model.raw.detach() if self.state is None else self.state.raw

    def on_train_end(self) -> None:
        with torch.no_grad():
            self.loss.model.raw.copy_(self.raw)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        assert self.state is not None
        checkpoint["identification"]["state"] = self.state._asdict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.state = GaussNewtonState(**checkpoint["identification"]["state"])

    def result(self, problem: LeastSquares, reason: str, converged: bool) -> Fit:
        assert self.state is not None
        state = self.state if self.state.reason else self.state._replace(reason=reason, converged=converged)
        return report(problem, state, problem.normal_equations(state.raw, state.start), self.gauss_newton.rank_tol)


class LightningRunner:
    """Runs the stages of `fit` in the loop of pytorch-lightning, each in a folder of its own, and goes on from checkpoints there.

    FOLDER/stage_N/last.ckpt is replaced, as a whole, after every epoch (iteration of Gauss-Newton). If the stage has patience, best.ckpt is
    replaced when the loss of the validation throws is the smallest so far. The file version_K/metrics.csv has the losses and parameters of
    the K-th run of the stage. If a stage has several starts, these files are in FOLDER/stage_N/start_M.

    Args:
        folder: for checkpoints and logs.
        seed: for the order of batches and all other random numbers.
        stages: number of stages, for the progress bar on a terminal.
    """

    def __init__(self, folder: str | Path, seed: int = 0, stages: int | None = None) -> None:
        self.folder, self.seed, self.stages = Path(folder), seed, stages

    def __call__(
        self, number: int, stage: Stage, model: ParametricMechanism, training: Recordings, validation: Recordings, start: int = 1
    ) -> Fit:
        """Run a stage, or the rest of it.

        Raises:
            ValueError: a checkpoint that cannot be read, or another process that writes to the folder.
            DivergenceError: see `IdentificationModule`. KeyboardInterrupt: the loop was interrupted.
        """
        training = training.first(stage.throws)
        folder, problem = self.folder / f"stage_{number}", problem_of(stage, model, training)
        label = f"stage {number}" + (f"/{self.stages}" if self.stages else "") + f" ({stage.label})"
        if stage.starts > 1:
            folder, label = folder / f"start_{start}", f"{label}, start {start}/{stage.starts}"
        last, best = folder / "last.ckpt", folder / "best.ckpt"
        loss = WindowLoss(model, training, stage.scales, stage.robust)
        if stage.method == GAUSS_NEWTON:
            options = stage.gauss_newton_options
            module: IdentificationModule = GaussNewtonModule(loss, problem, options, seed=self.seed)
            epochs = options.max_iterations + 1  # the last one may be without a step
        else:
            module, epochs = IdentificationModule(loss, stage.method, stage.options, seed=self.seed), cast(int, stage.epochs)
        data = RecordingsDataModule(
            (training, validation), horizon=stage.horizon, stride=stage.stride, batch_size=stage.batch_size, seed=self.seed
        )
        with locked(folder):
            if not last.exists() or not read_checkpoint_of_fit(last)["identification"]["finished"]:
                callbacks: list[Callback] = [EpochBar(label), Checkpoints(last, best if stage.patience else None)]
                if stage.patience:
                    callbacks.append(EarlyStopping("validation_loss", patience=stage.patience))
                self._train(module, data, epochs, folder, callbacks, last if last.exists() else None)
        stopped = read_checkpoint_of_fit(last)["identification"]["stopped"]
        checkpoint = read_checkpoint_of_fit(best if stage.patience and best.exists() else last)
        module.load_state_dict(checkpoint["state_dict"])
        module.on_load_checkpoint(checkpoint)
        reason = f"smallest loss on validation throws, patience of {stage.patience} epochs" if stage.patience else f"{epochs} epochs"
        return module.result(problem, reason, stopped)

    def _train(
        self,
        module: IdentificationModule,
        data: RecordingsDataModule,
        epochs: int,
        folder: Path,
        callbacks: list[Callback],
        checkpoint: Path | None,
    ) -> None:
        with quiet(), isolate_rng(), _float64():
            pl.seed_everything(self.seed, verbose=False)
            trainer = pl.Trainer(
                accelerator="cpu",
                devices=1,
                precision="64-true",
                max_epochs=epochs,
                logger=CSVLogger(folder, name=None, flush_logs_every_n_steps=1),
                log_every_n_steps=1,
                callbacks=callbacks,
                plugins=[AtomicCheckpointIO(read_checkpoint_of_fit)],
                enable_progress_bar=False,
                enable_model_summary=False,
                num_sanity_val_steps=0,
                default_root_dir=folder,
            )
            try:
                trainer.fit(module, data, ckpt_path=checkpoint)
            except SystemExit as interrupt:  # the trainer raises it after Ctrl-C, and leaves the signal ignored
                signal.signal(signal.SIGINT, signal.default_int_handler)
                raise KeyboardInterrupt from interrupt


class Checkpoints(Checkpoint):
    """Checkpoints after every epoch, also for `GaussNewtonModule`, which has no optimizer whose steps the trainer could count."""

    def __init__(self, last: Path, best: Path | None) -> None:
        self.last, self.best, self.least = last, best, math.inf

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        loss = float(trainer.callback_metrics["validation_loss"])
        if self.best is not None and loss < self.least:
            self.least = loss
            trainer.save_checkpoint(self.best)
        trainer.save_checkpoint(self.last)

    def state_dict(self) -> dict[str, Any]:
        return {"least": self.least}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.least = state_dict["least"]


class EpochBar(Callback):
    """A bar of epochs on stderr, where that is a terminal."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.bar: Any = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        start, end = trainer.current_epoch, trainer.max_epochs
        self.bar = tqdm(desc=self.label, initial=start, total=end, unit="epoch", file=sys.stderr, leave=False, disable=None)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        losses = {name: f"{float(trainer.callback_metrics[name]):.4g}" for name in ("train_loss", "validation_loss")}
        self.bar.set_postfix(losses, refresh=False)
        self.bar.update()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if self.bar is not None:
            self.bar.close()


def read_checkpoint_of_fit(path: Path) -> dict[str, Any]:
    """A checkpoint of `LightningRunner`.

    Raises:
        ValueError: it is damaged.
    """
    return read_checkpoint(path, "a fit", [("identification", "finished")], f"delete {path.parent} to run that stage again")


@contextlib.contextmanager
def _float64() -> Iterator[None]:
    """Make float64 the default dtype, to which the trainer rounds all that it logs and monitors."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)

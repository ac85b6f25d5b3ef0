"""Runs of SHAC in the loop of pytorch-lightning: checkpoints, metrics, lines of progress and health, several processes."""

from __future__ import annotations

import importlib
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

try:
    import pytorch_lightning as pl
except ImportError as error:
    raise ImportError('training needs pytorch-lightning: pip install "torchdojo[learn]"') from error
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.utilities.seed import isolate_rng

from torchdojo.learning.health import advice, diagnosis
from torchdojo.learning.networks import make_actor
from torchdojo.learning.progress import Progress
from torchdojo.learning.rollouts import Policy
from torchdojo.learning.runs import Run, process_number
from torchdojo.learning.shac import Shac
from torchdojo.learning.shac import ShacSettings as Settings
from torchdojo.runs import read_checkpoint
from torchdojo.runs.lightning import AtomicCheckpointIO, quiet
from torchdojo.runs.memory import keep_freed_memory

__all__ = ["Settings", "load_policy", "train"]

STATISTICS = ("flagged", "split", "resets", "episodes")  # of the environments


def train(run: Run, resume: bool = False, *, processes: int = 1) -> dict[str, Any]:
    """Train in the folder of a run; `processes`: on gloo, each with `num_envs` environments of its own.

    Under torchrun or SLURM, each process calls this with the number of all.

    Returns:
        Numbers: samples, cpu_seconds, skipped steps, clipped adjoints, statistics of the environments.
    """
    keep_freed_memory()
    module = Shac(_environments(run, processes), run.settings, seed=run.config.seed)
    trainer = _trainer(run, processes)
    resume = resume and run.checkpoint.exists()  # it may have been killed before the first checkpoint
    try:
        with quiet(), isolate_rng():
            trainer.fit(module, ckpt_path=run.checkpoint if resume else None)
    except SystemExit as interrupt:  # the trainer raises it after Ctrl-C, and leaves the signal ignored
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raise KeyboardInterrupt from interrupt
    return {"samples": module.samples, "cpu_seconds": module.seconds, **_counts(module)}


def load_policy(run: Run) -> Policy:
    """The mean actions of the last checkpoint's actor.

    Raises:
        ValueError: a damaged checkpoint, or one of another observation space.
    """
    checkpoint = read_checkpoint_of_shac(run.checkpoint)
    env = run.config.make_env(1, pool=1)
    actor = make_actor(env, run.settings.actor, run.settings.std, run.settings.symmetric)
    state = {name.removeprefix("actor."): value for name, value in checkpoint["state_dict"].items() if name.startswith("actor.")}
    seen = len(state["normalizer.mean"])
    if seen != env.num_obs:
        raise ValueError(f"{run.checkpoint} has a policy of {seen} observations; the environment {run.config.env!r} has {env.num_obs}")
    actor.load_state_dict(state)
    actor.requires_grad_(False)

    def policy(obs: Tensor) -> Tensor:
        action: Tensor = actor(obs)
        return action

    return policy


def _environments(run: Run, processes: int) -> Any:
    env = run.config.training_env(
        run.settings.num_envs, dtype=torch.float32, **({"shard": (process_number(), processes)} if processes > 1 else {})
    )
    env.reset(stagger=True)  # so that not all episodes end in the same segment
    return env


def _nodes() -> int:
    """Number of machines, as torchrun and SLURM tell it."""
    told = os.environ
    if "LOCAL_WORLD_SIZE" in told:
        return int(told["WORLD_SIZE"]) // int(told["LOCAL_WORLD_SIZE"])
    return int(told.get("SLURM_NNODES", "1"))


def _trainer(run: Run, processes: int) -> pl.Trainer:
    config = run.config
    logger: Any = False
    if config.logger is not None:
        path, _, name = config.logger.partition(":")
        try:
            logger = getattr(importlib.import_module(path), name)(**config.logger_options)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"logger {config.logger!r}: {error}; allowed: module:Class, as pytorch_lightning.loggers:CSVLogger") from error
    strategy: Any = DDPStrategy(process_group_backend="gloo") if processes > 1 else "auto"
    with quiet():
        return pl.Trainer(
            accelerator="cpu",
            devices=processes // _nodes(),
            num_nodes=_nodes(),
            strategy=strategy,
            max_epochs=-1,
            logger=logger,
            log_every_n_steps=1,
            callbacks=[Metrics(run), Checkpoints(run.checkpoint), Telling(run.config.env)],
            plugins=[AtomicCheckpointIO(read_checkpoint_of_shac)],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            default_root_dir=run.folder,
        )


def _counts(module: Shac) -> dict[str, Any]:
    """Shares and numbers since the start of training, of all processes."""
    counts = module.counts
    adjoints = max(1.0, counts["adjoints"])
    return {
        "clipped": counts["clipped"] / adjoints,
        "nonfinite_adjoints": counts["nonfinite_adjoints"],
        "skipped": counts["skipped"],
        **dict(zip(STATISTICS, _statistics(module), strict=False)),
    }


def _statistics(module: Shac) -> list[Any]:
    """Numbers of `STATISTICS` and the sum of the returns of all episodes, of the environments of all processes."""
    statistics = module.env.statistics
    returns = statistics["mean_return"] * statistics["episodes"] if statistics["episodes"] else 0.0
    *numbers, total = module.total(torch.tensor([*(statistics[name] for name in STATISTICS), returns], dtype=torch.float64)).tolist()
    return [*map(int, numbers), total]


class Metrics(Callback):
    """Rows of metrics.csv, and evaluations on the way."""

    def __init__(self, run: Run) -> None:
        self.run, self.before = run, (0.0, 0.0)
        self.evaluations = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, Shac)
        self.run.keep_metrics(pl_module.samples if pl_module.samples else -1)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, Shac)
        if not pl_module.means:
            return
        *_, episodes, total = _statistics(pl_module)
        new = episodes - self.before[0]
        row = {
            "samples": pl_module.samples,
            "cpu_seconds": pl_module.seconds,
            "episode_return": (total - self.before[1]) / new if new else "",
            **pl_module.means,
            **_counts(pl_module),
            **({} if pl_module.refinement is None else {"health_agreement": pl_module.refinement.agreement}),
            "health": diagnosis(pl_module.health) if pl_module.health is not None else "",
        }
        self.before = episodes, total
        if trainer.is_global_zero:
            self.run.add_metrics({**row, **self._evaluation(pl_module)})

    def _evaluation(self, module: Shac) -> dict[str, float]:
        """Deterministic episodes, whose processor time does not count."""
        every = self.run.config.evaluate_every
        if every is None or module.samples < (self.evaluations + 1) * every:
            return {}
        self.evaluations = module.samples // every
        with module.paused():
            return self.run.evaluation_row(module.actor)

    def state_dict(self) -> dict[str, Any]:
        return {"before": self.before, "evaluations": self.evaluations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.before, self.evaluations = tuple(state_dict["before"]), state_dict["evaluations"]


class Checkpoints(Callback):
    """A checkpoint at the end of epochs, which is between two segments: 25 in a run, since writing one takes as long as two segments."""

    def __init__(self, path: Path) -> None:
        self.path, self.saved = path, 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, Shac)
        self.saved = pl_module.samples

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, Shac)
        samples, end = pl_module.samples, pl_module.settings.samples
        if samples >= end or samples - self.saved >= end / 25:
            self.saved = samples
            trainer.save_checkpoint(self.path)


class Telling(Callback):
    """A line of progress and health on stderr for each epoch, with a bar where that is a terminal."""

    def __init__(self, label: str) -> None:
        self.label, self.advice = label, ""
        self.progress: Progress | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, Shac)
        self.progress = Progress(self.label, pl_module.settings.samples, pl_module.samples, quiet=not trainer.is_global_zero)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, Shac)
        health = pl_module.health
        if self.progress is None or health is None:
            return
        told = advice(health)
        changed, self.advice = told != self.advice, told
        refinement = pl_module.refinement
        agreement = "" if refinement is None else f", agreement {refinement.agreement:.2f}"
        text = f"reward {pl_module.means['reward']:.3g}; {health.line()}{agreement}; {told}"
        self.progress(pl_module.samples, pl_module.seconds, text, force=changed)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if self.progress is not None:
            self.progress.close()


def read_checkpoint_of_shac(path: Path) -> dict[str, Any]:
    """A checkpoint of a run of SHAC.

    Raises:
        ValueError: it is damaged, or one of something else.
    """
    return read_checkpoint(path, "SHAC", [("shac", "samples"), ("state_dict",)])

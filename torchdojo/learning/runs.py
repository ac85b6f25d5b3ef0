"""A run of learning: its description (YAML), and its folder, in which training goes on after it was killed.

    DIR/config.yaml            the description, whole
    DIR/metrics.csv            a row every few thousand samples
    DIR/checkpoints/last.ckpt  all that training needs to go on
    DIR/report.json            how the last policy does

A table of algorithms says where each lives. Its module has three names:

    Settings                          a dataclass; its fields are the keys under `settings:`
    train(run, resume) -> dict        trains in the folder of a run, and returns numbers for the report
    load_policy(run) -> Policy        the policy of the last checkpoint, deterministic
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from torchdojo.envs import Env, Locomotion, MuscleArm, make, names
from torchdojo.learning.rollouts import Policy, evaluate
from torchdojo.runs import locked, write_atomically
from torchdojo.runs.description import assign, load_yaml, parse
from torchdojo.runs.metrics import Metrics

__all__ = ["ALGORITHMS", "Run", "RunConfig", "load_run", "process_number", "read_config"]

ALGORITHMS = {
    "shac": "torchdojo.learning.shac_run",
    "ppo": "torchdojo.learning.ppo",
    "ars": "torchdojo.learning.random_search",
    "ags": "torchdojo.learning.random_search",
}
#: Environments by name that are classes, besides those of the table.
CLASSES: dict[str, type[Env]] = {"locomotion": Locomotion, "muscle_arm": MuscleArm}
#: Algorithms whose environments may be shared out to several processes.
PARALLEL = ("shac",)
CONFIG, METRICS, CHECKPOINT, REPORT = "config.yaml", "metrics.csv", "checkpoints/last.ckpt", "report.json"


@dataclass(frozen=True)
class RunConfig:
    """Description of a run.

    algorithm: of `ALGORITHMS`. env: name of the table of environments, "locomotion", "muscle_arm", or ``module:Class`` of one's own.
    env_options: keywords of the environment. training_options: further ones in training alone, such as noise of the starts, or shorter
        episodes. settings: of the algorithm. seed: of everything random.
    evaluate_every: control steps between deterministic evaluations during training; None: none. evaluation_envs: episodes of each.
    logger: ``module:Class`` of a logger of pytorch-lightning, besides metrics.csv (SHAC alone). logger_options: its keywords.
    """

    env: str
    algorithm: str = "shac"
    env_options: Mapping[str, Any] = field(default_factory=dict)
    training_options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    evaluate_every: int | None = None
    evaluation_envs: int = 16
    logger: str | None = None
    logger_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm: got {self.algorithm!r}; allowed: {', '.join(ALGORITHMS)}")

    @property
    def module(self) -> Any:
        """The module of the algorithm."""
        return importlib.import_module(ALGORITHMS[self.algorithm])

    def parsed_settings(self) -> Any:
        """The dataclass of the algorithm.

        Raises:
            ValueError: unknown names, values of the wrong type or size.
        """
        return parse(self.module.Settings, self.settings, "settings")

    def training_env(self, num_envs: int, **changes: Any) -> Env:
        """The environment to train in: `make_env` with `training_options`."""
        return self.make_env(num_envs, **{**self.training_options, **changes})

    def make_env(self, num_envs: int, **changes: Any) -> Env:
        """The environment, with some keywords changed.

        Raises:
            ValueError: no such environment, or keywords that it does not have.
        """
        options = {"seed": self.seed, **self.env_options, **changes, "num_envs": num_envs}
        build = env_class(self.env) if ":" in self.env else CLASSES.get(self.env) or functools.partial(make, self.env)
        try:
            return build(**options)
        except TypeError as error:
            if "keyword argument" not in str(error):
                raise
            raise ValueError(f"env_options of {self.env!r}: {error}; allowed: keywords of the environment") from error


def env_class(name: str) -> Callable[..., Env]:
    """The class ``module:Class`` of an environment of one's own.

    Raises:
        ValueError: no such module or class, or no environment.
    """
    path, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        raise ValueError(f"env {name!r}: {error}; allowed: module:Class, of a module that Python finds (PYTHONPATH)") from error
    cls = getattr(module, attribute, None)
    if not (inspect.isclass(cls) and issubclass(cls, Env)):
        classes = [key for key, value in vars(module).items() if inspect.isclass(value) and issubclass(value, Env) and value is not Env]
        raise ValueError(f"env {name!r}: {path} has no environment {attribute!r}; it has: {', '.join(classes) or 'none'}")
    return cls


def read_config(source: str | Path | Mapping[str, Any], changes: Sequence[str] = ()) -> RunConfig:
    """A description from a YAML file or a mapping of plain values, with some values replaced ("settings.lr=1e-3").

    Raises:
        ValueError: no file, not YAML, unknown keys, missing ones, values of the wrong type. ImportError: the extra is not installed.
    """
    values = copy.deepcopy(dict(source if isinstance(source, Mapping) else load_yaml(source)))
    for change in changes:
        assign(values, change)
    config = parse(RunConfig, values, "description of a run")
    allowed = [*names(), *CLASSES]
    if ":" not in config.env and config.env not in allowed:
        raise ValueError(f"no environment {config.env!r}; there are: {', '.join(allowed)}, or module:Class of your own")
    config.parsed_settings()
    return config


class Run:
    """A run in its folder.

    Attributes:
        folder, config: see above. settings: dataclass of the algorithm.
    """

    def __init__(self, folder: str | Path, config: RunConfig) -> None:
        self.folder, self.config = Path(folder), config
        self.settings = config.parsed_settings()
        self._metrics = Metrics(self.folder / METRICS)

    def begin(self, resume: bool = False) -> None:
        """Mark the folder, or check that it holds this run.

        Raises:
            ValueError: it holds a run already, or (to resume) none, or another one.
        """
        if process_number() > 0:
            return  # the first process of a run does it
        path, text = self.folder / CONFIG, _dump(self.config)
        if not resume:
            with locked(self.folder):
                if path.exists():
                    raise ValueError(f"{self.folder} holds a run; give --resume to go on with it, or another folder")
                write_atomically(path, lambda file: file.write(text.encode()))
            return
        if not path.exists():
            raise ValueError(f"--resume: {self.folder} holds no run; leave --resume out to begin one")
        if path.read_text() != text:
            raise ValueError(f"--resume: {path} describes another run; give the same description, or another folder")

    @property
    def checkpoint(self) -> Path:
        """File of the last checkpoint."""
        return self.folder / CHECKPOINT

    def process_options(self, processes: int) -> dict[str, Any]:
        """Keywords of the algorithm's `train` for a number of processes.

        Raises:
            ValueError: several, for an algorithm that runs in one.
        """
        if processes > 1 and self.config.algorithm not in PARALLEL:
            raise ValueError(
                f"processes: got {processes} for {self.config.algorithm}; allowed: 1, or more for {', '.join(PARALLEL)}; leave it out, and "
                "give --threads N to use more of the CPU"
            )
        return {"processes": processes} if self.config.algorithm in PARALLEL else {}

    def train(self, resume: bool = False, processes: int = 1) -> dict[str, Any]:
        """Train, or go on training; numbers for the report. No other process may write to the folder meanwhile.

        Args:
            processes: of SHAC, on gloo. The first one holds the lock of the folder.

        Raises:
            ValueError: another process trains in this folder, or several processes for an algorithm that has one.
        """
        options = self.process_options(processes)
        with locked(self.folder) if process_number() == 0 else nullcontext():
            report: dict[str, Any] = self.config.module.train(self, resume, **options)
        return report

    def policy(self) -> Policy:
        """The policy of the last checkpoint, deterministic.

        Raises:
            ValueError: no checkpoint, or one of another observation space.
        """
        if not self.checkpoint.exists():
            raise ValueError(f"{self.folder} holds no checkpoint yet; train first")
        policy: Policy = self.config.module.load_policy(self)
        return policy

    def evaluation_row(self, policy: Policy) -> dict[str, float]:
        """Return, speed and survival of deterministic episodes, for metrics.csv."""
        config = self.config
        env = config.make_env(config.evaluation_envs, autoreset="disabled", seed=config.seed + 1_000_003, randomize={})
        result = evaluate(env, policy)
        return {"eval_return": result.mean_return, "eval_speed": result.speed, "eval_survival": result.survival}

    def keep_metrics(self, samples: float) -> None:
        """Forget rows of metrics.csv from beyond a checkpoint, and go on after the others.

        Raises:
            ValueError: a damaged file.
        """
        self._metrics.keep(samples)

    def add_metrics(self, row: Mapping[str, Any]) -> None:
        """A row of metrics.csv: "samples", "cpu_seconds" and whatever the algorithm has to say."""
        self._metrics.add(row)


def process_number() -> int:
    """Number of this process in a run of several, from 0, as torchrun, SLURM and Lightning's own launcher tell it."""
    return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", os.environ.get("LOCAL_RANK", "0"))))


def load_run(folder: str | Path) -> Run:
    """The run that a folder holds.

    Raises:
        ValueError: it holds none, or a damaged one.
    """
    path = Path(folder) / CONFIG
    if not path.exists():
        raise ValueError(f"{folder} holds no run: no {CONFIG} there; train one with torchdojo train CONFIG --output {folder}")
    return Run(folder, read_config(path))


def _dump(config: RunConfig) -> str:
    """YAML of a description (JSON is a part of YAML)."""
    values = {entry.name: getattr(config, entry.name) for entry in fields(config)}
    return json.dumps(values, indent=2, default=dict) + "\n"

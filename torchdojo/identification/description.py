"""The description of a fit: data, object, split by throw, and stages. Keys of YAML files are the fields of these classes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import torch

from torchdojo.identification.corrections import Residual
from torchdojo.identification.gauss_newton import GaussNewtonOptions
from torchdojo.identification.misfit import RobustLoss, Scales
from torchdojo.runs.description import check_whole

__all__ = ["GAUSS_NEWTON", "FitConfig", "Stage", "check_names", "plain"]

GAUSS_NEWTON = "gauss_newton"


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One fit.

    Args:
        parameters: names of the unknowns.
        residual: a network of corrections to train, with the parameters or alone, by an optimizer.
        horizon: samples from the first of a window to its last.
        stride: samples between starts of windows; None: one window per throw, from its first sample.
        substeps: steps of the mechanism per sample.
        throws: number of training throws, from the first, that give windows; None: all.
        scales, robust: scales of the misfit, and its loss.
        free_start: see `LeastSquares`.
        method: "gauss_newton", or the name of an optimizer of `torch.optim`.
        options: keywords of `GaussNewtonOptions` or of the optimizer.
        epochs: times that an optimizer, which needs this number, sees all windows.
        batch_size: windows per step of the optimizer; None: all windows.
        patience: iterations (with an optimizer: epochs) without a smaller loss on validation throws after which the stage ends, with the
            parameters of the smallest loss. These throws are a part of the training throws (`FitConfig.validation`) on which the stage
            then does not train.
        starts: number of runs of the stage. One starts from the present values, the others from places around them, drawn with the seed.
            The run with the smallest cost on the training throws counts. New networks are drawn anew.
        spread: standard deviation of the places, in units of `raw`. For a parameter with a lower bound, 0.2 is a factor of 1.2. For a
            parameter without bounds, 0.2 is a fifth of its magnitude.

    Raises:
        ValueError: keywords of another method, names that do not exist, numbers below 1.
    """

    parameters: list[str] = field(default_factory=list)
    horizon: int
    stride: int | None = None
    substeps: int = 4
    throws: int | None = None
    scales: Scales = field(default_factory=Scales)
    robust: RobustLoss = field(default_factory=RobustLoss)
    free_start: bool = False
    method: str = GAUSS_NEWTON
    options: dict[str, Any] = field(default_factory=dict)
    epochs: int | None = None
    batch_size: int | None = None
    patience: int | None = None
    residual: Residual | None = None
    starts: int = 1
    spread: float = 0.2

    def __post_init__(self) -> None:
        check_whole(self, ("horizon", "substeps", "starts"), label="Stage.")
        check_whole(self, ("stride", "throws", "epochs", "batch_size", "patience"), optional=True, label="Stage.")
        if not self.spread > 0:
            raise ValueError(f"Stage.spread: got {self.spread}; allowed: positive numbers")
        if not self.parameters and self.residual is None:
            raise ValueError("Stage.parameters: got none; allowed: one or more names, or a residual to train")
        if self.method == GAUSS_NEWTON:
            self._check_gauss_newton()
        else:
            self._check_optimizer()

    def _check_gauss_newton(self) -> None:
        if self.residual is not None:
            raise ValueError(
                f"Stage.residual: {GAUSS_NEWTON} does not train networks; allowed: optimizers of torch.optim, as in method: Adam, "
                "options: {lr: 1e-3}, epochs: 20"
            )
        if self.epochs is not None or self.batch_size is not None:
            raise ValueError(
                "Stage: epochs and batch_size belong to optimizers of torch.optim; gauss_newton takes all windows at once, "
                "and options: {max_iterations: ...}"
            )
        self.gauss_newton_options  # noqa: B018 (the names are checked)

    def _check_optimizer(self) -> None:
        base = torch.optim.Optimizer
        optimizers = {name: c for name, c in vars(torch.optim).items() if isinstance(c, type) and issubclass(c, base) and c is not base}
        if self.method not in optimizers:
            raise ValueError(f"Stage.method: got {self.method!r}; allowed: {GAUSS_NEWTON!r}, {', '.join(map(repr, optimizers))}")
        if self.epochs is None:
            raise ValueError(f"Stage: {self.method} needs epochs, the number of times that it sees all windows")
        if self.free_start:
            raise ValueError(f"Stage.free_start: only {GAUSS_NEWTON} has free starts")
        try:
            optimizers[self.method]([torch.zeros(1, requires_grad=True)], **self.options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"Stage.options of {self.method}: {error}") from error

    @property
    def label(self) -> str:
        """The unknowns of the stage, in words."""
        return ", ".join([*self.parameters] + ([f"{self.residual.kind} correction"] if self.residual else []))

    @property
    def gauss_newton_options(self) -> GaussNewtonOptions:
        check_names(GaussNewtonOptions, self.options)
        return GaussNewtonOptions(**self.options)


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """A description of a fit.

    Args:
        data: file of recordings.
        limit: number of trajectories to read.
        tilts: rows [first, last, x, y]: throws by their own numbers (`Recordings.throw_id`), in whose frame the ground is not level
            (`levelled`).
        heading: turn throws to the heading of their first sample (`Recordings.with_heading`).
        flight: fit the first sample of every throw to at most so many samples of the flight that follows, with the nominal object
            (`flight_starts`); None: as recorded.
        validation: part of the throws to hold back.
        fold: [k, K]; holds back the k-th of K parts of the throws instead.
        held_back: numbers of the throws to hold back instead (`Recordings.throw_id`).
        seed: for the split by throw, the order of batches, starts and networks.
        object: "module:function" (`torchdojo.identification.user_object`), as in "torchdojo.identification.objects.cube:cube_model".
        stages: the fits, one after another.
        start: values of parameters, where they start or stay.
        nominal: values of parameters of the nominal object, with which fits are compared.
        laws: further keywords of the object's function, for its contacts, say.
        kappa: central-path parameter in all stages, and of the fitted object.
        substeps: steps of the open-loop rollouts per sample.
        width: length with which position errors are compared [m]; None: the object's own.
    """

    data: str
    object: str
    stages: list[Stage]
    validation: float = 0.2
    fold: list[int] | None = None
    held_back: list[int] | None = None
    seed: int = 0
    substeps: int = 4
    kappa: float = 1e-6
    tilts: list[list[float]] = field(default_factory=list)
    heading: bool = False
    flight: int | None = None
    limit: int | None = None
    start: dict[str, Any] = field(default_factory=dict)
    nominal: dict[str, Any] = field(default_factory=dict)
    laws: dict[str, Any] = field(default_factory=dict)
    width: float | None = None

    def __post_init__(self) -> None:
        if not self.stages:
            raise ValueError("FitConfig.stages: a fit needs at least one stage")
        for name, allowed, fine in (
            ("seed", "whole numbers from 0 to 2³² − 1", 0 <= self.seed < 2**32),
            ("substeps", "1 or more", self.substeps >= 1),
            (
                "tilts",
                "rows [first throw, last throw, x, y] of finite numbers, the first throw not behind the last",
                all(len(row) == 4 and np.isfinite(row).all() and row[0] <= row[1] for row in self.tilts),
            ),
            ("flight", "1 or more", self.flight is None or self.flight >= 1),
            ("limit", "1 or more", self.limit is None or self.limit >= 1),
            ("fold", "[k, K], the k-th of K parts", self.fold is None or (len(self.fold) == 2 and 1 <= self.fold[0] <= self.fold[1])),
            ("held_back", "numbers of throws, without fold", self.held_back is None or self.fold is None),
            ("kappa", "positive numbers", self.kappa > 0),
            ("width", "positive numbers", self.width is None or self.width > 0),
        ):
            if not fine:
                raise ValueError(f"FitConfig.{name}: got {getattr(self, name)}; allowed: {allowed}")
        self._check_networks()

    def _check_networks(self) -> None:
        """One network in all stages that train one."""
        trained: Residual | None = None
        for number, stage in enumerate(self.stages, start=1):
            if stage.residual is None:
                continue
            if trained not in (None, stage.residual):
                raise ValueError(
                    f"FitConfig.stages: stage {number} has the residual {stage.residual}, one before it {trained}; allowed: the "
                    "same, which is trained further"
                )
            if trained is not None and stage.starts > 1 and not stage.parameters:
                raise ValueError(
                    f"FitConfig.stages: stage {number} trains a network further, and has {stage.starts} starts; allowed: 1, or parameters, "
                    "or starts of the stage that begins with the network"
                )
            trained = stage.residual


def check_names(cls: type, values: Mapping[str, Any]) -> None:
    """Raise ValueError for keys that are no fields of a dataclass."""
    names = [f.name for f in fields(cls)]
    unknown = [name for name in values if name not in names]
    if unknown:
        raise ValueError(f"{cls.__name__} has no {', '.join(map(str, unknown))}; it has: {', '.join(names)}")


def plain(described: Any) -> dict[str, Any]:
    """Nested mappings and lists of plain values, as YAML and JSON hold them, of a dataclass such as `FitConfig`."""
    result: dict[str, Any] = json.loads(json.dumps(asdict(described)))
    return result

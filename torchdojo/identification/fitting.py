"""A fit from a description of it: data, object, split by throw, stages, and open-loop errors before and after.

    config = td.identification.read_config("configs/identify_cube.yaml", data="contactnets_cube_train.npz")
    report = td.identification.fit(config)

Stages follow each other: each starts from what those before it found, and moves only its own parameters; a network of residual physics is
trained by stages with the key `residual`, and stays as it is in those behind them. The descriptions behind the published numbers are
configs/identify_cube.yaml, configs/identify_elbow.yaml and configs/residual_cube.yaml of the repository; ``torchdojo fit`` runs them with
checkpoints (`torchdojo.identification.lightning`).

Throws held back decide nothing: neither a parameter, nor which of several starts is the best, nor when a stage ends.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from torchdojo.identification.evaluation import OpenLoop, open_loop
from torchdojo.identification.gauss_newton import Fit, GaussNewtonOptions, LeastSquares, gauss_newton
from torchdojo.identification.levelling import levelled
from torchdojo.identification.objects import cube_model, elbow_model
from torchdojo.identification.parameters import ParametricMechanism
from torchdojo.identification.recordings import Recordings, WindowDataset, check_heights, read_recordings
from torchdojo.identification.residual_physics import Residual, ResidualMechanism
from torchdojo.identification.residuals import RobustLoss, Scales, WindowResidual
from torchdojo.identification.starts import flight_starts

__all__ = ["GAUSS_NEWTON", "DivergenceError", "FitConfig", "FitReport", "FittedObject", "Stage", "StageRunner", "Start", "fit", "run_stage"]

GAUSS_NEWTON = "gauss_newton"


class KnownObject(NamedTuple):
    """build: (timestep, names of parameters, *, start, kappa, **laws) -> model, as `cube_model`; width [m] that position errors are
    compared with."""

    build: Callable[..., ParametricMechanism]
    width: float | None


OBJECTS = {"cube": KnownObject(cube_model, 0.1048), "elbow": KnownObject(elbow_model, 0.1)}


class DivergenceError(ValueError):
    """A fit that went where no result is: a loss that is not finite, a parameter on its bound."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One fit.

    Args:
        parameters: names of the unknowns. residual: a network that the stage trains, with them or alone, by an optimizer.
        horizon: samples from the first of a window to its last. stride: samples between starts of windows; None: one window per throw,
            from its first sample. substeps: steps of the mechanism per sample. throws: how many of the training throws to take windows of,
            the first ones; None: all.
        scales, robust: of the residual and of the loss. free_start: see `LeastSquares`.
        method: "gauss_newton", or the name of an optimizer of `torch.optim`. options: keywords of `GaussNewtonOptions`, or of it.
        epochs: of an optimizer, which needs it: times it sees all windows. batch_size: windows per step of it; None: all of them.
        patience: iterations (of an optimizer: epochs) without a smaller loss on validation throws after which the stage ends, with the
            parameters of the smallest one. These throws are part of the training throws (`FitConfig.validation` of them), which the stage
            then does not train on.
        starts: how many times the stage is run: from where it is, and from places around it, drawn with the seed; the one with the
            smallest cost on the training throws counts. spread: standard deviation of the places, in units of `raw`: of a parameter with a
            lower bound, 0.2 is a factor of 1.2; of one without bounds, 0.2 of its magnitude. New networks are drawn anew.

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
        for name in ("horizon", "stride", "substeps", "throws", "epochs", "batch_size", "patience", "starts"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"Stage.{name}: got {value}; allowed: 1 or more")
        if not self.spread > 0:
            raise ValueError(f"Stage.spread: got {self.spread}; allowed: positive numbers")
        if not self.parameters and self.residual is None:
            raise ValueError("Stage.parameters: got none; allowed: one or more names, or a residual to train")
        if self.method == GAUSS_NEWTON:
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
            return
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
        """What the stage finds, in words."""
        return ", ".join([*self.parameters] + ([f"residual {self.residual.kind}"] if self.residual else []))

    @property
    def gauss_newton_options(self) -> GaussNewtonOptions:
        check_names(GaussNewtonOptions, self.options)
        return GaussNewtonOptions(**self.options)


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """A description of a fit.

    Args:
        data: file of recordings. limit: of trajectories. tilts: throws in whose frame the ground is not level (`levelled`). heading: turn
            throws to the heading of their first sample (`Recordings.with_heading`). flight: fit the first sample of every throw to that
            many samples of the flight that follows, at most, with the object as its function makes it (`flight_starts`); None: as recorded.
            validation: part of the throws that is held back. fold: [k, K], the k-th of K parts of the throws in its place. seed: of the
            split by throw, of the order of batches, of starts and networks.
        object: "cube", "elbow", or "module:function" of a function like `cube_model`, which may name other parameters.
        stages: of the fit. start: where parameters start and what the others are; nominal: the same of the object to compare with.
            laws: further keywords of the object, of its contacts, say.
        kappa: of the object in all stages, and once fitted. substeps: of the open-loop rollouts. width: that position errors are compared
            with [m]; None: that of the object.
    """

    data: str
    object: str
    stages: list[Stage]
    validation: float = 0.2
    fold: list[int] | None = None
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
            ("kappa", "positive numbers", self.kappa > 0),
            ("width", "positive numbers", self.width is None or self.width > 0),
        ):
            if not fine:
                raise ValueError(f"FitConfig.{name}: got {getattr(self, name)}; allowed: {allowed}")
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


@dataclass(frozen=True, kw_only=True)
class FittedObject:
    """An object and what a fit has found of it: all that it takes to build it again.

    parameters: values by name, in physical units. given: of parameters that were not fitted, where they are not nominal. residual: a
    trained network. The others as in `FitConfig`.
    """

    object: str
    parameters: dict[str, Any]
    given: dict[str, Any]
    laws: dict[str, Any]
    substeps: int
    kappa: float
    heading: bool
    width: float | None
    residual: Residual | None = None
    tilts: list[list[float]] = field(default_factory=list)
    flight: int | None = None

    def prepared(self, recordings: Recordings) -> Recordings:
        """Recordings as the fit has read them: levelled, in their heading, and with the starts that their flights say."""
        nominal = find_object(self.object).build(recordings.dt, ())
        recordings = levelled(nominal, recordings, self.tilts) if self.tilts else recordings
        recordings = recordings.with_heading() if self.heading else recordings
        return recordings if self.flight is None else flight_starts(nominal, recordings, self.flight)

    def model(
        self, dt: float, substeps: int | None = None, kappa: float | None = None, unknowns: Sequence[str] | None = None
    ) -> ParametricMechanism:
        """The object for recordings with a sample every `dt` [s], with all its parameters as unknowns, or others."""
        build, timestep = find_object(self.object).build, dt / (substeps or self.substeps)
        names, start = tuple(self.parameters if unknowns is None else unknowns), {**self.given, **self.parameters}
        model = build(timestep, names, start=start, kappa=kappa or self.kappa, **self.laws)
        return model if self.residual is None else self.residual.build(model)

    def after(self, model: ParametricMechanism, found: Fit) -> FittedObject:
        """The object with what a stage has found, of which `model` is."""
        parameters = {**self.parameters, **{name: value.tolist() for name, value in found.values.items()}}
        given = {name: value for name, value in self.given.items() if name not in parameters}
        residual = model.description if isinstance(model, ResidualMechanism) else None
        return replace(self, parameters=parameters, given=given, residual=residual)

    @staticmethod
    def load(path: str | Path) -> FittedObject:
        """Read what ``json.dumps(dataclasses.asdict(fitted))`` has written.

        Raises:
            ValueError: no file, or not such a one.
        """
        path = Path(path)
        if not path.is_file():
            raise ValueError(f"no file {str(path)!r}; it comes with a finished `torchdojo fit`")
        try:
            values = json.loads(path.read_text())
            residual = values.get("residual")
            return FittedObject(**{**values, "residual": residual and Residual(**residual)})
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} does not hold the parameters of a fit, or is damaged ({error})") from error


class Start(NamedTuple):
    """One of the starts of a stage: cost on the training throws and number of samples reached there, with what it has found; why it ended.
    One that diverged has no fit, and an infinite cost."""

    cost: float
    reached: int
    fit: Fit | None
    reason: str


@dataclass(frozen=True)
class FitReport:
    """Result of `fit`.

    fitted_object; fits: result of each stage; starts: of each stage, all of them. By "nominal", "pure" (before the first network was
    trained, where one is) and "fitted": models, and rollouts of "training" and "validation" throws, which are `recordings`. errors: of the
    rollouts, as `OpenLoop.summary`.
    """

    fitted_object: FittedObject
    fits: list[Fit]
    starts: list[list[Start]]
    models: dict[str, ParametricMechanism]
    recordings: dict[str, Recordings]
    rollouts: dict[str, dict[str, OpenLoop]]

    @property
    def values(self) -> dict[str, Any]:
        """Everything that was fitted, by name, in physical units."""
        return self.fitted_object.parameters

    @property
    def model(self) -> ParametricMechanism:
        """The fitted object."""
        return self.models["fitted"]

    @property
    def errors(self) -> dict[str, dict[str, dict[str, float]]]:
        width = self.fitted_object.width
        return {name: {part: rollout.summary(width) for part, rollout in parts.items()} for name, parts in self.rollouts.items()}

    @property
    def nominal(self) -> dict[str, dict[str, float]]:
        return self.errors["nominal"]

    @property
    def fitted(self) -> dict[str, dict[str, float]]:
        return self.errors["fitted"]


#: (number of the stage, from 1; the stage; its model; training and validation throws; number of the start, from 1) -> its result. What has
#: been found of a network is left in the model.
StageRunner = Callable[[int, Stage, ParametricMechanism, Recordings, Recordings, int], Fit]


def fit(config: FitConfig, run: StageRunner | None = None, log: Callable[[str], None] | None = None) -> FitReport:
    """Run a description.

    Args:
        run: runs a stage; default: `run_stage`. log: gets a line for every iteration of the default.

    Raises:
        ValueError: unknown objects or parameters. DataError: data that cannot be used. DivergenceError: all starts of a stage did.
    """
    training, validation = prepare(config)
    dt = training.dt
    run = run or functools.partial(run_stage, log=log)
    found, fits, starts = untouched(config), list[Fit](), list[list[Start]]()
    models = {"nominal": nominal_model(config, dt)}
    for number, stage in enumerate(config.stages, start=1):
        if stage.residual is not None and found.residual is None:
            models["pure"] = found.model(dt)
        best, model, all_starts = run_starts(config, number, found, stage_throws(config, stage, training, validation), run)
        found = found.after(model, best)
        fits.append(best)
        starts.append(all_starts)
    models["fitted"] = found.model(dt)
    parts = {"training": training, "validation": validation}
    rollouts = {name: {part: open_loop(model, data) for part, data in parts.items()} for name, model in models.items()}
    return FitReport(found, fits, starts, models, parts, rollouts)


def run_starts(
    config: FitConfig, number: int, found: FittedObject, throws: tuple[Recordings, Recordings], run: StageRunner
) -> tuple[Fit, ParametricMechanism, list[Start]]:
    """Run a stage from all its starts: the best result, its model, and what became of each.

    Raises:
        DivergenceError: all of them did.
    """
    stage, training = config.stages[number - 1], throws[0]
    starts, models = list[Start](), list[ParametricMechanism]()
    for start in range(1, stage.starts + 1):
        model = stage_model(config, number, found, training.dt, start)
        models.append(model)
        try:
            result = run(number, stage, model, *throws, start)
            for name, value in result.values.items():
                if not model.parameters_by_name[name].allows(value):
                    raise DivergenceError(
                        f"stage {number} ended with {name} = {value.tolist()}, on a bound or beyond; shorten the steps of {stage.method}"
                    )
        except DivergenceError as error:
            starts.append(Start(np.inf, 0, None, str(error)))
            continue
        # (Which samples are in flight depends on where a model begins, and the cost on that; here all models are where they have ended.)
        with torch.no_grad():
            model.raw.copy_(result.raw)
        cost, reached = problem_of(stage, model, training).cost(result.raw, result.start)
        starts.append(Start(float(cost), reached, result, result.reason))
    # (the cost is that of the samples that were reached: one that fails early has few)
    best = min(range(stage.starts), key=lambda i: (-starts[i].reached, starts[i].cost))
    chosen = starts[best].fit
    if chosen is None:
        raise DivergenceError("; ".join(dict.fromkeys(start.reason for start in starts)))
    return chosen, models[best], starts


def prepare(config: FitConfig) -> tuple[Recordings, Recordings]:
    """Training and validation throws of a description that can be run: a stage that cannot is refused before the first has taken its time.

    Raises:
        ValueError, DataError: as `fit`.
    """
    find_object(config.object)
    recordings = read_recordings(config.data).first(config.limit)
    if config.object == "cube":
        check_heights(recordings, recordings.numbers.get("half_side", 0.0524), config.data)
    recordings = untouched(config).prepared(recordings)
    parts = recordings.split(config.validation, config.seed) if config.fold is None else recordings.fold(config.fold, config.seed)
    nominal_model(config, recordings.dt)
    for number, stage in enumerate(config.stages, start=1):
        model = stage_model(config, number, untouched(config), recordings.dt)
        for part in stage_throws(config, stage, *parts):
            windows_of(stage, part)
            model.observed(part)
    return parts


def stage_throws(config: FitConfig, stage: Stage, training: Recordings, validation: Recordings) -> tuple[Recordings, Recordings]:
    """What a stage trains on, and what watches over it: with patience a part of the training throws, as it decides when to stop."""
    return (training, validation) if stage.patience is None else training.split(config.validation, config.seed)


def untouched(config: FitConfig) -> FittedObject:
    """The object of a description, before anything of it is fitted."""
    width = config.width or find_object(config.object).width
    kept = {name: getattr(config, name) for name in ("object", "laws", "substeps", "kappa", "tilts", "heading", "flight")}
    return FittedObject(parameters={}, given=config.start, width=width, **kept)


def stage_model(config: FitConfig, number: int, found: FittedObject, dt: float, start: int = 1) -> ParametricMechanism:
    """The object with the unknowns of a stage, from what stages before it have found; starts behind the first are moved at random."""
    stage, seed = config.stages[number - 1], derived_seed(config.seed, number, start)
    model = found.model(dt, stage.substeps, unknowns=stage.parameters)
    if stage.residual is not None and found.residual is None:
        model = stage.residual.build(model, seed)
    if isinstance(model, ResidualMechanism):
        model.network.requires_grad_(stage.residual is not None)
    if start > 1:
        draw = torch.randn(model.raw.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        with torch.no_grad():
            model.raw.add_(draw, alpha=stage.spread)
    return model


def nominal_model(config: FitConfig, dt: float) -> ParametricMechanism:
    """The object to compare with: by default as its function makes it, whatever the fit assumes of contacts and kappa."""
    return find_object(config.object).build(dt / config.substeps, (), start=config.nominal)


def derived_seed(*numbers: int) -> int:
    """A seed of several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def run_stage(
    number: int,
    stage: Stage,
    model: ParametricMechanism,
    training: Recordings,
    validation: Recordings,
    start: int = 1,
    log: Callable[[str], None] | None = None,
) -> Fit:
    """Fit the parameters of `model` to the windows of a stage by Gauss-Newton, without checkpoints.

    Raises:
        ValueError: a stage for an optimizer of torch, or with patience.
    """
    if stage.method != GAUSS_NEWTON or stage.patience is not None:
        raise ValueError(
            f"stage {number}: method {stage.method!r} and patience need the loop of pytorch-lightning: torchdojo fit, or "
            "fit(config, run=torchdojo.identification.lightning.LightningRunner(...))"
        )
    names = stage.label + (f" (start {start})" if stage.starts > 1 else "")

    def report(iteration: int, cost: float, raw: torch.Tensor) -> None:
        if log is not None:
            log(f"{names}: iteration {iteration}, cost {cost:.6g}")

    return gauss_newton(problem_of(stage, model, training), options=stage.gauss_newton_options, callback=report)


def windows_of(stage: Stage, recordings: Recordings) -> WindowDataset:
    """The windows of a stage.

    Raises:
        DataError: no trajectory is as long as a window.
    """
    return WindowDataset(recordings, stage.horizon, stage.stride or 1, first_only=stage.stride is None)


def problem_of(stage: Stage, model: ParametricMechanism, training: Recordings) -> LeastSquares:
    """The least-squares problem of a stage."""
    training = training.first(stage.throws)
    windows = windows_of(stage, training)
    throws = torch.repeat_interleave(training.throw_id, training.lengths)[windows.starts]
    return LeastSquares(WindowResidual(model, training, stage.scales), windows.stack(), stage.robust, throws, free_start=stage.free_start)


def find_object(name: str) -> KnownObject:
    """An object by name, or by "module:function".

    Raises:
        ValueError: there is none.
    """
    if name in OBJECTS:
        return OBJECTS[name]
    module, colon, function = name.partition(":")
    if not colon:
        raise ValueError(f"no object {name!r}; there are: {', '.join(OBJECTS)}, and module:function for any other")
    try:
        return KnownObject(getattr(importlib.import_module(module), function), None)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"object {name!r}: {error}; allowed: module:function, of a module that Python finds (PYTHONPATH)") from error


def check_names(cls: type, values: Mapping[str, Any]) -> None:
    """Raise ValueError for keys that are no fields of a dataclass."""
    known = [f.name for f in fields(cls)]
    unknown = [name for name in values if name not in known]
    if unknown:
        raise ValueError(f"{cls.__name__} has no {', '.join(map(str, unknown))}; it has: {', '.join(known)}")


def plain(config: FitConfig | FittedObject) -> dict[str, Any]:
    """Nested mappings and lists of plain values, as YAML and JSON hold them."""
    result: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return result

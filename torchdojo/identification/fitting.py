"""A fit from a description of it: data, object, split by throw, stages, and open-loop errors before and after.

    config = td.identification.read_config("configs/identify_cube.yaml", data="contactnets_cube_train.npz")
    report = td.identification.fit(config)

Stages follow each other: each starts from what those before it found, and moves only its own parameters. The descriptions behind the
published numbers are configs/identify_cube.yaml and configs/identify_elbow.yaml of the repository; ``torchdojo fit`` runs them with
checkpoints (`torchdojo.identification.lightning`).
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torchdojo.identification.evaluation import OpenLoop, open_loop
from torchdojo.identification.gauss_newton import Fit, GaussNewtonOptions, LeastSquares, gauss_newton
from torchdojo.identification.objects import cube_model, elbow_model
from torchdojo.identification.parameters import ParametricMechanism
from torchdojo.identification.recordings import Recordings, WindowDataset, check_heights, read_recordings
from torchdojo.identification.residuals import RobustLoss, Scales, WindowResidual

__all__ = ["GAUSS_NEWTON", "FitConfig", "FitReport", "FittedObject", "Stage", "StageRunner", "fit", "run_stage"]

GAUSS_NEWTON = "gauss_newton"


class KnownObject(NamedTuple):
    """build: (timestep, names of parameters, *, start, kappa, **laws) -> model, as `cube_model`; width [m] that position errors are
    compared with; idle: a parameter that starts at its nominal value, for a model of which none is fitted."""

    build: Callable[..., ParametricMechanism]
    width: float | None
    idle: str | None


OBJECTS = {"cube": KnownObject(cube_model, 0.1048, "friction"), "elbow": KnownObject(elbow_model, 0.1, "friction")}


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One fit.

    Args:
        parameters: names of the unknowns.
        horizon: samples from the first of a window to its last. stride: samples between starts of windows; None: one window per throw,
            from its first sample. substeps: steps of the mechanism per sample. throws: how many of the training throws to take windows of,
            the first ones; None: all.
        scales, robust: of the residual and of the loss. free_start: see `LeastSquares`.
        method: "gauss_newton", or the name of an optimizer of `torch.optim`. options: keywords of `GaussNewtonOptions`, or of it.
        epochs: of an optimizer, which needs it: times it sees all windows. batch_size: windows per step of it; None: all of them.
        patience: iterations (of an optimizer: epochs) without a smaller loss on the validation throws after which the stage ends, with
            the parameters of the smallest one; None: validation throws decide nothing.

    Raises:
        ValueError: keywords of another method, names that do not exist, numbers below 1.
    """

    parameters: list[str]
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

    def __post_init__(self) -> None:
        for name in ("horizon", "stride", "substeps", "throws", "epochs", "batch_size", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"Stage.{name}: got {value}; allowed: 1 or more")
        if not self.parameters:
            raise ValueError("Stage.parameters: got none; allowed: one or more names")
        if self.method == GAUSS_NEWTON:
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
    def gauss_newton_options(self) -> GaussNewtonOptions:
        check_names(GaussNewtonOptions, self.options)
        return GaussNewtonOptions(**self.options)


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """A description of a fit.

    Args:
        data: file of recordings. limit: of trajectories. heading: turn throws to the heading of their first sample
            (`Recordings.with_heading`). validation, seed: the split by throw; the seed also orders batches.
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
    seed: int = 0
    substeps: int = 4
    kappa: float = 1e-6
    heading: bool = False
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
            ("limit", "1 or more", self.limit is None or self.limit >= 1),
            ("kappa", "positive numbers", self.kappa > 0),
            ("width", "positive numbers", self.width is None or self.width > 0),
        ):
            if not fine:
                raise ValueError(f"FitConfig.{name}: got {getattr(self, name)}; allowed: {allowed}")


@dataclass(frozen=True, kw_only=True)
class FittedObject:
    """An object and what a fit has found of it: all that it takes to build it again.

    parameters: values by name, in physical units. given: of parameters that were not fitted, where they are not nominal.
    The others as in `FitConfig`.
    """

    object: str
    parameters: dict[str, Any]
    given: dict[str, Any]
    laws: dict[str, Any]
    substeps: int
    kappa: float
    heading: bool
    width: float | None

    def model(self, dt: float, substeps: int | None = None, kappa: float | None = None) -> ParametricMechanism:
        """The object for recordings with a sample every `dt` [s]."""
        build, timestep = find_object(self.object).build, dt / (substeps or self.substeps)
        start = {**self.given, **self.parameters}
        return build(timestep, tuple(self.parameters), start=start, kappa=kappa or self.kappa, **self.laws)

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
            return FittedObject(**values)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} does not hold the parameters of a fit, or is damaged ({error})") from error


@dataclass(frozen=True)
class FitReport:
    """Result of `fit`.

    fitted_object; fits: result of each stage. By "nominal" and "fitted": models, and rollouts of "training" and "validation" throws,
    which are `recordings`. nominal, fitted: errors of the rollouts, as `OpenLoop.summary`.
    """

    fitted_object: FittedObject
    fits: list[Fit]
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
    def nominal(self) -> dict[str, dict[str, float]]:
        return self._errors("nominal")

    @property
    def fitted(self) -> dict[str, dict[str, float]]:
        return self._errors("fitted")

    def _errors(self, name: str) -> dict[str, dict[str, float]]:
        return {part: rollout.summary(self.fitted_object.width) for part, rollout in self.rollouts[name].items()}


#: (number of the stage, from 1; the stage; its model; training and validation throws) -> its result
StageRunner = Callable[[int, Stage, ParametricMechanism, Recordings, Recordings], Fit]


def fit(config: FitConfig, run: StageRunner | None = None, log: Callable[[str], None] | None = None) -> FitReport:
    """Run a description.

    Args:
        run: runs a stage; default: `run_stage`. log: gets a line for every iteration of the default.

    Raises:
        ValueError: unknown objects or parameters. DataError: data that cannot be used.
    """
    training, validation = prepare(config)
    dt = training.dt
    run = run or functools.partial(run_stage, log=log)
    found, fits = dict[str, Any](), list[Fit]()
    for number, stage in enumerate(config.stages, start=1):
        model = stage_model(config, stage, dt, found)
        fits.append(run(number, stage, model, training, validation))
        for name, value in fits[-1].values.items():
            if not model.parameters_by_name[name].allows(value):
                raise ValueError(
                    f"stage {number} ended with {name} = {value.tolist()}, on a bound or beyond; shorten the steps of {stage.method}"
                )
        found |= {name: value.tolist() for name, value in fits[-1].values.items()}
    fitted = FittedObject(
        object=config.object,
        parameters=found,
        given={name: value for name, value in config.start.items() if name not in found},
        laws=config.laws,
        substeps=config.substeps,
        kappa=config.kappa,
        heading=config.heading,
        width=config.width or find_object(config.object).width,
    )
    models = {"nominal": nominal_model(config, dt), "fitted": fitted.model(dt)}
    parts = {"training": training, "validation": validation}
    rollouts = {name: {part: open_loop(model, data) for part, data in parts.items()} for name, model in models.items()}
    return FitReport(fitted, fits, models, parts, rollouts)


def prepare(config: FitConfig) -> tuple[Recordings, Recordings]:
    """Training and validation throws of a description that can be run: a stage that cannot is refused before the first has taken its time.

    Raises:
        ValueError, DataError: as `fit`.
    """
    find_object(config.object)
    recordings = read_recordings(config.data).first(config.limit)
    if config.object == "cube":
        check_heights(recordings, recordings.numbers.get("half_side", 0.0524), config.data)
    parts = (recordings.with_heading() if config.heading else recordings).split(config.validation, config.seed)
    nominal_model(config, recordings.dt)
    for stage in config.stages:
        model = stage_model(config, stage, recordings.dt, {})
        for part in parts:
            windows_of(stage, part)
            model.observed(part)
    return parts


def stage_model(config: FitConfig, stage: Stage, dt: float, found: Mapping[str, Any]) -> ParametricMechanism:
    """The object of a description, with the unknowns of a stage, from what stages before it have found."""
    build, start = find_object(config.object).build, {**config.start, **found}
    return build(dt / stage.substeps, tuple(stage.parameters), start=start, kappa=config.kappa, **config.laws)


def nominal_model(config: FitConfig, dt: float) -> ParametricMechanism:
    """The object to compare with: by default as its function makes it, whatever the fit assumes of contacts and kappa."""
    known = find_object(config.object)
    return known.build(dt / config.substeps, (known.idle or config.stages[0].parameters[0],), start=config.nominal)


def run_stage(
    number: int,
    stage: Stage,
    model: ParametricMechanism,
    training: Recordings,
    validation: Recordings,
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
    names = ", ".join(stage.parameters)

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
        return KnownObject(getattr(importlib.import_module(module), function), None, None)
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

"""A fit from its description: data, object, split by throw, stages, and open-loop errors before and after.

    config = td.identification.read_config("configs/identify_cube.yaml", data="contactnets_cube_train.npz")
    report = td.identification.fit(config)

Each stage starts from the results of the stages before it, and moves only its own parameters. Stages with the key `residual` train a
network of corrections, which does not change in later stages. ``torchdojo fit`` runs descriptions with checkpoints
(`torchdojo.identification.lightning`).

Throws held back decide nothing: no parameter, no choice among starts, no end of a stage.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from torchdojo.identification.corrections import CorrectedMechanism
from torchdojo.identification.description import GAUSS_NEWTON, FitConfig, Stage
from torchdojo.identification.evaluation import OpenLoop, open_loop
from torchdojo.identification.fitted_object import FittedObject
from torchdojo.identification.gauss_newton import Fit, LeastSquares, gauss_newton
from torchdojo.identification.levelling import check_tilts
from torchdojo.identification.misfit import WindowResidual
from torchdojo.identification.parameters import ParametricMechanism
from torchdojo.identification.recordings import Recordings, WindowDataset, read_recordings
from torchdojo.identification.user_object import find_object

__all__ = ["DivergenceError", "FitReport", "Start", "fit", "prepare", "problem_of", "run_stage"]


class DivergenceError(ValueError):
    """A fit that left the region where results are: a loss that is not finite, a parameter on its bound."""


class Start(NamedTuple):
    """One of the starts of a stage, and its result.

    cost: on the training throws.
    reached: number of samples there before any failed step.
    reason: why the fit ended.

    A start that diverges has no fit and an infinite cost.
    """

    cost: float
    reached: int
    fit: Fit | None
    reason: str


@dataclass(frozen=True)
class FitReport:
    """Result of `fit`.

    fits: result of each stage.
    starts: all starts of each stage.
    models: "nominal", "pure" (before the first network is trained, if there is one) and "fitted".
    recordings: "training" and "validation" throws.
    rollouts: open loop, by model and part of the recordings.
    """

    fitted_object: FittedObject
    fits: list[Fit]
    starts: list[list[Start]]
    models: dict[str, ParametricMechanism]
    recordings: dict[str, Recordings]
    rollouts: dict[str, dict[str, OpenLoop]]

    @property
    def values(self) -> dict[str, Any]:
        """All fitted values by name, in physical units."""
        return self.fitted_object.parameters

    @property
    def model(self) -> ParametricMechanism:
        """The fitted object."""
        return self.models["fitted"]

    @property
    def errors(self) -> dict[str, dict[str, dict[str, float]]]:
        """Errors of the rollouts, by model and part of the recordings, as `OpenLoop.summary` names them."""
        width = self.fitted_object.width
        return {name: {part: rollout.summary(width) for part, rollout in parts.items()} for name, parts in self.rollouts.items()}

    @property
    def nominal(self) -> dict[str, dict[str, float]]:
        return self.errors["nominal"]

    @property
    def fitted(self) -> dict[str, dict[str, float]]:
        return self.errors["fitted"]


#: (number of the stage, from 1; the stage; its model; training and validation throws; number of the start, from 1) -> its result. The
#: trained weights of a network are left in the model.
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
    fitted, fits, starts = untouched(config), list[Fit](), list[list[Start]]()
    models = {"nominal": nominal_model(config, dt)}
    for number, stage in enumerate(config.stages, start=1):
        if stage.residual is not None and fitted.residual is None:
            models["pure"] = fitted.model(dt)
        best, model, all_starts = run_starts(config, number, fitted, stage_throws(config, stage, training, validation), run)
        fitted = fitted.after(model, best)
        fits.append(best)
        starts.append(all_starts)
    models["fitted"] = fitted.model(dt)
    parts = {"training": training, "validation": validation}
    rollouts = {name: {part: open_loop(model, data) for part, data in parts.items()} for name, model in models.items()}
    return FitReport(fitted, fits, starts, models, parts, rollouts)


def run_starts(
    config: FitConfig, number: int, fitted: FittedObject, throws: tuple[Recordings, Recordings], run: StageRunner
) -> tuple[Fit, ParametricMechanism, list[Start]]:
    """Run a stage from all its starts: the best result, its model, and the outcome of each start.

    Raises:
        DivergenceError: all of them did.
    """
    stage, training = config.stages[number - 1], throws[0]
    starts, models = list[Start](), list[ParametricMechanism]()
    for start in range(1, stage.starts + 1):
        model = stage_model(config, number, fitted, training.dt, start)
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
        # The model's own parameters decide which samples are in flight, and thus the cost. Here all models have their fitted parameters.
        with torch.no_grad():
            model.raw.copy_(result.raw)
        cost, reached = problem_of(stage, model, training).cost(result.raw, result.start)
        starts.append(Start(float(cost), reached, result, result.reason))
    # The cost sums over reached samples; a start that fails early has few.
    best = min(range(stage.starts), key=lambda i: (-starts[i].reached, starts[i].cost))
    chosen = starts[best].fit
    if chosen is None:
        raise DivergenceError("; ".join(dict.fromkeys(start.reason for start in starts)))
    return chosen, models[best], starts


def prepare(config: FitConfig) -> tuple[Recordings, Recordings]:
    """Training and validation throws of a description, once all its stages are known to run: no stage is refused after another one's time.

    Raises:
        ValueError, DataError: as `fit`.
    """
    check = find_object(config.object).check_recordings
    recordings = read_recordings(config.data)
    check_tilts(recordings, config.tilts, config.data)
    recordings = recordings.first(config.limit)
    if check is not None:
        check(recordings, config.data)
    recordings = untouched(config).prepared(recordings)
    if config.held_back is not None:
        parts = recordings.hold_back(config.held_back)
    else:
        parts = recordings.split(config.validation, config.seed) if config.fold is None else recordings.fold(config.fold, config.seed)
    nominal_model(config, recordings.dt)
    for number, stage in enumerate(config.stages, start=1):
        model = stage_model(config, number, untouched(config), recordings.dt)
        for part in stage_throws(config, stage, *parts):
            windows_of(stage, part)
            model.observed(part)
    return parts


def stage_throws(config: FitConfig, stage: Stage, training: Recordings, validation: Recordings) -> tuple[Recordings, Recordings]:
    """Throws that a stage trains on, and throws that watch over it. With patience the latter are training throws: they decide the end."""
    return (training, validation) if stage.patience is None else training.split(config.validation, config.seed)


def untouched(config: FitConfig) -> FittedObject:
    """The object of a description, before anything is fitted."""
    width = config.width or find_object(config.object).width
    kept = {name: getattr(config, name) for name in ("object", "laws", "substeps", "kappa", "tilts", "heading", "flight", "nominal")}
    return FittedObject(parameters={}, given=config.start, width=width, **kept)


def stage_model(config: FitConfig, number: int, fitted: FittedObject, dt: float, start: int = 1) -> ParametricMechanism:
    """The object with the unknowns of a stage, at the values of the stages before. Starts behind the first are moved at random."""
    stage, seed = config.stages[number - 1], derived_seed(config.seed, number, start)
    model = fitted.model(dt, stage.substeps, unknowns=stage.parameters)
    if stage.residual is not None and fitted.residual is None:
        model = stage.residual.build(model, seed)
    if isinstance(model, CorrectedMechanism):
        model.network.requires_grad_(stage.residual is not None)
    if start > 1:
        draw = torch.randn(model.raw.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        with torch.no_grad():
            model.raw.add_(draw, alpha=stage.spread)
    return model


def nominal_model(config: FitConfig, dt: float) -> ParametricMechanism:
    """The object to compare with: by default as its function makes it, whatever the fit assumes about contacts and kappa."""
    return untouched(config).nominal_model(dt)


def derived_seed(*numbers: int) -> int:
    """A seed from several numbers."""
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
    label = stage.label + (f" (start {start})" if stage.starts > 1 else "")

    def report(iteration: int, cost: float, raw: torch.Tensor) -> None:
        if log is not None:
            log(f"{label}: iteration {iteration}, cost {cost:.6g}")

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

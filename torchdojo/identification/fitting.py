"""A fit from a description of it: data, object, split by throw, stages of Gauss-Newton, and open-loop errors before and after.

    report = td.identification.fit({**td.identification.CUBE, "data": "contactnets_cube_train.npz"})

A description is a mapping of plain values (of a YAML file, say) with the keys of `FitConfig`; a stage one with those of `Stage`. Stages
follow each other: each starts from what those before it found, and moves only its own parameters. `CUBE` and `ELBOW` are the descriptions
behind the published numbers; ``python -m torchdojo.identification cube FILE`` runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import torch

from torchdojo.identification.evaluation import open_loop
from torchdojo.identification.gauss_newton import Fit, GaussNewtonOptions, LeastSquares, gauss_newton
from torchdojo.identification.objects import cube_model, elbow_model
from torchdojo.identification.parameters import ParametricMechanism
from torchdojo.identification.recordings import Recordings, WindowDataset, check_heights, read_recordings
from torchdojo.identification.residuals import RobustLoss, Scales, WindowResidual

__all__ = ["CUBE", "ELBOW", "FitConfig", "FitReport", "Stage", "fit", "run_stage"]

#: name -> (model of the object, width that position errors are compared with [m])
OBJECTS: dict[str, tuple[Callable[..., ParametricMechanism], float]] = {"cube": (cube_model, 0.1048), "elbow": (elbow_model, 0.1)}
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One fit. parameters: names of the unknowns. horizon: steps of a window. stride: samples between starts of windows; None: one window
    per throw, from its first sample. substeps: steps of the mechanism per sample. scales, robust, options: keywords of `Scales`,
    `RobustLoss` and `GaussNewtonOptions`. free_start: see `LeastSquares`."""

    parameters: Sequence[str]
    horizon: int
    stride: int | None = None
    substeps: int = 4
    scales: Mapping[str, Any] = field(default_factory=dict)
    robust: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    free_start: bool = False


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """data: file of recordings. object: "cube" or "elbow". stages: mappings of `Stage`. validation, seed: the split by throw.

    substeps, kappa: of the open-loop rollouts. heading: turn throws to the heading of their first sample (`Recordings.with_heading`).
    limit: of throws. start: where parameters start and what the others are; nominal: the same of the mechanism to compare with.
    laws: of the contacts.
    """

    data: str
    object: str
    stages: Sequence[Mapping[str, Any]]
    validation: float = 0.2
    seed: int = 0
    substeps: int = 4
    kappa: float = 1e-6
    heading: bool = False
    limit: int | None = None
    start: Mapping[str, Any] = field(default_factory=dict)
    nominal: Mapping[str, Any] = field(default_factory=dict)
    laws: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FitReport:
    """values: everything that differs from the nominal object, by name, in physical units; fits: result of each stage; open-loop errors of
    the nominal and of the fitted object on both parts, as `OpenLoop.summary`; model: the fitted object."""

    values: dict[str, Any]
    fits: list[Fit]
    nominal: dict[str, dict[str, float]]
    fitted: dict[str, dict[str, float]]
    model: ParametricMechanism


CUBE: dict[str, Any] = {
    "object": "cube",
    "heading": True,
    "stages": [
        # Gravity as recorded: mostly flight. Velocities of single samples are too noisy for it.
        {
            "parameters": ["gravity"],
            "horizon": 10,
            "free_start": True,
            "robust": {"kind": "cauchy", "threshold": 1.0},
            "options": {"cost_tol": 1e-4},
        },
        # Geometry, from everything that touches the ground.
        {
            "parameters": ["friction", "half_side"],
            "horizon": 16,
            "stride": 16,
            "substeps": 2,
            "scales": {"position": 0.002, "rotation": 0.02},
            "robust": {"kind": "cauchy", "threshold": 3.0},
            "options": {"cost_tol": 1e-4, "max_iterations": 12},
        },
        # Friction, and how level the ground is, from whole throws. A threshold that nearly all residuals exceed minimizes mean distances.
        {
            "parameters": ["friction", "tilt"],
            "horizon": 60,
            "scales": {"position": 0.005, "rotation": 0.1},
            "robust": {"kind": "huber", "threshold": 1.0},
            "options": {"cost_tol": 1e-4, "max_iterations": 8},
        },
    ],
    # Contacts give way (the stiffness rounds corners, too) and inertia is 1.3 times the nominal one: from a coarse grid of open-loop errors
    # of the training file, where four of five fifths of the throws, whichever they are, choose the same values or neighbours that do as
    # well. Damping is that at four substeps, which add damping of their own.
    "start": {"corner_radius": 0.001, "stiffness": 5e4, "damping": 100.0, "second_moments": (5.26e-4,) * 3, "tilt": (0.0, 0.08)},
}

ELBOW: dict[str, Any] = {
    "object": "elbow",
    "stages": [
        {
            "parameters": ["friction", "parent_anchor", "child_anchor", "hinge_damping", "hinge_friction"],
            "horizon": 16,
            "stride": 48,
            "substeps": 4,
            "scales": {"position": 0.003, "rotation": 0.03, "joint": 0.03},
            "robust": {"kind": "cauchy", "threshold": 3.0},
            "options": {"cost_tol": 1e-3, "max_iterations": 8},
        },
        {
            "parameters": ["friction"],
            "horizon": 60,
            "scales": {"position": 0.01, "rotation": 0.5, "joint": 0.5},
            "robust": {"kind": "huber", "threshold": 1.0},
            "options": {"cost_tol": 1e-4, "max_iterations": 8},
        },
    ],
    # Contacts give way, with stiffness and damping from a coarse grid of open-loop errors of training throws; at the substeps below, which
    # add damping of their own. (Newton's law with a restitution of 0.2 to 0.3 does as well.)
    "start": {"gravity": 9.64, "friction": 0.16, "stiffness": 3e4, "damping": 60.0},
}


def fit(config: Mapping[str, Any] | FitConfig, log: Callable[[str], None] | None = None) -> FitReport:
    """Run a description; `log` gets a line for every iteration.

    Raises:
        ValueError: unknown keys, objects or parameters. DataError: data that cannot be used.
    """
    config = config if isinstance(config, FitConfig) else _of(FitConfig, config)
    if config.object not in OBJECTS:
        raise ValueError(f"no object {config.object!r}; there are: {', '.join(OBJECTS)}")
    stages = [_of(Stage, stage) for stage in config.stages]
    if not stages:
        raise ValueError("a fit needs at least one stage")
    recordings = read_recordings(config.data).first(config.limit)
    if config.object == "cube":
        check_heights(recordings, recordings.numbers.get("half_side", 0.0524), config.data)
    training, validation = (recordings.with_heading() if config.heading else recordings).split(config.validation, config.seed)
    build, width = OBJECTS[config.object]
    start, found, fits = dict(config.start), dict[str, Any](), list[Fit]()
    for stage in stages:
        model = build(recordings.dt / stage.substeps, stage.parameters, start=start, kappa=config.kappa, **config.laws)
        result = run_stage(model, training, stage, log)
        fits.append(result)
        found |= {name: value.tolist() for name, value in result.values.items()}
        start |= found
    fitted = build(recordings.dt / config.substeps, tuple(found), start=start, kappa=config.kappa, **config.laws)
    # (one parameter that starts at its nominal value, since a model has at least one)
    nominal = build(recordings.dt / config.substeps, ("friction",), start=config.nominal)
    parts = {"training": training, "validation": validation}
    errors = [{name: open_loop(model, part).summary(width) for name, part in parts.items()} for model in (nominal, fitted)]
    return FitReport(found, fits, errors[0], errors[1], fitted)


def run_stage(model: ParametricMechanism, training: Recordings, stage: Stage, log: Callable[[str], None] | None = None) -> Fit:
    """Fit the parameters of `model` to the windows of a stage."""
    windows = WindowDataset(training, stage.horizon, stage.stride or 1, first_only=stage.stride is None)
    throws = torch.repeat_interleave(training.throw_id, training.lengths)[windows.starts]
    residual, robust = WindowResidual(model, training, Scales(**stage.scales)), RobustLoss(**stage.robust)
    problem = LeastSquares(residual, windows.stack(), robust, throws, free_start=stage.free_start)
    names = ", ".join(stage.parameters)

    def report(iteration: int, cost: float, raw: torch.Tensor) -> None:
        if log is not None:
            log(f"{names}: iteration {iteration}, cost {cost:.6g}")

    return gauss_newton(problem, options=GaussNewtonOptions(**stage.options), callback=report)


def _of(cls: type[T], values: Mapping[str, Any]) -> T:
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    unknown = [name for name in values if name not in known]
    if unknown:
        raise ValueError(f"{cls.__name__} has no {', '.join(unknown)}; it has: {', '.join(known)}")
    try:
        return cls(**values)
    except TypeError as error:
        raise ValueError(f"{cls.__name__}: {error}") from error

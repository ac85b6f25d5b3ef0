"""Cross-validation by throw: one fit per fold, compared with the throws that it did not see (Stone 1974).

validated = cross_validate(read_config("configs/identify_cube.yaml", data="tosses.npz"), folds=5)
validated.errors["fitted"]["position_error_mm"]     # one number per fold
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.identification import fitting
from torchdojo.identification.description import FitConfig
from torchdojo.identification.fitting import FitReport

__all__ = ["CrossValidation", "Spread", "cross_validate", "fold_configs"]


class Spread(NamedTuple):
    """Mean over folds, and standard deviation of a fold, each of the shape of a value."""

    mean: Tensor
    deviation: Tensor

    @staticmethod
    def of(values: Tensor) -> Spread:
        """Mean and deviation of values (K, *shape)."""
        return Spread(values.mean(0), values.std(0))


@dataclass(frozen=True)
class CrossValidation:
    """reports: result of each fold."""

    reports: list[FitReport]

    @property
    def errors(self) -> dict[str, dict[str, Tensor]]:
        """Errors on throws held back: name of the model -> quantity, as in `OpenLoop.summary` -> one number per fold (K,)."""
        folds = [report.errors for report in self.reports]
        return {
            model: {quantity: torch.tensor([fold[model]["validation"][quantity] for fold in folds]) for quantity in parts["validation"]}
            for model, parts in folds[0].items()
        }

    @property
    def values(self) -> dict[str, Tensor]:
        """Fitted values by name, one per fold, (K, *shape)."""
        return {name: torch.tensor([report.values[name] for report in self.reports]) for name in self.reports[0].values}


def fold_configs(config: FitConfig, folds: int) -> list[FitConfig]:
    """The descriptions of the fits, one per fold.

    Raises:
        ValueError: fewer than two folds, or a description that holds back a fold of its own. DataError: more folds than throws. Also the
            errors of `fit`.
    """
    if folds < 2:
        raise ValueError(f"folds: got {folds}; allowed: 2 or more, as each fold is predicted from the others")
    for name in ("fold", "held_back"):
        if getattr(config, name) is not None:
            raise ValueError(f"folds: got {folds}, of a description with {name}: {getattr(config, name)}; leave one of the two out")
    configs = [replace(config, fold=[number, folds]) for number in range(1, folds + 1)]
    for each in configs:
        fitting.prepare(each)
    return configs


def cross_validate(config: FitConfig, folds: int = 5, fit: Callable[[int, FitConfig], FitReport] | None = None) -> CrossValidation:
    """Fit a description once per fold. Every throw is held back once, and decides nothing in the fit that then predicts it.

    Args:
        fit: (number of the fold, from 1; its description) -> its result; default: `fitting.fit`.

    Raises:
        ValueError, DataError: as `fold_configs`.
    """
    run = fit or (lambda _, description: fitting.fit(description))
    return CrossValidation([run(number, description) for number, description in enumerate(fold_configs(config, folds), start=1)])

"""Descriptions of fits from YAML files (extra ``torchdojo[fit]``): names and types are checked before anything runs."""

from __future__ import annotations

import contextlib
import copy
from argparse import ArgumentError
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchdojo.identification.corrections import Residual
from torchdojo.identification.description import FitConfig, Stage, check_names
from torchdojo.identification.misfit import RobustLoss, Scales
from torchdojo.runs.description import import_jsonargparse, load_yaml

__all__ = ["read_config"]


def read_config(source: str | Path | Mapping[str, Any], **changes: Any) -> FitConfig:
    """A description from a YAML file or a mapping of plain values, with some keys of `FitConfig` replaced.

    Raises:
        ValueError: no file, not YAML, unknown keys, missing ones, values of the wrong type. ImportError: the extra is not installed.
    """
    jsonargparse = import_jsonargparse()
    values = {**copy.deepcopy(dict(source if isinstance(source, Mapping) else load_yaml(source))), **changes}
    _check(values)
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(FitConfig)
    try:
        config = parser.instantiate(parser.parse_object(values))
    except ArgumentError as error:
        raise ValueError(f"description of a fit: {' '.join(str(error).split())}") from error
    return FitConfig(**vars(config))


def _check(values: Mapping[str, Any]) -> None:
    """Refuse unknown names at all levels."""
    check_names(FitConfig, values)
    stages = values.get("stages")
    for stage in stages if isinstance(stages, list) else ():
        if isinstance(stage, Mapping):
            check_names(Stage, stage)
            for key, cls in (("scales", Scales), ("robust", RobustLoss), ("residual", Residual)):
                if isinstance(stage.get(key), Mapping):
                    check_names(cls, stage[key])
            if isinstance(stage.get("residual"), Mapping):
                # Its own errors say more than jsonargparse, which has only types of a union for it. Wrong types are left to jsonargparse.
                with contextlib.suppress(TypeError):
                    Residual(**stage["residual"])

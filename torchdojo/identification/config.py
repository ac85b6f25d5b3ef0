"""Descriptions from YAML files (extra ``torchdojo[fit]``): names and types are checked, by jsonargparse, before anything runs.

`read_config` reads those of fits; runs of learning and plans are read with `load_yaml`, `assign` and `parse`.
"""

from __future__ import annotations

import contextlib
import copy
from argparse import ArgumentError
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from torchdojo.identification.corrections import Residual
from torchdojo.identification.description import FitConfig, Stage, check_names
from torchdojo.identification.misfit import RobustLoss, Scales

__all__ = ["assign", "load_yaml", "parse", "read_config"]


def read_config(source: str | Path | Mapping[str, Any], **changes: Any) -> FitConfig:
    """A description from a YAML file or a mapping of plain values, with some keys of `FitConfig` replaced.

    Raises:
        ValueError: no file, not YAML, unknown keys, missing ones, values of the wrong type. ImportError: the extra is not installed.
    """
    jsonargparse = _jsonargparse()
    values = {**copy.deepcopy(dict(source if isinstance(source, Mapping) else load_yaml(source))), **changes}
    _check(values)
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(FitConfig)
    try:
        config = parser.instantiate(parser.parse_object(values))
    except ArgumentError as error:
        raise ValueError(f"description of a fit: {' '.join(str(error).split())}") from error
    return FitConfig(**vars(config))


def load_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping that a YAML file holds. As in YAML 1.2, 1e-4 is a number.

    Raises:
        ValueError: no file, or not a mapping.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"no file {str(path)!r}")
    try:
        values = _jsonargparse().get_loader("yaml")(path.read_text())
    except (ValueError, _yaml_error()) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds {type(values).__name__}; allowed: a mapping of names and values")
    return values


def assign(values: dict[str, Any], change: str) -> None:
    """Replace one value: "seed=3", "stages.0.options.max_iterations=5" (stages count from 0); values are read as YAML.

    Raises:
        ValueError: not of this form, or no such place.
    """
    path, equals, text = change.partition("=")
    if not equals:
        raise ValueError(f"got {change!r}; allowed: KEY=VALUE, as in seed=3 or stages.0.horizon=10")
    value = _jsonargparse().get_loader("yaml")(text)
    place: Any = values
    *parents, last = path.split(".")
    try:
        for key in parents:
            place = place[int(key)] if isinstance(place, list) else place.setdefault(key, {})
        if isinstance(place, list):
            place[int(last)] = value
        else:
            place[last] = value
    except (ValueError, IndexError, AttributeError, TypeError) as error:
        raise ValueError(f"{path}: no such place in the description ({error})") from error


def parse(cls: Any, values: Mapping[str, Any], label: str) -> Any:
    """A dataclass from plain values; `label` begins each error.

    Raises:
        ValueError: unknown names, values of the wrong type. ImportError: the extra is not installed.
    """
    jsonargparse = _jsonargparse()
    allowed = [entry.name for entry in fields(cls)]
    unknown = [str(name) for name in values if name not in allowed]
    if unknown:
        raise ValueError(f"{label}: there is no {', '.join(unknown)}; allowed: {', '.join(allowed)}")
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(cls)
    try:
        return cls(**vars(parser.instantiate(parser.parse_object(dict(values)))))
    except ArgumentError as error:
        raise ValueError(f"{label}: {' '.join(str(error).split())}") from error


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


def _jsonargparse() -> Any:
    try:
        import jsonargparse
    except ImportError as error:
        raise ImportError('descriptions are read with jsonargparse: pip install "torchdojo[fit]" or "torchdojo[learn]"') from error
    return jsonargparse


def _yaml_error() -> type[Exception]:
    import yaml

    return yaml.YAMLError

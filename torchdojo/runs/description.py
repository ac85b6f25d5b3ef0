"""Descriptions in YAML (extra ``torchdojo[fit]`` or ``torchdojo[learn]``): read, changed on the command line, and turned into dataclasses.

Names and types are checked, by jsonargparse, before anything runs.
"""

from __future__ import annotations

from argparse import ArgumentError
from collections.abc import Mapping, Sequence
from dataclasses import fields
from numbers import Integral
from pathlib import Path
from typing import Any

__all__ = ["assign", "check_whole", "import_jsonargparse", "load_yaml", "parse"]

DEEPEST = 50  #: levels of lists and mappings in a description, ten times what any has


def load_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping that a YAML file holds. As in YAML 1.2, 1e-4 is a number.

    Raises:
        ValueError: no file, or not a mapping.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"no file {str(path)!r}")
    values = read_yaml(path.read_bytes(), str(path))
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds {type(values).__name__}; allowed: a mapping of names and values")
    return values


def read_yaml(text: bytes, label: str) -> Any:
    """Plain values; `label` begins errors.

    Raises:
        ValueError: not YAML, or nested too deeply to be read. ImportError: the extra is not installed.
    """
    load = import_jsonargparse().get_loader("yaml")
    import yaml

    try:
        values = load(text.decode())
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{label} is not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ValueError(_deep(label)) from error
    if not _is_shallow(values):
        raise ValueError(_deep(label))
    return values


def _deep(label: str) -> str:
    return f"{label} is nested too deeply; allowed: up to {DEEPEST} levels, and no value inside itself; flatten it"


def _is_shallow(values: Any) -> bool:
    """Whether lists and mappings are nested at most `DEEPEST` times. An alias (&a, *a) may hold itself, which has no end."""
    open_values, seen = [(values, 0)], dict[int, int]()
    while open_values:
        value, depth = open_values.pop()
        if depth > DEEPEST:
            return False
        children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        if seen.get(id(value), -1) < depth:
            seen[id(value)] = depth
            open_values.extend((child, depth + 1) for child in children)
    return True


def assign(values: dict[str, Any], change: str) -> None:
    """Replace one value: "seed=3", "stages.0.options.max_iterations=5" (stages count from 0); values are read as YAML.

    Raises:
        ValueError: not of this form, or no such place.
    """
    path, equals, text = change.partition("=")
    if not equals:
        raise ValueError(f"got {change!r}; allowed: KEY=VALUE, as in seed=3 or stages.0.horizon=10")
    value = read_yaml(text.encode(), f"the value of {path}")
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
    jsonargparse = import_jsonargparse()
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


def check_whole(settings: object, names: Sequence[str], *, least: int = 1, optional: bool = False, label: str = "") -> None:
    """Raise unless these settings are whole numbers, or None where they are optional.

    Args:
        settings: an object with these attributes. label: in front of the names in errors.

    Raises:
        ValueError: another number, or no number.
    """
    for name in names:
        value = getattr(settings, name)
        if value is None and optional:
            continue
        if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
            raise ValueError(f"{label}{name}: got {value!r}; allowed: a whole number of {least} or more{', or None' * optional}")


def import_jsonargparse() -> Any:
    """jsonargparse, with an error that names the extra."""
    try:
        import jsonargparse
    except ImportError as error:
        raise ImportError('descriptions are read with jsonargparse: pip install "torchdojo[fit]" or "torchdojo[learn]"') from error
    return jsonargparse

"""Rows of tables, and layouts of numbers that stand one after the other."""

from __future__ import annotations

import numpy as np

__all__ = ["numbers", "place", "row", "size"]


def row(dtype: np.dtype, **values: object) -> tuple:
    """One row, field by field: every field once, and no other."""
    assert dtype.names is not None
    if values.keys() != set(dtype.names):
        raise TypeError(f"fields {sorted(values)} of a row that has {sorted(dtype.names)}")
    return tuple(values[name] for name in dtype.names)


def numbers(layout: np.dtype | None = None, /, **sizes: int | np.dtype) -> np.dtype:
    """Fields of float64 behind the fields of a layout. Each has a count of numbers, or a layout of its own."""
    fields: list[tuple] = [] if layout is None else [(name, layout[name]) for name in layout.names or ()]
    fields += [(name, np.float64, (kind,)) if isinstance(kind, int) else (name, kind) for name, kind in sizes.items()]
    return np.dtype(fields)


def place(layout: np.dtype, name: str) -> int:
    """Count of numbers in front of a field."""
    assert layout.fields is not None
    return layout.fields[name][1] // 8


def size(layout: np.dtype) -> int:
    """Count of numbers in all fields."""
    return layout.itemsize // 8

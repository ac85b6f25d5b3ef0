"""Whether figures of runs can be drawn (extra ``torchdojo[plots]``)."""

from __future__ import annotations

import importlib.util

__all__ = ["available"]


def available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None

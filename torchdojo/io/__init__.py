"""Robot description files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchdojo.io.urdf import load_urdf

if TYPE_CHECKING:
    from torchdojo.mechanism import Mechanism

__all__ = ["load", "load_urdf"]


def load(path: str | Path, **options: Any) -> Mechanism:
    """Build a `Mechanism` from a robot description file.

    Args:
        path: the file; its suffix chooses the reader. ``.urdf``: `load_urdf`.
        options: keywords of that reader (``timestep`` [s], ``gravity`` [m/s^2], ``floating_base``, ``contacts``, ...).

    Raises:
        ValueError: a suffix without a reader, or what the reader refuses.
        FileNotFoundError: there is no such file.
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".urdf":
        return load_urdf(path, **options)
    if suffix in (".xml", ".mjcf"):
        raise ValueError(f"cannot load {str(path)!r}: MJCF import is not available yet; use a URDF file of the robot (.urdf, load_urdf)")
    raise ValueError(f"cannot load {str(path)!r}: unknown suffix {suffix!r}; allowed: .urdf (for a URDF under another suffix, load_urdf)")

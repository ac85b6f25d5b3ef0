"""Robot description files: `load` chooses the reader, `urdf/` and `mjcf/` read their format into the description of `robot.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchdojo.io.mjcf.description import read_mjcf
from torchdojo.io.mjcf.load import load_mjcf
from torchdojo.io.mjcf.state import mjcf_state
from torchdojo.io.report import LoadEntry, LoadReport
from torchdojo.io.urdf.load import load_urdf
from torchdojo.io.xmlfile import read_xml
from torchdojo.mechanism import Mechanism

__all__ = ["LoadEntry", "LoadReport", "load", "load_mjcf", "load_urdf", "mjcf_state", "read_mjcf"]


def load(path: str | Path, **options: Any) -> Mechanism:
    """Build a `Mechanism` from a robot description file.

    Args:
        path: the file; its suffix chooses the reader. ``.urdf``: `load_urdf`. ``.mjcf``: `load_mjcf`. ``.xml``: by its root element,
            <robot> or <mujoco>.
        options: keywords of that reader (``timestep`` [s], ``gravity`` [m/s^2], ``floating_base``, ``contacts``, ...).

    Raises:
        ValueError: a suffix or a content without a reader, or content that the reader refuses.
        FileNotFoundError: there is no such file.
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".urdf":
        return load_urdf(path, **options)
    if suffix == ".mjcf":
        return load_mjcf(path, **options)
    if suffix == ".xml":
        return load_urdf(path, **options) if _root(Path(path)) == "robot" else load_mjcf(path, **options)
    raise ValueError(
        f"cannot load {str(path)!r}: unknown suffix {suffix!r}; allowed: .urdf, .xml, .mjcf (for others, load_urdf or load_mjcf)"
    )


def _root(path: Path) -> str:
    """Tag of the root element.

    Raises:
        ValueError: neither a robot nor a MuJoCo model.
    """
    try:
        tag = str(read_xml(path, "robot").tag)
    except ValueError:
        if b"<mujoco" not in path.read_bytes():
            raise
        return "mujoco"  # MuJoCo's own parser takes files that Python's refuses, and says what is wrong with the others
    if tag not in ("robot", "mujoco"):
        raise ValueError(f"{path}: the root element is <{tag}>; allowed: <mujoco> (MJCF) or <robot> (URDF)")
    return tag

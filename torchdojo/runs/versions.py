"""With which code a run was made: versions of torchdojo, its revision, torch and Python."""

from __future__ import annotations

import functools
import platform
import subprocess
from pathlib import Path

import torch

import torchdojo

__all__ = ["revision", "versions"]


def versions() -> dict[str, str | None]:
    """Plain values for reports and checkpoints; "revision" is None outside of a checkout of torchdojo."""
    return {
        "torchdojo": str(torchdojo.__version__),
        "revision": revision(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


@functools.cache
def revision() -> str | None:
    """Commit of the checkout that this package lies in, with "-dirty" where files differ; None outside of one.

    A process keeps the first answer, which is closest to the code that it has imported.
    """
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, check=True, timeout=20).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # not the checkout of somebody's project with this package inside
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None

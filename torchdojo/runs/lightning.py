"""pytorch-lightning in runs: checkpoints that are never torn and always checked, and none of its remarks."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pytorch_lightning.plugins.io import TorchCheckpointIO

from torchdojo.runs.files import save_checkpoint

__all__ = ["AtomicCheckpointIO", "quiet"]


class AtomicCheckpointIO(TorchCheckpointIO):
    """Checkpoints that are the old or the new ones, whenever the process dies. Lightning's move from /tmp need not be atomic.

    read: reads and checks a checkpoint of this kind of run.
    """

    def __init__(self, read: Callable[[Path], dict[str, Any]]) -> None:
        super().__init__()
        self.read = read

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        save_checkpoint(Path(path), checkpoint)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        return self.read(Path(path))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the trainer's remarks on hardware, workers and optimizers."""
    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning_fabric", "lightning")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"(pytorch_lightning|lightning_fabric)\b")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)

"""The folder of a run of `torchdojo fit`, marked so that only the same fit goes on in it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

import torchdojo
from torchdojo.identification.user_object import full_name
from torchdojo.runs import locked, write_atomically

__all__ = ["RUN", "begin_run"]

RUN = "run.json"


def begin_run(folder: Path, description: dict[str, Any], data: Path, resume: bool) -> None:
    """Mark `folder` for a run, or check that it holds this run.

    Args:
        description: plain values. data: the file of recordings. To resume, it may be elsewhere, with the same contents.

    Raises:
        ValueError: the folder holds a run already, or (to resume) none, a damaged one, or another one. OSError: no such folder can be made.
    """
    path, label = folder / RUN, f"--output {folder}"
    digest = hashlib.sha256(data.read_bytes()).hexdigest()
    # Sums of several threads differ in their last bits.
    run = {"torchdojo": torchdojo.__version__, "threads": torch.get_num_threads(), "data_sha256": digest, "description": description}
    if not resume:
        with locked(folder):
            if path.exists():
                raise ValueError(f"{label} holds a run; give --resume to go on with it, or another folder")
            write_atomically(path, lambda file: file.write((json.dumps(run, indent=2) + "\n").encode()))
        return
    if not path.exists():
        raise ValueError(f"--resume: {label} holds no run; leave --resume out to begin one")
    try:
        before = identity(json.loads(path.read_text()))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"--resume: {path} is damaged ({error}); begin again in another folder") from error
    current = identity(run)
    different = [
        f"{key}: {before.get(key)!r} there, {current.get(key)!r} here"
        for key in {**before, **current}
        if before.get(key) != current.get(key)
    ]
    if different:
        raise ValueError(
            f"--resume: the run in {folder} is one of something else ({'; '.join(different)}); give the same, or another folder"
        )


def identity(run: dict[str, Any]) -> dict[str, Any]:
    """Leaves of a run by their paths, with objects by their full names."""
    return {path: full_name(leaf) if path == "description.object" else leaf for path, leaf in flat(run).items()}


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Leaves of nested mappings and lists by their paths."""
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else None
    if items is None or not values:
        return {prefix: values}
    return {path: leaf for key, value in items for path, leaf in flat(value, f"{prefix}.{key}".lstrip(".")).items()}

"""Files of runs: written whole, and checked before they are used."""

from __future__ import annotations

import functools
import os
import re
import secrets
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch

from torchdojo.runs.versions import versions

__all__ = ["check_arrays", "read_checkpoint", "remove_partial_files", "save_checkpoint", "write_atomically"]

#: End of the private name of a file that is being written.
PARTIAL = re.compile(r"\.[0-9a-f]{16}\.partial$")
#: Largest sum of the arrays of one archive [bytes]. One GiB is 2.7e8 numbers in float32, and takes about two seconds to unpack.
LARGEST = 2**30
#: Largest header of an array [bytes], a hundred times that of a plain one.
HEADER = 10_000


def write_atomically(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write a file so that readers see the old one or the whole new one, whenever this process or the machine dies.

    Each call writes to a name of its own. Two processes that write the same file at once therefore leave one of the two whole files.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with partial.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def remove_partial_files(folder: Path) -> None:
    """Remove files that dead processes left half written, in a folder and the folders inside it. Only the owner of its lock may."""
    for path in (*folder.glob("*.partial"), *folder.glob("*/*.partial")):
        if PARTIAL.search(path.name):
            path.unlink(missing_ok=True)


def save_checkpoint(path: Path, values: Mapping[str, Any]) -> None:
    """Write a checkpoint atomically, with the `versions` of the code that made it."""
    write_atomically(path, functools.partial(torch.save, {**values, "versions": versions()}))


def read_checkpoint(
    path: Path, kind: str, needed: Iterable[tuple[str, ...]], remedy: str = "begin again in another folder"
) -> dict[str, Any]:
    """A checkpoint, after a check of its checksums. `torch.load` ignores them, so one flipped bit would give other weights.

    Args:
        kind: for errors, "a fit". needed: nested keys that every checkpoint of this kind has. remedy: for errors.

    Raises:
        ValueError: a damaged file, or a checkpoint of something else.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
        if broken is not None:
            raise zipfile.BadZipFile(f"wrong checksum of {broken}")
        checkpoint: dict[str, Any] = torch.load(path, weights_only=True)
        for keys in needed:
            functools.reduce(lambda values, key: values[key], keys, checkpoint)
    except Exception as error:  # a damaged pickle can raise almost anything
        raise ValueError(
            f"{path} is damaged, or no checkpoint of {kind} ({type(error).__name__}: {str(error)[:200]}); allowed: a file that this run "
            f"wrote; {remedy}"
        ) from error
    return checkpoint


def check_arrays(archive: Any, names: Iterable[str] | None = None) -> None:
    """Check the sizes of arrays of an open .npz before one of them is read, since a file of a megabyte may unpack to gigabytes.

    Args:
        archive: what `numpy.load` returned. names: of the arrays that will be read; None: all.

    Raises:
        ValueError: no .npz, arrays of Python objects, headers that do not fit the contents, or more than `LARGEST` bytes in all.
    """
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError("it holds one array; allowed: an .npz of named arrays, as numpy.savez writes it")
    total, files = 0, cast(zipfile.ZipFile, archive.zip)
    for name in archive.files if names is None else names:
        member = files.getinfo(name if name in files.namelist() else f"{name}.npy")
        with files.open(member) as file:
            version = np.lib.format.read_magic(file)
            read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read_header(file, max_header_size=HEADER)
            start = file.tell()
        size = dtype.itemsize
        for length in shape:
            size *= length
        if dtype.hasobject:
            raise ValueError(f"{name} holds Python objects, whose reading may run code; allowed: numbers and text")
        if size < 0 or start + size != member.file_size:
            raise ValueError(
                f"the header of {name} says {dtype} {shape}, {size} bytes, and {member.file_size - start} follow; allowed: the same number"
            )
        total += size
        if total > LARGEST:
            limit = f"{LARGEST / 2**30:g} GiB"
            raise ValueError(
                f"its arrays unpack to more than {limit} (up to {name}, {dtype} {shape}: {total / 2**30:.3g} GiB); allowed: {limit}; keep "
                "every k-th sample, or fewer environments"
            )

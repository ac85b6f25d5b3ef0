"""A folder has one writer: a lock that names its holder, and that the system releases when the holder dies."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from torchdojo.parameters import warn_user
from torchdojo.runs.files import remove_partial_files

try:
    import fcntl
except ImportError:  # no flock on this system
    fcntl = None  # type: ignore[assignment]

__all__ = ["LOCK", "locked"]

LOCK = "run.lock"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is made if it does not exist.

    The lock is `flock` on the file run.lock, which says who holds it: process, host, and since when. The system releases the lock of a
    process that dies, and the next holder says whose lock it takes over. Then it removes the files that the dead one left half written.

    Raises:
        ValueError: another process, or another run of this one, holds it. OSError: no such folder can be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = _open(folder)
    if descriptor is None:
        yield
        return
    path = folder / LOCK
    try:
        if before := _read(descriptor):
            warn_user(f"takes over {folder} from {before}, which ended without releasing its lock")
            remove_partial_files(folder)
        since = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}) + "\n"
        os.pwrite(descriptor, text.encode(), 0)
        os.ftruncate(descriptor, len(text.encode()))
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)  # while it is locked, so that nobody else's lock is removed
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough while a forked child has a copy
        os.close(descriptor)


def _open(folder: Path) -> int | None:
    """A locked descriptor of the lock file; None, with a warning, where the system or the file system has no locks."""
    path, reason = folder / LOCK, "this system has no flock"
    while fcntl is not None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _read(descriptor) or "a process that has just begun"
            os.close(descriptor)
            raise ValueError(
                f"{folder} is in use by {holder}; allowed: one process that writes to a folder; wait until it ends, stop it, or give "
                "another folder"
            ) from error
        except OSError as error:
            reason = str(error)
            os.close(descriptor)
            break
        if _is_file(descriptor, path):
            return descriptor
        os.close(descriptor)  # its holder removed the file between the two calls, so this lock is nobody else's
    warn_user(f"{folder} cannot be locked ({reason}); two processes that write to it at once would spoil each other's run")
    return None


def _is_file(descriptor: int, path: Path) -> bool:
    """Whether a descriptor is of the file that has this path now."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _read(descriptor: int) -> str:
    """The holder that a lock file names, in words; empty where it names none."""
    text = os.pread(descriptor, 1000, 0).decode(errors="replace")
    try:
        holder = json.loads(text)
        return f"process {holder['pid']} on {holder['host']} (since {holder['since']})"
    except (ValueError, TypeError, KeyError, RecursionError):
        return f"a process unknown ({text[:80]!r})" if text.strip() else ""

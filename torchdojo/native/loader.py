"""Open a kernel that came with a wheel (`prebuilt`); else compile it on first use, keep it in a cache folder, and open it with ctypes.

    <cache>/<key>/kernel-<sha256>.so   the library; its name is its checksum, so one atomic rename publishes both
    <cache>/<key>/lock                 held (flock) by the process that compiles; the system releases it when that process dies
    <cache>/<key>/build-*              private folder of the process that holds the lock; any other one is garbage

The key covers everything the machine code depends on: the sources, the flags, torch, libc and the CPU, then the compiler. A machine
without a compiler takes a library whose key agrees in all but the compiler, as in a container that inherits the cache of its build.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import shlex
import shutil
import stat
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from torchdojo.native import header, prebuilt
from torchdojo.native.toolchain import (
    CALLS,
    CPU_CHOICES,
    LANGUAGE,
    OPTIMIZED,
    SANITIZED,
    NativeUnavailable,
    chosen_compiler,
    compiler_version,
    cpu_features,
    find_compiler,
    libc,
    require_asan_runtime,
    say,
    settle_flags,
)

try:
    import fcntl
except ImportError:  # no such module on Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["NativeUnavailable", "available", "compiles", "describe", "library"]

SOURCES = Path(__file__).parent / "src"

COMPILE_SECONDS = 60  # for the announcement only
LOCK_SECONDS = 600.0  # longer than any compile; then this process compiles for itself, which is safe without the lock, too
STALE_SECONDS = 86400.0

_lock = threading.Lock()
_outcome: ctypes.CDLL | str | None = None  # the library, or the reason why there is none
_warned = False


def _after_fork() -> None:
    # A fork while another thread compiles would leave the child with a lock that nobody releases.
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def library() -> ctypes.CDLL:
    """The native kernel, compiled now if the cache does not hold it. Success and failure are both remembered for the process.

    Raises:
        NativeUnavailable: there is no kernel here; the message says why and what to do.
    """
    global _outcome
    if _switched_off():
        raise NativeUnavailable("the native kernel is switched off (TORCHDOJO_NATIVE=0); unset TORCHDOJO_NATIVE to use it")
    with _lock:
        if _outcome is None:
            try:
                _outcome = load_kernel(SOURCES)
            except NativeUnavailable as error:
                _outcome = str(error)
        outcome = _outcome
    if isinstance(outcome, str):
        raise NativeUnavailable(outcome)
    return outcome


def available() -> bool:
    """Whether the native kernel can be used; compiles it if need be. The first failure of a process is a warning with the remedy.

    ``TORCHDOJO_NATIVE=0`` in the environment makes this False without a warning.
    """
    global _warned
    try:
        library()
    except NativeUnavailable as error:
        if _switched_off():
            return False
        with _lock:
            warned, _warned = _warned, True
        if not warned:
            warnings.warn(
                f"the native kernel is not available; the pure-torch reference runs instead, which is much slower. {error}\n"
                "(TORCHDOJO_NATIVE=0 silences this.)",
                RuntimeWarning,
                stacklevel=2,
            )
        return False
    return True


# This has the effect of torch.compiler.assume_constant_result, without importing the compiler.
available._dynamo_marked_constant = True  # type: ignore[attr-defined]


def describe() -> str:
    """One line: the kernel that this process uses or would use, its key, and the levels of the CPU. Nothing is compiled."""
    levels = ", ".join(prebuilt.cpu_levels()) or "no level that wheels know"
    try:
        if _switched_off():
            return f"kernel: switched off (TORCHDOJO_NATIVE=0); CPU: {levels}"
        recipe = _read(SOURCES)
        shipped = None if recipe.sanitize else prebuilt.open_prebuilt(recipe.sources)
        if shipped is not None:
            return f"kernel: prebuilt for {shipped[1]}, key {prebuilt.source_key(recipe.sources)}; CPU: {levels}"
        return f"kernel: compiled for this CPU on first use, key {_with_compiler(recipe).key}; CPU: {levels}"
    except (NativeUnavailable, OSError) as error:
        return f"kernel: not available ({error}); CPU: {levels}"


def compiles() -> bool:
    """Whether `library` would compile: there is no prebuilt kernel, and none in the cache.

    Raises:
        NativeUnavailable: no sources, no compiler, or no level of a CPU in $TORCHDOJO_CPU_LEVEL.
    """
    recipe = _read(SOURCES)
    if not recipe.sanitize and prebuilt.open_prebuilt(recipe.sources) is not None:
        return False
    key = _with_compiler(recipe).key
    return all(_open_cached(root / key) is None for root in cache_roots())


def _switched_off() -> bool:
    return os.environ.get("TORCHDOJO_NATIVE") == "0"


# -- sources, and the key of the result


@dataclass(frozen=True)
class Recipe:
    """One compile: its ingredients, and the name of the cache folder that follows from them."""

    source_dir: Path
    sources: dict[str, bytes]  # path relative to `source_dir` -> contents
    flags: tuple[str, ...]
    sanitize: bool
    family: str  # the part of the key that all compilers share
    compiler: str = ""
    key: str = ""


def make_recipe(source_dir: Path) -> Recipe:
    """Read the sources, find the compiler and ask for its version.

    Raises:
        NativeUnavailable: no sources, no compiler, or no AddressSanitizer in the process although the kernel is to use it.
    """
    return _with_compiler(_read(source_dir))


def _read(source_dir: Path) -> Recipe:
    """The recipe before a compiler is found.

    Raises:
        NativeUnavailable: no sources.
    """
    if sys.platform == "win32":
        raise NativeUnavailable("The native kernel needs GCC or Clang and does not build on Windows; use WSL.")
    paths = sorted(path for suffix in ("*.cpp", "*.hpp") for path in source_dir.rglob(suffix))
    sources = {path.relative_to(source_dir).as_posix(): path.read_bytes() for path in paths}
    sources[header.NAME] = header.text().encode()
    if not any(name.endswith(".cpp") for name in sources):
        raise NativeUnavailable(f"The sources of the native kernel are missing: no *.cpp in {source_dir}; reinstall torchdojo.")
    sanitize = os.environ.get("TORCHDOJO_SANITIZE") == "1"
    flags = (*LANGUAGE, *(SANITIZED if sanitize else OPTIMIZED), *chosen_compiler()[2])
    ingredients = {
        "sources": {name: hashlib.sha256(text).hexdigest() for name, text in sources.items()},
        "flags": [flags, CPU_CHOICES, *([CALLS] if sanitize else [])],  # the compiler decides which of the choices is used
        "torch": torch.__version__,
        "libc": libc(),
        "cpu": cpu_features(),
    }
    return Recipe(source_dir, sources, flags, sanitize, _digest(ingredients, 24))


def _digest(ingredients: object, length: int) -> str:
    return hashlib.sha256(json.dumps(ingredients, sort_keys=True).encode()).hexdigest()[:length]


def _with_compiler(recipe: Recipe) -> Recipe:
    compiler, _ = find_compiler()
    key = f"{recipe.family}-{_digest([compiler, compiler_version(compiler)], 8)}"
    if recipe.sanitize:
        require_asan_runtime(compiler)
    return replace(recipe, compiler=compiler, key=key)


# -- cache folders


def cache_roots() -> Iterator[Path]:
    """The cache folder, then the folder that replaces it if it cannot be written."""
    home = os.path.expanduser("~")
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if os.environ.get("TORCHDOJO_CACHE"):
        yield Path(os.environ["TORCHDOJO_CACHE"]).expanduser().absolute()
    elif os.path.isabs(xdg):  # the XDG specification ignores relative paths
        yield Path(xdg) / "torchdojo"
    elif os.path.isabs(home):
        yield Path(home) / ".cache" / "torchdojo"
    yield _temporary_root()


def _temporary_root() -> Path:
    """A folder of this user below the system's temporary one. Another user may own a folder of that name, so the owner is checked."""
    path = Path(tempfile.gettempdir()) / f"torchdojo-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022:
        return path
    return Path(tempfile.mkdtemp(prefix="torchdojo-"))


def load_kernel(source_dir: Path) -> ctypes.CDLL:
    """The library built from the sources in a folder: prebuilt, else from the cache, else compiled now.

    Raises:
        NativeUnavailable: the library cannot be built or opened; the message says why and what to do.
    """
    try:
        recipe = _read(source_dir)
    except OSError as error:
        raise NativeUnavailable(f"The sources of the native kernel cannot be read: {error}") from error
    if not recipe.sanitize:
        shipped = prebuilt.open_prebuilt(recipe.sources)
        if shipped is not None:
            return shipped[0]
    try:
        recipe = _with_compiler(recipe)
    except NativeUnavailable as error:
        kernel = None if recipe.sanitize else _open_family(recipe.family)  # a sanitized library ends a process without the runtime
        if kernel is None:
            raise NativeUnavailable(f"{error} {prebuilt.unusable_levels(recipe.sources)}".strip()) from error
        return kernel
    unusable: list[str] = []
    try:
        for root in cache_roots():
            try:
                return _open_cached(root / recipe.key) or _build(root / recipe.key, recipe, unusable)
            except OSError as error:
                unusable.append(f"cannot write the cache folder {root} ({error})")
    except OSError as error:  # not even a temporary folder
        unusable.append(str(error))
    raise NativeUnavailable(
        f"No folder to compile the native kernel in: {'; '.join(unusable)}. Set TORCHDOJO_CACHE to a folder that can be written."
    )


def _open_cached(folder: Path) -> ctypes.CDLL | None:
    """The library in a cache folder. None where there is none that is intact and opens."""
    with contextlib.suppress(OSError):
        for path in sorted(folder.glob("kernel-*.so")):
            if path.stem == f"kernel-{_checksum(path)}":
                return ctypes.CDLL(str(path))
    return None


def _open_family(family: str) -> ctypes.CDLL | None:
    """The first library in the cache that some compiler has made of the same ingredients, or None."""
    with contextlib.suppress(OSError):
        for root in cache_roots():
            for folder in sorted(root.glob(f"{family}-*")):
                kernel = _open_cached(folder)
                if kernel is not None:
                    return kernel
    return None


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _build(folder: Path, recipe: Recipe, notes: list[str]) -> ctypes.CDLL:
    """Compile into a private folder, publish the library by a rename, and open it.

    Raises:
        OSError: the cache folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _compile_lock(folder) as locked:
        kernel = _open_cached(folder)  # another process may have been faster
        if kernel is not None:
            return kernel
        _sweep(folder, locked)
        private = Path(tempfile.mkdtemp(prefix="build-" if locked else "unlocked-", dir=folder))
        try:
            for note in notes:
                say(f"{note}; using {folder.parent} instead. TORCHDOJO_CACHE chooses another.")
            built = _compile(private, recipe)
            published = folder / f"kernel-{_checksum(built)}.so"
            os.replace(built, published)
        finally:
            shutil.rmtree(private, ignore_errors=True)
        try:
            return ctypes.CDLL(str(published))
        except OSError as error:
            raise _cannot_open(error, folder) from error


def _sweep(folder: Path, locked: bool) -> None:
    """Remove damaged files and the remains of interrupted compiles."""
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if path.name.startswith("unlocked-"):  # its owner holds no lock, so only its age tells
                garbage = time.time() - path.stat().st_mtime > STALE_SECONDS
            else:
                garbage = locked and path.name.startswith(("build-", "kernel-"))
            if garbage and path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif garbage:
                path.unlink()


@contextlib.contextmanager
def _compile_lock(folder: Path) -> Iterator[bool]:
    """Wait until no other process compiles in the folder. Without a lock it yields False, which costs a second compile only."""
    if fcntl is None:
        yield False
        return
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)  # never inherited by the compiler, so it dies with us
    try:
        yield _acquire(descriptor)
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough while a forked child has a copy
        os.close(descriptor)


def _acquire(descriptor: int) -> bool:
    started = time.monotonic()
    announced = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            waited = time.monotonic() - started
        except OSError:  # a file system without locks
            return False
        if waited > LOCK_SECONDS:
            return False
        if waited > 1 and not announced:
            announced = True
            say("waiting for another process that compiles the native kernel ...")
        time.sleep(0.05)


# -- the compile


def _compile(private: Path, recipe: Recipe) -> Path:
    """Compile in an empty folder, and return the library there, which torch has already opened once."""
    path = _build_path()
    if shutil.which("ninja", path=path) is None:
        raise NativeUnavailable('The build tool ninja is missing: pip install "torchdojo[native]"')
    say(f"compiling the native kernel for this CPU, once (about {COMPILE_SECONDS} s) ...")
    # The contents that the key covers are compiled, even if files change meanwhile. Messages and debuggers name the files by #line.
    sources = private / "src"
    for name, text in recipe.sources.items():
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        (sources / name).write_bytes(f"#line 1 {json.dumps(str(recipe.source_dir / name), ensure_ascii=False)}\n".encode() + text)
    compile_flags, link_flags = settle_flags(private, recipe.compiler, recipe.flags, recipe.sanitize)
    # torch names its own libraries to the linker; the kernel uses none of them, and `--as-needed` leaves them out.
    link_flags = (["-Wl,--as-needed"] if sys.platform == "linux" else []) + link_flags
    environment = {"PATH": path, "CXX": recipe.compiler, "LC_ALL": "C", "LD_PRELOAD": None, "TORCH_DONT_CHECK_COMPILER_ABI": "1"}
    try:
        from torch.utils import cpp_extension  # takes a second, so not at the top

        with _environment(environment):
            cpp_extension.load(
                name="torchdojo_kernel",
                sources=[str(sources / name) for name in recipe.sources if name.endswith(".cpp")],
                extra_cflags=[shlex.quote(flag) for flag in compile_flags],
                extra_ldflags=link_flags,
                extra_include_paths=[str(sources)],
                build_directory=str(private),
                is_python_module=False,
            )
    except OSError as error:
        if error.errno is not None:  # the folder, not the library
            raise
        raise _cannot_open(error, private.parent) from error
    except ImportError as error:
        raise NativeUnavailable(f"torch.utils.cpp_extension does not import: {error}. pip install setuptools") from error
    except Exception as error:
        output = _shorten(str(error))
        raise NativeUnavailable(
            f"Compiling the native kernel with {recipe.compiler} failed; try another compiler (set CXX) or report this:\n{output}"
        ) from error
    built = next(private.glob("*.so"), None)
    if built is None:
        raise NativeUnavailable(f"torch {torch.__version__} left no library named *.so in its build folder; report this.")
    return built


def _build_path() -> str:
    """The PATH with ninja, which lies beside the interpreter of a virtual environment that need not be active."""
    folders = [os.path.dirname(sys.executable)] if sys.executable else []
    with contextlib.suppress(ImportError, AttributeError):
        import ninja

        folders.append(ninja.BIN_DIR)
    return os.pathsep.join([*folders, os.environ.get("PATH", os.defpath)])


@contextlib.contextmanager
def _environment(values: dict[str, str | None]) -> Iterator[None]:
    """Set environment variables for a while, or remove those with None."""
    before = {name: os.environ.get(name) for name in values}
    try:
        _set_environment(values)
        yield
    finally:
        _set_environment(before)


def _set_environment(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _cannot_open(error: OSError, folder: Path) -> NativeUnavailable:
    return NativeUnavailable(
        f"The native kernel was compiled but cannot be opened: {error.__cause__ or error}. "
        f"If programs may not run from {folder} (a noexec mount), set TORCHDOJO_CACHE to another folder; "
        "otherwise try another compiler (set CXX)."
    )


def _shorten(output: str, lines: int = 30, width: int = 300) -> str:
    """The end of a compiler's output, after the first errors of the omitted part."""
    every = [line if len(line) <= width else line[:width] + " ..." for line in output.splitlines() if line.strip()]
    head = [line for line in every[:-lines] if "error:" in line][:5]
    return "\n".join([*head, *(["..."] if head else []), *every[-lines:]])

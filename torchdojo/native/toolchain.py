"""The compiler of the native kernel, its flags, and the features that tell this machine from another."""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = [
    "CALLS",
    "CPU_CHOICES",
    "LANGUAGE",
    "OPTIMIZED",
    "SANITIZED",
    "NativeUnavailable",
    "chosen_compiler",
    "compiler_version",
    "cpu_features",
    "find_compiler",
    "libc",
    "require_asan_runtime",
    "say",
    "settle_flags",
]

LANGUAGE = ("-std=c++17", "-fno-math-errno", "-fno-trapping-math", "-pthread")
OPTIMIZED = ("-O3",)
# -g1 has the lines of a report; with -g, GCC follows each variable through the large functions, which takes minutes.
SANITIZED = ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer")
# GCC checks accesses by calls in place of inlined code: it compiles one of three large files in 90 s of processor time in place of 150 s.
CALLS = "--param=asan-instrumentation-with-call-threshold=0"

# Ways to ask for the same thing, best first, each as (compiler flags, linker flags). The first way that the compiler takes is used.
# Compilers take copies in registers of 512 bits for expensive, and copy in two halves. A later read of the whole then waits for both.
CPU_CHOICES = (
    (("-march=native", "-mmove-max=512", "-mstore-max=512"), ()),
    (("-march=native",), ()),
    (("-mcpu=native",), ()),
    ((), ()),
)


class NativeUnavailable(RuntimeError):  # noqa: N818 (it reads as a state, and users catch it by this name)
    """The native kernel cannot be used here. The message says what failed and how to mend it."""


def chosen_compiler() -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """$CXX, names of compilers in the order of choice, and the flags given with $CXX."""
    chosen = os.environ.get("CXX", "").strip()
    try:
        words = [chosen] if shutil.which(chosen) else shlex.split(chosen)  # a path with a space, or `ccache g++ -m64`
    except ValueError:  # an open quotation mark
        words = [chosen]
    if len(words) > 1 and os.path.basename(words[0]) in ("ccache", "sccache"):
        del words[0]  # torch puts it in front by itself
    return chosen, tuple(words[:1]) or ("c++", "g++", "clang++"), tuple(words[1:])


def find_compiler() -> tuple[str, tuple[str, ...]]:
    """(absolute path of the C++ compiler, flags given with it): $CXX, else the first of c++, g++ and clang++ on the PATH."""
    chosen, names, flags = chosen_compiler()
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return os.path.abspath(path), flags
    missing = f"CXX={chosen} is not a program" if chosen else "there is no c++, g++ or clang++ on the PATH"
    raise NativeUnavailable(f"No C++ compiler: {missing}. Install g++ or clang++, or set CXX to the path of one.")


def compiler_version(compiler: str) -> str:
    """Everything that ``compiler --version`` prints."""
    try:
        return _run_compiler([compiler, "--version"], check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise NativeUnavailable(f"The C++ compiler {compiler} does not run: {error}. Install g++ or clang++, or set CXX.") from error


def _run_compiler(command: list[str], check: bool = False) -> subprocess.CompletedProcess[str]:
    # LD_PRELOAD may hold the AddressSanitizer for this process. The compiler must not load it.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"} | {"LC_ALL": "C"}
    return subprocess.run(
        command, env=environment, text=True, errors="replace", stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=check
    )


def cpu_features() -> list[str]:
    """Features that tell this CPU from another. Unlike machines that share a home must never run each other's code."""
    x86 = {"vendor_id", "cpu family", "model", "model name", "stepping", "flags"}
    others = {"Features", "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "isa"}
    features = [platform.machine()]
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if not line.strip() and len(features) > 1:
                    break  # the first processor is enough, and reading all of 256 takes milliseconds
                if name.strip() in x86 | others:
                    features.append(f"{name.strip()}: {' '.join(sorted(value.split()))}")
    except OSError:
        pass
    return features if len(features) > 1 else [*features, platform.processor(), platform.platform()]


def libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, OSError, ValueError):
        return ""


def require_asan_runtime(compiler: str) -> None:
    # Opening a library with AddressSanitizer in a process without its runtime ends the process on the spot.
    if not hasattr(ctypes.CDLL(None), "__asan_init"):
        raise NativeUnavailable(
            "TORCHDOJO_SANITIZE=1: the runtime of the AddressSanitizer is not in this process. Start python with\n"
            f'  LD_PRELOAD="$({compiler} -print-file-name=libasan.so) $({compiler} -print-file-name=libstdc++.so)" '
            "ASAN_OPTIONS=detect_leaks=0"
        )


def settle_flags(folder: Path, compiler: str, flags: Sequence[str], sanitize: bool) -> tuple[list[str], list[str]]:
    """(compiler flags, linker flags): the given flags and the best choices that this compiler takes. Probes are compiled in `folder`."""
    compile_flags, link_flags = list(flags), list(SANITIZED[2:3]) if sanitize else []
    if sanitize and "clang" in compiler_version(compiler):
        link_flags.append("-shared-libasan")  # the default of GCC
    elif sanitize:
        compile_flags.append(CALLS)
    for compile_choice, link_choice in CPU_CHOICES:
        if not (compile_choice or link_choice):
            say(f"{compiler} does not take {' '.join(CPU_CHOICES[0][0])}: the kernel is built without, and is slower")
        elif not _compiles(folder, [compiler, *compile_flags, *compile_choice], "int probe() { return 0; }", [*link_flags, *link_choice]):
            continue
        compile_flags += compile_choice
        link_flags += link_choice
        break
    return compile_flags, link_flags


def _compiles(folder: Path, command: list[str], text: str, link_flags: list[str]) -> bool:
    source, target = folder / "probe.cpp", folder / "probe.out"
    source.write_text(text + "\n")
    try:
        done = _run_compiler([*command, "-fPIC", "-shared", str(source), "-o", str(target), *link_flags])
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def say(message: str) -> None:
    print(f"torchdojo: {message}", file=sys.stderr, flush=True)

"""Kernels that come with a wheel, one per level of the CPU, and the choice between them.

    native/lib/kernel-<level>-<key>-<sha256>.so

The key follows from the sources and the generated header, so a library of other sources is never opened. The checksum finds damage.
Libraries are opened where pip has put them: nothing is unpacked or written. A checkout has no such folder, and compiles.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

from torchdojo.native.toolchain import NativeUnavailable, cpu_features, say

__all__ = ["FOLDER", "LEVELS", "chosen_level", "cpu_levels", "library_name", "open_prebuilt", "source_key", "unusable_levels"]

FOLDER = Path(__file__).parent / "lib"
VARIABLE = "TORCHDOJO_CPU_LEVEL"

_V2 = frozenset(["cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"])
_V3 = _V2 | frozenset(["abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"])
_V4 = _V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])
#: level -> the machine, and the features that it needs, as Linux spells them; best first
LEVELS: dict[str, tuple[str, frozenset[str]]] = {
    "v4": ("x86_64", _V4),
    "v3": ("x86_64", _V3),
    "v2": ("x86_64", _V2),
    "neon": ("aarch64", frozenset(["asimd"])),
}


def cpu_levels() -> tuple[str, ...]:
    """The levels that this CPU has, best first; none where the system is not Linux, or the machine another one."""
    if sys.platform != "linux":
        return ()
    features = {name for line in cpu_features() if line.startswith(("flags:", "Features:")) for name in line.split()[1:]}
    return tuple(level for level, (machine, needed) in LEVELS.items() if machine == platform.machine() and needed <= features)


def chosen_level() -> str:
    """$TORCHDOJO_CPU_LEVEL: "" (the best level), "native" (compile for this CPU), or a level.

    Raises:
        NativeUnavailable: the variable has another value.
    """
    chosen = os.environ.get(VARIABLE, "")
    if chosen not in ("", "native", *LEVELS):
        raise NativeUnavailable(f"{VARIABLE} is {chosen!r}; allowed are native, {', '.join(LEVELS)}; unset it for the best level.")
    return chosen


def source_key(sources: Mapping[str, bytes]) -> str:
    """The key of a prebuilt library: what its machine code and its layout follow from."""
    digests = {name: hashlib.sha256(text).hexdigest() for name, text in sources.items()}
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()[:24]


def library_name(level: str, key: str, contents: bytes) -> str:
    return f"kernel-{level}-{key}-{hashlib.sha256(contents).hexdigest()}.so"


def open_prebuilt(sources: Mapping[str, bytes]) -> tuple[ctypes.CDLL, str] | None:
    """The best prebuilt library of these sources that the CPU can run, and its level; None where there is none.

    A damaged library is named on stderr, and the next level is tried.

    Raises:
        NativeUnavailable: $TORCHDOJO_CPU_LEVEL is no level, one that this CPU does not have, or one without an intact library.
    """
    chosen = chosen_level()
    if chosen == "native":
        return None
    levels = cpu_levels()
    if chosen and chosen not in levels:
        has = ", ".join(levels) or "none"
        raise NativeUnavailable(f"{VARIABLE} is {chosen}, which this CPU does not have; it has: {has}. Choose one, native, or unset it.")
    key = source_key(sources)
    for level in [chosen] if chosen else levels:
        for path in sorted(FOLDER.glob(f"kernel-{level}-{key}-*.so")):
            try:
                if path.name != library_name(level, key, path.read_bytes()):
                    raise OSError("its checksum differs from its name")
                return ctypes.CDLL(str(path)), level
            except OSError as error:
                say(f"the prebuilt kernel {path} cannot be used ({error}); to mend it: pip install --force-reinstall torchdojo")
    if chosen:
        raise NativeUnavailable(f"{VARIABLE} is {chosen}, but {FOLDER} has no usable kernel of it; install a wheel, or unset it.")
    return None


def unusable_levels(sources: Mapping[str, bytes]) -> str:
    """A sentence on the prebuilt libraries of these sources, none of which can be used here; "" where none came along."""
    paths = FOLDER.glob(f"kernel-*-{source_key(sources)}-*.so")
    levels = ", ".join(sorted({path.name.split("-")[1] for path in paths}))
    return f"Prebuilt kernels are there for {levels}; this CPU has: {', '.join(cpu_levels()) or 'none of the levels'}." if levels else ""

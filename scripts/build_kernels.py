"""Compile the kernel for levels of CPUs into torchdojo/native/lib, whence a wheel takes it (scripts/build_wheels.sh).

    python scripts/build_kernels.py v2 v3 v4    # of x86-64
    python scripts/build_kernels.py neon        # of aarch64, from any machine

It needs `pip install ziglang`: clang with the headers and symbols of old systems, so libraries need no more than glibc 2.28 (2018).
Objects and libraries stay in build/kernels (or $KERNELS) under a key of sources, compiler and flags, so a stopped build goes on.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torchdojo.native import loader, prebuilt
from torchdojo.native.toolchain import LANGUAGE, OPTIMIZED

GLIBC = "2.28"
KERNELS = Path(os.environ.get("KERNELS") or Path(__file__).parents[1] / "build" / "kernels").absolute()
# Clang fuses products and sums within a statement; GCC fuses them across statements, as here.
FLAGS = [*LANGUAGE, *OPTIMIZED, "-ffp-contract=fast", "-DNDEBUG", "-fPIC", "-fvisibility=default"]
# Only the functions of calls.py are exported: names of the others are 0.2 MB of a wheel.
EXPORTS = "{ global: td_*; local: *; };\n"
LINKED = ["-shared", "-s", "-pthread", "-Wl,--version-script=exports.map"]
TARGETS = {
    "v2": ("x86_64", ["-mcpu=x86_64_v2"]),
    "v3": ("x86_64", ["-mcpu=x86_64_v3"]),
    "v4": ("x86_64", ["-mcpu=x86_64_v4", "-mprefer-vector-width=512"]),
    "neon": ("aarch64", []),
}
# Clang inlines less than GCC, which costs steps in four lanes a twentieth. Only compiling takes -mllvm. Each costs a wheel 0.1 MB.
# Three levels fill the 8 MB of a wheel. CPUs without AVX2, from before 2013, run small code: 0.4 MB less.
SMALL = ["-Os"]
INLINED = {
    "v2": {"abi/worker_many.cpp": SMALL, "abi/worker_one.cpp": SMALL},
    "v3": {"abi/worker_many.cpp": ["-mllvm", "-inline-threshold=1000"]},
    "v4": {"abi/worker_narrow.cpp": ["-fno-slp-vectorize", "-mllvm", "-inline-threshold=2500"]},
}


def build(level: str) -> Path:
    """Compile a level unless that is done, and copy its library to where wheels take it."""
    machine, cpu = TARGETS[level]
    inlined = INLINED.get(level, {})
    target = ["-target", f"{machine}-linux-gnu.{GLIBC}"]
    sources = loader._read(loader.SOURCES).sources
    key = prebuilt.source_key(sources)
    recipe = json.dumps([key, [*target, *cpu], FLAGS, inlined, LINKED, EXPORTS, importlib.metadata.version("ziglang")])
    folder = KERNELS / f"{level}-{hashlib.sha256(recipe.encode()).hexdigest()[:24]}"
    library = folder / "kernel.so"
    if not library.exists():
        compile_and_link([sys.executable, "-m", "ziglang", "c++", *target], cpu, inlined, sources, library)
    contents = library.read_bytes()
    prebuilt.FOLDER.mkdir(exist_ok=True)
    for old in prebuilt.FOLDER.glob(f"kernel-{level}-*.so"):
        old.unlink()
    path = prebuilt.FOLDER / prebuilt.library_name(level, key, contents)
    path.write_bytes(contents)
    return path


def compile_and_link(compiler: list[str], cpu: list[str], inlined: dict[str, list[str]], sources: dict[str, bytes], library: Path) -> None:
    folder = library.parent
    for name, text in sources.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text)
    (folder / "exports.map").write_text(EXPORTS)

    def run(arguments: list[str], result: str) -> str:
        if not (folder / result).exists():
            subprocess.run([*compiler, *arguments, "-o", f"{result}.part"], cwd=folder, check=True)
            (folder / f"{result}.part").rename(folder / result)
        return result

    # Four lanes are wider than the registers of v2, in all units alike: hence -Wno-psabi.
    units = sorted(name for name in sources if name.endswith(".cpp"))
    with ThreadPoolExecutor(2) as both:  # three of these files take nearly all the time
        flags = {name: [*cpu, *FLAGS, *inlined.get(name, []), "-Wno-psabi"] for name in units}
        objects = list(both.map(lambda name: run([*flags[name], "-I.", "-c", name], f"{name}.o"), units))
    # Linking compiles libc++ for the target, which takes a minute. Without `cpu` it is the same for all levels, and zig keeps it.
    run([*LINKED, *objects], library.name)


if __name__ == "__main__":
    levels = sys.argv[1:] or ["v2", "v3", "v4"]
    if unknown := [level for level in levels if level not in TARGETS]:
        sys.exit(f"got {', '.join(unknown)}; allowed: {', '.join(TARGETS)}")
    for level in levels:
        started = time.monotonic()
        built = build(level)
        print(f"{built.name}: {built.stat().st_size / 1e6:.1f} MB in {time.monotonic() - started:.0f} s", flush=True)

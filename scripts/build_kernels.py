"""Compile the kernel for levels of CPUs into torchdojo/native/lib, whence a wheel takes it (scripts/build_wheels.sh).

    python scripts/build_kernels.py v2 v3 v4    # of x86-64
    python scripts/build_kernels.py neon        # of aarch64, from any machine

It needs `pip install ziglang`: clang with the headers and symbols of old systems, so libraries need no more than glibc 2.28 (2018).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torchdojo.native import loader, prebuilt
from torchdojo.native.toolchain import LANGUAGE, OPTIMIZED

GLIBC = "2.28"
TARGETS = {
    "v2": ("x86_64", ["-mcpu=x86_64_v2"]),
    "v3": ("x86_64", ["-mcpu=x86_64_v3"]),
    "v4": ("x86_64", ["-mcpu=x86_64_v4", "-mprefer-vector-width=512"]),
    "neon": ("aarch64", []),
}


def build(level: str) -> Path:
    machine, cpu = TARGETS[level]
    sources = loader._read(loader.SOURCES).sources
    compiler = [sys.executable, "-m", "ziglang", "c++", "-target", f"{machine}-linux-gnu.{GLIBC}", *cpu]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, text in sources.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(text)

        def compile_one(path: str) -> str:
            flags = [*LANGUAGE, *OPTIMIZED, "-DNDEBUG", "-fPIC", "-fvisibility=default", f"-I{folder}"]
            subprocess.run([*compiler, *flags, "-c", path, "-o", f"{path}.o"], cwd=folder, check=True)
            return f"{path}.o"

        with ThreadPoolExecutor(2) as both:  # two of these files take nearly all the time
            objects = list(both.map(compile_one, sorted(path for path in sources if path.endswith(".cpp"))))
        subprocess.run([*compiler, "-shared", "-s", "-pthread", *objects, "-o", "kernel.so"], cwd=folder, check=True)
        contents = (folder / "kernel.so").read_bytes()
    prebuilt.FOLDER.mkdir(exist_ok=True)
    for old in prebuilt.FOLDER.glob(f"kernel-{level}-*.so"):
        old.unlink()
    path = prebuilt.FOLDER / prebuilt.library_name(level, prebuilt.source_key(sources), contents)
    path.write_bytes(contents)
    return path


if __name__ == "__main__":
    levels = sys.argv[1:] or ["v2", "v3", "v4"]
    if unknown := [level for level in levels if level not in TARGETS]:
        sys.exit(f"got {', '.join(unknown)}; allowed: {', '.join(TARGETS)}")
    for level in levels:
        started = time.monotonic()
        built = build(level)
        print(f"{built.name}: {built.stat().st_size / 1e6:.1f} MB in {time.monotonic() - started:.0f} s", flush=True)

"""Compile the kernel for levels of x86-64 into torchdojo/native/lib, whence a wheel takes it (scripts/build_wheels.sh).

python scripts/build_kernels.py v2 v3 v4    # $CXX chooses the compiler; one process, minutes per level
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from torchdojo.native import loader, prebuilt
from torchdojo.native.toolchain import LANGUAGE, OPTIMIZED, chosen_compiler, find_compiler


def build(level: str) -> Path:
    sources = loader._read(loader.SOURCES).sources
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, text in sources.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(text)
        flags = [*LANGUAGE, *OPTIMIZED, *chosen_compiler()[2], f"-march=x86-64-{level}", "-fPIC", "-shared", "-s"]
        static = ["-static-libstdc++", "-static-libgcc"]  # libraries of the machine that runs it may be older
        files = sorted(path for path in sources if path.endswith(".cpp"))
        command = [find_compiler()[0], *flags, *static, f"-I{folder}", *files, "-o", "kernel.so"]
        subprocess.run(command, cwd=folder, check=True)
        contents = (folder / "kernel.so").read_bytes()
    prebuilt.FOLDER.mkdir(exist_ok=True)
    for old in prebuilt.FOLDER.glob(f"kernel-{level}-*.so"):
        old.unlink()
    path = prebuilt.FOLDER / prebuilt.library_name(level, prebuilt.source_key(sources), contents)
    path.write_bytes(contents)
    return path


if __name__ == "__main__":
    for level in sys.argv[1:] or list(prebuilt.LEVELS):
        started = time.monotonic()
        built = build(level)
        print(f"{built.name}: {built.stat().st_size / 1e6:.1f} MB in {time.monotonic() - started:.0f} s", flush=True)

"""Take steps and gradients with a kernel for aarch64 in an emulator, and compare them with those of this machine's kernel.

    python scripts/run_neon.py torchdojo/native/lib/kernel-neon-*.so    # or a wheel that has one

It needs `pip install ziglang`, and `apt-get install qemu-user libc6-arm64-cross` (or $QEMU, a command that runs aarch64 programs). Calls on
this machine are recorded with their arguments, and a small C++ program makes them again there, without Python. So the libraries, their
ABI and their arithmetic are run; PyTorch for aarch64, the loader's choice and the speed are not.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchdojo as td
from torchdojo.native import calls, header, program

QEMU = os.environ.get("QEMU", "qemu-aarch64 -L /usr/aarch64-linux-gnu")
MODELS = ("pendulum", "half_cheetah", "quadruped")
BATCH, STEPS = 4, 10

MAIN = """
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include "torchdojo_tables.hpp"
using namespace torchdojo;
static void *kernel;
template <typename F> F *function(const char *name) {
    void *found = dlsym(kernel, name);
    if (!found) { std::fprintf(stderr, "no %s in the kernel\\n", name); std::exit(2); }
    return reinterpret_cast<F *>(found);
}
#define WORD(x) reinterpret_cast<uint64_t>(x)
"""


def words(memory: bytes) -> str:
    return ", ".join(f"{word:#x}u" for word in np.frombuffer(memory + bytes(-len(memory) % 8), np.uint64).tolist())


class Recorder:
    """The text of a program that makes the calls of this process again, and what they have written here."""

    def __init__(self, lowered: program.Program) -> None:
        self.program = lowered
        self.declarations: list[str] = []
        self.statements: list[str] = []
        self.expected: list[tuple[str, np.ndarray]] = []
        self.sizes: dict[str, int] = {}  # of arrays, in numbers
        self._library = program.kernel_library()
        self._real: dict[str, Any] = {}

    def __enter__(self) -> Recorder:
        for name in ("td_mechanism_create", "td_rollout", "td_rollout_adjoint"):
            self._real[name] = getattr(self._library, name)
            setattr(self._library, name, getattr(self, name))
        return self

    def __exit__(self, *_: object) -> None:
        for name, real in self._real.items():
            setattr(self._library, name, real)

    def array(self, address: int, size: int, kind: str = "uint64_t") -> str:
        name = f"array{len(self.declarations)}"
        memory = ctypes.string_at(address, size * (4 if kind == "int32_t" else 8))
        self.declarations.append(f"alignas(64) static uint64_t {name}[] = {{{words(memory)}}};")
        return name

    def structure(self, value: ctypes.Structure) -> tuple[str, dict[str, str]]:
        """The name of a structure in the program, and those of its arrays."""
        fields, arrays = [], {}
        for field, kind in calls.STRUCTS[f"Td{type(value).__name__.removeprefix('Td')}"].items():
            number = getattr(value, field)
            if not kind.endswith("*"):
                fields.append(words(bytes(ctypes.c_double(number) if kind == "double" else ctypes.c_int64(number))))
            elif number:
                arrays[field] = self.array(number, self.sizes[field])
                fields.append(f"WORD({arrays[field]})")
            else:
                fields.append("0")
        name = f"array{len(self.declarations)}"
        self.declarations.append(f"static uint64_t {name}[] = {{{', '.join(fields)}}};")
        return name, arrays

    def td_mechanism_create(self, layout: int, table: int, size: int, schedule: int, length: int, expected: int) -> int:
        handle = int(self._real["td_mechanism_create"](layout, table, size, schedule, length, expected) or 0)
        both = [
            f"reinterpret_cast<const int32_t *>({self.array(*part, 'int32_t')}), {part[1]}" for part in ((table, size), (schedule, length))
        ]
        self.statements.append(
            f"void *mechanism{handle} = "
            f'function<decltype(td_mechanism_create)>("td_mechanism_create")({layout}u, {both[0]}, {both[1]}, wanted);'
        )
        self.statements.append(f"if (!mechanism{handle}) return 3;")
        return handle

    def _call(self, name: str, handle: int, *arguments: Any, written: dict[str, str]) -> None:
        structures = [argument._obj for argument in arguments]
        given = [self.structure(value) for value in structures]
        self._real[name](handle, *arguments)
        cast = [
            f"reinterpret_cast<const Td{type(value).__name__.removeprefix('Td')} *>({text})"
            for value, (text, _) in zip(structures, given, strict=True)
        ]
        self.statements.append(f'function<decltype({name})>("{name}")(mechanism{handle}, {", ".join(cast)});')
        for field, kind in written.items():
            array = given[-1][1].get(field)
            if array is None:
                continue
            size = self.sizes[field]
            memory = ctypes.string_at(getattr(structures[-1], field), 8 * size)
            self.expected.append((field, np.frombuffer(memory, kind)))
            self.statements.append(f"std::fwrite({array}, 8, {size}, stdout);")

    def td_rollout(self, handle: int, options: Any, rollout: Any) -> None:
        r, p = rollout._obj, self.program
        n, periods, stored = r.environments, r.steps // r.repeat, r.steps // r.every
        width = 13 * p.num_bodies
        self.sizes.update(
            parameters=p.num_parameters * (n if r.parameter_stride else 1), z0=n * width, u=n * periods * p.num_inputs,
            wrench=6 * n * p.num_bodies, warm=n * p.num_unknowns, grad_kappa=n, z=(n - 1) * r.z_stride + stored * width,
            impulses=n * periods * p.num_impulses, w=n * r.w_steps * p.num_unknowns,
            status=n * stored, iterations=n * stored, substeps=n * stored,
        )  # fmt: skip
        self._call("td_rollout", handle, options, rollout, written={"z": "f8", "impulses": "f8", "status": "i8", "iterations": "i8"})

    def td_rollout_adjoint(self, handle: int, options: Any, rollout: Any, gradient: Any) -> None:
        r, g, p = rollout._obj, gradient._obj, self.program
        n, width = r.environments, 13 * p.num_bodies
        self.sizes.update(
            grad_z=(n - 1) * g.grad_z_stride + r.steps * width, grad_impulses=self.sizes["impulses"], grad_z0=n * width,
            grad_u=n * r.steps * p.num_inputs, grad_wrench=self.sizes["wrench"], grad_parameters=self.sizes["parameters"],
        )  # fmt: skip
        self._call(
            "td_rollout_adjoint", handle, options, rollout, gradient, written={"grad_z0": "f8", "grad_u": "f8", "grad_parameters": "f8"}
        )


def record(model: str) -> Recorder:
    """A rollout from rest under drawn inputs, and its gradients."""
    torch.manual_seed(0)
    mech = getattr(td.models, model)()
    mech.options = td.SolverOptions(backend="native")
    z = td.models.initial_state(model, mech, (BATCH,)).detach().requires_grad_()
    u = (0.1 * torch.randn(BATCH, STEPS, mech.num_inputs, dtype=z.dtype)).requires_grad_()
    for parameter in mech.parameters():
        parameter.requires_grad_()
    lowered = mech.backends.program
    assert lowered is not None
    recorder = Recorder(lowered)
    with recorder:
        mech.rollout(z, u).z[..., -1, :].square().sum().backward()
    return recorder


def run(recorder: Recorder, kernel: Path, folder: Path) -> list[np.ndarray]:
    """The output of the calls in the emulator."""
    text = [MAIN, *recorder.declarations, "int main(int, char **words) {", "kernel = dlopen(words[1], RTLD_NOW);"]
    text += [
        'if (!kernel) { std::fprintf(stderr, "%s\\n", dlerror()); return 1; }',
        "uint64_t wanted[3];",
        *recorder.statements,
        "return 0;",
        "}",
    ]
    (folder / "main.cpp").write_text("\n".join(text))
    (folder / header.NAME).write_text(header.text())
    compiler = [sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-gnu.2.28", "-std=c++17", "-O1"]
    subprocess.run([*compiler, "main.cpp", "-ldl", "-o", "main"], cwd=folder, check=True)
    output = subprocess.run([*shlex.split(QEMU), str(folder / "main"), str(kernel)], check=True, stdout=subprocess.PIPE).stdout
    results, place = [], 0
    for _, wanted in recorder.expected:
        results.append(np.frombuffer(output[place : place + wanted.nbytes], wanted.dtype))
        place += wanted.nbytes
    assert place == len(output)
    return results


def main(path: Path) -> int:
    torch.set_num_threads(1)
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as wheel:
                (inside,) = (entry for entry in wheel.namelist() if "/kernel-neon-" in entry)
                path = Path(wheel.extract(inside, folder))
        for model in MODELS:
            recorder = record(model)
            for (field, wanted), found in zip(recorder.expected, run(recorder, path.absolute(), folder), strict=True):
                difference = float(np.abs(found - wanted).max() / max(1.0, float(np.abs(wanted).max()))) if wanted.size else 0.0
                wrong += not difference < 1e-8
                print(f"{model} {field}: {wanted.size} numbers, largest difference {difference:.1e} of the largest number")
    return wrong


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(bool(main(Path(sys.argv[1]))))

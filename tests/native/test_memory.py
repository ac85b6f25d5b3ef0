"""Memory of the kernel: a step allocates nothing, and long batched rollouts with gradients stay small."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from torchdojo.native.toolchain import LANGUAGE

# Preloaded into a process, it takes the place of operator new, and counts the calls from the kernel alone, which it tells by their address.
COUNTING = """
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>
static std::atomic<long> allocations{0};
static char *first = nullptr, *last = nullptr;
static void *counted(std::size_t size, std::size_t alignment, void *caller) {
    if (first <= caller && caller < last) ++allocations;
    void *p = alignment > alignof(std::max_align_t) ? std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment)
                                                    : std::malloc(size);
    if (!p) throw std::bad_alloc();
    return p;
}
void *operator new(std::size_t size) { return counted(size, 1, __builtin_return_address(0)); }
void *operator new(std::size_t size, std::align_val_t alignment) {
    return counted(size, std::size_t(alignment), __builtin_return_address(0));
}
void operator delete(void *p) noexcept { std::free(p); }
void operator delete(void *p, std::size_t) noexcept { std::free(p); }
void operator delete(void *p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void *p, std::size_t, std::align_val_t) noexcept { std::free(p); }
extern "C" void td_watch(char *from, char *to) { first = from, last = to; }
extern "C" long td_allocations() { return allocations; }
"""

# The workspaces are made by the first call of each kind; after that, any number of steps must leave the count where it is.
ALLOCATIONS = """
import ctypes, json, sys
import torch
import torchdojo as td
from torchdojo.native import loader

counting, path = ctypes.CDLL(sys.argv[1]), loader.library()._name
ranges = [line.split()[0].split("-") for line in open("/proc/self/maps") if line.rstrip().endswith(path)]
counting.td_watch(*(ctypes.c_void_p(int(end, 16)) for end in (ranges[0][0], ranges[-1][1])))
torch.set_num_threads(1)
mech = td.models.quadruped()
mech.options = td.SolverOptions(backend="native")
counts = {}
for batch in ((), (9,)):
    z = td.models.initial_state("quadruped", mech, batch).requires_grad_()
    for steps in (20, 60):
        before = counting.td_allocations()
        path = mech.rollout(z, steps=steps)
        middle = counting.td_allocations()
        path.z[..., -1, :].sum().backward()
        counts[f"{len(batch)} {steps}"] = [middle - before, counting.td_allocations() - middle, int((path.impulses > 1e-3).sum())]
print(json.dumps(counts))
"""

MEMORY = """
import json, resource
import torch
import torchdojo as td

torch.set_num_threads(1)
mech = td.models.quadruped()
mech.options = td.SolverOptions(backend="native")
z = td.models.initial_state("quadruped", mech, (64,)).requires_grad_()
u = torch.zeros(64, 1000, mech.num_inputs, dtype=z.dtype, requires_grad=True)
mech.rollout(z, u[:, :2]).z.sum().backward()
z.grad = u.grad = None
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
path = mech.rollout(z, u)
path.z[:, -1].sum().backward()
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"megabytes": (after - before) / 1024, "flagged": int((path.status != 0).sum())}))
"""


def run(script: str, *arguments: str, **environment: str) -> dict:
    process = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, env=os.environ | environment)
    assert process.returncode == 0, process.stderr[-2000:]
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.skipif(sys.platform != "linux", reason="replaces operator new by a preloaded library")
@pytest.mark.skipif(shutil.which("c++") is None, reason="no compiler")
def test_steps_allocate_nothing(tmp_path: Path):
    source, library = tmp_path / "counting.cpp", tmp_path / "counting.so"
    source.write_text(COUNTING)
    subprocess.run(["c++", *LANGUAGE, "-fPIC", "-shared", str(source), "-o", str(library)], check=True)
    counts = run(ALLOCATIONS, str(library), LD_PRELOAD=str(library))
    for batch in (0, 1):
        assert counts[f"{batch} 20"][2] > 0, "no contact in these steps"
        assert counts[f"{batch} 20"][0] > 0, "the count does not see the workspaces of the first call"
        assert counts[f"{batch} 60"][:2] == [0, 0], counts


@pytest.mark.slow
def test_gradient_of_a_long_rollout_fits_into_a_gigabyte():
    usage = run(MEMORY)
    assert usage["flagged"] == 0
    assert usage["megabytes"] < 1000, usage

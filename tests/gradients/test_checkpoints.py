"""Gradients where PyTorch computes twice or elsewhere: checkpoints of rollouts, other processes, copies."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from machinery import BACKENDS, EXACT, NATIVE, ball, close, hopper, rolling
from test_gradients import DistanceRod
from torch import nn

import torchdojo as td
from hopper import states
from torchdojo.gradients import implicit

# -- checkpoints --------------------------------------------------------------------------------------------------


# The choice of values that are kept or computed again does not depend on the backend: the reference has one kind of the three.
KINDS = [*(pytest.param(kind, "native", marks=NATIVE) for kind in ("inputs", "policy", "adaptive")), ("policy", "reference")]


@pytest.mark.parametrize(("kind", "backend"), KINDS)
def test_checkpoints_change_nothing(kind: str, backend: str) -> None:
    mechanism = hopper(backend)
    leaves = [p.requires_grad_() for p in mechanism.parameters()]
    net, steps = nn.Linear(26, 1), 7 if backend == "native" else 3
    z, u = states(mechanism, 2).detach().requires_grad_(), torch.randn(2, steps, 1).requires_grad_()
    runs, grads = [], []
    for checkpoint in (False, True, 3) if backend == "native" else (False, True):
        if kind == "policy":
            run = mechanism.rollout(z, lambda z: net(z), steps=steps, checkpoint=checkpoint)
        else:
            run = mechanism.rollout(z, u, checkpoint=checkpoint, adaptive=kind == "adaptive" and td.AdaptiveOptions(max_halvings=1))
        runs.append(run)
        value = run.z.square().sum() + run.impulses.sum()
        inputs = [z, u, *leaves, *net.parameters()]
        grads.append(torch.autograd.grad(value, inputs, allow_unused=True, materialize_grads=True))
    for run, grad in zip(runs[1:], grads[1:], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))
        for a, b in zip(grad, grads[0], strict=True):
            # The same sums in another order.
            close(a, b)


def test_each_segment_is_computed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and again in backward, not whenever the solver differentiates something inside; with a joint that uses torch.func, too."""
    mechanism = td.Mechanism(
        {"a": td.Body(1.0, (0.1, 0.1, 0.1))},
        [("base", td.Floating(None, "a")), ("rod", DistanceRod(None, "a", 1.0))],
        options=EXACT,
    )
    z = mechanism.initial_state(a=dict(position=(0.6, 0.0, 0.7), velocity=(0.0, 1.0, 0.0))).requires_grad_()
    solved, original = [], implicit.solve_step
    monkeypatch.setattr(implicit, "solve_step", lambda *args: (solved.append(1), original(*args))[1])
    (expected,) = torch.autograd.grad(mechanism.rollout(z, steps=6).z[-1].square().sum(), z)
    assert len(solved) == 6
    (gradient,) = torch.autograd.grad(mechanism.rollout(z, steps=6, checkpoint=True).z[-1].square().sum(), z)
    assert len(solved) == 3 * 6
    close(gradient, expected)


MEMORY = """
import json, re, sys
import torch
import torchdojo as td

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
backend, checkpoint, steps, batch = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
mech = td.models.half_cheetah()
mech.options = td.SolverOptions(kappa=1e-4, backend=backend)
z = td.models.initial_state("half_cheetah", mech, (batch,)).requires_grad_()
mech.rollout(z, steps=2, checkpoint=1).z.sum().backward()
# (not ru_maxrss, which starts from that of the process that started this one)
peak = lambda: int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) / 1024
before = peak()
path = mech.rollout(z, steps=steps, checkpoint=checkpoint)
path.z[..., -1, :].sum().backward()
assert not path.status.any() and bool(torch.isfinite(z.grad).all())
trajectory = sum(t.numel() for t in (path.z, path.impulses, path.status)) * 8 / 2**20
print(json.dumps([peak() - before, trajectory]))
"""


def megabytes(*arguments: object) -> tuple[float, float]:
    """Peak memory of a gradient beyond what was there before, and the trajectory's, in a process of its own."""
    # glibc would keep freed blocks of the size of a segment, in pieces.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    process = subprocess.run([sys.executable, "-c", MEMORY, *map(str, arguments)], capture_output=True, text=True, env=environment)
    assert process.returncode == 0, process.stderr[-2000:]
    return tuple(json.loads(process.stdout.splitlines()[-1]))  # type: ignore[return-value]


@NATIVE
@pytest.mark.slow
def test_memory_of_checkpoints() -> None:
    """With checkpoints the solutions of all steps go (521 to 399 MB); the trajectory (196 MB) and its gradient (twice 93 MB) stay."""
    (whole, trajectory), (segments, _) = megabytes("native", "false", 4000, 32), megabytes("native", "true", 4000, 32)
    assert trajectory > 100
    assert segments < 0.85 * whole


def test_checkpoint_refuses() -> None:
    mechanism = ball()
    z = rolling(mechanism)
    with pytest.raises(ValueError, match="checkpoint: got 0; allowed: True, False, or 1 or more steps"):
        mechanism.rollout(z, steps=3, checkpoint=0)
    with pytest.raises(TypeError, match="checkpoint: got 'yes'; allowed: True, False, or the number of steps"):
        mechanism.rollout(z, steps=3, checkpoint="yes")
    with pytest.raises(RuntimeError, match=r"which torch.func and torch.compile do not run; use checkpoint=False"):
        torch.func.grad(lambda z: mechanism.rollout(z, steps=3, checkpoint=True).z.sum())(z)


# -- processes ----------------------------------------------------------------------------------------------------

WORKERS = """
import sys
import torch
import torch.multiprocessing as mp
import torchdojo as td


def work(mechanism, z, u, results):
    z.requires_grad_()
    run = mechanism.rollout(z, u)
    run.z[..., -1, :].sum().backward()
    results.put((run.z.detach().numpy(), z.grad.numpy(), torch.get_num_threads()))


def main(method, backend):
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(2)
    mechanism = td.models.half_cheetah()
    mechanism.options = td.SolverOptions(backend=backend)
    z = td.models.initial_state("half_cheetah", mechanism, (64,)).detach()
    # A step of the reference starts all threads that a rollout does, and takes seconds.
    u = torch.zeros(64, 3 if backend == "native" else 1, mechanism.num_inputs)
    leaf = z.clone().requires_grad_()
    expected = mechanism.rollout(leaf, u)  # starts OpenMP's threads, which a forked process does not have
    expected.z[..., -1, :].sum().backward()
    context = mp.get_context(method)
    results = context.SimpleQueue()
    workers = [context.Process(target=work, args=(mechanism, z.clone(), u, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for _ in workers:
        path, grad, threads = results.get()
        assert torch.equal(torch.as_tensor(path), expected.z.detach()), "other states"
        assert torch.allclose(torch.as_tensor(grad), leaf.grad, rtol=1e-12, atol=1e-12), "other gradients"
        assert threads == 1 if method == "fork" else threads >= 1
    for worker in workers:
        worker.join()
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_processes(backend: str, method: str, tmp_path: Any) -> None:
    """Mechanisms go to other processes by fork and by pickle, after the parent has used several threads, and nothing hangs."""
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    process = subprocess.run([sys.executable, str(script), method, backend], capture_output=True, text=True, timeout=300)
    assert process.returncode == 0 and process.stdout.endswith("done\n"), process.stderr[-2000:]


@pytest.mark.parametrize("backend", BACKENDS)
def test_copies_keep_their_gradients(backend: str) -> None:
    """Deep copies and pickles give the same gradients as the mechanism they were made of."""
    mechanism = hopper(backend)
    mechanism.bodies["ball"].mass.requires_grad_()
    z = states(mechanism, 2)
    gradients = []
    for other in (mechanism, copy.deepcopy(mechanism), pickle.loads(pickle.dumps(mechanism))):
        gradients.append(torch.autograd.grad(other.rollout(z, steps=3).z.square().sum(), other.bodies["ball"].mass)[0])
    assert torch.equal(gradients[0], gradients[1]) and torch.equal(gradients[0], gradients[2]) and float(gradients[0]) != 0

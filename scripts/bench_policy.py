"""The cost of a control step of policy learning, eager and compiled: python scripts/bench_policy.py [--models ant,quadruped]
[--batch 1,32,64,1024] [--rounds 7]

A control step reads joint coordinates, asks a policy in float32 (128-64-32 with LayerNorm), takes two steps of the mechanism that hold its
torques (`repeat=2`), and has a reward. "forward" is one control step under `no_grad`. "training" is the mean of 16 control steps that
follow each other, and of backward through all of them to the weights of the policy. Numbers are microseconds per control step of the whole
batch: processor time of one thread, medians of rounds in which eager and compiled calls take turns. "kernel" is the time inside of the
compiled kernel, and "beside" what the compiled control step costs beside it. "first call" is the time of tracing and compiling.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from bench_periods import by_turns
from torch import Tensor, nn

import torchdojo as td
from torchdojo.native.program import kernel_library

HORIZON = 16
SHORTEST = 0.05  # seconds of a timing
CALLS = ("td_rollout", "td_rollout_adjoint", "td_map")  # functions of the kernel
COLUMNS = ("model", "batch", "", "kernel", "eager", "compiled", "eager / compiled", "beside", "kernel's share", "first call [s]")


class Control(nn.Module):
    """One control step of a batch of robots: state and warm start to the next ones, and the reward."""

    def __init__(self, mech: td.Mechanism) -> None:
        super().__init__()
        self.__dict__["mech"] = mech  # its parameters are no weights
        sizes, layers = (2 * mech.num_coordinates - 2, 128, 64, 32), list[nn.Module]()
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ELU(), nn.LayerNorm(after)]
        self.policy = nn.Sequential(*layers, nn.Linear(sizes[-1], mech.num_inputs))
        self.scale = 1.0

    def forward(self, z: Tensor, warm: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, qd = self.mech.to_minimal(z)
        action = torch.tanh(self.policy(torch.cat((q[..., 2:], 0.2 * qd), -1).float()))
        out = self.mech.step(z, self.scale * action.double(), repeat=2, warm_start=warm)
        up = 1.0 - 2.0 * (out.z[..., 7] ** 2 + out.z[..., 8] ** 2)
        reward = (out.z[..., 0] - z[..., 0]) / 0.02 + 0.1 * up + out.z[..., 2] - 0.01 * action.square().sum(-1)
        return out.z, out.solution, torch.where(out.status == 0, reward, 0.0)


def training(control: Callable[..., Any], weights: list[Tensor], z: Tensor, warm: Tensor) -> Sequence[Tensor]:
    """Gradients of the rewards of `HORIZON` control steps by the weights."""
    total = z.new_zeros(())
    for _ in range(HORIZON):
        z, warm, reward = control(z, warm)
        total = total + reward.sum()
    return torch.autograd.grad(total, weights)


@contextlib.contextmanager
def timed(seconds: list[float]) -> Iterator[None]:
    """Add up the time inside of the kernel."""
    library = kernel_library()
    functions = {name: getattr(library, name) for name in CALLS}

    def watched(function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            start = time.process_time()
            result = function(*arguments)
            seconds[0] += time.process_time() - start
            return result

        return call

    for name, function in functions.items():
        setattr(library, name, watched(function))
    try:
        yield
    finally:
        for name, function in functions.items():
            setattr(library, name, function)


def measure(name: str, batch: int, rounds: int) -> list[list[str]]:
    """Two rows of the table."""
    torch.manual_seed(0)
    mech = td.models.make(name)
    with torch.no_grad():
        path = mech.rollout(td.models.initial_state(name, mech, (batch,)), steps=30)
    z, warm = path.z[:, -1].contiguous(), path.solution[:, -1].contiguous()
    control = Control(mech)
    weights = list(control.policy.parameters())
    torch._dynamo.reset()
    compiled = torch.compile(control, fullgraph=True)
    rows = []
    for kind in ("forward", "training"):

        def run(function: Callable[..., Any], kind: str = kind) -> object:
            if kind == "training":
                return training(function, weights, z, warm)
            with torch.no_grad():
                return function(z, warm)

        start = time.perf_counter()
        run(compiled)
        first = time.perf_counter() - start
        torch.testing.assert_close(run(compiled), run(control), rtol=1e-4, atol=1e-4)  # the policy computes in float32
        with torch._dynamo.config.patch(error_on_recompile=True):
            eager, fast = by_turns([lambda: run(control), lambda: run(compiled)], rounds)
        inside, count = [0.0], 0
        with timed(inside):
            while inside[0] < 2 * SHORTEST:
                run(control)
                count += 1
        steps = HORIZON if kind == "training" else 1
        kernel, eager, fast = (1e6 * value / steps for value in (inside[0] / count, eager, fast))
        numbers = f"{kernel:.0f}", f"{eager:.0f}", f"{fast:.0f}", f"{eager / fast:.2f}", f"{fast - kernel:.0f}", f"{kernel / fast:.0%}"
        rows.append([name, f"{batch}", kind, *numbers, f"{first:.1f}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="ant,quadruped")
    parser.add_argument("--batch", default="1,32,64,1024")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [COLUMNS, ["---"] * len(COLUMNS)]
    for name in options.models.split(","):
        for batch in options.batch.split(","):
            rows += measure(name, int(batch), options.rounds)
    print("\n".join("| " + " | ".join(row) + " |" for row in rows))


if __name__ == "__main__":
    main()

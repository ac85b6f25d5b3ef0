#!/usr/bin/env python
"""Time steps whose states live on a GPU, while the kernel steps on the host, beside the same steps on the host alone.

    scripts/bench_staging.py --threads 16 --batch 4096

Needs a CUDA device. The mechanism is the quadruped of bench_cases.py, settled under its random torques. All variants run by turns. Times
are medians, from a GPU at rest to a GPU at rest.

| variant | data | numbers of the mechanism |
|---|---|---|
| host | on the host | on the host |
| host, 4 calls | on the host, a quarter in each call | on the host |
| by hand | on the GPU; `.cpu()`, the step, `.cuda()` | on the host |
| staged, n | on the GPU, in n chunks | on the host |
| staged, numbers there | on the GPU, in as many chunks as by default | on the GPU |
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch
from bench_cases import CASES
from torch import Tensor, nn

import torchdojo as td
from torchdojo.engine import staging
from torchdojo.engine.copies import CudaCopies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--segment", type=int, default=16, help="control steps of a segment of policy learning")
    parser.add_argument("--reference", action="store_true", help="also a step of the reference on the GPU")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    name = torch.cuda.get_device_name()
    print(
        f"{name}, {platform.processor() or platform.machine()}, {given.threads} threads, torch {torch.__version__}, batch {given.batch}\n"
    )
    case = CASES["quadruped"]()
    mech, there = case.mech, CASES["quadruped"]().mech.to("cuda")
    torch.manual_seed(0)
    path = mech.rollout(case.start.expand(given.batch, -1), case.inputs(given.batch, case.settle))
    z, warm = path.z[:, -1].contiguous(), path.solution[:, -1].contiguous()
    data = z, case.inputs(given.batch), warm
    visitors = tuple(t.cuda() for t in data)
    print(
        f"status {int((path.status != 0).sum())} flagged, {float(path.iterations[:, -1].double().mean()):.2f} iterations in the last step\n"
    )

    copies(data)
    for title, call in (("step", forward), ("step and backward", both)):
        variants: dict[str, Callable[[], object]] = {
            "host": lambda call=call: call(mech, *data),
            "host, 4 calls": lambda call=call: [call(mech, *(t[i::4] for t in data)) for i in range(4)],
            "by hand": lambda call=call: by_hand(call, mech, visitors),
        }
        for count in (1, 2, 4, 8):
            variants[f"staged, {count}"] = lambda call=call, count=count: chunked(count, mech, given.batch, lambda: call(mech, *visitors))
        variants["staged, numbers there"] = lambda call=call: call(there, *visitors)
        table(title, variants, given.repeats)
    long(mech, z, case.inputs(given.batch, 16), given)
    matrices(mech, data, visitors, given)
    one = tuple(t[:1] for t in data), tuple(t[:1] for t in visitors)
    table("step of one", {"host": lambda: forward(mech, *one[0]), "staged, 1": lambda: forward(mech, *one[1])}, 10 * given.repeats)
    few = tuple(t[:64] for t in data), tuple(t[:64] for t in visitors)
    table("step of 64", {"host": lambda: forward(mech, *few[0]), "staged, 1": lambda: forward(mech, *few[1])}, 10 * given.repeats)
    segments = {where: Segment(mech, z.to(where), given.segment) for where in ("cpu", "cuda")}
    runs: dict[str, Callable[[], object]] = {"host": segments["cpu"], "staged, 1": segments["cuda"]}
    runs["staged, 4"] = lambda: chunked(4, mech, given.batch, segments["cuda"])
    table(f"segment of {given.segment} control steps: policy, step, reward, backward", runs, max(3, given.repeats // 4))
    seen: dict[str, Callable[[], object]] = {"host": lambda: mech.to_minimal(z), "staged": lambda: mech.to_minimal(visitors[0])}
    seen["numbers there"] = lambda: there.to_minimal(visitors[0])
    table("to_minimal", seen, given.repeats)
    if given.reference:
        there.options = td.SolverOptions(backend="reference")
        began = time.perf_counter()
        forward(there, *visitors)
        torch.cuda.synchronize()
        print(f"reference on the GPU, one step: {1e3 * (time.perf_counter() - began):.0f} ms")


def copies(data: tuple[Tensor, ...]) -> None:
    """The copies alone: all tensors of a step to the host, and its results back."""
    way = CudaCopies(torch.device("cuda:0"))
    sizes = sum(t.numel() * t.element_size() for t in data)
    pinned, device = [way.host(t.shape) for t in data], [t.cuda() for t in data]

    def each(back: bool) -> None:
        for t, p in zip(device, pinned, strict=True):
            (way.to_device(p, t) if back else way.to_host(t, p))

    for back in (False, True):
        spent = median(lambda back=back: each(back), 21)
        print(
            f"copies of state, input and warm start {'to the GPU' if back else 'to the host'}: {sizes / 1e6:.1f} MB, {1e3 * spent:.2f} ms"
        )
    print()


def forward(mech: td.Mechanism, z: Tensor, u: Tensor, warm: Tensor) -> tuple[Tensor, ...]:
    return mech.step(z, u, warm_start=warm)


def both(mech: td.Mechanism, z: Tensor, u: Tensor, warm: Tensor) -> tuple[Tensor, ...]:
    z, u = z.detach().requires_grad_(), u.detach().requires_grad_()
    out = mech.step(z, u, warm_start=warm)
    return (*torch.autograd.grad(out.z, (z, u), torch.ones_like(out.z)), out.z, out.solution)


def by_hand(call: Callable[..., tuple[Tensor, ...]], mech: td.Mechanism, data: tuple[Tensor, ...]) -> object:
    return [t.detach().cuda() for t in call(mech, *(t.cpu() for t in data))]


def chunked(count: int, mech: td.Mechanism, batch: int, call: Callable[[], object], states: int = 1) -> object:
    """A call in so many chunks. states: of an environment in its results."""
    before, rows = staging.LARGE, -(-batch // count)
    staging.LARGE = 8 * states * max(13 * mech.num_bodies, mech.layout.num_unknowns) * rows
    try:
        return call()
    finally:
        staging.LARGE = before


def long(mech: td.Mechanism, z: Tensor, u: Tensor, given: argparse.Namespace) -> None:
    """Rollouts of 16 steps."""
    there = z.cuda(), u.cuda()
    variants: dict[str, Callable[[], object]] = {"host": lambda: mech.rollout(z, u)}
    for count in (1, 2, 4, 8):
        variants[f"staged, {count}"] = lambda count=count: chunked(count, mech, given.batch, lambda: mech.rollout(*there), 17)
    table("rollout of 16 steps", variants, given.repeats // 2)


def matrices(mech: td.Mechanism, data: tuple[Tensor, ...], visitors: tuple[Tensor, ...], given: argparse.Namespace) -> None:
    """Jacobians of a quarter of the batch, into memory that is there."""
    count, rows = given.batch // 4, 12 * mech.num_bodies
    own, there = [t[:count] for t in data], [t[:count] for t in visitors]
    out = torch.empty(count, rows, rows + mech.num_inputs, dtype=torch.float64)
    target = out.cuda()
    variants: dict[str, Callable[[], object]] = {
        "host": lambda: mech.jacobians(*own[:2], warm_start=own[2], out=out),
        "by hand": lambda: target.copy_(out) if mech.jacobians(*(t.cpu() for t in there[:2]), out=out) else None,
    }
    for bound in (1024, 256, 128, 64, 32):

        def call(bound: int = bound) -> object:
            staging.LARGE, before = bound * 2**20, staging.LARGE
            try:
                return mech.jacobians(*there[:2], warm_start=there[2], out=target)
            finally:
                staging.LARGE = before

        variants[f"staged, chunks of {bound} MB"] = call
    table(f"jacobians of {count}, {out.numel() * 8 / 1e6:.0f} MB", variants, given.repeats // 2)


class Segment:
    """Policy, step and reward over control steps, and the gradient by the policy's weights, as SHAC takes it. The policy lives with z."""

    def __init__(self, mech: td.Mechanism, z: Tensor, steps: int) -> None:
        torch.manual_seed(0)
        self.mech, self.z, self.steps = mech, z, steps
        layers = nn.Linear(z.shape[-1], 256), nn.ELU(), nn.Linear(256, 128), nn.ELU(), nn.Linear(128, mech.num_inputs), nn.Tanh()
        self.policy = nn.Sequential(*layers).to(z.device, torch.float32)

    def __call__(self) -> None:
        z, warm, reward = self.z, None, torch.zeros((), dtype=torch.float64, device=self.z.device)
        for _ in range(self.steps):
            out = self.mech.step(z, 3 * self.policy(z.float()).double(), warm_start=warm, repeat=2)
            z, warm = out.z, out.solution
            reward = reward + z[:, 0].mean() - 0.1 * z[:, 2].square().mean()
        self.policy.zero_grad()
        reward.backward()


def median(call: Callable[[], object], repeats: int) -> float:
    spent = []
    for i in range(repeats + 3):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        if i >= 3:
            spent.append(time.perf_counter() - began)
    return statistics.median(spent)


def table(title: str, variants: dict[str, Callable[[], object]], repeats: int) -> None:
    spent: dict[str, list[float]] = {name: [] for name in variants}
    for i in range(repeats + 3):
        for name, call in variants.items():
            torch.cuda.synchronize()
            began = time.perf_counter()
            call()
            torch.cuda.synchronize()
            if i >= 3:
                spent[name].append(time.perf_counter() - began)
    least = statistics.median(spent["host"])
    print(f"| {title} | ms, median | quartiles | over host |\n|---|---|---|---|")
    for name, values in spent.items():
        low, middle, high = statistics.quantiles(values, n=4) if len(values) > 3 else (min(values), statistics.median(values), max(values))
        print(f"| {name} | {1e3 * middle:.2f} | {1e3 * low:.2f} to {1e3 * high:.2f} | {middle / least:.2f} |")
    print(flush=True)


if __name__ == "__main__":
    main()

"""The cost of control periods, numbers of each environment and compiled environments, as ratios measured side by side:
python scripts/bench_periods.py [--models quadruped,ant] [--batch 1,64,1024] [--repeats 7]

- per environment: a step whose masses differ between environments, over one whose masses are shared; forward, and with backward.
- 4 steps / repeat=4: four calls of `step` that hold u, over one call; forward, and with backward.
- law: `repeat=4` with servos in the kernel (ctrl), over `repeat=4` with u; and with the law in PyTorch between the steps.
- recomputed: forward and backward of a rollout whose periods are computed again in backward (checkpoint=1), over one that keeps them.
- eager / compiled: an environment's step (observation, policy, step, reward), and its observation and policy alone.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

import torchdojo as td
from torchdojo.engine.periods import Periods
from torchdojo.gradients.request import Request, StepInputs

COLUMNS = (
    "model", "batch", "per environment", "with backward", "4 steps / repeat=4", "with backward", "law", "law in PyTorch", "recomputed",
    "environment eager / compiled", "observation and policy", "environment [µs]",
)  # fmt: skip
SHORTEST = 0.02  # seconds of a timing


def by_turns(runs: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Median seconds of the processor for each run; the runs take turns."""
    seconds: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()
    for _ in range(repeats):
        for mine, run in zip(seconds, runs, strict=True):
            start, count = time.process_time(), 0
            while time.process_time() - start < SHORTEST:
                run()
                count += 1
            mine.append((time.process_time() - start) / count)
    return [statistics.median(mine) for mine in seconds]


class Environment(nn.Module):
    """Observation, policy, step and reward of a batch of robots."""

    def __init__(self, mech: td.Mechanism) -> None:
        super().__init__()
        self.__dict__["mech"] = mech
        self.policy = nn.Sequential(
            nn.Linear(13 * mech.num_bodies, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, mech.num_inputs)
        )
        self.double().requires_grad_(False)

    def act(self, z: Tensor) -> Tensor:
        x, v, q, omega = z.unflatten(-1, (-1, 13)).split((3, 3, 4, 3), dim=-1)
        seen = torch.cat((x - x[..., :1, :], 0.2 * v, q * q[..., :1].sign(), 0.1 * omega), dim=-1).clamp(-5.0, 5.0)
        return torch.tanh(self.policy(seen.flatten(-2)))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        u = self.act(z)
        out = self.mech.step(z, u, repeat=4)
        reward = out.z[..., 3] - 0.01 * u.square().sum(-1) - (out.status != 0).to(u.dtype)
        return out.z, reward, out.z[..., 2] < 0.1


class Start(NamedTuple):
    """Settled states, controls and a warm start of a model, with leaves of the first two for gradients."""

    z: Tensor
    u: Tensor
    warm: Tensor
    z_leaf: Tensor
    u_leaf: Tensor


def measure(name: str, batch: int, repeats: int) -> list[str]:
    """A row of the table."""
    torch.manual_seed(0)
    shared, varied = td.models.make(name), td.models.make(name)
    for body in varied.bodies.values():
        body.mass = body.mass * (1 + 0.1 * torch.rand(batch, dtype=torch.float64))
    with torch.no_grad():
        path = shared.rollout(td.models.initial_state(name, shared, (batch,)), steps=30)
    z, warm = path.z[:, -1].contiguous(), path.solution[:, -1].contiguous()
    u = 0.3 * torch.randn(batch, shared.num_inputs, dtype=torch.float64)
    start = Start(z, u, warm, z.clone().requires_grad_(), u.clone().requires_grad_())
    ratios = [*per_environment(shared, varied, start, repeats), *one_call(shared, start, repeats)]
    recomputed = checkpoints(shared, start, repeats)
    ratios += [*laws(name, z, repeats), recomputed]
    eager, compiled, eager_policy, compiled_policy = environments(shared, z, repeats)
    values = [*ratios, eager / compiled, eager_policy / compiled_policy]
    return [name, f"{batch}", *(f"{value:.2f}" for value in values), f"{1e6 * compiled:.0f}"]


def per_environment(shared: td.Mechanism, varied: td.Mechanism, start: Start, repeats: int) -> tuple[float, float]:
    """A step with numbers of each environment over one with shared numbers; forward, and with backward."""

    def forward(mech: td.Mechanism) -> Tensor:
        with torch.no_grad():
            return mech.step(start.z, start.u, warm_start=start.warm).z

    def backward(mech: td.Mechanism) -> object:
        out = mech.step(start.z_leaf, start.u_leaf, warm_start=start.warm)
        return torch.autograd.grad(out.z.sum(), (start.z_leaf, start.u_leaf))

    runs = [lambda: forward(shared), lambda: forward(varied), lambda: backward(shared), lambda: backward(varied)]
    alone, alone_varied, both, both_varied = by_turns(runs, repeats)
    return alone_varied / alone, both_varied / both


def one_call(mech: td.Mechanism, start: Start, repeats: int) -> tuple[float, float]:
    """Four calls of a step over one call with `repeat=4`; forward, and with backward."""

    def four(z: Tensor, u: Tensor) -> Tensor:
        solution = start.warm
        for _ in range(4):
            out = mech.step(z, u, warm_start=solution)
            z, solution = out.z, out.solution
        return z

    def one(z: Tensor, u: Tensor) -> Tensor:
        return mech.step(z, u, warm_start=start.warm, repeat=4).z

    def forward(run: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        with torch.no_grad():
            return run(start.z, start.u)

    def backward(run: Callable[[Tensor, Tensor], Tensor]) -> object:
        return torch.autograd.grad(run(start.z_leaf, start.u_leaf).sum(), (start.z_leaf, start.u_leaf))

    runs = [lambda: forward(four), lambda: forward(one), lambda: backward(four), lambda: backward(one)]
    calls, call, calls_both, call_both = by_turns(runs, repeats)
    return calls / call, calls_both / call_both


def checkpoints(mech: td.Mechanism, start: Start, repeats: int) -> float:
    """A rollout and its gradient with periods that are computed again, over one that keeps them."""
    inputs = torch.randn(len(start.z), 8, mech.num_inputs, dtype=torch.float64)

    def trajectory(checkpoint: bool | int) -> object:
        path = mech.rollout(start.z_leaf, inputs, repeat=4, checkpoint=checkpoint)
        return torch.autograd.grad(path.z[:, -1].sum(), start.z_leaf)

    kept, again = by_turns([lambda: trajectory(False), lambda: trajectory(1)], max(3, repeats // 2))
    return again / kept


def laws(name: str, z: Tensor, repeats: int) -> tuple[float, float]:
    """Periods of servos over periods of given controls: the law inside the steps, and in PyTorch between them."""
    driven = td.models.make(name)
    if driven.actuators is None:
        places = [(joint, i) for joint, piece in driven.input_layout.items() for i in range(piece.stop - piece.start)]
        td.actuate(driven, {f"{joint}{i}": td.Actuator.position(joint, kp=5.0, kv=0.1, coordinate=i) for joint, i in places})
    ctrl = 0.1 * torch.randn(len(z), len(driven.actuators), dtype=torch.float64)
    with torch.no_grad():
        start = driven.rollout(z, ctrl=ctrl[:, None].expand(-1, 5, -1)).z[:, -1]
        warm = driven.step(start, ctrl=ctrl).solution
        u = driven.actuators(ctrl, start)
    outside = Periods(driven.backends.select(Request(driven.options)), 4, driven.actuators)
    runs: list[Callable[[], object]] = [
        lambda: driven.step(start, u, warm_start=warm, repeat=4),
        lambda: driven.step(start, ctrl=ctrl, warm_start=warm, repeat=4),
        lambda: outside.step(StepInputs(start, ctrl, warm=warm)),
    ]
    plain, inside, between = by_turns([torch.no_grad()(run) for run in runs], repeats)
    return inside / plain, between / plain


def environments(mech: td.Mechanism, z: Tensor, repeats: int) -> list[float]:
    """Seconds of an environment, eager and compiled, and of its observation and policy, likewise."""
    env = Environment(mech)
    torch._dynamo.reset()
    step, act = torch.compile(env, fullgraph=True), torch.compile(env.act, fullgraph=True)
    with torch.no_grad():
        return by_turns([lambda: env(z), lambda: step(z), lambda: env.act(z), lambda: act(z)], repeats)


def table(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (COLUMNS, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(COLUMNS), *lines[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="quadruped")
    parser.add_argument("--batch", default="1,64,1024")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(table([measure(name, int(batch), options.repeats) for name in options.models.split(",") for batch in options.batch.split(",")]))


if __name__ == "__main__":
    main()

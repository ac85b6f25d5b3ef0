"""What control periods, numbers of each environment and compiled environments cost, as ratios measured side by side:
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


def measure(name: str, batch: int, repeats: int) -> list[str]:
    """A row of the table."""
    torch.manual_seed(0)
    shared, own = td.models.make(name), td.models.make(name)
    for body in own.bodies.values():
        body.mass = body.mass * (1 + 0.1 * torch.rand(batch, dtype=torch.float64))
    with torch.no_grad():
        path = shared.rollout(td.models.initial_state(name, shared, (batch,)), steps=30)
    z, warm = path.z[:, -1].contiguous(), path.solution[:, -1].contiguous()
    u = 0.3 * torch.randn(batch, shared.num_inputs, dtype=torch.float64)
    leaf, held = z.clone().requires_grad_(), u.clone().requires_grad_()

    def forward(mech: td.Mechanism) -> Tensor:
        with torch.no_grad():
            return mech.step(z, u, warm_start=warm).z

    def backward(mech: td.Mechanism) -> object:
        return torch.autograd.grad(mech.step(leaf, held, warm_start=warm).z.sum(), (leaf, held))

    def four(z: Tensor, u: Tensor) -> Tensor:
        solution = warm
        for _ in range(4):
            out = shared.step(z, u, warm_start=solution)
            z, solution = out.z, out.solution
        return z

    def one(z: Tensor, u: Tensor) -> Tensor:
        return shared.step(z, u, warm_start=warm, repeat=4).z

    def without(run: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        with torch.no_grad():
            return run(z, u)

    def withgrad(run: Callable[[Tensor, Tensor], Tensor]) -> object:
        return torch.autograd.grad(run(leaf, held).sum(), (leaf, held))

    a, b, c, d = by_turns([lambda: forward(shared), lambda: forward(own), lambda: backward(shared), lambda: backward(own)], repeats)
    e, f, g, h = by_turns([lambda: without(four), lambda: without(one), lambda: withgrad(four), lambda: withgrad(one)], repeats)
    inputs = torch.randn(batch, 8, shared.num_inputs, dtype=torch.float64)

    def trajectory(checkpoint: bool | int) -> object:
        path = shared.rollout(leaf, inputs, repeat=4, checkpoint=checkpoint)
        return torch.autograd.grad(path.z[:, -1].sum(), leaf)

    kept, again = by_turns([lambda: trajectory(False), lambda: trajectory(1)], max(3, repeats // 2))
    driven = td.models.make(name)
    if driven.actuators is None:
        places = [(joint, i) for joint, piece in driven.input_layout.items() for i in range(piece.stop - piece.start)]
        td.actuate(driven, {f"{joint}{i}": td.Actuator.position(joint, kp=5.0, kv=0.1, coordinate=i) for joint, i in places})
    ctrl = 0.1 * torch.randn(batch, len(driven.actuators), dtype=torch.float64)
    with torch.no_grad():
        start = driven.rollout(z, ctrl=ctrl[:, None].expand(-1, 5, -1)).z[:, -1]
        first = driven.step(start, ctrl=ctrl)
        given = driven.actuators(ctrl, start)
    outside = Periods(driven.backends.select(Request(driven.options)), 4, driven.actuators)

    def law(run: Callable[[], object]) -> Callable[[], object]:
        return torch.no_grad()(run)

    plain, inside, between = by_turns(
        [
            law(lambda: driven.step(start, given, warm_start=first.solution, repeat=4)),
            law(lambda: driven.step(start, ctrl=ctrl, warm_start=first.solution, repeat=4)),
            law(lambda: outside.step(StepInputs(start, ctrl, warm=first.solution))),
        ],
        repeats,
    )
    env = Environment(shared)
    torch._dynamo.reset()
    step, act = torch.compile(env, fullgraph=True), torch.compile(env.act, fullgraph=True)
    with torch.no_grad():
        eager, compiled, eager_policy, compiled_policy = by_turns(
            [lambda: env(z), lambda: step(z), lambda: env.act(z), lambda: act(z)], repeats
        )
    values = [b / a, d / c, e / f, g / h, inside / plain, between / plain, again / kept, eager / compiled, eager_policy / compiled_policy]
    return [name, f"{batch}", *(f"{value:.2f}" for value in values), f"{1e6 * compiled:.0f}"]


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

"""The cost of an environment's control step in training, eager and compiled: python scripts/bench_envs.py [--names ant,humanoid]
[--batch 32] [--control torque] [--rounds 9] [--eager]

A segment is 16 control steps under a policy in float32 (128-64-32 with LayerNorm), and backward through all of them to its weights.
"eager" is `Env.step`; "step" is the same after `Env.compile`; "all" compiles policy and `Env.transition` together; "segment" is
`td.envs.Segment`. Numbers are microseconds per control step of the whole batch: processor time of one thread, smallest of rounds in which
all take turns. "kernel" is the time inside of the compiled kernel, forward and backward, and "share" its part of the fastest. "first call"
is the time of compiling the last [s].
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable

import torch
from bench_policy import timed
from torch import Tensor, nn

import torchdojo as td

HORIZON = 16
COLUMNS = ("eager", "step", "all", "segment")


def policy_of(env: td.envs.Env) -> nn.Sequential:
    layers, sizes = list[nn.Module](), (env.num_obs, 128, 64, 32)
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ELU(), nn.LayerNorm(after)]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], env.num_actions))


def segment(env: td.envs.Env, policy: nn.Module) -> Callable[[], object]:
    """Steps of the environment."""

    def run() -> object:
        obs, total = env.detach(), torch.zeros(())
        for _ in range(HORIZON):
            out = env.step(torch.tanh(policy(obs)))
            obs, total = out.obs, total + out.reward.sum()
        return torch.autograd.grad(total, list(policy.parameters()))

    return run


def fused(env: td.envs.Env, policy: nn.Module) -> Callable[[], object]:
    """Policy and transition as one graph."""

    def control(state: td.envs.EnvState, index: Tensor) -> td.envs.Transition:
        return env.transition(state, torch.tanh(policy(state.obs.float())), index)

    fast = torch.compile(control, fullgraph=True, options={"guard_filter_fn": td.envs.light_guards})

    def run() -> object:
        env.detach()
        total = torch.zeros((), dtype=torch.float64)
        for _ in range(HORIZON):
            out = fast(env.state, env.draw())
            env.keep(out)
            total = total + out.reward.sum()
        return torch.autograd.grad(total, list(policy.parameters()))

    return run


def recorded(env: td.envs.Env, policy: nn.Module) -> Callable[[], object]:
    """`td.envs.Segment`."""
    run_segment = td.envs.Segment(env, lambda obs: torch.tanh(policy(obs)), HORIZON, parameters=policy.parameters())

    def run() -> object:
        return torch.autograd.grad(run_segment().reward.sum(), list(policy.parameters()))

    return run


def measure(name: str, batch: int, rounds: int, control: str | None, eager: bool) -> str:
    """A row of the table."""
    torch.manual_seed(0)
    options = {} if control is None else {"control": control}
    envs = [td.envs.make(name, num_envs=batch, dtype=torch.float32, **options) for _ in range(4)]
    policy = policy_of(envs[0])
    runs, first = {"eager": segment(envs[0], policy)}, 0.0
    if not eager:
        envs[1].compile()
        runs |= {"step": segment(envs[1], policy), "all": fused(envs[2], policy), "segment": recorded(envs[3], policy)}
    torch._dynamo.reset()
    for run in runs.values():
        start = time.perf_counter()
        run()
        run()
        first = time.perf_counter() - start
    best, inside, kernel = dict.fromkeys(runs, float("inf")), [0.0], float("inf")
    for _ in range(rounds):
        for label, run in runs.items():
            start = time.process_time()
            run()
            best[label] = min(best[label], time.process_time() - start)
        inside[0] = 0.0
        with timed(inside):
            run()
        kernel = min(kernel, inside[0])
    fastest = min(best.values())
    numbers = [f"{1e6 * best[label] / HORIZON:.0f}" if label in best else "" for label in COLUMNS]
    cells = name, f"{batch}", f"{1e6 * kernel / HORIZON:.0f}", *numbers, f"{kernel / fastest:.0%}", f"{batch * HORIZON / fastest:.0f}"
    return "| " + " | ".join((*cells, f"{first:.0f}")) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", default="ant,humanoid")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--control", choices=("drive", "torque"), default=None)
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| environment | batch | kernel | eager | step | all | segment | share | samples/s | first call |\n" + "|---" * 10 + "|")
    for name in options.names.split(","):
        print(measure(name, options.batch, options.rounds, options.control, options.eager), flush=True)


if __name__ == "__main__":
    main()

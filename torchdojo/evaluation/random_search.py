"""ARS and AGS side by side, and beside Table VI of the Dojo paper (Howell et al. 2025, section V-C).

    rows = compare_random_search(range(5))
    print(format_rows(rows))

Environments, horizons, step size, noise, directions and the bound of rewards are those of Dojo's code. What differs: policies end in tanh,
weights begin at zero as those of Mania et al. do, and AGS bounds the adjoint of each control step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchdojo.envs import Env, make
from torchdojo.learning.random_search import Algorithm, Search, Settings, episodes

__all__ = ["PUBLISHED", "TABLE_VI", "Row", "compare_random_search", "format_rows"]

#: (environment, method) -> reward, its deviation, simulation evaluations
PUBLISHED = {
    ("half_cheetah", "ars"): (46, 24, 3e4),
    ("half_cheetah", "ags"): (44, 24, 5e3),
    ("ant", "ars"): (64, 15, 2e5),
    ("ant", "ags"): (54, 28, 2e4),
}
#: environment -> its options, and settings of both methods: those of configs/ars_*.yaml and configs/ags_*.yaml
TABLE_VI: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "half_cheetah": {
        "env_options": {"reward": "gymnasium", "timestep": 0.05, "repeat": 1, "episode_length": 80},
        "ars": {"samples": 28_800, "horizon": 80, "directions": 6},
        "ags": {"samples": 2_400, "horizon": 80, "directions": 1, "adjoint_clip": 30.0},
    },
    "ant": {
        "env_options": {"reward": "dojo", "timestep": 0.05, "repeat": 1, "episode_length": 150},
        "ars": {"samples": 180_000, "horizon": 150, "directions": 6},
        "ags": {"samples": 10_050, "horizon": 150, "directions": 1, "adjoint_clip": 100.0, "reward_clip": None, "final_step": 0.1},
    },
}
METHODS: tuple[Algorithm, ...] = ("ars", "ags")
EPISODES, SEED = 16, 1_000_003  # of evaluations
POINTS = 20  # of a curve
BEST = 3  # seeds of which the paper takes the mean


@dataclass(frozen=True)
class Row:
    """A method on an environment, over seeds.

    rewards: of each seed, the mean of 16 episodes of the last policy, with the reward of a control step clipped to ±1.
    evaluations: steps and gradients of steps of one search. to_half: of each seed, evaluations until half of the mean of ARS' last rewards
        is reached, in steps of a twentieth of `evaluations`; None: never.
    cpu_seconds: of the searches of all seeds, without evaluations. flagged: steps that failed. curves: (evaluations, reward) of each seed.
    """

    environment: str
    method: str
    rewards: Sequence[float]
    evaluations: int
    to_half: Sequence[int | None]
    cpu_seconds: float
    flagged: int
    curves: Sequence[Sequence[tuple[int, float]]]

    @property
    def reward(self) -> float:
        """Mean over the best three seeds, as in the paper."""
        return statistics.mean(sorted(self.rewards)[-BEST:])

    @property
    def deviation(self) -> float:
        """Standard deviation over all seeds."""
        return statistics.pstdev(self.rewards)


def compare_random_search(
    seeds: Sequence[int] = range(5),
    environments: Sequence[str] = ("half_cheetah", "ant"),
    *,
    share: float = 1.0,
    tell: Callable[[str], None] | None = None,
) -> list[Row]:
    """Search with both methods from each seed. With five seeds it takes about five minutes of one core.

    Args:
        share: of the evaluations of Table VI, for a quick look. tell: is called with a line for each search.
    """
    rows = list[Row]()
    for environment in environments:
        results = {method: [_search(environment, method, seed, share, tell) for seed in seeds] for method in METHODS}
        half = 0.5 * statistics.mean(curve[-1][1] for curve, *_ in results["ars"])
        for method, searches in results.items():
            curves = [curve for curve, *_ in searches]
            rows.append(
                Row(
                    environment,
                    method,
                    [curve[-1][1] for curve in curves],
                    curves[0][-1][0],
                    [next((count for count, reward in curve if reward >= half), None) for curve in curves],
                    sum(seconds for _, seconds, _ in searches),
                    sum(flagged for *_, flagged in searches),
                    curves,
                )
            )
    return rows


def _search(
    environment: str, method: Algorithm, seed: int, share: float, tell: Callable[[str], None] | None
) -> tuple[list[tuple[int, float]], float, int]:
    """One search: its curve, processor time and flagged steps."""
    case = TABLE_VI[environment]
    settings = Settings(**{**case[method], "samples": max(1, round(share * case[method]["samples"]))})

    def build(num_envs: int, seed: int) -> Env:
        return make(environment, num_envs=num_envs, seed=seed, autoreset="disabled", pool=128, **case["env_options"])

    search = Search(build(settings.num_envs(method), seed), settings, method, seed=seed)
    judge, curve, seconds, told = build(EPISODES, SEED), list[tuple[int, float]](), 0.0, 0.0
    while True:
        done = search.samples >= settings.samples
        if done or search.samples >= told:
            told += settings.samples / POINTS
            with torch.no_grad():
                curve.append((search.evaluations, float(episodes(judge, search.linear, settings.horizon)[0].mean())))
        if done:
            break
        start = time.process_time()
        search.iterate()
        seconds += time.process_time() - start
    flagged = int(search.env.statistics["flagged"])
    if tell is not None:
        tell(f"{environment} {method}, seed {seed}: reward {curve[-1][1]:.1f} after {curve[-1][0]} evaluations, {seconds:.1f} CPU-s")
    return curve, seconds, flagged


def format_rows(rows: Sequence[Row]) -> str:
    """The table in Markdown, with the paper's numbers and all seeds."""
    lines = [
        "| environment | method | reward, best 3 | each seed | evaluations | to half of ARS' reward | CPU-s | paper | evaluations |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        reward, deviation, count = PUBLISHED[row.environment, row.method]
        cells = (
            row.environment,
            row.method.upper(),
            f"{row.reward:.0f} ± {row.deviation:.0f}",
            ", ".join(f"{value:.0f}" for value in row.rewards),
            f"{row.evaluations:,}",
            ", ".join("never" if value is None else f"{value:,}" for value in row.to_half),
            f"{row.cpu_seconds:.0f}",
            f"{reward} ± {deviation}",
            f"{count:,.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)

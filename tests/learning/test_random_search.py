"""ARS and AGS: their steps by hand, gradients of whole episodes, seeds, resumption, learning, bad input; the table and its descriptions."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from conftest import REPOSITORY
from torchdojo.evaluation.random_search import PUBLISHED, TABLE_VI, compare_random_search, format_rows
from torchdojo.learning.random_search import LinearPolicy, Search, Settings, ags_update, ars_update, episodes
from torchdojo.learning.runs import Run, load_run, read_config
from torchdojo.native import loader

native = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")
SMALL = Settings(samples=400, horizon=10, directions=2, adjoint_clip=100.0)


def cartpole(settings: Settings, algorithm: str, seed: int = 0, **options: Any) -> td.envs.Env:
    return td.envs.make("cartpole_balance", num_envs=settings.num_envs(algorithm), seed=seed, pool=16, autoreset="disabled", **options)


def test_the_step_of_ars_by_hand() -> None:
    plus, minus = torch.tensor([3.0, 1.0, 5.0]).double(), torch.tensor([1.0, 2.0, -4.0]).double()
    directions = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[2.0, -1.0]]]).double()
    # The largest of each pair are 3, 2, 5: the two best are the third and the first. Their returns 5, 3, -4, 1 have mean 1.25.
    deviation = ((3.75**2 + 1.75**2 + 5.25**2 + 0.25**2) / 4) ** 0.5
    expected = 0.1 / (2 * deviation) * torch.tensor([[9.0 * 2.0 + 2.0 * 1.0, 9.0 * -1.0]]).double()
    torch.testing.assert_close(ars_update(plus, minus, directions, 0.1, best=2), expected, rtol=1e-14, atol=0)
    assert not ars_update(torch.ones(3), torch.ones(3), directions, 0.1).any()  # no deviation, no step


def test_the_step_of_ags_by_hand() -> None:
    gradients = torch.tensor([[[2.0, -4.0]], [[30.0, 30.0]], [[float("nan"), 1.0]], [[0.0, 0.0]]]).double()
    # Over their largest elements: (0.5, -1) and (1, 1), together (1.5, 0).
    torch.testing.assert_close(ags_update(gradients, 0.02), torch.tensor([[0.02, 0.0]]).double(), rtol=1e-14, atol=0)
    assert not ags_update(gradients[2:], 0.02).any()


def test_a_policy_for_each_row() -> None:
    policy = LinearPolicy(5, 2)
    policy.normalizer.update(torch.randn(50, 5, generator=torch.Generator().manual_seed(0)))
    weights, obs = torch.randn(3, 2, 5, generator=torch.Generator().manual_seed(1)).double(), torch.ones(3, 5).float()
    together = policy(obs, weights)
    assert together.dtype == torch.float32 and together.abs().max() < 1
    for i in range(3):
        policy.weight.copy_(weights[i])
        torch.testing.assert_close(policy(obs[i : i + 1]), together[i : i + 1])


@native
@pytest.mark.parametrize(("name", "horizon"), [("cartpole_swingup", 30), ("ant", 12)])
def test_the_gradient_of_an_episode(name: str, horizon: int) -> None:
    """The clipped return's gradient through the closed loop, against central differences along the gradient and a random direction."""
    env = td.envs.make(name, num_envs=1, pool=1, timestep=0.02, autoreset="disabled")
    policy = LinearPolicy(env.num_obs, env.num_actions)
    generator = torch.Generator().manual_seed(0)
    weight = 0.1 * torch.randn(1, *policy.weight.shape, generator=generator, dtype=torch.float64)

    def total(weight: Tensor) -> Tensor:
        return episodes(env, policy, horizon, reward_clip=12.0, weight=weight)[0].sum()

    (gradient,) = torch.autograd.grad(total(weight.requires_grad_(True)), weight)
    random = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        for direction in (gradient / gradient.norm(), random / random.norm()):
            step = 1e-5 * direction
            difference = float(total(weight + step) - total(weight - step)) / 2e-5
            slope = float((gradient * direction).sum())
            assert abs(difference - slope) <= 1e-5 * float(gradient.norm())


@native
@pytest.mark.parametrize("algorithm", ["ars", "ags"])
def test_a_search_depends_on_its_seed_alone_and_goes_on_identically(algorithm: Any) -> None:
    searches = [Search(cartpole(SMALL, algorithm, seed), SMALL, algorithm, seed=seed) for seed in (0, 0, 1)]
    for search in searches:
        for _ in range(3):
            search.iterate()
    first, same, other = (search.linear.weight for search in searches)
    assert torch.equal(first, same) and not torch.equal(first, other) and torch.isfinite(first).all()
    resumed = Search(cartpole(SMALL, algorithm, 7), SMALL, algorithm, seed=7)
    resumed.load_state_dict(searches[0].state_dict())
    rows = [(search.iterate(), search.samples, search.evaluations) for search in (searches[0], resumed)]
    assert rows[0] == rows[1] and torch.equal(searches[0].linear.weight, resumed.linear.weight)
    assert rows[0][2] == rows[0][1] * (2 if algorithm == "ags" else 1)


@native
@pytest.mark.parametrize("algorithm", ["ars", "ags"])
def test_a_run_that_is_killed_and_resumed(algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = dataclasses.asdict(SMALL) | {"samples": 7 * 10 * SMALL.num_envs(algorithm)}
    config = read_config({"env": "cartpole_balance", "algorithm": algorithm, "env_options": {"pool": 16}, "settings": settings})
    whole, broken = Run(tmp_path / "whole", config), Run(tmp_path / "broken", config)
    for run in (whole, broken):
        run.begin()
    report = whole.train()
    assert report["samples"] == settings["samples"] and report["flagged"] == 0

    iterate = Search.iterate

    def dies(search: Search) -> dict[str, float]:
        if search.iterations == 6:
            raise KeyboardInterrupt
        return iterate(search)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Search, "iterate", dies)
        broken.train()
    broken.train(resume=True)
    obs = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)).float()
    first, second = (load_run(run.folder).policy()(obs) for run in (whole, broken))
    assert torch.equal(first, second) and first.dtype == torch.float32
    columns = [[line.split(",")[0] for line in (run.folder / "metrics.csv").read_text().splitlines()] for run in (whole, broken)]
    assert columns[0] == columns[1] and len(columns[0]) == 8

    broken.checkpoint.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="damaged, or no checkpoint of ARS or AGS"):
        broken.train(resume=True)
    other = Run(whole.folder, read_config({"env": "hopper", "algorithm": algorithm, "settings": settings}))
    with pytest.raises(ValueError, match="a policy of 5 observations; the environment 'hopper' has 14"):
        other.policy()


@native
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ars", "ags"])
def test_it_learns_to_balance(algorithm: Any) -> None:
    """A pole falls within 60 of 100 control steps under zero control, and stays up under what was learned."""
    settings, reward = {
        "ars": (Settings(samples=19_200, horizon=100, directions=8, step_size=1.0, noise=0.5), "gymnasium"),
        "ags": (
            Settings(samples=1_200, horizon=20, directions=4, step_size=0.5, final_step=0.02),
            "shac",
        ),  # a count of steps has no gradient
    }[algorithm]
    search = Search(cartpole(settings, algorithm, reward=reward), settings, algorithm)
    judge = td.envs.make("cartpole_balance", num_envs=16, seed=1, pool=64, autoreset="disabled", reward="gymnasium")

    def steps_upright() -> float:
        with torch.no_grad():
            return float(episodes(judge, search.linear, 100)[0].mean())

    before = steps_upright()
    while search.samples < settings.samples:
        search.iterate()
    assert before < 60 and steps_upright() > 95


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"samples": 0}, "samples: got 0"),
        ({"best": 7}, "best: got 7; allowed: from 1 to directions=6"),
        ({"noise": float("nan")}, "noise: got nan"),
        ({"step_size": 0.0}, "step_size: got 0.0"),
        ({"final_step": 2.0}, "final_step: got 2.0"),
        ({"reward_clip": -1.0}, "reward_clip: got -1.0"),
    ],
)
def test_bad_settings(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**values)


@native
def test_an_environment_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match='ars with directions=2 needs num_envs=4 and autoreset="disabled"'):
        Search(cartpole(SMALL, "ags"), SMALL, "ars")
    with pytest.raises(ValueError, match="algorithm: got 'es'; allowed: ars, ags"):
        Search(cartpole(SMALL, "ags"), SMALL, "es")  # type: ignore[arg-type]


@pytest.mark.parametrize(("environment", "method"), list(PUBLISHED))
def test_the_descriptions_are_those_of_the_table(environment: str, method: str) -> None:
    config = read_config(REPOSITORY / "configs" / f"{method}_{environment}.yaml")
    assert (config.env, config.algorithm) == (environment, method)
    assert config.env_options == TABLE_VI[environment]["env_options"] and config.settings == TABLE_VI[environment][method]


@native
@pytest.mark.slow
def test_the_table() -> None:
    rows = compare_random_search([0], ["half_cheetah"], share=0.02)
    assert [row.method for row in rows] == ["ars", "ags"] and [row.evaluations for row in rows] == [960, 160]
    assert rows[0].flagged == 0 and len(rows[0].curves[0]) == 2
    text = format_rows(rows).splitlines()
    assert len(text) == 4 and "46 ± 24 | 30,000" in text[2] and "44 ± 24 | 5,000" in text[3]

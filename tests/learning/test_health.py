"""Health of a run of SHAC: its numbers where they are known, the words that go with them, and lines of progress without a terminal."""

from __future__ import annotations

import csv
import math
from typing import Any

import pytest
import torch

from torchdojo.learning import health
from torchdojo.learning.adjoint import RunningBound, bounded
from torchdojo.learning.health import CAUSES, Health
from torchdojo.learning.progress import Progress
from torchdojo.learning.refinement import Refinement

GOOD = Health(clipped=0.2, growth=10.0, explained=0.9, saturated=0.02, falls=0.01)


def test_growth_of_adjoints_that_grow_by_a_known_factor() -> None:
    """Adjoints triple in each step back; clipping shortens what goes on, and the growth is that without it."""
    bound, grad, reports = 5.0, torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64), []
    for _ in range(6):  # backwards
        grad, report = bounded(3.0 * grad, bound)
        reports.append(report)
    stacked = torch.stack(reports[::-1])
    assert float(stacked[0, 0, 2]) == pytest.approx(15.0)  # 3 × the bound
    assert float(health.log_growth(stacked, bound)) == pytest.approx(math.log(3.0), rel=1e-12)
    assert health.growth(math.log(3.0), 6) == pytest.approx(3.0**5)


def test_growth_leaves_out_adjoints_that_are_zero_or_not_finite() -> None:
    reports = torch.tensor([[[0, 0, 8.0]], [[0, 1, 0.0]], [[0, 0, 4.0]], [[0, 0, 2.0]], [[0, 0, 0.0]]], dtype=torch.float64)
    assert float(health.log_growth(reports, 100.0)) == pytest.approx(math.log(2.0))
    assert float(health.log_growth(reports[:1], 100.0)) == 0.0


def test_share_that_critics_explain() -> None:
    torch.manual_seed(0)
    targets, error = torch.randn(10_000), torch.randn(10_000)
    assert float(health.explained_variance(targets, targets)) == pytest.approx(1.0)
    assert float(health.explained_variance(torch.full_like(targets, 3.0), targets)) == pytest.approx(0.0, abs=1e-5)
    assert float(health.explained_variance(targets + 0.5 * error, targets)) == pytest.approx(0.75, abs=0.02)  # 1 − 0.5², of 10,000 samples
    assert float(health.explained_variance(targets, torch.ones_like(targets))) == 0.0
    assert float(health.saturated_share(torch.tensor([0.5, -0.995, 1.0, 0.0]))) == 0.5


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({}, "healthy"),
        ({"growth": 1e5}, "exploding adjoints"),
        ({"growth": math.nan}, "exploding adjoints"),
        ({"clipped": 0.9}, "clipped adjoints"),
        ({"saturated": 0.6}, "saturated actions"),
        ({"explained": -1.0}, "blind critic"),
        ({"falls": 0.2}, "early falls"),
    ],
)
def test_each_sign_has_its_words(change: dict[str, float], name: str) -> None:
    now = GOOD._replace(**change)
    assert health.diagnosis(now) == name
    assert health.advice(now).startswith(name)


def test_bound_follows_the_median_of_adjoints() -> None:
    bound = RunningBound()
    grad = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    assert torch.equal(bounded(grad, bound.value)[0], grad)  # none before the first segment
    bound.update(2.0)
    assert float(bound.value) == pytest.approx(6.0)
    for nothing in (0.0, math.nan, math.inf):
        bound.update(nothing)
    assert float(bound.value) == pytest.approx(6.0)
    for _ in range(200):
        bound.update(50.0)
    assert float(bound.value) == pytest.approx(150.0, rel=1e-6)


def test_refinement_moves_towards_better_actions_within_its_divergence() -> None:
    """Samples whose first action was large were better: its mean grows, and rates shrink where the policy moves too far."""
    from torchdojo.learning.networks import Actor

    torch.manual_seed(0)
    actor = Actor(3, 2, (8,), 0.5)
    obs, noise = torch.randn(16, 8, 3), torch.randn(16, 8, 2)
    refinement, before = Refinement(actor, 0.2, 0.02), actor.mean(obs).mean((0, 1)).detach()

    def update(rate: float) -> None:
        optimizer = torch.optim.Adam(actor.parameters(), lr=rate)

        refinement.begin(obs)
        parts = [(part, 64) for _ in range(4) for part in torch.randperm(128).chunk(2)]
        refinement(obs, noise, noise[..., 0], parts, optimizer, lambda given: given.step(), lambda tensor: tensor)

    update(1e-2)
    moved = actor.mean(obs).mean((0, 1)).detach() - before
    assert float(moved[0]) > 0.02 and abs(float(moved[1])) < float(moved[0])
    assert refinement.kl > 0.0
    scale = refinement.scale
    update(0.3)
    assert refinement.kl > 0.04 and refinement.scale == pytest.approx(scale / 1.5)
    refinement.scale = 1.0
    update(1e-7)
    assert refinement.kl < 0.01 and refinement.scale == pytest.approx(1.5)


def test_compiled_refinement_takes_the_steps_of_adam() -> None:
    """Compiled and by PyTorch's own Adam, in float64: the same weights."""
    from torchdojo.learning.networks import Actor

    torch.manual_seed(0)
    obs, noise, gains = torch.randn(6, 4, 3).double(), torch.randn(6, 4, 2).double(), torch.randn(6, 4).double()
    parts, results = [(part, 8) for _ in range(3) for part in torch.randperm(24).chunk(3)], []
    for compiled in (True, False):
        torch.manual_seed(1)
        actor = Actor(3, 2, (8,), 0.5).double()
        refinement, optimizer = Refinement(actor, 0.2, 0.02, 0.5, compiled), torch.optim.Adam(actor.parameters(), lr=1e-2)

        def step(given: torch.optim.Optimizer) -> None:
            torch.nn.utils.clip_grad_norm_(given.param_groups[0]["params"], 0.5)
            given.step()

        for _ in range(2):
            refinement.begin(obs)
            with torch.compiler.set_stance("force_eager"):
                assert refinement(obs, noise, gains, parts, optimizer, step, lambda tensor: tensor) == 0
        results.append((list(actor.parameters()), refinement.kl))
    for one, other in zip(results[0][0], results[1][0], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)  # clipping by norm + 1e-6, and the order of sums
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-5)


def test_progress_without_a_terminal_is_lines(capsys: Any) -> None:
    progress = Progress("robot", 10_000)
    for samples in range(10, 10_001, 10):
        progress(samples, samples / 100, "return 3")
    progress(10_000, 100.0, "at last", force=True)
    progress.close()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 101 and lines[0] == "robot    100 of 10,000 samples, 1 CPU-s: return 3" and lines[-1].endswith("at last")
    Progress("robot", 100, quiet=True)(100, 1.0, "nothing")
    assert capsys.readouterr().err == ""


def test_metrics_and_lines_of_a_run_tell_its_health(tmp_path: Any, capsys: Any) -> None:
    pytest.importorskip("pytorch_lightning", reason="needs the extra torchdojo[learn]")
    from torchdojo.learning import read_config
    from torchdojo.learning.runs import Run

    settings = {"num_envs": 4, "horizon": 5, "samples": 400, "actor": [8], "critic": [8], "compile": False}
    run = Run(tmp_path, read_config({"env": "cartpole_swingup", "env_options": {"pool": 16}, "settings": settings}))
    run.begin()
    run.train()
    rows = list(csv.DictReader((tmp_path / "metrics.csv").open()))
    names = {"healthy", *(cause.name for cause in CAUSES)}
    for row in rows:
        assert 0.0 <= float(row["health_clipped"]) <= 1.0 and float(row["health_growth"]) > 0.0
        assert float(row["health_explained"]) <= 1.0 and 0.0 <= float(row["health_saturated"]) <= 1.0 and row["health"] in names
    told = capsys.readouterr().err
    assert told.count(" samples, ") == len(rows) and "growth" in told and "explained" in told

"""The search for a few parameters, and the two scripts that use it: a quadruped's gait, and gains of an exoskeleton."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import REPOSITORY
from torchdojo.learning.hill_climbing import climb
from torchdojo.native import loader
from torchdojo.runs.description import load_yaml

native = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")
TOP = torch.tensor([0.5, -0.7, 1.0, 0.0, 0.3], dtype=torch.float64)


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("batch", [1, 10])
def test_climbing_a_hill(batch: int) -> None:
    def score(parameters: Tensor) -> Tensor:
        values = -(parameters - TOP).norm(dim=-1)
        return torch.where(parameters[:, 0] < -0.05, torch.nan, values)  # a place where no score is finite

    found = climb(score, torch.zeros(5, dtype=torch.float64), episodes=200, batch=batch, seed=3)
    assert found.scores.shape == (200,) and found.parameters.shape == (200, 5)
    assert found.score > -0.4 > -float(TOP.norm()) and float(score(found.best[None])) == found.score
    again = climb(score, torch.zeros(5, dtype=torch.float64), episodes=200, batch=batch, seed=3)
    assert torch.equal(found.parameters, again.parameters)


def test_bad_numbers_of_episodes() -> None:
    with pytest.raises(ValueError, match="climb: got episodes=10 in batches of 3; allowed: a multiple"):
        climb(lambda p: p[:, 0], TOP, episodes=10, batch=3)


@native
@pytest.mark.slow
def test_a_gait_that_dojo_found_walks_here() -> None:
    """The parameters in a comment of Dojo's examples/learning/quadruped_sampling.jl."""
    module = script("learn_gait")
    env = module.Gait(load_yaml(module.CONFIG) | {"seconds": 2, "repeat": 10}, 2)
    standing = [0.1, 0.0, 1.0, 0.0, -1.5]
    walked = env.walk(torch.tensor([[0.36044, 0.15854, 0.95758, -0.32577, -1.48245], standing], dtype=torch.float64))
    assert walked.survived.all() and env.statistics["flagged"] == 0
    assert walked.distances[0] > 1.0 and abs(float(walked.distances[1])) < 0.1


@native
@pytest.mark.slow
def test_gains_are_tuned(shared_path: Callable[..., Path]) -> None:
    module = script("tune_exoskeleton")
    config = load_yaml(module.CONFIG) | {"seconds": 0.5, "arrival": 0.4, "episodes": 20, "steps": 4}
    report = module.tune(config, shared_path("models", "exoskeleton", "exoskeleton.urdf"))
    assert report["flagged"] == 0
    assert report["search"]["cost"] < report["before"]["cost"] and report["gradients"]["cost"] < report["before"]["cost"]

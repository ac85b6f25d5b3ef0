"""Compiled functions that skip checks: numbers of several robots, promises, and other shapes."""

from __future__ import annotations

import math

import pytest
import torch

from torchdojo.envs.direct import Direct


def scaled(numbers: dict[str, float], weight: torch.Tensor, fixed: bool = False) -> Direct:
    """x -> weight x up to a bound, if there is one."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (weight * x if math.isinf(numbers["bound"]) else (weight * x).clamp(max=numbers["bound"]),)

    return Direct(function, fixed=fixed)


@pytest.mark.slow
def test_robots_whose_numbers_differ_are_compiled_in_one_process():
    """Numbers that were seen with two values must not become symbols, which `math.isinf` does not take."""
    x, weight = torch.tensor([1.0, 2.0]), torch.tensor(3.0)
    for bound, expected in ((math.inf, [3.0, 6.0]), (4.0, [3.0, 4.0]), (5.0, [3.0, 5.0])):
        assert scaled({"bound": bound}, weight).first(x)[0].tolist() == expected


@pytest.mark.slow
@pytest.mark.parametrize("fixed", [False, True])
def test_weights_that_change_in_place_and_other_shapes(fixed):
    weight = torch.tensor(3.0)
    direct = scaled({"bound": math.inf}, weight, fixed)
    for factor, size in ((3.0, 2), (5.0, 2), (7.0, 4), (11.0, 2)):
        weight.fill_(factor)
        x = torch.arange(float(size))
        assert torch.equal(direct.first(x)[0], factor * x) and torch.equal(direct(x + 1.0)[0], factor * (x + 1.0))

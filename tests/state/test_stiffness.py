"""Explicit springs that are too stiff for the timestep: a warning with the numbers when a mechanism is built."""

from __future__ import annotations

import warnings

import pytest
import torch

import torchdojo as td
from torchdojo.state.stiffness import stiff_springs


def build(spring: float, **keywords: object) -> td.Mechanism:
    """A free body with a link of 0.05 kg·m² on a hinge without a lever; the pair has 1/J = 1/0.2 + 1/0.05."""
    hinge = td.Revolute("base", "link", axis=(0, 1, 0), spring=spring, **keywords)
    bodies = {"base": td.Body(2.0, (0.1, 0.2, 0.3)), "link": td.Body(1.0, (0.05, 0.05, 0.05))}
    return td.Mechanism(bodies, {"free": td.Floating(None, "base"), "hinge": hinge}, timestep=0.01)


def test_a_stiff_spring_is_told() -> None:
    with pytest.warns(UserWarning, match=r"joint 'hinge': got an explicit spring of 100 .* h²k/J = 0\.25 .* implicit=True"):
        mech = build(100.0)
    assert stiff_springs(mech) == {"hinge": pytest.approx(0.25, rel=1e-6)}


@pytest.mark.parametrize("given", [{"spring": 86.0}, {"implicit": True}, {"armature": 1.0}, {"damper": 10.0}], ids=str)
def test_others_are_not(given: dict[str, float]) -> None:
    """Below the bound, implicit, or with an armature or a damper that makes up for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(**{"spring": 100.0, **given})


@pytest.mark.parametrize("name", ["half_cheetah", "hopper", "walker2d"])
def test_models_are_not(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        getattr(td.models, name)()


def test_the_mass_matrix() -> None:
    """A lever and an armature add to J: 0.2 + 2 · 0.5² + 0.3."""
    joint = td.Revolute(None, "rod", axis=(0, 1, 0), child_anchor=(0, 0, 0.5), spring=1000.0, armature=0.3)
    with pytest.warns(UserWarning, match="h²k/J"):
        mech = td.Mechanism({"rod": td.Body(2.0, (0.1, 0.2, 0.3))}, {"hinge": joint}, timestep=0.02)
    assert stiff_springs(mech)["hinge"] == pytest.approx(4e-4 * 1000.0 / 1.0, rel=1e-6)


def test_environments_that_differ() -> None:
    """Levers and springs of each environment by themselves: J = 0.1 + 2 a², and only the last one is stiff."""
    levers = torch.tensor((0.5, 1.0, 0.1), dtype=torch.float64)
    anchors = torch.stack((torch.zeros(3), torch.zeros(3), levers), dim=-1).double()
    joint = td.Revolute(None, "rod", axis=(0, 1, 0), child_anchor=anchors, spring=torch.tensor([[100.0], [400.0], [500.0]]).double())
    with pytest.warns(UserWarning, match="h²k/J"):
        mech = td.Mechanism({"rod": td.Body(2.0, (0.1, 0.1, 0.1))}, {"hinge": joint}, timestep=0.01)
    assert stiff_springs(mech)["hinge"] == pytest.approx(1e-4 * 500.0 / 0.12, rel=1e-6)

"""Explicit springs that are too stiff for the timestep: a warning with the numbers when a mechanism is built."""

from __future__ import annotations

import warnings

import pytest

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


@pytest.mark.parametrize("mech", [lambda: build(39.0), lambda: build(100.0, implicit=True), lambda: build(100.0, armature=1.0)])
def test_others_are_not(mech: object) -> None:
    """Below the bound, implicit, or with an armature that makes up for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mech()  # type: ignore[operator]


def test_the_mass_matrix() -> None:
    """A lever and an armature add to J: 0.2 + 2 · 0.5² + 0.3."""
    joint = td.Revolute(None, "rod", axis=(0, 1, 0), child_anchor=(0, 0, 0.5), spring=1000.0, armature=0.3)
    with pytest.warns(UserWarning, match="h²k/J"):
        mech = td.Mechanism({"rod": td.Body(2.0, (0.1, 0.2, 0.3))}, {"hinge": joint}, timestep=0.02)
    assert stiff_springs(mech)["hinge"] == pytest.approx(4e-4 * 1000.0 / 1.0, rel=1e-6)

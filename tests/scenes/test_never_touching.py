"""Pairs that never touch: known geometry, what samples cannot say, and robots that keep their motion without them."""

from __future__ import annotations

import math

import pytest
import torch

import torchdojo as td

BALL = td.Sphere(0.1)


def chain(limits: tuple[float, float] | None) -> td.Mechanism:
    """Three balls at distances of 0.3 and 0.3, on hinges through the first and second, and a fixed ball 0.75 above the first."""
    bodies = {name: td.Body(1.0, inertia=(0.01, 0.01, 0.01), shape=BALL) for name in "abc"}
    joints = {
        "base": td.Revolute(None, "a", axis=(0, 1, 0)),
        "one": td.Revolute("a", "b", axis=(0, 1, 0), child_anchor=(0, 0, 0.3)),
        "two": td.Revolute("b", "c", axis=(0, 1, 0), child_anchor=(0, 0, 0.3), limits=limits),
    }
    return td.combine(arm=td.Mechanism(bodies, joints), top=td.Sphere(0.1, position=(0, 0, 0.75)), contacts=td.Filter(neighbors=1))


def test_known_geometry() -> None:
    """c meets a where its hinge bends by acos(−7/9) or more; only c reaches the ball above, where the hinge is nearly straight."""
    bend = math.pi - 2 * math.asin(1 / 3)  # |c − a| = 0.6 cos(bend/2) = 0.2
    free = chain(None).never_touching(2000)
    assert free == [("arm/a", "top"), ("arm/b", "top")]
    assert ("arm/a", "arm/c") in chain((-bend + 0.02, bend - 0.02)).never_touching(2000)
    assert ("arm/a", "arm/c") not in chain((-bend - 0.1, bend + 0.1)).never_touching(2000)
    bent = chain((1.2, 2.0))  # at most 0.6 cos(0.6) = 0.495 from a: 0.055 from the ball above
    assert ("arm/c", "top") in bent.never_touching(2000) and ("arm/c", "top") not in bent.never_touching(2000, margin=0.06)


def test_what_floats_may_meet_anything() -> None:
    arm = chain((-1.0, 1.0))
    scene = td.combine(scene=arm, ball=td.Body(1.0, shape=BALL), contacts=[("ball", "*")])
    assert {"ball"}.isdisjoint({name for pair in scene.never_touching(50) for name in pair})
    assert ("scene/arm/a", "scene/arm/c") in scene.never_touching(50)
    slide = {"slide": td.Prismatic(None, "a", axis=(0, 0, 1))}
    for limits, expected in ((None, []), ((-0.1, 0.1), [("part/a", "wall")])):
        slide["slide"] = td.Prismatic(None, "a", axis=(0, 0, 1), limits=limits)
        part = td.Mechanism({"a": td.Body(1.0, shape=BALL)}, slide)
        assert td.combine(part=part, wall=td.Sphere(0.1, position=(0, 0, 1.0))).never_touching(100) == expected


def test_batches_of_parameters() -> None:
    """A pair stays apart only if it does so in every environment: slides of two lengths below a ball."""
    for reach, expected in ((0.7, [("part/a", "wall")]), (0.9, [])):
        limits = torch.zeros(2, 1), torch.tensor([[0.1], [reach]])
        part = td.Mechanism({"a": td.Body(1.0, shape=BALL)}, {"slide": td.Prismatic(None, "a", axis=(0, 0, 1), limits=limits)})
        assert td.combine(part=part, wall=td.Sphere(0.1, position=(0, 0, 1.0))).never_touching(200) == expected


def test_a_scene_moves_the_same_without_them() -> None:
    scene = chain((-2.0, 2.0))
    scene.options = td.SolverOptions(kappa=1e-9)
    z = scene.initial_state(**{"arm/base": {"q": 0.3, "qd": 1.0}, "arm/two": {"q": 0.5, "qd": -2.0}})
    before = scene.rollout(z, steps=20).z
    for pair in scene.never_touching(500):
        scene.remove_contact(*pair)
    assert {contact.body for contact in scene.named_contacts().values()} == {"arm/c"}
    # The barrier's push from afar is gone: kappa over gaps of 0.1 to 1 m: 1.3e-7 after 20 steps.
    torch.testing.assert_close(scene.rollout(z, steps=20).z, before, rtol=0, atol=1e-6)


def test_errors() -> None:
    with pytest.raises(ValueError, match="samples"):
        chain(None).never_touching(0)
    with pytest.raises(ValueError, match="margin"):
        chain(None).never_touching(10, margin=-1.0)
    assert td.models.pendulum().never_touching(10) == []

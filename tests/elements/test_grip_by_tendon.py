"""A hand whose three fingers one string pulls grips a ball as hard as wanted, and lifts it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from torchdojo.native import loader

SCRIPT = Path(__file__).parents[2] / "scripts" / "grip_by_tendon.py"
pytestmark = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("grip_by_tendon", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("wanted", [2.0, 6.0])
def test_a_ball_is_gripped_and_lifted(script: ModuleType, wanted: float) -> None:
    hand = script.build()
    pull, grasps = script.find(hand, wanted)
    assert grasps <= 5
    lifted = script.grip(hand, pull, script.GRIP + script.RISE + script.HOLD)
    assert float(sum(lifted.forces.values())) == pytest.approx(wanted, rel=script.CLOSE)
    assert float(lifted.height) > script.BALL + 0.9 * script.LIFT
    ball = hand.body_state(lifted.path.z[-1], "ball")
    assert float(ball.v.norm()) < 5e-3 and float(ball.x[:2].norm()) < 5e-3  # it rests in the middle of the hand
    # the hand hangs by its servo, and carries all: hand, links and ball
    weight = 9.81 * sum(float(body.mass) for body in hand.bodies.values())
    sag = script.LIFT - float(hand.to_minimal(lifted.path.z[-1])[0][hand.coordinate_places()["lift"]])
    assert script.STIFF * sag == pytest.approx(weight, rel=1e-2)


def test_the_force_has_a_derivative_by_the_pull(script: ModuleType) -> None:
    hand = script.build()

    def force(pull: torch.Tensor) -> torch.Tensor:
        return torch.stack(list(script.grip(hand, pull, script.GRIP).forces.values())).sum()

    pull = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(force(pull), pull)
    step = 1e-4
    with torch.no_grad():
        differences = (force(pull + step) - force(pull - step)) / (2 * step)
    assert float(slope) == pytest.approx(float(differences), rel=1e-3)  # 120 steps of contact; differences have about four digits

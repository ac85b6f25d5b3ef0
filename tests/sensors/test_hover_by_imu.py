"""A quadrotor that sees its gyro and accelerometer alone comes to its place and hovers there."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "hover_by_imu.py"


@pytest.mark.slow
def test_a_quadrotor_hovers_by_its_imu() -> None:
    spec = importlib.util.spec_from_file_location("hover_by_imu", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    states, estimates, robot = script.hover(4.0)
    places = script.place_of(robot, states)
    away = (places - states.new_tensor(script.PLACE)).norm(dim=-1)
    assert float(away[0]) > 0.5 and float(away[-200:].max()) < 0.02
    assert float((places - estimates).norm(dim=-1).max()) < 0.002  # first order in the timestep

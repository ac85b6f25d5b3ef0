"""Fixtures that write small robot files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def write_mjcf(tmp_path: Path) -> Callable[..., Path]:
    def write(world: str, rest: str = "", name: str = "robot.xml") -> Path:
        path = tmp_path / name
        path.write_text(f'<mujoco><compiler angle="radian" autolimits="true"/>{rest}<worldbody>{world}</worldbody></mujoco>')
        return path

    return write


@pytest.fixture
def write_urdf(tmp_path: Path) -> Callable[..., Path]:
    def write(*elements: str, robot: str = '<robot name="r">') -> Path:
        path = tmp_path / "robot.urdf"
        path.write_text(f'<?xml version="1.0"?>{robot}{"".join(elements)}</robot>')
        return path

    return write

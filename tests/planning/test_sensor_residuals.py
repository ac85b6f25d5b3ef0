"""Sensors as residuals of plans: their derivatives, and a bound on what an accelerometer reads."""

from __future__ import annotations

import pytest
import torch

import torchdojo as td


def slider() -> td.Mechanism:
    mech = td.Mechanism({"cart": td.Body(1.0, (0.1, 0.1, 0.1))}, {"rail": td.Prismatic(None, "cart", axis=(1, 0, 0))}, timestep=0.05)
    mech.sensors["push"] = td.Sensor("accelerometer", site=td.Site("cart"))
    mech.sensors["place"] = td.Sensor("frame_position", site=td.Site("cart", (0.1, 0.0, 0.0)))
    return mech


def test_an_accelerometer_is_bounded_and_a_place_is_reached() -> None:
    mech = slider()
    start = mech.initial_state()

    def plan(*bounds: td.planning.Sensors) -> tuple[float, float]:
        reach = td.planning.Sensors("place", weight=(10.0, 0.0, 0.0), target=(0.6, 0.0, 0.0), at=-1)
        still = td.planning.State(start, weight=(0.0, 10.0), at=-1)
        problem = td.planning.Problem(mech, start, 20, costs=[reach, still, td.planning.Input(1e-4)], inequalities=bounds)
        found = td.planning.solve(problem)
        out = mech.step(found.z[:-1], found.u)
        pushes = mech.read_sensors(found.z[:-1], out, names=["push"])[:, 0]
        assert float(mech.read_sensors(found.z[-1], names=["place"])[0]) == pytest.approx(0.6, abs=0.02)
        return float(pushes.max()), float(pushes.min())

    # A bound of 2.2 m/s² on the push forward; without, half a metre in a second takes 3 m/s² at first.
    cap = td.planning.Sensors(["push"], weight=(1.0, 0.0, 0.0), target=(2.2, 0.0, 0.0))
    assert plan()[0] > 2.5 and plan(cap)[0] < 2.2 + 1e-3


def test_names_are_checked() -> None:
    mech = slider()
    for names, message in (("nose", "different names of"), ((), "different names of"), (["push", "push"], "different names of")):
        with pytest.raises(ValueError, match=message):
            td.planning.Problem(mech, mech.initial_state(), 3, costs=[td.planning.Sensors(names)])
    mech.sensors["clock"] = td.Sensor("clock")
    with pytest.raises(ValueError, match="a clock"):
        td.planning.Problem(mech, mech.initial_state(), 3, costs=[td.planning.Sensors("clock")])

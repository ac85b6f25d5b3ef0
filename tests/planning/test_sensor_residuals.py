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


def test_derivatives_of_readings_agree_with_differences() -> None:
    mech = slider()
    start = mech.initial_state(rail={"q": 0.1, "qd": 0.5})
    sensors = td.planning.Sensors(["place", "push"], at=[0, 2])
    problem = td.planning.Problem(mech, start, 3, costs=[sensors, td.planning.Input()])
    dynamics, bound, kappa = problem.dynamics, problem.costs[0], torch.tensor([1e-4], dtype=torch.float64)
    assert bound.rows is not None and bound.of_forces
    v = torch.tensor([[[0.3], [-0.2], [0.5]]], dtype=torch.float64)
    nodes = dynamics.rollout(problem.start, v, None, kappa)
    found = dynamics.force_jacobian(nodes, kappa, bound.rows, bound.nodes)
    assert not found[:, 1].any() and float(found[0, 2, 3, 2]) == pytest.approx(1.0)  # m/s² per N on 1 kg
    for i in range(3):  # q, qd, v
        ends = []
        for sign in (1.0, -1.0):
            x, u = nodes.x.clone(), v.clone()
            (x if i < 2 else u)[..., i % 2] += sign * 1e-5
            moved = dynamics.evaluate(x, u, nodes.w, kappa)
            ends.append(bound.value(dynamics, type(nodes)(*(value[:, None] for value in moved)))[:, 0])
        torch.testing.assert_close(found[:, bound.nodes, :, i], (ends[0] - ends[1]) / 2e-5, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_an_accelerometer_is_bounded_and_a_place_is_reached() -> None:
    mech = slider()
    start = mech.initial_state()

    def plan(*bounds: td.planning.Sensors) -> float:
        reach = td.planning.Sensors("place", weight=(10.0, 0.0, 0.0), target=(0.6, 0.0, 0.0), at=-1)
        still = td.planning.State(start, weight=10.0, rows=[1], at=-1)
        problem = td.planning.Problem(mech, start, 20, costs=[reach, still, td.planning.Input(1e-4)], inequalities=bounds)
        found = td.planning.solve(problem)
        out = mech.step(found.z[:-1], found.u)
        assert float(mech.read_sensors(found.z[-1], names=["place"])[0]) == pytest.approx(0.6, abs=0.02)
        return float(mech.read_sensors(found.z[:-1], out, names=["push"])[:, 0].max())

    # Half a metre in a second takes 3 m/s² at first.
    cap = td.planning.Sensors(["push"], weight=(1.0, 0.0, 0.0), target=(2.2, 0.0, 0.0))
    assert plan() > 2.5 and plan(cap) < 2.2 + 1e-3


def test_names_are_checked() -> None:
    mech = slider()
    for names, message in (("nose", "different names of"), ((), "different names of"), (["push", "push"], "different names of")):
        with pytest.raises(ValueError, match=message):
            td.planning.Problem(mech, mech.initial_state(), 3, costs=[td.planning.Sensors(names)])
    mech.sensors["clock"] = td.Sensor("clock")
    with pytest.raises(ValueError, match="a clock"):
        td.planning.Problem(mech, mech.initial_state(), 3, costs=[td.planning.Sensors("clock")])

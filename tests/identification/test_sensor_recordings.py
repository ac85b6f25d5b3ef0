"""Recorded readings of an IMU and a force sensor show parameters that poses do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import torchdojo as td
from torchdojo.identification import LeastSquares, Parameter, ParametricMechanism, Scales, WindowDataset, WindowResidual, gauss_newton
from torchdojo.identification.recordings import read_recordings
from torchdojo.identification.synthetic import record_rollouts

SENSORS = {"imu": 1e-2, "grip": 1e-1}


def pendulum(mass: float, damper: float) -> ParametricMechanism:
    rod = td.Body(mass, (0.02, 0.02, 0.02))
    hinge = td.Revolute(None, "rod", axis=(0, 1, 0), child_anchor=(0, 0, 0.3), damper=damper)
    mech = td.Mechanism({"rod": rod}, {"hinge": hinge}, timestep=0.01)
    mech.sensors["imu"] = td.Sensor("accelerometer", site=td.Site("rod", (0.0, 0.0, -0.1)))
    mech.sensors["grip"] = td.Sensor("force", site=td.Site("rod", (0.0, 0.0, 0.3)))
    unknowns = [Parameter("mass", mass, "bodies.rod.mass", lower=0.0), Parameter("damper", damper, "joints.hinge.damper", lower=0.0)]
    return ParametricMechanism(mech, unknowns)


def recorded(folder, every: int):
    """Two swings, with a sample after every so many steps."""
    truth = pendulum(1.5, 0.2)
    q = torch.tensor([[0.5], [-0.8]], dtype=torch.float64)
    z = truth.mechanism.to_maximal(q, torch.zeros_like(q))
    np.savez(folder / "swings.npz", **record_rollouts(truth, z, 12, every=every, sensors=tuple(SENSORS)))
    return read_recordings(folder / "swings.npz")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("imu"), 2)


def test_a_fit_to_readings_finds_mass_and_damper(tmp_path) -> None:
    data = recorded(tmp_path, 1)
    assert data.num_readings == 6 and data.readings().shape == (len(data.samples), 6)
    model = pendulum(1.0, 0.05)
    residual = WindowResidual(model, data, Scales(), sensors=SENSORS)
    fit = gauss_newton(LeastSquares(residual, WindowDataset(data, horizon=4, stride=4).stack()))
    assert float(fit.values["mass"]) == pytest.approx(1.5, rel=1e-5) and float(fit.values["damper"]) == pytest.approx(0.2, rel=1e-5)


@pytest.mark.parametrize("free", [False, True])
def test_jacobians_of_readings_agree_with_differences(data, free) -> None:
    model = pendulum(1.2, 0.1)
    residual = WindowResidual(model, data, Scales(position=None, rotation=None, joint=None), sensors=SENSORS)
    windows = WindowDataset(data, horizon=3, stride=20).stack()
    start = windows[:, 0].clone() if free else None
    raw = model.encode(model.values()).detach()
    found = residual.linearize(windows, raw, start)
    for i in range(len(raw)):
        step = 1e-5 * torch.eye(len(raw), dtype=torch.float64)[i]
        high, low = (residual.evaluate(windows, raw + sign * step, start)[0] for sign in (1, -1))
        slope = (high - low).detach() / 2e-5
        torch.testing.assert_close(found.jacobian[..., i], slope, rtol=1e-5, atol=1e-5 * float(slope.abs().max()))
    if not free:
        return
    change = torch.randn(residual.start_size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ends = [residual.evaluate(windows, raw, residual.correct(start, sign * 1e-6 * change))[0] for sign in (1, -1)]
    slope = (ends[0] - ends[1]).detach() / 2e-6
    torch.testing.assert_close(found.by_start @ change, slope, rtol=1e-5, atol=1e-5 * float(slope.abs().max()))


def test_other_readings_than_recorded_are_refused(data) -> None:
    with pytest.raises(ValueError, match="recording with 6"):
        WindowResidual(pendulum(1.0, 0.1), data, sensors={"imu": 1.0})
    with pytest.raises(ValueError, match="positive numbers"):
        WindowResidual(pendulum(1.0, 0.1), data, sensors={"imu": 0.0, "grip": 1.0})
    with pytest.raises(ValueError, match="sensors are"):
        WindowResidual(pendulum(1.0, 0.1), data, sensors={"nose": 1.0})

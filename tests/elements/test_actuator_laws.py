"""Laws of muscles are MuJoCo's, and gradients pass them."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

from torchdojo.elements.actuator_laws import DYNAMICS, muscle_bias, muscle_gain, muscle_rate

TOLERANCE = 1e-10


def numbers(rng: np.random.Generator) -> np.ndarray:
    """Operating range, peak force, which is negative in half of the muscles, scale, lmin, lmax, vmax, fpmax, fvmax."""
    scaled = np.array([0.75, 1.05, 50.0, 200.0, 0.5, 1.6, 1.5, 1.3, 1.2]) * np.concatenate((np.ones(3), rng.uniform(0.8, 1.2, 6)))
    scaled[2] = rng.choice([-1.0, 50.0])
    return scaled


def test_muscles_are_mujocos() -> None:
    rng, worst = np.random.default_rng(0), np.zeros(3)
    for _ in range(300):
        prm, lengths = numbers(rng), np.array([0.2, 0.5]) + rng.uniform(-0.1, 0.1, 2)
        length, velocity, acc0 = rng.uniform(0, 0.9), rng.normal(), rng.uniform(0.1, 3)
        times, (ctrl, act) = np.array([0.01, 0.04, rng.choice([0.0, 0.3])]), rng.uniform(-0.5, 1.5, 2)
        theirs = np.array([
            mujoco.mju_muscleGain(length, velocity, lengths, acc0, prm),
            mujoco.mju_muscleBias(length, lengths, acc0, prm),
            mujoco.mju_muscleDynamics(ctrl, act, times),
        ])  # fmt: skip
        given = [torch.as_tensor(value, dtype=torch.float64) for value in (length, velocity, lengths, acc0, prm)]
        ours = np.array([
            float(muscle_gain(*given)),
            float(muscle_bias(given[0], *given[2:])),
            float(muscle_rate(*[torch.as_tensor(value, dtype=torch.float64) for value in (ctrl, act, times)])),
        ])  # fmt: skip
        worst = np.maximum(worst, np.abs(ours - theirs) / np.maximum(1, np.abs(theirs)))
    assert (worst < TOLERANCE).all(), worst


def test_gradients_of_muscles() -> None:
    rng = np.random.default_rng(1)
    prm = torch.as_tensor(np.stack([numbers(rng) for _ in range(20)]))
    length, velocity, acc0 = (torch.as_tensor(rng.uniform(low, high, 20)) for low, high in ((0.1, 0.8), (-1, 1), (0.5, 2)))
    lengths = torch.tensor([0.2, 0.5], dtype=torch.float64).expand(20, 2)
    leaves = [value.clone().requires_grad_() for value in (length, velocity, lengths, acc0)]
    assert torch.autograd.gradcheck(lambda *given: muscle_gain(*given, prm), leaves)
    assert torch.autograd.gradcheck(lambda *given: muscle_bias(*given, prm), [leaves[0], *leaves[2:]])
    ctrl, act = (torch.as_tensor(rng.uniform(0.05, 0.95, 20)).requires_grad_() for _ in range(2))
    for width in (0.0, 0.3):
        times = torch.tensor([0.01, 0.04, width], dtype=torch.float64).expand(20, 3)
        assert torch.autograd.gradcheck(lambda *given, times=times: muscle_rate(*given, times), [ctrl, act])


@pytest.mark.parametrize("name", [name for name in DYNAMICS if name != "none"])
def test_activations_step_as_mujocos(name: str) -> None:
    """A hundred steps under random controls."""
    prm = {"muscle": "0.01 0.04 0.1", "integrator": "1"}.get(name, "0.05")
    model = mujoco.MjModel.from_xml_string(
        '<mujoco><option timestep="0.004"/><worldbody><body><joint name="j"/><geom size="0.1"/></body></worldbody><actuator>'
        f'<general joint="j" dyntype="{name}" dynprm="{prm}" actlimited="true" actrange="-0.6 0.8"/></actuator></mujoco>'
    )
    data, rng = mujoco.MjData(model), np.random.default_rng(2)
    act = torch.zeros((), dtype=torch.float64)
    given = torch.as_tensor(model.actuator_dynprm[0, :3])
    for _ in range(100):
        data.ctrl[0] = 3 * rng.normal()
        act = DYNAMICS[name].advance(torch.tensor(data.ctrl[0]), act, given, torch.tensor(0.004, dtype=torch.float64)).clamp(-0.6, 0.8)
        mujoco.mj_step(model, data)
        assert abs(float(act) - data.act[0]) < TOLERANCE

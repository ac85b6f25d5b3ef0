"""An arm on a fixed base whose motors move it: recordings of joint angles and inputs, their replay, and fits of damping and friction."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.identification import (
    DataError,
    LeastSquares,
    Parameter,
    ParametricMechanism,
    Recordings,
    Scales,
    WindowDataset,
    WindowLoss,
    WindowResidual,
    gauss_newton,
    open_loop,
    read_recordings,
    record_rollouts,
)
from torchdojo.identification.recordings import recordings_of

TRUTH = {"damping": (0.1, 0.05), "friction": (0.2, 0.1)}
START = {"damping": (0.05, 0.03), "friction": (0.1, 0.05)}
SAMPLES, DT = 60, 0.01


def arm(timestep: float = DT) -> td.Mechanism:
    def rod() -> td.Body:
        return td.Body(1.0, shape=td.Box((0.05, 0.05, 0.5)))

    def hinge(number: int, parent: str | None, child: str, **anchor: Any) -> td.Revolute:
        numbers = {"damper": TRUTH["damping"][number], "friction": TRUTH["friction"][number]}
        return td.Revolute(parent, child, axis=(0, 1, 0), child_anchor=(0, 0, 0.25), **anchor, **numbers)

    joints = {"shoulder": hinge(0, None, "upper"), "elbow": hinge(1, "upper", "lower", parent_anchor=(0, 0, -0.25))}
    return td.Mechanism({"upper": rod(), "lower": rod()}, joints, timestep=timestep)


def unknown(mech: td.Mechanism) -> ParametricMechanism:
    """The arm with unknown dampers and friction, one number for each joint and kind."""
    parameters = [
        Parameter(f"{kind}_{joint}", START[kind][i], f"joints.{joint}.{field}", lower=0.0)
        for kind, field in (("damping", "damper"), ("friction", "friction"))
        for i, joint in enumerate(("shoulder", "elbow"))
    ]
    return ParametricMechanism(mech, parameters)


def moved(every: int) -> dict[str, np.ndarray]:
    """Four motions by torques that oscillate, in steps of DT / every."""
    generator = torch.Generator().manual_seed(0)
    mech = arm(DT / every)
    hertz = 1 + 3 * torch.rand(4, 1, 2, generator=generator, dtype=torch.float64)
    time = DT * torch.arange(SAMPLES, dtype=torch.float64)[:, None]
    u = torch.tensor((4.0, 1.5), dtype=torch.float64) * torch.sin(2 * math.pi * hertz * time)
    return record_rollouts(ParametricMechanism(mech, ()), mech.initial_state((4,)), SAMPLES, every, u)


@pytest.fixture(scope="module", params=[1, 2])
def motion(request: pytest.FixtureRequest) -> tuple[ParametricMechanism, Recordings]:
    return unknown(arm(DT / request.param)), recordings_of(moved(request.param))


def truth(model: ParametricMechanism) -> Tensor:
    return model.encode({f"{k}_{j}": torch.tensor(TRUTH[k][i]) for k in TRUTH for i, j in enumerate(("shoulder", "elbow"))})


def test_recordings_come_back(tmp_path: Any) -> None:
    """A fixed base has no recorded bodies, and a sample has the inputs that are held after it."""
    arrays = moved(2)
    assert set(arrays) == {"joint_angle", "joint_velocity", "input", "offsets", "dt"}
    np.savez(tmp_path / "arm.npz", **arrays)
    data = read_recordings(tmp_path / "arm.npz")
    assert (data.num_bodies, data.num_joints, data.num_inputs, len(data)) == (0, 2, 2, 4)
    np.testing.assert_array_equal(data.inputs().numpy(), arrays["input"])
    np.testing.assert_array_equal(data.joints()[1].numpy(), arrays["joint_velocity"])
    empty = {"position": np.zeros((240, 0, 3)), "quaternion": np.zeros((240, 0, 4))}
    assert torch.equal(recordings_of({**arrays, **empty}).samples, data.samples)
    # Velocities as differences; the first sample of each motion goes, with its inputs.
    bare = recordings_of({name: value for name, value in arrays.items() if name != "joint_velocity"})
    kept = np.arange(240) % SAMPLES > 0
    np.testing.assert_array_equal(bare.inputs().numpy(), arrays["input"][kept])
    np.testing.assert_allclose(bare.joints()[1].numpy(), arrays["joint_velocity"][kept], atol=1e-9)
    chosen = data.select([2])
    assert torch.equal(chosen.inputs(), data.inputs()[2 * SAMPLES : 3 * SAMPLES])


def test_inputs_are_replayed() -> None:
    """The mechanism that made a recording repeats it; without its inputs it does not."""
    model, data = ParametricMechanism(arm(), ()), recordings_of(moved(1))
    replay = open_loop(model, data)
    # The solver's tolerance of 1e-9 N·m·s over inertias of 0.01 kg·m², over 0.6 s.
    assert float(replay.joint.max()) < 1e-6 and replay.position.numel() == 0 and torch.equal(replay.main, replay.joint)
    assert set(replay.summary()) == {"trajectories", "flagged_steps", "joint_error_degrees", "joint_error_median_degrees"}
    without = recordings_of({name: value for name, value in moved(1).items() if name != "input"})
    assert float(open_loop(model, without).joint.max()) > 0.1
    misfit, solved = WindowResidual(model, data)(WindowDataset(data, 20, 10).stack()), data.num_inputs
    assert float(misfit.abs().max()) < 1e-5 and solved == 2


@pytest.mark.parametrize("backend", ["auto", pytest.param("reference", marks=pytest.mark.slow)])
def test_jacobians_under_inputs(motion: tuple[ParametricMechanism, Recordings], backend: str) -> None:
    """Against central differences; both backends of single steps, with substeps that hold the inputs."""
    model, data = motion
    model.mechanism.options = td.SolverOptions(backend=backend)
    residual = WindowResidual(model, data, Scales(joint_velocity=0.1))
    windows, raw = WindowDataset(data, 3, 25).stack(), model.raw.detach()
    found = residual.linearize(windows, raw, windows[:, 0])
    assert found.by_start is not None
    step, generator = 1e-6, torch.Generator().manual_seed(0)
    for jacobian, tolerance in ((found.jacobian, 2e-4), (found.by_start, 2e-3)):  # of a step solved to 1e-9, in units of the scales
        direction = torch.randn(jacobian.shape[-1], generator=generator, dtype=torch.float64)
        ends = []
        for sign in (1, -1):
            moved_raw = raw + sign * step * direction if jacobian is found.jacobian else raw
            start = windows[:, 0] if jacobian is found.jacobian else residual.correct(windows[:, 0], sign * step * direction)
            ends.append(residual.evaluate(windows, moved_raw, start)[0])
        torch.testing.assert_close(jacobian @ direction, (ends[0] - ends[1]) / (2 * step), atol=tolerance, rtol=1e-4)
    model.mechanism.options = td.SolverOptions()


def test_damping_and_friction_of_a_moved_arm(motion: tuple[ParametricMechanism, Recordings]) -> None:
    """Free starts, since a recorded velocity is a mean over the steps of a sample."""
    model, data = motion
    fit = gauss_newton(LeastSquares(WindowResidual(model, data), WindowDataset(data, 15, 15).stack(), free_start=True))
    for kind, values in TRUTH.items():
        for joint, value in zip(("shoulder", "elbow"), values, strict=True):
            assert float(fit.values[f"{kind}_{joint}"]) == pytest.approx(value, rel=1e-3)
    assert all(fit.identifiability.identifiable.values())


def test_free_starts_of_a_window_loss() -> None:
    """The loss has the starts of windows as a parameter; LBFGS finds those that the recording hides behind noise."""
    data, model = recordings_of(moved(1)), unknown(arm())
    noise = 2e-3 * torch.randn(data.joints()[0].shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    noisy = {**moved(1), "joint_angle": moved(1)["joint_angle"] + noise.numpy()}
    recordings = recordings_of(noisy)
    windows = WindowDataset(recordings, 15, 15)
    loss, still = WindowLoss(model, recordings, free_start=True), WindowLoss(model, recordings)
    assert loss.start is not None and loss.start.shape == (len(recordings.samples), 4) and still.start is None
    raw, first = truth(model), windows.starts
    assert "start" not in still.state_dict()
    value = loss(windows.stack(), raw, first)
    (gradient,) = torch.autograd.grad(value, loss.start)
    assert torch.equal(gradient.abs().sum(-1).nonzero()[:, 0], first)  # of the samples that start windows, and no others
    drawn = torch.randn(len(first), 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    change = torch.zeros_like(loss.start).index_put((first,), drawn)
    ends = []
    for sign in (1, -1):
        with torch.no_grad():
            loss.start.copy_(sign * 1e-5 * change)
            ends.append(float(loss(windows.stack(), raw, first)))
            loss.start.zero_()
    assert float((gradient * change).sum()) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5)

    optimizer = torch.optim.LBFGS([loss.start], max_iter=30, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value: Tensor = loss(windows.stack(), raw, first)
        value.backward()
        return value

    optimizer.step(closure)
    with torch.no_grad():
        found = loss.starts(windows.stack(), first)
    assert found is not None
    exact = data.samples[first, :2]
    error, before = (float((angles - exact).square().mean().sqrt()) for angles in (found[:, :2], recordings.samples[first, :2]))
    assert error < 0.6 * before
    assert float(closure().detach()) < 1.1 * 0.5 * 2 * (2e-3 / 1e-2) ** 2  # the noise of two angles, in units of their scale

    for wrong in (None, first[:-1], first + 1):
        with pytest.raises(ValueError, match=r"free_start=True\): got first of shape .* allowed: the rows of their first samples"):
            loss(windows.stack(), raw, wrong)
    with pytest.raises(ValueError, match="got first= without free starts"):
        still(windows.stack(), raw, first)


def test_one_number_is_one_number() -> None:
    """A parameter of shape () or (1,) sets masses, of shape (), and dampers of hinges, of shape (1,). So does a batch of it."""
    mech, given = arm(), {"lower": 0.0}
    model = ParametricMechanism(
        mech, [Parameter("damping", 0.02, "joints.*.damper", **given), Parameter("mass", (1.5,), "bodies.*.mass", **given)]
    )
    assert model.labels == ["damping", "mass[0]"]
    baked = model.baked()
    assert baked.joints["elbow"].damper.tolist() == [0.02] and baked.bodies["upper"].mass.item() == pytest.approx(1.5)
    raw = torch.linspace(-0.2, 0.2, 8, dtype=torch.float64)[:, None] + model.raw.detach()
    fields = {path: tuple(value.shape) for path, value in model._computed(model.values(raw)).items()}
    assert fields == {"joints.shoulder.damper": (8, 1), "joints.elbow.damper": (8, 1), "bodies.upper.mass": (8,), "bodies.lower.mass": (8,)}
    z = mech.initial_state((8,), shoulder={"q": 0.5})
    path = model.rollout(z, 3, raw)
    for i in range(8):
        torch.testing.assert_close(path.z[i], model.rollout(z[i], 3, raw[i]).z, atol=1e-9, rtol=0)
    with pytest.raises(ValueError, match=r"has shape \(\) and would be set to \(2,\); allowed: its shape"):
        ParametricMechanism(mech, [Parameter("mass", (1.0, 2.0), "bodies.*.mass")])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input": np.zeros((3, 2))}, r"input is float64 \(3, 2\); allowed: numbers \(240,\) or \(240, inputs\)"),
        ({"input": np.full((240, 2), np.nan)}, "input is not finite in row 0"),
        ({"joint_angle": None}, "lacks position, quaternion"),
        ({"position": np.zeros((240, 0, 3))}, "lacks quaternion"),
    ],
)
def test_bad_recordings(changes: dict[str, Any], message: str) -> None:
    arrays = {name: value for name, value in {**moved(1), **changes}.items() if value is not None}
    with pytest.raises(DataError, match=message):
        recordings_of(arrays)


def test_inputs_that_do_not_fit() -> None:
    arrays = moved(1)
    data = recordings_of({**arrays, "input": arrays["input"][:, :1]})
    with pytest.raises(DataError, match=r"the recording has 1 inputs; this mechanism has 2, in the order of \['shoulder', 'elbow'\]"):
        open_loop(ParametricMechanism(arm(), ()), data)
    with pytest.raises(DataError, match="with_heading: got 0 recorded bodies and 1 inputs; allowed: bodies, and no inputs"):
        data.with_heading()
    with pytest.raises(DataError, match="the recording has inputs; compare windows instead"):
        ParametricMechanism(arm(), ())(data.samples[:1], data, 3)
    with pytest.raises(ValueError, match=r"got u of shape \(4, 3, 2\); allowed: \(4, 60, 2\)"):
        record_rollouts(ParametricMechanism(arm(), ()), arm().initial_state((4,)), 60, 1, torch.zeros(4, 3, 2))

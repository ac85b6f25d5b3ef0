"""Derivatives of steps under controls of drives, and of what sensors read in them."""

from __future__ import annotations

import pytest
import torch
from test_drive_inverse import arm, motion
from torch import Tensor

import torchdojo as td

KINDS = ("gyro", "accelerometer", "velocimeter", "frame_position", "force", "torque")


def driven(*, fan: bool = True) -> tuple[td.Mechanism, Tensor, Tensor, Tensor]:
    """An arm with muscles, a motor and, perhaps, a fan, its sensors, and states, controls and activations inside of their ranges."""
    mech = arm(smooth=0.2)
    if not fan:
        mech.drives = td.Drives(mech, {name: drive for name, drive in mech.drives.drives.items() if name != "fan"})
    mech.sites["hand"] = td.Site("fore", (0.1, 0.02, -0.03), (0.8, 0.6, 0.0, 0.0))
    mech.sensors.update({kind: td.Sensor(kind, site="hand") for kind in KINDS})
    mech.sensors["turn"] = td.Sensor("joint_position", joint="elbow")
    q, qd, _ = motion(3)
    generator = torch.Generator().manual_seed(4)
    ctrl, act = (0.3 + 0.4 * torch.rand(3, k, generator=generator).double() for k in (len(mech.drives.names), 4))
    ctrl[:, 4:] = 0.1 * ctrl[:, 4:]
    return mech, mech.to_maximal(q, qd), ctrl, act


@pytest.mark.parametrize("fan", [False, True], ids=["inputs", "wrenches"])
def test_derivatives_agree_with_differences(fan: bool) -> None:
    mech, z, ctrl, act = driven(fan=fan)
    lin = mech.drives.linearize(z, ctrl, act, sensors=True)
    assert not lin.status.any()
    n, size = 12 * mech.num_bodies, 12 * mech.num_bodies + 4
    assert lin.A.shape == (3, size, size)
    assert lin.B.shape == (3, size, ctrl.shape[-1])

    def values(change: Tensor) -> tuple[Tensor, Tensor]:
        """Changes of the state after the step, and readings."""
        start = mech.retract(z, change[..., :n])
        step = mech.drives.step(start, ctrl + change[..., size:], act + change[..., n:size])
        u, wrench, _ = mech.drives.inputs(ctrl + change[..., size:], act + change[..., n:size], start)
        y = mech.read_sensors(start, step.out, u=u, wrench=wrench)
        return torch.cat((mech.difference(step.out.z, lin.z), step.act - lin.act), dim=-1), y

    torch.testing.assert_close(values(z.new_zeros(3, size + ctrl.shape[-1]))[1], lin.y, rtol=1e-9, atol=1e-9)
    step = 1e-5
    for k in range(size + ctrl.shape[-1]):
        unit = torch.zeros(size + ctrl.shape[-1]).double()
        unit[k] = step
        plus, minus = values(unit.expand(3, -1)), values(-unit.expand(3, -1))
        moved, read = ((a - b) / (2 * step) for a, b in zip(plus, minus, strict=True))
        ours = (lin.A, lin.C, k) if k < size else (lin.B, lin.D, k - size)
        # Readings of forces and accelerations are up to 1e6 by rad, over a step of 1 ms, and errors of differences are relative to that.
        torch.testing.assert_close(ours[0][..., ours[2]], moved, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(ours[1][..., ours[2]], read, rtol=1e-6, atol=1e-6 * float(lin.C.abs().max()))


def test_batches_are_rows_of_single_calls_and_failures_have_none() -> None:
    mech, z, ctrl, act = driven()
    z[1, 3] = torch.nan
    lin = mech.drives.linearize(z, ctrl, act, sensors=["gyro", "force"])
    assert lin.status.bool().tolist() == [False, True, False]
    assert not lin.A[1, :24].any() and not lin.C[1].any() and not lin.D[1].any()
    one = mech.drives.linearize(z[2], ctrl[2], act[2], sensors=["gyro", "force"])
    for name in ("z", "act", "A", "B", "y", "C", "D"):
        ours, alone = getattr(lin, name)[2], getattr(one, name)
        torch.testing.assert_close(ours, alone, rtol=0, atol=1e-9 * max(1.0, float(alone.abs().max())))  # stiff forces round differently
    assert mech.drives.linearize(z[0], ctrl[0]).y is None


def test_what_linearizations_of_drives_refuse() -> None:
    mech, z, ctrl, act = driven()
    with pytest.raises(ValueError, match="act"):
        mech.drives.linearize(z, ctrl, act[:, :2])
    with pytest.raises(ValueError, match="nowhere"):
        mech.drives.linearize(z, ctrl, act, sensors=["nowhere"])
    with pytest.raises(ValueError, match=r"use mech.drives.step\(z, ctrl, act\)"):
        mech.linearize(z, ctrl=ctrl, sensors=True)

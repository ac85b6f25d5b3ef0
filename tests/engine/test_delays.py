"""Drives with a delay: controls arrive when MuJoCo's do, are carried among the activations, and pass gradients; what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.io.mjcf.load import load_mjcf
from torchdojo.io.mjcf.write import write_mjcf

H = 0.01
TEXT = """
<mujoco>
  <option timestep="0.01" gravity="0 0 0" integrator="implicitfast"><flag contact="disable"/></option>
  <worldbody>
    <body name="cart"><joint name="rail" type="slide" axis="1 0 0"/><geom size="0.1"/><site name="nose" pos="0.1 0 0"/>
      <body name="pole"><joint name="hinge" axis="0 1 0" damping="0.1"/><geom type="capsule" fromto="0 0 0 0 0 0.5" size="0.02"/></body>
    </body>
  </worldbody>
  <actuator>
    <motor name="plain" joint="rail" ctrlrange="-2 2"/>
    <motor name="three" joint="rail" delay="0.03" nsample="6" ctrlrange="-2 2"/>
    <position name="servo" joint="hinge" kp="2" delay="0.025" nsample="4"/>
    <general name="filter" joint="hinge" dyntype="filter" dynprm="0.04" delay="0.01" nsample="1" actearly="true"/>
    <motor name="oldest" site="nose" gear="1 0 0 0 0 0" delay="0.2" nsample="5"/>
  </actuator>
</mujoco>
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("delays") / "delayed.xml"
    file.write_text(TEXT)
    return file


def loaded(path: Path) -> td.Mechanism:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the report says that drives are explicit
        return load_mjcf(path, contacts=None, servos="explicit")


def controls(steps: int) -> Tensor:
    return 1.5 * torch.randn(steps, 5, generator=torch.Generator().manual_seed(0)).double()


def lags(mech: td.Mechanism) -> dict[str, int]:
    return {name: place.stop - place.start for name, place in mech.drives.delays.items()}


def test_controls_arrive_as_mujocos(path: Path) -> None:
    """Forces without bias depend on the controls alone, activations too. MuJoCo keeps five controls for the last drive."""
    mech = loaded(path)
    assert lags(mech) == {"three": 3, "servo": 3, "filter": 1, "oldest": 5}
    assert mech.drives.activated == ("filter",) and mech.drives.num_activations == 1 + 12
    assert mech.drives.carried[:4] == ("filter", "three, 1 steps ago", "three, 2 steps ago", "three, 3 steps ago")
    assert mech.actuators.names == ("plain",)
    model = mujoco.MjModel.from_xml_path(str(path))
    data, ctrl, forces, acts = mujoco.MjData(model), controls(30), [], []
    for control in ctrl.numpy():
        data.ctrl[:] = control
        mujoco.mj_step(model, data)
        forces.append(data.actuator_force.copy())
        acts.append(data.act.copy())
    out = mech.drives.rollout(mech.initial_state(), ctrl)
    own = [i for i, name in enumerate(mech.drives.names) if name not in ("plain", "servo")]
    assert np.abs(out.force.numpy() - np.array(forces))[:, own].max() < 1e-12
    assert np.abs(out.act[1:, :1].numpy() - np.array(acts)).max() < 1e-12
    rail = mech.to_minimal(out.path.z)[0][-1]
    assert np.abs(rail.numpy() - data.qpos).max() < 0.02 * np.abs(data.qpos).max()  # both err by the order of h


@pytest.mark.parametrize("interp", ["linear", "cubic"])
def test_interpolation_is_reported_where_it_matters(interp: str, path: Path, tmp_path: Path) -> None:
    for delay, count in (("0.025", 1), ("0.03", 0)):
        file = tmp_path / "interpolated.xml"
        file.write_text(TEXT.replace('delay="0.025"', f'delay="{delay}" interp="{interp}"'))
        report = loaded(file).load_report.of_kind("delays of actuators")
        assert len(report) == count and all(entry.names == ("servo",) and entry.did == "approximated" for entry in report)


def finger() -> td.Mechanism:
    """Three drives with delays, one of which has an activation, and one without."""
    link = {"mass": 0.1, "inertia": (1e-3, 1e-3, 1e-4)}
    mech = td.Mechanism(
        {"link": td.Body(**link)},
        {"knuckle": td.Revolute(None, "link", axis=(0, 1, 0), child_anchor=(0, 0, 0.1), damper=0.01)},
        timestep=H,
    )
    affine = {"gain_numbers": (0.2, 0.1, -0.05), "bias_numbers": (0.0, -0.3, -0.01)}
    mech.drives = td.Drives(
        mech,
        {
            "late": td.Drive(joint="knuckle", delay=0.03, ctrlrange=(-1.0, 1.0), **affine),
            "muscle": td.Drive.muscle(joint="knuckle", gear=0.02, lengths=(-0.03, 0.03), force=30.0, delay=0.02),
            "now": td.Drive(joint="knuckle", **affine),
            "early": td.Drive(
                joint="knuckle", dynamics="filter", dynamics_numbers=(0.05,), gain_numbers=(0.1, 0, 0), early=True, delay=0.001
            ),
            "fan": td.Drive(site=td.Site("link", (0, 0, -0.1)), gear=(0.5, 0, 0, 0, 0, 0), delay=0.05),
        },
    )
    return mech


def given(mech: td.Mechanism, batch: tuple[int, ...], periods: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    z = mech.to_maximal(torch.randn(*batch, 1).double(), torch.randn(*batch, 1).double())
    return z, torch.rand(*batch, periods, 5).double() * 2.4 - 1.2, torch.rand(*batch, mech.drives.num_activations).double()


def both_ways(mech: td.Mechanism) -> Iterator[None]:
    """The kernel's laws, if there is one, then those of PyTorch."""
    lowered = mech.drives._lowered
    assert lowered is not None
    yield
    mech.drives._lowered = None
    yield
    mech.drives._lowered = lowered


@pytest.mark.parametrize("repeat", [1, 3])
@pytest.mark.parametrize("batch", [(), (11,)])
def test_kernel_and_reference_agree(batch: tuple[int, ...], repeat: int) -> None:
    mech = finger()
    leaves = [value.requires_grad_() for value in given(mech, batch, 8)]
    results = []
    for _ in both_ways(mech):
        out = mech.drives.rollout(*leaves, repeat=repeat)
        values = [out.path.z, out.act, out.force]
        weights = [(torch.arange(value.numel()) % 7 + 1.0).reshape(value.shape).double() for value in values]
        slopes = torch.autograd.grad(sum((w * v).sum() for w, v in zip(weights, values, strict=True)), leaves[1:])
        results.append((*[value.detach() for value in values], *slopes))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        act = leaves[2]
        for t in range(8):
            act = mech.drives.advance(leaves[1][..., t, :], act, repeat=repeat)
        torch.testing.assert_close(act, results[0][1][..., -1, :], rtol=0, atol=1e-12)


def test_delayed_controls_are_those_of_before() -> None:
    """A drive with a delay of three steps acts as one without under controls that are moved by three steps."""
    mech = finger()
    late, now = (td.Drives(mech, {"one": td.Drive(joint="knuckle", gain_numbers=(0.2, 0, 0), delay=delay)}) for delay in (0.03, 0.0))
    z, ctrl = mech.initial_state(knuckle={"q": 0.3}), torch.randn(10, 1, generator=torch.Generator().manual_seed(2)).double()
    start = torch.tensor([0.7, -0.2, 0.4]).double()
    moved = torch.cat((start.flip(0)[:, None], ctrl[:-3]))
    ours, theirs = late.rollout(z, ctrl, start), now.rollout(z, moved)
    torch.testing.assert_close(ours.path.z, theirs.path.z, rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.act[-1], ctrl[-3:, 0].flip(0), rtol=0, atol=0)
    rest = late.rollout(ours.path.z[4], ctrl[4:], ours.act[4])
    torch.testing.assert_close(rest.path.z[-1], ours.path.z[-1], rtol=0, atol=1e-12)


def test_gradients_are_those_of_differences() -> None:
    mech = finger()
    z, ctrl, act = given(mech, (), 8)
    leaves = [ctrl.clamp(0.05, 0.95).requires_grad_(), act.clamp(0.05, 0.95).requires_grad_()]  # where nothing is clipped

    def end(ctrl: Tensor, act: Tensor) -> Tensor:
        out = mech.drives.rollout(z, ctrl, act)
        return mech.to_minimal(out.path.z[-1])[0].sum() + out.act[-1].square().sum()

    slopes = torch.autograd.grad(end(*leaves), leaves)
    assert all(bool((slope != 0).any()) for slope in slopes)
    generator = torch.Generator().manual_seed(3)
    for leaf, slope in zip(leaves, slopes, strict=True):
        direction = torch.randn(leaf.shape, generator=generator).double()
        with torch.no_grad():
            ahead, behind = (end(*(one + sign * 1e-5 * direction if one is leaf else one for one in leaves)) for sign in (1, -1))
        assert float((slope * direction).sum()) == pytest.approx(float(ahead - behind) / 2e-5, rel=1e-6, abs=1e-9)


def test_a_control_that_is_not_finite_stays_alone() -> None:
    mech = finger()
    z, ctrl, act = given(mech, (3,), 4)
    ctrl[1, 2, 0] = torch.nan
    for _ in both_ways(mech):
        out = mech.drives.rollout(z, ctrl, act)
        assert out.path.status.bool().tolist() == [[False] * 4, [False, False, True, False], [False] * 4]
        assert torch.equal(out.act[1, 3], out.act[1, 2]) and bool(torch.isfinite(out.act).all())


def test_files_come_back(path: Path, tmp_path: Path) -> None:
    mech = loaded(path)
    text, left_out = write_mjcf(mech)
    assert left_out == []
    (tmp_path / "again.xml").write_text(text.replace('timestep="0.002"', f'timestep="{H}"'))
    other = loaded(tmp_path / "again.xml")
    assert float(other.timestep) == H and lags(other) == lags(mech)
    ours, theirs = (one.drives.rollout(one.initial_state(), controls(20)) for one in (mech, other))
    torch.testing.assert_close(ours.path.z, theirs.path.z, rtol=0, atol=1e-9)
    torch.testing.assert_close(ours.act, theirs.act, rtol=0, atol=1e-12)


def test_environments_carry_controls() -> None:
    """Starts have none on their way, and control steps move them by all their timesteps."""
    mech = finger()

    class Waiting(td.envs.Env):
        timestep, repeat, episode_length = H, 2, 100

        def build(self) -> td.Mechanism:
            return mech

        def observe(self, motion: td.envs.Motion) -> Tensor:
            return torch.cat((motion.q, motion.qd), -1)

        def reward(self, before: td.envs.Motion, after: td.envs.Motion, action: Tensor) -> Tensor:
            return after.q.sum(-1)

    drives = {"late": td.Drive(joint="knuckle", delay=0.03, ctrlrange=(-1.0, 1.0), gain_numbers=(0.2, 0, 0))}
    env = Waiting(num_envs=2, drives=drives, noise=0.0, autoreset="disabled")
    env.reset()
    assert env.state.activation.tolist() == [[0.0] * 3] * 2
    env.step(torch.full((2, 1), 0.5, dtype=env.dtype))
    assert env.state.activation.tolist() == [[0.5, 0.5, 0.0]] * 2


def test_what_is_refused() -> None:
    for delay in (-0.1, float("nan"), float("inf"), "0.1", torch.tensor(0.1), True):
        with pytest.raises(ValueError, match=r"Drive delay: got .*; allowed: a number of seconds from zero up"):
            td.Drive(joint="knuckle", delay=delay)
    mech = finger()
    mech.timestep = torch.tensor([0.01, 0.02]).double()
    with pytest.raises(ValueError, match=r"drive 'd': got a delay with the timesteps \[0.01, 0.02\]; allowed: one timestep for all"):
        td.Drives(mech, {"d": td.Drive(joint="knuckle", delay=0.1)})

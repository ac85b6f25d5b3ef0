"""Adhesion: MuJoCo's forces, equal shares, balance, power, what holds and what falls, gradients, what is refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from test_transmissions import generalized, total, with_velocities
from torch import Tensor

import torchdojo as td
from torchdojo import quaternion as quat
from torchdojo.engine.drive_targets import transmission
from torchdojo.io import load, mjcf_state, read_mjcf
from torchdojo.io.mjcf.write import write_mjcf

INERTIA = (4e-3, 5e-3, 6e-3)
EGG = td.Ellipsoid((0.1, 0.12, 0.09))
#: A ball, an egg and a box of spheres near each other, above and below planes.
TEXT = """
<mujoco>
  <option gravity="0 0 -9.81" timestep="0.002" cone="elliptic"/>
  <default><geom density="1000" margin="0.01"/></default>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 1"/>
    <body name="ball" pos="0 0 0.101">
      <freejoint/>
      <geom type="sphere" size="0.1" pos="0.01 0 0"/>
      <geom type="sphere" size="0.1" pos="0.1 0.3 0"/>
    </body>
    <body name="block" pos="0.21 0.02 0.4">
      <freejoint/>
      <geom type="sphere" size="0.1"/>
      <geom type="sphere" size="0.1" pos="0.3 0 0.02"/>
    </body>
  </worldbody>
  <actuator>
    <adhesion name="hold" body="ball" gain="3" ctrlrange="0 2"/>
    <general name="stick" body="block" gainprm="2" biastype="affine" biasprm="0.1 0 -0.5"/>
  </actuator>
</mujoco>
"""


def quiet(path: Path, **options: Any) -> td.Mechanism:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load(path, **options)


def test_forces_are_mujocos(tmp_path: Path) -> None:
    path = tmp_path / "stuck.xml"
    path.write_text(TEXT)
    mech, info = quiet(path, contacts="all"), read_mjcf(path)
    model, counts = info.compiled.model, set()
    assert len(mech.contacts) == 8 and [drive.reach for drive in mech.drives.drives.values()] == [0.02, 0.02]
    for seed in range(40):
        rng, data = np.random.default_rng(seed), mujoco.MjData(model)
        data.qpos[:7] = 0.05, -0.02, 0.1 + rng.uniform(-0.01, 0.05), *np.array([1, 0, 0, 0]) + rng.uniform(-0.04, 0.04, 4)
        data.qpos[7:] = 0.05 + rng.uniform(-0.1, 0.1), 0.02, 0.31 + rng.uniform(-0.02, 0.05), 1, *rng.uniform(-0.03, 0.03, 3)
        mujoco.mj_normalizeQuat(model, data.qpos)
        data.qvel[:], data.ctrl[:] = rng.normal(size=12), rng.uniform(0, 2.5, 2)
        mujoco.mj_forward(model, data)
        z = with_velocities(mech, model, data, mjcf_state(mech, info, qpos=data.qpos))
        counts.add(data.ncon)
        _, velocity = mech.drives.measure(z)
        assert np.abs(velocity.numpy() - data.actuator_velocity).max() < 1e-10
        _, wrench, force = mech.drives.inputs(torch.as_tensor(data.ctrl.copy()), mech.drives.initial_activation(), z)
        assert np.abs(force.numpy() - data.actuator_force).max() < 1e-10
        assert np.abs(generalized(mech, model, data, z, wrench) - data.qfrc_actuator).max() < 1e-10
    assert {0, 1, 2, 3} <= counts, counts


def pile(egg: td.Shape = EGG, **options: Any) -> td.Mechanism:
    """Bodies of several shapes near each other and a plane that leans."""
    bodies = {name: td.Body(1.0, INERTIA) for name in ("ball", "egg", "box", "pin")}
    laws = {"friction": 0.5}
    plane = {"normal": (0.1, 0.2, 1.0), **laws}
    contacts: dict[str, td.Contact] = {
        "ball": td.NonlinearContact("ball", radius=0.1, point=(0.01, 0, 0), **plane),
        "ball egg": td.NonlinearContact("ball", shape=td.Sphere(0.1), other="egg", other_shape=egg, **laws),
        "box ball": td.NonlinearContact("box", shape=td.Box((0.2, 0.3, 0.1)), other="ball", other_shape=td.Sphere(0.1), **laws),
        "pin": td.NonlinearContact(
            "pin", shape=td.Capsule(0.05, 0.2), other="ball", other_shape=td.Sphere(0.1, position=(0, 0.1, 0)), **laws
        ),
        "egg": td.NonlinearContact("egg", shape=egg, **plane),
    }
    mech = td.Mechanism(bodies, contacts=contacts, timestep=0.005, **options)
    affine = {"gain_numbers": (3.0, 0.0, -0.5), "bias_numbers": (0.1, 0.0, -0.3)}
    mech.drives = td.Drives(
        mech,
        {
            "hold": td.Drive(body="ball", reach=0.1, gear=1.5, **affine),
            "stick": td.Drive(body="egg", reach=0.2, dynamics="filter", dynamics_numbers=(0.05,), **affine),
            "far": td.Drive(body="pin", reach=1e-3),
        },
    )
    return mech


def given(mech: td.Mechanism, batch: tuple[int, ...], periods: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def near(*place: float) -> dict[str, Tensor]:
        turn = torch.randn(*batch, 3, generator=generator).double()
        return {
            "position": torch.tensor(place).double() + 0.02 * torch.rand(*batch, 3, generator=generator).double(),
            "orientation": quat.exp(0.3 * turn),
            "velocity": 0.3 * torch.randn(*batch, 3, generator=generator).double(),
            "angular_velocity": torch.randn(*batch, 3, generator=generator).double(),
        }

    places = {"ball": near(0, 0, 0.15), "egg": near(0.25, 0, 0.1), "box": near(0, 0, 0.34), "pin": near(0.02, 0.34, 0.2)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        z = mech.initial_state(batch, **places)
    ctrl = torch.rand(*batch, periods, 3, generator=generator).double()
    return z, ctrl, torch.rand(*batch, mech.drives.num_activations, generator=generator).double()


def test_shares_are_equal_and_balance() -> None:
    mech = pile()
    z = given(mech, (), 1)[0]
    gaps = dict(zip(mech.contacts, mech.distances(z).tolist(), strict=True))
    near = [name for name in ("ball", "ball egg", "box ball", "pin") if gaps[name] < 0.1]
    assert len(near) >= 3, gaps
    found, _ = transmission(mech, z, mech.drives.drives["hold"])
    pulls = [float(force.norm()) for body, force, _ in found.wrenches if body == "ball"]
    assert sorted(pulls) == pytest.approx([0.0] * (4 - len(near)) + [1.5 / len(near)] * len(near))
    inside = [wrench for i in range(2, 8, 2) for wrench in found.wrenches[i : i + 2]]  # contacts between bodies
    assert all(float(part.abs().max()) < 1e-14 for part in total(mech, z, inside))


def test_what_is_held_and_what_falls() -> None:
    """A box of points below a ceiling, on which more than its weight holds it, and less does not; a grip is let go."""
    corners = [(x, y, 0.05) for x in (-0.1, 0.1) for y in (-0.1, 0.1)]
    contacts = {f"{i}": td.NonlinearContact("box", point=point, normal=(0, 0, -1), friction=0.5) for i, point in enumerate(corners)}
    mech = td.Mechanism({"box": td.Body(1.0, INERTIA)}, contacts=contacts, timestep=0.005)
    mech.drives = td.Drives(mech, {"hold": td.Drive(body="box", gain_numbers=(9.81, 0, 0), ctrlrange=(0.0, 2.0))})
    z = mech.initial_state(box={"position": (0, 0, -0.0501)})
    for ctrl, held in ((1.2, True), (0.8, False)):
        path = mech.drives.rollout(z, torch.full((200, 1), ctrl).double()).path
        assert not path.status.any()
        height = path.z[:, 2]
        assert (float((height - z[2]).abs().max()) < 1e-3) == held
        if not held:  # it falls under what is left of its weight until it is out of reach, and freely from then on
            assert float(height[20]) == pytest.approx(-0.0501 - 0.5 * 9.81 * 0.1**2, abs=0.02)
    released = torch.cat((torch.full((100, 1), 1.2), torch.zeros(100, 1))).double()
    height = mech.drives.rollout(z, released).path.z[:, 2]
    assert float((height[:101] - z[2]).abs().max()) < 1e-3 and float(height[-1]) < -1.0


def hung(tilt: float = 0.0, gap: float = 0.0005) -> tuple[td.Mechanism, Tensor]:
    """A crate below a beam, whose contacts are near ones; and its state, perhaps turned a little."""
    crate, beam = td.Box((0.2, 0.3, 0.1)), td.Box((1.0, 1.0, 0.2), position=(0, 0, 0.15))
    mech = td.Mechanism(
        {"crate": td.Body(1.0, INERTIA)}, contacts=td.near_contacts("crate", crate, None, beam, friction=0.5), timestep=0.005
    )
    mech.drives = td.Drives(mech, {"hold": td.Drive(body="crate", gain_numbers=(9.81, 0, 0), ctrlrange=(0.0, 2.0))})
    turn = torch.tensor([np.cos(tilt / 2), np.sin(tilt / 2), 0.0, 0.0]).double()
    return mech, mech.initial_state(crate={"position": (0, 0, -gap), "orientation": turn})


def test_places_of_near_contacts_have_equal_shares() -> None:
    """Four corners of a crate, or two where it is turned so that the others are out of reach."""
    for tilt, count in ((0.0, 4), (0.004, 2)):
        mech, z = hung(tilt, 0.0008)
        found, _ = transmission(mech, z, mech.drives.drives["hold"])
        pulls = torch.stack([force for body, force, _ in found.wrenches if body == "crate"])
        sizes = pulls.norm(dim=-1)
        assert int((sizes > 0).sum()) == count
        torch.testing.assert_close(sizes[sizes > 0], torch.full((count,), 1 / count, dtype=torch.float64), rtol=0, atol=1e-12)
        assert float(pulls[:, 2].sum()) == pytest.approx(1.0, abs=1e-4)  # upwards, to the beam


def test_files_with_near_contacts_have_adhesion(tmp_path: Path) -> None:
    path = tmp_path / "crate.xml"
    path.write_text(
        '<mujoco><default><geom margin="0.01"/></default><worldbody><geom name="beam" type="box" size="1 1 0.1" pos="0 0 0.5"/>'
        '<body name="crate" pos="0 0 0.35"><freejoint/><geom name="crate" type="box" size="0.1 0.1 0.0495"/></body></worldbody>'
        '<actuator><adhesion name="hold" body="crate" gain="300" ctrlrange="0 2"/></actuator></mujoco>'
    )
    mech = quiet(path, near=True, contacts="all")
    assert mech.drives.drives["hold"].reach == 1e-3
    names = [entry.names for entry in mech.load_report.entries if "its reach is 1 mm" in entry.reason]
    assert names == [("hold",)]
    path_of = mech.drives.rollout(mech.initial_state(), torch.ones(20, 1).double()).path
    assert not path_of.status.any() and float((path_of.z[:, 2] - path_of.z[0, 2]).abs().max()) < 1e-3


@pytest.mark.slow
def test_near_contacts_hold_and_let_go() -> None:
    for ctrl, held in ((1.2, True), (0.8, False)):
        mech, z = hung()
        path = mech.drives.rollout(z, torch.full((60, 1), ctrl).double()).path
        assert not path.status.any()
        if held:
            assert float((path.z[:, 2] - z[2]).abs().max()) < 1e-3
        else:
            assert float(path.z[-1, 2]) < -0.1


@pytest.mark.slow
def test_gradients_of_near_adhesion_agree_with_differences() -> None:
    """By control and state, along the tangents of the state, of one step."""
    mech, z = hung(0.001)
    mech.options = td.SolverOptions(residual_tol=1e-13)
    ctrl, weights = torch.tensor([0.9]).double(), torch.randn(13, generator=torch.Generator().manual_seed(1)).double()

    def value(change: Tensor, ctrl: Tensor) -> Tensor:
        return (mech.drives.step(mech.retract(z, change), ctrl).out.z * weights).sum()

    leaves = torch.zeros(12).double().requires_grad_(), ctrl.clone().requires_grad_()
    by_state, by_ctrl = torch.autograd.grad(value(*leaves), leaves)
    step = 1e-6
    for i in range(12):
        change = torch.zeros(12).double()
        change[i] = step
        near, far = (value(k * change, ctrl) - value(-k * change, ctrl) for k in (1, 2))
        difference = (8 * near - far) / (12 * step)  # of fourth order: contacts are stiff
        assert float(by_state[i]) == pytest.approx(float(difference), rel=1e-6, abs=1e-6)
    change = torch.zeros(12).double()
    difference = (value(change, ctrl + step) - value(change, ctrl - step)) / (2 * step)
    assert float(by_ctrl[0]) == pytest.approx(float(difference), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("egg", "tolerance"), [(td.Sphere(0.1), 1e-11), (EGG, 1e-8)], ids=["balls", "egg"])
def test_kernel_reference_and_gradients(egg: td.Shape, tolerance: float) -> None:
    """Derivatives of nearest points on ellipsoids are as good as Newton's method for them, 1e-9 of their size."""
    mech = pile(egg, options=td.SolverOptions(residual_tol=1e-13))  # contacts magnify what steps leave of their residuals
    lowered = mech.drives._lowered
    assert lowered is not None
    for batch in ((), (11,)):
        z, ctrl, act = given(mech, batch, 3)
        leaves = [value.requires_grad_() for value in (z, ctrl, act)]
        results = []
        for one in (lowered, None):
            mech.drives._lowered = one
            out = mech.drives.rollout(*leaves)
            values = [out.path.z, out.act, out.force]
            weights = [(torch.arange(value.numel()) % 7 + 1.0).reshape(value.shape).double() for value in values]
            slopes = torch.autograd.grad(sum((w * v).sum() for w, v in zip(weights, values, strict=True)), leaves)
            parts, own = slopes[0].unflatten(-1, (-1, 13)).clone(), z.detach().unflatten(-1, (-1, 13))[..., 6:10]
            parts[..., 6:10] -= (parts[..., 6:10] * own).sum(-1, keepdim=True) * own
            results.append([value.detach() for value in values] + [parts, *slopes[1:]])
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["hold", "stick"])
def test_gradients_are_those_of_differences(name: str) -> None:
    """Of forces and wrenches by state and control: the step between would hide them behind impulses."""
    mech = pile()
    mech.options = td.SolverOptions(residual_tol=1e-13)
    mech.drives = td.Drives(mech, {name: mech.drives.drives[name]})
    z, ctrl, act = given(mech, (), 2)
    leaves = [z.requires_grad_(), ctrl[:, :1].clone().requires_grad_(), act[: mech.drives.num_activations].clone().requires_grad_()]

    def end(z: Tensor, ctrl: Tensor, act: Tensor) -> Tensor:
        out = mech.drives.rollout(z, ctrl, act)
        return (out.path.z[1:] * torch.linspace(1, 2, out.path.z[1:].numel()).reshape(2, -1)).sum() + out.force.sum()

    slopes = torch.autograd.grad(end(*leaves), leaves)
    generator, eps = torch.Generator().manual_seed(1), 1e-6
    delta = torch.randn(12 * mech.num_bodies, generator=generator).double()
    moves = [torch.randn(leaf.shape, generator=generator).double() for leaf in leaves[1:]]
    with torch.no_grad():
        values = []
        for sign in (1, -1):
            others = [leaf + sign * eps * move for leaf, move in zip(leaves[1:], moves, strict=True)]
            values.append(end(mech.retract(z, sign * eps * delta), *others))
        direction = (mech.retract(z, eps * delta) - mech.retract(z, -eps * delta)) / (2 * eps)
    slope = sum(float((grad * along).sum()) for grad, along in zip(slopes, [direction, *moves], strict=True))
    assert slope == pytest.approx(float(values[0] - values[1]) / (2 * eps), rel=1e-6, abs=1e-6)


def test_files_come_back(tmp_path: Path) -> None:
    corners = [(x, y, -0.05) for x in (-0.1, 0.1) for y in (-0.1, 0.1)]
    contacts = {f"foot{i}": td.NonlinearContact("box", point=point, radius=0.01, friction=0.5) for i, point in enumerate(corners)}
    mech = td.Mechanism({"box": td.Body(1.0, INERTIA)}, contacts=contacts, timestep=0.005)
    mech.poses.clear()
    mech.drives = td.Drives(mech, {"hold": td.Drive(body="box", gain_numbers=(5.0, 0, 0), ctrlrange=(0.0, 2.0))})
    text, left_out = write_mjcf(mech)
    assert left_out == []
    (tmp_path / "box.xml").write_text(text)
    other = quiet(tmp_path / "box.xml", timestep=0.005)
    z = mech.initial_state(box={"position": (0, 0, 0.0601), "velocity": (0.5, 0, 0)})
    ours, theirs = (one.drives.rollout(z, torch.ones(20, 1).double()).path.z for one in (mech, other))
    assert float((ours[-1] - mech.rollout(z, steps=20).z[-1]).abs().max()) > 1e-3  # it rubs more
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
    mech.drives = td.Drives(mech, {"wide": td.Drive(body="box", reach=0.02), "geared": td.Drive(body="box", gear=2.0)})
    assert write_mjcf(mech)[1] == ["drives.wide.reach", "drives.geared"]


def test_what_is_refused(tmp_path: Path) -> None:
    mech = pile()
    with pytest.raises(ValueError, match=r"Drive reach: got 0.0; allowed: finite gaps above zero"):
        td.Drive(body="ball", reach=0.0)
    with pytest.raises(ValueError, match="got site and body to drive; allowed: one of"):
        td.Drive(body="ball", site="tip")
    with pytest.raises(ValueError, match=r"drive 'd': got the body 'cup'; bodies are \['ball', 'egg', 'box', 'pin'\]"):
        td.Drives(mech, {"d": td.Drive(body="cup")})
    alone = td.Mechanism(
        {"a": td.Body(1.0, INERTIA), "b": td.Body(1.0, INERTIA)}, contacts={"foot": td.NonlinearContact("b", friction=0.5)}
    )
    with pytest.raises(ValueError, match=r"drive 'd': got the body 'a', which has no contacts; allowed: \['b'\]; give it contacts"):
        td.Drives(alone, {"d": td.Drive(body="a")})
    crate = td.Box((0.1, 0.1, 0.1))
    near = td.Mechanism({"a": td.Body(1.0, INERTIA)}, contacts=td.near_contacts("a", crate, None, crate))
    with pytest.raises(ValueError, match=r"got reach=0.01 m for the body 'a' with near contacts, \[.*allowed: up to 0.001"):
        td.Drives(near, {"d": td.Drive(body="a", reach=0.01)})

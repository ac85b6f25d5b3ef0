"""Drives: forces, activations and motions are MuJoCo's; activations are carried; gradients pass; what is refused."""

from __future__ import annotations

import pickle
import sys
import warnings
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

import torchdojo as td
from torchdojo import quaternion as quat
from torchdojo.io.mjcf.load import load_mjcf

sys.path.insert(0, str(Path(__file__).parents[1] / "elements"))
from tendon_text import DRIVEN

CTRL = np.array([0.8, 0.3, 0.4, 0.7, 0.5, 0.6, 0.5, 0.4])
START, SPEED = np.array([-0.3, -0.8]), np.array([1.0, -1.0])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("drives") / "driven.xml"
    file.write_text(DRIVEN)
    return file


def loaded(path: Path, **options: object) -> td.Mechanism:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the report says that drives are explicit
        mech = load_mjcf(path, contacts=None, servos="explicit", tendons=True, **options)
    mech.options = td.SolverOptions(backend="native")
    return mech


def moved(path: Path, h: float) -> mujoco.MjData:
    model = mujoco.MjModel.from_xml_path(str(path))
    model.opt.timestep = h
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:], data.ctrl[:] = START, SPEED, CTRL
    for _ in range(round(0.1 / h)):
        mujoco.mj_step(model, data)
    return data


def test_file_gives_drives_with_mujocos_forces(path: Path) -> None:
    mech = loaded(path)
    drives = mech.drives
    assert drives.names == ("pull", "push", "servo", "winch", "slow", "creep", "jet", "twist")
    assert drives.activated == ("pull", "push", "winch", "slow", "creep") and mech.actuators.names == ("servo",)
    entry = next(entry for entry in mech.load_report.entries if "activations" in entry.kind)
    assert entry.did == "approximated" and entry.effect == "motion" and entry.count == 7
    model = mujoco.MjModel.from_xml_path(str(path))
    data = mujoco.MjData(model)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        data.qpos[:], data.act[:], data.ctrl[:] = rng.normal(size=2), rng.uniform(0, 1, 5), rng.uniform(-1, 1, 8)
        mujoco.mj_forward(model, data)  # at rest: the velocities of a state are those of the step before
        z = mech.to_maximal(torch.as_tensor(data.qpos.copy()))
        ctrl, act = (torch.as_tensor(value.copy()) for value in (data.ctrl, data.act))
        force = drives.forces(ctrl, act, z).numpy()
        own = [i for i, name in enumerate(drives.names) if name != "servo"]
        assert np.abs(force - data.actuator_force)[own].max() < 1e-10
        on_tendons = [i for i, name in enumerate(drives.names) if name in ("pull", "push", "winch", "twist")]
        assert np.abs(drives.measure(z)[0].numpy() - data.actuator_length)[on_tendons].max() < 1e-10
        u, wrench, _ = drives.inputs(ctrl, act, z)
        q = torch.as_tensor(data.qpos.copy())
        arms = mech.tendon_moment_arms(q)
        joints = u[:2] + u[2:] @ arms
        for i, body in enumerate(mech.bodies):
            jacobian = mech.point_jacobian(q, body)
            push, turn = wrench[6 * i : 6 * i + 3], quat.rotate(mech.body_state(z, body).q, wrench[6 * i + 3 : 6 * i + 6])
            joints = joints + torch.cat((push, turn)) @ jacobian
        assert np.abs(joints.numpy() - data.qfrc_actuator).max() < 1e-10


@pytest.mark.slow
def test_motion_is_mujocos(path: Path) -> None:
    """Against MuJoCo at the same timestep, and no farther from its motion at 1e-5 s than MuJoCo's own, whose scene needs small steps."""
    fine = moved(path, 1e-5).qpos
    size, errors = np.abs(fine - START).max(), []
    for h in (2e-3, 1e-3):
        mech = loaded(path, timestep=h)
        z = mech.to_maximal(torch.as_tensor(START), torch.as_tensor(SPEED))
        with torch.no_grad():
            out = mech.drives.rollout(z, torch.as_tensor(CTRL).expand(round(0.1 / h), 8))
        assert not out.path.status.any()
        theirs, ours = moved(path, h), mech.to_minimal(out.path.z[-1])[0].numpy()
        assert np.abs(out.act[-1].numpy() - theirs.act).max() < 1e-10
        assert np.abs(ours - fine).max() < np.abs(theirs.qpos - fine).max()
        errors.append(np.abs(ours - theirs.qpos).max() / size)
    assert errors[1] < 0.01 and 0.35 < errors[1] / errors[0] < 0.65, errors


def finger() -> td.Mechanism:
    link = {"mass": 0.1, "inertia": (1e-3, 1e-3, 1e-4)}
    mech = td.Mechanism({"link": td.Body(**link)}, {"knuckle": td.Revolute(None, "link", axis=(0, 1, 0), child_anchor=(0, 0, 0.1))})
    mech.drives = td.Drives(
        mech,
        {
            "muscle": td.Drive.muscle(joint="knuckle", gear=0.02, lengths=(-0.03, 0.03), force=30.0),
            "lag": td.Drive(joint="knuckle", dynamics="filter", dynamics_numbers=(0.05,), gain_numbers=(0.1, 0.0, 0.0)),
            "fan": td.Drive(site=td.Site("link", (0, 0, -0.1)), gear=(0.5, 0, 0, 0, 0, 0)),
        },
    )
    return mech


def test_activations_are_carried() -> None:
    mech = finger()
    torch.manual_seed(0)
    ctrl = torch.rand(3, 6, 3, dtype=torch.float64)
    z = mech.initial_state(3, knuckle={"q": 0.2})
    whole = mech.drives.rollout(z, ctrl)
    assert whole.act.shape == (3, 7, 2) and whole.force.shape == (3, 6, 3) and whole.path.z.shape == (3, 7, 13)
    first = mech.drives.rollout(z, ctrl[:, :4])
    rest = mech.drives.rollout(first.path.z[:, -1], ctrl[:, 4:], first.act[:, -1], warm_start=first.path.solution[:, -1])
    torch.testing.assert_close(rest.act[:, -1], whole.act[:, -1], rtol=0, atol=0)
    torch.testing.assert_close(rest.path.z[:, -1], whole.path.z[:, -1], rtol=0, atol=1e-12)
    policy = mech.drives.rollout(z, lambda z, act: ctrl[:, 0], steps=6)
    held = mech.drives.rollout(z, ctrl[:, :1], repeat=6)
    torch.testing.assert_close(policy.path.z[:, -1], held.path.z[:, -1], rtol=0, atol=1e-12)
    torch.testing.assert_close(policy.act[:, -1], held.act[:, -1], rtol=0, atol=0)
    alone = mech.drives.step(z[1], ctrl[1, 0])
    torch.testing.assert_close(alone.out.z, whole.path.z[1, 1], rtol=0, atol=1e-11)


def test_gradients_pass_activations() -> None:
    mech = finger()
    z = mech.initial_state(knuckle={"q": 0.2, "qd": 0.5})
    ctrl = torch.tensor([[0.4, -0.3, 0.2]] * 5, dtype=torch.float64, requires_grad=True)
    act = torch.tensor([0.3, 0.1], dtype=torch.float64, requires_grad=True)

    def end(ctrl: torch.Tensor, act: torch.Tensor) -> torch.Tensor:
        return mech.to_minimal(mech.drives.rollout(z, ctrl, act).path.z[-1])[0].sum()

    given = torch.autograd.grad(end(ctrl, act), (ctrl, act))
    for leaf, gradient in zip((ctrl, act), given, strict=True):
        direction = torch.randn(leaf.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        with torch.no_grad():
            values = [end(*(other + sign * 1e-5 * direction if other is leaf else other for other in (ctrl, act))) for sign in (1, -1)]
        difference = float(values[0] - values[1]) / 2e-5
        assert abs(float((gradient * direction).sum()) - difference) < 1e-6 * max(1.0, abs(difference))


def test_numbers_may_be_tensors_with_a_batch_and_a_graph() -> None:
    """Each environment with its own peak force equals that force alone, and the gradient by it is that of differences."""
    mech = finger()
    z, ctrl = mech.initial_state(2, knuckle={"q": 0.2}), torch.tensor([[0.7]] * 5, dtype=torch.float64)

    def end(force: object, z: torch.Tensor) -> torch.Tensor:
        drives = td.Drives(mech, {"pull": td.Drive.muscle(joint="knuckle", gear=0.02, lengths=(-0.03, 0.03), force=force)})
        return mech.to_minimal(drives.rollout(z, ctrl).path.z[..., -1, :])[0][..., 0]

    force = torch.tensor([20.0, 40.0], dtype=torch.float64, requires_grad=True)
    both = end(force, z)
    for i, number in enumerate((20.0, 40.0)):
        assert float(both[i].detach() - end(number, z[i])) == pytest.approx(0.0, abs=1e-12)
    (slope,) = torch.autograd.grad(both.sum(), force)
    with torch.no_grad():
        expected = (end(force + 1e-3, z) - end(force - 1e-3, z)) / 2e-3
    torch.testing.assert_close(slope, expected, rtol=1e-6, atol=1e-10)


def test_vmap_and_pickling() -> None:
    mech = finger()
    torch.manual_seed(1)
    z, ctrl, act = mech.initial_state(3, knuckle={"q": 0.2}), torch.rand(3, 3).double(), torch.rand(3, 2).double()
    whole = mech.drives.step(z, ctrl, act, repeat=2)
    state, after, force = torch.func.vmap(lambda *given: (out := mech.drives.step(*given, repeat=2)).out[:1] + out[1:])(z, ctrl, act)
    for ours, theirs in ((state, whole.out.z), (after, whole.act), (force, whole.force)):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    copied = pickle.loads(pickle.dumps(mech))
    assert copied.drives.mech is copied
    again = copied.drives.step(z, ctrl, act, repeat=2)
    assert torch.equal(again.out.z, whole.out.z) and torch.equal(again.act, whole.act)


def test_a_control_that_is_not_finite_is_flagged_alone() -> None:
    mech = finger()
    z = mech.initial_state(3, knuckle={"q": 0.2})
    ctrl = torch.full((3, 3), 0.5, dtype=torch.float64, requires_grad=True)
    act = torch.full((3, 2), 0.25, dtype=torch.float64, requires_grad=True)
    bad = torch.tensor([[0.0], [torch.nan], [0.0]], dtype=torch.float64)
    out = mech.drives.step(z, ctrl + bad, act)
    assert [bool(status) for status in out.out.status] == [False, True, False]
    assert torch.equal(out.out.z[1], z[1]) and torch.equal(out.act[1], act[1]) and not torch.equal(out.act[0], act[0])
    (out.out.z.sum() + out.act.sum()).backward()
    for leaf in (ctrl, act):
        assert leaf.grad is not None and bool(torch.isfinite(leaf.grad).all()) and bool((leaf.grad[0] != 0).all())
    assert float(ctrl.grad[1].abs().max()) == 0.0
    path = mech.drives.rollout(z, (ctrl + bad)[:, None].expand(-1, 3, -1).detach())
    assert path.path.status.bool().tolist() == [[False] * 3, [True] * 3, [False] * 3] and bool(torch.isfinite(path.act).all())


def test_wrenches_add_to_drives_at_sites() -> None:
    mech = finger()
    z, ctrl = mech.initial_state(knuckle={"q": 0.2}), torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    u, push, _ = mech.drives.inputs(ctrl, torch.zeros(2, dtype=torch.float64), z)
    outer = torch.tensor([0.3, 0.1, 0.0, 0.0, 0.02, 0.0], dtype=torch.float64)
    torch.testing.assert_close(mech.drives.step(z, ctrl, wrench=outer).out.z, mech.step(z, u, wrench=push + outer).z, rtol=0, atol=1e-14)


def test_steps_of_the_mechanism_and_inverse_problems_name_the_drives() -> None:
    mech = finger()
    z, ctrl = mech.initial_state(), torch.zeros(2, 3, dtype=torch.float64)
    words = r"ctrl: got controls of mech.drives, \['muscle', 'lag', 'fan'\].*use mech.drives.step\(z, ctrl, act\) or mech.drives.rollout"
    for call in (
        lambda: mech.step(z, ctrl=ctrl[0]),
        lambda: mech.rollout(z, ctrl=ctrl),
        lambda: mech.rollout_feedback(z, None, ctrl=ctrl),
        lambda: mech.linearize(z, ctrl=ctrl[0]),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    td.actuate(mech, {"motor": td.Actuator.motor("knuckle", gear=1.0)})
    assert mech.step(z, ctrl=ctrl[0, :1]).z.shape == z.shape
    with pytest.raises(ValueError, match=words):
        mech.step(z, ctrl=ctrl[0])
    assert td.planning.Problem(mech, z, 3, costs=[td.planning.Input(1.0)], controls=True).dynamics.num_inputs == 3  # of drives
    with pytest.raises(ValueError, match=r"got True with drives whose controls act after the step, \['muscle'"):
        td.planning.inverse_dynamics(mech, z, z, controls=True)


def test_what_is_refused() -> None:
    mech = finger()
    for given, words in [
        ({}, "got nothing to drive"),
        ({"joint": "knuckle", "tendon": "t"}, "got joint and tendon to drive"),
        ({"joint": "knuckle", "dynamics": "lag"}, "allowed: none, integrator, filter, filterexact, muscle"),
        ({"joint": "knuckle", "dynamics": "filter"}, "got 0; allowed: 1 or more numbers for 'filter'"),
        ({"joint": "knuckle", "gain": "muscle", "gain_numbers": (1.0,) * 9}, "got no lengths; give the range of the length"),
    ]:
        with pytest.raises(ValueError, match=words):
            td.Drive(**given)
    with pytest.raises(ValueError, match="a lower length below the upper one"):
        td.Drive.muscle(joint="knuckle", lengths=(0.3, 0.3))
    for drive, words in [
        (td.Drive(joint="toe"), r"got the joint 'toe'; joints are \['knuckle'\]"),
        (td.Drive(tendon="flexor"), r"got the tendon 'flexor'; tendons are \[\]"),
        (td.Drive(joint="knuckle", coordinate=1), "got coordinate 1; 'knuckle' has 1"),
        (td.Drive(site=td.Site("toe")), r"got a site on 'toe'; bodies are \['link'\]"),
    ]:
        with pytest.raises(ValueError, match=words):
            td.Drives(mech, {"d": drive})
    mech.tendons["idle"] = td.FixedTendon({"knuckle": 0.1})
    with pytest.raises(ValueError, match=r"has no input; allowed"):
        td.Drives(mech, {"d": td.Drive(tendon="idle")})
    with pytest.raises(ValueError, match=r"allowed: None for all of mech.actuators"):
        td.Drives(mech, {"d": None})
    z = mech.initial_state()
    with pytest.raises(ValueError, match=r"ctrl: got \(2,\); allowed: a tensor \(..., 3\)"):
        mech.drives.step(z, torch.zeros(2).double())
    with pytest.raises(ValueError, match=r"act: got \(1,\); allowed: a tensor \(..., 2\)"):
        mech.drives.step(z, torch.zeros(3).double(), torch.zeros(1).double())
    with pytest.raises(ValueError, match="got a policy without steps"):
        mech.drives.rollout(z, lambda z, act: act)
    for wrong in (torch.zeros(3).double(), torch.zeros(0, 3).double(), [[0.0] * 3]):
        with pytest.raises(ValueError, match=r"ctrl: got shape .*; allowed: \(..., T, 3\), T of 1 or more"):
            mech.drives.rollout(z, wrong)

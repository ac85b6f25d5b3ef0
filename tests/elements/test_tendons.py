"""Tendons: lengths, velocities and moment arms are MuJoCo's, motions come near to MuJoCo's, and gradients agree with differences."""

from __future__ import annotations

import sys
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch
from tendon_text import ARM, HUNG

import torchdojo as td
from torchdojo import quaternion as quat
from torchdojo.geometry.wrapping import wrap
from torchdojo.io.mjcf.description import read_mjcf
from torchdojo.io.mjcf.load import load_mjcf

sys.path.insert(0, str(Path(__file__).parents[1] / "sensors"))
from mujoco_state import state_and_step

TOLERANCE = 1e-10
#: MuJoCo stops Newton's method on points inside of a surface at 1e-6 rad, so moment arms [m] differ by that times a length.
INSIDE = 1e-6


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tendons") / "arm.xml"
    path.write_text(ARM)
    return path


@pytest.mark.parametrize("states", [8, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("text", [ARM, HUNG], ids=["arm", "hung"])
def test_paths_are_mujocos(text: str, states: int, tmp_path: Path) -> None:
    if text is ARM and mujoco.__version__.startswith("3."):
        pytest.skip("MuJoCo 3 takes one path around a cylinder by the longer way, MuJoCo 4 does not")
    path = tmp_path / "model.xml"
    path.write_text(text)
    mech, robot = load_mjcf(path, contacts=None, tendons=True), read_mjcf(path)
    model = robot.compiled.model
    data, names, wrapped = mujoco.MjData(model), list(mech.tendons), set()
    positions, z, lengths, velocities, arms = [], [], [], [], []
    for seed in range(states):
        rng = np.random.default_rng(seed)
        mujoco.mj_resetData(model, data)
        mujoco.mj_integratePos(model, data.qpos, rng.normal(size=model.nv), 0.6)
        data.qvel[:] = rng.normal(size=model.nv)
        mujoco.mj_forward(model, data)
        wrapped |= {(name, int(data.ten_wrapnum[i])) for i, name in enumerate(names)}
        z.append(state_and_step(mech, robot, data)[0])
        arms.append(np.zeros((model.ntendon, model.nv)))
        mujoco.mju_sparse2dense(arms[-1], data.ten_J, model.ten_J_rownnz, model.ten_J_rowadr, model.ten_J_colind)
        positions.append(data.qpos - model.qpos0)
        lengths.append(data.ten_length.copy())
        velocities.append(data.ten_velocity.copy())
    close = np.array([INSIDE if name == "inside" else TOLERANCE for name in names])
    batch = torch.stack(z)
    assert (np.abs(mech.tendon_lengths(batch).numpy() - lengths) < TOLERANCE).all()
    assert (np.abs(mech.tendon_velocities(batch).numpy() - velocities) < close).all()
    if text is ARM:  # its joints are hinges and a slide, with the coordinates of the file
        ours = mech.tendon_moment_arms(torch.as_tensor(np.array(positions))).numpy()
        assert (np.abs(ours - arms).max(-1) < close).all()
    both = [("sphere", 2), ("sphere", 4), ("cylinder", 2), ("cylinder", 4), ("cylinder_side", 2), ("cylinder_side", 4), ("inside", 2),
            ("inside", 4), ("pulley", 9), ("pulley", 11)] if text is ARM else [("around_side", 2), ("around_side", 4)]  # fmt: skip
    assert states < 60 or set(both) <= wrapped  # states with and without contact


def test_moment_arms_are_derivatives_of_lengths(arm: Path) -> None:
    mech = load_mjcf(arm, contacts=None, tendons=True)
    torch.manual_seed(0)
    q, qd = 0.4 * torch.randn(2, 4).double(), torch.randn(2, 4).double()
    arms = mech.tendon_moment_arms(q)
    jacobian = torch.stack([
        torch.autograd.functional.jacobian(lambda q: mech.tendon_lengths(mech.to_maximal(q)), row) for row in q
    ])  # fmt: skip
    torch.testing.assert_close(arms, jacobian, rtol=0, atol=1e-12)
    step = 1e-6 * torch.eye(4).double()
    for i in range(2):
        ahead, behind = (mech.tendon_moment_arms(q + sign * step[i]) for sign in (1, -1))
        given = torch.autograd.functional.jvp(mech.tendon_moment_arms, q, 1e6 * step[i].expand_as(q))[1]
        assert float(((ahead - behind) / 2e-6 - given).abs().max()) < 1e-6
    assert mech.tendon_lengths(mech.to_maximal(q, qd)).shape == (2, 8)


@pytest.mark.parametrize("cylinder", [False, True])
@pytest.mark.parametrize("where", ["none", "outside", "inside"])
def test_wrapped_paths_are_taut(cylinder: bool, where: str) -> None:
    """The gradient of the length has unit vectors along the string, so the points of contact are where the length is stationary."""
    torch.manual_seed(1)
    n = 2000
    start, end, center, side = (size * torch.randn(n, 3).double() for size in (1.0, 1.0, 0.3, 1.0))
    radius, turn = 0.2 + 0.3 * torch.rand(n).double(), quat.normalize(torch.randn(n, 4).double())
    reach = {"none": 0.0, "outside": 1.5, "inside": 0.5}[where]
    beside = None if where == "none" else center + quat.normalize(side) * (reach * radius)[:, None]

    def length(start: torch.Tensor) -> torch.Tensor:
        path = wrap(start, end, center, turn, radius, cylinder=cylinder, side=beside)
        return (path.first - start).norm(dim=-1) + path.arc + (end - path.second).norm(dim=-1)

    path = wrap(start, end, center, turn, radius, cylinder=cylinder, side=beside)
    wraps = path.wraps
    assert 0.02 < float(wraps.double().mean()) < 0.98
    along = torch.where(wraps[:, None], start - path.first, start - end)
    given = torch.func.grad(lambda start: length(start)[wraps].sum())(start)[wraps]
    gap = (given - quat.normalize(along)[wraps]).abs().amax(-1)
    # Beside rare inside paths, whose equation has no root and whose contact is half way, as in MuJoCo.
    assert float((gap < 1e-12).double().mean()) > (0.97 if where == "inside" else 0.9999) and bool(torch.isfinite(given).all())


def swing(mech: td.Mechanism, steps: int) -> td.Trajectory:
    z = mech.to_maximal(torch.tensor([0.3, 0.2, -0.4, 0.02]).double(), torch.tensor([1.0, -1.0, 2.0, 0.1]).double())
    with torch.no_grad():
        return mech.rollout(z, steps=steps)


@pytest.mark.slow
def test_motion_is_mujocos(arm: Path) -> None:
    model = mujoco.MjModel.from_xml_path(str(arm))
    model.opt.timestep = 1e-5
    data = mujoco.MjData(model)
    start = np.array([0.3, 0.2, -0.4, 0.02])
    data.qpos[:], data.qvel[:] = model.qpos0 + start, [1.0, -1.0, 2.0, 0.1]
    for _ in range(10_000):
        mujoco.mj_step(model, data)
    moved = data.qpos - model.qpos0
    errors = []
    for h in (2e-3, 1e-3):
        mech = load_mjcf(arm, contacts=None, tendons=True, timestep=h)
        mech.options = td.SolverOptions(backend="native")
        path = swing(mech, round(0.1 / h))
        assert not path.status.any()
        errors.append(np.abs(mech.to_minimal(path.z[-1])[0].numpy() - moved).max() / np.abs(moved - start).max())
    assert errors[1] < 0.01 and 0.4 < errors[1] / errors[0] < 0.6, errors


def two_links(**laws: object) -> td.Mechanism:
    link = {"mass": 1.0, "inertia": (0.02, 0.02, 0.002)}
    path = [td.Site(None, (0.1, 0, 0.1)), td.Wrap(td.Site("upper", (0, 0, -0.5)), 0.05), td.Site("lower", (0.04, 0, 0.1))]
    return td.Mechanism(
        {name: td.Body(**link) for name in ("upper", "lower")},
        {
            "hip": td.Revolute(None, "upper", axis=(0, 1, 0), child_anchor=(0, 0, 0.5)),
            "knee": td.Revolute("upper", "lower", axis=(0, 1, 0), parent_anchor=(0, 0, -0.5), child_anchor=(0, 0, 0.5)),
        },
        tendons={"string": td.SpatialTendon(path, **laws), "sum": td.FixedTendon({"hip": 0.1, "knee": -0.05}, actuated=True)},
        options=td.SolverOptions(backend="reference"),
    )


def test_gradients_agree_with_differences() -> None:
    mech = two_links(stiffness=30.0, damping=0.5, rest=(0.2, 0.6))
    z = mech.initial_state(hip={"q": 0.4, "qd": 1.0}, knee={"q": 0.8, "qd": -2.0})
    u = torch.tensor([0.1, -0.2, 0.5]).double()
    assert mech.input_layout == {"hip": slice(0, 1), "knee": slice(1, 2), "sum": slice(2, 3)}
    report = td.testing.check_gradients(mech, z, u, parameters=["tendons.string"], directions=1)
    assert report.max_relative_error < 1e-6, report


@pytest.mark.slow
def test_energy_of_springs_swings_with_the_square_of_the_step() -> None:
    errors = []
    for h in (4e-3, 2e-3):
        mech = two_links(stiffness=30.0, rest=0.3)
        mech.timestep = h
        z = mech.initial_state(hip={"q": 0.4}, knee={"q": 0.8})
        with torch.no_grad():
            path = mech.rollout(z, steps=round(0.08 / h))
        before, after = path.z[:-1], path.z[1:]
        energy = (mech.kinetic_energy(before, after) + mech.potential_energy(before))[1:]
        errors.append(float((energy - energy[0]).abs().max()))
    assert errors[1] < 0.3 * errors[0] and errors[0] < 0.02, errors


def test_what_is_refused() -> None:
    a, b = td.Site(None), td.Site("upper")
    for path, words in [
        ([a], "a branch of 1 site"),
        ([a, b, td.Pulley(2.0), b], "a branch of 1 site"),
        ([td.Wrap(a, 0.1), b, a], "has no site before it"),
        ([a, td.Wrap(a, 0.1), td.Wrap(b, 0.1), b], "has no site before it"),
        ([a, b, td.Wrap(a, 0.1)], "has no site behind it"),
        ([a, "elbow"], r"got the site 'elbow'; sites are \[\]"),
    ]:
        with pytest.raises(ValueError, match=words):
            td.SpatialTendon(path)
    with pytest.raises(ValueError, match="allowed: sphere, cylinder"):
        td.Wrap(a, 0.1, "box")
    with pytest.raises(ValueError, match="positive lengths"):
        td.Wrap(a, 0.0)
    with pytest.raises(ValueError, match="numbers that are not zero"):
        td.Pulley(0.0)
    with pytest.raises(ValueError, match="lower lengths at most"):
        td.SpatialTendon([a, b], rest=(0.2, 0.1))
    with pytest.raises(ValueError, match="numbers >= 0"):
        td.SpatialTendon([a, b], damping=-1.0)
    mech = two_links()
    with pytest.raises(ValueError, match="tendon 'new': it runs over joint 'toe', which does not exist"):
        mech.tendons["new"] = td.FixedTendon({"toe": 1.0})
    with pytest.raises(ValueError, match=r"coordinate 1 of 'hip'.*allowed: \[0\]"):
        mech.tendons["new"] = td.FixedTendon({("hip", 1): 1.0})
    with pytest.raises(ValueError, match="refers to body 'toe'"):
        mech.tendons["new"] = td.SpatialTendon([a, td.Site("toe")])
    with pytest.raises(ValueError, match="is the name of an actuated joint, too"):
        mech.tendons["hip"] = td.SpatialTendon([a, b], actuated=True)
    assert list(mech.tendons) == ["string", "sum"]


def test_kernel_takes_tendons_and_leaves_others_to_the_reference_with_a_word() -> None:
    mech = two_links(damping=0.5)
    z = mech.initial_state(hip={"q": 0.4, "qd": 1.0})
    expected = mech.step(z).z
    mech.options = td.SolverOptions(backend="native")
    torch.testing.assert_close(mech.step(z).z, expected, rtol=0, atol=1e-10)

    class Own(td.FixedTendon):
        """A tendon that a user wrote."""

    mech.tendons["own"] = Own({"hip": 0.1}, stiffness=3.0)
    with pytest.raises(RuntimeError, match=r"tendons\.own, a Own, is not a built-in joint, coupling, tendon or contact"):
        mech.step(z)
    mech.options = td.SolverOptions()
    with pytest.warns(UserWarning, match=r"tendons\.own"):
        mech.step(z)


def test_scenes_carry_tendons() -> None:
    mech = two_links(stiffness=30.0, damping=0.5, rest=0.2)
    scene = td.combine(left=mech, right=two_links(damping=0.1))
    assert list(scene.tendons) == ["left/string", "left/sum", "right/string", "right/sum"]
    pose = {"hip": {"q": 0.4, "qd": 1.0}, "knee": {"q": 0.8}}
    z = scene.initial_state(**{f"left/{name}": value for name, value in pose.items()})
    together = scene.step(z, torch.tensor([0.1, 0.2, 0.0, 0.0, 0.3, 0.0]).double()).z
    alone = mech.step(mech.initial_state(**pose), torch.tensor([0.1, 0.2, 0.3]).double()).z
    torch.testing.assert_close(together[:26], alone, rtol=0, atol=1e-10)
    assert mech.tendons["sum"].joints[0] is mech.joints["hip"] and scene.tendons["left/sum"].joints[0] is scene.joints["left/hip"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fixed", "spatial"])
def test_tendons_are_elements_like_others(kind: str) -> None:
    """Momentum, batches, `vmap`, copies, float32 and gradients."""
    joints = {"hip": td.Revolute(None, "a"), "slide": td.Prismatic("a", "b", axis=(1, 0, 0))}
    laws = {"stiffness": 20.0, "damping": 0.5, "rest": 0.1, "actuated": True}
    if kind == "fixed":
        td.testing.check_element(td.FixedTendon({"hip": 0.1, "slide": -0.5}, **laws), joints=joints)
        return
    path = [
        td.Site(None, (0.5, 0, 0.1)), td.Wrap(td.Site("a"), 0.2, side=td.Site("a", (0, 0.3, 0))), td.Site("b", (-0.4, 0.1, 0)),
        td.Pulley(2.0), td.Site(None, (0, 0.5, 0)), td.Wrap(td.Site("a"), 0.1, "cylinder"), td.Site("b", (0.1, -0.4, 0.2)),
    ]  # fmt: skip
    td.testing.check_element(td.SpatialTendon(path, **laws))

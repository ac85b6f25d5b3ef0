"""Actuators between sites and from cranks to sliders: MuJoCo's lengths, velocities and forces, momentum, motions, what is refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor
from transmission_text import GEARS, text

import torchdojo as td
from torchdojo import quaternion as quat
from torchdojo.engine.drive_targets import transmission
from torchdojo.io import mjcf_state, read_mjcf
from torchdojo.io.mjcf.load import load_mjcf

TOLERANCE = 1e-10  # lengths are of 1 m, and both sides compute them by formulas of a few operations


def quiet(path: Path, **options: Any) -> td.Mechanism:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the report says that drives are explicit, and which rods are short
        return load_mjcf(path, contacts=None, **options)


def written(folder: Path, inside: str | None = None) -> Path:
    path = folder / "pair.xml"
    path.write_text(text(inside))
    return path


def randomized(model: mujoco.MjModel, seed: int) -> mujoco.MjData:
    rng, data = np.random.default_rng(seed), mujoco.MjData(model)
    data.qpos[:] = model.qpos0 + rng.uniform(-1, 1, model.nq)
    mujoco.mj_normalizeQuat(model, data.qpos)
    data.qvel[:], data.ctrl[:] = rng.normal(size=model.nv), rng.uniform(-1, 1, model.nu)
    mujoco.mj_forward(model, data)
    return data


def with_velocities(mech: td.Mechanism, model: mujoco.MjModel, data: mujoco.MjData, z: Tensor) -> Tensor:
    """The state with MuJoCo's velocities of the bodies; those of z are of the step that led to it."""
    z = z.clone()
    for name in mech.bodies:
        state, velocity = mech.body_state(z, name), np.zeros(6)
        mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_BODY, model.body(name).id, velocity, 0)
        turn, move = (torch.as_tensor(part.copy()) for part in (velocity[:3], velocity[3:]))
        state.v[:], state.omega[:] = move, quat.inverse_rotate(state.q, turn)
    return z


def generalized(mech: td.Mechanism, model: mujoco.MjModel, data: mujoco.MjData, z: Tensor, wrench: Tensor) -> np.ndarray:
    """A wrench (6 nb,) as forces on MuJoCo's degrees of freedom."""
    total = np.zeros(model.nv)
    for i, name in enumerate(mech.bodies):
        number = model.body(name).id
        push, turn = wrench[6 * i : 6 * i + 3], quat.rotate(mech.body_state(z, name).q, wrench[6 * i + 3 : 6 * i + 6])
        mujoco.mj_applyFT(model, data, push.numpy(), turn.numpy(), data.xipos[number], number, total)
    return total


def test_lengths_velocities_and_forces_are_mujocos(tmp_path: Path) -> None:
    path = written(tmp_path)
    mech, info = quiet(path), read_mjcf(path)
    model, drives = info.compiled.model, mech.drives
    assert len(drives.names) == model.nu == 7 * len(GEARS) + 4
    for seed in range(20):
        data = randomized(model, seed)
        z = with_velocities(mech, model, data, mjcf_state(mech, info, qpos=data.qpos))
        length, velocity = drives.measure(z)
        assert np.abs(length.numpy() - data.actuator_length).max() < TOLERANCE
        # A rod that hardly reaches has a moment arm of 1/√D, so bounds are relative to the size of the numbers.
        for ours, theirs in ((velocity, data.actuator_velocity), (drives.forces(ctrl(data), none(drives), z), data.actuator_force)):
            assert (np.abs(ours.numpy() - theirs) / np.maximum(1, np.abs(theirs))).max() < TOLERANCE
        moment = np.zeros((model.nu, model.nv))
        mujoco.mju_sparse2dense(moment, data.actuator_moment, data.moment_rownnz, data.moment_rowadr, data.moment_colind)
        for name, expected in zip(drives.names, moment, strict=True):
            found, _ = transmission(mech, z, drives.drives[name])
            wrench = torch.zeros(6 * mech.num_bodies).double()
            for body, push, turn in found.wrenches:
                if body is not None:
                    place = 6 * list(mech.bodies).index(body)
                    wrench[place : place + 6] += torch.cat((push, turn))
            ours = generalized(mech, model, data, z, wrench)
            assert np.abs(ours - expected).max() < TOLERANCE * max(1, np.abs(expected).max()), name
        total = generalized(mech, model, data, z, drives.inputs(ctrl(data), none(drives), z)[1])
        assert np.abs(total - data.qfrc_actuator).max() < TOLERANCE * max(1, np.abs(data.qfrc_actuator).max())


def ctrl(data: mujoco.MjData) -> Tensor:
    return torch.as_tensor(data.ctrl.copy())


def none(drives: td.Drives) -> Tensor:
    return torch.zeros(drives.num_activations, dtype=torch.float64)


def total(mech: td.Mechanism, z: Tensor, wrenches: list[Any]) -> tuple[Tensor, Tensor]:
    """Sum of forces, and of torques about the origin."""
    force, torque = torch.zeros(3).double(), torch.zeros(3).double()
    for body, push, turn in wrenches:
        if body is not None:
            state = mech.body_state(z, body)
            force, torque = force + push, torque + quat.cross(state.x, push) + quat.rotate(state.q, turn)
    return force, torque


INTERNAL = "hand in base", "tip in base", "tip in hand", "base in hand", "crank in tree", "crank of free bodies"


def test_forces_inside_of_a_mechanism_balance(tmp_path: Path) -> None:
    """Two free bodies get opposite forces, and the couple of the law, which the world takes; all else balances to rounding."""
    path = written(tmp_path)
    mech, info = quiet(path), read_mjcf(path)
    for seed in range(5):
        z = mjcf_state(mech, info, qpos=randomized(info.compiled.model, seed).qpos)
        for name, drive in mech.drives.drives.items():
            found, (force, torque) = transmission(mech, z, drive)[0], (None, None)
            force, torque = total(mech, z, found.wrenches)
            size = max(1.0, *(float(push.abs().max()) for _, push, _ in found.wrenches))
            if name[:-2] in (*INTERNAL, "free bodies"):
                assert float(force.abs().max()) < 1e-13 * size, name
            if name[:-2] in INTERNAL or name == "free bodies 2":
                assert float(torque.abs().max()) < 1e-12 * size, name
            elif name[:-2] == "free bodies":
                _, _, couple = found.wrenches[2]
                torch.testing.assert_close(torque, -couple, rtol=0, atol=1e-12)
                assert float(couple.norm()) > 1e-2


@pytest.mark.parametrize("names", [INTERNAL, ("free bodies",)], ids=["inside", "free"])
def test_momentum_is_conserved(names: tuple[str, ...], tmp_path: Path) -> None:
    """Steps keep the momentum that the law keeps: all of it inside of a tree, the linear one of free bodies, and all if they only twist."""
    path = written(tmp_path)
    mech, info = quiet(path, gravity=(0.0, 0.0, 0.0)), read_mjcf(path)
    mech.options = td.SolverOptions(residual_tol=1e-12)
    z = mjcf_state(mech, info, qpos=randomized(info.compiled.model, 3).qpos)
    for kind in range(len(GEARS)):
        chosen = {f"{name} {kind}": drive for name in names if (drive := mech.drives.drives.get(f"{name} {kind}")) is not None}
        drives = td.Drives(mech, chosen)
        path_z = drives.rollout(z, torch.full((30, len(chosen)), 0.5).double()).path
        assert not path_z.status.any() and float((path_z.z[-1] - z).abs().max()) > 1e-3
        momentum = mech.momentum(path_z.z[:-1], path_z.z[1:])
        change = (momentum - momentum[0]).abs().amax(0)
        assert float(change[:3].max()) < 1e-9, kind  # steps solve their equations to 1e-12
        if names == INTERNAL or kind == 2:
            assert float(change[3:].max()) < 1e-9, kind
        else:
            assert float(change[3:].max()) > 1e-4


def test_velocity_is_the_rate_of_the_length(tmp_path: Path) -> None:
    """That of cranks, of forces whose reference is the carrier, and of turns about the axis of a gear."""
    path = written(tmp_path)
    mech, info = quiet(path), read_mjcf(path)
    names = [name for name in mech.drives.names if "crank" in name or name in ("hand in base 1", "tip in base 1", "hand in world 1")]
    drives, eps = td.Drives(mech, {name: mech.drives.drives[name] for name in names if "short" not in name}), 1e-6
    for seed in range(5):
        data = randomized(info.compiled.model, seed)
        z = with_velocities(mech, info.compiled.model, data, mjcf_state(mech, info, qpos=data.qpos))
        states = z.unflatten(-1, (-1, 13))
        zero = torch.zeros_like(states[:, :3])
        motion = torch.cat((states[:, 3:6], zero, states[:, 10:], zero), dim=-1).flatten()
        ahead, behind = (drives.measure(mech.retract(z, sign * eps * motion))[0] for sign in (1, -1))
        velocity = drives.measure(z)[1]
        torch.testing.assert_close((ahead - behind) / (2 * eps), velocity, rtol=1e-6, atol=1e-6)


MOVING = """
<position name="reach" site="ltip" refsite="back" gear="1 0 0 0 0 0" kp="20" kv="1"/>
<general name="twist" site="rhand" refsite="back" gear="0 0 0 1 0.5 0" gainprm="0.02" biastype="affine" biasprm="0 -0.05 -0.01"/>
<general name="pull" site="ltip" refsite="rhand" gear="0.5 1 0.2 0.02 0 0" dyntype="filter" dynprm="0.02" gainprm="2"/>
<motor name="tie" site="spot" refsite="back" gear="1 0.5 0 0 0.02 0.01"/>
<general name="press" cranksite="ltip" slidersite="rhand" cranklength="0.9" gear="2" gainprm="3" biastype="affine" biasprm="0 -4 -0.5"/>
<motor name="hoist" cranksite="spot" slidersite="line" cranklength="1.6" gear="3"/>
"""


def mujocos_motion(path: Path, h: float) -> mujoco.MjData:
    model = mujoco.MjModel.from_xml_path(str(path))
    model.opt.timestep = h
    data = mujoco.MjData(model)
    data.ctrl[:] = [0.6, 1.0, 0.8, 1.0, 1.0, 1.0]
    for _ in range(round(0.1 / h)):
        mujoco.mj_step(model, data)
    return data


@pytest.mark.slow
def test_motion_converges_to_mujocos(tmp_path: Path) -> None:
    """Without gravity, whose fall would hide what drives do; against MuJoCo at 1e-5 s."""
    path = written(tmp_path, MOVING)
    path.write_text(path.read_text().replace('gravity="0 0 -9.81"', 'gravity="0 0 0"'))
    info, errors = read_mjcf(path), []
    fine = mujocos_motion(path, 1e-5)
    for h in (1e-3, 5e-4):
        mech = quiet(path, timestep=h)
        start, end = (mjcf_state(mech, info, qpos=qpos) for qpos in (info.compiled.model.qpos0, fine.qpos))
        with torch.no_grad():
            out = mech.drives.rollout(start, torch.tensor([0.6, 1.0, 0.8, 1.0, 1.0, 1.0]).double().expand(round(0.1 / h), 6))
        assert not out.path.status.any()
        places = [13 * i + k for i in range(mech.num_bodies) for k in (0, 1, 2, 6, 7, 8, 9)]
        errors.append(float((out.path.z[-1] - end)[places].abs().max() / (end - start)[places].abs().max()))
    assert errors[0] < 0.01 and 0.45 < errors[1] / errors[0] < 0.55, errors


def pair() -> td.Mechanism:
    mech = td.Mechanism({name: td.Body(1.0, (0.1, 0.1, 0.1)) for name in ("a", "b")})
    mech.sites.update(one=td.Site("a", (0.1, 0.0, 0.0)), two=td.Site("b"), home=td.Site(None))
    return mech


def test_names_of_sites() -> None:
    mech = pair()
    drives = td.Drives(
        mech,
        {
            "pull": td.Drive(site="one", reference="two", gear=(1.0, 0, 0, 0, 0, 0)),
            "press": td.Drive(crank="one", slider="home", rod=2.0),
        },
    )
    assert drives.drives["pull"].site is mech.sites["one"] and drives.drives["press"].slider is mech.sites["home"]
    length, velocity = drives.measure(mech.initial_state(a={"position": (0.2, 0.1, 0.5)}))
    torch.testing.assert_close(length, torch.tensor([0.3, 0.5 - (4.0 - 0.3**2 - 0.1**2) ** 0.5]).double(), rtol=0, atol=1e-12)
    assert not velocity.any()


def test_what_is_refused() -> None:
    mech, gear = pair(), (1.0, 0, 0, 0, 0, 0)
    for given, words in [
        ({"joint": "a", "reference": "one"}, r"got a reference for a joint; allowed: for a site, Drive\(site=..., reference=...\)"),
        ({"site": "one", "crank": "two", "slider": "home", "rod": 1.0}, "got site and crank to drive; allowed: one of"),
        (
            {"crank": "one", "rod": 1.0},
            r"got slider=None for a crank; allowed: all of them or none, Drive\(crank=..., slider=",
        ),
        ({"crank": "one", "slider": "two"}, "got rod=None for a crank; allowed: all of them or none"),
        ({"site": "one", "rod": 0.1}, "got rod=0.1 for a site; allowed: all of them or none"),
        ({"crank": "one", "slider": "two", "rod": 0.0}, "Drive rod: got 0.0; allowed: finite lengths above zero"),
    ]:
        with pytest.raises(ValueError, match=words):
            td.Drive(**given)
    for drive, words in [
        (
            td.Drive(site="tip", gear=gear),
            r"drive 'd': got the site 'tip'; sites are \['one', 'two', 'home'\]; add it, mech.sites\['tip",
        ),
        (td.Drive(site="one", reference="base", gear=gear), r"drive 'd': got the reference 'base'; sites are"),
        (td.Drive(crank="one", slider="rail", rod=1.0), r"drive 'd': got the slider 'rail'; sites are"),
        (td.Drive(site="one", reference=td.Site("c"), gear=gear), r"got a site on 'c'; bodies are \['a', 'b'\]"),
        (td.Drive(site="home", gear=gear), r"got a site on None; bodies are \['a', 'b'\]"),
        (td.Drive(site="one", reference=td.Site("a"), gear=gear), "got two sites on 'a', which do not move relative to each other"),
        (td.Drive(site="home", reference=td.Site(None), gear=gear), "got two sites on None, which do not move relative to each other"),
        (td.Drive(site="one", reference="two"), r"got a gear of shape \(\) for a site; allowed: \(..., 6\), a force and a torque"),
    ]:
        with pytest.raises(ValueError, match=words):
            td.Drives(mech, {"d": drive})


def test_a_rod_that_is_too_short_is_named() -> None:
    """The law goes on with the foot of the crank on the axis of the slider."""
    mech = pair()
    with pytest.warns(UserWarning, match="drive 'd': got a rod of 0.05 m, with the crank 0.1 m from the axis of the slider at"):
        drives = td.Drives(mech, {"d": td.Drive(crank="one", slider="home", rod=0.05, gear=2.0)})
    z = mech.initial_state(a={"position": (0.2, 0.1, 0.5)})
    assert float(drives.measure(z)[0]) == pytest.approx(1.0)
    path = drives.rollout(z, torch.ones(3, 1).double()).path
    assert not path.status.any() and bool(torch.isfinite(path.z).all())


def test_files_without_a_moving_pair_are_reported(tmp_path: Path) -> None:
    path = written(tmp_path, '<motor name="m" site="home" refsite="line" gear="1 0 0 0 0 0"/>')
    mech = quiet(path)
    assert mech.drives is None
    (entry,) = mech.load_report.of_kind("actuators")
    assert entry.names == ("m",) and entry.did == "ignored" and "does not move" in entry.reason

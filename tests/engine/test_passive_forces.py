"""Drag, wind and compensation of gravity, against MuJoCo and by their own laws."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.io.mjcf.description import read_mjcf
from torchdojo.io.mjcf.state import mjcf_state

mujoco = pytest.importorskip("mujoco")

# An arm whose upper link carries a welded box beside its own, a compensated forearm, and a free body.
ARM = """
<mujoco>
  <compiler autolimits="true"/>
  <option timestep="{timestep}" density="{density}" viscosity="{viscosity}" wind="{wind}">
    <flag contact="disable"/>
  </option>
  <worldbody>
    <body name="upper" pos="0 0 1" gravcomp="0.5">
      <joint name="shoulder" axis="0 1 0"/>
      <geom type="capsule" fromto="0 0 0 0.4 0 0" size="0.04"/>
      <body name="box" pos="0.2 0.1 0.05" euler="20 30 -10" gravcomp="1">
        <geom type="box" size="0.08 0.05 0.02"/>
      </body>
      <body name="forearm" pos="0.4 0 0" gravcomp="1">
        <joint name="elbow" axis="0.2 1 0.1"/>
        <geom type="box" pos="0.15 0 0" size="0.15 0.05 0.03" euler="0 0 15"/>
      </body>
    </body>
    <body name="leaf" pos="0 1 2">
      <freejoint/>
      <geom type="box" size="0.2 0.1 0.01" density="300"/>
    </body>
  </worldbody>
</mujoco>
"""
MEDIA = {"air that blows": ("1.2", "0.00002", "3 -1 0.5"), "glycerine": ("1260", "1.4", "0 0 0"), "water": ("1000", "0.0009", "0 0 0.2")}


def arm(tmp_path: Path, medium: str, timestep: float) -> tuple[td.Mechanism, object, Tensor]:
    """The mechanism, MuJoCo's model, and a moving state."""
    density, viscosity, wind = MEDIA[medium]
    path = tmp_path / "arm.xml"
    path.write_text(ARM.format(timestep=timestep, density=density, viscosity=viscosity, wind=wind))
    with pytest.warns(UserWarning, match="gravity compensation"):
        mech = td.load(path, contacts=None)
    return mech, mujoco.MjModel.from_xml_path(str(path)), torch.tensor([0.3, -0.5, 0.0, 1.0, 2.0, 0.9, 0.1, -0.2, 0.3])


def poses(z: Tensor) -> Tensor:
    """Positions and quaternions of the bodies, (nb, 7)."""
    state = z.unflatten(-1, (-1, 13))
    return torch.cat((state[..., :3], state[..., 6:10] * state[..., 6:7].sign()), -1)


def qvel(model: object) -> list[float]:
    assert model.nv == 8  # type: ignore[attr-defined]
    return [1.5, -2.0, 0.5, -1.0, 0.2, 1.0, 2.0, -0.5]


@pytest.mark.parametrize("medium", MEDIA)
def test_motion_is_that_of_mujoco(medium: str, tmp_path: Path) -> None:
    """0.1 s: within 1 % of the motion at h = 1e-3, and half as far apart at half of it."""
    apart = []
    for timestep in (1e-3, 5e-4):
        mech, model, start = arm(tmp_path, medium, timestep)
        data = mujoco.MjData(model)
        data.qpos[:] = start.numpy()
        data.qpos[5:9] /= (start[5:9] ** 2).sum().sqrt().item()
        data.qvel[:] = qvel(model)
        robot = read_mjcf(tmp_path / "arm.xml")
        z, steps = mjcf_state(mech, robot, qpos=data.qpos, qvel=data.qvel), round(0.1 / timestep)
        assert mech.passive is not None and len(mech.passive.parts or ()) == 4
        with torch.no_grad():
            path = mech.rollout(z, steps=steps, wrench=mech.passive)
        assert not path.status.any()
        for _ in range(steps):
            mujoco.mj_step(model, data)
        theirs = poses(mjcf_state(mech, robot, qpos=data.qpos, qvel=data.qvel))
        moved, off = ((poses(state) - theirs).abs().max() for state in (z, path.z[-1]))
        apart.append(float(off / moved))
        without = (poses(mech.rollout(z, steps=steps).z[-1]) - theirs).abs().max()
        assert float(without) > 3 * float(off)  # the forces are felt
    print(f"{medium}: {apart[0]:.1e}, {apart[1]:.1e}")
    assert apart[0] < 0.01 and apart[1] < 0.6 * apart[0]


def leaf() -> td.Mechanism:
    return td.Mechanism({"leaf": td.Body(2.0, (0.1, 0.2, 0.25)), "stone": td.Body(1.0, (0.01, 0.01, 0.01))}, timestep=0.01)


def states(count: int, mech: td.Mechanism) -> Tensor:
    z = torch.randn(count, mech.num_bodies, 13, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z[..., 6:10] /= torch.linalg.vector_norm(z[..., 6:10], dim=-1, keepdim=True)
    return z.flatten(-2)


def test_a_medium_at_rest_takes_power() -> None:
    mech = leaf()
    z = states(50, mech)
    wrench = td.PassiveForces(mech, density=10.0, viscosity=0.2)(z).unflatten(-1, (-1, 6))
    state = z.unflatten(-1, (-1, 13))
    assert bool(((wrench[..., :3] * state[..., 3:6]).sum(-1) < 0).all()) and bool(((wrench[..., 3:] * state[..., 10:]).sum(-1) < 0).all())


def test_only_the_velocity_relative_to_the_wind_counts() -> None:
    mech, wind = leaf(), torch.tensor([3.0, -1.0, 0.5], dtype=torch.float64)
    z = states(20, mech)
    moving = z.unflatten(-1, (-1, 13)).clone()
    moving[..., 3:6] += wind
    still, blown = td.PassiveForces(mech, density=2.0, viscosity=0.1), td.PassiveForces(mech, density=2.0, viscosity=0.1, wind=wind)
    torch.testing.assert_close(blown(moving.flatten(-2)), still(z), atol=1e-12, rtol=1e-12)


def test_compensated_bodies_float() -> None:
    mech = leaf()
    passive = td.PassiveForces(mech, gravity_compensation={"leaf": 1.0})
    z = torch.zeros(2, 13, dtype=torch.float64)
    z[:, 6], z[0, 3], z[0, 10] = 1.0, 0.5, 1.0
    end = mech.rollout(z.flatten(), steps=20, wrench=passive).z[-1].view(2, 13)
    torch.testing.assert_close(end[0, :3], torch.tensor([0.1, 0.0, 0.0], dtype=torch.float64), atol=1e-12, rtol=0)
    assert float(end[1, 2]) < -0.15


def test_parts_are_the_bodies_where_each_has_one() -> None:
    mech = leaf()
    numbers = {"leaf": (2.0, (0.1, 0.2, 0.25), 0.5), "stone": (1.0, (0.01, 0.01, 0.01), 0.0)}
    parts = [td.PassivePart(td.Site(name), mass, moments, share) for name, (mass, moments, share) in numbers.items()]
    z = states(10, mech)
    one = td.PassiveForces(mech, density=3.0, viscosity=0.3, wind=(1.0, 0.0, 0.0), gravity_compensation={"leaf": 0.5})
    torch.testing.assert_close(
        td.PassiveForces(mech, density=3.0, viscosity=0.3, wind=(1.0, 0.0, 0.0), parts=parts)(z), one(z), atol=1e-12, rtol=0
    )


@pytest.mark.parametrize("by_parts", [False, True])
def test_gradients(by_parts: bool) -> None:
    """First and second, by states, medium, wind and the numbers of parts."""
    mech = leaf()
    z = states(2, mech).requires_grad_(True)
    given = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (2.0, 0.3, (1.0, -0.5, 0.2), 1.5, (0.1, 0.2, 0.25))]

    def wrench(z: Tensor, density: Tensor, viscosity: Tensor, wind: Tensor, mass: Tensor, moments: Tensor) -> Tensor:
        parts = [td.PassivePart(td.Site("stone", (0.1, 0.2, -0.1)), mass, moments, 0.3)] if by_parts else None
        return td.PassiveForces(mech, density=density, viscosity=viscosity, wind=wind, parts=parts)(z)

    used = (z, *given) if by_parts else (z, *given[:3])
    rest = () if by_parts else tuple(given[3:])
    assert torch.autograd.gradcheck(lambda *args: wrench(*args, *rest), used)
    assert torch.autograd.gradgradcheck(lambda *args: wrench(*args, *rest), used)


@pytest.mark.parametrize("by_parts", [False, True])
def test_states_in_float32_batches_and_copies(by_parts: bool) -> None:
    mech = leaf()
    parts = [td.PassivePart(td.Site("stone", (0.1, 0.2, -0.1)), 1.5, (0.1, 0.2, 0.25), 0.3)] if by_parts else None
    mech.passive = td.PassiveForces(mech, density=2.0, wind=(1.0, 0.0, 0.0), parts=parts)
    z = states(3, mech)
    wrench = mech.passive(z)
    single = mech.passive(z.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), wrench, atol=1e-5, rtol=1e-5)  # z is rounded to 6e-8 of itself
    assert mech.rollout(z.float(), steps=2, wrench=mech.passive).z.dtype == torch.float32
    torch.testing.assert_close(torch.func.vmap(mech.passive)(z), wrench, atol=1e-14, rtol=0)
    for other in (copy.deepcopy(mech), pickle.loads(pickle.dumps(mech))):
        assert other.passive is not None and other.passive.mech is other
        assert torch.equal(other.passive(z), wrench)


def test_refused() -> None:
    mech = leaf()
    with pytest.raises(ValueError, match="13"):
        td.PassiveForces(mech)(torch.zeros(13))
    with pytest.raises(ValueError, match=r"got bodies \['bird'\]; allowed: \['leaf', 'stone'\]"):
        td.PassiveForces(mech, gravity_compensation={"bird": 1.0})
    with pytest.raises(ValueError, match="density"):
        td.PassiveForces(mech, density=-1.0)
    with pytest.raises(ValueError, match=r"wind: got shape \(2,\)"):
        td.PassiveForces(mech, wind=(1.0, 0.0))
    with pytest.raises(ValueError, match="PassivePart mass"):
        td.PassivePart(td.Site("leaf"), 0.0, (1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="in the world"):
        td.PassivePart(td.Site(None), 1.0, (1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="give it to the parts"):
        td.PassiveForces(mech, gravity_compensation={"leaf": 1.0}, parts=[])
    with pytest.warns(UserWarning, match="passive forces"):
        one = leaf()
        one.passive = td.PassiveForces(one, density=1.0)
        td.combine(one=one)

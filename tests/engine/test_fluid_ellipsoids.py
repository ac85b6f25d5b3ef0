"""Ellipsoids in a medium: forces and motion against MuJoCo, added inertia against closed forms, and their own laws."""

from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.engine.fluid_ellipsoids import EllipsoidNumbers, added_forces, added_inertia, drag_forces, lift_forces
from torchdojo.io.mjcf.description import read_mjcf
from torchdojo.io.mjcf.state import mjcf_state
from torchdojo.io.mjcf.write import write_mjcf

mujoco = pytest.importorskip("mujoco")

# A flier with two wings, a welded tail with an ellipsoid of its own and a welded fin without one, a chain of two links, and a plain box.
FLIER = """
<mujoco>
  <compiler autolimits="true"/>
  <option timestep="{timestep}" density="{density}" viscosity="{viscosity}" wind="{wind}">
    <flag contact="disable"/>
  </option>
  <worldbody>
    <body name="flier" pos="0 1 2" gravcomp="0.3">
      <freejoint/>
      <geom type="box" size="0.2 0.1 0.03" pos="0.05 0 0.01" euler="10 20 30" density="300" fluidshape="ellipsoid"/>
      <geom type="ellipsoid" size="0.1 0.3 0.01" pos="0 0.3 0" euler="-5 3 40" density="300" fluidshape="ellipsoid"
            fluidcoef="1 0.1 2 3 0.5"/>
      <geom type="sphere" size="0.05" pos="0 -0.3 0" density="300"/>
      <body name="tail" pos="-0.3 0 0.05" euler="0 30 0">
        <geom type="cylinder" size="0.03 0.1" density="400" fluidshape="ellipsoid" fluidcoef="0.4 0.2 1 0 2"/>
      </body>
      <body name="fin" pos="-0.2 0.1 0.1"><geom type="box" size="0.05 0.02 0.08" density="300"/></body>
    </body>
    <body name="upper" pos="0 0 1">
      <joint name="shoulder" axis="0 1 0"/>
      <geom type="capsule" fromto="0 0 0 0.4 0 0" size="0.04" fluidshape="ellipsoid"/>
      <body name="forearm" pos="0.4 0 0" gravcomp="1">
        <joint name="elbow" axis="0.2 1 0.1"/>
        <geom type="sphere" pos="0.15 0 0" size="0.06" fluidshape="ellipsoid"/>
        <geom type="box" pos="0.15 0 0" size="0.15 0.05 0.03" euler="0 0 15" fluidshape="ellipsoid"/>
      </body>
    </body>
    <body name="leaf" pos="0 -1 2">
      <freejoint/>
      <geom type="box" size="0.2 0.1 0.01" density="300"/>
    </body>
  </worldbody>
</mujoco>
"""
MEDIA = {"air that blows": ("1.2", "0.00002", "3 -1 0.5"), "glycerine": ("1260", "1.4", "0 0 0"), "water": ("1000", "0.0009", "0 0 0.2")}


def flier(tmp_path: Path, medium: str, timestep: float = 1e-3) -> tuple[td.Mechanism, object, object]:
    """The mechanism, the description of its file, and MuJoCo's model."""
    density, viscosity, wind = MEDIA[medium]
    path = tmp_path / "flier.xml"
    path.write_text(FLIER.format(timestep=timestep, density=density, viscosity=viscosity, wind=wind))
    with pytest.warns(UserWarning, match="the medium"):
        mech = td.load(path, contacts=None)
    return mech, read_mjcf(path), mujoco.MjModel.from_xml_path(str(path))


def random_states(model: object, count: int) -> Tensor:
    """qpos and qvel at random, (count, nq + nv)."""
    generator = torch.Generator().manual_seed(0)
    qpos = torch.randn(count, model.nq, generator=generator, dtype=torch.float64)  # type: ignore[attr-defined]
    for first in (3, 12):
        qpos[:, first : first + 4] /= torch.linalg.vector_norm(qpos[:, first : first + 4], dim=-1, keepdim=True)
    return torch.cat((qpos, torch.randn(count, model.nv, generator=generator, dtype=torch.float64)), -1)  # type: ignore[attr-defined]


@pytest.mark.parametrize("medium", MEDIA)
def test_forces_are_those_of_mujoco(medium: str, tmp_path: Path) -> None:
    """On every dof, at random states. Wrenches become forces on dofs by MuJoCo's Jacobians of the centers of mass."""
    mech, robot, model = flier(tmp_path, medium)
    data = mujoco.MjData(model)
    assert mech.passive is not None and len(mech.passive.ellipsoids) == 6
    worst, largest = 0.0, 0.0
    for row in random_states(model, 20):
        data.qpos[:], data.qvel[:] = row[: model.nq].numpy(), row[model.nq :].numpy()
        mujoco.mj_forward(model, data)
        z = mjcf_state(mech, robot, qpos=data.qpos, qvel=data.qvel)
        # a step of h from the velocities of MuJoCo has others at its middle: those of the state are set to them
        state, wrench = z.unflatten(-1, (-1, 13)).clone(), torch.zeros(model.nv, dtype=torch.float64)
        places = dict[int, tuple[Tensor, Tensor]]()
        for i, name in enumerate(mech.bodies):
            b, linear, angular = model.body(name).id, torch.zeros(3, model.nv).double(), torch.zeros(3, model.nv).double()
            mujoco.mj_jac(model, data, linear.numpy(), angular.numpy(), state[i, :3].numpy(), b)
            turned = td.quaternion.rotation_matrix(state[i, 6:10])
            state[i, 3:6], state[i, 10:] = linear @ row[model.nq :], turned.mT @ (angular @ row[model.nq :])
            places[i] = linear, turned.mT @ angular
        forces = mech.passive(state.flatten()).unflatten(-1, (-1, 6))
        for i, (linear, angular) in places.items():
            wrench += linear.mT @ forces[i, :3] + angular.mT @ forces[i, 3:]
        theirs = torch.tensor(data.qfrc_passive)
        worst, largest = max(worst, float((wrench - theirs).abs().max())), max(largest, float(theirs.abs().max()))
    print(f"{medium}: {worst:.1e} of {largest:.1e}")
    assert worst < 1e-9 * max(1.0, largest)


def poses(z: Tensor) -> Tensor:
    """Positions and quaternions of the bodies, (nb, 7)."""
    state = z.unflatten(-1, (-1, 13))
    return torch.cat((state[..., :3], state[..., 6:10] * state[..., 6:7].sign()), -1)


@pytest.mark.parametrize("medium", MEDIA)
def test_fliers_move_as_in_mujoco(medium: str, tmp_path: Path) -> None:
    """0.1 s: within 1 % of the motion at h = 1e-3, and half as far apart at half of it."""
    apart = []
    for timestep in (1e-3, 5e-4):
        mech, robot, model = flier(tmp_path, medium, timestep)
        data = mujoco.MjData(model)
        row = random_states(model, 1)[0]
        data.qpos[:], data.qvel[:] = row[: model.nq].numpy(), row[model.nq :].numpy()
        z, steps = mjcf_state(mech, robot, qpos=data.qpos, qvel=data.qvel), round(0.1 / timestep)
        with torch.no_grad():
            path = mech.rollout(z, steps=steps, wrench=mech.passive)
        assert not path.status.any()
        for _ in range(steps):
            mujoco.mj_step(model, data)
        theirs = poses(mjcf_state(mech, robot, qpos=data.qpos, qvel=data.qvel))
        moved, off = ((poses(state) - theirs).abs().max() for state in (z, path.z[-1]))
        apart.append(float(off / moved))
        boxes = td.PassiveForces(mech, density=mech.passive.density, viscosity=mech.passive.viscosity, wind=mech.passive.wind)
        assert float((poses(mech.rollout(z, steps=steps, wrench=boxes).z[-1]) - theirs).abs().max()) > 3 * float(off)
    print(f"{medium}: {apart[0]:.1e}, {apart[1]:.1e}")
    assert apart[0] < 0.01 and apart[1] < 0.6 * apart[0]


SPHERE = (0.1, 0.1, 0.1)


def test_added_inertia_has_the_closed_forms() -> None:
    """A sphere, a disk, and long spheroids (Lamb, articles 114 and 115)."""
    mass, moments = added_inertia(torch.tensor(SPHERE, dtype=torch.float64))
    volume = 4 / 3 * math.pi * 1e-3
    torch.testing.assert_close(mass, torch.full((3,), volume / 2, dtype=torch.float64), rtol=1e-13, atol=0)
    assert not moments.any()
    disk = added_inertia(torch.tensor([1.0, 1.0, 1e-7], dtype=torch.float64))
    for value, exact in ((disk[0][2], 8 / 3), (disk[1][0], 16 / 45)):  # of a disk without thickness
        assert float(value) == pytest.approx(exact, rel=1e-6)
    for a, b in ((2.0, 1.0), (1.01, 1.0), (30.0, 1.0)):  # prolate: axis x is the long one
        e = math.sqrt(1 - (b / a) ** 2)
        along = 2 * (1 - e**2) / e**3 * (math.atanh(e) - e)
        across = 1 / e**2 - (1 - e**2) / e**3 * math.atanh(e)
        mass, moments = added_inertia(torch.tensor([a, b, b], dtype=torch.float64))
        volume = 4 / 3 * math.pi * a * b * b
        assert float(mass[0]) == pytest.approx(volume * along / (2 - along), rel=1e-9)
        assert float(mass[1]) == pytest.approx(volume * across / (2 - across), rel=1e-9)
        square = (a * a - b * b) ** 2 * (across - along) / (2 * (a * a - b * b) - (a * a + b * b) * (across - along))
        assert float(moments[1]) == pytest.approx(volume / 5 * square, rel=1e-7)  # the closed form loses digits at a ratio of 1.01
        assert float(moments[0]) == 0.0 and float(moments[2]) == pytest.approx(float(moments[1]), rel=1e-13)


@pytest.mark.parametrize(("ratio", "off"), [(1.0, 1e-6), (0.1, 1e-5), (0.01, 1e-3)])
def test_added_inertia_is_near_that_of_mujoco(ratio: float, off: float) -> None:
    """MuJoCo's quadrature has 15 nodes, whose error grows with the ratio of the axes; ours has that of rounding."""
    text = f'<geom type="ellipsoid" size="0.1 0.2 {0.1 * ratio}" fluidshape="ellipsoid"/>'
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{text}</worldbody></mujoco>")
    ours = torch.cat(added_inertia(torch.tensor(model.geom_size[0])))
    torch.testing.assert_close(ours, torch.tensor(model.geom_fluid[0, 6:]), rtol=off, atol=1e-12)


def medium_numbers(count: int) -> tuple[EllipsoidNumbers, Tensor, Tensor]:
    """Ellipsoids of many shapes, and their velocities."""
    draw = torch.Generator().manual_seed(1)
    semiaxes = 10 ** (3 * torch.rand(count, 3, generator=draw, dtype=torch.float64) - 3)
    coefficients = 3 * torch.rand(count, 5, generator=draw, dtype=torch.float64)
    v, w = (torch.randn(count, 3, generator=draw, dtype=torch.float64) for _ in range(2))
    return EllipsoidNumbers(semiaxes, coefficients, *added_inertia(semiaxes)), v, w


def test_drag_takes_power_and_the_rest_does_no_work() -> None:
    """In a medium at rest; zero is meant up to rounding of the terms."""
    numbers, v, w = medium_numbers(500)
    density, viscosity = torch.tensor(10.0).double(), torch.tensor(0.2).double()
    force, torque = drag_forces(v, w, numbers, density, viscosity)
    assert bool(((force * v).sum(-1) < 0).all()) and bool(((torque * w).sum(-1) < 0).all())
    lift = lift_forces(v, w, numbers, density)
    assert float(((lift * v).sum(-1).abs() / (lift.abs() * v.abs()).sum(-1)).max()) < 1e-13
    force, torque = added_forces(v, w, numbers, density)
    size = (force.abs() * v.abs() + torque.abs() * w.abs()).sum(-1)
    assert float((((force * v).sum(-1) + (torque * w).sum(-1)).abs() / size).max()) < 1e-13


def leaf(**options: object) -> td.Mechanism:
    return td.Mechanism({"leaf": td.Body(2.0, (0.1, 0.2, 0.25)), "stone": td.Body(1.0, (0.01, 0.01, 0.01))}, timestep=0.01, **options)


def states(count: int, mech: td.Mechanism) -> Tensor:
    z = torch.randn(count, mech.num_bodies, 13, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z[..., 6:10] /= torch.linalg.vector_norm(z[..., 6:10], dim=-1, keepdim=True)
    return z.flatten(-2)


def plate(body: str = "leaf", **more: object) -> td.FluidEllipsoid:
    return td.FluidEllipsoid(td.Site(body, (0.1, 0.2, -0.1), (0.5, 0.5, 0.5, 0.5)), more.pop("semiaxes", (0.3, 0.2, 0.05)), **more)


def test_only_the_velocity_relative_to_the_wind_is_felt() -> None:
    mech, wind = leaf(), torch.tensor([3.0, -1.0, 0.5], dtype=torch.float64)
    z = states(20, mech)
    moving = z.unflatten(-1, (-1, 13)).clone()
    moving[..., 3:6] += wind
    still, blown = (td.PassiveForces(mech, density=2.0, viscosity=0.1, wind=blow, ellipsoids=[plate()]) for blow in (wind * 0, wind))
    torch.testing.assert_close(blown(moving.flatten(-2)), still(z), atol=1e-12, rtol=1e-12)


def test_energy_of_a_plate_that_is_left_to_itself_falls() -> None:
    """With lift and added mass, whose forces do no work, and drag; energies of states, at most rounding up by a step."""
    mech = leaf(gravity=(0.0, 0.0, 0.0))
    passive = td.PassiveForces(mech, density=5.0, viscosity=0.1, ellipsoids=[plate(), plate("stone")])
    path = mech.rollout(states(4, mech), steps=100, wrench=passive)
    energy = mech.kinetic_energy(path.z)
    assert bool((energy.diff(dim=-1) < 1e-12).all()) and bool((energy[:, -1] < 0.7 * energy[:, 0]).all())


def test_an_ellipsoid_takes_the_place_of_the_box_of_its_part() -> None:
    """By bodies and by parts; the other body keeps its box."""
    mech, z = leaf(), states(10, leaf())
    medium = {"density": 3.0, "viscosity": 0.3, "wind": (1.0, 0.0, 0.0)}
    parts = [
        td.PassivePart(td.Site("leaf"), 2.0, (0.1, 0.2, 0.25), 0.5, [plate()]),
        td.PassivePart(td.Site("stone"), 1.0, (0.01, 0.01, 0.01)),
    ]
    by_bodies = td.PassiveForces(mech, **medium, gravity_compensation={"leaf": 0.5}, ellipsoids=[plate()])(z)
    torch.testing.assert_close(td.PassiveForces(mech, **medium, parts=parts)(z), by_bodies, atol=1e-12, rtol=0)
    boxes = td.PassiveForces(mech, **medium)(z).unflatten(-1, (2, 6))
    torch.testing.assert_close(by_bodies.unflatten(-1, (2, 6))[:, 1], boxes[:, 1], atol=1e-12, rtol=0)
    assert not td.PassiveForces(mech, **medium, parts=[])(z).any()


@pytest.mark.slow
def test_gradients_of_all_numbers() -> None:
    """First and second, by states, medium, wind, shape and coefficients; against central differences of 1e-6."""
    mech = leaf()
    z = states(2, mech).requires_grad_(True)
    given = [2.0, 0.3, (1.0, -0.5, 0.2), (0.3, 0.2, 0.05), (0.5, 0.25, 1.5, 1.0, 1.0), (0.1, 0.2, -0.1)]
    used = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in given]

    def wrench(
        z: Tensor, density: Tensor, viscosity: Tensor, wind: Tensor, semiaxes: Tensor, coefficients: Tensor, place: Tensor
    ) -> Tensor:
        ellipsoids = [td.FluidEllipsoid(td.Site("stone", place), semiaxes, coefficients), plate("stone", semiaxes=semiaxes)]
        return td.PassiveForces(mech, density=density, viscosity=viscosity, wind=wind, ellipsoids=ellipsoids)(z)

    assert torch.autograd.gradcheck(wrench, (z, *used), atol=1e-6, rtol=1e-6)
    assert torch.autograd.gradgradcheck(wrench, (z, *used), atol=1e-5, rtol=1e-5)


def test_at_rest_forces_and_gradients_are_zero_but_for_viscosity() -> None:
    mech = leaf()
    z = states(1, mech).unflatten(-1, (2, 13))
    z[..., 3:6], z[..., 10:] = 0.0, 0.0
    z = z.flatten(-2).requires_grad_(True)
    shape = torch.tensor(SPHERE, dtype=torch.float64, requires_grad=True)
    ellipsoids = [plate(semiaxes=shape), plate("stone")]
    wrench = td.PassiveForces(mech, density=1000.0, ellipsoids=ellipsoids)(z)
    for gradient in torch.autograd.grad(wrench.square().sum() + wrench.sum(), (z, shape)):
        assert not gradient.any()
    slow = td.PassiveForces(mech, viscosity=0.1, ellipsoids=ellipsoids)
    by_state = torch.autograd.functional.jacobian(slow, z.detach()[0])
    assert bool(by_state.isfinite().all()) and float(by_state[0, 3]) < 0


def test_environments_have_their_own_numbers() -> None:
    """Each row of a batch is what one environment with its numbers has."""
    mech, z = leaf(), states(3, leaf())
    draw = torch.Generator().manual_seed(2)
    semiaxes, coefficients = 0.1 + torch.rand(3, 3, generator=draw).double(), torch.rand(3, 5, generator=draw).double()
    density, mass = torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor([1.0, 1.5, 2.0]).double()

    def passive(i: int | slice) -> td.PassiveForces:
        shapes = [plate(semiaxes=semiaxes[i], coefficients=coefficients[i]), plate()]
        parts = [
            td.PassivePart(td.Site("leaf"), 2.0, (0.1, 0.2, 0.25), 0.5, shapes),
            td.PassivePart(td.Site("stone"), mass[i], (0.1, 0.1, 0.1)),
        ]
        return td.PassiveForces(mech, density=density[i], viscosity=0.1, parts=parts)

    single = torch.stack([passive(i)(z[i]) for i in range(3)])
    torch.testing.assert_close(passive(slice(None))(z), single, atol=1e-13, rtol=1e-13)


def test_float32_transforms_and_copies() -> None:
    mech = leaf()
    mech.passive = td.PassiveForces(mech, density=2.0, wind=(1.0, 0.0, 0.0), ellipsoids=[plate(), plate("stone")])
    z = states(3, mech)
    wrench, single = mech.passive(z), mech.passive(z.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), wrench, atol=1e-5, rtol=1e-5)  # z is rounded to 6e-8 of itself
    torch.testing.assert_close(torch.func.vmap(mech.passive)(z), wrench, atol=1e-14, rtol=0)
    for other in (copy.deepcopy(mech), pickle.loads(pickle.dumps(mech))):
        assert other.passive is not None and other.passive.mech is other
        assert torch.equal(other.passive(z), wrench)


def test_files_of_ellipsoids_come_back(tmp_path: Path) -> None:
    """What is read is written, and what is written reads as the same forces; numbers of one's own are named."""
    mech = leaf()
    mech.poses.clear()
    medium = {"density": 1000.0, "viscosity": 0.1, "wind": (0.5, 0.0, 0.0), "gravity_compensation": {"leaf": 0.7}}
    mech.passive = td.PassiveForces(mech, **medium, ellipsoids=[plate(), plate(coefficients=(1, 2, 3, 4, 5)), plate("stone")])
    z, wrenches, path = states(5, mech), [mech.passive(states(5, mech))], tmp_path / "leaf.xml"
    for _ in range(2):
        text, left_out = write_mjcf(mech)
        path.write_text(text)
        with pytest.warns(UserWarning, match="the medium"):
            mech = td.load(path)
        assert left_out == []
        wrenches.append(mech.passive(z))
    torch.testing.assert_close(wrenches[1], wrenches[0], rtol=1e-5, atol=1e-3)  # MuJoCo's added inertia
    torch.testing.assert_close(wrenches[2], wrenches[1], rtol=0, atol=1e-11)
    mech.passive = td.PassiveForces(mech, density=1.0, ellipsoids=[plate(), plate(added_mass=(0.1, 0.1, 0.1), added_inertia=(0, 0, 0))])
    assert write_mjcf(mech)[1] == ["passive.ellipsoids.1.added_mass"]


def test_refused_ellipsoids(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"coefficients: got shape \(4,\); allowed: \(\.\.\., 5\)"):
        plate(coefficients=(0.5, 0.25, 1.5, 1.0))
    with pytest.raises(ValueError, match=r"coefficients: got \[0.5, -0.25, .*allowed: numbers of zero or more"):
        plate(coefficients=(0.5, -0.25, 1.5, 1.0, 1.0))
    for wrong in ((0.1, 0.1), (0.1, 0.0, 0.1), (0.1, math.inf, 0.1), (0.1, math.nan, 0.1)):
        with pytest.raises(ValueError, match="FluidEllipsoid semiaxes"):
            plate(semiaxes=wrong)
    with pytest.raises(ValueError, match="give both"):
        plate(added_mass=(0.1, 0.1, 0.1))
    with pytest.raises(ValueError, match="added_inertia: got"):
        plate(added_mass=(0.1, 0.1, 0.1), added_inertia=(0.1, -0.1, 0.1))
    with pytest.raises(ValueError, match="in the world"):
        td.FluidEllipsoid(td.Site(None), SPHERE)
    with pytest.raises(ValueError, match=r"got bodies \['bird'\]"):
        td.PassiveForces(leaf(), ellipsoids=[plate("bird")])
    with pytest.raises(ValueError, match=r"got ellipsoids= and parts="):
        td.PassiveForces(leaf(), ellipsoids=[plate()], parts=[])
    with pytest.raises(ValueError, match=r"got frames on \['stone'\]; allowed: 'leaf'"):
        td.PassivePart(td.Site("leaf"), 1.0, (1.0, 1.0, 1.0), 0.0, [plate("stone")])
    path = tmp_path / "flier.xml"
    path.write_text(FLIER.format(timestep=1e-3, density=1, viscosity=0, wind="0 0 0").replace("1 0.1 2 3 0.5", "1 -0.1 2 3 0.5"))
    with pytest.raises(ValueError, match=r"fluidcoef of geom 'geom1' of body 'flier': .*-0.1"):
        td.load(path, contacts=None)

"""Dynamics in joint coordinates: agreement with steps, energies and momenta of states, derivatives, transforms, batches, bad input."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo import models
from torchdojo import quaternion as quat
from user_elements import Cardan, TwoAngles, cardan_arm
from user_elements import arm as user_arm

JOINT_TYPES = [
    "Prismatic", "Planar", "FixedOrientation", "Revolute", "Cylindrical", "PlanarAxis", "FreeRevolute", "Orbital", "PrismaticOrbital",
    "PlanarOrbital", "FreeOrbital", "Spherical", "CylindricalFree", "PlanarFree", "Floating",
]  # fmt: skip
INERTIA = ((0.1, 0.01, 0.0), (0.01, 0.2, 0.02), (0.0, 0.02, 0.15))
AT = {"axis": (1, 2, 3), "parent_anchor": (0.3, 0.0, 0.1), "child_anchor": (0.0, -0.3, 0.1), "orientation_offset": (0.8, 0.0, 0.6, 0.0)}


def chain(joint: str, timestep: float = 1e-4) -> td.Mechanism:
    """A joint of a type on the world, the same with an armature behind a hinge, and a welded tool."""
    bodies = {name: td.Body(mass, torch.tensor(INERTIA)) for name, mass in (("a", 1.0), ("b", 2.0), ("c", 0.5), ("tool", 0.3))}
    kind = getattr(td, joint)
    joints = {
        "first": kind(None, "a", **AT),
        "hinge": td.Revolute("a", "b", parent_anchor=(0.1, 0.2, 0.3), axis=(0, 1, 1)),
        "second": kind("b", "c", armature=0.2, **AT),
        "weld": td.Fixed("c", "tool", parent_anchor=(0.1, 0.0, 0.0)),
    }
    return td.Mechanism(bodies, joints, timestep=timestep, gravity=(1.0, -2.0, -9.81))


def motion(mech: td.Mechanism, *batch: int, count: int = 3, scale: float = 0.5) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(scale * torch.randn(*batch, mech.num_coordinates, generator=generator, dtype=torch.float64) for _ in range(count))


# -- agreement with steps and states -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("joint", JOINT_TYPES)
def test_equations_of_motion_close_on_steps(joint: str) -> None:
    """M q̈ + c = τ with accelerations of our own steps, and energies and momenta of states: the error at least halves with the timestep."""
    errors = []
    for h in (1e-3, 5e-4):
        mech = chain(joint, h)
        q, qd, u = motion(mech, 3)
        z, out = mech.to_maximal(q, qd), mech.step_minimal(q, qd, u)
        mass = mech.mass_matrix(q)
        energy = 0.5 * (qd * (mass @ qd[..., None])[..., 0]).sum(-1)
        force = (mass @ ((out.qd - qd) / h)[..., None])[..., 0] + mech.bias(q, qd)
        assert torch.allclose(mech.inverse_dynamics(q, qd, (out.qd - qd) / h), force, atol=1e-9)
        velocity = (mech.point_jacobian(q, "tool") @ qd[..., None])[..., 0]
        state = mech.body_state(z, "tool")
        pairs = [
            (force, u),
            (energy, mech.kinetic_energy(z)),
            (mech.centroidal_momentum(q, qd), mech.momentum(z)),
            (velocity[..., :3], state.v),
            (velocity[..., 3:], quat.rotate(state.q, state.omega)),
        ]
        errors.append([float((a - b).abs().max()) for a, b in pairs])
        assert torch.allclose(mech.potential_energy(z), -3.8 * (mech.gravity * mech.center_of_mass(q)).sum(-1), atol=1e-12)
    for coarse, fine in zip(*errors, strict=True):
        assert fine < 1e-11 or coarse > 1.8 * fine


def test_jacobians_are_derivatives() -> None:
    """With single rotations, rates are the derivatives of coordinates."""
    mech = chain("Cylindrical")
    q, qd, _ = motion(mech)
    point = torch.tensor((0.1, 0.2, 0.3), dtype=torch.float64)
    place = torch.func.jacfwd(lambda q: mech.body_points(mech.to_maximal(q), "c", point[None])[0])(q)
    assert torch.allclose(mech.point_jacobian(q, "c", point)[:3], place, atol=1e-12)
    assert torch.allclose(mech.center_of_mass_jacobian(q), torch.func.jacfwd(mech.center_of_mass)(q), atol=1e-12)
    weight = torch.func.grad(lambda q: mech.potential_energy(mech.to_maximal(q)))(q)
    assert torch.allclose(mech.gravity_forces(q), weight, atol=1e-11)
    # c = Ṁ q̇ − ∂(½ q̇ᵀMq̇)/∂q + ∂V/∂q
    _, change = torch.func.jvp(mech.mass_matrix, (q,), (qd,))
    energy = torch.func.grad(lambda q: 0.5 * qd @ mech.mass_matrix(q) @ qd)(q)
    assert torch.allclose(mech.bias(q, qd), change @ qd - energy + weight, atol=1e-11)


@pytest.mark.parametrize("name", models.names())
def test_models(name: str) -> None:
    """Mass matrices are symmetric and positive, momentum and center of mass are those of the bodies, also far from the origin."""
    mech = models.make(name)
    q, qd, qdd = motion(mech, 2)
    mass = mech.mass_matrix(q)
    assert torch.equal(mass, mass.mT)
    assert float(torch.linalg.eigvalsh(mass).min()) > 0
    force = (mass @ qdd[..., None])[..., 0] + mech.bias(q, qd)
    assert torch.allclose(mech.inverse_dynamics(q, qd, qdd), force, rtol=1e-12, atol=1e-12 * float(force.abs().max()))
    weight = (mech.center_of_mass_jacobian(q).mT @ mech.gravity[..., None])[..., 0]
    total = sum(float(body.mass) for body in mech.bodies.values())
    assert torch.allclose(mech.gravity_forces(q), -total * weight, atol=1e-10)
    base = next((place for joint, place in mech.coordinate_places().items() if mech.joints[joint].free_translations == 3), None)
    if base is not None:
        far = q.clone()
        far[..., base.start : base.start + 3] += 1e5
        assert torch.allclose(mech.mass_matrix(far), mass, atol=1e-8)


# -- derivatives ---------------------------------------------------------------------------------------------------------------------------

MAPS: dict[str, Callable[..., Tensor]] = {
    "mass_matrix": lambda mech, q, qd, qdd: mech.mass_matrix(q),
    "bias": lambda mech, q, qd, qdd: mech.bias(q, qd),
    "gravity_forces": lambda mech, q, qd, qdd: mech.gravity_forces(q),
    "inverse_dynamics": lambda mech, q, qd, qdd: mech.inverse_dynamics(q, qd, qdd),
    "point_jacobian": lambda mech, q, qd, qdd: mech.point_jacobian(q, "b", qd[:3]),
    "center_of_mass": lambda mech, q, qd, qdd: mech.center_of_mass(q),
    "center_of_mass_jacobian": lambda mech, q, qd, qdd: mech.center_of_mass_jacobian(q),
    "centroidal_matrix": lambda mech, q, qd, qdd: mech.centroidal_matrix(q),
    "centroidal_momentum": lambda mech, q, qd, qdd: mech.centroidal_momentum(q, qd),
}


def arm() -> td.Mechanism:
    """A slide, a universal joint and a ball."""
    bodies = {name: td.Body(1.0, torch.tensor(INERTIA)) for name in ("a", "b", "c")}
    at = {"parent_anchor": (0.3, 0.0, 0.1), "child_anchor": (0.0, -0.3, 0.1)}
    return td.Mechanism(bodies, {"x": td.Cylindrical(None, "a", **at), "y": td.Orbital("a", "b", **at), "z": td.Spherical("b", "c", **at)})


QUICK = ("mass_matrix", "inverse_dynamics", "point_jacobian")  # whose operations are those of the others, too
SOME = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MAPS]


@pytest.mark.parametrize("scale", [0.5, pytest.param(0.0, marks=pytest.mark.slow)], ids=["anywhere", "at zero"])
@pytest.mark.parametrize("name", SOME)
def test_first_and_second_derivatives(name: str, scale: float) -> None:
    mech = arm()
    q, qd, qdd = motion(mech)
    given = [value.requires_grad_() for value in (scale * q, qd, qdd)]
    weight = torch.randn_like(MAPS[name](mech, *given)).detach()

    def value(*given: Tensor) -> Tensor:
        return (weight * MAPS[name](mech, *given)).sum()

    assert torch.autograd.gradcheck(value, given, atol=1e-6, rtol=1e-6)
    assert torch.autograd.gradgradcheck(value, given, atol=1e-6, rtol=1e-6, fast_mode=True)


def test_derivatives_by_parameters() -> None:
    mech = arm()
    given = motion(mech)
    names = ["bodies.a.mass", "bodies.c.inertia", "joints.y.axis", "joints.z.child_anchor", "joints.x.orientation_offset", "gravity"]
    parameters = dict(mech.named_parameters())
    values = [parameters[name].detach().clone().requires_grad_() for name in names]

    def force(*values: Tensor) -> Tensor:
        return torch.func.functional_call(_Inverse(mech), {f"mech.{n}": v for n, v in zip(names, values, strict=True)}, given)

    # The orientation offset is a unit quaternion, so differences go along the sphere.
    def on_sphere(*values: Tensor) -> Tensor:
        return force(*values[:4], values[4] / values[4].norm(), values[5])

    assert torch.autograd.gradcheck(on_sphere, values, atol=1e-6, rtol=1e-6)


class _Inverse(torch.nn.Module):
    def __init__(self, mech: td.Mechanism) -> None:
        super().__init__()
        self.mech = mech

    def forward(self, *given: Tensor) -> Tensor:
        return self.mech.inverse_dynamics(*given)


# -- batches, dtypes, transforms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAPS)
def test_batches_dtypes_and_transforms(name: str) -> None:
    mech = arm()
    given = motion(mech, 2, 3)
    single = torch.stack([MAPS[name](mech, *(g[i, j] for g in given)) for i in range(2) for j in range(3)]).unflatten(0, (2, 3))
    function = {"point_jacobian": lambda *g: mech.point_jacobian(g[0], "b", g[1][..., :3])}.get(name, lambda *g: MAPS[name](mech, *g))
    whole = function(*given)
    assert torch.allclose(whole, single, atol=1e-12)
    assert torch.allclose(torch.func.vmap(torch.func.vmap(function))(*given), single, atol=1e-12)
    assert function(*(g[:0] for g in given)).shape == (0, *single.shape[1:])
    lowered = function(*(g.float() for g in given))
    assert lowered.dtype == torch.float32
    assert torch.allclose(lowered.double(), single, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", MAPS)
def test_compiled(name: str) -> None:
    mech = arm()
    given = motion(mech, *(() if name == "point_jacobian" else (2,)))
    compiled = torch.compile(lambda *given: MAPS[name](mech, *given), backend="aot_eager")
    assert torch.allclose(compiled(*given), MAPS[name](mech, *given), atol=1e-12)


def test_batches_of_parameters() -> None:
    mech = arm()
    q, qd, qdd = motion(mech, 2, 3)
    mech.bodies["b"].mass = torch.tensor((1.0, 2.0, 3.0), dtype=torch.float64)
    mech.joints["z"].parent_anchor = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    force, mass = mech.inverse_dynamics(q, qd, qdd), mech.mass_matrix(q[:, :1])
    assert mass.shape == (2, 3, mech.num_coordinates, mech.num_coordinates)
    for i in range(3):
        one = arm()
        one.bodies["b"].mass, one.joints["z"].parent_anchor = mech.bodies["b"].mass[i], mech.joints["z"].parent_anchor[i]
        assert torch.allclose(force[:, i], one.inverse_dynamics(q[:, i], qd[:, i], qdd[:, i]), atol=1e-12)
        assert torch.allclose(mass[:, i], one.mass_matrix(q[:, 0]), atol=1e-12)


def test_batches_of_armatures() -> None:
    mech = chain("Revolute")
    q, _, qdd = motion(mech, 3)
    mass = mech.mass_matrix(q[0])
    mech.joints["second"].armature = torch.tensor([[0.2], [0.5]], dtype=torch.float64)
    more = torch.zeros(2, 3, 3, dtype=torch.float64)
    more[1, 2, 2] = 0.3
    assert torch.allclose(mech.mass_matrix(q[0]), mass + more, atol=1e-14)
    still = torch.zeros_like(q[0])
    force = mech.inverse_dynamics(q[0], still, qdd[0]) - mech.gravity_forces(q[0])
    assert torch.allclose(force, (mass + more) @ qdd[0], atol=1e-13)


def test_copies_and_edits() -> None:
    mech = arm()
    q, _, _ = motion(mech)
    mass = mech.mass_matrix(q)
    for other in (copy.deepcopy(mech), pickle.loads(pickle.dumps(mech))):
        assert torch.equal(other.mass_matrix(q), mass)
    del mech.joints["x"]
    assert mech.num_coordinates == 11  # the first body is free
    assert mech.mass_matrix(torch.zeros(11, dtype=torch.float64)).shape == (11, 11)


def test_loops_are_left_open() -> None:
    mech = models.make("fourbar")
    assert mech.has_loops
    q = 0.3 * torch.ones(mech.num_coordinates, dtype=torch.float64)
    tree = td.Mechanism(
        dict(copy.deepcopy(mech).bodies.items()),
        {name: copy.deepcopy(mech.joints[name]) for name in mech.tree_joints},
        gravity=mech.gravity,
    )
    assert torch.allclose(mech.mass_matrix(q), tree.mass_matrix(q), atol=1e-14)
    assert torch.allclose(mech.bias(q, q), tree.bias(q, q), atol=1e-14)


def test_bad_input() -> None:
    mech = arm()
    q, qd, qdd = motion(mech)
    with pytest.raises(ValueError, match=r"q: got shape \(5,\); allowed: \(..., 7\)"):
        mech.mass_matrix(q[:5])
    with pytest.raises(ValueError, match=r"qdd: got shape"):
        mech.inverse_dynamics(q, qd, qdd[:5])
    with pytest.raises(ValueError, match=r"point_jacobian: got 'hand'; bodies are \['a', 'b', 'c'\]"):
        mech.point_jacobian(q, "hand")
    with pytest.raises(ValueError, match=r"point: got shape \(2,\)"):
        mech.point_jacobian(q, "a", q[:2])
    with pytest.raises(ValueError, match=r"joint 'joint': got a TwoAngles in the spanning tree; allowed: the standard joints"):
        cardan_arm(TwoAngles).mass_matrix(torch.zeros(3, dtype=torch.float64))


def test_joints_without_coordinates_are_loops() -> None:
    """The tree has a free pose in the place of a user's joint without coordinates."""
    mech = cardan_arm(Cardan)
    free = user_arm(td.Floating("a", "b"))
    q, qd, _ = motion(mech)
    assert torch.allclose(mech.mass_matrix(q), free.mass_matrix(q), atol=1e-14)
    assert torch.allclose(mech.bias(q, qd), free.bias(q, qd), atol=1e-13)

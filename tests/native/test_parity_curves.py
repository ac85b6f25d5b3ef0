"""Polynomials of springs and dampers of joints: the kernel against the reference, and gradients against differences."""

from __future__ import annotations

import pytest
import torch
from parity import check, exact
from torch import Tensor

import torchdojo as td
from torchdojo.native import loader

pytestmark = [pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel"), pytest.mark.sanitize]

KINDS = ("Revolute", "Prismatic", "Cylindrical", "PlanarAxis", "FreeRevolute", "Planar", "FixedOrientation")
LAWS = {
    "explicit": {"implicit": False},
    "implicit": {"implicit": True},
    "others": {"implicit": True, "servo_stiffness": 8.0, "servo_damping": 0.3, "armature": 0.1, "friction": 0.2, "limits": (-2.0, 2.5)},
}


def chain(closed: bool = False, **laws: object) -> tuple[td.Mechanism, Tensor, Tensor]:
    """Bodies one after another, with every joint that may have curves; `closed`: with a spring between the last and the world, too."""
    torch.manual_seed(5)
    bodies, joints, parent = {}, {}, None
    for kind in KINDS:
        name = kind.lower()
        bodies[name] = td.Body(0.8, (0.02, 0.03, 0.015))
        n = sum(td.elements.joints.JOINT_TYPES[kind])
        joints[name] = getattr(td, kind)(
            parent,
            name,
            axis=torch.randn(3),
            parent_anchor=0.2 * torch.randn(3),
            child_anchor=0.2 * torch.randn(3),
            spring=3 * torch.rand(n),
            damper=0.2 * torch.rand(n),
            rest=0.2 * torch.randn(n),
            spring_curve=4 * torch.randn(n, 2).abs(),
            damper_curve=torch.rand(n, 2),
            **laws,
        )
        parent = name
    if closed:
        joints["string"] = td.FreeRevolute(None, parent, spring=1.0, spring_curve=(0.5, 2.0), damper_curve=(0.1, 0.2), actuated=False)
    mech = td.Mechanism(bodies, joints, timestep=0.01, options=exact(1e-4))
    n = mech.num_coordinates
    z = mech.to_maximal(0.4 * torch.randn(3, n), torch.randn(3, n))
    return mech, z, torch.randn(3, mech.num_inputs)


@pytest.mark.parametrize("law", LAWS)
def test_every_joint(law: str) -> None:
    check(*chain(**LAWS[law]))


def test_alone() -> None:
    """A curve without linear spring and damper, and one of the two polynomials alone."""
    body = {"b": td.Body(0.8, (0.02, 0.03, 0.015))}
    for curve in ({"spring_curve": (3.0, 9.0)}, {"damper_curve": (0.4, 0.7)}, {"spring_curve": (-3.0, 9.0), "implicit": True}):
        mech = td.Mechanism(body, {"j": td.Revolute(None, "b", axis=(1, 2, 0.5), child_anchor=(0, 0, 0.3), **curve)}, options=exact(1e-4))
        z = mech.to_maximal(torch.tensor([[0.7], [-0.6]]), torch.tensor([[2.0], [-3.0]]))
        check(mech, z, torch.randn(2, 1))


@pytest.mark.parametrize("law", LAWS)
def test_parameters_equal_differences(law: str) -> None:
    mech, z, u = chain(**LAWS[law])
    mech.options = td.SolverOptions(kappa=1e-4, backend="native")
    names = [f"joints.{kind.lower()}.{name}" for kind in KINDS for name in ("spring_curve", "damper_curve", "rest")]
    report = td.testing.check_gradients(mech, z[0], u[0], parameters=[*names, "timestep"], directions=6)
    assert report.max_relative_error < 1e-6, report


def test_energy_map() -> None:
    """The kernel's potential energy and its gradient."""
    mech, z, _ = chain()
    results = []
    for backend in ("native", "reference"):
        mech.options = td.SolverOptions(backend=backend)
        given = z.clone().requires_grad_()
        energy = mech.potential_energy(given)
        results.append((energy.detach(), *torch.autograd.grad(energy.sum(), given)))
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


def test_curves_of_zero_change_nothing() -> None:
    """Their tables differ from those without curves, and the steps do not."""
    mech, z, u = chain()
    plain, _, _ = chain()
    for joint in mech.joints.values():
        joint.spring_curve, joint.damper_curve = 0 * joint.spring_curve, 0 * joint.damper_curve
    bare = td.Mechanism(plain.bodies, {name: _without(joint) for name, joint in plain.joints.items()}, timestep=0.01, options=plain.options)
    with torch.no_grad():
        torch.testing.assert_close(mech.step(z, u).z, bare.step(z, u).z, rtol=1e-12, atol=1e-12)


def _without(joint: td.StandardJoint) -> td.StandardJoint:
    names = ("axis", "parent_anchor", "child_anchor", "spring", "damper", "rest")
    return type(joint)(joint.parent, joint.child, **{name: getattr(joint, name).detach() for name in names})

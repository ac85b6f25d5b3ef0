"""Gradients of every parameter from the kernel: against central differences, in many states of contact, and however they are summed."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from mechanisms import Sample, all_joints, close_to_limits, random_body, random_joint
from torch import Tensor

import torchdojo as td
from torchdojo import quaternion as quat
from torchdojo.native import loader

pytestmark = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")

NATIVE = td.SolverOptions(kappa=1e-4, backend="native")
# Error of gradients against central differences, relative to the largest derivative of the input. Contacts at 1e-6 bend within micrometers.
TOLERANCE = {1e-3: 1e-6, 1e-4: 1e-6, 1e-6: 1e-4}


# -- against central differences -----------------------------------------------------------------------------------------------------------


def box_of(model: type[td.Contact], **given: Any) -> Sample:
    """A tilted box that slides and turns on an inclined plane, some of its corners a little below it."""
    corners = list(itertools.product((-0.25, 0.25), repeat=3))
    friction = {} if model is td.ImpactContact else {"friction": 0.4}
    surface = {"normal": (0.1, -0.2, 1.0), "offset": 0.05}
    contacts = {f"corner{i}": model("box", point=p, radius=0.01 * (i + 1), **surface, **friction, **given) for i, p in enumerate(corners)}
    mech = td.Mechanism({"box": td.Body(1.0, (0.04, 0.045, 0.05))}, contacts=contacts)
    q = torch.tensor((1.0, 0.05, -0.1, 0.02))
    z = torch.cat((torch.zeros(3), torch.tensor((0.5, -0.3, -1.0)), q / q.norm(), torch.tensor((0.4, -0.8, 1.0))))
    z[2] -= (
        float(mech.distances(z).sort().values[1]) - 1e-3
    )  # the lowest corner overlaps, where laws of overlap act, and the next corner is close
    return Sample(mech, z, torch.zeros(0))


SHAPES = {
    "sphere": td.Sphere(0.1),
    "capsule": td.Capsule(radius=0.05, length=0.3),
    "box": td.Box((0.2, 0.3, 0.25), position=(0.01, 0.02, 0.03)),
}


def collision(shape: str, other: str, fixed: bool, **laws: float) -> Sample:
    """A shape that falls on another one, 1 mm above it."""
    torch.manual_seed(3)
    bodies = {"a": td.Body(1.0, (0.010, 0.012, 0.013))} | ({} if fixed else {"b": td.Body(0.7, (0.008, 0.006, 0.007))})
    contact = td.NonlinearContact("a", shape=SHAPES[shape], other=None if fixed else "b", other_shape=SHAPES[other], friction=0.4, **laws)
    mech = td.Mechanism(bodies, contacts={"touch": contact})
    z = torch.zeros(len(bodies), 13)
    z[:, 6:10] = quat.normalize(torch.randn(len(bodies), 4))
    z[:, 3:6], z[:, 10:] = 0.3 * torch.randn(len(bodies), 3), torch.randn(len(bodies), 3)
    z[0, 5] -= 1.5
    low, high = 0.0, 2.0
    for _ in range(60):
        z[0, 2] = 0.5 * (low + high)
        low, high = (low, float(z[0, 2])) if float(mech.distances(z.flatten())[0]) > 1e-3 else (float(z[0, 2]), high)
    return Sample(mech, z.flatten(), torch.zeros(0))


def overlapping(sample: Sample) -> Sample:
    """1 cm deeper."""
    mech, z, u = sample
    z = z.clone()
    z[2] -= 0.011
    return Sample(mech, z, u)


def coupled() -> Sample:
    """A wheel that drives another one and a slider, and a ball joint that follows the second."""
    torch.manual_seed(4)
    names = ("wheel", "gear", "rack", "ball")
    kinds = {"wheel": "Revolute", "gear": "Cylindrical", "rack": "Prismatic", "ball": "Spherical"}
    joints = {name: random_joint(kind, None, name, True, True) for name, kind in kinds.items()}
    couplings = {
        "mesh": td.JointCoupling("wheel", "gear", ratio=-0.7, offset=0.2, follower_coordinate=1),
        "pinion": td.JointCoupling("wheel", "rack", ratio=0.3, offset=-0.1),
        "roll": td.JointCoupling("gear", "ball", ratio=0.5, leader_coordinate=1, follower_coordinate=2),
    }
    mech = td.Mechanism({name: random_body() for name in names}, joints, couplings=couplings)
    q = torch.tensor((0.4, 0.1, -0.08, 0.02, 0.2, -0.3, -0.04))
    return Sample(mech, mech.to_maximal(q, torch.randn(7)), torch.randn(mech.num_inputs))


def first(sample: Sample) -> Sample:
    return Sample(sample.mechanism, sample.z[0], sample.u[0])


CASES: dict[str, Callable[[], Sample]] = {
    "joints": lambda: first(all_joints(True, True, True, 1)),
    "springs and dampers of zero": lambda: first(all_joints(False, False, False, 1)),
    "armature and joint friction": lambda: first(all_joints(True, True, True, 1, armature=0.3, friction=1.0)),
    "limits": lambda: first(close_to_limits(1)),
    "frictionless": lambda: box_of(td.ImpactContact),
    "cone": lambda: box_of(td.NonlinearContact),
    "pyramid": lambda: box_of(td.LinearContact, facets=6),
    "restitution": lambda: box_of(td.NonlinearContact, restitution=0.6),
    "recovery": lambda: box_of(td.NonlinearContact, recovery_speed=0.1),
    "compliance": lambda: box_of(td.NonlinearContact, stiffness=2e3, damping=30.0),
    "sphere on sphere": lambda: collision("sphere", "sphere", False),
    "capsule on fixed capsule": lambda: collision("capsule", "capsule", True),
    "box on fixed box": lambda: collision("box", "box", True),
    "sphere on box": lambda: collision("sphere", "box", False),
    "bouncing boxes": lambda: collision("box", "box", False, restitution=0.5),
    "recovery between": lambda: overlapping(collision("sphere", "capsule", False, recovery_speed=0.1)),
    "compliance between": lambda: overlapping(collision("capsule", "box", True, stiffness=2e3, damping=30.0)),
    "torsional and rolling friction": lambda: collision("sphere", "box", False, torsional_friction=0.02, rolling_friction=0.01),
    "torsional and rolling friction on the ground": lambda: box_of(td.NonlinearContact, torsional_friction=0.02, rolling_friction=0.01),
    "couplings": coupled,
}


# Every case at the middle kappa, and by turns at the largest and the smallest, which takes as long again.
LONG = ("joints", "springs and dampers of zero", "armature and joint friction", "limits")  # four seconds and more
AT = [pytest.param(case, 1e-4, marks=[pytest.mark.slow] * (case in LONG)) for case in CASES]
AT += [pytest.param(case, (1e-3, 1e-6)[i % 2], marks=pytest.mark.slow) for i, case in enumerate(CASES)]


@pytest.mark.parametrize(("case", "kappa"), AT)
def test_every_class_of_parameters(case: str, kappa: float) -> None:
    torch.manual_seed(5)
    mech, z, u = CASES[case]()
    mech.options = td.SolverOptions(kappa=kappa, backend="native")
    report = td.testing.check_gradients(mech, z, u, directions=3, tolerance=TOLERANCE[kappa])
    assert {name.partition(" -> ")[0] for name in report.errors} >= {name for name, p in mech.named_parameters() if p.numel()}


# -- sums ----------------------------------------------------------------------------------------------------------------------------------


def tumbling(count: int) -> tuple[td.Mechanism, Tensor]:
    """Two bodies with a hinge that has everything, corners, spheres and a box for contacts, thrown at the ground every which way."""
    torch.manual_seed(0)
    corners = itertools.product((-0.1, 0.1), repeat=3)
    contacts: dict[str, td.Contact] = {
        f"corner{i}": td.NonlinearContact("a", point=p, radius=0.01, friction=0.5) for i, p in enumerate(corners)
    }
    contacts |= {
        "foot": td.LinearContact("b", point=(0.0, 0.0, -0.15), radius=0.03, friction=0.7, facets=6),
        "bumper": td.ImpactContact("b", point=(0.0, 0.0, 0.1), radius=0.02, restitution=0.3),
        "step": td.NonlinearContact("b", shape=td.Sphere(0.04), other_shape=td.Box((0.5, 0.5, 0.02), position=(0.2, 0.0, 0.0))),
    }
    laws = dict(spring=1.0, damper=0.1, limits=(-0.5, 0.7), friction=0.05, armature=0.01)
    joints = {
        "base": td.Floating(None, "a", actuated=False),
        "hip": td.Revolute("a", "b", axis=(0.1, 1.0, 0.0), child_anchor=(0.0, 0.0, 0.2), **laws),
    }
    bodies = {"a": td.Body(1.0, (0.010, 0.012, 0.013)), "b": td.Body(0.5, (0.004, 0.005, 0.003))}
    mech = td.Mechanism(bodies, joints, contacts, options=NATIVE)
    z = mech.to_maximal(torch.randn(count, 7) * torch.tensor((0.1,) * 3 + (1.0,) * 3 + (0.3,)), torch.randn(count, 7)).unflatten(
        -1, (-1, 13)
    )
    low = mech.distances(z.flatten(-2)).amin(-1)
    z[..., 2] -= (low - 0.01 * torch.randn(count))[:, None]
    return mech, z.flatten(-2)


def expand(mech: td.Mechanism, name: str, count: int) -> Tensor:
    """Give each environment a parameter of its own, with the same numbers."""
    path, _, leaf = name.rpartition(".")
    owner = mech.get_submodule(path)
    value = getattr(owner, leaf).detach()
    value = value.expand(count, *value.shape).clone()
    setattr(owner, leaf, value)
    return value


def gradients(mech: td.Mechanism, z: Tensor, steps: int = 1) -> dict[str, Tensor]:
    """Gradients of a weighted sum over states and impulses, by every parameter."""
    names = dict(mech.named_parameters())
    for parameter in names.values():
        parameter.requires_grad_()
    path = mech.rollout(z, torch.linspace(-1, 1, mech.num_inputs).expand(steps, -1))
    loss = (path.z[..., 1:, :] * torch.linspace(-1, 1, z.shape[-1])).sum()
    loss = loss + (path.impulses * torch.linspace(0.5, 1, path.impulses.shape[-1])).sum()
    return dict(zip(names, torch.autograd.grad(loss, list(names.values()), materialize_grads=True), strict=True))


def close(values: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float) -> None:
    for name, expected in wanted.items():
        torch.testing.assert_close(values[name], expected, rtol=tolerance, atol=tolerance * max(1.0, float(expected.abs().max())))


@pytest.mark.parametrize("kappa", [1e-4, 1e-6, 1e-8])
def test_gradients_are_finite_in_a_thousand_states_of_contact(kappa: float) -> None:
    mech, z = tumbling(1000)
    mech.options = td.SolverOptions(kappa=kappa, backend="native")
    with torch.no_grad():
        out = mech.step(z)
    # Flight, grazing and pressed contact, and overlap that must be undone in one step; steps may be split, and few are flagged.
    assert float((out.status == 0).double().mean()) > 0.97
    assert float((out.impulses > 1e-2).any(-1).double().mean()) > 0.5
    for name, grad in gradients(mech, z, 2).items():
        assert bool(torch.isfinite(grad).all()), name


@pytest.mark.sanitize
def test_shared_gradients_are_sums_over_environments() -> None:
    """With equal bits for any number of threads; over lanes, also where some steps fail and leave theirs early."""
    mech, z = tumbling(37)
    z[5, 3], z[20, 3] = torch.nan, 1e30
    mech.options = td.SolverOptions(kappa=1e-4, backend="native", max_halvings=0)
    shared = gradients(mech, z, 3)
    threads = torch.get_num_threads()
    try:
        for count in (2, 3):
            torch.set_num_threads(count)
            assert all(torch.equal(grad, shared[name]) for name, grad in gradients(mech, z, 3).items())
    finally:
        torch.set_num_threads(threads)
    for name in [name for name, _ in mech.named_parameters()]:
        expand(mech, name, 37)
    each = gradients(mech, z, 3)
    # Sums of about 100 terms in another order, which may cancel.
    assert all(grad.shape[0] == 37 and not grad[5].any() for grad in each.values())
    close({name: grad.sum(0) for name, grad in each.items()}, shared, 1e-11)


@pytest.mark.sanitize
def test_gradients_of_one_environment_do_not_depend_on_the_others() -> None:
    """Bit for bit: neither on the place in the batch, nor on its size (of two or more), nor on threads."""
    mech, z = tumbling(40)
    names = ["bodies.a.mass", "bodies.b.inertia", "joints.hip.spring", "joints.hip.child_anchor", "contacts.corner3.normal", "timestep"]
    values = {name: expand(mech, name, 40) for name in names}

    def subset(rows: Tensor) -> list[Tensor]:
        for name, value in values.items():
            path, _, leaf = name.rpartition(".")
            setattr(mech.get_submodule(path), leaf, value[rows])
        grads = gradients(mech, z[rows], 2)
        return [grads[name] for name in names]

    everything = subset(torch.arange(40))
    for rows in (torch.arange(40).flip(0), torch.randperm(40), torch.arange(7), torch.arange(3, 30, 2)):
        assert all(torch.equal(a[rows], b) for a, b in zip(everything, subset(rows), strict=True))


def test_a_parameter_that_does_not_act_has_a_gradient_of_zero() -> None:
    mech, z = tumbling(3)
    for parameter in mech.parameters():
        parameter.requires_grad_(False)
    axis = mech.joints["base"].axis.requires_grad_()  # of a joint that leaves all directions free
    (grad,) = torch.autograd.grad(mech.step(z).z.sum(), axis)
    assert torch.equal(grad, torch.zeros(3))


@pytest.mark.sanitize
@pytest.mark.parametrize(("spin", "substeps"), [(15.0, 2), (29.0, 3)])
def test_split_steps(spin: float, substeps: int) -> None:
    """A ball too fast for its timestep lands on the ground and on a box; all laws act in halves and quarters of the step."""
    mech = td.Mechanism(
        {"ball": td.Body(1.0, (1.0, 1.1, 1.2))},
        {"base": td.Floating(None, "ball", spring=1.0, damper=0.2, rest=0.1, armature=0.1, child_anchor=(0.0, 0.1, 0.0))},
        {
            "ground": td.NonlinearContact("ball", radius=0.1, friction=0.5, recovery_speed=0.2),
            "corner": td.LinearContact("ball", shape=td.Sphere(0.1), other_shape=td.Box((0.2, 0.2, 0.2)), restitution=0.5),
        },
        timestep=0.1,
        options=td.SolverOptions(kappa=1e-3, residual_tol=1e-12, central_path_tol=1e-9, max_halvings=2),
    )
    z = torch.tensor(
        [[0.0, 0.0, 0.19, 0.1, 0.2, -1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, spin], [0.3, 0.0, 0.5, 0, 0, 0, 1, 0, 0, 0, 0, 1.0, 2.0]]
    )
    u = torch.tensor((0.0, 0.0, 0.0, 0.0, 0.0, 5.0))
    both = []
    for backend in ("native", "reference"):
        mech.options = dataclasses.replace(mech.options, backend=backend)
        parameters = dict(mech.named_parameters())
        for parameter in parameters.values():
            parameter.requires_grad_()
        out = mech.step(z, u)
        assert not out.status.any() and out.substeps[1] == 1 and out.substeps[0] >= substeps
        loss = (out.z * torch.linspace(-1, 1, 13)).sum() + out.impulses.sum()
        grads = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
        both.append(dict(zip(parameters, grads, strict=True)))
    # Each at its own solution, equal to 1e-12; what that does to derivatives is said in `check` of test_parity.py.
    close(both[0], both[1], 1e-8)

"""Gradients in the limit κ → 0: the kernel against the reference, equal to 1e-10."""

from __future__ import annotations

import pytest
import torch
from mechanisms import Sample, close_to_limits, random_tree
from parity import SANITIZED, collision, exact, thrown_box
from torch import Tensor

import torchdojo as td
from torchdojo.gradients.impacts import bouncing
from torchdojo.testing.conditioning import step_problem

#: Kappa alone decides how four corners share a box's weight, so each impulse has an error of rounding / kappa, 1e-17 / 1e-12 in the hard
#: limit. If such a box slides with friction in the second-order cone, the derivative of its turning depends on that share, for any solver:
#: 1.4e-5. In pyramids it does not, nor without redundant contacts: 1e-10. There only the gradients by the corners' own coefficients depend
#: on it, by 8e-5; their sum, the gradient by a coefficient that all have in common, does not.
SHARED_WEIGHT = 1e-4


def gradients(sample: Sample, mode: str, backend: str, in_common: bool = False) -> list[Tensor]:
    """Gradients of a weighted sum of the next state by z, u and parameters of contacts, at the kernel's solution; and the Jacobian.

    `in_common`: parameters are those that all contacts have in common, whose gradients are sums.

    Both sides go on to the hard limit from that solution, each by itself, with three iterations more than they need, which leave rounding.
    """
    mech, z, u = sample
    mech.options = exact(backend="native", min_iterations=3)
    warm = mech.step(z, u).solution
    mech.options = exact(gradient_mode=mode, backend=backend, min_iterations=3)
    wanted = ("mass", "friction", "restitution", "radius")
    parameters = [p.requires_grad_() for name, p in mech.named_parameters() if name.rpartition(".")[2] in wanted]
    leaves = [z.clone().requires_grad_(), u.clone().requires_grad_()]
    weights = torch.randn(z.shape[-1], generator=torch.Generator().manual_seed(0))
    out = mech.step(*leaves, warm_start=warm)
    results = list(torch.autograd.grad((out.z * weights).sum(), [*leaves, *parameters], materialize_grads=True))
    if in_common:
        kinds = [name.rpartition(".")[2] for name, p in mech.named_parameters() if p.requires_grad]
        of_kind = {kind: [g for own, g in zip(kinds, results[2:], strict=True) if own == kind] for kind in kinds}
        results = [*results[:2], *(torch.stack(own).sum(0) for own in of_kind.values())]
    return results if mode == "complementarity_aware" else [*results, *mech.jacobians(z, u, warm_start=warm)]


def compare(sample: Sample, mode: str = "exact", allowed: float = 1e-10, in_common: bool = False) -> None:
    """Relative to the largest entry of each: where contacts hold, gradients are zero, and none of their digits are known."""
    ours = gradients(sample, mode, "native", in_common)
    assert all(torch.isfinite(t).all() for t in ours)
    if SANITIZED:
        return
    theirs = gradients(sample, mode, "reference", in_common)
    errors = [float((a - b).abs().max() / b.abs().max().clamp_min(1e-6)) for a, b in zip(ours, theirs, strict=True) if b.numel()]
    assert max(errors) < allowed, errors


@pytest.mark.sanitize
@pytest.mark.parametrize("count", [1, 9])
@pytest.mark.parametrize("model", [td.ImpactContact, td.NonlinearContact, td.LinearContact])
def test_boxes_in_every_phase(model: type[td.Contact], count: int) -> None:
    mech, z, u = thrown_box(count)
    friction = {} if model is td.ImpactContact else {"friction": 0.3}
    contacts = {name: model("box", point=c.point, radius=c.radius, **friction) for name, c in mech.contacts.items()}
    sample = Sample(td.Mechanism(dict(mech.bodies.items()), dict(mech.joints.items()), contacts), z, u)
    compare(sample, allowed=SHARED_WEIGHT if model is td.NonlinearContact else 1e-10, in_common=model is td.LinearContact)


@pytest.mark.sanitize
def test_a_tree_on_the_ground() -> None:
    compare(random_tree(1, 5, 3, contacts=6))


@pytest.mark.sanitize
@pytest.mark.parametrize("laws", [{}, {"restitution": 0.7}, {"torsional_friction": 0.01, "rolling_friction": 0.005}], ids=str)
def test_two_bodies(laws: dict[str, float]) -> None:
    compare(collision("sphere", "sphere", False, td.NonlinearContact, **laws))


@pytest.mark.sanitize
@pytest.mark.parametrize("mode", ["exact", "complementarity_aware"])
def test_impacts(mode: str) -> None:
    """Boxes that come down on a corner, with and without touching the ground in this step.

    The term of an impact contains the velocities themselves, which both sides have to 1e-9 m/s in the hard limit.
    """
    mech, z, u = thrown_box(9)
    contacts = {
        name: td.NonlinearContact("box", point=c.point, radius=c.radius, friction=0.3, restitution=0.6) for name, c in mech.contacts.items()
    }
    mech = td.Mechanism(dict(mech.bodies.items()), dict(mech.joints.items()), contacts, options=exact())
    z[:, 3:6], z[:, 6:10] = torch.tensor((0.5, 0.2, -4.0)), torch.nn.functional.normalize(torch.randn(9, 4), dim=-1)
    z[:, 2] += torch.linspace(0.005, 0.06, 9) - mech.distances(z).amin(-1)  # a step takes the boxes down by 0.04 m
    assert 3 < len(bouncing(step_problem(mech, z, u), mech.step(z, u).solution)) < 9
    compare(Sample(mech, z, u), mode, allowed=1e-8)


@pytest.mark.parametrize(("shape", "other"), [("sphere", "capsule"), ("capsule", "box")])
def test_impacts_between_shapes(shape: str, other: str) -> None:
    compare(collision(shape, other, False, td.NonlinearContact, restitution=0.7), allowed=1e-8)


@pytest.mark.slow
def test_impacts_of_a_tree() -> None:
    """Bodies that joints connect, and a restitution of its own in each environment."""
    (plain, z, u), generator = random_tree(1, 5, 3, contacts=6), torch.Generator().manual_seed(0)
    contacts = {
        name: td.NonlinearContact(
            c.body, point=c.point, radius=c.radius, normal=c.normal, offset=c.offset, restitution=torch.rand(3, generator=generator)
        )
        for name, c in plain.contacts.items()
    }
    mech = td.Mechanism(dict(plain.bodies.items()), dict(plain.joints.items()), contacts, options=exact())
    bodies = z.clone().unflatten(-1, (-1, 13))
    bodies[..., 2] += 0.01 - mech.distances(z).amin(-1)[:, None]
    bodies[..., 5] -= 3.0
    z = bodies.flatten(-2)
    assert len(bouncing(step_problem(mech, z, u), mech.step(z, u).solution)) == 3
    compare(Sample(mech, z, u), allowed=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("given", [{}, {"friction": 0.5}, {"velocity_limits": 1.5}], ids=str)
def test_limits_and_friction_of_joints(given: dict[str, float]) -> None:
    compare(close_to_limits(3, **given))


@pytest.mark.sanitize
def test_complementarity_aware() -> None:
    """Where the weights want contacts open, both open the same ones, and gradients of parameters follow."""
    sample = thrown_box(9)
    compare(sample, "complementarity_aware", allowed=SHARED_WEIGHT)
    aware, plain = (gradients(sample, mode, "native")[1] for mode in ("complementarity_aware", "exact"))
    assert float((aware - plain).abs().max()) > 1e-3  # something was opened

"""Gradients in the limit κ → 0: the kernel against the reference, equal to 1e-10."""

from __future__ import annotations

import pytest
import torch
from mechanisms import Sample, close_to_limits, random_tree
from test_parity import check, collision, exact, thrown_box

import torchdojo as td


def hard(sample: Sample, mode: str = "exact") -> Sample:
    """Both sides go on to the limit from one solution, each by itself: three iterations more leave rounding of what they find there."""
    mechanism, z, u = sample
    mechanism.options = exact(gradient_mode=mode, min_iterations=3)
    return Sample(mechanism, z, u)


@pytest.mark.parametrize("count", [1, 9])
def test_boxes_in_every_phase(count: int) -> None:
    """Four corners on the ground are more than hold a box: impulses of its corners have derivatives of least norm."""
    check(*hard(thrown_box(count)))


@pytest.mark.parametrize("model", [td.ImpactContact, td.LinearContact])
def test_other_contacts(model: type[td.Contact]) -> None:
    mech, z, u = thrown_box(9)
    friction = {} if model is td.ImpactContact else {"friction": 0.3}
    contacts = {name: model("box", point=c.point, radius=c.radius, **friction) for name, c in mech.contacts.items()}
    mech = td.Mechanism(dict(mech.bodies.items()), dict(mech.joints.items()), contacts)
    check(*hard(Sample(mech, z, u)))


def test_a_tree_on_the_ground() -> None:
    check(*hard(random_tree(1, 5, 3, contacts=6)))


@pytest.mark.parametrize("laws", [{}, {"restitution": 0.7}], ids=str)
def test_two_bodies(laws: dict[str, float]) -> None:
    check(*hard(collision("sphere", "sphere", False, td.NonlinearContact, **laws)))


@pytest.mark.slow
@pytest.mark.parametrize("given", [{}, {"friction": 0.5}], ids=str)
def test_limits_and_friction_of_joints(given: dict[str, float]) -> None:
    check(*hard(close_to_limits(3, **given)))


def test_complementarity_aware() -> None:
    """Gradients of a weighted sum of states and impulses that wants some contacts open."""
    mech, z, u = hard(thrown_box(9), "complementarity_aware")
    weights = torch.randn(13)
    found = []
    for backend in ("native", "reference"):
        mech.options = exact(gradient_mode="complementarity_aware", min_iterations=3, backend=backend)
        start, push = z.clone().requires_grad_(), u.clone().requires_grad_()
        mass = mech.bodies["box"].mass.requires_grad_()
        grads = torch.autograd.grad((mech(start, push) @ weights).sum(), (start, push, mass))
        mech.options = exact(gradient_mode="exact", min_iterations=3, backend=backend)
        plain = torch.autograd.grad((mech(start, push) @ weights).sum(), (start, push, mass))
        assert any(float((a - b).abs().max()) > 1e-3 for a, b in zip(grads, plain, strict=True))  # something was opened
        found.append(grads)
    assert all(float((a - b).abs().max()) < 1e-9 * float(b.abs().max()) for a, b in zip(*found, strict=True))

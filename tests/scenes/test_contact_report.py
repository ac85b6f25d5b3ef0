"""Contacts as data: forces balance weights and each other, points and normals belong together, pairs have their names."""

from __future__ import annotations

import pytest
import torch

import torchdojo as td

CUBE = td.Box((0.2, 0.2, 0.2))


def stack() -> tuple[td.Mechanism, torch.Tensor]:
    """Two crates on each other on a floor, and a ball in the air; two environments, of which the second has the upper crate in the air."""
    scene = td.combine(
        upper=td.Body(2.0, shape=CUBE), lower=td.Body(3.0, shape=CUBE), ball=td.Body(1.0, shape=td.Sphere(0.1)), floor=td.Plane()
    )
    z = scene.initial_state(
        (2,),
        upper={"position": torch.tensor([[0.0, 0, 0.3001], [0, 0, 0.8]])},
        lower={"position": (0, 0, 0.10005)},
        ball={"position": (1.0, 0, 2.0)},
    )
    return scene, z


def test_stack() -> None:
    scene, z = stack()
    path = scene.rollout(z, steps=20)
    assert not path.status.any()
    report = scene.contact_report(path.z, path)
    n = len(scene.contacts)
    assert report.active.shape == (2, 20, n) and report.points.shape == report.normals.shape == report.forces.shape == (2, 20, n, 3)
    both, one = (report.touching(i, 19) for i in (0, 1))
    assert [(pair.body, pair.other) for pair in both] == [("upper", "lower"), ("lower", "floor")]
    assert [(pair.body, pair.other) for pair in one] == [("lower", "floor")]
    weight = 9.81
    # Contacts that do not act carry the rest: kappa over their gap, and over the timestep.
    assert both[0].force.tolist() == pytest.approx([0, 0, 2 * weight], abs=2e-2)
    assert both[1].force.tolist() == pytest.approx([0, 0, 5 * weight], abs=2e-2)
    assert one[0].force.tolist() == pytest.approx([0, 0, 3 * weight], abs=2e-2)
    # All normals of the pair point from the lower to the upper crate, those of corners of the upper one included.
    assert both[0].normals[:, 2].tolist() == pytest.approx([1.0] * len(both[0].contacts))
    heights = both[0].points[:, 2] - scene.body_state(path.z[0, -1], "upper").x[2]
    assert heights.tolist() == pytest.approx([-0.1] * len(heights), abs=1e-4) and len(heights) >= 4
    assert bool((both[0].gaps > 0).all()) and float(both[0].gaps.max()) < 1e-3
    torch.testing.assert_close(report.force("upper", "lower"), -report.force("lower", "upper"))
    torch.testing.assert_close(report.gaps, scene.distances(path.z[:, 1:]), rtol=0, atol=1e-12)
    # Where the point of a contact belongs to the first body of the pair, points and forces are those of the other calls.
    plain = [i for i, contact in enumerate(scene.named_contacts().values()) if contact.body == report.pairs[i][0]]
    torch.testing.assert_close(report.points[..., plain, :], scene.contact_points(path.z[:, 1:])[..., plain, :], rtol=0, atol=1e-12)
    by_name = scene.contact_forces(path.z[:, 1:], path.impulses)
    torch.testing.assert_close(report.forces[..., plain, :], torch.stack([by_name[report.names[i]] for i in plain], -2), rtol=0, atol=1e-12)


def test_one_step_its_gradient_and_single_precision() -> None:
    scene, z = stack()
    z = z[0].requires_grad_()
    out = scene.step(z)
    report = scene.contact_report(out.z, out)
    report.force("lower", "floor")[2].backward()
    assert bool(torch.isfinite(z.grad).all()) and float(z.grad.abs().max()) > 0
    assert [(pair.body, pair.other) for pair in report.touching()][-1] == ("lower", "floor")
    single = scene.step(z.detach().float())
    assert scene.contact_report(single.z, single).forces.dtype == torch.float32
    again = scene.contact_report(out.z, out.impulses)
    assert torch.equal(again.forces, report.forces)


def test_batches_of_parameters() -> None:
    """Crates of two weights on floors of two heights, after a step and in a trajectory."""
    offset, mass = torch.tensor([0.0, 0.1], dtype=torch.float64), torch.tensor([1.0, 2.0], dtype=torch.float64)
    scene = td.combine(crate=td.Body(mass, inertia=(0.01, 0.01, 0.01), shape=CUBE), floor=td.Plane(offset=offset))
    z = scene.initial_state(2, crate={"position": torch.tensor([[0, 0, 0.10002], [0, 0, 0.20002]])})
    path = scene.rollout(z, steps=15)
    out = scene.step(path.z[:, -2])
    over_time, at_once = scene.contact_report(path.z, path), scene.contact_report(out.z, out)
    assert over_time.forces.shape == (2, 15, 8, 3) and at_once.forces.shape == (2, 8, 3)
    torch.testing.assert_close(over_time.forces[:, -1], at_once.forces, rtol=0, atol=1e-4)
    force = over_time.force("crate", "floor")[:, -1, 2]
    torch.testing.assert_close(force, 9.81 * mass, rtol=0, atol=1e-3)
    assert [(pair.body, pair.other, len(pair.contacts)) for pair in over_time.touching(1, 14)] == [("crate", "floor", 4)]


def test_robot_without_other_contacts() -> None:
    """Feet of a robot on the world; a mechanism without contacts; periods."""
    quadruped = td.models.quadruped()
    z = quadruped.initial_state(pose="home", on="ground")
    path = quadruped.rollout(z, steps=3, repeat=10)
    report = quadruped.contact_report(path.z, path, repeat=10)
    feet = {pair.body for pair in report.touching(2)}
    assert feet and all(pair.other == "world" for pair in report.touching(2))
    total = report.forces.sum(-2)
    by_name = torch.stack(list(quadruped.contact_forces(path.z[1:], path.impulses, repeat=10).values())).sum(0)
    torch.testing.assert_close(total, by_name)
    pendulum = td.models.pendulum()
    out = pendulum.step(pendulum.initial_state())
    empty = pendulum.contact_report(out.z, out)
    assert empty.touching() == [] and empty.forces.shape == (0, 3)


def test_errors() -> None:
    scene, z = stack()
    out = scene.step(z)
    with pytest.raises(ValueError, match="not the state after"):
        scene.contact_report(z, out)
    with pytest.raises(TypeError, match="what step or rollout returned"):
        scene.contact_report(z, None)
    with pytest.raises(ValueError, match="impulses of shape"):
        scene.contact_report(z, out.impulses[..., 1:])
    report = scene.contact_report(out.z, out)
    with pytest.raises(ValueError, match="1 numbers"):
        report.touching()
    with pytest.raises(IndexError):
        report.touching(2)
    with pytest.raises(ValueError, match="no contact between 'ball' and 'spoon'"):
        report.force("ball", "spoon")

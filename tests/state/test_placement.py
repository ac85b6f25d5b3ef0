"""Robots put on the ground, and the poses that they start from."""

from __future__ import annotations

import copy
import math
import pickle
import warnings

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo import models, testing

SLOPE = (0.3, -0.2, 1.0)


class Bowl(td.NonlinearContact):
    """A user's surface: a bowl of radius 2 m, open upwards, whose lowest point is the origin."""

    def signed_distance(self, point: Tensor) -> Tensor:
        center = point.new_tensor((0.0, 0.0, 2.0))
        return 2.0 - torch.linalg.vector_norm(point - center, dim=-1)


def ball(contacts: dict[str, td.Contact], **keywords: object) -> td.Mechanism:
    return td.Mechanism({"ball": td.Body(1.0, shape=td.Sphere(0.1))}, contacts=contacts, **keywords)


def two_parts() -> td.Mechanism:
    """A pendulum on the world, two boxes joined by a hinge, a third one, all on a slope, and a ball without contact with the world."""
    bodies = {name: td.Body(1.0, (0.01, 0.02, 0.03)) for name in ("rod", "a", "b", "c", "d")}
    joints = {"pivot": td.Revolute(None, "rod"), "hinge": td.Revolute("a", "b", parent_anchor=(0.3, 0, 0), child_anchor=(-0.3, 0, 0))}
    contacts = {
        f"{name}{i}": td.NonlinearContact(name, point=(x, 0.1, -0.2), radius=0.02, normal=SLOPE, offset=0.4)
        for name in ("rod", "a", "b", "c")
        for i, x in enumerate((-0.2, 0.2))
    }
    contacts["wall"] = td.ImpactContact("a", normal=(-1, 0.1, -0.05), offset=-7.0)
    contacts["between"] = td.ImpactContact("d", radius=0.5, other="c", other_shape=td.Sphere(0.5))
    return td.Mechanism(bodies, joints, contacts)


@pytest.mark.parametrize("name", models.names())
def test_models_stand_on_the_ground(name: str) -> None:
    mech = models.make(name)
    if not any(contact.other is None for contact in mech.named_contacts().values()):
        with pytest.raises(ValueError, match="has no contact with the world"):
            mech.initial_state(pose="home", on="ground")
        return
    z = mech.initial_state((2,), pose="home", on="ground")
    assert float(mech.distances(z).min(-1)[0].abs().max()) <= 1e-14
    assert float(mech.joint_errors(z).abs().sum()) <= 1e-12
    deep = z.clone().unflatten(-1, (-1, 13))
    deep[0, :, 2] -= 1.0
    placed = mech.place(deep.flatten(-2), torch.tensor((0.0, 0.1)))
    assert torch.allclose(mech.distances(placed).amin(-1), torch.tensor((0.0, 0.1)), atol=1e-14)
    changed = (placed - z).unflatten(-1, (-1, 13))
    assert torch.equal(changed[..., 3:], torch.zeros_like(changed[..., 3:]))  # velocities and orientations


def test_each_free_part_is_placed_by_itself() -> None:
    mech = two_parts()
    torch.manual_seed(0)
    z = mech.to_maximal(torch.randn(3, mech.num_coordinates), torch.randn(3, mech.num_coordinates))
    placed = mech.place(z, 0.05)
    before, after = (dict(zip(mech.contacts, mech.distances(x).unbind(-1), strict=True)) for x in (z, placed))
    for bodies in ("ab", "c"):
        least = torch.stack([after[f"{name}{i}"] for name in bodies for i in (0, 1)]).amin(0)
        assert torch.allclose(least, torch.tensor(0.05), atol=1e-12)
    moved = (placed - z).unflatten(-1, (-1, 13))
    assert float(moved[:, [0, 4]].abs().max()) == 0 and torch.equal(before["rod0"], after["rod0"])
    normal = torch.tensor(SLOPE) / torch.tensor(SLOPE).norm()
    across = moved[..., :3] - (moved[..., :3] @ normal)[..., None] * normal
    assert float(across.abs().max()) <= 1e-12  # along the normal of the slope
    assert torch.allclose(moved[:, 1], moved[:, 2], atol=1e-12)
    assert torch.allclose(mech.place(placed, 0.05), placed, atol=1e-12)


@pytest.mark.parametrize(("ground", "height"), [(True, -0.5), (True, 0.0), (True, 3.0), (False, 0.0), (False, 3.0)])
def test_shapes_and_own_surfaces_of_the_world(ground: bool, height: float) -> None:
    stone = td.Box((1.0, 1.0, 0.4), orientation=(0.98**0.5, 0.1, 0.1, 0.0))
    contacts: dict[str, td.Contact] = {"stone": td.NonlinearContact("ball", shape=td.Sphere(0.1), other_shape=stone)}
    if ground:
        contacts["ground"] = td.NonlinearContact("ball", radius=0.1)
    mech = ball(contacts)
    x = torch.tensor((0.0, 0.45, 0.52))
    z = mech.initial_state((3,), ball=dict(orientation=(1, 0, 0, 0))).unflatten(-1, (-1, 13)).clone()
    z[:, 0, 0], z[:, 0, 1], z[:, 0, 2] = x, 0.1, height
    placed = mech.place(z.flatten(-2), 0.01)
    assert torch.allclose(mech.distances(placed)[:, 0], torch.tensor(0.01), atol=1e-11)
    assert torch.allclose(placed[:, :2], z[:, 0, :2], atol=1e-15)
    if ground:  # beside the stone, the ground is what counts
        z[:, 0, 0] = 2.0
        assert torch.allclose(mech.place(z.flatten(-2))[:, 2], torch.tensor(0.1), atol=1e-14)
    bowl = ball({"bowl": Bowl("ball", radius=0.1)})
    placed = bowl.place(bowl.initial_state(ball=dict(orientation=(1, 0, 0, 0), velocity=(1, 0, 0))))
    assert abs(float(bowl.distances(placed))) <= 1e-11


@pytest.mark.parametrize("mech", [two_parts(), ball({"bowl": Bowl("ball", point=(0.05, 0, 0), radius=0.1)})])
def test_derivatives_of_a_placed_state(mech: td.Mechanism) -> None:
    torch.manual_seed(1)
    q = 0.4 * torch.randn(mech.num_coordinates)
    z, height = mech.to_maximal(q, torch.randn_like(q)), torch.tensor(0.03)
    contact = next(c for name, c in mech.contacts.items() if name != "rod0" and c.body != "rod")
    ground = [c for name, c in mech.contacts.items() if name not in ("wall", "between")]
    numbers = [getattr(contact, name).detach().clone() for name in ("point", "radius", "normal")]

    def placed(z: Tensor, height: Tensor, point: Tensor, radius: Tensor, normal: Tensor) -> Tensor:
        contact.point, contact.radius = point, radius
        for each in ground:  # where normals tie, the first one decides
            each.normal = normal
        return mech.place(z, height)

    leaves = [t.clone().requires_grad_() for t in (z, height, *numbers)]
    assert torch.autograd.gradcheck(placed, leaves, eps=1e-6, atol=1e-6, rtol=1e-6)
    weights = torch.randn_like(z)
    (expected,) = torch.autograd.grad((placed(leaves[0], height, *numbers) * weights).sum(), leaves[0])
    assert torch.allclose(torch.func.grad(lambda z: (mech.place(z, height) * weights).sum())(z), expected, atol=1e-12)
    batch = torch.stack((z, 0.5 * z + 0.5 * mech.place(z, 0.2)))
    assert torch.allclose(torch.func.vmap(lambda z: mech.place(z, height))(batch), mech.place(batch, height), atol=1e-10)


def test_what_cannot_be_placed() -> None:
    refused: list[tuple[td.Mechanism, str]] = [
        (models.pendulum(), "body 'rod' has no contact with the world"),
        (models.humanoid(contact=False), "body 'torso' has no contact with the world.*Give a robot a floating base and contacts"),
        (
            td.Mechanism({"rod": td.Body(1.0, (1, 1, 1))}, {"hinge": td.Revolute(None, "rod")}, {"tip": td.ImpactContact("rod")}),
            "joint 'hinge' holds the part of body 'rod' along the ground's normal",
        ),
        (
            td.Mechanism(
                {"cab": td.Body(1.0, (1, 1, 1))},
                {"shaft": td.Prismatic(None, "cab", axis=(0, 0, 1), limits=(0.0, 3.0))},
                {"floor": td.ImpactContact("cab")},
            ),
            "joint 'shaft' holds",
        ),
    ]
    for mech, message in refused:
        with pytest.raises(ValueError, match=message):
            mech.place(mech.to_maximal(torch.zeros(mech.num_coordinates)))
    box = models.box()
    z = models.initial_state("box", box)
    for wrong in (float("nan"), torch.tensor((0.0, float("inf")))):
        with pytest.raises(ValueError, match=r"got clearance=.*allowed: finite numbers"):
            box.place(z, wrong)
    with pytest.raises(ValueError, match="on='air'; allowed: 'ground'"):
        box.initial_state(on="air")
    with pytest.raises(ValueError, match=r"z: got shape \(12,\)"):
        box.place(z[1:])
    far = ball({"stone": td.ImpactContact("ball", shape=td.Sphere(0.1), other_shape=td.Sphere(0.1, position=(5.0, 0.0, 0.0)))})
    with pytest.raises(ValueError, match="'ball' finds no surface below along the normal"):
        far.place(far.initial_state())
    spoiled = z.expand(3, -1).clone()
    spoiled[1, 2] = torch.nan
    placed = box.place(spoiled)
    assert placed[1].isnan().any() and torch.equal(placed[0], placed[2]) and bool(placed[0].isfinite().all())


@pytest.mark.filterwarnings("ignore:contact")
def test_from_below_a_shape_the_part_goes_up_through_it() -> None:
    """A table without a floor: starts below, inside and above end on its top, also beside an upper shelf. Gradients are right."""
    top = td.Box((1.0, 1.0, 0.1), position=(0.1, 0.0, 0.5), orientation=(math.cos(0.05), math.sin(0.05), 0.0, 0.0))
    mech = ball(
        {
            "table": td.ImpactContact("ball", shape=td.Sphere(0.1), other_shape=top),
            "shelf": td.ImpactContact("ball", shape=td.Sphere(0.1), other_shape=td.Sphere(0.2, position=(0.2, 0.1, 3.0))),
        }
    )
    z = mech.initial_state((4,), ball={"position": torch.tensor([[0.2, 0.1, height] for height in (-3.0, 0.2, 0.5, 2.0)])})
    placed = mech.place(z, 0.01)
    assert float((placed - placed[3]).abs().max()) < 1e-9
    assert float((mech.distances(placed).amin(-1) - 0.01).abs().max()) < 1e-12 and float(placed[0, 2]) > 0.6
    table = mech.contacts["table"].other_point.requires_grad_()
    (gradient,) = torch.autograd.grad(mech.place(z[0], 0.01)[2], table)
    assert float(gradient[2]) == pytest.approx(1.0)


def test_poses_belong_to_the_mechanism() -> None:
    mech = models.humanoid()
    mech.poses["bow"] = td.Keyframe({"abdomen": {"q": (0.0, -0.5)}, "root": {"q": (0, 0, 1.2, 0, 0, 0), "qd": (1.0, 0, 0, 0, 0, 0)}})
    for other in (copy.deepcopy(mech), pickle.loads(pickle.dumps(mech))):
        assert other.poses == mech.poses
        assert torch.equal(other.initial_state(pose="bow"), mech.initial_state(pose="bow"))
    assert mech.state_dict().keys() == models.humanoid().state_dict().keys()
    assert torch.equal(mech.initial_state(pose="home"), models.initial_state("humanoid", mech))
    z = mech.initial_state((2,), pose="bow", on="ground", abdomen={"q": torch.tensor(((0.0, -0.1), (0.0, -0.4)))})
    q, qd = mech.to_minimal(z)
    assert torch.allclose(q[:, 7], torch.tensor((-0.1, -0.4)), atol=1e-9) and torch.allclose(qd[:, 0], torch.ones(2), atol=1e-9)
    assert float(mech.distances(z).amin(-1).abs().max()) <= 1e-14
    with pytest.raises(ValueError, match=r"has no pose 'sit'; there are \['home', 'bow'\]"):
        mech.initial_state(pose="sit")
    with pytest.raises(ValueError, match="has no pose 'home'; it has none; set one"):
        ball({}).initial_state(pose="home")
    mech.poses["sit"] = {"left_knee": {"q": -1.0}}  # type: ignore[assignment]
    with pytest.raises(TypeError, match=r"pose 'sit': got dict; allowed: td.Keyframe"):
        mech.initial_state(pose="sit")


def test_coordinates_on_the_ground_keep_to_their_limits() -> None:
    """Ankles of the ant turn from 30 to 70 degrees. From zero, the limits would throw it off at 20 m/s."""
    mech = models.ant()
    q = mech.to_minimal(mech.initial_state(on="ground", ankle_1={"q": 0.0}))[0][6:]
    expected = torch.zeros(8)
    expected[3::2] = torch.tensor((-1.0, -1.0, 1.0)) * torch.pi / 6
    assert torch.allclose(q, expected, atol=1e-12)
    path = mech.rollout(mech.initial_state(on="ground"), steps=100)
    assert not path.status.any() and float(path.z.unflatten(-1, (-1, 13))[..., 3:6].norm(dim=-1).max()) < 1
    mech.joints["ankle_1"].lower = torch.tensor([[0.6], [0.7]])
    assert torch.equal(mech.to_minimal(mech.initial_state((2,), on="ground"))[0][:, 7].mul(10).round(), torch.tensor((6.0, 7.0)))


def test_poses_start_loops_which_then_close() -> None:
    bodies = {name: td.Body(1.0, (0.1, 0.1, 0.1)) for name in ("left", "bar", "right")}
    joints = {
        "a": td.Revolute(None, "left", axis=(0, 1, 0), child_anchor=(0, 0, -0.5)),
        "b": td.Revolute("left", "bar", axis=(0, 1, 0), parent_anchor=(0, 0, 0.5), child_anchor=(-0.5, 0, 0)),
        "c": td.Revolute("bar", "right", axis=(0, 1, 0), parent_anchor=(0.5, 0, 0), child_anchor=(0, 0, 0.5)),
        "d": td.Revolute(None, "right", axis=(0, 1, 0), parent_anchor=(1, 0, 0), child_anchor=(0, 0, -0.5)),
    }
    mech = td.Mechanism(bodies, joints)
    mech.poses["leaning"] = td.Keyframe({"a": {"q": 0.4}, "b": {"q": -0.3}})  # open by a little
    z = mech.initial_state(pose="leaning")
    assert float(mech.joint_errors(z).abs().max()) <= 1e-9 and 0.2 < float(mech.to_minimal(z)[0][0]) < 0.6
    held = mech.initial_state(pose="leaning", a={"q": 0.5})
    assert abs(float(mech.to_minimal(held)[0][0]) - 0.5) <= 1e-12


def test_a_state_of_zeros_in_the_ground_names_the_remedy() -> None:
    with pytest.warns(UserWarning, match=r"contact '\w+' 1.29e\+03 mm inside.*initial_state\(pose='home', on='ground'\)"):
        models.humanoid().initial_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        models.humanoid().initial_state(on="ground")
        models.humanoid().initial_state(pose="home")
        models.pendulum().initial_state()


def test_parts() -> None:
    assert testing.diagnostics.free_parts(two_parts()) == [["a", "b"], ["c"], ["d"]]

"""Scenes: parts move as alone where they do not touch, keep momentum where they do, and keep their actuators, poses and gradients."""

from __future__ import annotations

import copy
import itertools
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td

TIGHT = td.SolverOptions(residual_tol=1e-12, central_path_tol=1e-9)
CUBE = td.Box((0.2, 0.2, 0.2))


def arm(**options: Any) -> td.Mechanism:
    """Two links and a servo on a fixed base; the upper link's pose "up"."""
    mech = td.Mechanism(
        {"upper": td.Body(1.0, shape=td.Capsule(0.04, 0.3)), "lower": td.Body(0.5, shape=td.Capsule(0.03, 0.3))},
        {
            "shoulder": td.Revolute(None, "upper", axis=(0, 1, 0), child_anchor=(0, 0, 0.2), parent_anchor=(0, 0, 1.0), damper=0.1),
            "elbow": td.Revolute("upper", "lower", axis=(0, 1, 0), parent_anchor=(0, 0, -0.2), child_anchor=(0, 0, 0.2), damper=0.1),
        },
        **{"options": TIGHT, **options},
    )
    td.actuate(mech, {"push": td.Actuator.motor("shoulder", gear=2.0), "hold": td.Actuator.position("elbow", kp=30.0, kv=1.0)})
    mech.poses["up"] = td.Keyframe({"shoulder": {"q": 0.5}, "elbow": {"q": 0.2}}, (0.3, 0.2))
    return mech


def moving(mech: td.Mechanism, seed: int = 0) -> Tensor:
    """A state with random velocities of joints, around "home" or "up"."""
    z = mech.initial_state(pose=next(iter(mech.poses), None))
    q, qd = mech.to_minimal(z)
    z = mech.to_maximal(q, 0.3 * torch.randn(qd.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    return mech.close_loops(z) if mech.has_loops else z


# -- parts alone -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("quadruped", "ant"), ("fourbar", "cartpole"), ("raibert_hopper", "humanoid")], ids="-".join)
def test_parts_move_as_alone(names: tuple[str, str]) -> None:
    """Without contacts between them, ten steps of both parts in a scene are the steps of each, with inputs of both."""
    parts = {f"part_{name}": td.models.make(name, timestep=0.01) for name in names}
    for mech in parts.values():
        mech.options = TIGHT
    scene = td.combine(parts, contacts=None)
    z = torch.cat([moving(mech) for mech in parts.values()])
    u = 0.1 * torch.randn(scene.num_inputs, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    path = scene.rollout(z, u.expand(10, -1))
    assert not path.status.any()
    q, qd = scene.to_minimal(path.z)
    for name, mech in parts.items():
        part = scene.part(name)
        alone = mech.rollout(z[part.state], u[part.u].expand(10, -1))
        # Both solve to 1e-12; ten steps on the ground multiply that.
        torch.testing.assert_close(path.z[:, part.state], alone.z, rtol=0, atol=1e-10)
        for value, own in zip((q, qd), mech.to_minimal(alone.z), strict=True):
            torch.testing.assert_close(value[:, part.q], own, rtol=0, atol=1e-8)
        assert [f"{name}/{body}" for body in mech.bodies] == list(part.bodies)
        assert scene.part_names == tuple(parts)


def test_scene_without_touching_keeps_energy_and_momentum_of_its_parts() -> None:
    """Momentum of a scene is the sum over its parts, with the angular momentum of their centers of mass."""
    parts = {"a": td.models.ant(gravity=(0, 0, 0)), "b": td.models.ant(gravity=(0, 0, 0))}
    scene = td.combine(parts, contacts=None)
    z = scene.initial_state(**{f"{name}/torso": {"position": (i, 2 * i, 3 + i), "velocity": (1 - i, i, 2)} for i, name in enumerate("ab")})
    total, own = scene.momentum(z), {name: mech.momentum(z[scene.part(name).state]) for name, mech in parts.items()}
    torch.testing.assert_close(total[:3], sum(value[:3] for value in own.values()), rtol=0, atol=1e-12)
    centers, masses = {}, {}
    for name, mech in parts.items():
        mass = torch.stack([body.mass for body in mech.named_bodies().values()])
        x = z[scene.part(name).state].unflatten(-1, (-1, 13))[:, :3]
        masses[name], centers[name] = mass.sum(), (mass[:, None] * x).sum(0) / mass.sum()
    common = sum(masses[name] * centers[name] for name in parts) / sum(masses.values())
    angular = sum(own[name][3:] + torch.linalg.cross(centers[name] - common, own[name][:3]) for name in parts)
    # The momentum belongs to the middle of a step, the centers to its end: they differ by h/2 times velocities along the momentum.
    torch.testing.assert_close(total[3:], angular, rtol=0, atol=1e-9)
    torch.testing.assert_close(
        scene.kinetic_energy(z), sum(mech.kinetic_energy(z[scene.part(name).state]) for name, mech in parts.items()), rtol=0, atol=1e-12
    )


def test_two_robots_that_collide_keep_their_momentum() -> None:
    """Two ants fly at each other without gravity; what they exchange cancels."""
    parts = {"a": td.models.ant(gravity=(0, 0, 0)), "b": td.models.ant(gravity=(0, 0, 0))}
    for mech in parts.values():
        mech.contacts.clear()  # contacts with the ground push, however little, from 9 m above it
    scene = td.combine(parts, options=TIGHT)
    z = scene.initial_state(
        **{
            "a/torso": {"position": (-0.35, 0.0, 9.0), "velocity": (2.0, 0, 0)},
            "b/torso": {"position": (0.35, 0.1, 9.3), "velocity": (-2.0, 0, 0)},
        }
    )
    path = scene.rollout(z, steps=12)
    assert not path.status.any()
    between = [piece for name, piece in scene.impulse_layout.items() if name.startswith("contacts.") and scene.contacts[name[9:]].other]
    assert max(float(path.impulses[:, piece.start].max()) for piece in between) > 0.1
    momentum = scene.momentum(path.z)
    torch.testing.assert_close(momentum, momentum[0].expand_as(momentum), rtol=0, atol=1e-9)


# -- what parts keep ---------------------------------------------------------------------------------------------------------------------


def test_actuators_and_poses_keep_their_names() -> None:
    left, right = arm(), arm()
    right.actuators.gear = (3.0, 1.0)
    scene = td.combine(left=left, crate=td.Body(1.0, shape=CUBE), right=right, contacts=None, floor=td.Plane())
    assert scene.actuators.names == ("left/push", "left/hold", "right/push", "right/hold")
    assert list(scene.poses) == ["left/up", "right/up", "up"]
    z = scene.initial_state(pose="up", crate={"position": (0, 1.0, 2.0)})
    ctrl = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    out = scene.step(z, ctrl=ctrl)
    for name, mech in {"left": left, "right": right}.items():
        part = scene.part(name)
        torch.testing.assert_close(scene.actuators(ctrl, z)[part.u], mech.actuators(ctrl[part.ctrl], z[part.state]), rtol=0, atol=1e-14)
        alone = mech.step(z[part.state], ctrl=ctrl[part.ctrl])
        torch.testing.assert_close(out.z[part.state], alone.z, rtol=0, atol=1e-11)
    assert scene.poses["up"].ctrl.tolist() == [0.3, 0.2, 0.3, 0.2] and scene.poses["right/up"].ctrl.tolist() == [0, 0, 0.3, 0.2]
    one_up = scene.initial_state(right={"pose": "up", "elbow": 0.7}, left={"elbow": 0.1}, crate={"position": (0, 1.0, 2.0)})
    q, _ = scene.to_minimal(one_up)
    assert q[scene.part("right").q].tolist() == pytest.approx([0.5, 0.7]) and q[scene.part("left").q].tolist() == pytest.approx([0, 0.1])
    crate = scene.part("crate")
    assert crate.bodies == ("crate",) and crate.u == crate.ctrl == slice(0, 0) and one_up[crate.state][:3].tolist() == [0, 1, 2]


def test_couplings_servos_limits_and_batches_of_parameters_stay() -> None:
    """A gear with a servo of limited force and a limit, with three masses, beside one that is its mirror."""

    def gear(ratio: float) -> td.Mechanism:
        wheels = {
            name: td.Body(torch.tensor([1.0, 2.0, 3.0]), inertia=(0.01, 0.01, 0.02), shape=td.Sphere(0.1)) for name in ("big", "small")
        }
        joints = {name: td.Revolute(None, name, axis=(0, 1, 0), child_anchor=(0, 0, 0.1), limits=(-0.3, 0.3)) for name in wheels}
        mech = td.Mechanism(wheels, joints, couplings={"teeth": td.JointCoupling("big", "small", ratio=ratio)}, options=TIGHT)
        td.actuate(mech, {"drive": td.Actuator.position("big", kp=40.0, kv=1.0, forcerange=(-2.0, 2.0))})
        return mech

    parts = {"left": gear(-0.5), "right": gear(0.8)}
    scene = td.combine(parts, contacts=None)
    z, ctrl = scene.initial_state(3), torch.tensor([0.8, -0.2], dtype=torch.float64)
    path = scene.rollout(z, ctrl=ctrl.expand(3, 30, -1))
    assert not path.status.any() and list(scene.couplings) == ["left/teeth", "right/teeth"]
    for name, mech in parts.items():
        part = scene.part(name)
        alone = mech.rollout(z[:, part.state], ctrl=ctrl[part.ctrl].expand(3, 30, -1))
        torch.testing.assert_close(path.z[..., part.state], alone.z, rtol=0, atol=1e-9)
        assert mech.couplings["teeth"].joints[0] is mech.joints["big"]
    assert scene.contact_report(path.z, path).active.shape == (3, 30, 0)


def test_gradients_reach_the_parts() -> None:
    """Numbers that require grad are shared; others are copied, and the parts stay as they are."""
    pusher = arm()
    pusher.joints["shoulder"].damper.requires_grad_()
    mass = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    scene = td.combine(arm=pusher, crate=td.Body(mass, inertia=(0.1, 0.1, 0.1), shape=CUBE), contacts=[("arm", "crate")])
    z = scene.initial_state(arm={"shoulder": {"q": 0.3, "qd": 2.0}}, crate={"position": (0.5, 0, 0.4), "velocity": (0.0, 0, 1.0)})
    u = torch.zeros(2, dtype=torch.float64)
    u.requires_grad_()
    (scene(z, u).square().sum()).backward()
    for value in (pusher.joints["shoulder"].damper, mass, u):
        assert value.grad is not None and float(value.grad.abs().max()) > 0
    scene.joints["arm/elbow"].damper = 5.0
    assert float(pusher.joints["elbow"].damper) == 0.1 and list(pusher.joints) == ["shoulder", "elbow"]
    assert pusher.joints["shoulder"].child == "upper"


def test_scene_with_contact_has_right_gradients() -> None:
    """An arm that pushes a crate, which lies on a table: gradients of the step against differences, sizes and friction included."""
    scene = td.combine(
        arm=arm(), crate=td.Body(1.0, shape=CUBE), table=td.Box((1.0, 1.0, 0.1), position=(0.6, 0, 0.25)), friction=0.4, contacts="all"
    )
    scene.options = td.SolverOptions(kappa=1e-4)
    z = scene.initial_state(arm={"shoulder": {"q": -0.55, "qd": -1.0}, "elbow": {"q": 0.2}}, crate={"position": (0.46, 0.01, 0.403)})
    with torch.no_grad():
        path = scene.rollout(z, steps=12)
    assert not path.status.any() and scene.body_state(path.z[-1], "crate").v[0] > 0.03
    td.testing.check_gradients(
        scene, path.z[-2], parameters=["contacts.arm/lower_crate", "contacts.crate_table_nearest"], directions=4, tolerance=1e-6
    )


def test_scenes_are_copied_pickled_and_combined_again() -> None:
    scene = td.combine(arm=arm(), crate=td.Body(1.0, shape=CUBE), floor=td.Plane())
    z = scene.initial_state(arm={"pose": "up"}, crate={"position": (1.0, 0, 0.11)})
    expected = scene(z)
    for other in (copy.deepcopy(scene), pickle.loads(pickle.dumps(scene))):
        assert other.part_names == ("arm", "crate") and torch.equal(other(z), expected)
    larger = td.combine(room=scene, ball=td.Body(1.0, shape=td.Sphere(0.1)), contacts=[("ball", "room/crate")])
    assert list(larger.bodies) == ["room/arm/upper", "room/arm/lower", "room/crate", "ball"]
    assert {"room/arm/up", "room/up", "arm/up", "up"} == set(larger.poses)
    assert {"room/crate", "room/floor"} in pairs(larger)
    inner = larger.initial_state(room={"crate": {"position": (1.0, 0, 0.11)}, "arm/elbow": 0.3}, ball={"position": (0, 0, 3)})
    assert inner[larger.part("ball").state][2] == 3 and float(larger.to_minimal(inner)[0][1]) == pytest.approx(0.3)


def test_fixed_shapes_are_drawn_once() -> None:
    """With contacts, balls, capsules and boxes are drawn as these know them; cylinders, and shapes without contacts, as scenery."""
    viewer = pytest.importorskip("torchdojo.viewer.scene")
    world = {"table": CUBE, "can": td.Cylinder(0.1, 0.2, position=(1.0, 0, 0)), "floor": td.Plane()}
    for contacts in ("all", None):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scene = td.combine(crate=td.Body(1.0, shape=CUBE), **world, contacts=contacts)
        parts = [part for part in viewer.Scene.of(scene).parts if part.body is None and max(part.size, default=1) > 0.02]
        assert sorted(part.kind for part in parts) == ["box", "cylinder", *(["plane"] if contacts else [])]


def test_parts_of_users_own_elements() -> None:
    """A joint and a contact of a user's own move as alone; one that names its bodies in another way is refused."""

    class Dome(td.NonlinearContact):
        def signed_distance(self, point: Tensor) -> Tensor:
            return point.norm(dim=-1) - 1.0

    class Elsewhere(td.NonlinearContact):
        @property
        def body_names(self) -> tuple[str | None, ...]:
            return ("ball",)

    def part(model: type[td.Contact]) -> td.Mechanism:
        options = td.SolverOptions(backend="reference", residual_tol=1e-12)
        return td.Mechanism({"ball": td.Body(1.0, shape=td.Sphere(0.1))}, contacts={"skin": model("ball", radius=0.1)}, options=options)

    mech = part(Dome)
    scene = td.combine(a=mech, b=part(Dome), contacts=None)
    z = scene.initial_state(a={"ball": {"position": (0.0, 0.1, 1.1), "velocity": (0.1, 0, 0)}}, b={"ball": {"position": (0, 0, 3.0)}})
    torch.testing.assert_close(scene(z)[:13], mech(z[:13]), rtol=0, atol=1e-11)
    with pytest.raises(ValueError, match="its `body_names` must come from the attributes of its base class"):
        td.combine(a=part(Elsewhere))


def test_parts_stand_on_the_floor() -> None:
    scene = td.combine(dog=td.models.quadruped(), crate=td.Body(1.0, shape=CUBE), floor=td.Plane(), contacts=[("crate", "floor")])
    z = scene.initial_state(on="ground", dog={"pose": "home"}, crate={"position": (2.0, 0, 5.0)})
    assert float(scene.body_state(z, "crate").x[2]) == pytest.approx(0.1)
    assert float(scene.distances(z).min()) == pytest.approx(0.0, abs=1e-12)


# -- contacts ----------------------------------------------------------------------------------------------------------------------------


def pairs(mech: td.Mechanism) -> set[frozenset[str]]:
    return {frozenset((c.body, c.surface_name if c.other is None else c.other)) for c in mech.named_contacts().values()}


def unordered(expected: set[tuple[str, str]]) -> set[frozenset[str]]:
    return {frozenset(pair) for pair in expected}


def trio() -> dict[str, Any]:
    return {"arm": arm(), "crate": td.Body(1.0, shape=CUBE), "ball": td.Body(1.0, shape=td.Sphere(0.1)), "table": CUBE, "floor": td.Plane()}


ALL = {
    *itertools.product(("arm/upper", "arm/lower"), ("crate", "ball", "table", "floor")),
    *itertools.product(("crate", "ball"), ("table", "floor")),
    ("crate", "ball"),
}


@pytest.mark.parametrize(
    ("contacts", "expected"),
    [
        ("all", ALL),
        (None, set()),
        ([], set()),
        ([("crate", "arm")], {("arm/upper", "crate"), ("arm/lower", "crate")}),
        ([("*/lower", "floor"), ("crate", "ball")], {("arm/lower", "floor"), ("crate", "ball")}),
        ([("arm/lower", "arm/upper")], {("arm/upper", "arm/lower")}),
        (td.Filter(exclude=[("*", "floor"), ("arm", "*")]), {("crate", "ball"), ("crate", "table"), ("ball", "table")}),
        (td.Filter(groups=[("crate", "*")], exclude=[("arm", "crate")]), {("crate", "ball"), ("crate", "table"), ("crate", "floor")}),
        (td.Filter(groups=[("arm", "arm")], neighbors=0), {("arm/upper", "arm/lower")}),
        (td.Filter(neighbors=0), {*ALL, ("arm/upper", "arm/lower")}),
        (td.Filter(neighbors=1), ALL),
    ],
)
def test_filter(contacts: Any, expected: set[tuple[str, str]]) -> None:
    assert pairs(td.combine(trio(), contacts=contacts)) == unordered(expected)


def test_contacts_of_parts_stay_and_are_not_doubled() -> None:
    quadruped = td.models.quadruped()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scene = td.combine(
            dog=quadruped, ball=td.Body(1.0, shape=td.Sphere(0.1)), floor=td.Plane(), contacts=[("*", "floor"), ("dog/trunk", "ball")]
        )
    own = {f"dog/{name}" for name in quadruped.contacts}
    assert own <= set(scene.contacts) and {"dog/trunk", "floor"} in pairs(scene)
    standing = {contact.body for contact in quadruped.named_contacts().values()}
    assert not any({f"dog/{body}", "floor"} in pairs(scene) for body in standing)  # they are on that plane already


def test_cylinders_and_hulls_have_near_contacts() -> None:
    """A can and a stone of a scene lie on a table and on each other; `place` puts them there, and the report names them."""
    stone = td.Hull([(0.05, 0, 0), (-0.03, 0.04, 0), (-0.03, -0.04, 0), (0, 0, 0.05), (0, 0, -0.04)])
    bodies = {"can": td.Body(1.0, shape=td.Cylinder(0.1, 0.2)), "stone": td.Body(0.5, shape=stone)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scene = td.combine(**bodies, table=td.Box((2.0, 2.0, 0.2)))
    assert pairs(scene) == unordered({("can", "table"), ("stone", "table"), ("can", "stone")})
    z = scene.initial_state(on="ground", can={"position": (0, 0, 1.0)}, stone={"position": (0.5, 0, 1.0)})
    assert float(z[2]) == pytest.approx(0.2, abs=1e-6) and float(z[15]) == pytest.approx(0.14, abs=1e-3)
    path = scene.rollout(z, steps=20)
    assert not path.status.any() and abs(float(path.z[-1, 2]) - 0.2) < 1e-3
    with pytest.raises(ValueError, match=r"states of batch \(20,\) after a step of batch \(\); near contacts keep the places"):
        scene.contact_report(path.z, path)
    with pytest.raises(ValueError, match="near contacts keep the places of the last step alone"):
        scene.contact_forces(path.z[1:], path.impulses)
    out = scene.step(path.z[-1])
    touching = {(pair.body, pair.other): pair for pair in scene.contact_report(out.z, out).touching()}
    assert set(touching) == {("can", "table"), ("stone", "table")}
    assert float(touching["can", "table"].force[2]) == pytest.approx(9.81, rel=1e-3)
    with pytest.raises(ValueError, match="acts and has no place"):
        scene.contact_report(out.z, out.impulses.abs() + 1.0)
    # Nothing acted, so any number of states will do.
    flying = scene.rollout(scene.initial_state(can={"position": (0, 0, 5.0)}, stone={"position": (1, 0, 5.0)}), steps=3)
    assert not scene.contact_report(flying.z, flying).active.any()
    assert scene.distances(path.z.expand(2, -1, -1)).shape == (2, 21, len(scene.contacts))


def test_pairs_without_contacts_are_told() -> None:
    """Without near contacts, a cylinder touches a box by points, and a ball not at all; a model of one's own has none."""
    can, box, ball = td.Body(1.0, shape=td.Cylinder(0.1, 0.2)), td.Body(1.0, shape=CUBE), td.Body(1.0, shape=td.Sphere(0.1))
    with pytest.warns(UserWarning, match=r"no contacts between can-ball \(Cylinder and Sphere\).*points of one shape.*can-box"):
        scene = td.combine(can=can, box=box, ball=ball, near=False)
    assert pairs(scene) == unordered({("can", "box"), ("box", "ball")}) and len([c for c in scene.contacts if c.startswith("can_box")]) == 8
    with pytest.warns(UserWarning, match="points of one shape"):
        fixed = td.combine(box=td.Body(1.0, shape=CUBE), can=td.Cylinder(0.1, 0.2), contacts=[("can", "box")], near=False)
    z = fixed.initial_state(box={"position": (0, 0, 0.2002), "velocity": (0, 0, -0.01)})
    path = fixed.rollout(z, steps=20)
    assert not path.status.any() and abs(float(path.z[-1, 2]) - 0.2) < 1e-3
    bodies = {"can": td.Body(1.0, shape=td.Cylinder(0.1, 0.2)), "ball": td.Body(1.0, shape=td.Sphere(0.1))}
    for options in ({"near": False}, {"model": td.LinearContact}):
        with pytest.raises(ValueError, match=r"\('can', 'ball'\) has Cylinder and Sphere"):
            td.combine(**bodies, contacts=[("can", "ball")], **options)
    for options, message in (
        ({"near": 2.5}, "near: got 2.5"),
        ({"slots": -1}, "slots: got -1"),
        ({"contacts": [("can", "can")]}, "two different"),
    ):
        with pytest.raises(ValueError, match=message):
            td.combine(**bodies, **options)
    size = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)  # near contacts have this gradient
    sized = td.combine(can=td.Body(1.0, (0.01, 0.01, 0.01), shape=td.Cylinder(size, 0.2)), ball=td.Body(1.0, shape=td.Sphere(0.1)))
    z = sized.initial_state((1,), ball={"position": (0.2001, 0, 0)})
    (slope,) = torch.autograd.grad(sized.distances(z).min(), size)
    assert float(slope) == pytest.approx(-1.0, abs=1e-9)


def test_contacts_come_and_go() -> None:
    scene = td.combine(trio(), contacts=None)
    z = scene.initial_state(crate={"position": (2.0, 0, 0.1001)}, ball={"position": (2.0, 0, 0.35), "velocity": (0, 0, -1.0)})
    fallen = scene.rollout(z, steps=20).z[-1]
    assert float(scene.body_state(fallen, "ball").x[2] - scene.body_state(fallen, "crate").x[2]) < 0.1
    names = scene.add_contact("crate", "ball", friction=0.3)
    assert names == ["crate_ball_nearest"] and float(scene.contacts[names[0]].friction) == 0.3
    together = scene.rollout(z, steps=20).z[-1]
    apart = scene.body_state(together, "ball").x[2] - scene.body_state(together, "crate").x[2]
    assert 0.2 < float(apart) < 0.21
    with pytest.raises(ValueError, match="touch already"):
        scene.add_contact("ball", "crate")
    assert scene.remove_contact("ball", "*") == names and not scene.contacts
    with pytest.raises(ValueError, match="no contact between"):
        scene.remove_contact("ball", "crate")
    assert scene.add_contact("crate", td.Plane()) == [f"crate_world_{k}" for k in range(8)]
    assert scene.add_contact("*", td.Box((1.0, 1.0, 0.1), position=(5.0, 0, 0)))[0] == "arm/upper_world_nearest"
    with pytest.raises(ValueError, match="unknown name 'floor'"):
        scene.add_contact("crate", "floor")
    assert len(scene.remove_contact("world", "*")) == 8 + 3 + 3 + 17 + 1
    quadruped = td.models.quadruped()
    feet = quadruped.remove_contact("*_calf", "world")
    assert feet and all(
        quadruped.contacts[name].body.endswith("hip") or "thigh" in quadruped.contacts[name].body for name in quadruped.contacts
    )


# -- errors ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "options", "error", "match"),
    [
        ({}, {}, ValueError, "no parts"),
        ({"floor": td.Plane()}, {}, ValueError, "no body that moves"),
        ({"a/b": td.Body(1.0, shape=CUBE)}, {}, ValueError, "cannot be the name"),
        ({"world": td.Body(1.0, shape=CUBE)}, {}, ValueError, "cannot be the name"),
        ({"a": 3}, {}, TypeError, "part 'a' is a int"),
        ({"a": arm(), "b": arm(timestep=0.02)}, {}, ValueError, "timestep differs"),
        ({"a": arm(), "b": arm(gravity=(0, 0, -1))}, {}, ValueError, "gravity differs"),
        ({"a": arm(), "b": arm(options=None)}, {}, ValueError, "options of 'a' and 'b' differ"),
        (trio, {"contacts": "some"}, ValueError, "allowed: 'all'"),
        (trio, {"contacts": ["crate"]}, ValueError, "pairs of names"),
        (trio, {"contacts": [("crate", "spoon")]}, ValueError, "unknown name 'spoon'"),
        (trio, {"contacts": [("crate", "crate")]}, ValueError, "two different bodies"),
        (trio, {"contacts": [("table", "floor")]}, ValueError, "neither can move"),
        (trio, {"contacts": [("arm", "arm")]}, ValueError, "selects no two things"),
        (trio, {"contacts": td.Filter(exclude=[("crate", "spoon")])}, ValueError, "unknown name 'spoon'"),
    ],
)
def test_errors(parts: Any, options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        td.combine(parts() if callable(parts) else parts, **options)


def test_other_errors() -> None:
    one = arm()
    with pytest.raises(ValueError, match="same object as 'a'"):
        td.combine(a=one, b=one)
    with pytest.raises(ValueError, match="given twice"):
        td.combine({"a": one}, a=arm())
    for wrong in (-1, True, 1.5):
        with pytest.raises(ValueError, match="neighbors"):
            td.Filter(neighbors=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="positive length"):
        td.Plane(normal=(0, 0, 0))
    with pytest.raises(ValueError, match="has no part 'b'"):
        td.combine(a=one).part("b")
    with pytest.raises(ValueError, match=r"td\.combine"):
        one.part("b")
    scene = td.combine(a=one)
    with pytest.raises(TypeError, match="part 'a' got 3"):
        scene.initial_state(a=3)
    with pytest.raises(ValueError, match="given twice"):
        scene.initial_state(**{"a": {"elbow": 0.1}, "a/elbow": 0.2})
    with pytest.raises(ValueError, match="unknown name 'a/knee'"):
        scene.initial_state(a={"knee": 0.1})
    with pytest.raises(ValueError, match="no pose 'a/down'"):
        scene.initial_state(a={"pose": "down"})

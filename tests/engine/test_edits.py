"""Edits of a mechanism after it is built give, to the last bit, the mechanism that would be built so, or raise and change nothing."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td

BODY = {"mass": 1.0, "inertia": (0.1, 0.1, 0.1)}
Parts = dict[str, dict[str, Any]]


def hinge(**options: Any) -> td.Revolute:
    return td.Revolute("base", "arm", axis=(0, 1, 0), child_anchor=(0, 0, 0.5), **{"damper": 0.1, **options})


def tip(**options: Any) -> td.NonlinearContact:
    return td.NonlinearContact("arm", point=(0, 0, -0.5), **options)


def wheel(**options: Any) -> td.Revolute:
    return td.Revolute("arm", "wheel", axis=(0, 1, 0), parent_anchor=(0, 0, -0.5), **options)


def parts() -> Parts:
    """A free base, an arm on it that a motor drives, a wheel on the arm that a gear turns, and a ball."""
    return {
        "bodies": {name: td.Body(**BODY) for name in ("base", "arm", "wheel", "ball")},
        "joints": {"hinge": hinge(), "wheel": wheel(spring=0.2)},
        "contacts": {"tip": tip(), "skin": td.ImpactContact("ball", radius=0.1)},
        "couplings": {"gear": td.JointCoupling("hinge", "wheel", ratio=2.0)},
    }


def build(given: Parts) -> td.Mechanism:
    return td.Mechanism(**given, options=td.SolverOptions(kappa=1e-4))


def drop(kind: str, *names: str) -> Callable[[Parts], Any]:
    return lambda p: [p[kind].pop(name) for name in names]


def put(kind: str, make: Callable[[], Any], *names: str) -> Callable[[Parts], Any]:
    return lambda p: [p[kind].__setitem__(name, make()) for name in names]


def both(*changes: Callable[[Parts], Any]) -> Callable[[Parts], Any]:
    return lambda p: [change(p) for change in changes]


Edit = Callable[[td.Mechanism], Any]
# name -> (edit of the mechanism, the same change of the parts before it is built)
EDITS: dict[str, tuple[Edit, Callable[[Parts], Any]]] = {
    "add_contact": (lambda m: m.contacts.__setitem__("low", tip(radius=0.1)), put("contacts", lambda: tip(radius=0.1), "low")),
    "add_contact_as_attribute": (lambda m: setattr(m.contacts, "low", tip(radius=0.1)), put("contacts", lambda: tip(radius=0.1), "low")),
    "add_module": (lambda m: m.contacts.add_module("low", tip(radius=0.1)), put("contacts", lambda: tip(radius=0.1), "low")),
    "other_kind_of_contact": (
        lambda m: m.contacts.__setitem__("tip", td.LinearContact("arm", point=(0, 0, -0.5), facets=6)),
        put("contacts", lambda: td.LinearContact("arm", point=(0, 0, -0.5), facets=6), "tip"),
    ),
    "delete_contact": (lambda m: m.contacts.__delitem__("tip"), drop("contacts", "tip")),
    "pop_contact": (lambda m: m.contacts.pop("tip"), drop("contacts", "tip")),
    "delete_contact_as_attribute": (lambda m: delattr(m.contacts, "tip"), drop("contacts", "tip")),
    "clear_contacts": (lambda m: m.contacts.clear(), drop("contacts", "tip", "skin")),
    "update_contacts": (
        lambda m: m.contacts.update({"tip": tip(radius=0.2), "low": tip(radius=0.1)}),
        both(put("contacts", lambda: tip(radius=0.2), "tip"), put("contacts", lambda: tip(radius=0.1), "low")),
    ),
    "all_contacts": (
        lambda m: setattr(m, "contacts", {"low": tip(radius=0.1)}),
        both(drop("contacts", "tip", "skin"), put("contacts", lambda: tip(radius=0.1), "low")),
    ),
    "replace_joint": (
        lambda m: m.joints.__setitem__("hinge", hinge(damper=2.0, limits=(-0.2, 0.1))),
        put("joints", lambda: hinge(damper=2.0, limits=(-0.2, 0.1)), "hinge"),
    ),
    "joint_of_more_coordinates": (
        lambda m: m.joints.__setitem__("hinge", td.Cylindrical("base", "arm", axis=(0, 1, 0), child_anchor=(0, 0, 0.5), spring=3.0)),
        put("joints", lambda: td.Cylindrical("base", "arm", axis=(0, 1, 0), child_anchor=(0, 0, 0.5), spring=3.0), "hinge"),
    ),
    "joint_for_a_free_body": (
        lambda m: m.joints.__setitem__("rail", td.Prismatic(None, "ball", axis=(1, 0, 0.5), spring=4.0)),
        put("joints", lambda: td.Prismatic(None, "ball", axis=(1, 0, 0.5), spring=4.0), "rail"),
    ),
    "free_joint_declared": (
        lambda m: m.joints.__setitem__("world_to_ball", td.Floating(None, "ball", damper=0.3)),
        lambda p: p.__setitem__("joints", {**p["joints"], "world_to_ball": td.Floating(None, "ball", damper=0.3)}),
    ),
    "delete_joint": (
        lambda m: (m.couplings.clear(), m.joints.__delitem__("wheel")),
        both(drop("couplings", "gear"), drop("joints", "wheel")),
    ),
    "close_a_loop": (
        lambda m: m.joints.__setitem__("brace", td.Spherical("base", "arm", child_anchor=(0, 0, 0.5), actuated=False)),
        put("joints", lambda: td.Spherical("base", "arm", child_anchor=(0, 0, 0.5), actuated=False), "brace"),
    ),
    "replace_body": (lambda m: m.bodies.__setitem__("arm", td.Body(3.0, (1, 1, 1))), put("bodies", lambda: td.Body(3.0, (1, 1, 1)), "arm")),
    "add_body": (lambda m: m.bodies.__setitem__("new", td.Body(**BODY)), put("bodies", lambda: td.Body(**BODY), "new")),
    "delete_body": (
        lambda m: (m.contacts.pop("skin"), m.bodies.pop("ball")),
        both(drop("contacts", "skin"), drop("bodies", "ball")),
    ),
    "other_coupling": (
        lambda m: m.couplings.__setitem__("gear", td.JointCoupling("hinge", "wheel", ratio=-0.5)),
        put("couplings", lambda: td.JointCoupling("hinge", "wheel", ratio=-0.5), "gear"),
    ),
    "delete_coupling": (lambda m: m.couplings.__delitem__("gear"), drop("couplings", "gear")),
    "not_actuated": (lambda m: setattr(m.joints["hinge"], "actuated", False), put("joints", lambda: hinge(actuated=False), "hinge")),
    "implicit": (
        lambda m: setattr(m.joints["wheel"], "implicit", True),
        put("joints", lambda: wheel(spring=0.2, implicit=True), "wheel"),
    ),
    "other_parent": (
        lambda m: setattr(m.joints["hinge"], "parent", "ball"),
        put("joints", lambda: td.Revolute("ball", "arm", axis=(0, 1, 0), child_anchor=(0, 0, 0.5), damper=0.1), "hinge"),
    ),
    "contact_of_another_body": (
        lambda m: setattr(m.contacts["tip"], "body", "wheel"),
        put("contacts", lambda: td.NonlinearContact("wheel", point=(0, 0, -0.5)), "tip"),
    ),
    "contact_between_bodies": (lambda m: m.contacts.__setitem__("touch", pair()), put("contacts", lambda: pair(), "touch")),
}


def pair() -> td.Contact:
    return td.NonlinearContact("ball", radius=0.1, other="arm", other_shape=td.Sphere(0.1))


def state(mech: td.Mechanism) -> Tensor:
    """Bodies off the ground that move, some of them fast enough to reach it."""
    z = mech.to_maximal(0.1 * torch.arange(mech.num_coordinates) % 0.7, torch.linspace(-1, 1, mech.num_coordinates))
    z = z.unflatten(-1, (-1, 13)).clone()
    z[..., 2] += 1.6
    z[..., 5] -= 3.0
    z = z.flatten(-2)
    return mech.close_loops(z) if mech.has_loops else z


def layout(mech: td.Mechanism) -> list[Any]:
    sizes = [mech.num_bodies, mech.num_inputs, mech.num_coordinates, mech.layout.num_unknowns]
    names = [list(getattr(mech, kind)) for kind in ("bodies", "joints", "contacts", "couplings")]
    return [sizes, names, mech.impulse_layout, mech.input_layout, mech.tree_joints, mech.has_loops, list(mech.state_dict())]


def outcome(mech: td.Mechanism, backend: str) -> list[Tensor]:
    mech.options = td.SolverOptions(kappa=1e-4, backend=backend)
    z, u = state(mech), torch.linspace(-1, 1, mech.num_inputs)
    out = mech.step(z, u)
    path = mech.rollout(z, u.expand(2, -1)).z
    return [z, *out, path, mech.distances(z), mech.contact_points(z), mech.kinetic_energy(z), mech.potential_energy(z), *mech.to_minimal(z)]


def same(mech: td.Mechanism, expected: td.Mechanism, backend: str = "auto") -> None:
    assert layout(mech) == layout(expected)
    assert mech.distances(state(mech)).shape[-1] == len(mech.contacts)
    for one, other in zip(outcome(mech, backend), outcome(expected, backend), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", EDITS)
def test_edited_equals_built_anew(name: str) -> None:
    edit, change = EDITS[name]
    mech, given = build(parts()), parts()
    outcome(mech, "auto")  # every cache is filled
    edit(mech)
    change(given)
    same(mech, build(given))


@pytest.mark.parametrize("name", ["update_contacts", "joint_for_a_free_body", "close_a_loop", "not_actuated", "delete_body"])
def test_edits_reach_copies_pickles_and_the_reference(name: str) -> None:
    edit, change = EDITS[name]
    given = parts()
    change(given)
    mech, expected = build(parts()), build(given)
    outcome(mech, "auto")
    before = layout(mech)
    for other in (copy.deepcopy(mech), pickle.loads(pickle.dumps(mech))):
        edit(other)
        same(other, expected)
        assert layout(mech) == before
    edit(mech)
    same(mech, expected, "reference")
    fresh = copy.deepcopy(expected)
    fresh.load_state_dict(mech.state_dict())


FREE = "joints: 'world_to_ball' is the free joint of body 'ball'.*cannot be deleted; give the body a joint"
# name -> (edit, exception, message)
REFUSED: dict[str, tuple[Edit, type[Exception], str]] = {
    "kind": (lambda m: m.contacts.__setitem__("tip", hinge()), TypeError, r"contacts\['tip'\]: got Revolute; allowed: Contact"),
    "nothing": (lambda m: m.contacts.__setitem__("tip", None), TypeError, r"contacts\['tip'\]: got NoneType; allowed: Contact"),
    "name": (lambda m: m.contacts.__setitem__("a.b", tip()), ValueError, "'a.b' cannot be a name"),
    "unknown_body": (
        lambda m: m.contacts.__setitem__("low", td.ImpactContact("leg")),
        ValueError,
        r"contact 'low' refers to body 'leg'; bodies are \['base', 'arm', 'wheel', 'ball'\]",
    ),
    "one_of_several": (
        lambda m: m.contacts.update({"low": tip(), "high": td.ImpactContact("leg")}),
        ValueError,
        "contact 'high' refers to body 'leg'",
    ),
    "twice": (lambda m: m.contacts.__setitem__("low", m.contacts["tip"]), ValueError, "'low' is the same object as another entry"),
    "doubled": (lambda m: m.contacts.update([("low", tip()), ("low", tip())]), ValueError, "one of them twice"),
    "absent": (lambda m: m.contacts.__delitem__("low"), KeyError, r"low.*there are \['tip', 'skin'\]"),
    "pop_absent": (lambda m: m.contacts.pop("low"), KeyError, r"low.*there are \['tip', 'skin'\]"),
    "body_in_use": (lambda m: m.bodies.pop("arm"), ValueError, "joint 'hinge' refers to body 'arm'; bodies are"),
    "all_bodies": (lambda m: m.bodies.clear(), ValueError, "got no bodies"),
    "free_joint": (lambda m: m.joints.pop("world_to_ball"), ValueError, FREE),
    "coupled_joint": (lambda m: m.joints.pop("wheel"), ValueError, "coupling 'gear': its follower is joint 'wheel', which does not exist"),
    "coupled_coordinate": (
        lambda m: m.joints.__setitem__("wheel", td.Fixed("arm", "wheel")),
        ValueError,
        "coupling 'gear': its follower_coordinate is 0, but 'wheel', a Fixed, has no coordinates",
    ),
    "foreign_coupling": (
        lambda m: m.couplings.__setitem__("more", build(parts()).couplings["gear"]),
        ValueError,
        "coupling 'more': it already couples joints of another mechanism",
    ),
    "name_of_a_free_joint": (
        lambda m: m.joints.update({"world_to_base": td.Fixed("arm", "ball")}),
        ValueError,
        "'world_to_base' is the name of the free joint that body 'base' gets",
    ),
    "attribute": (lambda m: setattr(m.contacts["tip"], "body", "leg"), ValueError, "contact 'tip' refers to body 'leg'"),
    "body_to_itself": (lambda m: setattr(m.joints["hinge"], "child", "base"), ValueError, "joint 'hinge' is between .*different bodies"),
    "dictionary": (lambda m: delattr(m, "contacts"), AttributeError, r"contacts: .*mech\.contacts\.clear\(\)"),
    "facets": (
        lambda m: setattr(m.contacts["skin"] if False else td.LinearContact("arm"), "facets", 8),
        AttributeError,
        r"LinearContact\.facets: got 8 for a contact built with 4; build another",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_edits_change_nothing(name: str) -> None:
    edit, error, message = REFUSED[name]
    mech = build(parts())
    before, expected = layout(mech), outcome(mech, "auto")
    with pytest.raises(error, match=message):
        edit(mech)
    assert layout(mech) == before
    assert all(torch.equal(one, other) for one, other in zip(outcome(mech, "auto"), expected, strict=True))


def driven() -> td.Mechanism:
    given = parts()
    given["couplings"] = {}
    mech = td.Mechanism(**given)
    td.actuate(mech, {"servo": td.Actuator.position("wheel", kp=20.0, kv=0.5, forcerange=(-3, 3))})
    return mech


def test_actuators_follow_edits() -> None:
    """The inputs of a driven joint move when joints before it are replaced; the joint itself stays while an actuator drives it."""
    mech, expected = driven(), None
    mech.joints["hinge"] = td.Spherical("base", "arm", child_anchor=(0, 0, 0.5))
    given = parts()
    given["couplings"], given["joints"] = {}, {"hinge": td.Spherical("base", "arm", child_anchor=(0, 0, 0.5)), "wheel": wheel(spring=0.2)}
    expected = td.Mechanism(**given)
    td.actuate(expected, {"servo": td.Actuator.position("wheel", kp=20.0, kv=0.5, forcerange=(-3, 3))})
    z, ctrl = state(mech), torch.tensor([0.4])
    for u, v in zip(mech.step(z, ctrl=ctrl), expected.step(z, ctrl=ctrl), strict=True):
        assert torch.equal(u, v)
    assert torch.equal(mech.actuators(ctrl, z), expected.actuators(ctrl, z)) and float(mech.actuators(ctrl, z)[3]) != 0
    for edit in (lambda: mech.joints.pop("wheel"), lambda: mech.joints.__setitem__("wheel", wheel())):
        with pytest.raises(ValueError, match=r"actuator 'servo' drives 'wheel', .*mech.actuators = None.*td.actuate"):
            edit()
    mech.actuators = None
    mech.joints["wheel"] = wheel()
    td.actuate(mech, {"motor": td.Actuator.motor("wheel")})


def test_warm_starts_of_before_and_modules_that_left() -> None:
    mech = build(parts())
    z = state(mech)
    warm, skin = mech.step(z).solution, mech.contacts["skin"]
    mech.contacts.pop("skin")
    with pytest.raises(ValueError, match=r"warm_start: got shape .*allowed: "):
        mech.step(z, warm_start=warm)
    number = mech.backends.program
    skin.body = "arm"  # it belongs to no mechanism now
    assert mech.backends.program is number
    loose = copy.deepcopy(mech.joints["hinge"])
    loose.actuated = False
    assert mech.num_inputs == 2
    mech.joints["hinge"] = loose
    assert mech.num_inputs == 1


def test_backward_through_a_step_of_before() -> None:
    """The graph of a step keeps what the kernel needs, although the mechanism has changed since."""
    mech, expected = build(parts()), build(parts())
    z = state(mech)
    grads = []
    for which in (mech, expected):
        start = z.clone().requires_grad_()
        loss = which(start).square().sum()
        if which is mech:
            mech.contacts.pop("tip")
        loss.backward()
        grads.append(start.grad)
    assert torch.equal(*grads)


def test_compiled_steps_follow_edits() -> None:
    """`torch.compile` sees an edit as it sees other changes of the mechanism: it compiles anew."""
    mech = build(parts())
    z = state(mech)
    compiled = torch.compile(lambda z: mech.step(z).z, backend="eager")
    assert torch.equal(compiled(z), mech.step(z).z)
    mech.contacts["low"] = tip(radius=0.3)
    assert torch.equal(compiled(z), mech.step(z).z)

"""Random mechanisms and moving states of theirs, for comparisons of two implementations of the step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

import torchdojo as td
from torchdojo import quaternion as quat
from torchdojo.elements import joints as joint_types

JOINT_NAMES = tuple(joint_types.JOINT_TYPES)


class Sample(NamedTuple):
    """A mechanism, states of it (N, 13 nb) and inputs (N, nu)."""

    mechanism: td.Mechanism
    z: Tensor
    u: Tensor


def random_body() -> td.Body:
    moments = torch.tensor((0.10, 0.13, 0.17)) * (1 + 0.1 * torch.rand(3))
    turn = torch.linalg.qr(torch.randn(3, 3)).Q
    return td.Body(mass=0.5 + torch.rand(()), inertia=turn @ torch.diag(moments) @ turn.T)


def random_joint(
    kind: str, parent: str | None, child: str, spring: bool = False, damper: bool = False, actuated: bool = True, **given: Any
) -> td.StandardJoint:
    """Everything about it is random that is not given: axis, anchors, offset, and the values of springs and dampers."""
    n = sum(joint_types.JOINT_TYPES[kind])
    values: dict[str, Any] = dict(
        axis=torch.randn(3),
        parent_anchor=0.3 * torch.randn(3),
        child_anchor=0.3 * torch.randn(3),
        orientation_offset=quat.normalize(torch.randn(4)),
        spring=2 * torch.rand(n) * spring,
        damper=torch.rand(n) * damper,
        rest=0.3 * torch.randn(n),
        actuated=actuated,
    )
    return getattr(joint_types, kind)(parent, child, **(values | given))


def sample(mechanism: td.Mechanism, count: int, spread: float = 0.5) -> Sample:
    """Moving states of a tree around one pose."""
    n = mechanism.num_coordinates
    q = 0.5 * torch.randn(n) + spread * torch.randn(count, n)
    return Sample(mechanism, mechanism.to_maximal(q, torch.randn(count, n)), torch.randn(count, mechanism.num_inputs))


def all_joints(spring: bool, damper: bool, actuated: bool, count: int, **given: Any) -> Sample:
    """Every joint type between the world and a body and between that body and another one: 16 chains of two bodies."""
    return sample(chains(spring, damper, actuated, **given), count)


def close_to_limits(count: int, **given: Any) -> Sample:
    """The same with limits of ±0.3 on everything, coordinates between them, and velocities that reach some in one step."""
    mech = chains(True, True, True, limits=(-0.3, 0.3), **given)
    n = mech.num_coordinates
    q, qd = 0.29 * (2 * torch.rand(count, n) - 1), 3 * torch.randn(count, n)
    return Sample(mech, mech.to_maximal(q, qd), torch.randn(count, mech.num_inputs))


def chains(spring: bool, damper: bool, actuated: bool, **given: Any) -> td.Mechanism:
    bodies, joints = {}, {}
    for kind in JOINT_NAMES:
        a, b = f"{kind}_a", f"{kind}_b"
        bodies |= {a: random_body(), b: random_body()}
        mine = given if sum(joint_types.JOINT_TYPES[kind]) else {}
        joints[f"{kind}_world"] = random_joint(kind, None, a, spring, damper, actuated, **mine)
        joints[kind] = random_joint(kind, a, b, spring, damper, actuated, **mine)
    return td.Mechanism(bodies, joints, timestep=0.02, gravity=(1.0, -2.0, -9.0))


def random_contact(mechanism: td.Mechanism, z: Tensor, body: int, model: type[td.Contact]) -> td.Contact:
    """A sphere on the body up to 1 cm above a tilted plane, when the mechanism is at z (13 nb)."""
    point, radius = 0.2 * torch.randn(3), 0.1 * torch.rand(())
    normal = torch.tensor((0.0, 0.0, 1.0)) + 0.3 * torch.randn(3)
    state = z.unflatten(-1, (-1, 13))[body]
    place = state[:3] + quat.rotate(state[6:10], point)
    offset = normal @ place / normal.norm() - radius - 0.01 * torch.rand(())
    given: dict[str, Any] = dict(point=point, radius=radius, normal=normal, offset=offset)
    if issubclass(model, td.NonlinearContact):
        given["friction"] = 0.2 + 0.6 * torch.rand(())
    return model(list(mechanism.bodies)[body], **given)


def random_tree(
    seed: int,
    bodies: int,
    count: int,
    *,
    contacts: int = 0,
    kinds: Sequence[str] = JOINT_NAMES,
    roots: int = 1,
    loops: Sequence[str] = (),
    timestep: float = 0.01,
) -> Sample:
    """A forest with `roots` joints to the world, every joint type in turn, and springs, dampers and inputs as they fall.

    `loops` are types of further joints, which close loops or tie bodies to the world once more. They hold in the pose that all states
    share; the velocities then are random and satisfy no joint.
    """
    pick = random.Random(seed)
    torch.manual_seed(seed)
    names = [f"body{i}" for i in range(bodies)]
    order = pick.sample(kinds, len(kinds))
    joints = {}
    for i, child in enumerate(names):
        parent = None if i < roots else names[pick.randrange(i)]
        flags = [pick.random() < 0.5 for _ in range(3)]
        joints[f"joint{i}"] = random_joint(order[i % len(order)], parent, child, *flags)
    parts = {name: random_body() for name in names}
    tree = td.Mechanism(parts, joints, timestep=timestep)
    z = sample(tree, 1).z[0]
    for number, kind in enumerate(loops):
        a, b = pick.sample(range(bodies), 2)
        joints[f"loop{number}"] = closing_joint(kind, z, names, None if number % 3 == 2 else a, b, pick.random() < 0.5)
    models = (td.ImpactContact, td.NonlinearContact)
    points = {f"contact{i}": random_contact(tree, z, pick.randrange(bodies), models[i % 2 if contacts > 1 else 1]) for i in range(contacts)}
    mechanism = td.Mechanism(parts, joints, points, timestep=timestep)
    if loops:
        return Sample(mechanism, random_velocities(z, count), torch.randn(count, mechanism.num_inputs))
    q, _ = tree.to_minimal(z)
    # All states share a pose: a contact below its plane on a body that cannot leave the plane has no solution.
    return Sample(mechanism, mechanism.to_maximal(q, torch.randn(count, len(q))), torch.randn(count, mechanism.num_inputs))


def random_velocities(z: Tensor, count: int) -> Tensor:
    """The poses of z (13 nb) with velocities that satisfy no joint: the step finds those that do."""
    states = z.unflatten(-1, (-1, 13)).expand(count, -1, -1).clone()
    states[..., 3:6], states[..., 10:13] = torch.randn(2, *states.shape[:-1], 3)
    return states.flatten(-2)


def closing_joint(
    kind: str, z: Tensor, names: Sequence[str], parent: int | None, child: int, spring_damper: bool, **given: Any
) -> td.StandardJoint:
    """A joint that is at coordinate zero when the bodies are at z (13 nb)."""
    states = z.unflatten(-1, (-1, 13))
    pose = torch.tensor((0.0,) * 6 + (1.0,) + (0.0,) * 6) if parent is None else states[parent]
    anchor = 0.3 * torch.randn(3)
    point = pose[:3] + quat.rotate(pose[6:10], anchor)
    child_anchor = quat.inverse_rotate(states[child, 6:10], point - states[child, :3])
    offset = quat.multiply(quat.conjugate(pose[6:10]), states[child, 6:10])
    return random_joint(
        kind,
        None if parent is None else names[parent],
        names[child],
        spring_damper,
        spring_damper,
        spring_damper,
        parent_anchor=anchor,
        child_anchor=child_anchor,
        orientation_offset=offset,
        **given,
    )


def four_bar(count: int) -> Sample:
    """Four hinged links of a plane, closed by a hinge that repeats what the others hold: three redundant rows, which it leaves out."""
    up, down, axis = (0.0, 0.0, 0.5), (0.0, 0.0, -0.5), (0.0, 1.0, 0.0)
    joints = {
        "ground": td.Revolute(None, "a", axis=axis, child_anchor=down, damper=0.05),
        "left": td.Revolute("a", "b", axis=axis, parent_anchor=up, child_anchor=down, damper=0.05),
        "right": td.Revolute("a", "c", axis=axis, parent_anchor=down, child_anchor=down),
        "tip": td.Revolute("b", "d", axis=axis, parent_anchor=up, child_anchor=up, spring=1.0),
    }
    links = {name: td.Body(1.0, (0.09, 0.08, 0.02)) for name in "abcd"}
    z = td.Mechanism(links, joints).to_maximal(torch.tensor((0.4, 1.0, 0.7, -0.3)))
    joints["close"] = closing_joint("Revolute", z, list(links), 2, 3, True, axis=axis)
    mechanism = td.Mechanism(links, joints)
    planar = torch.tensor((1.0,) * 3 + (1.0, 0.0, 1.0) + (1.0,) * 4 + (0.0, 1.0, 0.0)).repeat(4)
    return Sample(mechanism, planar * random_velocities(z, count), torch.randn(count, mechanism.num_inputs))

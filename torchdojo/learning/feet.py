"""Feet of a gait: slip, duty factors, clearance, and where they stand under their hips.

Contacts bear load where their normal force is above 5 % of the robot's weight, so that central-path forces at a distance do not count.

    slip         mean slip speed of loaded contacts, weighted with their normal force, integrated, per distance: a sliding box has 1
    duty factor  share of time that a foot bears load
    clearance    distance of a foot from the ground, the largest of each stride, in the median over strides [m]
    reach        how far a foot stands from its hip, horizontally: norm of the mean over stance of the vector from hip to foot, along and
                 across the heading [m]. Under its hip a foot passes from the front to the back, so the vector is zero in the mean
    splay        the largest reach over the height of the root. Robots whose feet all start episodes farther out than half that height,
                 like ants, have none: they are built so

A foot is a body that bears more than 5 % of the load and is not the root. Its leg begins where the chain of joints leaves the chains of
other feet. The hip is the first joint of the leg that swings it forward, about an axis across the robot, or the first one at all. An
environment that knows better has `legs`, or `anatomy.legs`: objects with `contacts`, names of the foot's contacts, and `hip`, the name of
a joint, or (x, y) from the root's center of mass in its heading [m].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.envs import Env
from torchdojo.learning.ground import ground_contacts, heading
from torchdojo.learning.motors import actuators
from torchdojo.learning.rollouts import Recording
from torchdojo.mechanism import Mechanism
from torchdojo.state.layout import split_state

__all__ = ["Leg", "foot_numbers"]

LOADED = 0.05  # of the weight: contacts that push less bear no load
FOOT = 0.05  # of the load: bodies that bear less are no feet
IDLE = 0.02  # of the time: legs that bear load for less are not used
ACROSS = 0.8  # least share of an axis across the robot, for a joint that swings a leg forward
SPRAWLED = 0.5  # of the height of the root: feet that rest farther out are not meant to stand under their hips
STRIDE = 0.5  # over which clearance is taken where nothing has a rhythm [s]


class Leg(NamedTuple):
    """A leg: the body of its foot, names of the contacts of the foot, and the joint at its hip, or the place of the hip on the root."""

    foot: str
    contacts: tuple[str, ...]
    hip: str | tuple[float, float]


class _Touch(NamedTuple):
    """C contacts with the ground in T control steps of B episodes.

    owners: their bodies. normal: (T, B, C) normal forces [N]. sliding: speeds along the ground [m/s]. points: (T, B, C, 3) [m]. gaps [m].
    """

    names: list[str]
    owners: list[str]
    normal: Tensor
    sliding: Tensor
    points: Tensor
    gaps: Tensor


def foot_numbers(
    env: Env,
    record: Recording,
    counted: Tensor,
    *,
    weight: float,
    distance: float,
    height: float,
    pairs: list[tuple[int, int, float]],
    stride: float | None,
) -> dict[str, Any]:
    """The fields of `GaitReport` that contacts with the ground tell; None where a robot has none, or the recording no impulses.

    Args:
        counted: (T, B) control steps that count. weight: [N]. distance: of all episodes [m]. height: of the root [m].
        pairs: of `mirrored`. stride: [control steps].
    """
    mech = env.mech
    nothing = dict.fromkeys(("slip", "duty_factor", "flight", "dragged", "duty_asymmetry"))
    if not ground_contacts(mech) or not record.impulses.shape[-1]:
        return nothing
    touch, root = _touch(mech, record), next(iter(mech.bodies))
    normal = touch.normal[counted]
    loads = torch.where(normal > LOADED * weight, normal, 0.0)
    total = loads.sum(-1)
    if not bool((total > 0).any()):
        return nothing
    slip = float(((loads * touch.sliding[counted]).sum(-1) / total.clamp_min(1e-12)).sum()) * record.period
    by_body = {name: touch.normal[..., _columns(touch.owners, name)].sum(-1) for name in dict.fromkeys(touch.owners)}
    down = {name: (load > LOADED * weight) & counted for name, load in by_body.items()}
    shares = {name: float(load[down[name]].sum() / loads.sum().clamp_min(1e-12)) for name, load in by_body.items()}
    duty = {name: float(value.sum() / counted.sum()) for name, value in down.items()}
    feet = {name: duty[name] for name, share in shares.items() if share >= FOOT and name != root}
    differences, idle = _left_and_right(mech, pairs, feet, duty)
    return {
        "slip": slip / distance if distance > 0 else None,
        "duty_factor": sum(feet.values()) / len(feet) if feet else None,
        "flight": float((total == 0).double().mean()),
        "dragged": shares.get(root, 0.0),
        "duty_asymmetry": max(differences, default=None),
        "feet": feet,
        "idle": tuple(sorted(idle)),
        **_posture(env, record, touch, _legs(env, touch, shares, list(feet)), counted, weight=weight, height=height, stride=stride),
    }


def _touch(mech: Mechanism, record: Recording) -> _Touch:
    contacts = ground_contacts(mech)
    z, layout, order, bodies = record.z[1:], mech.impulse_layout, list(mech.contacts), list(mech.bodies)
    columns = [layout[f"contacts.{name}"].start for name in contacts]
    chosen, owners = [order.index(name) for name in contacts], [str(contact.body_names[0]) for contact in contacts.values()]
    unit = torch.zeros_like(record.impulses)
    unit[..., columns] = 1.0
    up = mech.contact_impulses(z, unit)[..., chosen, :]
    pose, twist = split_state(z)
    body_indices, points = [bodies.index(name) for name in owners], mech.contact_points(z)[..., chosen, :]
    spin = quat.rotate(pose.q[..., body_indices, :], twist.omega[..., body_indices, :])
    velocity = twist.v[..., body_indices, :] + quat.cross(spin, points - pose.x[..., body_indices, :])
    sliding = (velocity - (velocity * up).sum(-1, keepdim=True) * up).norm(dim=-1)
    normal = record.impulses[..., columns].clamp_min(0.0) / record.period
    return _Touch(list(contacts), owners, normal, sliding, points, mech.distances(z)[..., chosen])


def _columns(names: Sequence[str], name: str) -> list[int]:
    return [i for i, other in enumerate(names) if other == name]


def _left_and_right(
    mech: Mechanism, pairs: list[tuple[int, int, float]], feet: Mapping[str, float], duty: Mapping[str, float]
) -> tuple[list[float], list[str]]:
    """Differences of the duty factors of mirrored feet over their mean, and the feet whose mirror images alone bear load."""
    differences, idle = [], list[str]()
    children = [str(mech.named_joints()[joint].body_names[-1]) for joint in actuators(mech).joints]
    for left, right in {(children[i], children[j]) for i, j, _ in pairs}:
        one, other = feet.get(left, 0.0), feet.get(right, 0.0)
        if one + other > 0:
            differences.append(2 * abs(one - other) / (one + other))
            idle += [name for name in (left, right) if name not in feet and duty.get(name, 0.0) < IDLE]
    return differences, idle


# -- legs --------------------------------------------------------------------------------------------------------------------------------


def _posture(
    env: Env,
    record: Recording,
    touch: _Touch,
    legs: list[Leg],
    counted: Tensor,
    *,
    weight: float,
    height: float,
    stride: float | None,
) -> dict[str, Any]:
    """Clearance, lift, reach and splay of the legs."""
    mech, window = env.mech, max(1, round(STRIDE / record.period if stride is None else stride))
    clearance, reach, rests = dict[str, float](), dict[str, float](), list[float]()
    ahead, first = heading(mech, record.z[1:]), heading(mech, record.z[0])
    for leg in legs:
        columns = [touch.names.index(name) for name in leg.contacts]
        gaps, normal = touch.gaps[..., columns], touch.normal[..., columns]
        peaks = [peak for i in range(counted.shape[1]) if len(peak := _peaks(gaps.amin(-1)[counted[:, i], i], window))]
        if peaks:
            clearance[leg.foot] = max(0.0, float(torch.cat(peaks).median()))
        hip = _hip(mech, record.z, leg.hip, torch.cat((first[None], ahead)))
        stance = (normal.sum(-1) > LOADED * weight) & counted
        if bool(stance.any()):
            place = (normal[..., None] * touch.points[..., columns, :]).sum(-2) / normal.sum(-1, keepdim=True).clamp_min(1e-12)
            reach[leg.foot] = float(_turned(place - hip[1:], ahead)[stance].mean(0).norm())
        chosen = [list(mech.contacts).index(name) for name in leg.contacts]
        lowest = mech.distances(record.z[0])[:, chosen].argmin(-1)
        resting = mech.contact_points(record.z[0])[:, chosen][torch.arange(len(lowest)), lowest]
        rests.append(float(_turned(resting - hip[0], first).mean(0).norm()))
    sprawled = min(rests, default=torch.inf) > SPRAWLED * height
    return {
        "clearance": clearance,
        "lift": sum(clearance.values()) / len(clearance) / height if clearance and height > 0 else None,
        "reach": reach,
        "splay": max(reach.values()) / height if reach and not sprawled else None,
    }


def _peaks(gaps: Tensor, window: int) -> Tensor:
    """The largest of each whole stride of an episode (T,)."""
    return gaps[: len(gaps) // window * window].reshape(-1, window).amax(-1)


def _turned(vector: Tensor, ahead: Tensor) -> Tensor:
    """Vectors (..., 3) of the world along and across a heading (..., 2)."""
    x, y = vector[..., 0], vector[..., 1]
    return torch.stack((x * ahead[..., 0] + y * ahead[..., 1], y * ahead[..., 0] - x * ahead[..., 1]), -1)


def _hip(mech: Mechanism, z: Tensor, hip: str | tuple[float, float], ahead: Tensor) -> Tensor:
    """Place of a hip in the world, (..., 3), for headings (..., 2)."""
    if isinstance(hip, tuple):
        x, y = hip
        offset = torch.stack(
            (x * ahead[..., 0] - y * ahead[..., 1], x * ahead[..., 1] + y * ahead[..., 0], torch.zeros_like(ahead[..., 0])), -1
        )
        return z[..., :3] + offset
    element = mech.named_joints()[hip]
    anchor = torch.as_tensor(getattr(element, "child_anchor", torch.zeros(3))).to(z)
    return mech.body_points(z, str(element.body_names[-1]), anchor[..., None, :])[..., 0, :]


def _legs(env: Env, touch: _Touch, shares: Mapping[str, float], feet: list[str]) -> list[Leg]:
    """The legs that the environment names, or those found above the bodies that bear load."""
    mech, named_legs = env.mech, getattr(env, "legs", None) or getattr(getattr(env, "anatomy", None), "legs", None)
    if named_legs:
        known = [_given(mech, leg) for leg in (named_legs.values() if isinstance(named_legs, Mapping) else named_legs)]
        return [leg for leg in known if set(leg.contacts) <= set(touch.names)]
    above = {str(joint.body_names[-1]): (name, joint.body_names[0]) for name, joint in mech.named_joints().items()}
    chains = {foot: _chain(above, foot) for foot in feet}
    across, legs = _axes_across(mech), list[Leg]()
    for foot, chain in chains.items():
        bodies = [body for body, _ in chain]
        line = [other for other in feet if other in bodies or foot in [body for body, _ in chains[other]]]  # a toe, a foot, a shin
        if foot != max(line, key=lambda name: shares[name]):
            continue
        others = {body for other in feet if other not in line for body, _ in chains[other]}
        joints = [joint for body, joint in chain if body not in others]
        if joints:
            hip = next((joint for joint in reversed(joints) if joint in across), joints[-1])
            legs.append(Leg(foot, tuple(touch.names[i] for i in _columns(touch.owners, foot)), hip))
    return legs


def _given(mech: Mechanism, leg: Any) -> Leg:
    """A leg of an environment that names its own."""
    contacts = tuple(str(name) for name in leg.contacts)
    wrong = [name for name in contacts if name not in mech.contacts]
    hip = str(leg.hip) if isinstance(leg.hip, str) else tuple(float(number) for number in leg.hip)
    if not contacts or wrong or (hip not in mech.joints if isinstance(hip, str) else len(hip) != 2):
        raise ValueError(
            f"legs of the environment: got contacts {list(contacts)} and hip {leg.hip!r}; allowed: contacts of {list(mech.contacts)}, and "
            f"a joint of {list(mech.joints)} or (x, y) from the root [m]"
        )
    return Leg(str(mech.named_contacts()[contacts[0]].body_names[0]), contacts, cast(Any, hip))


def _chain(above: Mapping[str, tuple[str, str | None]], foot: str) -> list[tuple[str, str]]:
    """Bodies and the joints above them, from a foot to the root, which is left out."""
    chain, body = list[tuple[str, str]](), foot
    while body in above and above[body][1] is not None and len(chain) < len(above):
        joint, parent = above[body]
        chain.append((body, joint))
        body = str(parent)
    return chain


def _axes_across(mech: Mechanism) -> set[str]:
    """Joints that turn about an axis across the robot with all coordinates zero."""
    rates = torch.eye(mech.num_coordinates, dtype=torch.float64)
    pose, twist = split_state(mech.to_maximal(torch.zeros_like(rates), rates))
    names, across = list(mech.bodies), set[str]()
    for name, place in mech.coordinate_places().items():
        child = names.index(str(mech.named_joints()[name].body_names[-1]))
        rows = torch.arange(place.start, place.stop)
        axes = quat.rotate(pose.q[rows, child], twist.omega[rows, child])
        if bool((axes[:, 1].abs() > ACROSS).any()):
            across.add(name)
    return across

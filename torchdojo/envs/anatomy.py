"""The anatomy of a legged robot, found from its mechanism: legs, feet, hips, left and right, and a stance with the feet under the hips.

Everything is measured with all coordinates at zero, in the frame of the root, whose x axis points ahead and whose z axis points up. Each
guess can be replaced; `Anatomy.rows` prints what was found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import Contact
from torchdojo.elements.joints import Floating, StandardJoint
from torchdojo.mechanism import Mechanism
from torchdojo.state.layout import split_state

__all__ = ["Anatomy", "Leg", "Skeleton", "find_anatomy"]

ALONG = 0.7  # of a joint's unit axis: from here on it counts as an axis of roll, pitch or yaw
LOW = 0.25  # of the root's height above the lowest point: limbs that end above that are no legs
SOLE = 0.01  # [m] above the lowest point of a foot: contacts up to there are its sole
EXTENSION = {2: 0.97}  # distance from hip to ankle (or foot) over that of a straight leg, by number of legs
CROUCH = 0.697  # the same for more than two legs: an A1 with its thighs at 0.8 rad
POINT = 0.04  # [m] from the middle of a sole to its rim: smaller feet are points
UNDER = 0.04  # [m] by which a foot may miss the place under its hip
MARGIN = 0.05  # [rad] of the stance from the joints' limits
TOES = 0.005  # [m] by which the middle of a sole is behind its ankle where toes point back
NEAR = 0.015  # [m] by which mirror images of joints may miss each other
SAMPLES, ROUNDS = 1024, 5  # of the search for a stance


@dataclass(frozen=True)
class Leg:
    """A leg: name, body of the foot, names of the foot's contacts, places of the leg's joints among the driven ones (from the hip down).

    hip: (x, y) under which the foot stands, from the root's center of mass [m]. row: 0 for the foremost pair. side: −1 right, 1 left.
    """

    name: str
    body: str
    contacts: tuple[str, ...]
    joints: tuple[int, ...]
    hip: tuple[float, float]
    row: int
    side: int


@dataclass(frozen=True)
class Anatomy:
    """The facts about a robot that a gait needs.

    joints: names of the driven hinges, nu of them. columns: their places among the coordinates. kinds: "roll", "pitch" or "yaw" of each.
    legs: in the order right, left, of the front legs first. rest: (nu,) stance [rad]. height: of the root's center of mass above the
    ground in this stance [m]. length: of a straight leg from its hip [m]. mass: of the robot [kg].
    images: of each joint the place of its mirror image and the sign of the angle; None where there is no mirror image, see `unmatched`.
    misses: (legs,) how far ahead of its hip each foot stands [m]. backward: whether all toes point back.
    """

    joints: tuple[str, ...]
    columns: tuple[int, ...]
    kinds: tuple[str, ...]
    legs: tuple[Leg, ...]
    rest: Tensor
    height: float
    length: float
    mass: float
    images: tuple[tuple[int, float], ...] | None
    unmatched: tuple[str, ...]
    misses: tuple[float, ...]
    backward: bool = False

    def rows(self) -> list[tuple[str, str]]:
        """The findings, and how to correct them, for a table."""
        rows = []
        for leg, miss in zip(self.legs, self.misses, strict=True):
            angles = ", ".join(f"{self.joints[i]} {float(self.rest[i]):.3g}" for i in leg.joints)
            wrong = " (too far: give the stance)" if abs(miss) > UNDER else ""
            rows.append((leg.name, f"foot {', '.join(leg.contacts)} {100 * miss:+.1f} cm ahead of its hip{wrong}; {angles} rad"))
        others = [name for i, name in enumerate(self.joints) if not any(i in leg.joints for leg in self.legs)]
        mirror = "none: " + ", ".join(self.unmatched) if self.images is None else "left and right"
        if self.backward:
            rows.append(("ahead", "toes point back: does the robot look along -x? then turn the file, so that it looks along x"))
        return [
            *rows,
            ("other joints", ", ".join(others) or "none"),
            ("standing height", f"{self.height:.3f} m, legs of {self.length:.3f} m"),
            ("mass", f"{self.mass:.2f} kg"),
            ("mirror images", mirror),
        ]


class Skeleton:
    """Places and axes of a mechanism's driven joints and contacts with all coordinates at zero.

    Raises:
        ValueError: no floating base, no driven hinges, or joints that close loops.
    """

    def __init__(self, mech: Mechanism) -> None:
        joints, self.mech, self.bodies = mech.named_joints(), mech, list(mech.bodies)
        base = next((joint for joint in joints.values() if isinstance(joint, Floating) and joint.body_names[0] is None), None)
        if base is None or base.body_names[1] != self.bodies[0]:
            raise ValueError(
                "Locomotion: got a robot whose first body does not float; allowed: robots with a floating base; load the file with "
                "floating_base=True"
            )
        if mech.has_loops:
            tree = set(mech.tree_joints)
            closing = [name for name, joint in joints.items() if name not in tree and joint.num_rows] + list(mech.couplings)
            raise ValueError(
                f"Locomotion: got a robot with closed loops or coupled joints, of {', '.join(closing)}; allowed: trees of joints; where "
                f"the robot stands without them, load the file with ignore={closing}"
            )
        places = mech.coordinate_places()
        driven = {name: cast(StandardJoint, j) for name, j in joints.items() if name in places and not isinstance(j, Floating)}
        hinges = {name: j for name, j in driven.items() if j.num_coordinates == 1 and j.num_angles == 1}
        # Files of robots whose motors are chosen in code have no actuators: `Locomotion` drives all their hinges.
        self.driven = {name: j for name, j in hinges.items() if j.actuated} or hinges
        if not self.driven:
            raise ValueError("Locomotion: got a robot without driven hinges; allowed: at least one for each leg")
        self.columns = [places[name].start for name in self.driven]
        self.parents = {str(j.body_names[-1]): (name, j.body_names[0]) for name, j in joints.items()}
        rates = torch.eye(mech.num_coordinates, dtype=torch.float64)[self.columns]
        pose, twist = split_state(mech.to_maximal(torch.zeros_like(rates), rates))
        rows, owners = torch.arange(len(rates)), torch.tensor([self.bodies.index(str(j.body_names[-1])) for j in self.driven.values()])
        turns = quat.rotate(pose.q[rows, owners], twist.omega[rows, owners])
        self.axes = turns / turns.norm(dim=-1, keepdim=True)
        anchors = torch.stack([j.child_anchor.detach().reshape(-1, 3)[0] for j in self.driven.values()])
        self.spots = pose.x[rows, owners] + quat.rotate(pose.q[rows, owners], anchors) - pose.x[:, 0]
        main = [int(axis.abs().argmax()) for axis in self.axes]
        self.kinds = [("roll", "pitch", "yaw")[k] if abs(axis[k]) > ALONG else "skew" for axis, k in zip(self.axes, main, strict=True)]
        self.lower, self.upper = (torch.tensor([self._limit(j, end) for j in self.driven.values()], dtype=torch.float64) for end in (0, 1))

    @staticmethod
    def _limit(joint: StandardJoint, end: int) -> float:
        limits = getattr(joint, "limits", None)
        return (-math.inf, math.inf)[end] if limits is None else float(torch.as_tensor(limits[end]).flatten()[0])

    def chain(self, body: str) -> tuple[int, ...]:
        """Places of the driven joints between the root and a body, from the root on."""
        names, numbers = list(self.driven), list[int]()
        link: str | None = body
        while link in self.parents:
            joint, link = self.parents[link]
            numbers += [names.index(joint)] if joint in self.driven else []
        return tuple(reversed(numbers))

    def ancestors(self, body: str) -> set[str]:
        """Bodies between a body and the root, both left out."""
        bodies, parent = set[str](), self.parents[body][1]
        while parent is not None and parent in self.parents:
            bodies.add(parent)
            parent = self.parents[parent][1]
        return bodies

    def contacts(self) -> dict[str, Contact]:
        """Contacts with the ground that have a point on their body."""
        return {name: c for name, c in self.mech.named_contacts().items() if c.body_names[1:] in ((), (None,)) and hasattr(c, "point")}

    def state(self, angles: Tensor) -> Tensor:
        """The state (..., 13 nb) with the driven joints at angles (..., nu), the root at the origin."""
        q = angles.new_zeros(*angles.shape[:-1], self.mech.num_coordinates)
        q[..., self.columns] = angles
        return self.mech.to_maximal(q)

    def points(self, z: Tensor, contacts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Centers of contacts from the root's center of mass [m], (..., n, 3), and the lowest heights of their balls, (..., n)."""
        pose, table = split_state(z)[0], self.contacts()
        owners = [self.bodies.index(str(table[name].body_names[0])) for name in contacts]
        local = torch.stack([torch.as_tensor(table[name].point).detach().double().reshape(-1, 3)[0] for name in contacts])
        radii = torch.stack([torch.as_tensor(table[name].radius).detach().double().flatten()[0] for name in contacts])
        center = pose.x[..., owners, :] + quat.rotate(pose.q[..., owners, :], local.expand(*z.shape[:-1], -1, -1)) - pose.x[..., :1, :]
        return center, center[..., 2] - radii


@torch.no_grad()
def find_anatomy(mech: Mechanism, *, feet: Sequence[str] | None = None, stance: Mapping[str, float] | None = None) -> Anatomy:
    """Legs, feet, hips, mirror images and stance of a robot.

    Args:
        feet: names of contacts or of bodies; None: the ends of the limbs that reach lowest. stance: angles [rad] of joints by name, or by
            the end of their names; None: each foot right under its hip.

    Raises:
        ValueError: no feet, names that do not exist, feet that are not pairs of left and right.
    """
    bones = Skeleton(mech)
    groups = _feet(bones, feet)
    images, unmatched = _images(bones)
    zero = torch.zeros(len(bones.driven), dtype=torch.float64)
    at_zero = bones.state(zero)
    places = torch.stack([bones.points(at_zero, names)[0].mean(0) for names in groups.values()])
    chains = [bones.chain(body) for body in groups]
    pitches = [[i for i in chain if bones.kinds[i] == "pitch"] for chain in chains]
    hips = torch.stack([bones.spots[(pitching or list(chain))[0]] for pitching, chain in zip(pitches, chains, strict=True)])
    share, lengths, drops = EXTENSION.get(len(groups), CROUCH), list[float](), list[float]()
    for pitching, place in zip(pitches, places, strict=True):
        knots = torch.stack([*(bones.spots[i] for i in pitching), place])
        parts = (knots[1:] - knots[:-1])[:, [0, 2]].norm(dim=-1)
        lengths.append(float(parts.sum()))
        # A sole that stays level adds the height of its ankle, however far ahead of it its middle is.
        sole = float(knots[-2, 2] - knots[-1, 2]) if len(pitching) > 2 else share * float(parts[-1:].sum())
        drops.append(share * float(parts[:-1].sum()) + sole)
    ankles = [float(place[0] - bones.spots[pitching[-1], 0]) for pitching, place in zip(pitches, places, strict=True) if len(pitching) > 2]
    still = [body for body, pitching in zip(groups, pitches, strict=True) if not pitching]
    if still:
        raise ValueError(
            f"Locomotion: got a leg without a joint that pitches, that of {still[0]}; allowed: legs that swing ahead and back about the y "
            "axis of the root; give feet=[...], names of contacts or bodies, or turn the file so that the robot looks along x"
        )
    rest = _stance(bones, list(groups.values()), list(groups), pitches, hips, lengths, drops)
    if images is not None:  # exact mirror images
        left = [i for chain, place in zip(chains, places, strict=True) if float(place[1]) > 0 for i in chain]
        for i in left:
            other, sign = images[i]
            if other != i:
                rest[other] = sign * rest[i] + 0.0  # no minus zero
    for i, name in enumerate(bones.driven):
        keys = [key for key in stance or {} if name.endswith(key)]
        if keys:
            rest[i] = float((stance or {})[max(keys, key=len)])
    unknown = [key for key in stance or {} if not any(name.endswith(key) for name in bones.driven)]
    if unknown:
        raise ValueError(f"stance: got {unknown[0]!r}; allowed: names of driven joints, or ends of them: {', '.join(bones.driven)}")
    z = bones.state(rest)
    standing = torch.stack([bones.points(z, names)[0].mean(0) for names in groups.values()])
    floor = min(float(bones.points(z, names)[1].min()) for names in groups.values())
    middle = float(standing[:, 1].mean())
    order = sorted(range(len(groups)), key=lambda k: -float(hips[k, 0]))
    legs, count = list[Leg](), len(groups)
    for row in range(0, count, 2):
        pair = sorted(order[row : row + 2], key=lambda k: float(standing[k, 1]))
        if len(pair) < 2 or float(standing[pair[0], 1]) >= middle or float(standing[pair[1], 1]) <= middle:
            raise ValueError(
                f"Locomotion: got feet {', '.join(groups)}, which are not pairs of a right and a left one; allowed: a foot on each side; "
                "give feet=[...], names of contacts or bodies"
            )
        ends = ("",) if count == 2 else ("front ", "rear ") if count == 4 else tuple(f"pair {n} " for n in range(count // 2))
        for k, side in zip(pair, (-1, 1), strict=True):
            body = list(groups)[k]
            name = ends[row // 2] + ("right", "left")[side > 0]
            hip = float(hips[k, 0]), float(standing[k, 1]) - middle
            legs.append(Leg(name, body, tuple(groups[body]), chains[k], hip, row // 2, side))
    misses = tuple(float(standing[list(groups).index(leg.body), 0]) - leg.hip[0] for leg in legs)
    mass = sum(float(body.mass.double().mean()) for body in mech.bodies.values() if isinstance(body, Body))
    return Anatomy(
        tuple(bones.driven), tuple(bones.columns), tuple(bones.kinds), tuple(legs), rest, -floor, sum(lengths) / count, mass, images,
        tuple(unmatched), misses, bool(ankles) and max(ankles) < -TOES,
    )  # fmt: skip


def _feet(bones: Skeleton, given: Sequence[str] | None) -> dict[str, list[str]]:
    """{body of a foot: its contacts}."""
    contacts = bones.contacts()
    owners = {name: str(contact.body_names[0]) for name, contact in contacts.items()}
    if given is not None:
        unknown = [name for name in given if name not in contacts and name not in owners.values()]
        if isinstance(given, str) or not given or unknown:
            raise ValueError(
                f"feet: got {unknown[0] if unknown else given!r}; allowed: contacts with the ground, or bodies that have some: "
                f"{', '.join(dict.fromkeys(owners.values()))}"
            )
        return _grouped(bones, [name for name in contacts if name in given], owners) | {
            body: _sole(bones, [name for name in contacts if owners[name] == body]) for body in given if body in owners.values()
        }
    inner = set[str]().union(*(bones.ancestors(body) for body in owners.values())) if owners else set[str]()
    ends = [body for body in dict.fromkeys(owners.values()) if body not in inner and bones.chain(body)]
    if not ends:
        raise ValueError(
            f"Locomotion: got a robot without feet: its contacts with the ground are {', '.join(owners) or 'none'}; allowed: a contact at "
            "the end of each leg; give the feet collision shapes, or feet=[...], names of contacts or bodies"
        )
    z = bones.state(torch.zeros(len(bones.driven), dtype=torch.float64))
    low = {body: float(bones.points(z, [name for name in contacts if owners[name] == body])[1].min()) for body in ends}
    lowest = min(low.values())
    feet = [body for body in ends if low[body] - lowest <= LOW * abs(lowest)]
    return {body: _sole(bones, [name for name in contacts if owners[name] == body]) for body in feet}


def _grouped(bones: Skeleton, names: Sequence[str], owners: Mapping[str, str]) -> dict[str, list[str]]:
    return {body: [name for name in names if owners[name] == body] for body in dict.fromkeys(owners[name] for name in names)}


def _sole(bones: Skeleton, names: list[str]) -> list[str]:
    """The lowest contacts of a foot, of more than four the corners; of a small foot the contact in the middle alone."""
    center, bottom = bones.points(bones.state(torch.zeros(len(bones.driven), dtype=torch.float64)), names)
    low = [i for i, height in enumerate((bottom - bottom.min()).tolist()) if height <= SOLE]
    off = (center[low] - center[low].mean(0)).norm(dim=-1)
    if float(off.max()) >= POINT:
        return [names[i] for i in (low if len(low) <= 4 else _corners(center[low], low))]
    middle = [i for i, distance in zip(low, off.tolist(), strict=True) if distance < float(off.min()) + 1e-6]
    return [names[max(middle, key=lambda i: float(center[i, 0]))]]  # on both sides the same one


def _corners(centers: Tensor, numbers: list[int]) -> list[int]:
    """The contacts of a sole that are farthest out in its four diagonal directions: more contacts cost time and hold no better."""
    spread = (centers - centers.mean(0))[:, :2]
    spread = spread / spread.abs().amax(0).clamp_min(1e-3)
    corners = set[int]()
    for ahead in (-1.0, 1.0):
        for left in (-1.0, 1.0):
            # of equal ones the one farther along x, so that mirrored feet have mirrored corners
            ranks = [(round(float(ahead * x + left * y), 6), round(float(ahead * x), 6)) for x, y in spread]
            corners.add(numbers[max(range(len(numbers)), key=ranks.__getitem__)])
    return sorted(corners)


def _images(bones: Skeleton) -> tuple[tuple[tuple[int, float], ...] | None, list[str]]:
    """The mirror image of each joint in the middle plane, and the sign of its angle; the joints that have none.

    A reflection y → −y turns an axis of rotation (x, y, z) into (−x, y, −z).
    """
    spots = bones.spots.clone()
    spots[:, 1] -= 0.5 * (spots[:, 1].max() + spots[:, 1].min())
    turned, moved = bones.axes * spots.new_tensor((-1.0, 1.0, -1.0)), spots * spots.new_tensor((1.0, -1.0, 1.0))
    images, unmatched, names = list[tuple[int, float]](), list[str](), list(bones.driven)
    for i in range(len(names)):
        fits = [(float((moved[i] - spots[j]).norm()), j) for j in range(len(names)) if abs(float(turned[i] @ bones.axes[j])) > 0.99]
        distance, j = min(fits, default=(math.inf, i))
        if distance > NEAR:
            unmatched.append(names[i])
        images.append((j, math.copysign(1.0, float(turned[i] @ bones.axes[j]))))
    paired = all(images[j][0] == i for i, (j, _) in enumerate(images))
    return (tuple(images), []) if paired and not unmatched else (None, unmatched or names)


class _Stand(NamedTuple):
    """The parts of a stance: skeleton, contacts and bodies of the feet, joints that pitch, hips (legs, 3), lengths, places (legs, 2)."""

    bones: Skeleton
    soles: list[list[str]]
    bodies: list[str]
    pitches: list[list[int]]
    hips: Tensor
    lengths: list[float]
    goal: Tensor


def _stance(
    bones: Skeleton,
    soles: list[list[str]],
    bodies: list[str],
    pitches: list[list[int]],
    hips: Tensor,
    lengths: list[float],
    drops: list[float],
) -> Tensor:
    """Angles (nu,) at which every foot stands right under its hip, by the wanted `drops` below it [m].

    Knees that point back, and knees that point ahead: of the two, each leg has the one with the smaller angles, and of equal ones back
    (bipeds ahead). Feet with an ankle stay level.
    """
    low, high = bones.lower + MARGIN, bones.upper - MARGIN
    low, high = torch.where(low < high, low, bones.lower), torch.where(low < high, high, bones.upper)
    rest = torch.maximum(torch.minimum(torch.zeros_like(low), high), low)
    goal = hips[:, [0, 2]] - torch.tensor([[0.0, drop] for drop in drops], dtype=torch.float64)
    stand, usual = _Stand(bones, soles, bodies, pitches, hips, lengths, goal), 1.0 if len(soles) > 2 else -1.0
    candidates = []
    for ahead in (usual, -usual):
        pose = _search(stand, rest.clone(), (low, high), ahead)
        gaps, knees = _misses(stand, pose)
        size = torch.stack([pose[pitching].square().sum() for pitching in pitches])
        candidates.append((pose, gaps.square().sum(-1) + 1e-4 * size + 2e-4 * (usual * knees).clamp_min(0.0)))
    (pose, cost), (other, other_cost) = candidates
    for k, pitching in enumerate(pitches):
        if float(other_cost[k]) < float(cost[k]) - 1e-9:
            pose[pitching] = other[pitching]
    return pose


def _misses(stand: _Stand, angles: Tensor) -> tuple[Tensor, Tensor]:
    """How far feet are from their places, over the length of the leg, and their tilt, (..., legs, 3); places of knees ahead of hips."""
    bones, soles, bodies, pitches, hips, lengths, goal = stand
    z = bones.state(angles)
    pose, gaps, knees, joints = split_state(z)[0], [], [], list(bones.driven.values())
    for k, (names, body, pitching) in enumerate(zip(soles, bodies, pitches, strict=True)):
        off = (bones.points(z, names)[0].mean(-2)[..., [0, 2]] - goal[k]) / lengths[k]
        axis = quat.rotate(pose.q[..., bones.bodies.index(body), :], off.new_tensor((0.0, 0.0, 1.0)).expand(*off.shape[:-1], 3))
        gaps.append(torch.cat((off, axis[..., :1] if len(pitching) > 2 else torch.zeros_like(off[..., :1])), -1))
        knees.append(torch.zeros_like(off[..., 0]))
        if len(pitching) > 1:
            joint = joints[pitching[1]]
            shank, anchor = bones.bodies.index(str(joint.body_names[-1])), joint.child_anchor.detach().reshape(-1, 3)[0]
            knee = pose.x[..., shank, :] + quat.rotate(pose.q[..., shank, :], anchor.expand(*off.shape[:-1], 3)) - pose.x[..., 0, :]
            knees[-1] = (knee[..., 0] - hips[k, 0]) / lengths[k]
    return torch.stack(gaps, -2), torch.stack(knees, -1)


def _search(stand: _Stand, rest: Tensor, limits: tuple[Tensor, Tensor], ahead: float) -> Tensor:
    """A pose with the knees on one side: a random search finds the branch, and Newton's method the place. Legs do not depend on each other.

    ahead: 1 for knees that point back, −1 for knees that point ahead.
    """
    (low, high), pitches, width = limits, stand.pitches, 1.0
    free = sorted({i for pitching in pitches for i in pitching})
    start, end, generator = low.clamp_min(-2.5)[free], high.clamp_max(2.5)[free], torch.Generator().manual_seed(0)
    for _ in range(ROUNDS):
        drawn = rest.expand(SAMPLES, -1).clone()
        scatter = torch.rand(SAMPLES - 1, len(free), generator=generator, dtype=torch.float64)
        around = start + (end - start) * scatter if width == 1.0 else rest[free] + width * (2.0 * scatter - 1.0)
        drawn[1:, free] = torch.maximum(torch.minimum(around, end), start)
        gaps, knees = _misses(stand, drawn)
        best = (gaps.square().sum(-1) + 0.1 * (ahead * knees).clamp_min(0.0)).argmin(0)
        for k, pitching in enumerate(pitches):
            rest[pitching] = drawn[best[k], pitching]
        width *= 0.25
    for _ in range(8):
        steps = rest + 1e-6 * torch.eye(len(rest), dtype=torch.float64)
        gaps, moved = (_misses(stand, pose)[0] for pose in (rest, steps))
        for k, pitching in enumerate(pitches):
            rest[pitching] = rest[pitching] - torch.linalg.pinv(((moved[pitching, k] - gaps[k]) / 1e-6).mT, rtol=1e-3) @ gaps[k]
        rest = torch.maximum(torch.minimum(rest, high), low)
    return rest

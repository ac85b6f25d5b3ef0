"""Which links move: joints that cannot move become fixed, links fixed to each other one group, and groups without mass get what they need.

A URDF has frames without mass everywhere. Those that are fixed join what they are fixed to. One at the root is the world. One that moves
with nothing behind it is welded, since nothing could feel it. One that moves between links with mass gets the mass of a small ball.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from torchdojo.elements.joint import TURN
from torchdojo.elements.joints import JOINT_TYPES as JOINT_CLASSES
from torchdojo.io.coupled import CouplingInfo
from torchdojo.io.robot import ROUNDED_TURN, ball_inertia, clean_name
from torchdojo.io.urdf.parse import JOINT_TYPES, Inertial, ParsedUrdf, UrdfJoint
from torchdojo.quaternion import exp, rotation_matrix

__all__ = ["FloatingBase", "Tree"]

FloatingBase = bool | str
BALL_SHARE = 1e-3  # mass of an added ball, relative to the lightest body that it carries


class Tree:
    """The links and joints of a parsed file in depth-first order; methods change the joints and inertials of the file."""

    def __init__(self, parsed: ParsedUrdf) -> None:
        self.path, self.joints, self.loops, self.inertials = parsed.path, parsed.joints, parsed.loops, parsed.inertials
        self.findings = parsed.findings
        self.joint_above = {joint.child: joint for joint in self.joints.values()}
        (self.root,) = (name for name in self.inertials if name not in self.joint_above)
        self._held: dict[str, float] = {}  # joints that are fixed at a coordinate
        children: dict[str, list[str]] = {name: [] for name in self.inertials}
        for joint in self.joints.values():
            children[joint.parent].append(joint.child)
        self.order: list[str] = []
        stack = [self.root]
        while stack:
            self.order.append(stack.pop())
            stack.extend(reversed(children[self.order[-1]]))

    def massless(self, links: Sequence[str]) -> bool:
        return all(self.inertials[name] is None for name in links)

    # -- joints ----------------------------------------------------------------------------------------------------------------------------

    def settle_limits(self) -> None:
        """Fix joints whose limits are equal, and free those with limits that an angle in z cannot have."""
        for joint in (*self.joints.values(), *self.loops):
            limit = joint.limit
            if limit is None or joint.kind not in ("revolute", "prismatic"):
                continue
            if limit.lower == limit.upper:
                reason = f"lower and upper limit are both {limit.lower:g}: it is read as fixed there"
                self.findings.add("approximated", f"{joint.kind} joint", joint.name, reason, "structure")
                self._fix(joint, limit.lower)
            elif joint.kind == "revolute":
                bounds = [abs(bound) for bound in (limit.lower, limit.upper) if np.isfinite(bound)]
                if bounds and max(bounds) > TURN + ROUNDED_TURN:
                    reason = "they reach beyond one turn (2 pi), the range of an angle here, and are read as none"
                    self.findings.add("ignored", "joint limits", joint.name, reason)
                    limit.lower, limit.upper = -np.inf, np.inf

    def _fix(self, joint: UrdfJoint, value: float) -> None:
        """Make it a fixed joint at that coordinate: an interior point needs room to move."""
        motion = np.eye(4)
        if joint.kind == "prismatic":
            motion[:3, 3] = joint.axis * value
        else:
            motion[:3, :3] = rotation_matrix(exp(torch.as_tensor(joint.axis * value))).numpy()
        joint.origin, joint.kind = joint.origin @ motion, "fixed"
        self._held[joint.name] = value

    def couplings(self, ignore: Sequence[str]) -> dict[str, CouplingInfo]:
        """Mimic joints, by the names of these joints, without those to ignore."""
        ignored = {clean_name(name) for name in ([ignore] if isinstance(ignore, str) else ignore)}
        mimics = {name: joint.mimic for name, joint in self.joints.items() if joint.mimic is not None}
        unknown = sorted(ignored - set(mimics))
        if unknown:
            raise ValueError(
                f"{self.path}: ignore names {unknown}, which are no mimic joints; mimic joints here: {sorted(mimics) or 'none'}"
            )
        couplings: dict[str, CouplingInfo] = {}
        waiting = [name for name in mimics if name not in ignored]
        while waiting:
            name = waiting.pop(0)
            mimic, follower, leader = mimics[name], self.joints[name], self.joints[mimics[name].joint]
            if mimic.joint in waiting and mimics[mimic.joint].joint != name:  # a leader may become fixed first
                waiting = [
                    *[other for other in waiting if other == mimic.joint],
                    name,
                    *[other for other in waiting if other != mimic.joint],
                ]
            elif follower.kind == "fixed":
                self.findings.add("ignored", "<mimic>", name, "the joint is fixed, and a fixed joint follows nothing", "structure")
            elif leader.kind == "fixed" and _single(follower):
                reason = f"it mimics {leader.name!r}, which is fixed: so is this joint, where the relation puts it"
                self.findings.add("approximated", f"{follower.kind} joint", name, reason, "structure")
                self._fix(follower, mimic.multiplier * self._held.get(leader.name, 0.0) + mimic.offset)
            elif not (_single(follower) and _single(leader)):
                reason = f"{follower.kind} and {leader.kind}: only joints of one coordinate follow each other, so it moves independently"
                self.findings.add("ignored", "<mimic>", name, reason)
            else:
                couplings[name] = CouplingInfo(leader.name, name, mimic.multiplier, mimic.offset)
        return couplings

    def weld_massless_leaves(self, couplings: dict[str, CouplingInfo]) -> None:
        """Fix joints that carry no mass, unless something with mass follows them or closes a loop through them."""
        carried = {name: (inertial.mass if inertial else 0.0) for name, inertial in self.inertials.items()}
        needed = {link for loop in self.loops for link in (loop.parent, loop.child)}
        for link in reversed(self.order[1:]):
            parent = self.joint_above[link].parent
            carried[parent] += carried[link]
            if link in needed:
                needed.add(parent)
        loose = {self.joint_above[link].name for link in self.order[1:] if not carried[link] and link not in needed}
        leaders = {coupling.leader for name, coupling in couplings.items() if name not in loose}
        for name in sorted(loose - leaders, key=list(self.joints).index):
            joint = self.joints[name]
            if joint.kind != "fixed":
                reason = "nothing on it has a mass, so it is welded: the rest moves as in the file"
                self.findings.add("approximated", f"{joint.kind} joint", name, reason)
                joint.kind = "fixed"
                couplings.pop(name, None)

    # -- groups ----------------------------------------------------------------------------------------------------------------------------

    def groups(self, merge_fixed_joints: bool) -> dict[str, tuple[str, ...]]:
        """Links of every body by its topmost one."""
        fixed = [name for name in self.order[1:] if self.joint_above[name].kind == "fixed"]
        if merge_fixed_joints:
            merged = set(fixed)
        else:
            # a frame without mass joins the link that it is fixed to; where none is above it, the first one fixed below it
            merged = {name for name in fixed if self.inertials[name] is None}
            for link in self.order:
                if self.inertials[link] is None and link not in merged:
                    group = self._members_below(link, merged)
                    below = [name for name in fixed if name not in merged and self.joint_above[name].parent in group]
                    merged.update(below[:1])
        top: dict[str, str] = {}
        for name in self.order:
            top[name] = top[self.joint_above[name].parent] if name in merged else name
        return {t: tuple(name for name in self.order if top[name] == t) for t in dict.fromkeys(top.values())}

    def _members_below(self, link: str, merged: set[str]) -> set[str]:
        members = {link}
        for name in self.order:
            if name in merged and self.joint_above[name].parent in members:
                members.add(name)
        return members

    def world(self, groups: Mapping[str, tuple[str, ...]], floating_base: FloatingBase, merge_fixed_joints: bool) -> str | None:
        """The root where it is the world itself: nothing keeps it a body of its own.

        Raises:
            ValueError: an unknown value of `floating_base`, or no group can move.
        """
        if floating_base not in (True, False, "auto"):
            raise ValueError(f"floating_base is {floating_base!r}; allowed: 'auto', True, False")
        if self.massless(self.order):
            raise ValueError(
                f"{self.path}: no link has a mass, so nothing can move: got {len(self.order)} link(s); allowed: an <inertial> with a "
                "positive <mass> on at least one. A file of scenery is no mechanism: a contact has its surface from normal= and offset="
            )
        massless, named = self.massless(groups[self.root]), self.root == "world"
        floats = not massless and not named if floating_base == "auto" else bool(floating_base)
        if floating_base == "auto" and len(groups) == 1 and not floats:
            floats = True
        elif floating_base == "auto" and not floats:
            why = "its name says so" if named else "it has no mass, and joints move what is on it"
            reason = f"it is the world, since {why}: the base is fixed; floating_base=True lets it move"
            self.findings.add("used", "root link", self.root, reason, "structure")
        if floats and named:
            why = "floating_base=True lets it move" if floating_base is True else "nothing else could move, so it floats"
            name = next((name for name in groups[self.root] if self.inertials[name]), "world")
            self.findings.add("approximated", "fixed base", name, f"it is fixed to the root link 'world', but {why}")
        if floats or not (merge_fixed_joints or massless or named):
            return None
        if len(groups) == 1:
            raise ValueError(f"{self.path}: with floating_base=False every link is fixed to the world; pass floating_base=True")
        return self.root

    def give_mass(self, groups: Mapping[str, tuple[str, ...]], world: str | None) -> None:
        """Give groups without mass that move the mass and the inertia of a small ball."""
        masses = {t: sum((i.mass for name in links if (i := self.inertials[name])), 0.0) for t, links in groups.items()}
        above = {t: next(other for other, links in groups.items() if self.joint_above[t].parent in links) for t in groups if t != self.root}
        carried = {t: mass or np.inf for t, mass in masses.items()}  # the lightest mass from here on
        for t in reversed(list(groups)):
            if t in above:
                carried[above[t]] = min(carried[above[t]], carried[t])
        lightest = min(mass for mass in masses.values() if mass)
        for t in groups:
            if not masses[t] and t != world:
                mass = BALL_SHARE * (carried[t] if np.isfinite(carried[t]) else lightest)
                self.inertials[t] = Inertial(mass, np.eye(4), ball_inertia(mass) * np.eye(3))
                reason = f"links without mass move between others: each gets a ball of {BALL_SHARE:g} of the lightest mass that it carries"
                self.findings.add("added", "mass", t, reason)


def _single(joint: UrdfJoint) -> bool:
    """Whether a joint has one coordinate."""
    return sum(JOINT_CLASSES[JOINT_TYPES[joint.kind]]) == 1

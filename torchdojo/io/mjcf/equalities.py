"""Equality constraints of an MJCF model: between bodies as joints that close loops, between joints and fixed tendons as couplings.

Constraints that are not active at the start are left out, or, with `switches`, are there and switched off.

A weld or connect to a mocap body is soft, or a hand could not follow a pose that jumps: a spring, a damper and an armature of a `Floating`
joint, which has no rows (`softness.py`). The inverse effective masses are `body_invweight0`. With `soft`, couplings yield by the spring and
the damper of their constraint, with `dof_invweight0` and `tendon_invweight0`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from torchdojo.io.coupled import CouplingInfo, SumInfo
from torchdojo.io.mjcf.model import CompiledMjcf, disabled, import_mujoco, rotation_of
from torchdojo.io.mjcf.names import Names, equality_label
from torchdojo.io.mjcf.softness import softness
from torchdojo.io.report import Findings
from torchdojo.io.robot import WORLD, Z_AXIS, JointInfo, LinkInfo, closing_joint, listed

__all__ = ["Equalities", "led_by_mocap"]

INDEPENDENT = "what they couple moves independently"
INACTIVE = "they are not active at the start; load(switches=True) has them, switched off"
YIELDS = "they yield as a spring and a damper of the largest impedance, without its inertia"
SOFT = (
    "a Floating joint with spring, damper and armature, of the largest impedance; its parent_anchor and orientation_offset are the target"
)


def led_by_mocap(model: Any, i: int) -> bool:
    """Whether an equality constraint is a weld or connect with an end on a mocap body."""
    types = import_mujoco().mjtEq
    tied = model.eq_type[i] in (int(types.mjEQ_CONNECT), int(types.mjEQ_WELD))
    return bool(tied and any(model.body_mocapid[model.body_rootid[b]] >= 0 for b in _ends(model, i)))


def _ends(model: Any, i: int) -> list[int]:
    """The MJCF bodies of a weld or connect, 0 for the world."""
    ids = [int(model.eq_obj1id[i]), int(model.eq_obj2id[i])]
    return [int(model.site_bodyid[site]) for site in ids] if _between_sites(model, i) else ids


def _between_sites(model: Any, i: int) -> bool:
    return bool(model.eq_objtype[i] == int(import_mujoco().mjtObj.mjOBJ_SITE))


class Equalities:
    """Reads the constraints that have a rigid counterpart; `findings` gets the others, `strings` the numbers of those of spatial tendons.

    Args:
        names: of MJCF bodies. places: MJCF joint -> (joint, coordinate, sign). ignore: labels of constraints to leave out without a word.
        switches: whether constraints can be switched off. soft: whether couplings yield.
    """

    def __init__(
        self,
        compiled: CompiledMjcf,
        names: Sequence[str],
        links: Mapping[str, LinkInfo],
        places: Mapping[int, tuple[str, int, float]],
        ignore: Sequence[str],
        switches: bool,
        soft: bool,
        findings: Findings,
    ) -> None:
        self.mujoco, self.model, self.path, self.switches = import_mujoco(), compiled.model, compiled.path, switches
        self.soft = soft
        self.strings: list[int] = []
        self.names, self.links, self.places, self.ignore, self.findings = names, links, places, ignore, findings

    def read(self, names: Names) -> tuple[dict[str, JointInfo], dict[str, CouplingInfo | SumInfo]]:
        """Joints that close loops, with names of their own among the joints' `names`, and couplings.

        Raises:
            ValueError: `ignore` has a name that is no equality constraint.
        """
        model, types = self.model, self.mujoco.mjtEq
        joints: dict[str, JointInfo] = {}
        couplings: dict[str, CouplingInfo | SumInfo] = {}
        coupled = Names()
        labels = [equality_label(model, i) for i in range(model.neq)]
        unknown = sorted(set(self.ignore) - set(labels))
        if unknown:
            raise ValueError(
                f"{self.path}: ignore names {unknown}, which are no equality constraints; there are {listed(labels) or 'none'}"
            )
        for i, label in enumerate(labels):
            kind = types(int(model.eq_type[i]))
            if label in self.ignore or disabled(model, "EQUALITY"):
                continue
            if not model.eq_active0[i] and not (self.switches and not led_by_mocap(model, i)):
                self.findings.add("ignored", "equality constraints", label, INACTIVE, "none")
            elif kind in (types.mjEQ_JOINT, types.mjEQ_TENDON):
                info = self._couple(i) if kind == types.mjEQ_JOINT else self._sum(i, label)
                if info is not None:
                    couplings[coupled.make(label)] = info
                    if info.compliance is not None:
                        self.findings.add("approximated", "equality constraints between joints", label, YIELDS)
            elif kind not in (types.mjEQ_CONNECT, types.mjEQ_WELD):
                self.findings.add("ignored", f"equality constraints of type {kind.name[5:].lower()}", label, INDEPENDENT)
            else:
                led = led_by_mocap(model, i)
                joint = self._lead(i, kind == types.mjEQ_WELD) if led else self._loop(i, kind == types.mjEQ_WELD)
                if led and joint is not None:
                    self.findings.add("approximated", "constraints to mocap bodies", label, SOFT)
                if joint is None:
                    self.findings.add("ignored", "equality constraints", label, "both ends are part of one body", "none")
                else:
                    name = names.make(label)
                    joints[name] = replace(joint, name=name)
        return joints, couplings

    def _couple(self, i: int) -> CouplingInfo:
        """y - y0 = a0 + a1 (x - x0) + ... between two joints, y the first, or a0 of one; our coordinates are sign (qpos - qpos0)."""
        model = self.model
        follower, leader = int(model.eq_obj1id[i]), int(model.eq_obj2id[i])
        name, k, sign = self.places[follower]
        if leader < 0:
            return CouplingInfo(None, name, 0.0, sign * float(model.eq_data[i, 0]), 0, k, None, self._switch(i), **self._yielding(i))
        other, n, other_sign = self.places[leader]
        offset, ratio, *higher = (sign * other_sign**power * float(number) for power, number in enumerate(model.eq_data[i, :5]))
        return CouplingInfo(other, name, ratio, offset, n, k, tuple(higher) if any(higher) else None, self._switch(i), **self._yielding(i))

    def _sum(self, i: int, label: str) -> SumInfo | None:
        """`_couple` for the lengths of fixed tendons, which differ from those at qpos0 by sums of our coordinates."""
        model = self.model
        sums = []
        for tendon in (int(model.eq_obj1id[i]), int(model.eq_obj2id[i])):
            first = int(model.tendon_adr[tendon]) if tendon >= 0 else 0
            terms: dict[str | tuple[str, int], float] = {}
            for k in range(first, first + int(model.tendon_num[tendon])) if tendon >= 0 else ():
                if int(model.wrap_type[k]) != int(self.mujoco.mjtWrap.mjWRAP_JOINT):
                    self.strings.append(i)
                    return None
                name, coordinate, sign = self.places[int(model.wrap_objid[k])]
                terms[name, coordinate] = terms.get((name, coordinate), 0.0) + sign * float(model.wrap_prm[k])
            sums.append(terms)
        followers, leaders = sums
        offset, ratio, *higher = (float(number) for number in model.eq_data[i, :5])
        curve = tuple(higher) if any(higher) and leaders else None
        shared = {place: value * ratio for place, value in leaders.items() if place in followers}
        if shared and curve is None:  # a line: both sides become one sum
            followers = {place: followers.get(place, 0.0) - ratio * leaders.get(place, 0.0) for place in {**followers, **leaders}}
            leaders = {}
        elif shared:
            self.findings.add("ignored", "equality constraints of tendons that share a joint", label, INDEPENDENT)
            return None
        return SumInfo(leaders, followers, ratio if leaders else 0.0, offset, curve, self._switch(i), **self._yielding(i))

    def _switch(self, i: int) -> bool | None:
        return bool(self.model.eq_active0[i]) if self.switches else None

    def _lead(self, i: int, weld: bool) -> JointInfo | None:
        """The soft joint of a weld or connect to a mocap body: the target is the parent's frame, fixed to the world."""
        joint = self._loop(i, weld)
        if joint is None:
            return None
        weight, stiffness, damping = softness(self.model, self.model.eq_solref[i], self.model.eq_solimp[i])
        inverse = np.sum([self.model.body_invweight0[b] for b in _ends(self.model, i)], axis=0)  # for translations and for rotations
        mass = np.divide(1.0, inverse, out=np.zeros(2), where=inverse > 0)  # a hand on slides does not turn
        # The rows of a weld are torquescale sin(angle / 2), about half the scale times the angle; a connect has no such rows.
        scale = np.array([1.0, 0.5 * float(self.model.eq_data[i, 10]) if weld else 0.0])
        armature = np.repeat(weight * scale**2 * mass, 3)
        values = {"spring": stiffness * armature, "damper": damping * armature, "armature": armature}
        options = {**joint.options, **{key: value.tolist() for key, value in values.items()}, "implicit": True}
        return replace(joint, kind="Floating", options=options)

    def _yielding(self, i: int) -> dict[str, float]:
        """Compliance and damping of a coupling of joints or fixed tendons that yields, if that is asked for."""
        if not self.soft:
            return {}
        model = self.model
        if int(model.eq_type[i]) == int(self.mujoco.mjtEq.mjEQ_TENDON):
            inverses = model.tendon_invweight0
        else:
            inverses = model.dof_invweight0[model.jnt_dofadr]
        inverse = sum(float(inverses[end]) for end in (int(model.eq_obj1id[i]), int(model.eq_obj2id[i])) if end >= 0)
        weight, stiffness, damping = softness(model, model.eq_solref[i], model.eq_solimp[i])
        if not (inverse > 0 and weight * stiffness > 0):
            return {}
        return {"compliance": inverse / (weight * stiffness), "damping": weight * damping / inverse}

    def _loop(self, i: int, weld: bool) -> JointInfo | None:
        """Between frame a and frame b on two bodies, which coincide (weld) or have the same origin (connect)."""
        model, data = self.model, self.model.eq_data[i]
        if _between_sites(model, i):
            sites = [int(model.eq_obj1id[i]), int(model.eq_obj2id[i])]
            frames = [(rotation_of(model.site_quat[site]), np.array(model.site_pos[site])) for site in sites]
        elif weld:
            relative = rotation_of(data[6:10])
            frames = [(relative, np.array(data[3:6])), (np.eye(3), np.array(data[0:3]))]
        else:
            frames = [(np.eye(3), np.array(data[0:3])), (np.eye(3), np.array(data[3:6]))]
        ends = [(self.links[self.names[b]] if b else WORLD, frame) for b, frame in zip(_ends(model, i), frames, strict=True)]
        options = {"actuated": False} | ({"active": self._switch(i)} if self.switches and not led_by_mocap(model, i) else {})
        joint = closing_joint("", "Fixed" if weld else "Spherical", ends, Z_AXIS, options)
        # A connect constraint gives points only: the coordinates count from where the axes of both bodies are parallel.
        return joint and replace(joint, axis=Z_AXIS, rotation=joint.rotation if weld else np.eye(3))

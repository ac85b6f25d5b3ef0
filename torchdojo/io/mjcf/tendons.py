"""Tendons of an MJCF file: fixed ones over joints, spatial ones through sites, around geoms and over pulleys.

An equality constraint between the lengths of spatial tendons is a `StringCoupling`, rigid, or with `soft` with the spring and the damper of
the constraint (`softness.py`). With `soft`, a linear one without a switch costs less: it is one string of both paths, the second one behind
a pulley with a negative divisor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch

from torchdojo.elements.string_coupling import StringCoupling
from torchdojo.elements.tendon import Tendon
from torchdojo.elements.tendon_paths import FixedTendon, Pulley, SpatialTendon, Wrap
from torchdojo.io.mjcf.description import MjcfInfo
from torchdojo.io.mjcf.left_out import softer
from torchdojo.io.mjcf.model import disabled, import_mujoco, rotation_of
from torchdojo.io.mjcf.names import equality_label, joint_label, tendon_label
from torchdojo.io.mjcf.softness import softness
from torchdojo.io.report import Findings
from torchdojo.io.robot import WORLD, LinkInfo
from torchdojo.mechanism import Mechanism
from torchdojo.quaternion import from_rotation_matrix
from torchdojo.sensors.site import Site

__all__ = ["add_tendons", "site_in"]

#: h² k over the inertia along a tendon above which its spring becomes implicit, as springs of joints do
STIFF = 0.22
STRING = "they are a string with a spring and a damper of the largest impedance, at its next length, without its inertia"
YIELDS = "they yield as a spring and a damper of the largest impedance, without its inertia"


def site_in(link: LinkInfo, position: Any, quaternion: Any, **zone: Any) -> Site:
    """The site of a frame that is given in an MJCF body, which is part of a link."""
    rotation, place = link.place((rotation_of(quaternion), np.asarray(position, dtype=np.float64)))
    return Site(link.body, place.tolist(), from_rotation_matrix(torch.as_tensor(rotation)), **zone)


def add_tendons(mech: Mechanism, robot: MjcfInfo, wanted: bool, driven: Collection[int], soft: bool, switches: bool = False) -> Findings:
    """Give the mechanism the tendons of the file, if they are wanted; what it does not have, by reason.

    driven: MJCF ids of tendons that get an input. soft, switches: whether equality constraints of spatial tendons yield, can be switched.
    """
    reader = _Reader(mech, robot)
    reader.report(wanted, driven)
    if not wanted:
        names = [equality_label(reader.model, i) for i in robot.strings]
        reader.findings.add("ignored", "equality constraints of spatial tendons", names, "load(tendons=True) has them")
        return reader.findings
    tendons: dict[str, Tendon] = {}
    for i in range(reader.model.ntendon):
        tendon = reader.tendon(i, i in driven)
        if tendon is not None:
            tendons[tendon_label(reader.model, i)] = tendon
    couplings: dict[str, StringCoupling] = {}
    for label, element in reader.equalities(robot.strings, soft, switches).items():
        if isinstance(element, StringCoupling):
            couplings[label if label not in mech.couplings else f"{label}_equality"] = element
        else:
            tendons[label if label not in tendons else f"{label}_equality"] = element
    if tendons:
        mech.tendons.update(tendons)
    if couplings:
        mech.couplings.update(couplings)
    return reader.findings


class _Reader:
    def __init__(self, mech: Mechanism, robot: MjcfInfo) -> None:
        self.mech, self.model, self.mujoco = mech, robot.compiled.model, import_mujoco()
        self.links: list[LinkInfo] = [WORLD, *robot.links.values()]
        self.places = {label: (name, i, sign) for name, entries in robot.coordinates.items() for i, (label, sign) in enumerate(entries)}
        self.findings = Findings()

    def report(self, wanted: bool, driven: Collection[int]) -> None:
        """Report the laws that tendons lack here, or all tendons if they are not wanted."""
        model, add = self.model, self.findings.add

        def having(*keys: str) -> list[int]:
            return [i for i in range(model.ntendon) if any(np.any(getattr(model, f"tendon_{key}", np.zeros(i + 1))[i]) for key in keys)]

        def labels(numbers: Collection[int]) -> list[str]:
            return [tendon_label(model, i) for i in numbers]

        if not wanted:
            laws = ("limited", "stiffness", "stiffnesspoly", "damping", "dampingpoly", "frictionloss", "armature")
            acting = sorted({*having(*laws), *driven})
            add("ignored", "tendons", labels(acting), "they do not act; load(tendons=True) has them")
            plain = [i for i in range(model.ntendon) if i not in acting]
            add("ignored", "tendons without forces", labels(plain), "they have none", "none")
            return
        limited = [] if disabled(model, "LIMIT") else having("limited")
        add(
            "approximated",
            "limits of tendons",
            labels(limited),
            "they are springs and dampers of the largest impedance, without its inertia",
        )
        add(
            "approximated", "margin of limits of tendons", labels([i for i in limited if model.tendon_margin[i]]), "they act where they are"
        )
        rubbing = [] if disabled(model, "FRICTIONLOSS") else having("frictionloss")
        soft = softer(model, "tendon_solref_fri", "tendon_solimp_fri", rubbing)
        add("approximated", "solref and solimp of friction of tendons", labels(soft), "it creeps by up to 0.1 mm/s")
        negative = labels([i for i in having("dampingpoly") if np.any(model.tendon_dampingpoly[i] < 0)])
        add("approximated", "dampers of tendons", negative, "those with negative numbers keep their linear part")
        add("ignored", "tendons that yield", labels(having("springyield")), "they do not yield")

    def tendon(self, i: int, actuated: bool) -> Tendon | None:
        model, label = self.model, tendon_label(self.model, i)
        stiffness = 0.0 if disabled(model, "SPRING") else float(model.tendon_stiffness[i])
        damping = 0.0 if disabled(model, "DAMPER") else float(model.tendon_damping[i])
        hard = float(self.mech.timestep) ** 2 * stiffness * float(model.tendon_invweight0[i]) > STIFF
        if hard:
            self.findings.add("approximated", "stiff springs of tendons", label, "they act at the next length, and dissipate")
        rest = tuple(float(length) for length in model.tendon_lengthspring[i])
        laws = {"stiffness": stiffness, "damping": damping, "rest": rest, "implicit": hard, "actuated": actuated, **self._bounds(i)}
        for key, off in (("stiffness", "SPRING"), ("damping", "DAMPER")):
            curve = np.asarray(getattr(model, f"tendon_{key}poly", np.zeros((i + 1, 2)))[i])  # new in MuJoCo 4
            if curve.any() and not disabled(model, off) and (key == "stiffness" or curve.min() >= 0):
                laws[f"{key}_curve"] = curve.tolist()
        places = self._places(i)
        fixed = int(model.wrap_type[places.start]) == int(self.mujoco.mjtWrap.mjWRAP_JOINT)
        return self._fixed(label, places, laws) if fixed else self._spatial(places, laws)

    def _bounds(self, i: int) -> dict[str, Any]:
        """Limits, friction and armature, where the tendon has them."""
        model = self.model
        laws: dict[str, Any] = {}
        if model.tendon_limited[i] and not disabled(model, "LIMIT"):
            laws["limits"] = tuple(float(length) for length in model.tendon_range[i])
            weight, stiffness, damping = softness(model, model.tendon_solref_lim[i], model.tendon_solimp_lim[i])
            inverse = float(model.tendon_invweight0[i])
            if inverse > 0 and stiffness > 0:
                laws |= {"limit_stiffness": weight * stiffness / inverse, "limit_time": damping / stiffness}
        if model.tendon_frictionloss[i] and not disabled(model, "FRICTIONLOSS"):
            laws["friction"] = float(model.tendon_frictionloss[i])
        armature = float(np.asarray(getattr(model, "tendon_armature", np.zeros(i + 1)))[i])  # new in MuJoCo 3.3
        if armature:
            laws["armature"] = armature
        return laws

    def _fixed(self, label: str, places: range, laws: dict[str, Any]) -> FixedTendon | None:
        """A coordinate is sign (qpos - qpos0)."""
        joints: dict[str | tuple[str, int], float] = {}
        offset = 0.0
        for k in places:
            j = int(self.model.wrap_objid[k])
            name, number, sign = self.places.get(joint_label(self.model, j), ("", 0, 1.0))
            if name not in self.mech.joints:
                self.findings.add("ignored", "tendons", label, "they run over joints that are not in the mechanism")
                return None
            coefficient = float(self.model.wrap_prm[k])
            joints[name, number] = joints.get((name, number), 0.0) + sign * coefficient
            offset += coefficient * float(self.model.qpos0[self.model.jnt_qposadr[j]])
        return FixedTendon(joints, offset=offset, **laws)

    def _spatial(self, places: range, laws: dict[str, Any]) -> SpatialTendon:
        return SpatialTendon(self._path(places), **laws)

    def _path(self, places: range, factor: float = 1.0) -> list[Any]:
        """The path of a spatial tendon, whose branches behind pulleys count `factor` times as much."""
        model, kinds = self.model, self.mujoco.mjtWrap
        readers: dict[int, Callable[[int, float], Any]] = {
            int(kinds.mjWRAP_SITE): lambda number, _: self._site(number),
            int(kinds.mjWRAP_PULLEY): lambda _, divisor: Pulley(divisor / factor),
            int(kinds.mjWRAP_SPHERE): lambda number, side: self._wrap(number, side, "sphere"),
            int(kinds.mjWRAP_CYLINDER): lambda number, side: self._wrap(number, side, "cylinder"),
        }
        return [readers[int(model.wrap_type[k])](int(model.wrap_objid[k]), float(model.wrap_prm[k])) for k in places]

    def equalities(self, numbers: Collection[int], soft: bool, switches: bool) -> dict[str, SpatialTendon | StringCoupling]:
        """The equality constraints of spatial tendons; what they lack is noted."""
        constraints: dict[str, SpatialTendon | StringCoupling] = {}
        kind = "equality constraints of spatial tendons"
        for i in numbers:
            label, reason = equality_label(self.model, i), self._refused(i, soft)
            if reason:
                self.findings.add("ignored", kind, label, reason)
                continue
            linear = soft and not switches and not np.any(self.model.eq_data[i, 2:5])
            constraints[label] = self._equality(i) if linear else self._coupling(i, soft, switches)
            if soft:
                self.findings.add("approximated", kind, label, STRING if linear else YIELDS)
        return constraints

    def _refused(self, i: int, soft: bool) -> str:
        """Why an equality constraint of a spatial tendon is left out; empty where it is there."""
        model, ends = self.model, self._ends(i)
        if not all(int(model.wrap_type[int(model.tendon_adr[end])]) != int(self.mujoco.mjtWrap.mjWRAP_JOINT) for end in ends):
            return "one side is a sum of coordinates, the other a string"
        if not sum(float(model.tendon_invweight0[end]) for end in ends) > 0:
            return "nothing moves their lengths"
        weight, stiffness, _ = softness(model, model.eq_solref[i], model.eq_solimp[i])
        return "they have no stiffness" if soft and not weight * stiffness > 0 else ""

    def _ends(self, i: int) -> list[int]:
        """The tendons of an equality constraint: y, and x where there is one."""
        return [int(end) for end in (self.model.eq_obj1id[i], self.model.eq_obj2id[i]) if end >= 0]

    def _coupling(self, i: int, soft: bool, switches: bool) -> StringCoupling:
        """y - y0 = a0 + a1 (x - x0) + ... between the lengths of two strings; or of one: y - y0 = a0."""
        model, ends = self.model, self._ends(i)
        lengths = [float(model.tendon_length0[end]) for end in ends]
        offset, ratio, *higher = (float(number) for number in model.eq_data[i, :5])
        law: dict[str, Any] = {"offset": lengths[0] + offset}
        if len(ends) > 1:
            law |= {"ratio": ratio, "leader_length": lengths[1], "curve": higher if any(higher) else None}
        if soft:
            inverse = sum(float(model.tendon_invweight0[end]) for end in ends)
            weight, stiffness, damping = softness(model, model.eq_solref[i], model.eq_solimp[i])
            law |= {"compliance": inverse / (weight * stiffness), "damping": weight * damping / inverse}
        if switches:
            law["active"] = bool(model.eq_active0[i])
        return StringCoupling(*(self._path(self._places(end)) for end in ends), **law)

    def _equality(self, i: int) -> SpatialTendon:
        """y - y0 = a0 + a1 (x - x0) between the lengths of two strings: one with the length y - a1 x; or of one: y - y0 = a0."""
        model = self.model
        first, second = int(model.eq_obj1id[i]), int(model.eq_obj2id[i])
        offset, ratio = (float(number) for number in model.eq_data[i, :2])
        rest, inverse = float(model.tendon_length0[first]) + offset, float(model.tendon_invweight0[first])
        path = self._path(self._places(first))
        if second >= 0 and ratio:
            path += [Pulley(-1 / ratio), *self._path(self._places(second), -ratio)]
            rest -= ratio * float(model.tendon_length0[second])
        inverse += float(model.tendon_invweight0[second]) if second >= 0 else 0.0
        weight, stiffness, damping = softness(model, model.eq_solref[i], model.eq_solimp[i])
        laws: dict[str, Any] = {"stiffness": weight * stiffness / inverse, "damping": weight * damping / inverse}
        return SpatialTendon(path, rest=rest, implicit=True, **laws)

    def _places(self, i: int) -> range:
        first = int(self.model.tendon_adr[i])
        return range(first, first + int(self.model.tendon_num[i]))

    def _site(self, number: int) -> Site:
        model = self.model
        return site_in(self.links[int(model.site_bodyid[number])], model.site_pos[number], model.site_quat[number])

    def _wrap(self, number: int, side: float, shape: str) -> Wrap:
        model = self.model
        frame = site_in(self.links[int(model.geom_bodyid[number])], model.geom_pos[number], model.geom_quat[number])
        return Wrap(frame, float(model.geom_size[number, 0]), shape, self._site(int(side)) if side >= 0 else None)

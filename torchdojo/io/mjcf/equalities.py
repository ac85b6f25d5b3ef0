"""Equality constraints of an MJCF model: between bodies as joints that close loops, between joints as couplings.

A weld or connect to a mocap body is soft, or a hand could not follow a pose that jumps. MuJoCo's constraint of impedance d has the force

    f = d / ((1 - d) A) (-b v - k r - a),     b = 2 / (dmax timeconst),     k = d / (dmax timeconst dampratio)^2

on an error r with rate v and acceleration a; A is the inverse effective mass at qpos0, `body_invweight0`. (MuJoCo's documentation,
Computation: Constraint model and Solver parameters; f follows from its R f = aref - a, R = A (1 - d) / d.) This is a spring, a damper and
an armature of a `Floating` joint, which has no rows. The impedance of large errors, d = dmax, acts at all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from torchdojo.io.mjcf.model import CompiledMjcf, disabled, import_mujoco, rotation_of
from torchdojo.io.mjcf.names import Names, equality_label
from torchdojo.io.report import Findings
from torchdojo.io.robot import WORLD, Z_AXIS, CouplingInfo, JointInfo, LinkInfo, closing_joint, listed

__all__ = ["Equalities", "led_by_mocap"]

INDEPENDENT = "what they couple moves independently"
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
    """Reads the constraints that have a rigid counterpart; `findings` gets the others.

    Args:
        names: of MJCF bodies. places: MJCF joint -> (joint, coordinate, sign). ignore: labels of constraints to leave out without a word.
    """

    def __init__(
        self,
        compiled: CompiledMjcf,
        names: Sequence[str],
        links: Mapping[str, LinkInfo],
        places: Mapping[int, tuple[str, int, float]],
        ignore: Sequence[str],
        findings: Findings,
    ) -> None:
        self.mujoco, self.model, self.path = import_mujoco(), compiled.model, compiled.path
        self.names, self.links, self.places, self.ignore, self.findings = names, links, places, ignore, findings

    def read(self, names: Names) -> tuple[dict[str, JointInfo], dict[str, CouplingInfo]]:
        """Joints that close loops, with names of their own among the joints' `names`, and couplings.

        Raises:
            ValueError: `ignore` has a name that is no equality constraint.
        """
        model, types = self.model, self.mujoco.mjtEq
        joints: dict[str, JointInfo] = {}
        couplings: dict[str, CouplingInfo] = {}
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
            if not model.eq_active0[i]:
                self.findings.add("ignored", "equality constraints", label, "they are not active at the start", "none")
            elif kind == types.mjEQ_JOINT:
                self._couple(i, label, coupled, couplings)
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

    def _couple(self, i: int, label: str, coupled: Names, couplings: dict[str, CouplingInfo]) -> None:
        """y - y0 = a0 + a1 (x - x0) between two joints, y the first; our coordinates are sign (qpos - qpos0)."""
        model = self.model
        follower, leader = int(model.eq_obj1id[i]), int(model.eq_obj2id[i])
        offset, ratio, *higher = (float(number) for number in model.eq_data[i, :5])
        if leader < 0:
            self.findings.add("ignored", "equality constraints on a single joint", label, "the joint moves freely")
        elif any(higher):
            self.findings.add("ignored", "couplings of joints that are no linear function", label, INDEPENDENT)
        else:
            (name, k, sign), (other, n, other_sign) = self.places[follower], self.places[leader]
            couplings[coupled.make(label)] = CouplingInfo(other, name, sign * other_sign * ratio, sign * offset, n, k)

    def _lead(self, i: int, weld: bool) -> JointInfo | None:
        """The soft joint of a weld or connect to a mocap body: the target is the parent's frame, fixed to the world."""
        joint = self._loop(i, weld)
        if joint is None:
            return None
        weight, stiffness, damping = self._softness(i)
        inverse = np.sum([self.model.body_invweight0[b] for b in _ends(self.model, i)], axis=0)  # of translations and of rotations
        mass = np.divide(1.0, inverse, out=np.zeros(2), where=inverse > 0)  # a hand on slides does not turn
        # The rows of a weld are torquescale sin(angle / 2), about half the scale times the angle; those of a connect have none.
        scale = np.array([1.0, 0.5 * float(self.model.eq_data[i, 10]) if weld else 0.0])
        armature = np.repeat(weight * scale**2 * mass, 3)
        values = {"spring": stiffness * armature, "damper": damping * armature, "armature": armature}
        options = {**joint.options, **{key: value.tolist() for key, value in values.items()}, "implicit": True}
        return replace(joint, kind="Floating", options=options)

    def _softness(self, i: int) -> tuple[float, float, float]:
        """(d / (1 - d), k, b) at the largest impedance d of a constraint, from its solref and solimp."""
        model, (first, second) = self.model, self.model.eq_solref[i]
        least, most = self.mujoco.mjMINIMP, self.mujoco.mjMAXIMP
        impedance = float(np.clip(model.eq_solimp[i, 1], least, most))
        if first <= 0:  # the file gives the negative stiffness and damping
            return impedance / (1 - impedance), -float(first) / impedance, -float(second) / impedance
        if not disabled(model, "REFSAFE"):
            first = max(first, 2 * model.opt.timestep)
        return impedance / (1 - impedance), 1 / (impedance * (first * second) ** 2), 2 / (impedance * first)

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
        joint = closing_joint("", "Fixed" if weld else "Spherical", ends, Z_AXIS, {"actuated": False})
        # A connect constraint gives points only: the coordinates count from where the axes of both bodies are parallel.
        return joint and replace(joint, axis=Z_AXIS, rotation=joint.rotation if weld else np.eye(3))

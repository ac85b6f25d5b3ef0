"""Equality constraints of an MJCF model: between bodies as joints that close loops, between joints as couplings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from torchdojo.io.mjcf.model import CompiledMjcf, disabled, import_mujoco, rotation_of
from torchdojo.io.mjcf.names import Names, equality_label
from torchdojo.io.report import Findings
from torchdojo.io.robot import WORLD, Z_AXIS, CouplingInfo, JointInfo, LinkInfo, closing_joint, listed

__all__ = ["Equalities"]

INDEPENDENT = "what they couple moves independently"


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
            elif self._led(i):
                reason = "a mocap body stays where the file has it, and no rigid joint may lock what it leads"
                self.findings.add("ignored", "constraints to mocap bodies", label, reason)
            else:
                joint = self._loop(i, kind == types.mjEQ_WELD)
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

    def _ends(self, i: int) -> list[int]:
        """The MJCF bodies of a constraint, 0 for the world."""
        ids = [int(self.model.eq_obj1id[i]), int(self.model.eq_obj2id[i])]
        return [int(self.model.site_bodyid[site]) for site in ids] if self._between_sites(i) else ids

    def _between_sites(self, i: int) -> bool:
        return bool(self.model.eq_objtype[i] == int(self.mujoco.mjtObj.mjOBJ_SITE))

    def _led(self, i: int) -> bool:
        """Whether an end is on a mocap body."""
        model = self.model
        return any(model.body_mocapid[model.body_rootid[b]] >= 0 for b in self._ends(i))

    def _loop(self, i: int, weld: bool) -> JointInfo | None:
        """Between frame a and frame b on two bodies, which coincide (weld) or have the same origin (connect)."""
        model, data = self.model, self.model.eq_data[i]
        if self._between_sites(i):
            sites = [int(model.eq_obj1id[i]), int(model.eq_obj2id[i])]
            frames = [(rotation_of(model.site_quat[site]), np.array(model.site_pos[site])) for site in sites]
        elif weld:
            relative = rotation_of(data[6:10])
            frames = [(relative, data[3:6] + relative @ data[0:3]), (np.eye(3), np.array(data[0:3]))]
        else:
            frames = [(np.eye(3), np.array(data[0:3])), (np.eye(3), np.array(data[3:6]))]
        ends = [(self.links[self.names[b]] if b else WORLD, frame) for b, frame in zip(self._ends(i), frames, strict=True)]
        joint = closing_joint("", "Fixed" if weld else "Spherical", ends, Z_AXIS, {"actuated": False})
        # A connect constraint gives points only: the coordinates count from where the axes of both bodies are parallel.
        return joint and replace(joint, axis=Z_AXIS, rotation=joint.rotation if weld else np.eye(3))

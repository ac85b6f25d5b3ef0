"""The golden cases of the original engine as mechanisms (see ../shared/golden/README.md for the format)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import torchdojo as td
from torchdojo import quaternion as quat
from torchdojo.elements import joints as joint_types
from torchdojo.elements.element import Motion, Pose


class GoldenCase(NamedTuple):
    description: dict[str, Any]
    arrays: dict[str, Tensor]
    mechanism: td.Mechanism
    input_map: Tensor  # (nu, nu): our input = input_map @ golden input; the bases of free planes differ
    joint_maps: dict[str, tuple[Tensor, Tensor]]  # our and the golden rows of each joint, (rows, 6), to compare impulses as vectors


class OriginalJoint(td.StandardJoint):
    """The original's laws of two and three free rotations, which add energy (the second defect of the golden README).

    Rates turn about the axes of the child. Springs and dampers act along the axes of the parent, springs with k (rest − rotation vector).
    """

    def rate(self, before: Sequence[Pose], after: Sequence[Pose], timestep: Tensor) -> Tensor:
        rate = super().rate(before, after, timestep)
        (_, p), (_, p_after) = self.displacement(*before), self.displacement(*after)
        turn = quat.rotation_vector(quat.multiply(quat.conjugate(p), p_after)) / timestep
        split = self.free_translations
        return torch.cat((rate[..., :split], (self.free_rotational_axes * turn[..., None, :]).sum(-1)), dim=-1)

    def damper_rate(self, motions: tuple[Motion, ...], timestep: Tensor) -> Tensor:
        return self._rate_of_child(motions, timestep)

    def _pulled(self, p: Tensor, torque: Tensor) -> Tensor:
        return torque


def load_case(folder: Path, name: str, *, original: bool = True) -> GoldenCase:
    """A case with the original's laws, or with the laws of this library, which differ for springs and dampers of several rotations."""
    description = json.loads((folder / f"{name}.json").read_text())
    with np.load(folder / f"{name}.npz") as archive:
        arrays = {key: torch.from_numpy(archive[key]) for key in archive.files}
    mechanism = build(description, original=original)
    input_map = torch.zeros(mechanism.num_inputs, mechanism.num_inputs)
    joint_maps = {}
    for entry in description["joints"]:
        joint = mechanism.joints[entry["name"]]
        ours = torch.block_diag(joint.free_translational_axes, joint.free_rotational_axes)
        theirs = torch.block_diag(_rows(entry["free_translational_axes"]), _rows(entry["free_rotational_axes"]))
        piece = slice(entry["input_offset"], entry["input_offset"] + entry["input_dim"])
        if entry["input_dim"]:
            input_map[mechanism.input_layout[entry["name"]], piece] = ours @ theirs.T
        held = torch.block_diag(_constrained(joint, joint.free_translations), _constrained(joint, joint.free_rotations))
        theirs_held = torch.block_diag(_rows(entry["constrained_translational_axes"]), _rows(entry["constrained_rotational_axes"]))
        joint_maps[entry["name"]] = (held, theirs_held)
    return GoldenCase(description, arrays, mechanism, input_map, joint_maps)


def _rows(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, 3)


def _constrained(joint: td.StandardJoint, free: int) -> Tensor:
    rows = joint.directions(free)[1]
    return torch.eye(3) if rows is None else rows


def _limits(joint: dict[str, Any], translations: int, rotations: int) -> tuple[list[float], list[float]] | None:
    """Limits of a joint with at most one free direction, on whose axis both engines agree."""
    given = joint.get("limits") or {}
    if not any(given.values()):
        return None
    assert max(translations, rotations) <= 1
    parts = [given[part] or [[-np.inf] * n, [np.inf] * n] for part, n in (("translational", translations), ("rotational", rotations))]
    return parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]


def build(description: dict[str, Any], *, original: bool = True) -> td.Mechanism:
    bodies = {b["name"]: td.Body(mass=b["mass"], inertia=torch.tensor(b["inertia"])) for b in description["bodies"]}
    joints = {}
    for j in description["joints"]:
        cls = getattr(joint_types, j["type"])
        translations, rotations = joint_types.JOINT_TYPES[j["type"]]
        axis = j["axis"] if any(j["axis"]) else (0.0, 0.0, 1.0)
        spare = cls(None, "x", axis=axis)
        if original and rotations > 1 and (j["spring_rotational"] or j["damper_rotational"]):
            cls = type(f"Original{j['type']}", (OriginalJoint, cls), {"__module__": __name__})
        # Their rest coordinates refer to their basis of a free plane; ours to ours.
        rest = torch.cat(
            (
                spare.free_translational_axes
                @ _rows(j["free_translational_axes"]).T
                @ torch.tensor(j["spring_offset"]["translational"][:translations]),
                spare.free_rotational_axes
                @ _rows(j["free_rotational_axes"]).T
                @ torch.tensor(j["spring_offset"]["rotational"][:rotations]),
            )
        )
        joints[j["name"]] = cls(
            j["parent"],
            j["child"],
            axis=axis,
            parent_anchor=j["parent_vertex"],
            child_anchor=j["child_vertex"],
            orientation_offset=j["orientation_offset"],
            spring=torch.tensor([j["spring"]] * translations + [j["spring_rotational"]] * rotations),
            damper=torch.tensor([j["damper"]] * translations + [j["damper_rotational"]] * rotations),
            rest=rest,
            limits=_limits(j, translations, rotations),
        )
    contacts = {}
    for c in description["contacts"]:
        offset = float(np.dot(c["normal"], c["contact_offset"]))
        common = dict(point=c["contact_origin"], radius=c["radius"], normal=c["normal"], offset=offset)
        kinds = {"nonlinear": td.NonlinearContact, "linear": td.LinearContact}
        contacts[c["name"]] = (
            td.ImpactContact(c["body"], **common)
            if c["model"] == "impact"
            else kinds[c["model"]](c["body"], friction=c["friction"], **common)
        )
    return td.Mechanism(bodies, joints, contacts, timestep=description["timestep"], gravity=description["gravity"])

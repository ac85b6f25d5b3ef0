"""The joints that one MJCF body has toward its parent, as few joints of the table in `elements.joints` as move it exactly so.

MJCF gives a body a list of joints that act one after another. Here, one joint stands between two bodies, and its rotations are one rotation
vector. So a joint of the table takes slides along perpendicular axes with one hinge or with a ball. Everything else is a chain of such
joints with a light body between two of them, which `light.py` describes.

The coordinates of a joint are along `axis`, across it, or along the axes of the joint frame, which are the child's at coordinate zero. So
the body frame is turned until the axes of the file are such directions, and a coordinate may have to run backward. Several frames may fit.
The best one keeps, in this order, the sign of actuated coordinates, the axes of the MJCF body, the other signs, and the order of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import torch

from torchdojo.elements.element import orthonormal_complement
from torchdojo.elements.joints import JOINT_TYPES
from torchdojo.io.mjcf.model import import_mujoco
from torchdojo.io.robot import Z_AXIS, Array

__all__ = ["FIXED", "Coordinate", "Fit", "fit_chain"]

PARALLEL = 1e-6  # sine of the angle up to which two axes are one [rad]: files give axes with six digits or more


@dataclass(frozen=True)
class Coordinate:
    """The place of a coordinate in the file: MJCF joint, its degree of freedom (0 for hinge and slide), and the sign."""

    joint: int
    component: int
    sign: float


@dataclass(frozen=True)
class Fit:
    """A joint of the table in the frame of the MJCF body that it moves."""

    kind: str
    anchor: Array  #: (3,) in the frame of the MJCF body [m]
    frame: Array  #: (3, 3), columns: axes of our body (at coordinate zero, of the joint) in the axes of the MJCF body
    axis: Array  #: (3,) in the joint frame
    coordinates: tuple[Coordinate, ...]


FIXED = Fit("Fixed", np.zeros(3), np.eye(3), Z_AXIS, ())


def fit_chain(model: Any, body: int, actuated: frozenset[int]) -> tuple[Fit, ...]:
    """The joints that move `body` one after another as its MJCF joints do; each takes as many of these as it can.

    Args:
        actuated: MJCF joints with an actuator.
    """
    first = int(model.body_jntadr[body])
    left = list(range(first, first + int(model.body_jntnum[body])))
    chain = []
    while left:
        fits = (_fit(model, left[:count], actuated) for count in range(len(left), 0, -1))
        chain.append(next(fit for fit in fits if fit is not None))  # a single joint always fits
        left = left[len({c.joint for c in chain[-1].coordinates}) :]
    return tuple(chain) or (FIXED,)


def _fit(model: Any, numbers: Sequence[int], actuated: frozenset[int]) -> Fit | None:
    """The one joint that moves its child as these consecutive MJCF joints do, or None."""
    types = import_mujoco().mjtJoint
    kinds = {j: types(int(model.jnt_type[j])) for j in numbers}
    if types.mjJNT_FREE in kinds.values():
        (j,) = kinds  # MuJoCo refuses further ones
        return Fit("Floating", np.zeros(3), np.eye(3), Z_AXIS, tuple(Coordinate(j, i, 1.0) for i in range(6)))
    slides = [j for j in numbers if kinds[j] == types.mjJNT_SLIDE]
    hinges = [j for j in numbers if kinds[j] == types.mjJNT_HINGE]
    balls = [j for j in numbers if kinds[j] == types.mjJNT_BALL]
    if len(hinges) + len(balls) > 1 or not _independent(model, slides, [*hinges, *balls]):
        return None
    free = len(slides), 3 * len(balls) + len(hinges)
    kind = next(name for name, rows in JOINT_TYPES.items() if rows == free)
    anchor = np.array(model.jnt_pos[[*hinges, *balls][0]]) if hinges or balls else np.zeros(3)
    best: tuple[tuple[float, ...], Fit] | None = None
    for rank, frame in enumerate(_frames(model, slides)):
        for axis in _axes(frame, model, slides, hinges):
            matches = _match(frame, axis, model, slides, hinges, balls)
            if matches is None:
                continue
            flipped = [c.joint for c in matches if c.sign < 0]
            order = [c.joint for c in matches]
            backward = sum(j in slides for j in flipped)  # better an angle than a height
            key = (sum(j in actuated for j in flipped), rank > 0, len(flipped), backward, order != sorted(order), axis.sum() < 0)
            if best is None or key < best[0]:
                best = key, Fit(kind, anchor, frame, axis, tuple(matches))
    return best and best[1]


def _independent(model: Any, slides: Sequence[int], turning: Sequence[int]) -> bool:
    """Whether slides are perpendicular, and no joint before one of them turns its axis."""
    for n, i in enumerate(slides):
        if any(abs(float(model.jnt_axis[i] @ model.jnt_axis[j])) > PARALLEL for j in slides[n + 1 :]):
            return False
    ball = int(import_mujoco().mjtJoint.mjJNT_BALL)
    for j in turning:
        for slide in slides:
            turns = model.jnt_type[j] == ball or np.linalg.norm(np.cross(model.jnt_axis[j], model.jnt_axis[slide])) > PARALLEL
            if j < slide and turns:
                return False
    return True


def _frames(model: Any, slides: Sequence[int]) -> Iterator[Array]:
    """Candidates for the axes of our body: the axes of the MJCF body, and frames along the axes of two or three slides."""
    yield np.eye(3)
    for order in permutations(slides) if len(slides) > 1 else ():
        x = model.jnt_axis[order[0]]
        z = np.cross(x, model.jnt_axis[order[1]])
        z = z / np.linalg.norm(z)
        yield np.stack((x, np.cross(z, x), z), axis=1)


def _axes(frame: Array, model: Any, slides: Sequence[int], hinges: Sequence[int]) -> Iterator[Array]:
    """Candidates for `axis`: the direction of a single coordinate, or the normal of two."""
    normals = [model.jnt_axis[group[0]] for group in (slides, hinges) if len(group) == 1]
    if len(slides) == 2:
        normal = np.cross(model.jnt_axis[slides[0]], model.jnt_axis[slides[1]])
        normals.insert(0, normal / np.linalg.norm(normal))
    for axis in normals or [frame[:, 2]]:
        yield frame.T @ axis
        yield -frame.T @ axis


def _match(
    frame: Array, axis: Array, model: Any, slides: Sequence[int], hinges: Sequence[int], balls: Sequence[int]
) -> list[Coordinate] | None:
    """MJCF joints in the order of our coordinates, or None where one of them is along none of our directions."""
    matches = []
    for group in (slides, hinges):
        left = {j: frame.T @ model.jnt_axis[j] for j in group}
        for row in _rows(len(group), axis):
            j = next((j for j, direction in left.items() if np.linalg.norm(np.cross(row, direction)) <= PARALLEL), None)
            if j is None:
                return None
            matches.append(Coordinate(j, 0, float(np.sign(row @ left.pop(j)))))
    matches += [Coordinate(j, i, 1.0) for j in balls for i in range(3)]  # a ball joint turns alike about all axes
    return matches


def _rows(free: int, axis: Array) -> Array:
    """Directions of 0 to 3 free coordinates in the joint frame, as `StandardJoint` has them."""
    if free == 2:
        return np.asarray(orthonormal_complement(torch.as_tensor(axis)).numpy())
    return np.zeros((0, 3)) if free == 0 else axis[None] if free == 1 else np.eye(3)

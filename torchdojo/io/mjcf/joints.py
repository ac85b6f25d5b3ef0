"""The joints that one MJCF body has toward its parent, as one joint of `torchdojo.elements.joints.JOINT_TYPES`.

MJCF gives a body a list of joints that act one after another. Here, one joint stands between two bodies. Its coordinates are along `axis`,
across it, or along the axes of the joint frame, which are the child's at coordinate zero. So the body frame is turned until the axes of the
file are such directions, and a coordinate may have to run backward. Several frames may fit. The best one keeps, in this order, the
sign of actuated coordinates, the axes of the MJCF body, the other signs, and the order of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import torch

from torchdojo.elements.element import orthonormal_complement
from torchdojo.elements.joints import JOINT_TYPES
from torchdojo.io.mjcf.model import import_mujoco
from torchdojo.io.robot import Z_AXIS, Array

__all__ = ["Coordinate", "Fit", "fit_joint"]

PARALLEL = 1e-6  # sine of the angle up to which two axes are one [rad]: files give axes with six digits or more
SAME_POINT = 1e-9  # [m]
SUPPORTED = (
    "Supported on one body: slides along perpendicular axes and then hinges about perpendicular axes through one point (or a ball), "
    "at most three each; a hinge with a slide is about or perpendicular to it, as in the joints of td.joints.JOINT_TYPES. Otherwise "
    "put a body with a small mass between them"
)


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


def fit_joint(model: Any, body: int, actuated: frozenset[int]) -> Fit:
    """The one joint that moves `body` as its MJCF joints do. `actuated`: MJCF joints with an actuator.

    Raises:
        ValueError: no joint of the table does; the message says what does not fit.
    """
    types = import_mujoco().mjtJoint
    numbers = range(model.body_jntadr[body], model.body_jntadr[body] + model.body_jntnum[body])
    kinds = {j: types(int(model.jnt_type[j])) for j in numbers}
    if not kinds:
        return Fit("Fixed", np.zeros(3), np.eye(3), Z_AXIS, ())
    if types.mjJNT_FREE in kinds.values():
        (j,) = kinds  # MuJoCo refuses further ones
        return Fit("Floating", np.zeros(3), np.eye(3), Z_AXIS, tuple(Coordinate(j, i, 1.0) for i in range(6)))
    slides = [j for j in numbers if kinds[j] == types.mjJNT_SLIDE]
    hinges = [j for j in numbers if kinds[j] == types.mjJNT_HINGE]
    balls = [j for j in numbers if kinds[j] == types.mjJNT_BALL]
    _check_order(model, slides, hinges, balls)
    rotations = 3 * len(balls) + len(hinges)
    if len(slides) > 3 or rotations > 3:
        raise ValueError(f"{len(slides)} translations and {rotations} rotations; allowed: up to 3 of each")
    kind = next(name for name, free in JOINT_TYPES.items() if free == (len(slides), rotations))
    best: tuple[tuple[float, ...], Fit] | None = None
    anchor = np.array(model.jnt_pos[balls[0]]) if balls else _anchor(model, hinges)
    for rank, frame in enumerate(_frames(model, slides, hinges)):
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
    if best is None:
        raise ValueError(f"their axes are not those of a {kind} joint")
    return best[1]


def _check_order(model: Any, slides: list[int], hinges: list[int], balls: list[int]) -> None:
    """Refuse what no joint of ours has: axes that are not perpendicular, and a slide along an axis that a joint before it turns."""
    for group, what in ((slides, "slides"), (hinges, "hinges")):
        for n, i in enumerate(group):
            for j in group[n + 1 :]:
                if abs(float(model.jnt_axis[i] @ model.jnt_axis[j])) > PARALLEL:
                    raise ValueError(f"the {what} {_name(model, i)} and {_name(model, j)} are not perpendicular")
    for slide in slides:
        for j in [*hinges, *balls]:
            if j < slide and (j in balls or np.linalg.norm(np.cross(model.jnt_axis[j], model.jnt_axis[slide])) > PARALLEL):
                raise ValueError(f"the slide {_name(model, slide)} comes after {_name(model, j)}, which turns its axis")


def _name(model: Any, joint: int) -> str:
    return repr(model.joint(joint).name or f"joint {joint}")


def _anchor(model: Any, hinges: list[int]) -> Array:
    """The point that all hinge axes go through; the origin without hinges."""
    if not hinges:
        return np.zeros(3)
    points, axes = model.jnt_pos[hinges], model.jnt_axis[hinges]
    if len(hinges) == 1 or np.abs(points - points[0]).max() <= SAME_POINT:
        return np.array(points[0])
    # least squares of the distances to the lines
    projections = np.eye(3) - axes[:, :, None] * axes[:, None, :]
    point = np.linalg.solve(projections.sum(0), (projections @ points[:, :, None]).sum(0))[:, 0]
    distance = np.linalg.norm((projections @ (point - points)[:, :, None])[:, :, 0], axis=1)
    if distance.max() > SAME_POINT:
        names = ", ".join(_name(model, j) for j in hinges)
        raise ValueError(f"the axes of the hinges {names} do not meet in one point: the nearest one is {distance.max():.3g} m off")
    return np.asarray(point)


def _frames(model: Any, slides: list[int], hinges: list[int]) -> Iterator[Array]:
    """Candidates for the axes of our body: the axes of the MJCF body, and frames along the axes of two or three joints."""
    yield np.eye(3)
    for group in (hinges, slides):
        for order in permutations(group) if len(group) > 1 else ():
            x = model.jnt_axis[order[0]]
            z = np.cross(x, model.jnt_axis[order[1]])
            z = z / np.linalg.norm(z)
            yield np.stack((x, np.cross(z, x), z), axis=1)


def _axes(frame: Array, model: Any, slides: list[int], hinges: list[int]) -> Iterator[Array]:
    """Candidates for `axis`: the direction of a single coordinate, or the normal of two."""
    normals = []
    for group in (slides, hinges):
        if len(group) == 1:
            normals.append(model.jnt_axis[group[0]])
        elif len(group) == 2:
            normal = np.cross(model.jnt_axis[group[0]], model.jnt_axis[group[1]])
            normals.append(normal / np.linalg.norm(normal))
    for axis in normals or [frame[:, 2]]:
        yield frame.T @ axis
        yield -frame.T @ axis


def _match(frame: Array, axis: Array, model: Any, slides: list[int], hinges: list[int], balls: list[int]) -> list[Coordinate] | None:
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

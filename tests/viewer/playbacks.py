"""Playbacks for the tests of what draws them, made by hand, so that no step is taken."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

import torchdojo as td
from torchdojo.viewer import Part, Playback, Scene

LINK = {"mass": 0.5, "inertia": (4e-3, 4e-3, 4e-4), "shape": td.Capsule(0.02, 0.26)}
RED = (0.9, 0.05, 0.05, 1.0)


def ball(frames: int = 3, label: str = "", color: tuple[float, ...] = RED) -> Playback:
    """A red ball of 0.1 m that moves by 0.1 m along x in each frame of 0.1 s, over the ground."""
    scene = Scene(("ball",), (Part("sphere", (0.1,), "ball", color=color), Part("plane", (), None, role="ground")))
    positions = np.zeros((frames, 1, 3))
    positions[:, 0, 0], positions[..., 2] = 0.1 * np.arange(frames), 0.5
    return Playback(scene, 0.1 * np.arange(frames), positions, np.tile((1.0, 0.0, 0.0, 0.0), (frames, 1, 1)), label)


def quadruped(frames: int, color: tuple[float, ...] = RED) -> Playback:
    """The built-in quadruped, standing, then carried along a line while it turns."""
    mech = td.models.quadruped()
    z = mech.initial_state(pose="home", on="ground").reshape(-1, 13).numpy()
    scene = Scene.of(mech)
    scene = replace(scene, parts=tuple(replace(part, color=part.color if part.body is None else color) for part in scene.parts))
    turn = np.linspace(0.0, 1.0, frames)
    cos, sin, zero = np.cos(turn), np.sin(turn), np.zeros(frames)
    rotation = np.stack((cos, -sin, zero, sin, cos, zero, zero, zero, zero + 1), -1).reshape(-1, 1, 3, 3)
    half = np.stack((np.cos(turn / 2), zero, zero, np.sin(turn / 2)), -1)[:, None]
    positions = (rotation @ z[:, :3, None])[..., 0] + turn[:, None, None] * (1.0, 0.5, 0.3)
    w, v, ow, ov = half[..., :1], half[..., 1:], z[:, 6:7], z[:, 7:10]
    turned = np.concatenate((w * ow - (v * ov).sum(-1, keepdims=True), w * ov + ow * v + np.cross(v, ov)), -1)
    return Playback(scene, 0.01 * np.arange(frames), positions, turned, "quadruped")


def with_gap(playback: Playback, frame: int) -> Playback:
    """The same, with a NaN in one frame."""
    positions = playback.positions.copy()
    positions[frame, 0, 1] = np.nan
    return replace(playback, positions=positions)


def surface_points(playback: Playback, frame: int) -> np.ndarray:
    """Points (n, 3) in the world whose hull is about that of the bodies: corners of boxes, circles of cylinders, great circles of balls."""
    points = []
    around = np.linspace(0.0, 2 * np.pi, 24, endpoint=False)
    ring = np.stack((np.cos(around), np.sin(around), 0 * around), -1)
    ball = np.concatenate([ring @ turn for turn in (np.eye(3), np.eye(3)[[0, 2, 1]], np.eye(3)[[2, 0, 1]])])
    corners = np.array([[x, y, z] for x in (-0.5, 0.5) for y in (-0.5, 0.5) for z in (-0.5, 0.5)])
    for part in playback.scene.parts:
        if part.body is None:
            continue
        if part.kind == "box":
            own = corners * part.size
        elif part.kind == "sphere":
            own = ball * part.size[0]
        else:
            base = ring if part.kind == "cylinder" else ball
            own = np.concatenate([base * part.size[0] + (0, 0, side * part.size[1] / 2) for side in (-1, 1)])
        index = playback.scene.bodies.index(part.body)
        own = _rotated(np.array(part.orientation), own) + part.position
        points.append(_rotated(playback.orientations[frame, index], own) + playback.positions[frame, index])
    return np.concatenate(points)


def _rotated(q: np.ndarray, points: np.ndarray) -> np.ndarray:
    return points + 2 * np.cross(q[1:], np.cross(q[1:], points) + q[0] * points)


def strung() -> tuple[td.Mechanism, torch.Tensor]:
    """Two links that bend over 30 frames, a string around the elbow that branches behind a pulley, and one without surfaces."""
    mech = td.Mechanism(
        {"upper": td.Body(**LINK), "lower": td.Body(**LINK)},
        {
            "shoulder": td.Revolute(None, "upper", axis=(0, 1, 0), child_anchor=(0, 0, 0.15)),
            "elbow": td.Revolute("upper", "lower", axis=(0, 1, 0), parent_anchor=(0, 0, -0.15), child_anchor=(0, 0, 0.15)),
        },
    )
    along_y = (0.7071067811865476, -0.7071067811865476, 0.0, 0.0)
    pin = td.Wrap(td.Site("upper", (0, 0, -0.15), along_y), 0.04, "cylinder", side=td.Site("upper", (0.1, 0.0, -0.15)))
    upper, lower, hand = td.Site("upper", (0.03, 0.01, 0.05)), td.Site("lower", (0.03, -0.01, 0.09)), td.Site("lower", (0, 0, -0.1))
    mech.tendons["biceps"] = td.SpatialTendon([upper, pin, lower, td.Pulley(2.0), td.Site(None, (0.2, 0, 0)), hand], damping=1.0)
    mech.tendons["straight"] = td.SpatialTendon([upper, hand], damping=1.0)
    q = torch.stack((torch.linspace(0.0, 0.5, 30), torch.linspace(-1.4, 1.0, 30)), dim=-1).double()
    return mech, mech.to_maximal(q, torch.zeros_like(q))

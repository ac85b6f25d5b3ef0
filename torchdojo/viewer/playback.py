"""What moves: the poses of a scene over time, with contact forces and curves, as plain numbers in SI units and world axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from torchdojo.viewer.scene import Scene

__all__ = ["Playback"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Playback:
    """One motion of one scene, K frames.

    times: (K,) [s], increasing. positions: (K, bodies, 3) [m] of centers of mass. orientations: (K, bodies, 4) wxyz, body to world.
    contact_points: (K, contacts, 3) [m] and contact_forces: (K, contacts, 3) [N] on the body, in the mean of the step that ends at
    the frame; None where they are not known. curves: numbers to plot against time, "energy [J]" -> (K,), each with its unit.
    NaN leaves a gap in a curve. A frame whose poses are not finite is a gap: it keeps its time, and nothing is drawn.
    """

    scene: Scene
    times: Array
    positions: Array
    orientations: Array
    label: str = ""
    contact_points: Array | None = None
    contact_forces: Array | None = None
    curves: Mapping[str, Array] = field(default_factory=dict)

    @property
    def num_frames(self) -> int:
        return len(self.times)

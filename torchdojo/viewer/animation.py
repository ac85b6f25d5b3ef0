"""`Mechanism.animate`: trajectories of one mechanism as a page, in a file or in a notebook."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from torchdojo.engine.minimal_steps import MinimalTrajectory
from torchdojo.engine.rollout import Trajectory
from torchdojo.mechanism import Mechanism
from torchdojo.viewer.page import page_html, write_page
from torchdojo.viewer.playback import Motion, Playback

__all__ = ["Animation", "animate", "playbacks_of"]

LARGEST_BATCH = 64
HEIGHT = 560  # pixels in a notebook


@dataclass(frozen=True, repr=False)
class Animation:
    """A page: a notebook shows it where it is the last value of a cell. path: its file, if it has one."""

    playbacks: tuple[Playback, ...]
    path: Path | None = None
    side_by_side: bool = False
    title: str = ""

    def page(self) -> str:
        """The page as one text."""
        return page_html(self.playbacks, side_by_side=self.side_by_side, title=self.title or "torchdojo")

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{html.escape(self.page())}" width="100%" height="{HEIGHT}" style="border: 0"></iframe>'

    def __repr__(self) -> str:
        where = "for a notebook" if self.path is None else str(self.path)
        return f"Animation({len(self.playbacks)} x {self.playbacks[0].num_frames} frames, {where})"


def animate(
    mechanism: Mechanism,
    trajectories: Motion | Sequence[Motion],
    path: str | Path | None,
    *,
    labels: Sequence[str],
    repeat: int,
    environments: Sequence[int] | None,
    side_by_side: bool | None,
    title: str,
) -> Animation:
    """`Mechanism.animate`."""
    playbacks = tuple(playbacks_of(mechanism, trajectories, labels=labels, repeat=repeat, environments=environments))
    batch = not isinstance(trajectories, list) and len(playbacks) > 1
    apart = batch if side_by_side is None else side_by_side
    written = None if path is None else write_page(playbacks, path, side_by_side=apart, title=title)
    return Animation(playbacks, written, apart, title)


def playbacks_of(
    mechanism: Mechanism,
    trajectories: Motion | Sequence[Motion],
    *,
    labels: Sequence[str] = (),
    repeat: int = 1,
    environments: Sequence[int] | None = None,
) -> list[Playback]:
    """Playbacks of a list of trajectories, one each, or of the environments of one trajectory.

    Raises:
        ValueError: no trajectory, labels of another number, more environments than a page can show; and as `Playback.of`.
    """
    if isinstance(trajectories, Trajectory | MinimalTrajectory | Tensor | np.ndarray):
        states = trajectories.z if isinstance(trajectories, Trajectory | MinimalTrajectory) else trajectories
        shape = tuple(states.shape[:-2])
        if environments is None and math.prod(shape) > LARGEST_BATCH:
            raise ValueError(
                f"the batch {shape} has more environments than a page can show; choose up to {LARGEST_BATCH}: environments=range(16)"
            )
        names = labels or ([""] if environments is None and not shape else ())
        return Playback.batch(mechanism, trajectories, environments, labels=names, repeat=repeat)
    if not trajectories:
        raise ValueError("got no trajectory; give one, or a list of at least one")
    names = list(labels) or [str(i) for i in range(len(trajectories))]
    if len(names) != len(trajectories):
        raise ValueError(f"got {len(names)} labels for {len(trajectories)} trajectories; give one for each")
    if environments is not None and len(environments) != 1:
        raise ValueError(f"got environments={list(environments)} for a list of trajectories; give one environment, of all of them")
    index = None if environments is None else environments[0]
    pairs = zip(trajectories, names, strict=True)
    return [Playback.of(mechanism, one, label=name, environment=index, repeat=repeat) for one, name in pairs]

"""Figures of a fit (extra ``torchdojo[plots]``): errors against time, geometry, rollouts beside recordings.

The drawn numbers come from functions without matplotlib: `error_quantiles`, `outlines`, `quartile_throws` and `motions`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.contact import Contact
from torchdojo.elements.joints import Joint
from torchdojo.identification.evaluation import OpenLoop, trajectory_means
from torchdojo.identification.fitting import FitReport
from torchdojo.identification.recordings import Recordings
from torchdojo.mechanism import Mechanism
from torchdojo.runs.figures import available
from torchdojo.state.layout import ORIENTATION, POSITION, STATE_SIZE

__all__ = ["available", "draw", "error_quantiles", "motions", "outlines", "quartile_throws"]

QUANTILES = (0.1, 0.5, 0.9)
COLORS = {"nominal": "tab:gray", "pure": "tab:orange", "fitted": "tab:blue"}
VIEWS = {"x": 0, "y": 1, "z": 2}


def error_quantiles(errors: Tensor, offsets: Tensor, dt: float, quantiles: tuple[float, ...] = QUANTILES) -> tuple[np.ndarray, np.ndarray]:
    """Times (T,) [s] since the first sample, and quantiles (Q, T) over trajectories of errors (N,) of their samples.

    Times end where fewer than half of the trajectories last: quantiles of few trajectories say little.
    """
    lengths = offsets.diff()
    steps = int(lengths.sort(descending=True).values[(len(lengths) - 1) // 2])
    values = torch.stack([torch.quantile(errors[offsets[:-1][lengths > t] + t], errors.new_tensor(quantiles)) for t in range(steps)], dim=1)
    return dt * np.arange(steps), values.numpy()


class Outline(NamedTuple):
    """Contact points and joints of a mechanism at zero coordinates, world frame [m].

    centers (C, 3), radii (C,) and bodies (C,) of the contact points; joints (J, 3): their places.
    """

    centers: np.ndarray
    radii: np.ndarray
    body: np.ndarray
    joints: np.ndarray

    def hull(self, body: int, view: tuple[int, int], samples: int = 64) -> np.ndarray:
        """Corners (K, 2) of the convex hull of a body's contact spheres, seen along the axis that is not in `view`."""
        angle = 2 * np.pi * np.arange(samples) / samples
        circle = np.stack((np.cos(angle), np.sin(angle)), axis=-1)
        chosen = self.body == body
        points = self.centers[chosen][:, None, list(view)] + self.radii[chosen][:, None, None] * circle
        return convex_hull(points.reshape(-1, 2))


def outlines(mech: Mechanism) -> Outline:
    """Geometry of the contact points against fixed surfaces, and of the joints."""
    with torch.no_grad():
        z = mech.to_maximal(mech.gravity.new_zeros(mech.num_coordinates)).unflatten(-1, (-1, STATE_SIZE))
        names = list(mech.bodies)
        x, q = z[:, POSITION], z[:, ORIENTATION]

        def placed(body: str, point: Tensor) -> Tensor:
            i = names.index(body)
            return x[i] + quat.rotate(q[i], point)

        contacts = [c for c in cast(list[Contact], list(mech.contacts.values())) if c.other is None]
        joints = [j for j in cast(list[Joint], list(mech.joints.values())) if j.parent is not None]
        return Outline(
            np.array([placed(c.body, c.point).numpy() for c in contacts]).reshape(-1, 3),
            np.array([float(c.radius) for c in contacts]),
            np.array([names.index(c.body) for c in contacts], dtype=int),
            np.array([placed(cast(str, j.parent), cast(Tensor, j.parent_anchor)).numpy() for j in joints]).reshape(-1, 3),
        )


def convex_hull(points: np.ndarray) -> np.ndarray:
    """Corners (K, 2) of the convex hull of points (n, 2), counter-clockwise (Andrew 1979)."""
    points = np.unique(points, axis=0)

    def chain(ordered: np.ndarray) -> list[np.ndarray]:
        kept: list[np.ndarray] = []
        for p in ordered:
            while len(kept) > 1 and np.linalg.det(np.stack((kept[-1] - kept[-2], p - kept[-2]))) <= 0:
                kept.pop()
            kept.append(p)
        return kept[:-1]

    return np.array(chain(points) + chain(points[::-1])) if len(points) > 2 else points


def quartile_throws(rollout: OpenLoop) -> list[int]:
    """Three trajectories, at the quartiles of the mean error."""
    order = trajectory_means(rollout.main, rollout.offsets).argsort(stable=True).tolist()
    return [order[round(part * (len(order) - 1))] for part in (0.25, 0.5, 0.75)]


def motions(body: Tensor) -> dict[str, np.ndarray]:
    """Motion of one body (T, 13) along a trajectory: height [m], horizontal distance [m] and angle [degrees] from the first sample."""
    turn = quat.multiply(quat.conjugate(body[:1, ORIENTATION]), body[:, ORIENTATION])
    return {
        "height [m]": body[:, 2].numpy(),
        "horizontal distance [m]": torch.linalg.vector_norm(body[:, :2] - body[:1, :2], dim=-1).numpy(),
        "rotation since the start [°]": torch.rad2deg(torch.linalg.vector_norm(quat.rotation_vector(turn), dim=-1)).numpy(),
    }


def draw(report: FitReport, folder: Path) -> list[Path]:
    """Write open_loop_error.png, geometry.png and rollouts.png, which show fitted beside nominal on throws held back.

    Without recorded bodies, there is no rollouts.png, which shows the motion of one.
    """
    data, rollouts = report.recordings["validation"], {name: parts["validation"] for name, parts in report.rollouts.items()}
    figures = {
        "open_loop_error": _errors(rollouts, data.dt),
        "geometry": _geometry({name: outlines(model.baked()) for name, model in report.models.items()}),
    }
    if data.num_bodies:
        figures["rollouts"] = _rollouts(report, rollouts, data)
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{name}.png")
        figure.savefig(paths[-1], dpi=120)
    return paths


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")  # its own, not pyplot's: nothing global
    FigureCanvasAgg(figure)
    return figure


def _errors(rollouts: dict[str, OpenLoop], dt: float) -> Any:
    kinds = [
        ("position", "position error [mm]", 1e3),
        ("rotation", "rotation error [°]", 180 / np.pi),
        ("joint", "joint error [°]", 180 / np.pi),
    ]
    kinds = [kind for kind in kinds if getattr(rollouts["fitted"], kind[0]).numel()]
    figure = _figure(4.5 * len(kinds), 3.5)
    for axes, (field, label, unit) in zip(np.atleast_1d(figure.subplots(1, len(kinds))), kinds, strict=True):
        for name, rollout in rollouts.items():
            time, (low, middle, high) = error_quantiles(unit * getattr(rollout, field), rollout.offsets, dt)
            axes.fill_between(time, low, high, alpha=0.2, color=COLORS[name], linewidth=0)
            axes.plot(time, middle, label=name, color=COLORS[name])
        axes.set(xlabel="time since the first sample [s]", ylabel=label)
        axes.grid(alpha=0.3)
    axes.legend()
    figure.suptitle(f"open loop, throws held back: median, and {QUANTILES[0]:.0%} to {QUANTILES[-1]:.0%} of them")
    return figure


def _geometry(shapes: dict[str, Outline]) -> Any:
    """Two views, and the contact that has moved most, magnified."""
    figure = _figure(12, 4)
    nominal, fitted = shapes["nominal"], shapes["fitted"]
    moved = np.linalg.norm(fitted.centers - nominal.centers, axis=-1) + np.abs(fitted.radii - nominal.radii)
    for axes, (right, up, zoom) in zip(figure.subplots(1, 3), (("x", "z", False), ("x", "y", False), ("x", "z", True)), strict=True):
        view = VIEWS[right], VIEWS[up]
        for name, shape in shapes.items():
            line = {"color": COLORS[name], "linestyle": "--" if name == "nominal" else "-"}
            for body in np.unique(shape.body):
                corners = 1e3 * shape.hull(body, view)
                axes.plot(*np.concatenate((corners, corners[:1])).T, **line)
            axes.plot(*1e3 * shape.joints[:, list(view)].T, "+", color=COLORS[name], markersize=12)
            axes.plot([], [], label=name, **line)
        axes.set(xlabel=f"{right} [mm]", ylabel=f"{up} [mm]")
        axes.set_aspect("equal", adjustable="box" if zoom else "datalim")
        if zoom and len(moved):
            i = int(moved.argmax())
            center, reach = 1e3 * fitted.centers[i, list(view)], 1e3 * max(moved[i], 1.5 * fitted.radii[i], 1e-3)
            axes.set(xlim=center[0] + reach * np.array((-1, 1)), ylim=center[1] + reach * np.array((-1, 1)))
            axes.set_title("the contact that moved most")
    axes.legend()
    figure.suptitle("hulls of the contact points, at zero coordinates")
    return figure


def _rollouts(report: FitReport, rollouts: dict[str, OpenLoop], data: Recordings) -> Any:
    throws = quartile_throws(rollouts["fitted"])
    figure = _figure(4 * len(throws), 7)
    axes = figure.subplots(3, len(throws), sharex="col", squeeze=False)
    for column, throw in zip(axes.T, throws, strict=True):
        rows = slice(int(data.offsets[throw]), int(data.offsets[throw + 1]))
        lines = {"recorded": data.bodies()[rows, 0]}
        lines |= {name: rollout.bodies[rows, 0] for name, rollout in rollouts.items()}
        for name, body in lines.items():
            for place, (label, values) in zip(column, motions(body).items(), strict=True):
                place.plot(data.dt * np.arange(len(values)), values, color=COLORS.get(name, "black"), label=name)
                place.set_ylabel(label)
                place.grid(alpha=0.3)
        column[0].set_title(f"throw {int(data.throw_id[throw])}")
        column[-1].set_xlabel("time [s]")
    axes[0, 0].legend()
    figure.suptitle("throws held back, at the quartiles of the fitted object's position error")
    return figure

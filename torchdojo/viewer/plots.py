"""Figures of matplotlib (extra ``torchdojo[plots]``): curves of playbacks against time, and gradients along a rollout as a heat map.

Figures are their own, not pyplot's, so that nothing is global. Notebooks show them, and `figure.savefig(path)` writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from torchdojo.engine.rollout import Trajectory
from torchdojo.mechanism import Mechanism
from torchdojo.state.layout import TANGENT_SIZE
from torchdojo.viewer.animation import playbacks_of
from torchdojo.viewer.playback import Motion, Playback
from torchdojo.viewer.renderer import required
from torchdojo.viewer.stage import PALETTE, as_playbacks, finite_frames

__all__ = ["gradient_sizes", "plot", "plot_gradients"]

Array = NDArray[np.float64]

#: Parts of the tangent of a body, in the order of `Mechanism.jacobians`, each with its unit.
TANGENT = (("position", "m"), ("velocity", "m/s"), ("rotation", "rad"), ("angular velocity", "rad/s"))
STYLES = ("-", "--", ":", "-.")
#: Curves that stand first, by what their names say; others follow in the order of the playback.
ORDER = ("energy", "distance", "force", "impulse", "iterations")
#: Contacts whose impulses are drawn one by one; more would hide each other, and their largest is drawn.
MOST_CONTACTS = 8
#: Steps whose Jacobians are in memory at once: 50 of Atlas have 60 MB.
CHUNK = 50


def plot(shown: Playback | Motion | Sequence[Playback] | Sequence[Motion], mechanism: Mechanism | None = None, *, title: str = "") -> Any:
    """Energy, distances, impulses of contacts, iterations, and all other curves of playbacks against time.

    Args:
        shown: playbacks; or, together with the `mechanism` that made it, what `Mechanism.animate` takes: a trajectory, states
            (..., K, 13 nb) alone, or a list of these. Each environment of a batch is a playback.
        mechanism: of the trajectory or states.

    Returns:
        A matplotlib `Figure` with a panel for each unit. Steps that failed are marked in red, frames that are not finite in gray.

    Raises:
        ImportError: matplotlib is missing. ValueError: 0 frames, a trajectory or states without their mechanism, or of
            another one.
    """
    listed = shown if isinstance(shown, (list, tuple)) and not hasattr(shown, "_fields") else [shown]
    if any(isinstance(one, Playback) for one in listed) or not listed:
        playbacks = as_playbacks(cast(Any, shown))
    elif mechanism is None:
        raise ValueError("plot: got a trajectory or states alone; give the mechanism that made them, too: plot(trajectory, mechanism)")
    else:
        playbacks = tuple(playbacks_of(mechanism, cast(Any, shown)))
        if len(playbacks) == 1:
            playbacks = (Playback(**{**vars(playbacks[0]), "label": ""}),)
    curves = [dict(_curves(playback, alone=len(playbacks) == 1)) for playback in playbacks]
    panels: dict[str, list[str]] = {}
    for name in sorted({name: None for named in curves for name in named}, key=_rank):
        panels.setdefault(_panel(name), []).append(name)
    if not panels:
        raise ValueError("plot: got playbacks with no curves and no contact forces; Playback.of(mechanism, trajectory) has both")
    figure = _figure(8.0, 1.0 + 1.7 * len(panels))
    several = len(playbacks) > 1
    for axes, (panel, names) in zip(figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0], panels.items(), strict=True):
        for i, (playback, named) in enumerate(zip(playbacks, curves, strict=True)):
            for j, name in enumerate(name for name in names if name in named):
                words = [playback.label or str(i)] * several + [re.sub(r":? *(impulse|force)? \[.*\]$", "", name)] * (len(names) > 1)
                style = {"color": PALETTE[(i if several else j) % len(PALETTE)], "linestyle": STYLES[j % 4] if several else "-"}
                axes.plot(playback.times, named[name], linewidth=1.2, label=", ".join(words), **style)
            _mark(axes, playback)
        axes.set_ylabel(panel if len(names) > 1 else names[0], fontsize="small")
        axes.grid(alpha=0.3)
        if several or len(names) > 1:
            axes.legend(fontsize="x-small", ncols=2)
    figure.axes[-1].set_xlabel("time [s]")
    if title or (len(playbacks) == 1 and playbacks[0].label):
        figure.suptitle(title or playbacks[0].label)
    return figure


def plot_gradients(
    mechanism: Mechanism, trajectory: Trajectory, *, wrt: str = "u", inputs: Sequence[str] = (), environment: int = 0, title: str = ""
) -> Any:
    """A heat map of the derivatives of each step of a rollout: which bodies an input moves, when, and how much.

    The four panels are position, velocity, rotation and angular velocity after the step. A row is a body, a column a step, and the color
    the size (the Frobenius norm) of the derivative, on a logarithmic scale. Steps without a derivative, which failed, are gray.

    Args:
        mechanism, trajectory: of `Mechanism.rollout`; with ``keep_solutions=True``, its solutions spare the iterations.
        wrt: "u", the derivative ∂z⁺/∂u with respect to the input, or "z", ∂z⁺/∂z on the tangent space of the state.
        inputs: names of joints whose inputs count; all, if none are given. environment: of a batch.

    Raises:
        ImportError: matplotlib is missing. ValueError: unknown names, a mechanism without inputs, a trajectory of controls.
    """
    required("matplotlib", "plotting", "plots")
    sizes = gradient_sizes(mechanism, trajectory, wrt=wrt, inputs=inputs, environment=environment)
    times = float(mechanism.timestep.detach().reshape(-1)[0]) * np.arange(len(sizes) + 1)
    names = list(mechanism.bodies)
    colors = required("matplotlib.colors", "plotting", "plots")
    figure = _figure(11.0, 1.6 + 2 * max(1.0, 0.22 * len(names)))
    for k, (axes, (part, unit)) in enumerate(zip(figure.subplots(2, 2, sharex=True, sharey=True).flat, TANGENT, strict=True)):
        values = np.ma.masked_invalid(sizes[:, :, k].T)
        highest = float(values.max()) if values.count() and values.max() > 0.0 else 1.0
        norm = colors.LogNorm(1e-5 * highest, highest)
        picture = axes.pcolormesh(times, np.arange(len(names) + 1), np.ma.maximum(values, 1e-5 * highest), norm=norm, rasterized=True)
        axes.set_facecolor("0.75")
        axes.set_title(part, fontsize="medium")
        axes.set_yticks(np.arange(len(names)) + 0.5, names, fontsize="small")
        axes.invert_yaxis() if k == 0 else None
        figure.colorbar(picture, ax=axes, label=f"{unit} per N or N m" if wrt == "u" else f"{unit} per unit of the state")
    for axes in figure.axes[2:4]:
        axes.set_xlabel("start of the step [s]")
    figure.suptitle(title or ("∂z⁺/∂u" + (f" of {', '.join(inputs)}" if inputs else "") if wrt == "u" else "∂z⁺/∂z"))
    return figure


def gradient_sizes(
    mechanism: Mechanism, trajectory: Trajectory, *, wrt: str = "u", inputs: Sequence[str] = (), environment: int = 0
) -> Array:
    """The numbers of `plot_gradients`, (T, bodies, 4): Frobenius norms of the derivatives of position, velocity, rotation and angular
    velocity after each step; NaN where a step has no derivative."""
    columns = _columns(mechanism, wrt, inputs)
    z, u, warm = (_environment(value, environment, trajectory.z.shape[:-2]) for value in (trajectory.z, trajectory.u, trajectory.solution))
    if u.shape[-1] != mechanism.num_inputs:
        raise ValueError(
            f"plot_gradients: the trajectory has {u.shape[-1]} numbers per step for {mechanism.num_inputs} inputs; "
            "give a rollout of inputs (u=), not of controls"
        )
    sizes = []
    for start in range(0, len(u), CHUNK):
        rows = slice(start, min(start + CHUNK, len(u)))
        solutions = warm[rows] if len(warm) == len(u) else None
        jacobian = mechanism.jacobians(z[rows], u[rows], warm_start=solutions)[0 if wrt == "z" else 1]
        failed = (jacobian == 0.0).all(-1).all(-1)
        blocks = jacobian[..., columns].reshape(len(jacobian), mechanism.num_bodies, TANGENT_SIZE // 3, -1)
        norms = torch.linalg.vector_norm(blocks, dim=-1)
        sizes.append(torch.where(failed[:, None, None], torch.nan, norms).double().numpy())
    return np.concatenate(sizes)


def _columns(mechanism: Mechanism, wrt: str, inputs: Sequence[str]) -> list[int]:
    if wrt not in ("u", "z"):
        raise ValueError(f"wrt: got {wrt!r}; allowed: 'u' or 'z'")
    if wrt == "z":
        if inputs:
            raise ValueError("plot_gradients: inputs= goes with wrt='u' only")
        return list(range(TANGENT_SIZE * mechanism.num_bodies))
    layout = {name: places for name, places in mechanism.input_layout.items() if places.stop > places.start}
    unknown = [name for name in inputs if name not in layout]
    if unknown or not layout:
        raise ValueError(f"inputs: got {unknown or 'all'}; this mechanism has inputs at: {', '.join(layout) or 'no joint'}")
    return [i for name in inputs or layout for i in range(layout[name].start, layout[name].stop)]


def _environment(value: torch.Tensor, index: int, batch: torch.Size) -> torch.Tensor:
    """(T, n) of one environment."""
    count = batch.numel()
    if not 0 <= index < count:
        raise ValueError(f"environment: got {index}; allowed: 0 to {count - 1}, of the batch {tuple(batch)}")
    return value.detach().cpu().expand(*batch, *value.shape[-2:]).reshape(count, *value.shape[-2:])[index]


def _curves(playback: Playback, alone: bool) -> Iterator[tuple[str, Array]]:
    """The curves of a playback, and impulses of its contacts: each, where there are few, or the largest."""
    yield from ((name, values) for name, values in playback.curves.items() if name != "flagged")
    if playback.contact_forces is None or not playback.scene.contacts:
        return
    sizes = np.linalg.norm(playback.contact_forces, axis=-1)
    scale, unit = (playback.timestep, "impulse [N s]") if playback.timestep > 0.0 else (1.0, "force [N]")
    if alone and sizes.shape[1] <= MOST_CONTACTS:
        yield from ((f"{contact.name}: {unit}", scale * sizes[:, i]) for i, contact in enumerate(playback.scene.contacts))
    else:
        yield f"largest contact {unit}", scale * sizes.max(axis=1)


def _panel(name: str) -> str:
    """Curves of one unit share a panel; those without a unit have one of their own."""
    unit = re.search(r"(?:(energy|distance|force|impulse) )?\[(.*)\]$", name)
    return name if unit is None else " ".join((unit[1] or "", f"[{unit[2]}]")).strip()


def _rank(name: str) -> int:
    return next((i for i, word in enumerate(ORDER) if word in name), len(ORDER))


def _mark(axes: Any, playback: Playback) -> None:
    flagged = np.nan_to_num(playback.curves.get("flagged", np.zeros(playback.num_frames))) > 0.0
    for frames, color in ((flagged, "tab:red"), (~finite_frames(playback), "0.5")):
        for time in playback.times[frames]:
            axes.axvline(time, color=color, alpha=0.4, linewidth=1.0, zorder=0)


def _figure(width: float, height: float) -> Any:
    figure = required("matplotlib.figure", "plotting", "plots").Figure(figsize=(width, height), layout="constrained")
    required("matplotlib.backends.backend_agg", "plotting", "plots").FigureCanvasAgg(figure)
    return figure

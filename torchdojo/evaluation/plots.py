"""Drawing of curves into files, without a display; needs matplotlib."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from torchdojo.evaluation.experiment import Plot
from torchdojo.runs.figures import available

__all__ = ["available", "save"]


def save(plot: Plot, path: Path) -> None:
    """Draw a plot into a file (.png)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # The figure is not pyplot's, so that nothing is global and the backend of the caller stays.
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for label, line in plot.lines.items():
        x, y = np.asarray(line.x), np.asarray(line.y)
        (drawn,) = axes.plot(x, y, label=label, linewidth=1.2, marker="o" if len(x) < 20 else None)
        if line.low is not None:
            axes.fill_between(x, np.asarray(line.low), np.asarray(line.high), color=drawn.get_color(), alpha=0.2, linewidth=0)
    axes.set(title=plot.title, xlabel=plot.x_label, ylabel=plot.y_label)
    axes.set_xscale("log" if "x" in plot.log else "linear")
    axes.set_yscale("log" if "y" in plot.log else "linear")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)

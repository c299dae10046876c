"""The picture of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sgrpo_lightning.report.figures import save_figure
from sgrpo_lightning.report.rows import Row
from sgrpo_lightning.report.style import figure_style

BARS = 16
"""Up to so many samples a group have bars of their own in the histogram."""

Line = tuple[str, list[tuple[float, float]]]
"""Name in the legend, points (x, value)."""


def plot_training(
    rows: Sequence[Row],
    path: Path,
    *,
    panels: Sequence[Mapping[str, str]],
    x: str = "iteration",
    histogram: np.ndarray | None = None,
    samples_per_group: int | None = None,
) -> None:
    """Writes `training_figure`; nothing where nothing was measured."""
    figure = training_figure(rows, panels=panels, x=x, histogram=histogram, samples_per_group=samples_per_group)
    save_figure(figure, path)


@figure_style()
def training_figure(
    rows: Sequence[Row],
    *,
    panels: Sequence[Mapping[str, str]],
    x: str = "iteration",
    histogram: np.ndarray | None = None,
    samples_per_group: int | None = None,
) -> Figure:
    """Metrics of a run in two columns of panels, and the pass rates of the last prompts as a histogram.

    Args:
        rows: of `metrics.jsonl`.
        panels: metric -> its name in the legend, a mapping per panel. Metrics that were not measured are left
            out, and so is a panel without any.
        x: the column that they are drawn against.
        histogram: pass rates [G] of the last iteration's prompts, in [0, 1]; None draws none.
        samples_per_group: M, the samples behind a pass rate: few of them get a bar for each number of passes.
    """
    measured = [some for panel in panels if (some := _measured(rows, panel, x))]
    count = len(measured) + (histogram is not None)
    height = (count + 1) // 2
    figure = Figure(figsize=(14, 4.6 * height), layout="constrained")
    cells = [figure.add_subplot(height, min(count, 2), place + 1) for place in range(count)]
    for axes, lines in zip(cells, measured, strict=False):
        _draw(axes, lines, sparse=len(rows) / 2)
        axes.set_xlabel(x)
    if histogram is not None:
        cells[-1].hist(histogram, bins=_bins(samples_per_group), edgecolor="white")
        cells[-1].set(xlabel="pass rate of a prompt", ylabel="prompts of the last iteration")
    return figure


def _bins(samples: int | None) -> list[float]:
    """Edges: halfway between the multiples of 1 / samples, or tenths where these are too many for bars.

    >>> _bins(2)
    [-0.25, 0.25, 0.75, 1.25]
    """
    if samples is None or samples > BARS:
        return [edge / 10 for edge in range(11)]
    return [(passes - 0.5) / samples for passes in range(samples + 2)]


def _measured(rows: Sequence[Row], panel: Mapping[str, str], x: str) -> list[Line]:
    """The lines of the metrics that have any points."""
    lines = [
        (label, [(row[x], row[name]) for row in rows if name in row and x in row]) for name, label in panel.items()
    ]
    return [(label, points) for label, points in lines if points]


def _draw(axes: Axes, lines: Sequence[Line], *, sparse: float) -> None:
    """A line per metric; one with fewer points than `sparse` shows them."""
    for label, points in lines:
        axes.plot(*zip(*points, strict=True), "o-" if len(points) < sparse else "-", label=label)
    axes.legend()

"""Runs side by side: metrics against steps, a line per group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sgrpo_lightning.report.figures import save_figure
from sgrpo_lightning.report.groups import grouped
from sgrpo_lightning.report.intervals import mean_interval
from sgrpo_lightning.report.runs import Run

Array = np.ndarray

YARDSTICK = "cross_entropy"
MARKERS, DASHES = "os^Dv", ("--", ":", "-.")
FEW = 40
"""Up to so many points of a line are marked."""


def plot_comparison(
    runs: Sequence[Run], path: Path, *, metrics: Sequence[str], x: str, labels: Mapping[str, str] | None = None
) -> None:
    """Writes `comparison_figure`; nothing where no run has rows of these metrics."""
    save_figure(comparison_figure(runs, metrics=metrics, x=x, labels=labels), path)


def comparison_figure(
    runs: Sequence[Run], *, metrics: Sequence[str], x: str, labels: Mapping[str, str] | None = None
) -> Figure:
    """A panel per metric: the mean over seeds of each group, and a band that is Student's 95% interval.

    A group of one seed is a line alone; cross-entropy, the exact yardstick, is black and dashed. Runs and metrics
    without rows are left out.

    Args:
        metrics: of the rows.
        x: what they are drawn against, `iteration` or `step`.
        labels: names to show, of metrics, of labels (`grpo M=16`) or of objectives (`grpo`).
    """
    names, groups = labels or {}, list(_styled(grouped(runs)))
    panels = [metric for metric in metrics if any(_points(group, metric, x)[0] for _, _, group in groups)]
    figure = Figure(figsize=(max(7, 5 * len(panels)), 4.5), layout="constrained")
    if not panels:
        return figure
    entries: dict[str, Any] = {}
    for axes, metric in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for label, style, group in groups:
            xs, values = _points(group, metric, x)
            if xs:
                text = f"{_shown(label, names)} ({_seeds(values.shape[1])})"
                entries.setdefault(text, _draw(axes, xs, values, style, text))
        axes.set(xlabel=x, ylabel=names.get(metric, _axis(metric)))
        axes.grid(alpha=0.3)
    columns = min(len(entries), len(panels) + 1)
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns)
    return figure


def _styled(groups: Mapping[str, list[Run]]) -> Iterator[tuple[str, dict[str, Any], list[Run]]]:
    """(label, style of its line, runs) of each group: one style in all panels."""
    others = exact = 0
    for label, group in groups.items():
        if group[0].objective == YARDSTICK:
            yield label, {"color": "black", "linestyle": DASHES[exact % len(DASHES)], "zorder": 3}, group
            exact += 1
        else:
            yield label, {"color": f"C{others % 10}", "marker": MARKERS[others // 10 % len(MARKERS)]}, group
            others += 1


def _points(group: Sequence[Run], metric: str, x: str) -> tuple[list[float], Array]:
    """The xs [P] that every run with rows of the metric has, and the values there [P, seeds].

    Runs of one seed are averaged. Both are empty where no run has rows of it.
    """
    curves: dict[int, list[dict[float, float]]] = defaultdict(list)
    for run in group:
        if curve := run.curve(metric, x=x):
            curves[run.seed].append(curve)
    sets = [set(curve) for some in curves.values() for curve in some]
    shared = sorted(set.intersection(*sets)) if sets else []
    return shared, np.array([[np.mean([curve[at] for curve in some]) for some in curves.values()] for at in shared])


def _draw(axes: Axes, xs: Sequence[float], values: Array, style: Mapping[str, Any], label: str) -> Any:
    """The mean over seeds, and its interval where there are two seeds or more."""
    mean, half = np.array([mean_interval(row) for row in values]).T
    marker = style.get("marker", "") if len(xs) <= FEW else ""
    (line,) = axes.plot(xs, mean, **{**style, "marker": marker}, ms=4, label=label)
    if values.shape[1] > 1:
        axes.fill_between(xs, mean - half, mean + half, color=style["color"], alpha=0.15, linewidth=0)
    return line


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def _shown(label: str, names: Mapping[str, str]) -> str:
    objective, space, settings = label.partition(" ")
    return names.get(label, f"{names.get(objective, objective)}{space}{settings}")


def _axis(metric: str) -> str:
    name = metric.removeprefix("eval/")
    return f"held-out {'top-1' if name == 'top1' else name}" if metric.startswith("eval/") else metric

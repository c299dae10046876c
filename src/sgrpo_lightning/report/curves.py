"""Runs side by side: metrics against steps, a line per group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sgrpo_lightning.report.figures import save_figure
from sgrpo_lightning.report.groups import grouped
from sgrpo_lightning.report.intervals import mean_interval
from sgrpo_lightning.report.runs import Run
from sgrpo_lightning.report.style import Look, figure_style, looks_of

Array = np.ndarray

FEW = 40
"""Up to so many points of a line are marked."""


def plot_comparison(
    runs: Sequence[Run], path: Path, *, metrics: Sequence[str], x: str, labels: Mapping[str, str] | None = None
) -> None:
    """Writes `comparison_figure`; nothing where no run has rows of these metrics."""
    save_figure(comparison_figure(runs, metrics=metrics, x=x, labels=labels), path)


@figure_style()
def comparison_figure(
    runs: Sequence[Run], *, metrics: Sequence[str], x: str, labels: Mapping[str, str] | None = None
) -> Figure:
    """A panel per metric: the mean over seeds of each group, and a band that is Student's 95% interval.

    A group of one seed is a line alone. An objective has its colour in every figure, those of its groups from light
    to dark; cross-entropy, the exact yardstick, is black. Runs and metrics without rows are left out.

    Args:
        metrics: of the rows.
        x: what they are drawn against, `iteration` or `step`.
        labels: names to show, of metrics, of labels (`grpo M=16`) or of objectives (`grpo`).
    """
    names, groups = labels or {}, _styled(grouped(runs))
    panels = [metric for metric in metrics if any(_points(group, metric, x)[0] for _, _, group in groups)]
    figure = Figure(figsize=(max(9, 6.5 * len(panels)), 5.8), layout="constrained")
    if not panels:
        return figure
    entries: dict[str, Any] = {}
    for axes, metric in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for label, look, group in groups:
            xs, values = _points(group, metric, x)
            if xs:
                text = f"{_shown(label, names)} ({_seeds(values.shape[1])})"
                entries.setdefault(text, _draw(axes, xs, values, look, text))
        axes.set(xlabel=x, ylabel=names.get(metric, _axis(metric)))
    columns = min(len(entries), len(panels) + 1)
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns)
    return figure


def _styled(groups: Mapping[str, list[Run]]) -> list[tuple[str, Look, list[Run]]]:
    """(label, look of its line, runs) of each group: one look in all panels."""
    looks = looks_of([group[0].objective for group in groups.values()])
    return [(label, look, group) for (label, group), look in zip(groups.items(), looks, strict=True)]


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


def _draw(axes: Axes, xs: Sequence[float], values: Array, look: Look, label: str) -> Any:
    """The mean over seeds, and its interval where there are two seeds or more."""
    mean, half = np.array([mean_interval(row) for row in values]).T
    marker = look["marker"] if len(xs) <= FEW else ""
    (line,) = axes.plot(xs, mean, **{**look, "marker": marker}, label=label)
    if values.shape[1] > 1:
        axes.fill_between(xs, mean - half, mean + half, color=look["color"], alpha=0.15, linewidth=0)
    return line


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def _shown(label: str, names: Mapping[str, str]) -> str:
    objective, space, settings = label.partition(" ")
    return names.get(label, f"{names.get(objective, objective)}{space}{settings}")


def _axis(metric: str) -> str:
    name = metric.removeprefix("eval/")
    return f"held-out {'top-1' if name == 'top1' else name}" if metric.startswith("eval/") else metric

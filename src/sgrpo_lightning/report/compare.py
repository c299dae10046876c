"""Runs side by side: a table and a figure over seeds."""

from __future__ import annotations

import glob
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy import stats


@dataclass(frozen=True, slots=True)
class Run:
    """A run's folder, read."""

    folder: Path
    summary: Mapping[str, Any]
    rows: Sequence[Mapping[str, float]]


def find_runs(pattern: str) -> list[Run]:
    """The runs below every folder that matches, in the order of their paths.

    Args:
        pattern: as in the shell; ** crosses folders. Quote it on the command line.
    """
    folders = {Path(path) for path in glob.glob(pattern, recursive=True)}
    summaries = sorted({file for folder in folders for file in folder.glob("summary.json")})
    if not summaries:
        raise ValueError(f"runs={pattern}: no run with a summary.json there")
    return [Run(file.parent, json.loads(file.read_text()), _rows(file.parent)) for file in summaries]


def _rows(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def by_objective(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that differ in the seed alone, under the name of their objective."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.summary["objective"]].append(run)
    return dict(sorted(groups.items()))


def mean_interval(values: Sequence[float] | np.ndarray, *, level: float = 0.95) -> tuple[float, float]:
    """Mean and half the width of Student's t interval; nan where one value tells nothing of the spread.

    >>> mean, half = mean_interval([0.2, 0.3, 0.4])  # 4.303 * 0.1 / sqrt(3)
    >>> round(mean, 3), round(half, 3)
    (0.3, 0.248)
    """
    array = np.asarray(values, dtype=float)
    if len(array) < 2:
        return float(array.mean()), float("nan")
    quantile = stats.t.ppf(0.5 + level / 2, len(array) - 1)
    return float(array.mean()), float(quantile * array.std(ddof=1) / np.sqrt(len(array)))


def table(runs: Sequence[Run], *, metric: str) -> str:
    """A Markdown table: the metric before and after training for each seed, its mean with a 95% interval."""
    lines = ["| objective | before | after, by seed | mean ± 95% | gain | seconds |", "|---|---|---|---|---|---|"]
    for objective, group in by_objective(runs).items():
        first = np.array([run.summary[f"{metric}/first"] for run in group])
        last = np.array([run.summary[f"{metric}/last"] for run in group])
        mean, half = mean_interval(last)
        seeds = ", ".join(f"{run.summary['seed']}: {value:.3f}" for run, value in zip(group, last, strict=True))
        seconds = np.mean([run.summary["seconds"] for run in group])
        spread = "" if np.isnan(half) else f" ± {half:.3f}"
        lines.append(
            f"| `{objective}` | {first.mean():.3f} | {seeds} | {mean:.3f}{spread} "
            f"| {(last - first).mean():+.3f} | {seconds:.0f} |"
        )
    return "\n".join(lines) + "\n"


def plot_comparison(runs: Sequence[Run], path: Path, *, metric: str, label: str) -> None:
    """The metric against iterations: the mean over seeds of each objective, and the range of its seeds."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for objective, group in by_objective(runs).items():
        curves = [{row["iteration"]: row[metric] for row in run.rows if metric in row} for run in group]
        shared = sorted(set.intersection(*(set(curve) for curve in curves)))
        values = np.array([[curve[x] for x in shared] for curve in curves])
        (line,) = axes.plot(shared, values.mean(0), "o-", ms=4, label=f"{objective} ({len(group)} seeds)")
        axes.fill_between(shared, values.min(0), values.max(0), color=line.get_color(), alpha=0.15)
    axes.set_xlabel("iteration")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)

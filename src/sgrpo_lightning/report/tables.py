"""Tables of runs: Markdown, a row per group; CSV, a row per run."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from sgrpo_lightning.report.groups import grouped
from sgrpo_lightning.report.intervals import by_seed, gap_closed, mean_interval
from sgrpo_lightning.report.runs import Run, domain_of

NONE = "–"  # noqa: RUF001 - the sign of an empty cell
YARDSTICKS = {"reinforce", "cross_entropy"}


def table(runs: Sequence[Run], *, metrics: Sequence[str]) -> str:
    """The table of the runs' domain; that of language runs is about the first of the metrics."""
    return image_table(runs, metrics=metrics) if domain_of(runs) == "imagenet" else gain_table(runs, metric=metrics[0])


def gain_table(runs: Sequence[Run], *, metric: str) -> str:
    """The metric before and after training for each seed, its mean with a 95% interval, and the gain."""
    rows = []
    for label, group in grouped(runs).items():
        first, last = by_seed(group, lambda run: run.first(metric)), by_seed(group, lambda run: run.last(metric))
        gains = [last[seed] - first[seed] for seed in last if seed in first]
        rows.append(
            {
                "objective": f"`{label}`",
                "before": f"{np.mean([*first.values()]):.3f}" if first else NONE,
                "after, by seed": ", ".join(f"{seed}: {value:.3f}" for seed, value in last.items()) or NONE,
                "mean ± 95%": _cell([*last.values()]),
                "gain": f"{np.mean(gains):+.3f}" if gains else NONE,
                "seconds": f"{np.mean([run.summary['seconds'] for run in group]):.0f}",
            }
        )
    return _markdown(rows)


def image_table(runs: Sequence[Run], *, metrics: Sequence[str]) -> str:
    """Means over seeds with 95% intervals: the metrics, the gap closed, top-1 of the other held-out splits.

    A mean of fewer seeds than the group has says so, as in "(2 of 3)".
    """
    with_gap = {run.objective for run in runs} >= YARDSTICKS
    rows = []
    for label, group in grouped(runs).items():
        seeds = len({run.seed for run in group})
        cell = partial(_measured, group, seeds)
        gap = gap_closed(group, runs) if with_gap else None
        rows.append(
            {"objective": f"`{label}`", "seeds": str(seeds)}
            | {_heading(metric): cell(metric) for metric in _with_cross_entropy(metrics)}
            | ({"gap closed": _interval(*gap) if gap else NONE} if with_gap else {})
            | {_heading(metric): cell(metric) for metric in other_splits(runs)}
            | {"seconds": cell("seconds", digits=0)}
        )
    return _markdown(rows)


def other_splits(runs: Sequence[Run]) -> list[str]:
    """Top-1 of the held-out splits beside the main one, such as `eval_unseen_style/top1`."""
    return sorted({found[1] for run in runs for name in run.summary if (found := _OTHER.fullmatch(name))})


_OTHER = re.compile(r"(eval_[^/]+/top1)(?:/last)?")


def write_csv(runs: Sequence[Run], path: Path, *, metrics: Sequence[str]) -> None:
    """A row per run: label, seed, seconds, and the metrics of the table, before training where measured, and last."""
    if domain_of(runs) == "imagenet":
        metrics = [*_with_cross_entropy(metrics), *other_splits(runs)]
    before = [metric for metric in metrics if any(run.first(metric) is not None for run in runs)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        names = [*(f"{metric}/first" for metric in before), *(f"{metric}/last" for metric in metrics)]
        writer.writerow(["label", "seed", "seconds", *names])
        for label, group in grouped(runs).items():
            for run in sorted(group, key=lambda run: run.seed):
                values = [*(run.first(metric) for metric in before), *(run.last(metric) for metric in metrics)]
                writer.writerow([label, run.seed, run.summary["seconds"], *values])


def _with_cross_entropy(metrics: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*metrics, "eval/cross_entropy"]))


def _heading(metric: str) -> str:
    """Of a column: eval/top1 is top-1, eval_unseen_style/top1 is top-1, unseen style; others keep their name."""
    split, _, name = metric.partition("/")
    if not split.startswith("eval"):
        return metric
    name = {"top1": "top-1", "cross_entropy": "cross-entropy"}.get(name, name)
    kind = split.removeprefix("eval").strip("_").replace("_", " ")
    return f"{name}, {kind}" if kind else name


def _measured(group: Sequence[Run], seeds: int, metric: str, digits: int = 3) -> str:
    values = [*by_seed(group, lambda run: run.last(metric)).values()]
    return _cell(values, digits) + (f" ({len(values)} of {seeds})" if 0 < len(values) < seeds else "")


def _cell(values: Sequence[float], digits: int = 3) -> str:
    return _interval(*mean_interval(values), digits) if values else NONE


def _interval(mean: float, half: float, digits: int = 3) -> str:
    return f"{mean:.{digits}f}" + ("" if np.isnan(half) else f" ± {half:.{digits}f}")


def _markdown(rows: Sequence[Mapping[str, str]]) -> str:
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    text = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([text[0], "|" + "---|" * len(lines[0]), *text[1:]]) + "\n"

"""Means over seeds, with Student's interval, and how much of the gap to maximum likelihood is closed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats

from sgrpo_lightning.report.runs import Run


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


def by_seed(runs: Sequence[Run], value: Callable[[Run], float | None]) -> dict[int, float]:
    """Seed -> value, in the order of the seeds. Runs without one are left out.

    Runs of one seed are averaged: they are no independent draws, so an interval counts them once.
    """
    found: dict[int, list[float]] = defaultdict(list)
    for run in runs:
        if (one := value(run)) is not None:
            found[run.seed].append(one)
    return {seed: float(np.mean(values)) for seed, values in sorted(found.items())}


def gap_closed(group: Sequence[Run], runs: Sequence[Run]) -> tuple[float, float] | None:
    """How far a group comes from expected reward to exact maximum likelihood, by its last top-1 accuracy.

        (top1 - REINFORCE) / (CE - REINFORCE)

    0 is no better than REINFORCE, 1 as good as cross-entropy. It is computed seed by seed where at least two
    seeds are in all three, then averaged; otherwise it is the ratio of the means, without an interval.

    Args:
        group: runs that differ in the seed alone.
        runs: of the report. REINFORCE and CE are the `reinforce` and `cross_entropy` runs of the group's task; of
            those that differ in a setting, such as `samples_per_group`, the ones with the group's value, or all
            where none has it.

    Returns:
        Mean and half the width of the 95% interval (nan without one); None where one of the three was not
        measured, or where CE - REINFORCE is not positive.
    """
    rivals = (_counterparts(group[0], runs, objective) for objective in ("reinforce", "cross_entropy"))
    measured = [by_seed(some, lambda run: run.last("eval/top1")) for some in (group, *rivals)]
    if not all(measured):
        return None
    seeds = sorted(set.intersection(*map(set, measured)))
    if len(seeds) >= 2:
        own, low, high = (np.array([values[seed] for seed in seeds]) for values in measured)
    else:
        own, low, high = (np.array([np.mean([*values.values()])]) for values in measured)
    return mean_interval((own - low) / (high - low)) if (high > low).all() else None


def _counterparts(run: Run, runs: Sequence[Run], objective: str) -> list[Run]:
    """The runs of an objective that are most like a run: of its task, and setting by setting with its value."""
    task = run.summary.get("task")
    found = [other for other in runs if other.objective == objective and other.summary.get("task") == task]
    for key in ("samples_per_group", *run.settings):
        found = [other for other in found if other.settings.get(key) == run.settings.get(key)] or found
    return found

"""The picture of one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Rows = Sequence[dict[str, float]]


def plot_training(rows: Rows, path: Path, pass_rates: np.ndarray | None = None) -> None:
    """Reward and held-out pass@1, length, KL and clip fraction, and the pass rates of the last prompts.

    Args:
        rows: of `metrics.jsonl`.
        path: of the PNG.
        pass_rates: [G] of the last iteration's prompts.
    """
    figure = Figure(figsize=(11, 7), layout="constrained")
    top, bottom = figure.subplots(2, 2)
    _curves(top[0], rows, {"reward/mean": "training reward", "eval/pass@1": "held-out pass@1"}, "o-")
    _curves(top[1], rows, {"length/mean": "tokens of a completion"})
    _curves(
        bottom[0],
        rows,
        {
            "kl_sampler/mean": "KL to the sampler",
            "kl/mean": "KL to the reference",
            "clip_high/frac": "clipped above",
            "clip_low/frac": "clipped below",
            "no_signal/frac": "groups without signal",
        },
    )
    bottom[1].set_xlabel("pass rate of a prompt")
    bottom[1].set_ylabel("prompts of the last iteration")
    if pass_rates is not None:
        bottom[1].hist(pass_rates, bins=np.linspace(0, 1, 11))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _curves(axes: Axes, rows: Rows, names: dict[str, str], sparse: str = "-") -> None:
    """One line a metric; metrics that were not measured are left out."""
    for name, label in names.items():
        points = [(row["iteration"], row[name]) for row in rows if name in row]
        if points:
            axes.plot(*zip(*points, strict=True), sparse if len(points) < len(rows) / 2 else "-", label=label, ms=4)
    axes.set_xlabel("iteration")
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()

"""Runs side by side, in a folder: a table, the numbers behind it, and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sgrpo_lightning.report.curves import plot_comparison
from sgrpo_lightning.report.runs import Run, unfinished
from sgrpo_lightning.report.tables import table, write_csv


def write_report(
    runs: Sequence[Run], out: Path, *, metrics: Sequence[str], x: str, labels: Mapping[str, str] | None = None
) -> str:
    """Writes `table.md`, `table.csv` and `curves.png`, and returns the text of the first.

    Below the table stand the runs that ended before their time, for their last values are not comparable.

    Args:
        metrics, x: as `what_to_show` gives them.
        labels: names to show in the figure, see `comparison_figure`.
    """
    text = table(runs, metrics=metrics)
    if notes := unfinished(runs):
        text += "\nNot finished: " + "; ".join(notes) + "\n"
    write_csv(runs, out / "table.csv", metrics=metrics)
    (out / "table.md").write_text(text)
    plot_comparison(runs, out / "curves.png", metrics=metrics, x=x, labels=labels)
    return text

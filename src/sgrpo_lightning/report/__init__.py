"""Pictures and tables of runs."""

from sgrpo_lightning.report.compare import write_report
from sgrpo_lightning.report.curves import plot_comparison
from sgrpo_lightning.report.rows import Row, read_rows
from sgrpo_lightning.report.runs import Run, find_runs, what_to_show
from sgrpo_lightning.report.tables import table
from sgrpo_lightning.report.training import plot_training

__all__ = [
    "Row",
    "Run",
    "find_runs",
    "plot_comparison",
    "plot_training",
    "read_rows",
    "table",
    "what_to_show",
    "write_report",
]

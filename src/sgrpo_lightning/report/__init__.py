"""Pictures and tables of runs."""

from sgrpo_lightning.report.compare import find_runs, plot_comparison, table
from sgrpo_lightning.report.training import plot_training

__all__ = ["find_runs", "plot_comparison", "plot_training", "table"]

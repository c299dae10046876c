"""Pictures and tables of runs."""

from sgrpo_lightning.report.training import plot_training

__all__ = ["plot_training"]

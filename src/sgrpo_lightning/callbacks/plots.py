"""Draws the run when it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.utilities import rank_zero_only

from sgrpo_lightning.callbacks.run_log import read_rows
from sgrpo_lightning.report.training import plot_training


class TrainingPlot(L.Callback):
    """`plots/training.png` from the run's rows, at the end and when the run is stopped.

    Args:
        run_dir: the run's folder.
    """

    def __init__(self, run_dir: str) -> None:
        self.run_dir = Path(run_dir)

    @rank_zero_only
    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        rewards = getattr(pl_module, "rollout", None)
        pass_rates = None if rewards is None else (rewards.rewards > 0.5).float().mean(-1).cpu().numpy()
        plot_training(read_rows(self.run_dir), self.run_dir / "plots" / "training.png", pass_rates)

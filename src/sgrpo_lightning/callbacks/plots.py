"""Draws the run when it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.utilities import rank_zero_only

from sgrpo_lightning.metrics import pass_rates
from sgrpo_lightning.report import plot_training, read_rows


class TrainingPlot(L.Callback):
    """`plots/training.png` from the run's rows, at the end and when the run is stopped.

    Args:
        run_dir: the run's folder.
        panels: metric -> its name in the legend, a mapping per panel.
        x: the column that they are drawn against.
        pass_rates: also draws how many of the last prompts have which pass rate, where the module has a `rollout`.
    """

    def __init__(
        self, run_dir: str, panels: Sequence[Mapping[str, str]], *, x: str = "iteration", pass_rates: bool = True
    ) -> None:
        self.run_dir, self.panels, self.x, self.pass_rates = Path(run_dir), panels, x, pass_rates

    @rank_zero_only
    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        rollout = getattr(pl_module, "rollout", None) if self.pass_rates else None
        rewards = None if rollout is None else rollout.rewards.float().cpu()
        rates = {} if rewards is None else {"histogram": pass_rates(rewards), "samples_per_group": rewards.shape[-1]}
        path, rows = self.run_dir / "plots" / "training.png", read_rows(self.run_dir)
        plot_training(rows, path, panels=self.panels, x=self.x, **rates)

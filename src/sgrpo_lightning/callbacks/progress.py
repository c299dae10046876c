"""What a run shows in the terminal: a progress bar over iterations, and little of what others would say there."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class IterationProgress(ProgressBar):
    """Iterations done, the columns asked for, and the time left; a line now and then where there is no terminal.

    Args:
        columns: label -> metric of the iteration's row; one that was not measured is left out.
        every_n_iterations: how often a line is printed where the output is not a terminal.
    """

    def __init__(self, columns: Mapping[str, str], *, every_n_iterations: int = 10) -> None:
        super().__init__()
        self.columns, self.every = dict(columns), every_n_iterations
        self.console = Console()
        self._progress: Progress | None = None
        self._task: Any = None
        self._enabled = True

    def disable(self) -> None:
        self._enabled = False

    def enable(self) -> None:
        self._enabled = True

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        if not (self._enabled and trainer.is_global_zero and self.console.is_terminal):
            return
        self._progress = Progress(
            TextColumn("iteration"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[shown]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            expand=True,
        )
        self._task = self._progress.add_task("", total=trainer.max_epochs, completed=trainer.current_epoch, shown="")
        self._progress.start()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        done = trainer.current_epoch + 1
        shown = self._shown(pl_module.row)
        if self._progress is not None:
            self._progress.update(self._task, completed=done, shown=shown)
        elif self._enabled and trainer.is_global_zero and (done % self.every == 0 or done in (1, trainer.max_epochs)):
            self.console.print(f"iteration {done}/{trainer.max_epochs}  {shown}", highlight=False, soft_wrap=True)

    def _shown(self, row: Mapping[str, float]) -> str:
        return "  ".join(f"{label} {_short(row[name])}" for label, name in self.columns.items() if name in row)

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self._stop()

    def on_exception(self, trainer: L.Trainer, pl_module: Any, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3f}"


def quieten() -> None:
    """Keep the terminal for the run's own words."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    for message in (
        ".*does not have many workers.*",
        ".*Checkpoint directory.*",
        ".*`training_step` returned.*",
        ".*module.s. in eval mode.*",  # as transformers loads them: without dropout
        ".*LeafSpec.*",
        ".*is deprecated. Please use .torch.distributed.*",  # torch's own calls, at every collective of FSDP2
    ):
        warnings.filterwarnings("ignore", message)

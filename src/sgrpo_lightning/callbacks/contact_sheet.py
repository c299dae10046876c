"""A look at the images that a run trains on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.utilities import rank_zero_only


class ContactSheet(L.Callback):
    """Writes `plots/contact_sheet.png` when training begins, for data that can draw one.

    Args:
        run_dir: the run's folder.
    """

    def __init__(self, run_dir: str) -> None:
        self.path = Path(run_dir) / "plots" / "contact_sheet.png"

    @rank_zero_only
    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        trainer.datamodule.data.contact_sheet(self.path)  # type: ignore[attr-defined]

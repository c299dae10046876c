"""The policy as a transformers folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L


class PolicyExport(L.Callback):
    """Writes weights, configuration and tokenizer with `save_pretrained` when training ends.

    Args:
        folder: loads with `model.path=<folder>` or with transformers.
        every_n_steps: also every so many optimizer steps; 0 does so at the end alone.
    """

    def __init__(self, folder: str, *, every_n_steps: int = 0) -> None:
        self.folder, self.every = Path(folder), every_n_steps

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: object) -> None:
        if self.every and trainer.global_step % self.every == 0:
            self._write(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self._write(trainer, pl_module)

    def _write(self, trainer: L.Trainer, pl_module: Any) -> None:
        if trainer.is_global_zero:
            pl_module.policy.model.save_pretrained(self.folder)
            pl_module.policy.tokenizer.save_pretrained(self.folder)

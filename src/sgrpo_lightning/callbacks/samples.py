"""Samples of the current policy: in files, and now and then in the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning as L
from rich.console import Console
from rich.table import Table
from rich.text import Text


class SampleFiles(L.Callback):
    """Writes the samples of every n-th iteration, and of the first, to `samples/`, a JSON object a line.

    Args:
        run_dir: the run's folder.
        every_n_iterations: 0 writes none.
    """

    def __init__(self, run_dir: str, *, every_n_iterations: int = 10) -> None:
        self.folder, self.every = Path(run_dir) / "samples", every_n_iterations

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        done = trainer.current_epoch + 1
        if not self.every or (done % self.every and done != 1):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"iteration-{done:06d}-rank-{trainer.global_rank}.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in sample_records(pl_module)))


class SampleTable(L.Callback):
    """Prints a few of the latest samples as a table.

    Args:
        every_n_iterations: 0 never prints.
        rows: of the table, from the first groups; the best and the worst sample of each.
        width: characters of a prompt and of a completion that are shown.
    """

    def __init__(self, *, every_n_iterations: int = 20, rows: int = 6, width: int = 160) -> None:
        self.every, self.rows, self.width = every_n_iterations, rows, width

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        done = trainer.current_epoch + 1
        if not self.every or done % self.every or not trainer.is_global_zero:
            return
        records = sample_records(pl_module)
        size = pl_module.rollout.samples.samples_per_group
        table = Table(title=f"samples of iteration {done}", title_justify="left")
        for column in ("prompt", "completion", "status", "reward", "advantage"):
            table.add_column(column, overflow="fold")
        for start in range(0, min(len(records), size * (self.rows // 2)), size):
            group = sorted(records[start : start + size], key=lambda record: record["reward"])
            for record in (group[-1], group[0]):
                texts = (record["prompt"], record["completion"])
                cells = (
                    *(text if len(text) <= self.width else text[: self.width] + " ..." for text in texts),
                    record["status"],
                    f"{record['reward']:g}",
                    f"{record['advantage']:+.2f}",
                )
                table.add_row(*map(Text, cells))
        (console_of(trainer) or Console()).print(table)


def console_of(trainer: L.Trainer) -> Console | None:
    """The console of the progress bar, so that a table does not tear it."""
    return getattr(trainer.progress_bar_callback, "console", None)


def sample_records(module: Any) -> list[dict[str, Any]]:
    """The latest rollout of a `PolicyModule` as plain records."""
    rollout, advantages = module.rollout, module.advantages.flatten().tolist()
    rewards, size = rollout.rewards.flatten().tolist(), rollout.samples.samples_per_group
    parts = {name: part.flatten().tolist() for name, part in rollout.parts.items()}
    return [
        {
            "prompt": rollout.examples[row // size].prompt,
            "completion": completion,
            "answer": outcome.answer,
            "status": outcome.status,
            "reward": rewards[row],
            "parts": {name: part[row] for name, part in parts.items()},
            "advantage": advantages[row],
            "weights_version": rollout.samples.weights_version,
        }
        for row, (completion, outcome) in enumerate(zip(rollout.completions, rollout.outcomes, strict=True))
    ]

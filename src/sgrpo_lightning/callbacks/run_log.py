"""The rows of a run: `metrics.jsonl`, `metrics.csv`, and `summary.json`, which follows from them."""

from __future__ import annotations

import csv
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from sgrpo_lightning.callbacks.checkpoint import write_whole
from sgrpo_lightning.report import Row, read_rows

HELD_OUT = ("eval/", "eval_")
"""How the metrics of held-out questions and images begin; `eval_<split>/` are those of another split."""


class RunLogger(Logger):
    """Appends each row to `metrics.jsonl` and `metrics.csv` in the run's folder.

    Rows carry `step` (optimizer steps) and `elapsed` (seconds of training, over all resumptions).
    """

    def __init__(self, run_dir: str) -> None:
        super().__init__()
        self.folder = Path(run_dir)
        self.rows: list[Row] = read_rows(self.folder)
        self._offset = self.rows[-1]["elapsed"] if self.rows else 0.0
        self._started = time.perf_counter()

    @property
    def name(self) -> str:
        return "run"

    @property
    def version(self) -> str:
        return ""

    @rank_zero_only
    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """The run's settings are in `config.yaml`."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        elapsed = self._offset + time.perf_counter() - self._started
        row = {"step": step or 0, "elapsed": round(elapsed, 3), **metrics}
        self.rows.append(row)
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "metrics.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())  # a checkpoint that is on the disk knows of this row
        _append_csv(self.folder / "metrics.csv", row, self.rows)

    @rank_zero_only
    def forget_after(self, iteration: int) -> None:
        """Drop rows of iterations that a checkpoint does not hold: a resumed run will log them again.

        Both files are written anew, for a kill may also have cut their last lines short.
        """
        self.rows = kept = [row for row in self.rows if row.get("iteration", 0) <= iteration]
        if (self.folder / "metrics.jsonl").is_file():
            write_whole(self.folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in kept))
            _write_csv(self.folder / "metrics.csv", kept)
        self._offset, self._started = kept[-1]["elapsed"] if kept else 0.0, time.perf_counter()


class IterationLog(L.Callback):
    """Sends the finished row of each iteration to every logger, and keeps `summary.json` up to date.

    Args:
        run_dir: the run's folder.
        identity: domain, task, objective, seed: written into the summary as they are.
    """

    def __init__(self, run_dir: str, identity: Mapping[str, Any]) -> None:
        self.path, self.identity = Path(run_dir) / "summary.json", dict(identity)

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        for logger in trainer.loggers:
            if isinstance(logger, RunLogger):
                logger.forget_after(trainer.current_epoch)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        row: Row = {"iteration": trainer.current_epoch + 1, **pl_module.row}
        for logger in trainer.loggers:
            logger.log_metrics(row, step=trainer.global_step)
            if isinstance(logger, RunLogger) and trainer.is_global_zero:
                write_whole(self.path, json.dumps(summarise(logger.rows, self.identity), indent=2) + "\n")


def summarise(rows: Sequence[Row], identity: Mapping[str, Any]) -> dict[str, Any]:
    """The identity, the last value of every metric, and the first of the held-out ones, as `<name>/first`."""
    last: dict[str, float] = {}
    first: dict[str, float] = {}
    for row in rows:
        last.update(row)
        first = {**row, **first}
    held_out = [name for name in last if name.startswith(HELD_OUT) and name != "eval/samples"]
    summary = {**identity, "iterations": last["iteration"], "seconds": last["elapsed"]}
    summary |= {name: value for name, value in last.items() if name not in (*held_out, "iteration", "elapsed")}
    for name in held_out:
        summary |= {f"{name}/first": first[name], f"{name}/last": last[name]}
    return summary


def _append_csv(path: Path, row: Row, rows: Sequence[Row]) -> None:
    """One line more; a row with a new column rewrites the table."""
    header = next(csv.reader(path.open(newline="")), []) if path.is_file() else []
    if set(row) <= set(header):
        with path.open("a", newline="") as file:
            csv.DictWriter(file, header).writerow(row)
    else:
        _write_csv(path, rows)


def _write_csv(path: Path, rows: Sequence[Row]) -> None:
    header = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, header)
        writer.writeheader()
        writer.writerows(rows)

"""The course of an examination: cheap checks, checks in a run that has begun, then a soak."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L

from sgrpo_lightning.doctor.disk import check_disk
from sgrpo_lightning.doctor.ranks import checksum
from sgrpo_lightning.doctor.soak import ITERATIONS, Soak, Watch, judge_soak, standing_still
from sgrpo_lightning.doctor.verdict import Check, Checklist, Finding

Named = tuple[str, Check]

PATIENCE = 5.0
"""Seconds that a rank leaves the first one to print why all of them end."""


class Examination:
    """What all kinds of training have in common; a kind adds its checks.

    Args:
        run_dir: of the run that is to come.
    """

    def __init__(self, module: Any, datamodule: Any, trainer: L.Trainer, run_dir: Path) -> None:
        self.module, self.datamodule, self.trainer, self.run_dir = module, datamodule, trainer, run_dir
        self.callbacks, self.soak = list(trainer.callbacks), Soak()  # type: ignore[attr-defined]
        self.total_checkpoints = trainer.max_epochs or 1

    # ---- what a kind adds ----

    def cheap(self) -> list[Named]:
        """Before anything is set up, on the first rank alone."""
        return []

    def inside(self) -> list[Named]:
        """Under the strategy, before the first step, on all ranks together."""
        return []

    def afterwards(self) -> list[Named]:
        """Of what the soak has shown."""
        return []

    def shorten(self) -> None:
        """Make the run one of a few small iterations."""

    # ---- the same for all ----

    def title(self) -> str:
        trainer = self.trainer
        ranks = f"{trainer.world_size} process{'es' if trainer.world_size > 1 else ''}"
        return f"{ranks} on {trainer.strategy.root_device.type}, {type(trainer.strategy).__name__}, {trainer.precision}"

    def disk(self) -> Finding:
        module, weights = self.module, list(self.module.parameters())
        return check_disk(self.run_dir, weights, module._make_optimizer, self.callbacks, self.total_checkpoints)

    def run(self) -> int:
        """Print all findings; the number of those that failed."""
        checklist = Checklist(self.title(), first=self.trainer.is_global_zero)
        for name, check in [*self.cheap(), ("disk", self.disk)] if self.trainer.is_global_zero else []:
            checklist.run(name, check)
        self.shorten()
        still(self.module, self.trainer)
        self.trainer.callbacks = [self._watch(checklist)]  # type: ignore[attr-defined]
        try:
            self.trainer.fit(self.module, datamodule=self.datamodule)
        except Exception as error:
            self._broke_off(checklist, error)
        failed = checklist.close()
        if failed and len(self.soak.rows) < ITERATIONS and self.trainer.world_size > 1:
            _leave_alone(self.trainer.is_global_zero)
        return failed

    def _watch(self, checklist: Checklist) -> Watch:
        def begin() -> None:
            for name, check in self.inside():
                checklist.run(name, check)
            self.soak.before = checksum(self.module.model)

        def end() -> None:
            self.soak.after = checksum(self.module.model)
            checklist.run("soak", lambda: judge_soak(self.soak))
            for name, check in self.afterwards():
                checklist.run(name, check)

        return Watch(self.soak, begin=begin, end=end)

    def _broke_off(self, checklist: Checklist, error: Exception) -> None:
        """The run did not come to its end: what is missing is named, so that every line is there."""
        reason = f"{type(error).__name__}: {[*str(error).strip().splitlines(), ''][0]}"
        done = {finding.name for finding in checklist.findings}
        expected = [*(name for name, _ in self.inside()), "soak", *(name for name, _ in self.afterwards())]
        where = "soak" if expected[0] in done else "start"
        checklist.add(Finding(where, "failed", reason, "train.py would end here too, with this error"))
        for name in expected:
            if name not in {*done, where}:
                checklist.add(Finding(name, "skipped", f"the {where} broke off"))


def still(module: Any, trainer: L.Trainer) -> None:
    """A run that leaves nothing behind, and its weights as they are."""
    module._make_optimizer = standing_still(module._make_optimizer)
    trainer.loggers = []


def limit_iterations(trainer: L.Trainer, iterations: int = ITERATIONS) -> None:
    trainer.fit_loop.max_epochs = iterations
    trainer.fit_loop.epoch_loop.max_steps = -1


def _leave_alone(first: bool) -> None:
    """End this process while others may wait for it: the first rank at once, so that its words are the last."""
    if not first:
        time.sleep(PATIENCE)
    os._exit(1)


def after(needed: Callable[[], Any], check: Callable[[Any], Finding], name: str) -> Named:
    """A check of what an earlier one has left; skipped where that is not there."""

    def run() -> Finding:
        value = needed()
        return Finding(name, "skipped", "nothing was sampled") if value is None else check(value)

    return name, run

"""A few iterations of the real loop that must not change a bit of the weights."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lightning as L

from sgrpo_lightning.distributed.gradients import gradient_norm, norm_follows_step
from sgrpo_lightning.doctor.verdict import Finding, judge

ITERATIONS = 3

ROUNDING = 1e-4
"""Nats a token; a gap between sampler and trainer below it means nothing."""


@dataclass(slots=True)
class Soak:
    """What was seen of it."""

    losses: list[float] = field(default_factory=list)  # of each micro-batch
    norms: list[float] = field(default_factory=list)  # of the gradient of each step
    rows: list[dict[str, float]] = field(default_factory=list)  # of each iteration, where the module makes them
    before: int = 0  # checksums of the weights
    after: int = 0
    ends: list[float] = field(default_factory=list)  # of each step, seconds


class Watch(L.Callback):
    """Looks on while the trainer trains: what happens before the first step and after the last, and in between.

    Args:
        begin, end: called when the strategy has set everything up, and before it takes it down again.
        soak: is filled in.
    """

    def __init__(self, soak: Soak, *, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self.soak, self.begin, self.end = soak, begin, end

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.begin()

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: Any, optimizer: Any) -> None:
        if not norm_follows_step(trainer.strategy):
            self.soak.norms.append(gradient_norm(pl_module, trainer.strategy).item())

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, index: int) -> None:
        self.soak.losses.append(float(outputs["loss"]))
        if (index + 1) % trainer.accumulate_grad_batches:
            return
        if norm_follows_step(trainer.strategy):
            self.soak.norms.append(gradient_norm(pl_module, trainer.strategy).item())
        self.soak.ends.append(time.perf_counter())

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.soak.rows.append(dict(getattr(pl_module, "row", {})))

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.end()


def standing_still(make_optimizer: Callable[..., Any]) -> Callable[..., Any]:
    """The same optimizer with a learning rate and a weight decay of 0."""

    def make(parameters: Any) -> Any:
        optimizer = make_optimizer(parameters)
        for group in optimizer.param_groups:
            group |= {name: 0.0 for name in ("lr", "weight_decay") if name in group}
        return optimizer

    return make


def judge_soak(soak: Soak) -> Finding:
    """A gap may double, or stay in what rounding explains."""
    gaps = [row["sampler_gap/mean"] for row in soak.rows if "sampler_gap/mean" in row]
    norms, signal = soak.norms, has_signal(soak.rows)
    numbers = [*soak.losses, *norms]
    range_of_norms = f"gradient norms {min(norms):.1e} to {max(norms):.1e}" if norms else "no optimizer step"
    return judge(
        "soak",
        "; ".join(
            [
                f"{len(norms)} steps with learning rate 0",
                f"weights {'bit-equal' if soak.before == soak.after else 'changed'}",
                *([f"gap {gaps[0]:.1e} -> {gaps[-1]:.1e}"] if gaps else []),
                range_of_norms + ("" if signal else ", no group had signal"),
            ]
        ),
        failures=[
            (
                soak.before != soak.after,
                "weights changed at a learning rate of 0: the optimizer, its scheduler or a hook ignores it; it would "
                "ignore yours",
            ),
            (
                bool(gaps) and grows(gaps),
                "the gap between sampler and trainer grows although the weights stand still: the sampler's caches "
                "or its push are at fault",
            ),
            (
                not all(map(math.isfinite, numbers)),
                "a loss or a gradient is not finite: try trainer.precision=32-true, and look at the data",
            ),
            (
                signal and bool(norms) and max(norms) == 0,
                "the gradient is 0 although groups have signal: the loss does not reach the weights",
            ),
            (not norms, "not one optimizer step was made"),
        ],
    )


def grows(gaps: Sequence[float]) -> bool:
    return not gaps[-1] <= max(2 * gaps[0], ROUNDING)


def has_signal(rows: Sequence[Mapping[str, float]]) -> bool:
    """Whether any group of any iteration had; where that is not known, it is taken for granted."""
    return any(row.get("no_signal/frac", 0.0) < 1 for row in rows) or not rows

"""What both domains share: a Lightning epoch is one iteration, and every iteration leaves a row of measurements."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import lightning as L
import torch
from torch import Tensor

from sgrpo_lightning.distributed.gradients import gradient_norm, norm_follows_step
from sgrpo_lightning.metrics import accumulate


class IterationModule(L.LightningModule):
    """Counts iterations of `plan.steps` optimizer steps, measures each, and seeds what is random in it.

    Args:
        plan: the sizes of an iteration: `steps` and `seed`.
        optimizer: parameters -> optimizer.
        scheduler: (optimizer=..., num_training_steps=...) -> learning-rate scheduler, or None.
    """

    def __init__(
        self,
        *,
        plan: Any,
        optimizer: Callable[..., torch.optim.Optimizer],
        scheduler: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__()
        self.plan, self._make_optimizer, self._make_scheduler = plan, optimizer, scheduler
        self._parts: list[Mapping[str, Tensor]] = []
        self._row: dict[str, float] | None = None
        self._started = 0.0

    # ---- what a domain adds ----

    def measured(self) -> Mapping[str, Any]:
        """Metrics of the whole iteration on this rank, beside those in `_parts` of its micro-batches."""
        return {}

    def derived(self, row: Mapping[str, float], seconds: float) -> Mapping[str, float]:
        """What follows from the metrics of all ranks, and from the time that the iteration took."""
        return {}

    # ---- an iteration ----

    def on_train_epoch_start(self) -> None:
        self._started, self._row = time.perf_counter(), None
        self._parts.clear()

    def on_before_optimizer_step(self, _: torch.optim.Optimizer) -> None:
        if not norm_follows_step(self.trainer.strategy):
            self._note_gradient()

    def on_train_batch_end(self, outputs: Any, batch: Any, index: int) -> None:
        last = (index + 1) % self.trainer.accumulate_grad_batches == 0
        if last and norm_follows_step(self.trainer.strategy):
            self._note_gradient()

    def _note_gradient(self) -> None:
        norm = gradient_norm(self, self.trainer.strategy)
        self._parts.append({"grad_norm/mean": norm / self.trainer.world_size, "grad_norm/max": norm})

    @property
    def iteration(self) -> int:
        """Iterations begun before this one."""
        return self.trainer.current_epoch

    def generator(self, *key: object) -> torch.Generator:
        """A source of randomness that depends on the run's seed, the rank and `key` alone."""
        seed = random.Random(f"{self.plan.seed} {self.trainer.global_rank} {key}").getrandbits(63)
        return torch.Generator(self.device).manual_seed(seed)

    # ---- what was measured ----

    @property
    def row(self) -> dict[str, float]:
        """The measurements of the iteration, over all its steps and ranks; callbacks may add to them."""
        if self._row is None:
            self._row = self._measure()
        return self._row

    def _measure(self) -> dict[str, float]:
        seconds = time.perf_counter() - self._started
        metrics: dict[str, Any] = {
            name: value / self.plan.steps if name.endswith(("/mean", "/frac")) else value
            for name, value in accumulate(self._parts).items()
        }
        metrics |= self.measured()
        row = {name: self.over_ranks(name, value) for name, value in metrics.items()}
        row |= self.derived(row, seconds)
        row["learning_rate"] = self.trainer.optimizers[0].param_groups[0]["lr"]
        return {name: value for name, value in row.items() if math.isfinite(value)}

    def over_ranks(self, name: str, value: Any) -> float:
        """The value over all ranks; the suffix of `name` says how: an extreme, else a sum."""
        operation = {"max": "max", "min": "min"}.get(name.rpartition("/")[2], "sum")
        tensor = torch.as_tensor(value, dtype=torch.float32, device=self.device)
        return self.trainer.strategy.reduce(tensor, reduce_op=operation).item()

    # ---- what Lightning asks ----

    def configure_optimizers(self) -> Any:
        optimizer = self._make_optimizer([p for p in self.parameters() if p.requires_grad])
        if self._make_scheduler is None:
            return optimizer
        steps = (self.trainer.max_epochs or 0) * self.plan.steps
        scheduler = self._make_scheduler(optimizer=optimizer, num_training_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

"""Supervised training on demonstrations: the warm start of a policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor

from sgrpo_lightning.distributed.sharding import shard
from sgrpo_lightning.modules.loading import Policy, decoder_layers
from sgrpo_lightning.tasks import Task


class SupervisedModule(L.LightningModule):
    """Maximum likelihood of the demonstrations' tokens, averaged over the tokens that train.

    Args:
        policy: the model and its tokenizer.
        optimizer: parameters -> optimizer.
        scheduler: (optimizer=..., num_training_steps=...) -> learning-rate scheduler, stepped at each optimizer step.
    """

    def __init__(
        self,
        policy: Policy,
        task: Task,
        *,
        optimizer: Callable[..., torch.optim.Optimizer],
        scheduler: Callable[..., Any],
    ) -> None:
        super().__init__()
        self.policy, self.model = policy, policy.model
        self._make_optimizer, self._make_scheduler = optimizer, scheduler

    def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
        logits = self.model(input_ids=batch["input_ids"], use_cache=False).logits
        targets = batch["input_ids"].masked_fill(~batch["loss_mask"], -100)[:, 1:]
        loss = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), targets.flatten())
        self.log("loss/mean", loss)
        return loss

    def configure_model(self) -> None:
        shard(self.trainer.strategy, decoder_layers(self.model), self.model)

    def configure_optimizers(self) -> Any:
        optimizer = self._make_optimizer(self.model.parameters())
        scheduler = self._make_scheduler(optimizer=optimizer, num_training_steps=self.trainer.max_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

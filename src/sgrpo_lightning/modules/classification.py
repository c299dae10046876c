"""Image classification: the policy is the softmax over classes, and a rollout is a sampled label."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sgrpo_lightning.axes import NO_LABEL, ImageBatch
from sgrpo_lightning.distributed.sharding import FullyShardedStrategy, shard
from sgrpo_lightning.evaluation.classification import LabelStatistics
from sgrpo_lightning.metrics.allocation import DIFFICULTY
from sgrpo_lightning.modules.label_loss import LabelLoss
from sgrpo_lightning.modules.loop import IterationModule
from sgrpo_lightning.modules.plan import StepPlan

PASS_RATE_BINS = DIFFICULTY[1:-1]
"""The inner edges."""


class ClassificationModule(IterationModule):
    """Trains a classifier with any objective.

    Args:
        data: its classes, and the mean and spread of its pixels.
        model: (num_classes=..., channels=...) -> network from pixels [B, channels, H, W] to logits [B, C].
        loss: of each image, from its logits and its label.
        plan: the sizes of an iteration.
        optimizer: parameters -> optimizer.
        scheduler: (optimizer=..., num_training_steps=...) -> learning-rate scheduler, or None.
        channels_last: memory format of pixels and weights; faster for most networks on a GPU and on a CPU.
        compile: the network with `torch.compile`.
    """

    mean: Tensor
    std: Tensor
    bin_edges: Tensor

    def __init__(
        self,
        data: Any,
        *,
        model: Callable[..., nn.Module],
        loss: LabelLoss,
        plan: StepPlan,
        optimizer: Callable[..., torch.optim.Optimizer],
        scheduler: Callable[..., Any] | None = None,
        channels_last: bool = True,
        compile: bool = False,
    ) -> None:
        super().__init__(plan=plan, optimizer=optimizer, scheduler=scheduler)
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.model = model(num_classes=data.num_classes, channels=data.channels).to(memory_format=self.memory_format)
        self.loss, self.num_classes = loss, data.num_classes
        for name in ("mean", "std"):  # of pixels from 0 to 255
            values = torch.tensor(getattr(data, name), dtype=torch.float32).mul(255)[:, None, None]
            self.register_buffer(name, values, persistent=False)
        self.register_buffer("bin_edges", torch.tensor(PASS_RATE_BINS), persistent=False)
        self.unreadable: set[str] = set()
        if compile:
            self.model.compile()

    def forward(self, images: Tensor) -> Tensor:
        """Bytes [B, ch, H, W] -> logits [B, C] in float32: the one upcast."""
        pixels = (images.float() - self.mean) / self.std
        return self.model(pixels.contiguous(memory_format=self.memory_format)).float()

    # ---- one step ----

    def training_step(self, batch: ImageBatch, index: int) -> Tensor:
        self._report(batch.unreadable)
        logits, weights, labels = self(batch.images), self.weights(batch), batch.labels.clamp(min=0)
        losses, metrics = self.loss(logits, labels, generator=self.generator("labels", self.iteration, index))
        loss = losses @ weights
        self._measure_step(logits, labels, weights, {"loss/mean": losses, **metrics}, len(batch.unreadable))
        # Lightning divides by the accumulation and averages over ranks; the weights already did both.
        return loss * self.trainer.accumulate_grad_batches * self.trainer.world_size

    def weights(self, batch: ImageBatch) -> Tensor:
        """[B]: each image's share of the global batch; nothing for a row without an image."""
        return (batch.labels != NO_LABEL) / self.plan.batch_size

    def _report(self, names: tuple[str, ...]) -> None:
        for name in sorted(set(names) - self.unreadable):
            self.unreadable.add(name)
            print(f"skipped, cannot be read as an image: {name}", flush=True)

    # ---- what was measured ----

    @torch.no_grad()
    def _measure_step(
        self, logits: Tensor, labels: Tensor, weights: Tensor, metrics: Mapping[str, Tensor], unreadable: int
    ) -> None:
        """Weighted means of what each image shows; the gradient of its logits is added when it is known."""
        log_p = -nn.functional.cross_entropy(logits.detach(), labels, reduction="none")
        bins = torch.bucketize(log_p.exp(), self.bin_edges, right=True)
        images = {
            "cross_entropy/mean": -log_p,
            "p_true/mean": log_p.exp(),
            "top1/frac": (logits.detach().argmax(1) == labels).float(),
            **metrics,
        }
        part = dict(zip(images, torch.stack([*images.values()]).detach() @ weights, strict=True))
        part |= {"unreadable/sum": torch.tensor(float(unreadable))} | by_bin("p_true", "frac", weights, bins)
        self._parts.append(part)
        if logits.requires_grad:
            logits.register_hook(partial(self._measure_gradient, bins))

    @torch.no_grad()
    def _measure_gradient(self, bins: Tensor, gradient: Tensor) -> None:
        """Norm of the gradient of the batch's loss with respect to each image's logits."""
        norms = gradient.norm(dim=1) / self.trainer.world_size
        self._parts.append(by_bin("logit_gradient", "mean", norms, bins))

    def derived(self, row: Mapping[str, float], seconds: float) -> Mapping[str, float]:
        images = self.plan.steps * self.plan.batch_size
        labels = (self.iteration + 1) * images * self.loss.samples
        return {"images_per_second": images / seconds, "samples": labels}

    @torch.no_grad()
    def evaluate(self, batches: Any, *, ks: tuple[int, ...]) -> dict[str, float]:
        """Accuracy, analytic pass@k and cross-entropy of the images in `batches`, over all ranks."""
        statistics = LabelStatistics(num_classes=self.num_classes, ks=ks).to(self.device)
        training = self.training
        self.eval()
        for batch in batches:
            batch = batch.to(self.device)
            self._report(batch.unreadable)
            with self.trainer.precision_plugin.forward_context():
                statistics.update(self(batch.images), batch.labels)
        self.train(training)
        return statistics.compute()

    # ---- what Lightning asks ----

    def setup(self, stage: str) -> None:
        self.trainer.accumulate_grad_batches = self.plan.micro_batches(world_size=self.trainer.world_size)

    def configure_model(self) -> None:
        """Shards the network where the strategy does so by modules: each block, then the rest."""
        if isinstance(self.trainer.strategy, FullyShardedStrategy):
            self.model.to(memory_format=torch.contiguous_format)  # all that it can shard
        stages = [stage for stage in self.model.children() if isinstance(stage, nn.Sequential)]
        blocks = [block for stage in stages for block in stage if any(True for _ in block.parameters())]
        shard(self.trainer.strategy, blocks, self.model)


def by_bin(name: str, suffix: str, values: Tensor, bins: Tensor) -> dict[str, Tensor]:
    """`values` [B] added up over the images of each pass-rate bin."""
    edges = ("0.0", *map(str, PASS_RATE_BINS), "1.0")
    sums = values.new_zeros(len(edges) - 1).index_add_(0, bins, values)
    return {f"{name}/{low}-{high}/{suffix}": total for low, high, total in zip(edges, edges[1:], sums, strict=False)}

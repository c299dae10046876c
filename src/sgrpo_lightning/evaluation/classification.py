"""Held-out images: accuracy, the chance of a right label within k draws, and cross-entropy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from sgrpo_lightning.axes import NO_LABEL


def success_within(log_p: Tensor, k: int) -> Tensor:
    """Chance that one of k sampled labels is right: 1 - (1 - p)^k.

    Args:
        log_p: log-probability of the right label, any shape.
        k: labels drawn, >= 1; 1 gives p.

    Returns:
        float64, of the same shape; keeps its digits however small p is.

    >>> success_within(torch.tensor([0.5]).log(), 3)
    tensor([0.8750], dtype=torch.float64)
    """
    if k < 1:
        raise ValueError(f"k must be >= 1, got {k}")
    return -torch.expm1(k * torch.log1p(-log_p.double().exp().clamp(max=1)))


class LabelStatistics(nn.Module):
    """Accumulates `top1`, `top5`, `cross_entropy` and `pass@k` over batches and ranks.

    Args:
        num_classes: C; with fewer than 5 classes `top5` is left out.
        ks: of pass@k. pass@1 is the mean probability of the right label.
    """

    def __init__(self, *, num_classes: int, ks: Sequence[int]) -> None:
        super().__init__()
        tops: dict[str, Metric | MetricCollection] = {
            f"top{k}": MulticlassAccuracy(num_classes, top_k=k, average="micro", validate_args=False)
            for k in (1, 5)
            if k <= num_classes
        }
        self.accuracy, self.ks = MetricCollection(tops), tuple(ks)
        names = ("cross_entropy", *(f"pass@{k}" for k in self.ks))
        self.means = MetricCollection({name: MeanMetric() for name in names}, compute_groups=False)

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """`logits` [B, C] and `labels` [B]; rows without an image are left out."""
        kept = labels != NO_LABEL
        logits, labels = logits[kept].float(), labels[kept]
        if not len(labels):
            return
        self.accuracy.update(logits, labels)
        log_p = -nn.functional.cross_entropy(logits, labels, reduction="none")
        self.means["cross_entropy"].update(-log_p)
        for k in self.ks:
            self.means[f"pass@{k}"].update(success_within(log_p, k).float())

    def compute(self) -> dict[str, float]:
        return {name: value.item() for name, value in (self.accuracy.compute() | self.means.compute()).items()}

"""Accuracy, pass@k and cross-entropy of held-out images, against a loop and many-digit arithmetic."""

import math

import mpmath
import pytest
import torch

from sgrpo_lightning.axes import NO_LABEL
from sgrpo_lightning.evaluation.classification import LabelStatistics, success_within


def computed(logits, labels, ks=(1, 3), batches=1):
    statistics = LabelStatistics(num_classes=logits.shape[1], ks=ks)
    for part in zip(logits.chunk(batches), labels.chunk(batches), strict=True):
        statistics.update(*part)
    return statistics.compute()


def test_by_hand():
    """Probabilities 1/2, 1/4, 1/4 of the right labels: 1 - (1 - p)^3 is 7/8 and 37/64; -log p is log 2 and 2 log 2."""
    logits = torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25], [0.3, 0.45, 0.25]]).log()
    values = computed(logits, torch.tensor([0, 1, 2]))
    expected = {
        "top1": 1 / 3,
        "cross_entropy": 5 * math.log(2) / 3,
        "pass@1": 1 / 3,
        "pass@3": (7 / 8 + 2 * 37 / 64) / 3,
    }
    assert values == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("batches", [1, 4])
def test_against_a_loop(batches):
    torch.manual_seed(0)
    logits, labels = torch.randn(40, 12) * 2, torch.randint(12, (40,))
    labels[::7] = NO_LABEL
    top1, top5, p = [], [], []
    for row, label in zip(logits.double().tolist(), labels.tolist(), strict=True):
        if label >= 0:
            order = sorted(range(12), key=row.__getitem__, reverse=True)
            top1.append(order[0] == label)
            top5.append(label in order[:5])
            p.append(math.exp(row[label]) / sum(map(math.exp, row)))
    values = computed(logits, labels, ks=(1, 2, 64), batches=batches)
    assert values == pytest.approx(
        {
            "top1": sum(top1) / len(p),
            "top5": sum(top5) / len(p),
            "cross_entropy": -sum(map(math.log, p)) / len(p),
            **{f"pass@{k}": sum(1 - (1 - q) ** k for q in p) / len(p) for k in (1, 2, 64)},
        },
        rel=1e-5,
    )
    assert 0 < values["top1"] < values["top5"] < 1


def test_a_batch_without_images_counts_for_nothing():
    logits, labels = torch.randn(8, 5), torch.randint(5, (8,))
    more = torch.cat([logits, torch.full((8, 5), torch.nan)]), torch.cat([labels, torch.full((8,), NO_LABEL)])
    assert computed(*more, batches=2) == computed(logits, labels)


@pytest.mark.parametrize("k", [1, 7, 1024])
@pytest.mark.parametrize("log_p", [-80.0, -20.0, -1.0, -1e-3, -1e-9, 0.0])
def test_success_within_keeps_its_digits(log_p, k):
    with mpmath.workdps(60):
        expected = 1 - (1 - mpmath.exp(mpmath.mpf(log_p))) ** k
    assert success_within(torch.tensor(log_p, dtype=torch.float64), k).item() == pytest.approx(
        float(expected), rel=1e-12
    )


def test_k_below_one():
    with pytest.raises(ValueError, match="k must be >= 1, got 0"):
        success_within(torch.tensor(0.0), 0)

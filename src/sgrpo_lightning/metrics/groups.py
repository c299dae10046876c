"""What a batch of groups looks like to the learner."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from sgrpo_lightning.metrics.allocation import PASS

NO_SIGNAL = 1e-6
"""Advantages up to this size are rounding: a softmax over equal rewards can miss 1 / M by an ulp."""


def group_metrics(
    rewards: Tensor, advantages: Tensor, *, pass_threshold: float = PASS, num_groups: int | None = None
) -> dict[str, Tensor]:
    """Statistics of rewards and advantages, one value per batch.

    Args:
        rewards: [G, M].
        advantages: [G, M], from any head.
        pass_threshold: a sample passes if its reward is greater: 0.5 separates right from wrong for rewards
            in {0, 1}, and stays robust to rounding and to small partial credit.
        num_groups: groups in the global batch; default G. Given it, parts `accumulate` to the whole exactly.

    Returns:
        0-dim float64 tensors:
        `reward/mean`; `reward_std/mean`, the spread within a group (ddof 0), averaged over groups;
        `pass_rate/mean`, the share of samples that pass;
        `all_pass/frac`, `all_fail/frac`, the shares of groups in which every sample passes, or none does;
        `no_signal/frac`, the share of groups whose advantages are all 0;
        `advantage/max`, `advantage/min` (-inf and inf without groups);
        `ess/mean`, the effective sample size (sum w)^2 / sum w^2, from 1 to M samples, of the weights
        w_i = max(A_i + 1, 0) / M. These are the weights of a softmax head; for any other head it only says
        how unequal the samples are when A + 1 is read that way.

    Edge cases: no groups give zeros; a group whose w are all 0 has ESS 0.

    >>> rewards, advantages = torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([[1.0, -1.0], [0.0, 0.0]])
    >>> metrics = group_metrics(rewards, advantages)
    >>> {name: value.item() for name, value in metrics.items() if name in ("reward/mean", "ess/mean")}
    {'reward/mean': 0.25, 'ess/mean': 1.5}

    Reference: ESS, A.3.
    """
    if rewards.ndim != 2 or rewards.shape != advantages.shape:
        raise ValueError(
            f"rewards and advantages must both be [G, M], got {list(rewards.shape)}, {list(advantages.shape)}"
        )
    rewards, advantages = rewards.detach().double(), advantages.detach().double()
    passed = rewards > pass_threshold
    per_group = {
        "reward/mean": rewards.mean(1),
        "reward_std/mean": (rewards - rewards.mean(1, keepdim=True)).square().mean(1).sqrt(),
        "pass_rate/mean": passed.double().mean(1),
        "all_pass/frac": passed.all(1),
        "all_fail/frac": ~passed.any(1),
        "no_signal/frac": (advantages.abs() <= NO_SIGNAL).all(1),
        "ess/mean": _effective_sample_size((advantages + 1).clamp(min=0)),
    }
    groups = max(1, len(rewards) if num_groups is None else num_groups)
    metrics = {name: values.double().sum() / groups for name, values in per_group.items()}
    metrics["advantage/max"] = pad(advantages.flatten(), (0, 1), value=-math.inf).amax()
    metrics["advantage/min"] = pad(advantages.flatten(), (0, 1), value=math.inf).amin()
    return metrics


def _effective_sample_size(weights: Tensor) -> Tensor:
    tiny = torch.finfo(weights.dtype).tiny
    return weights.sum(1).square() / weights.square().sum(1).clamp(min=tiny)

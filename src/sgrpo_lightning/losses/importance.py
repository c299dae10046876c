"""Weights for the gap between who sampled and who learns.

A sampler with other kernels, another precision or older weights draws from a distribution q that is not quite the
trainer's p. Weighing each term by p / q undoes that in expectation; cutting the weights off keeps their variance
finite at the price of a small bias. Where the two agree all weights are 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .numerics import LOG_RATIO_BOUND, upcast


def token_importance(
    behavior_logprobs: Tensor, sampler_logprobs: Tensor, loss_mask: Tensor, *, cap: float = 2.0, mask: bool = False
) -> Tensor:
    """p / q of each token: little variance, and a bias that the earlier tokens of the row leave.

    Args:
        behavior_logprobs: [N, T] nats, of the trainer before its first step on these samples.
        sampler_logprobs: [N, T] nats, of whoever sampled, at the same temperature.
        loss_mask: bool [N, T], True = trains.
        cap: weights end here, >= 1.
        mask: a token whose weight exceeds the cap counts for nothing, instead of as much as the cap.

    Returns:
        float [N, T] without gradient; 1 where `loss_mask` is False.

    Edge cases: a log-ratio that is not a number gives weight 0: nothing is known of such a token.

    >>> p, q, trains = torch.tensor([[0.5, 0.9]]).log(), torch.tensor([[0.4, 0.3]]).log(), torch.ones(1, 2).bool()
    >>> token_importance(p, q, trains)
    tensor([[1.2500, 2.0000]])
    >>> token_importance(p, q, trains, mask=True)
    tensor([[1.2500, 0.0000]])

    Reference: truncated importance sampling (Ionides, 2008), for samplers of another numeric kind (Yao et al., 2025).
    """
    return _limited(_log_ratio(behavior_logprobs, sampler_logprobs, loss_mask), cap, mask)


def sequence_importance(
    behavior_logprobs: Tensor, sampler_logprobs: Tensor, loss_mask: Tensor, *, cap: float = 2.0, mask: bool = False
) -> Tensor:
    """p / q of the whole completion, for each of its tokens: no bias but the cap's, and a variance that grows with T.

    Args, Returns and edge cases as in `token_importance`; a cut weight is that of all tokens of a row.

    >>> p, q = torch.tensor([[0.5, 0.6]]).log(), torch.tensor([[0.4, 0.5]]).log()
    >>> sequence_importance(p, q, torch.ones(1, 2).bool())
    tensor([[1.5000, 1.5000]])
    """
    log_ratio = _log_ratio(behavior_logprobs, sampler_logprobs, loss_mask).sum(-1, keepdim=True)
    return torch.where(loss_mask, _limited(log_ratio, cap, mask), 1.0)


def _log_ratio(behavior: Tensor, sampler: Tensor, loss_mask: Tensor) -> Tensor:
    return torch.where(loss_mask, upcast(behavior.detach()) - upcast(sampler.detach()), 0.0)


def _limited(log_ratio: Tensor, cap: float, mask: bool) -> Tensor:
    if not cap >= 1:
        raise ValueError(f"cap must be >= 1, got {cap}; the weight of a token on which both agree is 1")
    weights = log_ratio.clamp(max=LOG_RATIO_BOUND).exp().nan_to_num(nan=0.0)
    return weights.masked_fill(weights > cap, 0.0) if mask else weights.clamp(max=cap)

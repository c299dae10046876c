"""The clipped policy-gradient surrogate."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from .numerics import LOG_RATIO_BOUND, upcast


def ppo_surrogate(
    policy_logprobs: Tensor,
    behavior_logprobs: Tensor | None,
    advantages: Tensor,
    weights: Tensor,
    *,
    clip_low: float | None = 0.2,
    clip_high: float | None = 0.28,
    entropy: Tensor | None = None,
    metric_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token importance-weighted surrogate with an asymmetric clip.

    loss = -sum_it w_it min(rho_it A_i, clip(rho_it, 1 - clip_low, 1 + clip_high) A_i),
    rho_it = exp(policy_logprobs - behavior_logprobs).

    Args:
        policy_logprobs: [N, T] nats, with gradient.
        behavior_logprobs: [N, T] nats, of whoever sampled; None = the policy itself, so rho is 1 and the
            gradient is -sum w A grad log pi.
        advantages: [N], one per row.
        weights: [N, T] from a reduction over the global batch; 0 = masked.
        clip_low, clip_high: distances from 1; None = that side is open.
        entropy: [N, T] nats, only logged.
        metric_weights: [N, T] for the metrics alone, where `weights` do not sum to 1 (`fixed_length`).

    Returns:
        The loss, and detached 0-dim metrics that accumulate over micro-batches and ranks by their suffix:
        `clip_low/frac`, `clip_high/frac` (tokens whose clipped branch is active: ratio below with A < 0,
        above with A > 0), `ratio/max`, `ratio/min` (-inf and inf without tokens), `kl_sampler/mean` (the
        estimate rho - 1 - log rho of KL(behaviour || policy)), `entropy/mean` if given.

    Edge cases: a token of weight 0 has exactly zero gradient, even if its log-probabilities are -inf or NaN.
    |log rho| is cut at 20, where the gradient stops. No tokens: loss 0, attached to the graph.

    >>> lp, old = torch.tensor([[0.5, 1.5]]).log(), torch.zeros(1, 2)
    >>> loss, metrics = ppo_surrogate(lp, old, torch.tensor([1.0]), torch.tensor([[0.5, 0.5]]))
    >>> round(loss.item(), 4), metrics["clip_high/frac"].item()  # -(0.5 * 0.5 + 0.5 * 1.28)
    (-0.89, 0.5)

    Reference: Eq. 10; the two-sided range is DAPO's (Yu et al., 2025).
    """
    _check(policy_logprobs, behavior_logprobs, advantages, weights)
    low, high = _clip_range(clip_low, clip_high)
    active = weights != 0
    log_ratio = _log_ratio(policy_logprobs, behavior_logprobs, active)
    ratio = log_ratio.exp()
    gain = torch.where(active, upcast(advantages)[:, None], 0.0)
    # The minimum of the two branches, written out: at a tie the gradient is whole, as it must be at rho = 1.
    too_low, too_high = (ratio < low) & (gain < 0), (ratio > high) & (gain > 0)
    clipped = ratio.masked_fill(too_low, low).masked_fill(too_high, high)
    loss = -(weights * clipped * gain).sum()

    shares = weights if metric_weights is None else metric_weights
    metrics = _ratio_metrics(ratio.detach(), log_ratio.detach(), active, shares)
    metrics["clip_low/frac"] = (shares * too_low).sum()
    metrics["clip_high/frac"] = (shares * too_high).sum()
    if entropy is not None:
        metrics["entropy/mean"] = (shares * torch.where(active, upcast(entropy.detach()), 0.0)).sum()
    return loss, metrics


def _check(policy: Tensor, behavior: Tensor | None, advantages: Tensor, weights: Tensor) -> None:
    shapes = {
        "weights": weights.shape,
        "behavior_logprobs": policy.shape if behavior is None else behavior.shape,
    }
    for name, shape in shapes.items():
        if shape != policy.shape:
            raise ValueError(f"{name} must have the shape of policy_logprobs {list(policy.shape)}, got {list(shape)}")
    if advantages.shape != policy.shape[:1]:
        raise ValueError(f"advantages must be [{policy.shape[0]}], one per row, got {list(advantages.shape)}")


def _clip_range(clip_low: float | None, clip_high: float | None) -> tuple[float, float]:
    """The ratios between which nothing is clipped; an open side never binds, since ratios are in (0, inf)."""
    if clip_low is not None and not 0 <= clip_low <= 1:
        raise ValueError(f"clip_low must lie in [0, 1], got {clip_low}; use None to switch it off")
    if clip_high is not None and not clip_high >= 0:
        raise ValueError(f"clip_high must be >= 0, got {clip_high}; use None to switch it off")
    return 0.0 if clip_low is None else 1.0 - clip_low, math.inf if clip_high is None else 1.0 + clip_high


def _log_ratio(policy: Tensor, behavior: Tensor | None, active: Tensor) -> Tensor:
    # Masked before the subtraction: where() sends back an exact zero, while 0 * NaN after exp() would be NaN.
    policy = torch.where(active, upcast(policy), 0.0)
    behavior = policy if behavior is None else torch.where(active, upcast(behavior), 0.0)
    return (policy - behavior.detach()).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def _ratio_metrics(ratio: Tensor, log_ratio: Tensor, active: Tensor, shares: Tensor) -> dict[str, Tensor]:
    return {
        "ratio/max": _padded(ratio, active, -math.inf).amax(),
        "ratio/min": _padded(ratio, active, math.inf).amin(),
        "kl_sampler/mean": (shares * (log_ratio.expm1() - log_ratio)).sum(),
    }


def _padded(values: Tensor, active: Tensor, neutral: float) -> Tensor:
    """The active values and one neutral element, so that an empty batch has an extreme."""
    return pad(torch.where(active, values, neutral).flatten(), (0, 1), value=neutral)

"""KL(policy || reference) per token, as a penalty to differentiate through.

Write p for the policy, q for the reference and g = log p(z) - log q(z) for a sampled token z. What an
estimator is worth depends on two expectations under z ~ p: of its value, and of its gradient with z held
fixed (this is what a penalty adds to the loss; nothing scores the sampling of z).

| estimator | formula            | E[value]               | E[gradient]                                    |
|-----------|--------------------|------------------------|------------------------------------------------|
| `kl_k1`   | g                  | KL(p||q)               | 0: a pure score, so noise without a pull       |
| `kl_k2`   | g^2 / 2            | KL(p||q) + O(g^3)      | grad KL(p||q), exactly                         |
| `kl_k3`   | exp(-g) - 1 + g    | KL(p||q)               | grad KL(q||p): the forward divergence; equal   |
|           |                    |                        | to grad KL(p||q) to first order around p = q   |
| `kl_full` | sum_v p (log p/q)  | KL(p||q), no variance  | grad KL(p||q), exactly, for this context       |

So `kl_full` is Eq. 11 as written, `kl_k2` its unbiased gradient from one sample, `kl_k1` a quantity to log
(or to fold into rewards), `kl_k3` a different divergence with a bounded pull on tokens that the policy
over-weights. The statements for k1, k2 and k3 hold on-policy: after the first inner step z comes from the
behaviour policy.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from .numerics import LOG_RATIO_BOUND, upcast


def kl_k1(policy_logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """The log-ratio g: unbiased for KL(p||q) in value, zero gradient in expectation. To log, not to train.

    Args:
        policy_logprobs, reference_logprobs: [...] nats, of the sampled tokens; the reference is a constant.

    Returns:
        [...] nats, of either sign.

    Edge cases: a non-finite g keeps its value and loses its gradient, so `kl_penalty` can mask it.

    >>> kl_k1(torch.tensor([-1.0]), torch.tensor([-1.5]))
    tensor([0.5000])

    Reference: Eq. 11, sampled.
    """
    gap = upcast(policy_logprobs) - upcast(reference_logprobs.detach())
    return torch.where(gap.isfinite(), gap, gap.detach())


def kl_k2(policy_logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Half the squared log-ratio: its expected gradient on-policy is that of KL(p||q), its value is biased.

    Args, Returns (>= 0) and edge cases as in `kl_k1`.

    >>> kl_k2(torch.tensor([-1.0]), torch.tensor([-1.5]))  # 0.5 * 0.5^2
    tensor([0.1250])

    Reference: Eq. 11, sampled.
    """
    gap = kl_k1(policy_logprobs, reference_logprobs)
    return 0.5 * gap * gap


def kl_k3(policy_logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """exp(-g) - 1 + g: unbiased for KL(p||q) in value and never negative; its gradient is that of KL(q||p).

    Args, Returns (>= 0) as in `kl_k1`.

    Edge cases: as in `kl_k1`; g is cut at -20, where exp(-g) would overflow, and the gradient stops there.

    >>> kl_k3(torch.tensor([-1.0]), torch.tensor([-1.5]))  # e^-0.5 - 1 + 0.5
    tensor([0.1065])

    Reference: Eq. 11, sampled.
    """
    gap = kl_k1(policy_logprobs, reference_logprobs).clamp(min=-LOG_RATIO_BOUND)
    return (-gap).expm1() + gap


def kl_full(policy_logits: Tensor, reference_logits: Tensor) -> Tensor:
    """Exact KL(p||q) of two next-token distributions.

    KL = sum_v p_v (log p_v - log q_v).

    Args:
        policy_logits, reference_logits: [..., V], at the sampling temperature; the reference is a constant.

    Returns:
        [...] nats, >= 0 up to rounding.

    Edge cases: a token with p = 0 (logit -inf) contributes 0; p > 0 = q gives inf. Pass trained positions
    only: a NaN logit is not masked here.

    >>> policy, reference = torch.zeros(1, 2), torch.tensor([[3.0, 1.0]]).log()
    >>> kl_full(policy, reference)  # 0.5 log(0.5^2 / (0.75 * 0.25))
    tensor([0.1438])

    Reference: Eq. 11.
    """
    return kl_from_log_softmax(log_softmax(upcast(policy_logits), -1), log_softmax(upcast(reference_logits), -1))


def kl_from_log_softmax(policy: Tensor, reference: Tensor) -> Tensor:
    """`kl_full` for logits that are normalised already, [..., V] -> [...]."""
    gap = torch.where(policy > -math.inf, policy - reference.detach(), 0.0)
    return (policy.exp() * gap).sum(-1)


def kl_penalty(
    kl_per_token: Tensor, weights: Tensor, beta: float, *, metric_weights: Tensor | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Weighted KL term of the loss: beta * sum_it w_it KL_it.

    Args:
        kl_per_token: [N, T] nats, from one of the functions above.
        weights: [N, T] from a reduction; 0 = masked.
        beta: coefficient, >= 0.
        metric_weights: [N, T] for the metric alone, where `weights` do not sum to 1 (`fixed_length`).

    Returns:
        The loss, and `kl/mean`: nats per token, without beta.

    Edge cases: tokens of weight 0 count for nothing, whatever they hold.

    >>> kl_penalty(torch.tensor([[0.2, math.nan]]), torch.tensor([[1.0, 0.0]]), beta=0.5)
    (tensor(0.1000), {'kl/mean': tensor(0.2000)})

    Reference: Eq. 11.
    """
    if not beta >= 0:
        raise ValueError(f"beta must be >= 0, got {beta}; use 0 to switch the penalty off")
    kl = torch.where(weights != 0, upcast(kl_per_token), 0.0)
    shares = weights if metric_weights is None else metric_weights
    return beta * (weights * kl).sum(), {"kl/mean": (shares * kl.detach()).sum()}

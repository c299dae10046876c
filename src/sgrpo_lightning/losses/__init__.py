"""Losses: token weights, the clipped surrogate, importance weights, reference KL, chunked log-probabilities."""

from .importance import sequence_importance, token_importance
from .kl import kl_full, kl_k1, kl_k2, kl_k3, kl_penalty
from .logprobs import TokenLogprobs, token_logprobs
from .ppo import ppo_surrogate
from .reductions import fixed_length, group_token_mean, sequence_mean, token_mean

__all__ = [
    "TokenLogprobs",
    "fixed_length",
    "group_token_mean",
    "kl_full",
    "kl_k1",
    "kl_k2",
    "kl_k3",
    "kl_penalty",
    "ppo_surrogate",
    "sequence_importance",
    "sequence_mean",
    "token_importance",
    "token_logprobs",
    "token_mean",
]

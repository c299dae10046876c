"""Metrics: pass@k, majority vote, group statistics, where the gradient goes, accumulation over micro-batches."""

from .allocation import gradient_shares, pass_rates
from .answers import majority_vote, pass_at_k, sampling_error
from .groups import group_metrics
from .reduce import accumulate

__all__ = [
    "accumulate",
    "gradient_shares",
    "group_metrics",
    "majority_vote",
    "pass_at_k",
    "pass_rates",
    "sampling_error",
]

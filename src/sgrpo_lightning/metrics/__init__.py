"""Metrics: pass@k, majority vote, group statistics, accumulation over micro-batches."""

from .answers import majority_vote, pass_at_k
from .groups import group_metrics
from .reduce import accumulate

__all__ = ["accumulate", "group_metrics", "majority_vote", "pass_at_k"]

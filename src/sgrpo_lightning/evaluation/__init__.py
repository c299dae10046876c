"""Evaluation of a policy."""

from sgrpo_lightning.evaluation.held_out import pass_statistics

__all__ = ["pass_statistics"]

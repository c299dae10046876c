"""Evaluation of a policy."""

from sgrpo_lightning.evaluation.held_out import pass_statistics
from sgrpo_lightning.evaluation.text import TextOverlap

__all__ = ["TextOverlap", "pass_statistics"]

"""Rewards for one answer; standard library only."""

from sgrpo_lightning.rewards.countdown import countdown_reward, grade_countdown
from sgrpo_lightning.rewards.outcome import Outcome, Status
from sgrpo_lightning.rewards.reading import read_answer

__all__ = ["Outcome", "Status", "countdown_reward", "grade_countdown", "read_answer"]

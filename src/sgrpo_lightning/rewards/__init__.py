"""Rewards: graders of answers, what they are composed of, and the workers that run the slow ones."""

from sgrpo_lightning.rewards.answers import Answers, Grader
from sgrpo_lightning.rewards.composition import FunctionGrader, WeightedSum
from sgrpo_lightning.rewards.countdown import CountdownGrader, countdown_reward, grade_countdown
from sgrpo_lightning.rewards.exact import ExactGrader
from sgrpo_lightning.rewards.format import FormatGrader, format_reward
from sgrpo_lightning.rewards.math_grading import MathGrader, grade_math, math_reward
from sgrpo_lightning.rewards.outcome import Outcome, Status
from sgrpo_lightning.rewards.policy_logit import AnswerLogprob, AnswerPerplexity
from sgrpo_lightning.rewards.reading import read_answer, read_response
from sgrpo_lightning.rewards.shaping import RewardShaping
from sgrpo_lightning.rewards.similarity import SimilarityGrader, similarity_reward

__all__ = [
    "AnswerLogprob",
    "AnswerPerplexity",
    "Answers",
    "CountdownGrader",
    "ExactGrader",
    "FormatGrader",
    "FunctionGrader",
    "Grader",
    "MathGrader",
    "Outcome",
    "RewardShaping",
    "SimilarityGrader",
    "Status",
    "WeightedSum",
    "countdown_reward",
    "format_reward",
    "grade_countdown",
    "grade_math",
    "math_reward",
    "read_answer",
    "read_response",
    "similarity_reward",
]

"""Rewards: graders of answers, what they are composed of, and the workers that run the slow ones."""

from sgrpo_lightning.rewards.answers import Answers, Grader
from sgrpo_lightning.rewards.composition import FunctionGrader, WeightedSum
from sgrpo_lightning.rewards.countdown import CountdownGrader, countdown_reward, grade_countdown
from sgrpo_lightning.rewards.exact import ExactGrader, grade_exact
from sgrpo_lightning.rewards.format import FormatGrader, format_reward
from sgrpo_lightning.rewards.math_answer import read_math_answer
from sgrpo_lightning.rewards.math_grading import MathGrader, grade_math, math_reward
from sgrpo_lightning.rewards.outcome import Outcome, Status
from sgrpo_lightning.rewards.overlap import rouge_l, squad_f1
from sgrpo_lightning.rewards.policy_logit import AnswerLogprob, AnswerPerplexity
from sgrpo_lightning.rewards.pool import WorkerPool
from sgrpo_lightning.rewards.reading import read_answer, read_reference, read_response
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
    "WorkerPool",
    "countdown_reward",
    "format_reward",
    "grade_countdown",
    "grade_exact",
    "grade_math",
    "math_reward",
    "read_answer",
    "read_math_answer",
    "read_reference",
    "read_response",
    "rouge_l",
    "similarity_reward",
    "squad_f1",
]

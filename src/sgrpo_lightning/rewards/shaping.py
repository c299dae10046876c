"""What training adds to a task's rewards: length penalties, and the handling of overlong completions.

G groups, M samples per group. Evaluation reports the task's rewards as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Shaped:
    """The rewards that are optimised, and what they are made of.

    Args:
        rewards: [G, M], exactly the task's rewards with each of `parts` added in turn.
        parts: name -> [G, M] as it was added; "overlong" and "length", each only where it is at work.
        trains: [G, M], whether the completion's tokens train.
    """

    rewards: Floats
    parts: dict[str, Floats]
    trains: Flags


class RewardShaping:
    """Adds a length penalty and the handling of overlong completions to a task's rewards; by default neither.

    Args:
        length_penalty: "none", "linear" or "group"; see `linear_penalty` and `group_penalty`.
        length_weight: what the penalty is multiplied by, >= 0.
        overlong: what becomes of a completion that the token limit cut off. "keep": nothing. "zero": the task's
            reward becomes 0, or stays where it is below 0. "mask": its tokens do not train; its reward stays in its
            group. "soft": see `soft_overlong`.
        overlong_buffer: the share of the limit, in (0, 1], over which "soft" falls.

    Edge cases:
        Except under "keep", "zero" and "mask" without a length penalty, the rewards leave [0, 1]. Under "zero" the
        length penalty is still added, so that being cut off is never worth more than stopping just before.

    >>> shaped = RewardShaping(overlong="zero")([[1.0, 1.0]], [[5, 8]], [[False, True]], limit=8)
    >>> shaped.rewards.tolist(), shaped.parts["overlong"].tolist(), shaped.trains.tolist()
    ([[1.0, 0.0]], [[0.0, -1.0]], [[True, True]])
    """

    def __init__(
        self,
        *,
        length_penalty: str = "none",
        length_weight: float = 0.1,
        overlong: str = "keep",
        overlong_buffer: float = 0.2,
    ) -> None:
        if length_penalty not in LENGTH_NAMES:
            raise ValueError(f"length_penalty must be one of {', '.join(LENGTH_NAMES)}, got {length_penalty!r}")
        if overlong not in OVERLONG_NAMES:
            raise ValueError(f"overlong must be one of {', '.join(OVERLONG_NAMES)}, got {overlong!r}")
        if not 0 <= length_weight < np.inf:
            raise ValueError(f"length_weight must be finite and >= 0, got {length_weight}")
        if not 0 < overlong_buffer <= 1:
            raise ValueError(f"overlong_buffer must be a share of the limit in (0, 1], got {overlong_buffer}")
        self.length_penalty, self.length_weight = length_penalty, length_weight
        self.overlong, self.overlong_buffer = overlong, overlong_buffer

    def __call__(self, rewards: ArrayLike, lengths: ArrayLike, truncated: ArrayLike, *, limit: int) -> Shaped:
        """Shape the rewards of an iteration.

        Args:
            rewards: [G, M], the task's.
            lengths: [G, M] in tokens.
            truncated: [G, M], whether the token limit came before an end token.
            limit: of tokens of a completion, > 0.
        """
        task, tokens = np.asarray(rewards, np.float64), np.asarray(lengths, np.float64)
        cut = np.asarray(truncated, np.bool_)
        if task.ndim != 2 or not task.shape == tokens.shape == cut.shape:
            raise ValueError(f"expected three arrays [G, M], got shapes {task.shape}, {tokens.shape}, {cut.shape}")
        if not limit > 0:
            raise ValueError(f"limit must be > 0 tokens, got {limit}")
        parts = {}
        if self.overlong == "zero":
            parts["overlong"] = zero_overlong(task, cut)
        if self.overlong == "soft":
            parts["overlong"] = soft_overlong(tokens, cut, limit, buffer=self.overlong_buffer)
        if self.length_penalty != "none":
            parts["length"] = self.length_weight * LENGTH_PENALTIES[self.length_penalty](tokens, task, limit)
        trains = ~cut if self.overlong == "mask" else np.ones_like(cut)
        return Shaped(sum(parts.values(), start=task), parts, trains)


def linear_penalty(lengths: Floats, rewards: Floats, limit: int) -> Floats:
    """-length / limit, in [-1, 0].

    >>> linear_penalty(np.array([[0.0, 3.0, 4.0]]), np.zeros((1, 3)), 4).tolist()
    [[-0.0, -0.75, -1.0]]
    """
    return -lengths / limit


def group_penalty(lengths: Floats, rewards: Floats, limit: int) -> Floats:
    """0.5 - (length - shortest) / (longest - shortest) within each group, in [-0.5, 0.5].

    A right answer (reward > 0.5) gets all of it, so that a short one gains; any other at most 0.

    Edge cases:
        A group whose lengths are all equal gets 0.

    >>> group_penalty(np.array([[10.0, 20.0, 30.0, 10.0]]), np.array([[1.0, 1.0, 1.0, 0.0]]), 50).tolist()
    [[0.5, 0.0, -0.5, 0.0]]

    Reference: Kimi k1.5, arXiv 2501.12599, section 2.3.3, length penalty.
    """
    shortest = lengths.min(-1, keepdims=True)
    spread = lengths.max(-1, keepdims=True) - shortest
    score = 0.5 - (lengths - shortest) / np.where(spread > 0, spread, 1.0)
    return np.where(spread > 0, np.where(rewards > 0.5, score, np.minimum(score, 0.0)), 0.0)


def zero_overlong(rewards: Floats, truncated: Flags) -> Floats:
    """What takes a truncated completion's reward to 0; a reward below 0 is not raised.

    >>> zero_overlong(np.array([[0.75, 0.75, -2.0]]), np.array([[True, False, True]])).tolist()
    [[-0.75, 0.0, 0.0]]
    """
    return np.where(truncated, 0.0 - np.maximum(rewards, 0.0), 0.0)


def soft_overlong(lengths: Floats, truncated: Flags, limit: int, *, buffer: float) -> Floats:
    """0 up to (1 - buffer) * limit tokens, then falling linearly to -1 at the limit; -1 if truncated.

    Args:
        buffer: as a share of the limit. The reference's 4,096 of 20,480 tokens are 0.2.

    >>> soft_overlong(np.array([[16.0, 18.0, 20.0, 7.0]]), np.array([[False] * 3 + [True]]), 20, buffer=0.2).tolist()
    [[0.0, -0.5, -1.0, -1.0]]

    Reference: DAPO, arXiv 2503.14476, Eq. 13.
    """
    # In tokens from the limit, so that both ends are exact.
    fallen = np.clip(1.0 + (lengths - limit) / (buffer * limit), 0.0, 1.0)
    return 0.0 - np.where(truncated, 1.0, fallen)


LENGTH_PENALTIES = {"linear": linear_penalty, "group": group_penalty}
LENGTH_NAMES = ("none", *LENGTH_PENALTIES)
OVERLONG_NAMES = ("keep", "zero", "mask", "soft")

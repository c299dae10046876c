"""Success over several samples of one question."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

Counts = TypeVar("Counts", float, np.ndarray, Tensor)


def pass_at_k(correct: Counts, total: Counts | int, *, k: int) -> Counts:
    """Unbiased chance that at least one of k samples is right, from `correct` successes among `total`.

    pass@k = 1 - C(n - c, k) / C(n, k) = 1 - prod_{j<k} (n - c - j) / (n - j): a product of k factors
    of at most 1, so no large binomial is ever formed.

    Args:
        correct: c, a number or an array of counts.
        total: n, a number or an array that broadcasts with `correct`.
        k: samples that may be drawn, 1 <= k <= n.

    Returns:
        Elementwise, in float64: a tensor if an argument is one, else an array if one is, else a float.

    Edge cases: c > n - k gives exactly 1, c = 0 exactly 0.

    >>> pass_at_k(1, 4, k=2)  # 1 - C(3, 2) / C(4, 2)
    0.5
    >>> pass_at_k(np.array([0, 1, 4]), 4, k=1)
    array([0.  , 0.25, 1.  ])

    Reference: Chen et al., 2021, Eq. 1.
    """
    c, n = torch.broadcast_tensors(*(torch.as_tensor(x, dtype=torch.float64) for x in (correct, total)))
    _check_counts(c, n, k)
    draws = torch.arange(k, dtype=torch.float64, device=n.device)
    factors = ((n - c)[..., None] - draws) / (n[..., None] - draws)  # one is 0 where k > n - c
    result = 1 - factors.prod(-1)
    if isinstance(correct, Tensor) or isinstance(total, Tensor):
        return result
    if np.ndim(correct) or np.ndim(total):
        return result.numpy()
    return result.item()


def _check_counts(correct: Tensor, total: Tensor, k: int) -> None:
    if k < 1:
        raise ValueError(f"k must be >= 1, got {k}")
    if bool((total < k).any()):
        raise ValueError(f"k must not exceed total, got k = {k} with total = {total.min().item():g}; draw more samples")
    if bool((correct < 0).any()):
        raise ValueError(f"correct must be >= 0, got {correct.min().item():g}")
    if bool((correct > total).any()):
        raise ValueError(f"correct must not exceed total, got {correct[correct > total][0].item():g} correct")


def sampling_error(pass_at_1: float, pass_at_2: float, *, samples: int | float) -> float:
    r"""Standard error of pass@1 on these very questions, from the draws of the answers alone.

    $$\sqrt{\frac{\text{pass@2} - \text{pass@1}}{\text{samples}}}, \quad
      \text{pass@2} - \text{pass@1} = E[p (1 - p)]$$

    p (1 - p), the variance of one answer to a question, is the chance that a second try helps where the first
    failed. The questions are taken as they are: other questions would add an error of their own.

    Args:
        pass_at_1, pass_at_2: means over the questions, from as many answers to each.
        samples: answers in all.

    Returns:
        In units of pass@1; 0 where a second try never helps.

    >>> round(sampling_error(0.3, 0.51, samples=2112), 4)
    0.01
    """
    if samples < 1:
        raise ValueError(f"samples must be >= 1, got {samples}")
    return math.sqrt(max(0.0, pass_at_2 - pass_at_1) / samples)


def majority_vote(answers: Sequence[Hashable | None], correct: Sequence[bool | float]) -> float:
    """Correctness of the most common answer among the samples of one question.

    Args:
        answers: one per sample, as a comparable value; None where none was read, which never votes.
        correct: one per sample, in [0, 1].

    Returns:
        In [0, 1]. Answers that tie for first place count equally: the expectation of a random tie-break.

    Edge cases: no answers give 0. If the same answer was graded in different ways, its grades are averaged.

    >>> majority_vote(["7", "8", "7", None], [True, False, True, False])
    1.0
    >>> majority_vote(["7", "8"], [True, False])
    0.5
    """
    grades: dict[Hashable, list[float]] = defaultdict(list)
    for answer, grade in zip(answers, correct, strict=True):
        if answer is not None:
            grades[answer].append(float(grade))
    if not grades:
        return 0.0
    votes = max(len(votes) for votes in grades.values())
    winners = [sum(given) / votes for given in grades.values() if len(given) == votes]
    return sum(winners) / len(winners)

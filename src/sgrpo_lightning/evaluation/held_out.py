"""Held-out accuracy from several samples of each question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from sgrpo_lightning.metrics import majority_vote, pass_at_k
from sgrpo_lightning.rewards import Outcome


def pass_statistics(outcomes: Sequence[Outcome], *, samples: int, ks: Iterable[int]) -> dict[str, float]:
    """Sums over questions of pass@k (unbiased) and of the majority vote, and the number of questions.

    Sums, so that ranks can be added before dividing by `questions`.

    Args:
        outcomes: of G * samples answers, those of one question side by side. Right means the status `ok`: of a
            composed reward that of its first part.
        samples: answers of each question.
        ks: each at most `samples`.
    """
    right = np.array([outcome.status == "ok" for outcome in outcomes]).reshape(-1, samples)
    answers = np.array([outcome.answer for outcome in outcomes], dtype=object).reshape(-1, samples)
    sums = {f"pass@{k}": float(np.sum(pass_at_k(right.sum(1), samples, k=k))) for k in ks}
    sums[f"maj@{samples}"] = sum(majority_vote(a.tolist(), r.tolist()) for a, r in zip(answers, right, strict=True))
    return {**sums, "questions": float(len(right))}

"""Which prompts a batch of groups spends its gradient on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

PASS = 0.5
"""A reward above it is a pass."""

DIFFICULTY = (0.0, 0.2, 0.5, 0.7, 0.9, 1.0)
"""Edges of the bins of pass rates of Table 3."""


def pass_rates(rewards: ArrayLike) -> np.ndarray:
    """Share of each group's samples that pass: those with a reward above 0.5.

    Args:
        rewards: [G, M], an array, or a tensor on the CPU.

    Returns:
        [G], in float64. Of M samples it is a multiple of 1 / M: it only estimates what the policy does.

    >>> pass_rates([[1.0, 0.6, 0.9, 0.5], [0.0, 0.0, 0.0, 1.0]]).tolist()
    [0.75, 0.25]
    """
    return (np.asarray(rewards) > PASS).mean(-1)


def gradient_shares(advantages: ArrayLike, rates: ArrayLike, *, edges: Sequence[float] = DIFFICULTY) -> np.ndarray:
    """Which share of all advantage, in size, goes to the groups of each bin of pass rates.

        sum over groups of the bin of sum_i |A_i|, divided by the same sum over all groups

    It is the share of the gradient budget if every token has the same share of its group's weight and
    log-probabilities have gradients of one size.

    Args:
        advantages: [G, M], from any head.
        rates: [G], pass rates of the groups.
        edges: ascending; a bin has its lower edge, and the last one its upper edge too.

    Returns:
        [bins], of sum 1; zeros where no advantage differs from 0.

    >>> gradient_shares([[3.0, -1.0, -1.0, -1.0], [0.5, 0.5, 0.5, -1.5]], [0.25, 0.75], edges=(0, 0.5, 1)).tolist()
    [0.6666666666666666, 0.3333333333333333]

    Reference: Table 3.
    """
    sizes, where = np.abs(np.asarray(advantages, dtype=float)).sum(-1), np.asarray(rates)
    if sizes.shape != where.shape or where.ndim != 1:
        raise ValueError(f"advantages [G, M] need rates [G], got rates {list(where.shape)}, groups {list(sizes.shape)}")
    spent = np.histogram(where, bins=edges, weights=sizes)[0]
    return spent / total if (total := spent.sum()) else np.zeros(len(spent))

"""A weighted sum of heads."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sgrpo_lightning.heads.contract import Groups, advantage_head


@advantage_head()
def mix_advantages(groups: Groups, *, heads: Sequence[Callable[[Tensor], Tensor]], weights: Sequence[float]) -> Tensor:
    r"""Weighted sum of the advantages of several heads.

    $$A_i = \sum_h \lambda_h A^{(h)}_i$$

    Args:
        rewards: [..., M], on a scale that suits every head.
        heads: any functions rewards [..., M] -> advantages [..., M], with their knobs bound.
        weights: one finite number per head, of either sign.

    Returns:
        Advantages [..., M], with the weighted sum of the heads' prompt weights as their prompt weight.

    Edge cases: M = 1 and equal rewards give 0, whatever the heads say.

    >>> import torch
    >>> from sgrpo_lightning.heads import maxrl_advantages, rloo_advantages
    >>> mix_advantages(torch.tensor([1.0, 0.0]), heads=[maxrl_advantages, rloo_advantages], weights=[1, 2])
    tensor([ 3., -3.])
    """
    if len(heads) != len(weights) or not heads:
        raise ValueError(f"heads and weights must pair up, got {len(heads)} heads and {len(weights)} weights")
    if not all(math.isfinite(weight) for weight in weights):
        raise ValueError(f"weights must be finite, got {list(weights)}")
    total = torch.zeros_like(groups.rewards)
    for head, weight in zip(heads, weights, strict=True):
        total.add_(head(groups.rewards), alpha=weight)
    return total.masked_fill_(groups.low == groups.high, 0)

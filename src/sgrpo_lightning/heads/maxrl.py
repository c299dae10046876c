"""MaxRL: likelihood weighting from success counts."""

import torch
from torch import Tensor

from sgrpo_lightning.heads.contract import Groups, advantage_head, refuse


@advantage_head("zero_sum", "scale_invariant")
def maxrl_advantages(groups: Groups) -> Tensor:
    r"""Deviation of a reward from the mean of its group, relative to that mean.

    $$A_i = \frac{r_i - \bar r}{\bar r}$$

    Args:
        rewards: [..., M], all >= 0.

    Returns:
        Advantages [..., M] without unit in [-1, M - 1], summing to zero over each group.

    Edge cases: a group of zeros gives 0, as M = 1 and equal rewards do.

    Raises:
        ValueError: a reward is negative.

    >>> import torch
    >>> maxrl_advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]))
    tensor([[ 3., -1., -1., -1.],
            [ 0.,  0.,  0.,  0.]])

    Reference: Eq. 5, truncation T = M - 1; Tajwar et al. 2026 (arXiv 2602.02710).
    """
    if (groups.low < 0).any():
        refuse(groups.rewards, groups.rewards < 0, ">= 0 for MaxRL")
    mean = groups.rewards.mean(-1, keepdim=True)
    return groups.deviations().div_(mean.clamp_(min=torch.finfo(mean.dtype).tiny))

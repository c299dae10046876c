"""REINFORCE with the group mean as its baseline."""

from torch import Tensor

from sgrpo_lightning.heads.contract import Groups, advantage_head


@advantage_head("zero_sum", "shift_invariant", "scale_equivariant")
def reinforce_advantages(groups: Groups) -> Tensor:
    r"""Reward minus the mean of its group.

    $$A_i = r_i - \bar r$$

    Args:
        rewards: [..., M], any finite scale.

    Returns:
        Advantages [..., M] in units of the reward, summing to zero over each group.

    Edge cases: M = 1 and equal rewards give 0.

    >>> import torch
    >>> reinforce_advantages(torch.tensor([1.0, 0.0, 0.0, 1.0]))
    tensor([ 0.5000, -0.5000, -0.5000,  0.5000])

    Reference: Table 1 (REINFORCE); the mean contains the sample itself, so the weight is (M - 1) / M.
    """
    return groups.deviations()

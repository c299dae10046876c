"""Dr. GRPO: GRPO without the division by the standard deviation."""

from torch import Tensor

from sgrpo_lightning.heads.contract import Groups, advantage_head


@advantage_head("zero_sum", "shift_invariant", "scale_equivariant")
def dr_grpo_advantages(groups: Groups) -> Tensor:
    r"""Reward minus the mean of its group; the loss is to be divided by a fixed length.

    $$A_i = r_i - \bar r$$

    Args:
        rewards: [..., M], any finite scale.

    Returns:
        Advantages [..., M] in units of the reward, summing to zero over each group.

    Edge cases: M = 1 and equal rewards give 0.

    >>> import torch
    >>> dr_grpo_advantages(torch.tensor([1.0, 0.0, 0.0, 0.0]))
    tensor([ 0.7500, -0.2500, -0.2500, -0.2500])

    Reference: Liu et al. 2025 (arXiv 2503.20783). The advantages are those of `reinforce_advantages`; the
    other half of the method is `reduction=fixed_length`.
    """
    return groups.deviations()

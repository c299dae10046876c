"""RLOO: REINFORCE with a leave-one-out baseline."""

from torch import Tensor

from sgrpo_lightning.heads.contract import Groups, advantage_head


@advantage_head("zero_sum", "shift_invariant", "scale_equivariant")
def rloo_advantages(groups: Groups) -> Tensor:
    r"""Reward minus the mean of the other samples of its group.

    $$A_i = r_i - \frac{1}{M - 1} \sum_{j \ne i} r_j = \frac{M}{M - 1} (r_i - \bar r)$$

    Args:
        rewards: [..., M], any finite scale.

    Returns:
        Advantages [..., M] in units of the reward, summing to zero over each group. They are unbiased: the
        weight on the gradient of the pass rate is 1 at every M >= 2.

    Edge cases: M = 1 has no other sample and gives 0, as equal rewards do.

    >>> import torch
    >>> rloo_advantages(torch.tensor([1.0, 0.0, 0.0]))
    tensor([ 1.0000, -0.5000, -0.5000])

    Reference: Kool et al. 2019, Buy 4 REINFORCE samples; Ahmadian et al. 2024 (arXiv 2402.14740).
    """
    return groups.deviations().mul_(groups.size / max(groups.size - 1, 1))

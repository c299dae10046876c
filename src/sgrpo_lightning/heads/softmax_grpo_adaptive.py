"""SoftmaxGRPO whose temperature follows an effective sample size."""

import math

from torch import Tensor

from sgrpo_lightning.heads.contract import Groups, advantage_head
from sgrpo_lightning.heads.softmax_grpo import tilted_advantages
from sgrpo_lightning.heads.temperature import ess_temperature


@advantage_head("zero_sum", "shift_invariant", "scale_invariant")
def adaptive_softmax_grpo_advantages(groups: Groups, *, ess_fraction: float, tau_floor: float = 0.05) -> Tensor:
    r"""Softmax advantages at the temperature that gives each group's weights the same effective sample size.

    $$A_i = M w_i - 1, \quad \mathrm{ESS} = \frac{1}{\sum_i w_i^2} = f M
      \iff \frac{1}{M} \sum_i A_i^2 = \frac{1}{f} - 1$$

    Args:
        rewards: [..., M], any finite scale.
        ess_fraction: f, the effective sample size as a fraction of M, in (0, 1).
        tau_floor: the least tau, in units of the group's spread (highest reward minus lowest), > 0.

    Returns:
        Advantages [..., M] without unit, summing to zero over each group. Where the target is met their root
        mean square is sqrt(1 / f - 1); with two reward levels they are GRPO's (ddof = 0) times that.

    Edge cases: tau is the floor where the target needs less, above all where f M or more samples share the
    highest reward, for the ESS of their weights is larger at any tau. M = 1 and equal rewards give 0.

    >>> import torch
    >>> adaptive_softmax_grpo_advantages(torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0]), ess_fraction=0.5)
    tensor([ 2.0000, -0.5000, -0.5000, -0.5000, -0.5000])

    Reference: Appendix A.3 for two reward levels, a root find for more.
    """
    if not 0 < ess_fraction < 1:
        raise ValueError(f"ess_fraction must lie in (0, 1), got {ess_fraction}")
    if not 0 < tau_floor < math.inf:
        raise ValueError(f"tau_floor must be > 0 and finite, got {tau_floor}")
    return tilted_advantages(groups, ess_temperature(groups, ess_fraction, tau_floor))

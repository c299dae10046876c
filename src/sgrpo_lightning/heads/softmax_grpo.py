"""SoftmaxGRPO: temperature-scaled softmax advantages."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from sgrpo_lightning.heads.contract import Groups, advantage_head

_REACH = 16.0  # in temperatures: exp(16) outweighs thousands of samples at exp(0), and is far from overflow
_GENTLE = 2.0**-4  # in temperatures: a spread below it leaves too few digits in exp(x) - 1


@advantage_head("zero_sum", "shift_invariant")
def softmax_grpo_advantages(groups: Groups, *, tau: float) -> Tensor:
    r"""M times the softmax weight of a reward in its group, minus one.

    $$A_i = M w_i - 1, \quad w_i = \frac{e^{r_i / \tau}}{\sum_j e^{r_j / \tau}}$$

    Args:
        rewards: [..., M]; the usual range of tau is meant for rewards in [0, 1].
        tau: temperature in units of the reward, > 0. Large tau tends to (r - mean) / tau, small tau shares M
            among the best samples.

    Returns:
        Advantages [..., M] without unit in [-1, M - 1], summing to zero over each group.

    Edge cases: M = 1 and equal rewards give 0.

    >>> import torch
    >>> softmax_grpo_advantages(torch.tensor([1.0, 0.0, 0.0, 0.0]), tau=0.1)
    tensor([ 2.9995, -0.9998, -0.9998, -0.9998])

    Reference: Eq. 1.
    """
    if not 0 < tau < math.inf:
        raise ValueError(f"tau must be > 0 and finite, got {tau}")
    limits = torch.finfo(groups.low.dtype)
    return tilted_advantages(groups, torch.full_like(groups.low, min(max(tau, limits.tiny), limits.max)))


def tilted_advantages(groups: Groups, tau: Float[Tensor, "*G 1"]) -> Float[Tensor, "*G M"]:
    """Eq. 1 with a temperature per group: (u - mean u) / (1 + mean u), u = exp((r - reference) / tau) - 1.

    Nothing cancels when the lowest reward is the reference; `_REACH` bounds u where that one is far down.
    """
    reference = torch.maximum(groups.low, groups.high - _REACH * tau)
    excess = (groups.rewards - reference).div_(tau).exp_().sub_(1)  # exp costs half of expm1
    spread = groups.high - groups.low
    gentle = ((spread > 0) & (spread < _GENTLE * tau)).squeeze(-1)
    if gentle.any():
        excess[gentle] = (groups.rewards[gentle] - groups.low[gentle]).div_(tau[gentle]).expm1_()
    mean = excess.mean(-1, keepdim=True)
    return excess.sub_(mean).div_(mean.add_(1))

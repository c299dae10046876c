"""Policy gradient of pass@k."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from sgrpo_lightning.heads.contract import Groups, advantage_head, count_winners


@advantage_head("zero_sum", "shift_invariant", "scale_equivariant")
def pass_at_k_advantages(groups: Groups, *, k: int) -> Tensor:
    r"""Best of a sample and k - 1 others, against the best of k others.

    $$A_i = k \bigl( E_B[\max(r_i, r_B)] - E_C[\max r_C] \bigr), \quad |B| = k - 1, \; |C| = k$$

    over subsets of the other samples. Rewards 0 and 1 give pass@k, with weight k (1 - p)^(k - 1) exactly on
    the gradient of the pass rate p; other rewards give max@k.

    Args:
        rewards: [..., M], any finite scale.
        k: samples of which the best counts, 1 <= k <= M; 1 is RLOO.

    Returns:
        Unbiased advantages [..., M] in units of the reward, summing to zero over each group if k < M.

    Edge cases: k = M leaves no C and takes max r_B for it, so that only a lone best sample has an advantage,
    M times its lead. M = 1 and equal rewards give 0.

    >>> import torch
    >>> pass_at_k_advantages(torch.tensor([1.0, 0.0, 0.0, 0.0]), k=2)
    tensor([ 2.0000, -0.6667, -0.6667, -0.6667])
    """
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= groups.size:
        raise ValueError(f"k must be an integer from 1 to samples per group = {groups.size}, got {k!r}")
    won, lost = (values.to(groups.low) for values in _pass_or_fail(groups.size, k))
    positions, spread = groups.positions(), groups.high - groups.low
    winners, graded = count_winners(positions)
    failures = groups.size - winners
    advantages = positions.mul_((won - lost).take(failures) * spread).add_(lost.take(failures) * spread)
    if graded.any():
        advantages[graded] = _by_levels(groups.rewards[graded], won[1:-1], lost[1:-1])
    return advantages


def _pass_or_fail(M: int, k: int) -> tuple[Float[Tensor, " M+1"], Float[Tensor, " M+1"]]:
    """Advantages of a pass and of a failure in a group with 0, ..., M failures, for rewards 0 and 1."""
    failures = torch.arange(M + 1, dtype=torch.float64)
    kept = (failures - k).clamp_(min=0) / failures  # C(F - 1, k) / C(F, k)
    won = pad(k * pad(kept[1:M].flip(0).cumprod(0), (1, 0), value=1.0).flip(0), (0, 1))
    return won, won * (failures - M) / failures.clamp(min=1) * (k < M)


def _by_levels(rewards: Float[Tensor, "R M"], won: Tensor, lost: Tensor) -> Float[Tensor, "R M"]:
    """A maximum is the sum of the gaps it clears, each of which is a pass or a failure of its own."""
    levels, order = rewards.sort(dim=-1)
    gaps = levels.diff(dim=-1)
    passed, failed = (gaps * won).cumsum(-1), (gaps * lost).flip(-1).cumsum(-1).flip(-1)
    return torch.empty_like(levels).scatter_(-1, order, pad(passed, (1, 0)) + pad(failed, (0, 1)))

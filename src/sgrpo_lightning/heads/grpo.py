"""GRPO: rewards standardised within their group."""

import torch
from torch import Tensor

from sgrpo_lightning.heads.contract import Groups, advantage_head


@advantage_head("zero_sum", "shift_invariant")
def grpo_advantages(groups: Groups, *, ddof: int = 1, eps: float = 1e-6) -> Tensor:
    r"""Z-score of a reward in its group.

    $$A_i = \frac{r_i - \bar r}{s + \epsilon}, \quad s^2 = \frac{1}{M - d} \sum_j (r_j - \bar r)^2$$

    Args:
        rewards: [..., M], any finite scale.
        ddof: d; 1 for the sample and 0 for the population standard deviation.
        eps: added to s, in units of the reward.

    Returns:
        Advantages [..., M] without unit, summing to zero over each group.

    Edge cases: M = 1 and equal rewards give 0, with eps = 0 too.

    >>> import torch
    >>> grpo_advantages(torch.tensor([1.0, 0.0, 0.0, 1.0]), ddof=0)
    tensor([ 1.0000, -1.0000, -1.0000,  1.0000])

    Reference: Shao et al. 2024 (arXiv 2402.03300); its weight in Table 1 is the large-M form.
    """
    if ddof not in (0, 1):
        raise ValueError(f"ddof must be 0 or 1, got {ddof}")
    if not 0 <= eps < float("inf"):
        raise ValueError(f"eps must be >= 0 and finite, got {eps}")
    deviations = groups.deviations()
    norm = torch.linalg.vector_norm(deviations, dim=-1, keepdim=True)
    scale = norm.div_(max(groups.size - ddof, 1) ** 0.5).add_(eps)
    return deviations.div_(scale.clamp_(min=torch.finfo(scale.dtype).tiny))

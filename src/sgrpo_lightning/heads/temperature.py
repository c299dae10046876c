"""The temperature at which softmax weights have a given effective sample size."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from sgrpo_lightning.heads.contract import Groups, count_winners
from sgrpo_lightning.heads.softmax_grpo import tilted_advantages


def ess_temperature(groups: Groups, ess_fraction: float, tau_floor: float) -> Float[Tensor, "*G 1"]:
    """tau with 1 / sum(w^2) = ess_fraction * M, or tau_floor * spread where that is larger; > 0 in any case.

    Reference: Appendix A.3.
    """
    positions = groups.positions()
    winners, graded = count_winners(positions)
    two_level = _two_level_sharpness(groups.size, ess_fraction * groups.size).clamp_(max=1 / tau_floor)
    sharpness = two_level.to(positions).take(winners)
    if graded.any():
        sharpness[graded] = _graded_sharpness(positions[graded], 1 / ess_fraction - 1, 1 / tau_floor)
    tau = (groups.high - groups.low).div_(sharpness)
    return tau.clamp_(min=torch.finfo(tau.dtype).tiny)


def _two_level_sharpness(M: int, ess: float) -> Float[Tensor, " M+1"]:
    """spread / tau = log c by number of winners k, from c - 1 for ess near M; infinite where k >= ess."""
    k = torch.arange(M + 1, dtype=torch.float64).clamp_(min=1)  # no winners: no spread, any tau
    beyond_one = (k * (M - ess) + (k * (M - k) * ess * (M - ess)).sqrt_()) / (k * (ess - k))
    return torch.where(k < ess, beyond_one.log1p_(), math.inf)


def _graded_sharpness(positions: Float[Tensor, "R M"], target: float, most: float) -> Float[Tensor, "R 1"]:
    """spread / tau up to `most` at which mean(A^2), which rises with it, reaches `target`: by bisection.

    Whatever the rewards in [0, 1], mean(A^2) <= sinh(sharpness / 2)^2 (Kantorovich), which bounds it below.
    """
    least = min(2 * math.asinh(math.sqrt(target)), most)
    low = positions.new_full((len(positions), 1), math.log(least))
    high = torch.full_like(low, math.log(most))
    groups = Groups(positions, torch.zeros_like(low), torch.ones_like(low))
    for _ in range(24 if low.dtype == torch.float32 else 52):  # to the precision of the dtype
        middle = (low + high).div_(2)
        reached = tilted_advantages(groups, middle.neg().exp_()).square_().mean(-1, keepdim=True) >= target
        low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
    return high.exp_()

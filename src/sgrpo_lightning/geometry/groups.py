"""Call an advantage head on enumerated groups and check that it treats equal rewards alike."""

from collections.abc import Callable

import numpy as np
import torch

Head = Callable[[torch.Tensor], torch.Tensor]


def evaluate_head(head: Head, levels: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Advantages of the groups whose rewards are `levels[index]`.

    Args:
        head: any callable from rewards [..., M] to advantages [..., M], in whatever precision it works.
        levels: the K distinct rewards.
        index: [N, M] integers below K, the level of each sample.

    Returns:
        Advantages [N, M] in float64.

    Raises:
        ValueError: the answer has another shape, is not finite, or depends on where in its group a sample
            stands (beyond the square root of the machine epsilon of the head's own dtype).
    """
    rewards = torch.from_numpy(levels[index])
    with torch.no_grad():
        advantages = head(rewards)
    if getattr(advantages, "shape", None) != rewards.shape:
        raise ValueError(
            f"{_name(head)} must map rewards {list(rewards.shape)} to advantages of that shape, "
            f"got {list(getattr(advantages, 'shape', [])) or type(advantages).__name__}"
        )
    tolerance = torch.finfo(advantages.dtype).eps ** 0.5 if advantages.is_floating_point() else 0.0
    values = advantages.detach().cpu().double().numpy()
    if not np.isfinite(values).all():
        group = index[~np.isfinite(values).all(axis=-1)][0]
        raise ValueError(
            f"{_name(head)} must give finite advantages, got {values[~np.isfinite(values)][0]} "
            f"on a group with rewards {_preview(levels[group])}"
        )
    _check_equivariance(_name(head), levels, index, values, tolerance)
    return values


def _check_equivariance(
    name: str, levels: np.ndarray, index: np.ndarray, advantages: np.ndarray, tolerance: float
) -> None:
    scale = np.abs(advantages).max(initial=0.0)
    for level, reward in enumerate(levels):
        same = index == level
        low = np.where(same, advantages, np.inf).min(axis=-1)
        high = np.where(same, advantages, -np.inf).max(axis=-1)
        worst = (high - low).argmax()
        if high[worst] - low[worst] > tolerance * scale:
            raise ValueError(
                f"{name} must be permutation-equivariant (equal rewards, equal advantages), "
                f"got {low[worst]:.6g} and {high[worst]:.6g} for reward {reward:g} "
                f"in {_preview(levels[index[worst]])}"
            )


def _preview(rewards: np.ndarray) -> str:
    shown = ", ".join(f"{reward:g}" for reward in rewards[:8])
    return f"[{shown}{', ...' if rewards.size > 8 else ''}]"


def _name(head: Head) -> str:
    return getattr(head, "__name__", None) or repr(head)

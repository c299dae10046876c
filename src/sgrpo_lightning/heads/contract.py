"""What every advantage head of this package promises, kept in one place."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Concatenate, ParamSpec

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Knobs = ParamSpec("Knobs")

PROPERTIES = frozenset({"zero_sum", "shift_invariant", "scale_invariant", "scale_equivariant"})


@dataclass(frozen=True, slots=True)
class Groups:
    """Finite rewards in the compute dtype with the extremes of each group; the methods return new tensors."""

    rewards: Float[Tensor, "*G M"]  # read-only: it may be the caller's own tensor
    low: Float[Tensor, "*G 1"]
    high: Float[Tensor, "*G 1"]

    @property
    def size(self) -> int:
        """M, the samples per group."""
        return self.rewards.shape[-1]

    def deviations(self) -> Float[Tensor, "*G M"]:
        """r - mean, taken from the lowest reward so that equal rewards give exact zeros."""
        gains = self.rewards - self.low
        return gains.sub_(gains.mean(-1, keepdim=True))

    def positions(self) -> Float[Tensor, "*G M"]:
        """(r - low) / (high - low): where a reward stands in its group, from 0 to 1; 0 without a spread."""
        spread = self.high - self.low
        return (self.rewards - self.low).div_(spread.masked_fill_(spread == 0, 1))


def advantage_head(
    *declares: str,
) -> Callable[[Callable[Concatenate[Groups, Knobs], Tensor]], Callable[Concatenate[Tensor, Knobs], Tensor]]:
    """Turn a function of `Groups` into a head: rewards [..., M] -> advantages [..., M].

    The head takes floating rewards only and refuses NaN and infinities, computes in float32 (float64 for
    float64) without gradient, returns the dtype it was given, and gives a group whose rewards are equal up to
    rounding, `high - low <= 2 eps max|r|` with eps of the compute dtype, the advantages of equal rewards. The
    function has to return new tensors, and exact zeros where all rewards are equal.

    Args:
        declares: properties that tests may rely on, out of `PROPERTIES`; kept as the attribute `declares`.
    """
    if unknown := set(declares) - PROPERTIES:
        raise ValueError(f"declares must be among {sorted(PROPERTIES)}, got {sorted(unknown)}")

    def decorate(
        function: Callable[Concatenate[Groups, Knobs], Tensor],
    ) -> Callable[Concatenate[Tensor, Knobs], Tensor]:
        @functools.wraps(function)
        def head(rewards: Tensor, *args: Knobs.args, **knobs: Knobs.kwargs) -> Tensor:
            with torch.no_grad():
                return _narrow(function(_groups(rewards), *args, **knobs), rewards.dtype)

        _, *parameters = (signature := inspect.signature(function)).parameters.values()
        first = inspect.Parameter("rewards", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Tensor)
        vars(head).update(
            declares=frozenset(declares), __signature__=signature.replace(parameters=[first, *parameters])
        )
        return head

    return decorate


def count_winners(positions: Float[Tensor, "*G M"]) -> tuple[Int[Tensor, "*G 1"], Bool[Tensor, "*G"]]:
    """How many rewards are the highest of their group, if it has two levels; and which groups have more."""
    total = positions.sum(-1, keepdim=True)
    return total.round().long(), (total > (positions * positions).sum(-1, keepdim=True)).squeeze(-1)


def refuse(rewards: Tensor, wrong: Bool[Tensor, "*G M"], rule: str) -> None:
    """Raise a ValueError that names the first wrong reward and its index, if there is one."""
    if wrong.any():
        index = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(f"rewards must be {rule}, got {rewards[index].item():g} at index {index}")


def _groups(rewards: Tensor) -> Groups:
    if not rewards.is_floating_point():
        raise ValueError(f"rewards must be floating, got {rewards.dtype}; call rewards.float()")
    if rewards.ndim == 0 or rewards.shape[-1] == 0:
        raise ValueError(f"rewards must be [..., M] with M >= 1, got shape {list(rewards.shape)}")
    values = rewards.to(torch.promote_types(rewards.dtype, torch.float32))
    low, high = _reduce(torch.minimum, values), _reduce(torch.maximum, values)
    spread = high - low
    if not spread.sum().isfinite():
        refuse(rewards, ~rewards.isfinite(), "finite")
        raise ValueError(f"rewards must span less than {torch.finfo(spread.dtype).max:g}; scale them down")
    level = (spread > 0) & (spread <= 2 * torch.finfo(spread.dtype).eps * torch.maximum(high, -low))
    if level.any():
        values, high = torch.where(level, low, values), torch.where(level, low, high)
    return Groups(values, low, high)


def _reduce(pick: Callable[[Tensor, Tensor], Tensor], values: Tensor) -> Tensor:
    """Extreme of each row, keeping the axis: folding vectorises over short rows, where amin does not."""
    while (size := values.shape[-1]) > 1:
        half = (size + 1) // 2
        values = pick(values[..., :half], values[..., size - half :])
    return values


def _narrow(advantages: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == torch.float16:  # the only dtype too narrow for the difference of two of its numbers
        advantages = advantages.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max)
    return advantages.to(dtype)

"""Whether the gradient of a batch depends on how it is cut into micro-batches, or on their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as distributed
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn

from sgrpo_lightning.distributed.gradients import gradient_norm, norm_follows_step
from sgrpo_lightning.doctor.verdict import Finding, judge

FLOAT32, ROUNDED = 1e-5, 3e-2
"""Relative differences to allow: where all is computed in float32 or finer, and in 16 bits."""


def judge_gradient(norm: float, difference: float, *, tolerance: float, cut: str, note: str) -> Finding:
    return judge(
        "gradient",
        f"norm {norm:.2e}; {cut} differ by {difference:.1e} of it, tolerance {tolerance:.0e}; {note}",
        failures=[
            (
                not 0 < norm < float("inf"),
                "the gradient is 0 or not finite: see that the loss reaches the weights, and that they are finite",
            ),
            (
                norm > 0 and not difference <= tolerance,
                "the gradient depends on the micro-batches: a layer of the model looks at other rows, or padding or "
                "packed rows are not kept apart; with packing=true use an attention that reads position_ids",
            ),
        ],
    )


def tolerance(module: Any) -> float:
    rounded = "16" in str(module.trainer.precision) or any(p.element_size() == 2 for p in module.parameters())
    return ROUNDED if rounded else FLOAT32


@dataclass(frozen=True, slots=True)
class Place:
    """Where a gradient is computed.

    Args:
        name: in words.
        parameters: that collect it.
        loss: of a micro-batch.
        norm: of what they have collected, over all ranks if it is in shards.
        in_shards: whether a backward pass itself adds up over the ranks.
    """

    name: str
    parameters: Sequence[nn.Parameter]
    loss: Callable[[Any], Tensor]
    norm: Callable[[], float]
    in_shards: bool = False


def in_place(module: Any, loss: Callable[[Any], Tensor]) -> Place | None:
    """In the module itself; None under DeepSpeed, which moves gradients away as they come."""
    strategy = module.trainer.strategy
    if norm_follows_step(strategy):
        return None
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if isinstance(strategy, ModelParallelStrategy):  # whose gradient is the mean over ranks
        norm = lambda: gradient_norm(module, strategy).item() * _size()  # noqa: E731
        return Place("in shards", parameters, loss, norm, in_shards=True)
    return Place("summed over ranks" if _size() > 1 else "on one device", parameters, loss, norm_of(parameters))


def norm_of(parameters: Sequence[nn.Parameter]) -> Callable[[], float]:
    return lambda: float(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))


def relative_difference(place: Place, one: Iterable[Any], other: Iterable[Any]) -> tuple[float, float]:
    """The norm of the gradient of `one`, and how far that of `other` is from it, as a share.

    The second is taken away from the first where that lies, so there is never more than one gradient in memory.
    """
    forget(place.parameters)
    collect(place, one, sign=1)
    norm = place.norm()
    if not place.in_shards and _rank() > 0:  # the sum over ranks is on each of them
        forget(place.parameters)
    collect(place, other, sign=-1)
    rest = place.norm()
    forget(place.parameters)
    return norm, rest / norm if norm else float("nan")


def collect(place: Place, batches: Iterable[Any], *, sign: int) -> None:
    for batch in batches:
        (sign * place.loss(batch)).backward()
    if not place.in_shards and _size() > 1:
        for parameter in place.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            distributed.all_reduce(parameter.grad)


def forget(parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None


def _size() -> int:
    return distributed.get_world_size() if distributed.is_initialized() else 1


def _rank() -> int:
    return distributed.get_rank() if distributed.is_initialized() else 0

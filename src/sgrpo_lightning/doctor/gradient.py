"""Whether the gradient of a batch depends on how it is cut into micro-batches, or on their order."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as distributed
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn

from sgrpo_lightning.distributed.gradients import gradient_norm, norm_follows_step
from sgrpo_lightning.distributed.weights import full_weights
from sgrpo_lightning.doctor.verdict import Finding, judge
from sgrpo_lightning.modules.learner import Learner, Updates
from sgrpo_lightning.modules.rollout import Rollout, shape
from sgrpo_lightning.modules.rows import Rows, join_rows

FLOAT32, ROUNDED = 1e-5, 3e-2
"""Relative differences to allow: where all is computed in float32 or finer, and in 16 bits."""

MOST_ROWS = 16
"""Of one rank, each of which is a forward and a backward pass."""


def check_gradient(module: Any, rollout: Rollout) -> Finding:
    """The configured micro-batches against one row at a time in the opposite order.

    Args:
        module: the policy module in a run that has begun, before its first step.
    """
    rows, note = rows_with_signal(module, rollout)
    with module._forward_passes():
        configured = updates(module, rows).micro_batches
        single = updates(module, rows, micro_batch_size=1, tokens_per_micro_batch=None).micro_batches[::-1]
    place = where(module)
    with module.trainer.precision_plugin.forward_context():
        norm, difference = relative_difference(place, configured, single)
    return judge_gradient(
        norm,
        difference,
        tolerance=tolerance(module),
        cut=f"{len(configured)} micro-batches against {len(single)}",
        note=f"{place.name}{note}",
    )


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


def rows_with_signal(module: Any, rollout: Rollout) -> tuple[Rows, str]:
    """A few rows of a rank, and what to say of them. Rewards without any signal are replaced, on all ranks alike."""
    shaped = shape(rollout, module.shaping, limit=module.sampler.max_new_tokens)
    advantages, note = copy.deepcopy(module.head)(shaped.rewards), ""
    if not module.over_ranks("/max", advantages.abs().amax()) > 0:
        advantages, note = made_up(advantages), "; no group had signal, so advantages are made up"
    trains = torch.zeros(advantages.shape, dtype=torch.bool, device=advantages.device)
    few = max(1, MOST_ROWS // advantages.shape[1])
    trains[advantages.abs().amax(1).argsort(descending=True)[:few]] = True
    trains = trains.flatten() if shaped.trains is None else trains.flatten() & shaped.trains
    return join_rows(rollout.samples, advantages, trains=trains), note


def made_up(like: Tensor) -> Tensor:
    return (-1.0) ** torch.arange(like.shape[1], device=like.device) * torch.ones_like(like)


def updates(module: Any, rows: Rows, **sizes: Any) -> Updates:
    """All rows as one optimizer step."""
    plan = replace(module.plan, ppo_epochs=1, minibatches=1, **sizes)
    learner = Learner(
        module.model,
        module.loss,
        plan,
        reference=module.reference,
        all_sum=module._all_sum,
        all_max=module._all_max,
    )
    return learner.updates(rows, torch.Generator(rows.advantages.device).manual_seed(0))


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


def where(module: Any) -> Place:
    """In the strategy where gradients can be read there, else on a copy of the policy."""
    if place := in_place(module, lambda batch: module(batch)[0]):
        return place
    twin = whole_copy(module.model)
    reference, parameters = module.reference.of_loss if module.reference else None, list(twin.parameters())
    loss = lambda batch: module.loss(twin, batch, reference)[0]  # noqa: E731
    return Place("on a copy with whole weights", parameters, loss, norm_of(parameters))


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


def whole_copy(model: Any) -> Any:
    """A model of its own with the policy's weights, adapters merged."""
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    twin = type(base)(base.config).to(device=base.device, dtype=base.dtype)
    places = twin.state_dict()
    for name, weight in full_weights(model):
        places[name].copy_(weight)
    return twin.eval()


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

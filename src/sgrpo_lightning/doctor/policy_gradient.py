"""The gradient of a sampled batch of completions, by micro-batches and row by row."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sgrpo_lightning.distributed.weights import full_weights
from sgrpo_lightning.doctor.gradient import Place, in_place, judge_gradient, norm_of, relative_difference, tolerance
from sgrpo_lightning.doctor.verdict import Finding
from sgrpo_lightning.modules.learner import Learner, Updates
from sgrpo_lightning.modules.rollout import Rollout, shape
from sgrpo_lightning.modules.rows import Rows, join_rows

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


def where(module: Any) -> Place:
    """In the strategy where gradients can be read there, else on a copy of the policy."""
    if place := in_place(module, lambda batch: module(batch)[0]):
        return place
    twin = whole_copy(module.model)
    reference, parameters = module.reference.of_loss if module.reference else None, list(twin.parameters())
    loss = lambda batch: module.loss(twin, batch, reference)[0]  # noqa: E731
    return Place("on a copy with whole weights", parameters, loss, norm_of(parameters))


def whole_copy(model: Any) -> Any:
    """A model of its own with the policy's weights, adapters merged."""
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    twin = type(base)(base.config).to(device=base.device, dtype=base.dtype)
    places = twin.state_dict()
    for name, weight in full_weights(model):
        places[name].copy_(weight)
    return twin.eval()

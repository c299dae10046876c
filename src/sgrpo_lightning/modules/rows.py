"""From sampled groups to micro-batches: which rows are learned from, in which order, with which weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sgrpo_lightning.axes import MicroBatch, Samples


@dataclass(slots=True)
class Rows:
    """The N rows of an iteration, prompt and completion side by side, and what is known of each token.

    The last two are tables that a forward pass over all rows fills once; None where they are not needed.
    """

    input_ids: Tensor  # [N, P + T] right-padded
    prompt_length: Tensor  # [N]
    completion_ids: Tensor  # [N, T]
    loss_mask: Tensor  # [N, T], True = trains
    group_id: Tensor  # [N]
    advantages: Tensor  # [N]
    behavior_logprobs: Float[Tensor, "N T"] | None = None
    reference_logprobs: Float[Tensor, "N T"] | None = None

    @property
    def length(self) -> Tensor:
        """Tokens of each row up to the last that trains."""
        return self.prompt_length + self.loss_mask.sum(-1)


def join_rows(samples: Samples, advantages: Tensor, *, trains: Tensor | None = None) -> Rows:
    """Rows that train on every sampled token.

    Args:
        advantages: [G, M].
        trains: [N], the rows that do; None: all.
    """
    num_samples = samples.samples_per_group
    ids = torch.cat([samples.prompt_ids.repeat_interleave(num_samples, 0), samples.completion_ids], -1)
    padding = (~samples.prompt_mask).sum(-1).repeat_interleave(num_samples)
    columns = torch.arange(ids.shape[1], device=ids.device) + padding[:, None]
    groups = torch.arange(len(samples.prompt_ids), device=ids.device)
    return Rows(
        input_ids=ids.gather(1, columns.clamp(max=ids.shape[1] - 1)),
        prompt_length=samples.prompt_mask.sum(-1).repeat_interleave(num_samples),
        completion_ids=samples.completion_ids,
        loss_mask=samples.completion_mask if trains is None else samples.completion_mask & trains[:, None],
        group_id=groups.repeat_interleave(num_samples),
        advantages=advantages.flatten(),
    )


def micro_batches(
    rows: Rows, chosen: Tensor, weights: Tensor, shares: Tensor, *, size: int, count: int
) -> list[MicroBatch]:
    """Cut the chosen rows, shortest first, into `count` micro-batches of at most `size` rows.

    Rows of like length share a micro-batch, so little of it is padding. Where fewer are needed, the rest hold
    one row of zero weight: every rank then runs the same number of passes, and no forward sees an empty batch.

    Args:
        chosen: indices of the rows to learn from.
        weights, shares: [N, T] token weights of the loss, and of the metrics.
    """
    ordered = chosen[rows.length[chosen].argsort(stable=True)]
    batches = [_micro_batch(rows, part, weights, shares) for part in ordered.split(size) if len(part)]
    assert len(batches) <= count, f"{len(ordered)} rows do not fit in {count} micro-batches of {size}"
    if len(batches) < count:
        shortest = rows.length.argmin().unsqueeze(0)
        nothing = torch.zeros_like(weights)
        batches += [_micro_batch(rows, shortest, nothing, nothing)] * (count - len(batches))
    return batches


def _micro_batch(rows: Rows, part: Tensor, weights: Tensor, shares: Tensor) -> MicroBatch:
    row, token = rows.loss_mask[part].nonzero(as_tuple=True)
    source = part[row]
    columns = slice(int(rows.length[part].max()))
    return MicroBatch(
        input_ids=rows.input_ids[part, columns],
        row=row,
        position=rows.prompt_length[source] + token - 1,
        target=rows.completion_ids[source, token],
        advantage=rows.advantages[source],
        weight=weights[source, token],
        share=shares[source, token],
        source=source * rows.loss_mask.shape[1] + token,
        behavior_logprobs=_taken(rows.behavior_logprobs, source, token),
        reference_logprobs=_taken(rows.reference_logprobs, source, token),
    )


def _taken(table: Tensor | None, source: Tensor, token: Tensor) -> Tensor | None:
    return None if table is None else table[source, token]


def scatter(name: str, batches: Sequence[MicroBatch], like: Tensor) -> Tensor:
    """A per-token field of micro-batches back in a [N, T] table; tokens of no micro-batch hold 0."""
    values = [getattr(batch, name) for batch in batches]
    table = torch.zeros(like.shape, dtype=values[0].dtype, device=like.device)
    for batch, value in zip(batches, values, strict=True):
        table.view(-1)[batch.source] = value
    return table

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

    The last three are tables that a forward pass over all rows fills once; None where they are not needed.
    """

    input_ids: Tensor  # [N, P + T] right-padded
    prompt_length: Tensor  # [N]
    completion_ids: Tensor  # [N, T]
    loss_mask: Tensor  # [N, T], True = trains
    group_id: Tensor  # [N]
    advantages: Tensor  # [N]
    sampler_logprobs: Float[Tensor, "N T"]  # of whoever sampled
    behavior_logprobs: Float[Tensor, "N T"] | None = None
    reference_logprobs: Float[Tensor, "N T"] | None = None
    importance: Float[Tensor, "N T"] | None = None  # factors of the advantages

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
        sampler_logprobs=samples.sampler_logprobs,
    )


def cut(lengths: Tensor, chosen: Tensor, *, rows: int, tokens: int | None = None, packed: bool = False) -> list[Tensor]:
    """The chosen rows, shortest first, in parts for one forward pass each: rows of like length need little padding.

    Args:
        lengths: [N], tokens of each row.
        chosen: indices of the rows to learn from.
        rows: most rows of a part, where `tokens` is None.
        tokens: most tokens of a part instead, padding counted unless `packed`; a longer row has a part of its own.
    """
    ordered = chosen[lengths[chosen].argsort(stable=True)]
    if tokens is None:
        return [part for part in ordered.split(rows) if len(part)]
    sizes, total = [0], 0
    for length in lengths[ordered].tolist():
        total += length
        if sizes[-1] and (total if packed else (sizes[-1] + 1) * length) > tokens:
            sizes.append(0)
            total = length
        sizes[-1] += 1
    return [part for part in ordered.split(sizes) if len(part)]


def micro_batches(
    rows: Rows, parts: Sequence[Tensor], weights: Tensor, shares: Tensor, *, count: int, packed: bool = False
) -> list[MicroBatch]:
    """A micro-batch of each part, and as many more as there have to be.

    Those hold one row of zero weight: every rank then runs the same number of passes, and no forward sees an empty
    batch.

    Args:
        parts: indices of rows, from `cut`.
        weights, shares: [N, T] token weights of the loss, and of the metrics.
        packed: rows one after the other instead of padded ones, for an attention that keeps them apart.
    """
    assert len(parts) <= count, f"{len(parts)} parts do not fit in {count} micro-batches"
    batches = [_micro_batch(rows, part, weights, shares, packed) for part in parts]
    if len(batches) < count:
        shortest = rows.length.argmin().unsqueeze(0)
        nothing = torch.zeros_like(weights)
        batches += [_micro_batch(rows, shortest, nothing, nothing, packed)] * (count - len(batches))
    return batches


def _micro_batch(rows: Rows, part: Tensor, weights: Tensor, shares: Tensor, packed: bool) -> MicroBatch:
    row, token = rows.loss_mask[part].nonzero(as_tuple=True)
    source = part[row]
    ids, starts, position_ids = _packed(rows, part) if packed else _padded(rows, part)
    importance = 1.0 if rows.importance is None else rows.importance[source, token]
    return MicroBatch(
        input_ids=ids,
        row=torch.zeros_like(row) if packed else row,
        position=starts[row] + rows.prompt_length[source] + token - 1,
        target=rows.completion_ids[source, token],
        advantage=rows.advantages[source] * importance,
        weight=weights[source, token],
        share=shares[source, token],
        source=source * rows.loss_mask.shape[1] + token,
        position_ids=position_ids,
        behavior_logprobs=_taken(rows.behavior_logprobs, source, token),
        reference_logprobs=_taken(rows.reference_logprobs, source, token),
    )


def _padded(rows: Rows, part: Tensor) -> tuple[Tensor, Tensor, None]:
    return rows.input_ids[part, : int(rows.length[part].max())], torch.zeros_like(part), None


def _packed(rows: Rows, part: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The rows in one, where each begins, and the positions within each."""
    lengths = rows.length[part]
    row, column = (torch.arange(int(lengths.max()), device=part.device) < lengths[:, None]).nonzero(as_tuple=True)
    return rows.input_ids[part[row], column][None], lengths.cumsum(0) - lengths, column[None]


def _taken(table: Tensor | None, source: Tensor, token: Tensor) -> Tensor | None:
    return None if table is None else table[source, token]


def scatter(name: str, batches: Sequence[MicroBatch], like: Tensor) -> Tensor:
    """A per-token field of micro-batches back in a [N, T] table; tokens of no micro-batch hold 0."""
    values = [getattr(batch, name) for batch in batches]
    table = torch.zeros(like.shape, dtype=values[0].dtype, device=like.device)
    for batch, value in zip(batches, values, strict=True):
        table.view(-1)[batch.source] = value
    return table

"""Token weights: how a batch of per-token terms becomes one number.

A reduction sees the whole global batch once and returns constants; the loss is then `sum(weights * terms)`,
so splitting the batch into micro-batches, or over ranks, cannot change the gradient. Each function calls
`all_sum` exactly once, on an empty batch too, so ranks stay in step. A batch without trained tokens gets
zeros.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

AllSum = Callable[[Tensor], Tensor]


def _identity(count: Tensor) -> Tensor:
    return count


def _check(loss_mask: Tensor, group_id: Tensor) -> None:
    if loss_mask.ndim != 2 or loss_mask.dtype != torch.bool:
        raise ValueError(
            f"loss_mask must be bool [N, T], got {loss_mask.dtype} {list(loss_mask.shape)}; "
            "pass True where a token trains"
        )
    if group_id.shape != loss_mask.shape[:1]:
        raise ValueError(
            f"group_id must have one entry per row of loss_mask, shape [{loss_mask.shape[0]}], "
            f"got {list(group_id.shape)}"
        )


def _divide(loss_mask: Tensor, count: Tensor) -> Tensor:
    """1 / count for each trained token; a zero count only ever belongs to tokens that do not train."""
    return loss_mask.float() / count.clamp(min=1)


def group_token_mean(loss_mask: Tensor, group_id: Tensor, *, all_sum: AllSum = _identity) -> Tensor:
    """Mean over the tokens of each group, then over groups.

    w[i, t] = 1 / (groups * tokens in the group of row i): a prompt counts once, however long its samples are.

    Args:
        loss_mask: bool [N, T], True = trains.
        group_id: long [N], the prompt of each row, in any order; a group lies on one rank.
        all_sum: sums a count over ranks.

    Returns:
        float32 [N, T], zero where `loss_mask` is False, summing to 1 over the global batch.

    Edge cases: groups without a trained token do not count; none at all gives zeros.

    >>> mask = torch.tensor([[True, True, True], [True, False, False], [True, False, False]])
    >>> group_token_mean(mask, torch.tensor([7, 7, 3]))
    tensor([[0.1250, 0.1250, 0.1250],
            [0.1250, 0.0000, 0.0000],
            [0.5000, 0.0000, 0.0000]])

    Reference: Eq. 10.
    """
    _check(loss_mask, group_id)
    ids, group = torch.unique(group_id, return_inverse=True)
    row_tokens = loss_mask.sum(dim=1)
    group_tokens = row_tokens.new_zeros(len(ids)).index_add(0, group, row_tokens)
    num_groups = all_sum((group_tokens > 0).sum())
    return _divide(loss_mask, num_groups * group_tokens[group, None])


def token_mean(loss_mask: Tensor, group_id: Tensor, *, all_sum: AllSum = _identity) -> Tensor:
    """Mean over all trained tokens: w[i, t] = 1 / tokens, so long samples weigh more.

    Args, Returns and edge cases as in `group_token_mean`; `group_id` is not used.

    >>> token_mean(torch.tensor([[True, True], [True, False]]), torch.tensor([0, 1]))
    tensor([[0.3333, 0.3333],
            [0.3333, 0.0000]])
    """
    _check(loss_mask, group_id)
    return _divide(loss_mask, all_sum(loss_mask.sum()))


def sequence_mean(loss_mask: Tensor, group_id: Tensor, *, all_sum: AllSum = _identity) -> Tensor:
    """Mean over the tokens of a row, then over rows: w[i, t] = 1 / (rows * tokens of row i).

    Args, Returns as in `group_token_mean`; `group_id` is not used.

    Edge cases: rows without a trained token do not count; none at all gives zeros.

    >>> sequence_mean(torch.tensor([[True, True], [True, False]]), torch.tensor([0, 0]))
    tensor([[0.2500, 0.2500],
            [0.5000, 0.0000]])
    """
    _check(loss_mask, group_id)
    row_tokens = loss_mask.sum(dim=1, keepdim=True)
    return _divide(loss_mask, all_sum((row_tokens > 0).sum()) * row_tokens)


def fixed_length(loss_mask: Tensor, group_id: Tensor, *, length: int, all_sum: AllSum = _identity) -> Tensor:
    """The same constant for each trained token: w[i, t] = 1 / (N * length).

    These weights sum to (mean tokens per row) / length, not to 1. That is their point: the weight of a token
    depends neither on the length of its own row, as in `sequence_mean`, nor on the lengths that were drawn,
    as in `token_mean`, so the gradient is that of the expected sum over tokens, up to a constant.

    Args:
        loss_mask: bool [N, T], True = trains. Every row counts in N, trained or not: add padding rows
            afterwards.
        group_id: long [N], not used.
        length: tokens, usually the generation limit.
        all_sum: sums a count over ranks.

    Returns:
        float32 [N, T], zero where `loss_mask` is False.

    >>> fixed_length(torch.tensor([[True, True], [True, False]]), torch.tensor([0, 0]), length=4)
    tensor([[0.1250, 0.1250],
            [0.1250, 0.0000]])

    Reference: Dr. GRPO (Liu et al., 2025).
    """
    _check(loss_mask, group_id)
    if length < 1:
        raise ValueError(f"length must be >= 1 token, got {length}; use the generation limit")
    rows = torch.tensor(loss_mask.shape[0], device=loss_mask.device)
    return _divide(loss_mask, all_sum(rows) * length)

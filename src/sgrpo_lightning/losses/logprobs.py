"""From hidden states to log-probabilities: the one place that upcasts and tempers logits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax
from torch.utils.checkpoint import checkpoint

from .kl import kl_from_log_softmax
from .numerics import upcast

LOGITS_PER_CHUNK = 2**24
"""Logits alive at once when the chunk is chosen automatically: 64 MiB in float32."""

LMHead = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class TokenLogprobs:
    """Per-token quantities of K target tokens, in nats, at least float32.

    `logprobs` [K] and `kl_full` [K] carry gradient; `entropy` [K] and `reference_logprobs` [K] are constants.
    """

    logprobs: Tensor
    entropy: Tensor
    reference_logprobs: Tensor | None = None
    kl_full: Tensor | None = None


def token_logprobs(
    hidden: Tensor,
    lm_head: LMHead,
    targets: Tensor,
    *,
    temperature: float,
    reference: tuple[Tensor, LMHead] | None = None,
    full_kl: bool = False,
    chunk_size: int | None = None,
    chunks: int | None = None,
) -> TokenLogprobs:
    """Log-probability of each target under softmax(lm_head(hidden) / temperature).

    Rows go through in chunks whose logits are recomputed in the backward pass, so [K, V] never exists at
    once; a batch that fits in one chunk is not recomputed.

    Args:
        hidden: [K, H], the states before each trained token, padding left out.
        lm_head: any map [k, H] -> [k, V]; called once per chunk forward, once backward, and, where neither
            `chunk_size` nor `chunks` is given, on zero rows to learn V.
        targets: long [K].
        temperature: of sampling, > 0.
        reference: hidden states [K, H'] and head of the frozen reference model.
        full_kl: also the full-vocabulary KL(policy || reference).
        chunk_size: rows per chunk; None picks about 2^24 logits.
        chunks: their number instead, whatever K: ranks that share out the weights of the head have to call it
            equally often.

    Returns:
        `TokenLogprobs`.

    Edge cases: K = 0 gives empty tensors, still attached to the graph.

    >>> head = torch.nn.Linear(3, 4, bias=False)
    >>> out = token_logprobs(torch.zeros(2, 3), head, torch.tensor([0, 3]), temperature=1.0)
    >>> out.logprobs.exp().tolist(), out.entropy.exp().tolist()
    ([0.25, 0.25], [4.0, 4.0])
    """
    _check(hidden, targets, temperature, reference, full_kl, chunk_size)
    reference_hidden, reference_head = reference or (hidden[:, :0], None)
    function = partial(_chunk, lm_head=lm_head, reference_head=reference_head, temperature=temperature, full_kl=full_kl)
    if chunks is None:
        chunks = max(1, -(-len(hidden) // (chunk_size or _auto_chunk(hidden, lm_head))))
    if chunks == 1:
        return function(hidden, targets, reference_hidden)
    pieces = zip(*(tensor.tensor_split(chunks) for tensor in (hidden, targets, reference_hidden)), strict=True)
    with _a_cast_each(hidden.device.type):
        return _concatenate([checkpoint(function, *piece, use_reentrant=False) for piece in pieces])


def _a_cast_each(device: str) -> AbstractContextManager[Any]:
    """Under autocast every chunk casts the head's weights for itself.

    A cast that they shared would add up their gradients in low precision; so they are added in that of the weights.
    """
    if not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, torch.get_autocast_dtype(device), cache_enabled=False)


def _check(
    hidden: Tensor,
    targets: Tensor,
    temperature: float,
    reference: tuple[Tensor, LMHead] | None,
    full_kl: bool,
    chunk_size: int | None,
) -> None:
    if hidden.ndim != 2 or targets.shape != hidden.shape[:1]:
        raise ValueError(f"expected hidden [K, H] and targets [K], got {list(hidden.shape)} and {list(targets.shape)}")
    if reference is not None and len(reference[0]) != len(hidden):
        raise ValueError(f"reference hidden states must have {len(hidden)} rows, got {len(reference[0])}")
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0, got {temperature}; use the sampler's")
    if full_kl and reference is None:
        raise ValueError("full_kl=True needs a reference, got None; pass (hidden, head) of the reference model")
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size must be >= 1 row, got {chunk_size}; use None for the automatic choice")


def _auto_chunk(hidden: Tensor, lm_head: LMHead) -> int:
    with torch.no_grad():
        vocabulary = lm_head(hidden[:0]).shape[-1]
    return rows_per_chunk(vocabulary)


def rows_per_chunk(vocabulary: int) -> int:
    """Rows whose logits are about 2^24 numbers."""
    return max(1, LOGITS_PER_CHUNK // vocabulary)


def _chunk(
    hidden: Tensor,
    targets: Tensor,
    reference_hidden: Tensor,
    *,
    lm_head: LMHead,
    reference_head: LMHead | None,
    temperature: float,
    full_kl: bool,
) -> TokenLogprobs:
    """One chunk. Recomputation stops at the last tensor that autograd saves, so the constants come last."""
    policy = log_softmax(upcast(lm_head(hidden)) / temperature, -1)
    logprobs = policy.gather(-1, targets[:, None]).squeeze(-1)
    reference_logprobs, kl = None, None
    if reference_head is not None:
        with torch.no_grad():
            frozen = log_softmax(upcast(reference_head(reference_hidden)) / temperature, -1)
            reference_logprobs = frozen.gather(-1, targets[:, None]).squeeze(-1)
        kl = kl_from_log_softmax(policy, frozen) if full_kl else None
    return TokenLogprobs(logprobs, _entropy(policy.detach()), reference_logprobs, kl)


def _entropy(policy: Tensor) -> Tensor:
    # The clamp keeps 0 * log 0 at 0.
    return -(policy.exp() * policy.clamp(min=torch.finfo(policy.dtype).min)).sum(-1)


def _concatenate(chunks: list[TokenLogprobs]) -> TokenLogprobs:
    return TokenLogprobs(
        torch.cat([chunk.logprobs for chunk in chunks]),
        torch.cat([chunk.entropy for chunk in chunks]),
        _cat_present([chunk.reference_logprobs for chunk in chunks]),
        _cat_present([chunk.kl_full for chunk in chunks]),
    )


def _cat_present(pieces: list[Tensor | None]) -> Tensor | None:
    present = [piece for piece in pieces if piece is not None]
    return torch.cat(present) if present else None

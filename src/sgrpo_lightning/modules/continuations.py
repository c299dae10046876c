"""Log-probabilities of given texts under the policy, after other texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from sgrpo_lightning.axes import MicroBatch
from sgrpo_lightning.losses import token_logprobs
from sgrpo_lightning.modules.loading import Policy
from sgrpo_lightning.modules.policy_loss import states
from sgrpo_lightning.samplers.hf import inference_mode
from sgrpo_lightning.tasks.prompting import tokenize_prompts

Pair = tuple[list[int], list[int]]
"""The tokens of a prefix and of its continuation."""


@torch.no_grad()
def continuation_logprobs(
    policy: Policy,
    prefixes: Sequence[str],
    continuations: Sequence[str],
    *,
    max_tokens: int = 16384,
    temperature: float = 1.0,
) -> list[tuple[float, int]]:
    """log pi(continuation | prefix) of each pair, and the tokens of the continuation.

    Rows of like length go through the model together, without gradient and without dropout.

    Args:
        prefixes: what the policy reads, tokenised as prompts are when they are sampled from: with the special
            tokens of a tokenizer that has no chat template, without any where the template has written them.
        continuations: tokenised on their own, without special tokens, so that no token straddles the boundary and
            the same continuation has the same tokens after every prefix. No end token is added.
        max_tokens: of one forward pass, padding counted; a longer row goes alone.
        temperature: the probabilities are those of softmax(logits / temperature).

    Returns:
        (log-probability in nats, tokens) of each pair, in order.

    Edge cases: an empty continuation has (0.0, 0). No pairs give [].

    Reference: Appendix B.7.
    """
    _check(prefixes, continuations, max_tokens)
    if not prefixes:
        return []
    pairs = _tokenise(policy.tokenizer, prefixes, continuations)
    scores = [0.0] * len(pairs)
    with inference_mode(policy.model):
        for rows in _budgeted(pairs, max_tokens):
            sums = _sums(policy, [pairs[row] for row in rows], temperature)
            for row, value in zip(rows, sums, strict=True):
                scores[row] = value
    return [(score, len(continuation)) for score, (_, continuation) in zip(scores, pairs, strict=True)]


def _check(prefixes: Sequence[str], continuations: Sequence[str], max_tokens: int) -> None:
    if len(prefixes) != len(continuations):
        raise ValueError(f"expected a continuation of each prefix, got {len(continuations)} of {len(prefixes)}")
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be >= 1, got {max_tokens}")


def _tokenise(tokenizer: Any, prefixes: Sequence[str], continuations: Sequence[str]) -> list[Pair]:
    before = tokenize_prompts(tokenizer, prefixes)["input_ids"]
    if not all(before):
        raise ValueError(f"a prefix must hold at least one token, got {prefixes[before.index([])]!r}")
    after = tokenizer(list(continuations), add_special_tokens=False)["input_ids"]
    return list(zip(before, after, strict=True))


def _budgeted(pairs: Sequence[Pair], max_tokens: int) -> Iterator[list[int]]:
    """The rows that have a continuation, shortest first, in batches of at most `max_tokens` with their padding."""
    lengths = [len(prefix) + len(continuation) for prefix, continuation in pairs]
    batch: list[int] = []
    for row in sorted((row for row, (_, continuation) in enumerate(pairs) if continuation), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[row] > max_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _sums(policy: Policy, pairs: Sequence[Pair], temperature: float) -> list[float]:
    """The summed log-probabilities of each continuation, from one forward pass."""
    batch = _micro_batch(pairs, policy.tokenizer.pad_token_id).to(policy.model.device)
    hidden, head = states(policy.model, batch)
    logprobs = token_logprobs(hidden, head, batch.target, temperature=temperature).logprobs.cpu().double()
    return [part.sum().item() for part in logprobs.split([len(continuation) for _, continuation in pairs])]


def _micro_batch(pairs: Sequence[Pair], pad_token_id: int) -> MicroBatch:
    """Rows whose continuations are the trained tokens; of no loss, so without weights and advantages."""
    nothing = torch.empty(0)
    sizes = torch.tensor([len(continuation) for _, continuation in pairs])
    starts = [len(prefix) - 1 for prefix, _ in pairs]
    return MicroBatch(
        input_ids=pad_sequence([torch.tensor([*a, *b]) for a, b in pairs], True, pad_token_id),
        row=torch.arange(len(pairs)).repeat_interleave(sizes),
        position=torch.cat([torch.arange(a, a + size) for a, size in zip(starts, sizes.tolist(), strict=True)]),
        target=torch.tensor([token for _, continuation in pairs for token in continuation]),
        advantage=nothing,
        weight=nothing,
        share=nothing,
        source=nothing.long(),
    )

"""Rollouts from a Hugging Face model in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from sgrpo_lightning.axes import Samples
from sgrpo_lightning.samplers import Sampler


class HFSampler(Sampler):
    """Samples with the policy itself, at temperature T over the whole vocabulary.

    A group's prompt is read once and its cache repeated for the M samples; rows that have ended leave the
    batch, so the longest row does not make the others pay. Each token's log-probability is kept.

    Args:
        max_new_tokens: limit on the tokens of a completion.
        temperature: > 0; log-probabilities are those of softmax(logits / temperature).
        max_rows: at most so many rows are decoded together; None takes all.
        compact_at: ended rows are dropped once they are this share of the batch.
    """

    def __init__(
        self,
        *,
        max_new_tokens: int,
        temperature: float = 1.0,
        max_rows: int | None = None,
        compact_at: float = 0.125,
    ) -> None:
        super().__init__(max_new_tokens=max_new_tokens, temperature=temperature)
        if max_rows is not None and max_rows < 1:
            raise ValueError(f"max_rows must be >= 1, got {max_rows}; use null to decode all rows together")
        if not 0 < compact_at <= 1:
            raise ValueError(f"compact_at must lie in (0, 1], got {compact_at}")
        self.max_rows, self.compact_at = max_rows, compact_at

    @torch.no_grad()
    def generate(
        self,
        model: PreTrainedModel,
        prompt_ids: Tensor,
        prompt_mask: Tensor,
        *,
        samples_per_group: int,
        eos_token_ids: Tensor,
        pad_token_id: int,
        generator: torch.Generator,
    ) -> Samples:
        """M completions of each prompt.

        Args:
            prompt_ids, prompt_mask: [G, P], left-padded.
            eos_token_ids: [E], any of which ends a completion.
            generator: the only source of randomness, on the model's device.
        """
        groups = len(prompt_ids) if self.max_rows is None else max(1, self.max_rows // samples_per_group)
        parts = []
        with inference_mode(model):
            for ids, mask in zip(prompt_ids.split(groups), prompt_mask.split(groups), strict=True):
                parts.append(self._decode(model, ids, mask, samples_per_group, eos_token_ids, pad_token_id, generator))
        tokens, mask, logprobs = (torch.cat(part) for part in zip(*parts, strict=True))
        longest = max(1, int(mask.any(0).sum()))
        tokens, mask, logprobs = tokens[:, :longest], mask[:, :longest], logprobs[:, :longest]
        ended = (torch.isin(tokens, eos_token_ids) & mask).any(-1)
        return Samples(prompt_ids, prompt_mask, tokens, mask, logprobs, ~ended)

    def _decode(
        self,
        model: PreTrainedModel,
        prompt_ids: Tensor,
        prompt_mask: Tensor,
        samples_per_group: int,
        eos_token_ids: Tensor,
        pad_token_id: int,
        generator: torch.Generator,
    ) -> tuple[Tensor, Tensor, Tensor]:
        shape = (len(prompt_ids) * samples_per_group, self.max_new_tokens)
        tokens = prompt_ids.new_full(shape, pad_token_id)
        mask = torch.zeros(shape, dtype=torch.bool, device=prompt_ids.device)
        logprobs = torch.zeros(shape, device=prompt_ids.device)

        cache = DynamicCache(config=model.config)
        attention = prompt_mask.long()
        positions = (attention.cumsum(-1) - 1).clamp(min=0)
        logits = _next_logits(model, prompt_ids, attention, positions, cache)
        cache.batch_repeat_interleave(samples_per_group)
        logits = logits.repeat_interleave(samples_per_group, 0)
        attention = attention.repeat_interleave(samples_per_group, 0)
        position = positions[:, -1:].repeat_interleave(samples_per_group, 0)

        rows = torch.arange(shape[0], device=prompt_ids.device)  # where each row of the batch is written
        alive = torch.ones_like(rows, dtype=torch.bool)
        for step in range(self.max_new_tokens):
            token, logprob = sample_token(logits, self.temperature, generator)
            written = rows[alive]
            tokens[written, step] = token[alive]
            logprobs[written, step] = logprob[alive]
            mask[written, step] = True
            alive = alive & ~torch.isin(token, eos_token_ids)
            remaining = int(alive.sum())
            if remaining == 0 or step + 1 == self.max_new_tokens:
                break
            if remaining <= (1 - self.compact_at) * len(rows):
                keep = alive.nonzero().squeeze(-1)
                cache.batch_select_indices(keep)
                rows, token, attention, position = rows[keep], token[keep], attention[keep], position[keep]
                alive = alive[keep]
            attention = torch.cat([attention, attention.new_ones(len(rows), 1)], -1)
            position = position + 1
            logits = _next_logits(model, token.unsqueeze(-1), attention, position, cache)
        return tokens, mask, logprobs


def sample_token(logits: Tensor, temperature: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One token a row and its log-probability, by the exponential race (the Gumbel trick).

    Args:
        logits: [n, V].
    """
    logprobs = torch.log_softmax(logits.float() / temperature, -1)
    race = torch.empty_like(logprobs).exponential_(generator=generator)
    token = (logprobs - race.log_()).argmax(-1)
    return token, logprobs.gather(-1, token.unsqueeze(-1)).squeeze(-1)


def _next_logits(
    model: PreTrainedModel, ids: Tensor, attention: Tensor, positions: Tensor, cache: DynamicCache
) -> Tensor:
    output = model(
        input_ids=ids,
        attention_mask=attention,
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    return output.logits[:, -1]


@contextmanager
def inference_mode(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode: without dropout, and without gradient checkpointing, which would switch the cache off."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True

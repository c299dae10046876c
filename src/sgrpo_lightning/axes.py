"""The letters on names, and the arrays that travel together.

G groups (prompts), M samples per group, N = G * M rows, P prompt tokens, T completion tokens,
K tokens that train, V vocabulary. Row i belongs to group i // M.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Samples:
    """What a sampler returns: M completions of each of G prompts."""

    prompt_ids: Int[Tensor, "G P"]  # left-padded
    prompt_mask: Bool[Tensor, "G P"]
    completion_ids: Int[Tensor, "N T"]  # right-padded
    completion_mask: Bool[Tensor, "N T"]  # True up to and including the end token
    sampler_logprobs: Float[Tensor, "N T"]  # of the sampled tokens, at the sampling temperature
    truncated: Bool[Tensor, " N"]  # the token limit came before an end token

    @property
    def samples_per_group(self) -> int:
        return len(self.completion_ids) // len(self.prompt_ids)


@dataclass(slots=True)
class MicroBatch:
    """Rows for one forward pass, and the K tokens of them that train.

    The hidden state at (row, position) of [n, L] predicts `target`, the token at position + 1.
    """

    input_ids: Int[Tensor, "n L"]  # prompt and completion side by side, right-padded
    row: Int[Tensor, " K"]
    position: Int[Tensor, " K"]
    target: Int[Tensor, " K"]
    advantage: Float[Tensor, " K"]
    weight: Float[Tensor, " K"]  # of the loss, from a reduction over the global minibatch
    share: Float[Tensor, " K"]  # of the metrics, summing to 1 over the rows that are learned from
    source: Int[Tensor, " K"]  # the token's place in the flattened [N, T] of the iteration
    behavior_logprobs: Float[Tensor, " K"] | None = None  # None: the policy itself sampled
    reference_logprobs: Float[Tensor, " K"] | None = None

    def to(self, device: torch.device | str) -> MicroBatch:
        tensors: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        return MicroBatch(**{name: None if t is None else t.to(device) for name, t in tensors.items()})  # type: ignore[arg-type]

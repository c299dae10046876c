"""Samplers: where completions come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from sgrpo_lightning.axes import Samples

__all__ = ["Sampler", "SamplerError", "Weights"]

Weights = Iterable[tuple[str, Tensor]]
"""Names and whole tensors of a model, one after the other, as `save_pretrained` would name them, tied ones too."""


class SamplerError(RuntimeError):
    """Sampling cannot go on; the message says why and what to do."""


class Sampler(ABC):
    """What the training loop asks of a sampler.

    The loop calls `start` once on every rank, when the ranks know one another; then, as often as it likes, `sync`
    where the weights have changed, `wake`, `generate` and `sleep`; at last `close`. A sampler that reads the policy
    itself, as `HFSampler` does, has only `generate` to write.

    Args:
        max_new_tokens: the limit on the tokens of a completion, >= 1.
        temperature: > 0; log-probabilities are those of softmax(logits / temperature).
    """

    version: int | None = None
    """Optimizer steps behind the weights that it samples with; None before the first `sync`."""

    own_weights = False
    """Whether it keeps a copy of the weights, which has to be synchronised."""

    def __init__(self, *, max_new_tokens: int, temperature: float = 1.0) -> None:
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be >= 1, got {max_new_tokens}")
        if not temperature > 0:
            raise ValueError(f"temperature must be > 0, got {temperature}")
        self.max_new_tokens, self.temperature = max_new_tokens, temperature

    def start(self, model: Any, *, max_prompt_tokens: int | None = None) -> None:
        """Prepare to sample from models of this architecture, on every rank at once.

        Args:
            model: the policy, before or after a strategy has sharded it: its `config` and the names and shapes of
                its weights count.
            max_prompt_tokens: no prompt will have more tokens; None: not known.
        """

    def sync(self, weights: Weights, *, version: int) -> None:
        """Take over the weights. Every rank has to exhaust `weights`, for each tensor may be gathered from all.

        Args:
            version: optimizer steps behind them.
        """
        self.version = version

    @abstractmethod
    def generate(
        self,
        model: Any,
        prompt_ids: Tensor,
        prompt_mask: Tensor,
        *,
        samples_per_group: int,
        eos_token_ids: Tensor,
        pad_token_id: int,
        generator: torch.Generator,
    ) -> Samples:
        """M completions of each left-padded prompt, with the log-probability of every token.

        Args:
            prompt_ids, prompt_mask: [G, P], left-padded.
            eos_token_ids: [E], any of which ends a completion and belongs to it.
            generator: the only source of randomness, on the device of the prompts.
        """
        ...

    def sleep(self) -> None:
        """Free what memory can be freed until `wake`."""

    def wake(self) -> None:
        """Be ready to take over weights and to sample."""

    def close(self) -> None:
        """Release everything; no other call follows."""

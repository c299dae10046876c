"""Samplers: where completions come from."""

from typing import Any, Protocol

import torch
from torch import Tensor

from sgrpo_lightning.axes import Samples

__all__ = ["Sampler"]


class Sampler(Protocol):
    """What the training loop asks of a sampler."""

    max_new_tokens: int
    """The limit on the tokens of a completion."""

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
        """M completions of each left-padded prompt [G, P], with the log-probability of every token."""
        ...

"""The letters on names, and the arrays that travel together.

G groups (prompts), M samples per group, N = G * M rows, P prompt tokens, T completion tokens,
K tokens that train, V vocabulary. Row i belongs to group i // M.
Images: B images of ch x H x W, C classes; an image is a group, and a sampled label a sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, UInt8
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
    weights_version: int | None = None  # optimizer steps behind the weights that sampled; None: those of the policy

    @property
    def samples_per_group(self) -> int:
        return len(self.completion_ids) // len(self.prompt_ids)


@dataclass(slots=True)
class MicroBatch:
    """Rows for one forward pass, and the K tokens of them that train.

    The hidden state at (row, position) of [n, L] predicts `target`, the token at position + 1. Packed rows lie one
    after the other in a single one without padding, and `position_ids` begin anew at each.
    """

    input_ids: Int[Tensor, "n L"]  # prompt and completion side by side, right-padded
    row: Int[Tensor, " K"]
    position: Int[Tensor, " K"]
    target: Int[Tensor, " K"]
    advantage: Float[Tensor, " K"]
    weight: Float[Tensor, " K"]  # of the loss, from a reduction over the global minibatch
    share: Float[Tensor, " K"]  # of the metrics, summing to 1 over the rows that are learned from
    source: Int[Tensor, " K"]  # the token's place in the flattened [N, T] of the iteration
    position_ids: Int[Tensor, "1 L"] | None = None  # of packed rows; None: padded ones
    behavior_logprobs: Float[Tensor, " K"] | None = None  # None: the policy itself sampled
    reference_logprobs: Float[Tensor, " K"] | None = None
    reference_states: Float[Tensor, "K H"] | None = None  # None: the loss runs the reference itself
    chunks: int = 1  # parts of the logits, of which one exists at a time; the same number on every rank

    def to(self, device: torch.device | str) -> MicroBatch:
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        moved: dict[str, Any] = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in fields.items()}
        return MicroBatch(**moved)


NO_LABEL = -1
"""The label of a row without an image: padding, or a file that cannot be read."""

Draw = tuple[int, int]
"""(index of an image, number of the draw in the run). Index -1 is padding; number -1 evaluates: nothing is random."""


@dataclass(slots=True)
class ImageBatch:
    """Images as they travel to the device, which normalises them."""

    images: UInt8[Tensor, "B ch H W"]
    labels: Int[Tensor, " B"]  # NO_LABEL where there is no image; the pixels are 0 there
    unreadable: tuple[str, ...] = ()  # names of the files behind such rows

    def pin_memory(self) -> ImageBatch:
        return ImageBatch(self.images.pin_memory(), self.labels.pin_memory(), self.unreadable)

    def to(self, device: torch.device | str) -> ImageBatch:
        images, labels = (tensor.to(device, non_blocking=tensor.is_pinned()) for tensor in (self.images, self.labels))
        return ImageBatch(images, labels, self.unreadable)

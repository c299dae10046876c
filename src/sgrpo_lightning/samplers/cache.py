"""A key-value cache that leaves room to grow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer

ROOM = 16
"""Tokens of free space that a new buffer gets."""


class RoomyLayer(DynamicLayer):
    """Writes new tokens into free space, where `DynamicLayer` copies the whole cache for every token."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._key_buffer: Tensor | None = None
        self._value_buffer: Tensor | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self._key_buffer, self.keys = _append(self._key_buffer, self.keys, key_states)
        self._value_buffer, self.values = _append(self._value_buffer, self.values, value_states)
        return self.keys, self.values


def _append(buffer: Tensor | None, old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """The buffer and its filled part, [B, heads, T, D], after `new` was written behind `old`."""
    length = old.shape[-2] if old.numel() else 0
    end = length + new.shape[-2]
    # Rows that were repeated or dropped since are no longer a part of the buffer.
    if buffer is None or old.data_ptr() != buffer.data_ptr() or len(old) != len(buffer) or end > buffer.shape[-2]:
        buffer = torch.empty(*new.shape[:-2], end + ROOM, new.shape[-1], dtype=new.dtype, device=new.device)
        if length:
            buffer[..., :length, :] = old
    buffer[..., length:end, :] = new
    return buffer, buffer[..., :end, :]


def roomy_cache(config: PreTrainedConfig) -> DynamicCache:
    """The cache that suits a model, with room in its full-attention layers; others stay as transformers has them."""
    cache = DynamicCache(config=config)
    cache.layers = [RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache

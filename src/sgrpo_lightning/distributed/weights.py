"""Whole weights of a policy of which every device may hold a piece: to be read one by one, or to be run with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sgrpo_lightning.distributed import deepspeed, sharding

__all__ = ["full_weights", "trained_weights", "whole_weights"]


def full_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The weights one by one, whole and detached, named as in the `state_dict` of the unsharded model.

    All ranks have to exhaust it together, inside `whole_weights` or outside: a tensor that lies in pieces is gathered
    when it is its turn, so that one rank never holds two of them on account of this.

    Args:
        model: a transformers model, or one in PEFT adapters; anywhere in the tree of what was sharded.

    Returns:
        (name, tensor), in the order of the `state_dict`. A tied weight comes under each of its names. Adapters are
        merged, under the names of the base model, without a change to `model`. Where nothing is in pieces, the tensor
        is the model's own memory.

    Edge cases: the dtype is that of the weights that the optimizer updates, of DeepSpeed in bf16 that of its copy.
    """
    known: Any = model
    yield from _of_tree(known.get_base_model() if hasattr(model, "get_base_model") else known, "")


def trained_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The weights that train, whole, under the names that `model` itself has for them; all ranks together."""
    yield from ((name, _whole(p)) for name, p in model.named_parameters() if p.requires_grad)


@contextmanager
def whole_weights(model: nn.Module, strategy: Any) -> Iterator[None]:
    """Inside, a forward pass of `model` without gradient meets no collective: ranks may run different numbers of them.

    All ranks have to enter together. Memory: the whole model on every device, in the precision that it computes in.
    It nests; an error inside leaves the model in pieces as it was before.

    Args:
        model: the policy or a part of it, or a reference that was sharded by itself.
        strategy: Lightning's, after it has set up the model.
    """
    with ExitStack() as stack:
        if deepspeed.in_pieces(model):
            stack.enter_context(deepspeed.gathered(strategy.model))
        for root in sharding.roots(model, strategy.lightning_module):
            stack.enter_context(sharding.unsharded(root))
        yield


def _of_tree(module: Any, prefix: str) -> Iterator[tuple[str, Tensor]]:
    if hasattr(module, "modules_to_save"):  # PEFT trains a copy of the layer
        yield from _of_tree(module.modules_to_save[module.active_adapters[0]], prefix)
    elif hasattr(module, "merged_adapters"):
        yield from ((prefix + name, tensor) for name, tensor in _merged(module))
    else:
        yield from ((prefix + name, _whole(tensor)) for name, tensor in _own(module))
        for name, child in module.named_children():
            yield from _of_tree(child, f"{prefix}{name}.")


def _own(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What a `state_dict` holds of the module itself."""
    saved = {**module._parameters, **module._buffers}
    yield from (
        (name, tensor)
        for name, tensor in saved.items()
        if tensor is not None and name not in module._non_persistent_buffers_set
    )


@torch.no_grad()
def _whole(tensor: Tensor) -> Tensor:
    if deepspeed.is_piece(tensor):
        return deepspeed.gathered_copy(tensor)
    return sharding.gathered_copy(tensor)


@torch.no_grad()
def _merged(layer: Any) -> list[tuple[str, Tensor]]:
    """A layer with adapters as PEFT itself merges them, computed on whole copies that take the places of the pieces."""
    places = [(part, dict(part._parameters)) for part in layer.modules()]
    merged_before = list(layer.merged_adapters)
    try:
        for part, own in places:
            whole = {name: _whole(piece).clone() for name, piece in own.items() if piece is not None}
            part._parameters |= {name: nn.Parameter(tensor, False) for name, tensor in whole.items()}
        layer.merge()
        return [(name, tensor.detach()) for name, tensor in layer.get_base_layer().named_parameters()]
    finally:
        layer.merged_adapters[:] = merged_before
        for part, own in places:
            part._parameters |= own

"""FSDP2: weights, gradients and optimizer state in shards over all devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor


class FullyShardedStrategy(ModelParallelStrategy):
    """Lightning's strategy for `fully_shard`, over every device there is; its "auto" means the number of nodes.

    Checkpoints are one file with all weights, as those of the other strategies are.

    Args:
        offload: keep weights, gradients and optimizer state in the memory of the CPU, and bring a layer's weights to
            the device for the time that it computes.
        reshard_after_forward: give a layer's whole weights up between its forward and its backward pass: less memory,
            and one more gathering.
    """

    def __init__(self, *, offload: bool = False, reshard_after_forward: bool = True, **knobs: Any) -> None:
        if offload and torch.cuda.is_available():  # what lies on the CPU is added up there
            knobs.setdefault("process_group_backend", "cpu:gloo,cuda:nccl")
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False, **knobs)
        self.offload, self.reshard_after_forward = offload, reshard_after_forward

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def shard(self, module: nn.Module) -> None:
        """`fully_shard` as this strategy and the trainer's precision want it; inner modules first, the root last."""
        knobs: dict[str, Any] = {"reshard_after_forward": self.reshard_after_forward}
        knobs["mp_policy"] = mixed_precision(module, self.precision_plugin.precision)
        if self.offload:
            knobs["offload_policy"] = CPUOffloadPolicy(pin_memory=self.root_device.type == "cuda")
        fully_shard(module, mesh=self.device_mesh["data_parallel"], **knobs)

    def model_to_device(self) -> None:
        """Everything but the shards that are to stay on the CPU."""
        if not self.offload:
            super().model_to_device()
            return
        assert self.model is not None
        for module in self.model.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = buffer if buffer is None else buffer.to(self.root_device)


def mixed_precision(module: nn.Module, precision: str) -> MixedPrecisionPolicy:
    """With bf16-mixed, weights are gathered in bf16; gradients are added up, and weights updated, in float32.

    Inputs stay as they are: those of a root are advantages and token weights. So do the weights of a module with batch
    normalisation, which wants them in the precision of its statistics, and computes in bf16 by autocast alone.
    """
    normalises = any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())
    if precision != "bf16-mixed" or normalises:
        return MixedPrecisionPolicy(cast_forward_inputs=False)
    return MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)


def shard(strategy: Any, parts: Iterable[nn.Module], root: nn.Module) -> None:
    """Shard each part, then the rest of `root`, where the strategy does so by modules; once.

    Forward passes of training have to go through `root` itself.
    """
    if isinstance(strategy, FullyShardedStrategy) and not isinstance(root, FSDPModule):
        for module in (*parts, root):
            strategy.shard(module)


def roots(model: nn.Module, tree: nn.Module | None) -> list[FSDPModule]:
    """The outermost sharded modules of the tree that `model` belongs to, else of `model` itself."""
    inside = tree is not None and any(module is model for module in tree.modules())
    return list(_outermost(tree if inside and tree is not None else model))


def _outermost(module: nn.Module) -> Iterator[FSDPModule]:
    if isinstance(module, FSDPModule):
        yield module
        return
    for child in module.children():
        yield from _outermost(child)


def gathered_copy(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor; any other as it is, detached."""
    shard: Any = _SHARDS.get(id(tensor), tensor).detach()
    if not isinstance(shard, DTensor):
        return shard
    gathered: Any = shard.to(shard.device_mesh.device_type)  # an offloaded one too is gathered on the device
    return gathered.full_tensor()


_SHARDS: dict[int, Tensor] = {}
"""By the id of the whole weight that stands in for it inside `unsharded`: the shard that the optimizer updates."""

_OPEN: set[int] = set()


@contextmanager
def unsharded(root: FSDPModule) -> Iterator[None]:
    """Every weight whole, and left so by forward passes; afterwards in shards, with the root's settings as before.

    The root has to be initialised as such before one of its layers runs by itself, and what passes without gradient
    leave in the list of passes, from which the backward pass would prefetch, is taken out again.
    """
    if id(root) in _OPEN:
        yield
        return
    state: Any = fully_shard.state(root)  # type: ignore[attr-defined]
    state._lazy_init()
    states = state._state_ctx.all_states
    groups = [group for each in states for group in each._fsdp_param_groups]
    resharding = [(group, group.post_forward_mesh_info, len(group._post_forward_indices)) for group in groups]
    passes = len(state._comm_ctx.post_forward_order)
    names = dict(root.named_parameters(remove_duplicate=False))  # type: ignore[attr-defined]
    whole: dict[int, Tensor] = {}
    try:
        _OPEN.add(id(root))
        for group in groups:
            group.post_forward_mesh_info = None
        for module in _sharded(root):
            module.unshard()
        parameters = root.named_parameters(remove_duplicate=False)  # type: ignore[attr-defined]
        whole = {id(parameter): names[name] for name, parameter in parameters}
        _SHARDS.update(whole)
        yield
    finally:
        _OPEN.discard(id(root))
        for key in whole:
            _SHARDS.pop(key, None)
        _to_idle(states)
        for group, mesh, count in resharding:
            group.reshard()
            group.post_forward_mesh_info = mesh
            del group._post_forward_indices[count:]
        del state._comm_ctx.post_forward_order[passes:]


def _sharded(root: Any) -> list[FSDPModule]:
    return [module for module in root.modules() if isinstance(module, FSDPModule)]


def _to_idle(states: list[Any]) -> None:
    """An error in the middle of a forward pass leaves traces of it."""
    for state in states:
        state._state_ctx.iter_forward_root = None
        state._training_state = type(state._training_state).IDLE
        for group in state._fsdp_param_groups:
            group._training_state = type(group._training_state).IDLE

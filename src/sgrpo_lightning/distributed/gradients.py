"""The size of a step's gradient, under every strategy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def norm_follows_step(strategy: Any) -> bool:
    """Whether the norm can be read only after the step, in `on_train_batch_end`, rather than before it.

    DeepSpeed adds gradients up in buffers of its own, and knows their norm when it clips them.
    """
    return hasattr(strategy, "deepspeed_engine")


def gradient_norm(module: nn.Module, strategy: Any) -> Tensor:
    """L2 norm, before clipping, of the gradient of the whole optimizer step over all ranks.

    All ranks have to ask together, at the last micro-batch of a step: in `on_before_optimizer_step`, or where
    `norm_follows_step`, in `on_train_batch_end`.

    Returns:
        a scalar on the module's device; inf where DeepSpeed left a step out because of it.
    """
    device = strategy.root_device
    if norm_follows_step(strategy):
        return torch.as_tensor(strategy.deepspeed_engine.get_global_grad_norm(), dtype=torch.float32, device=device)
    norm = torch.nn.utils.get_total_norm([p.grad for p in module.parameters() if p.grad is not None])
    return (norm.full_tensor() if hasattr(norm, "full_tensor") else norm).to(device)

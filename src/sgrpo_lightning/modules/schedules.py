"""Learning-rate schedules."""

from __future__ import annotations

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def cosine_with_warmup(optimizer: Optimizer, *, num_training_steps: int, num_warmup_steps: int = 0) -> LambdaLR:
    """From 1/w of the learning rate up in w warm-up steps, then half a cosine down to 0 after the last step.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> schedule = cosine_with_warmup(optimizer, num_training_steps=6, num_warmup_steps=2)
    >>> [round(schedule.lr_lambdas[0](step), 3) for step in range(7)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146, 0.0]
    """
    if not 0 <= num_warmup_steps < max(num_training_steps, 1):
        raise ValueError(f"warm-up must be shorter than the {num_training_steps} steps, got {num_warmup_steps}")

    def factor(step: int) -> float:
        if step < num_warmup_steps:
            return (step + 1) / num_warmup_steps
        done = (step - num_warmup_steps) / (num_training_steps - num_warmup_steps)
        return (1 + math.cos(math.pi * min(done, 1.0))) / 2

    return LambdaLR(optimizer, factor)

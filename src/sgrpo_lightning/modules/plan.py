"""How one iteration is cut into optimizer steps and micro-batches."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """The sizes of one iteration, over all ranks.

    Args:
        prompts_per_iteration: G, groups sampled an iteration.
        samples_per_group: M.
        ppo_epochs: passes over the rollouts of an iteration.
        minibatches: optimizer steps a pass; each takes G / minibatches groups.
        micro_batch_size: rows of one forward pass; it changes memory and speed, never the gradient.
        seed: of the run; with the iteration and the rank it decides every random draw.
    """

    prompts_per_iteration: int
    samples_per_group: int
    ppo_epochs: int
    minibatches: int
    micro_batch_size: int
    seed: int

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if name != "seed" and getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        self.groups_per_minibatch(world_size=1)

    @property
    def steps(self) -> int:
        """Optimizer steps an iteration."""
        return self.ppo_epochs * self.minibatches

    def groups_per_minibatch(self, *, world_size: int) -> int:
        """Groups of one optimizer step on one rank."""
        groups, left = divmod(self.prompts_per_iteration, self.minibatches * world_size)
        if left:
            raise ValueError(
                f"prompts_per_iteration must be a multiple of minibatches x ranks = "
                f"{self.minibatches} x {world_size}, got {self.prompts_per_iteration}"
            )
        return groups

    def micro_batches(self, *, world_size: int) -> int:
        """Micro-batches of one optimizer step on one rank."""
        rows = self.groups_per_minibatch(world_size=world_size) * self.samples_per_group
        return math.ceil(rows / self.micro_batch_size)

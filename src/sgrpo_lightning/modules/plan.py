"""How one iteration is cut into optimizer steps and micro-batches, in either domain."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """The sizes of one iteration of a language model, over all ranks.

    Args:
        prompts_per_iteration: G, groups sampled an iteration.
        samples_per_group: M.
        ppo_epochs: passes over the rollouts of an iteration.
        minibatches: optimizer steps a pass; each takes G / minibatches groups.
        micro_batch_size: rows of one forward pass; it changes memory and speed, never the gradient.
        seed: of the run; with the iteration and the rank it decides every random draw.
        tokens_per_micro_batch: tokens of one forward pass instead, padding counted; None goes by rows.
        packing: rows one after the other without padding; None: where the attention skips what it masks.
    """

    prompts_per_iteration: int
    samples_per_group: int
    ppo_epochs: int
    minibatches: int
    micro_batch_size: int
    seed: int
    tokens_per_micro_batch: int | None = None
    packing: bool | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if name not in ("seed", "packing") and value is not None and value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}")
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


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The sizes of a classifier's training, over all ranks.

    Args:
        total_steps: optimizer steps of the run.
        steps: optimizer steps of an iteration, after which a row is logged and a checkpoint may be kept.
        batch_size: images of an optimizer step.
        micro_batch_size: images of one forward pass, over all ranks; None takes the whole batch at once. It changes
            memory and speed, and the gradient only where a layer looks at its batch, as batch normalisation does.
        seed: of the run; with the number of a draw it decides which image it is and what is random about it.
    """

    total_steps: int
    steps: int
    batch_size: int
    micro_batch_size: int | None
    seed: int

    def __post_init__(self) -> None:
        for name in ("total_steps", "steps", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{_TYPED.get(name, name)} must be >= 1, got {getattr(self, name)}")
        if self.total_steps % self.steps:
            raise ValueError(f"steps must be a multiple of steps_per_iteration = {self.steps}, got {self.total_steps}")
        self.micro_batches(world_size=1)

    @property
    def iterations(self) -> int:
        return self.total_steps // self.steps

    def micro_batches(self, *, world_size: int) -> int:
        """Micro-batches of one optimizer step on one rank, all of the same size."""
        size = self.batch_size if self.micro_batch_size is None else self.micro_batch_size
        if size < 1 or self.batch_size % size:
            raise ValueError(f"micro_batch_size must divide batch_size = {self.batch_size}, got {size}")
        if size % world_size:
            raise ValueError(f"micro_batch_size, else batch_size, must be a multiple of {world_size} ranks, got {size}")
        return self.batch_size // size


_TYPED = {"total_steps": "steps", "steps": "steps_per_iteration"}  # as a user types them

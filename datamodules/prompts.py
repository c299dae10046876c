"""The prompts of each iteration, and the buffer that an iteration's learning reads."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from torch.utils.data import DataLoader, Dataset

from datamodules.task_data import TaskDataModule

if TYPE_CHECKING:
    from sgrpo_lightning.axes import MicroBatch
    from sgrpo_lightning.modules import Policy, UpdatePlan
    from sgrpo_lightning.tasks import Example, Task


class RolloutBuffer(Dataset["MicroBatch"]):
    """The micro-batches of one iteration, as many as that iteration needs: a Lightning epoch is one iteration."""

    def __init__(self) -> None:
        self.micro_batches: Sequence[MicroBatch] | None = None

    def __len__(self) -> int:
        """Before it is filled more than any iteration has, for Lightning takes its first length as a limit."""
        return 2**31 if self.micro_batches is None else len(self.micro_batches)

    def __getitem__(self, index: int) -> MicroBatch:
        assert self.micro_batches is not None, "nothing was filled in"
        return self.micro_batches[index]

    def clear(self) -> None:
        self.micro_batches = None

    def fill(self, micro_batches: Sequence[MicroBatch]) -> None:
        self.micro_batches = micro_batches


class PromptDataModule(TaskDataModule):
    """`prompts_per_iteration` training examples an iteration, in an order that `seed` alone decides.

    Each pass over the training set is a new permutation. Which examples an iteration asks is a pure function
    of (seed, iteration), so a resumed run needs no cursor.

    Args:
        plan: the sizes of an iteration.
        max_prompt_tokens: as for `TaskDataModule`.
    """

    def __init__(self, policy: Policy, task: Task, *, plan: UpdatePlan, max_prompt_tokens: int | None = None) -> None:
        super().__init__(policy, task, max_prompt_tokens=max_prompt_tokens)
        self.plan = plan

    def setup(self, stage: str) -> None:
        self.plan.groups_per_minibatch(world_size=self.trainer.world_size if self.trainer else 1)  # must divide
        self.buffer = RolloutBuffer()

    def prompts(self, iteration: int, *, rank: int = 0, world_size: int = 1) -> list[Example]:
        """This rank's share of the examples of `iteration` (counted from 0)."""
        first = iteration * self.plan.prompts_per_iteration
        share = range(first + rank, first + self.plan.prompts_per_iteration, world_size)
        return [self.task.train[index] for index in self._order(share)]

    def _order(self, draws: Sequence[int]) -> Iterator[int]:
        size = len(self.task.train)
        for draw in draws:
            epoch, place = divmod(draw, size)
            yield _permutation(self.plan.seed, epoch, size)[place]

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.buffer, batch_size=None, shuffle=False, num_workers=0)


@lru_cache(maxsize=2)  # of a large data set it takes a second, and an iteration needs one or two
def _permutation(seed: int, epoch: int, size: int) -> list[int]:
    return random.Random(f"prompts {seed} {epoch}").sample(range(size), size)

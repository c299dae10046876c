"""The images of each step, and the held-out ones."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import lightning as L
import torch
from torch.utils.data import DataLoader, Sampler

from sgrpo_lightning.axes import NO_LABEL, Draw

if TYPE_CHECKING:
    from sgrpo_lightning.modules import StepPlan

T = TypeVar("T")
PADDING: Draw = (NO_LABEL, NO_LABEL)


class TrainingDraws(Sampler[list[Draw]]):
    """One rank's draws of the iteration at hand, a micro-batch at a time.

    Draw n of a run is image `order[n mod size]` of pass `n // size` over the data, in an order that `seed` and the
    pass alone decide. So a resumed run needs no cursor, and any number of ranks trains on the same batches.

    Args:
        size: images to draw from.
        plan: the sizes of an iteration.
        iteration: () -> iterations done.
    """

    def __init__(self, size: int, plan: StepPlan, *, iteration: Any, rank: int = 0, world_size: int = 1) -> None:
        self.size, self.plan, self.iteration, self.rank, self.world_size = size, plan, iteration, rank, world_size
        self.micro_batches = plan.micro_batches(world_size=world_size)
        self._orders: dict[int, torch.Tensor] = {}

    def __len__(self) -> int:
        return self.plan.steps * self.micro_batches

    def __iter__(self) -> Iterator[list[Draw]]:
        count = self.plan.batch_size // self.micro_batches
        first = self.iteration() * self.plan.steps * self.plan.batch_size
        for start in range(first, first + len(self) * count, count):
            yield [self._draw(number) for number in range(start + self.rank, start + count, self.world_size)]

    def _draw(self, number: int) -> Draw:
        passed, place = divmod(number, self.size)
        if passed not in self._orders:
            seed = random.Random(f"images {self.plan.seed} {passed}").getrandbits(63)
            order = torch.randperm(self.size, generator=torch.Generator().manual_seed(seed), dtype=torch.int32)
            self._orders = {passed - 1: self._orders.get(passed - 1, order), passed: order}
        return int(self._orders[passed][place]), number


class EvaluationDraws(Sampler[list[Draw]]):
    """One rank's share of `size` images in their order, in batches of which every rank has as many.

    A sharded network needs every rank at each of its forward passes, so the last batches are padded.
    """

    def __init__(self, size: int, batch_size: int, *, rank: int = 0, world_size: int = 1) -> None:
        self.size, self.batch_size, self.rank, self.world_size = size, batch_size, rank, world_size

    def __len__(self) -> int:
        return math.ceil(self.size / (self.batch_size * self.world_size))

    def __iter__(self) -> Iterator[list[Draw]]:
        for batch in range(len(self)):
            first = (batch * self.world_size + self.rank) * self.batch_size
            places = range(first, first + self.batch_size)
            yield [(place, NO_LABEL) if place < self.size else PADDING for place in places]


def as_it_is(batch: T) -> T:
    """The dataset has made the batch already."""
    return batch


class ImageDataModule(L.LightningDataModule):
    """Batches of training images, and every held-out split.

    Args:
        data: `train` and the splits of `held_out`, datasets that turn a list of draws into an `ImageBatch`.
        plan: the sizes of an iteration.
        evaluation_batch_size: images of a forward pass on one rank.
        num_workers: processes that read images, on each rank; 0 reads in the training process.
        prefetch_factor: batches that each of them holds ready.
    """

    def __init__(
        self,
        data: Any,
        *,
        plan: StepPlan,
        evaluation_batch_size: int,
        num_workers: int = 0,
        prefetch_factor: int = 4,
    ) -> None:
        super().__init__()
        if evaluation_batch_size < 1:
            raise ValueError(f"evaluation_batch_size must be >= 1, got {evaluation_batch_size}")
        self.data, self.plan, self.evaluation_batch_size = data, plan, evaluation_batch_size
        self.num_workers = num_workers
        self.knobs: dict[str, Any] = {"collate_fn": as_it_is, "num_workers": num_workers}
        if num_workers:
            self.knobs |= {"prefetch_factor": prefetch_factor}

    def setup(self, stage: str) -> None:
        if self.trainer:
            self.trainer.fit_loop.max_epochs = self.plan.iterations
            self.knobs["pin_memory"] = self.trainer.strategy.root_device.type == "cuda"

    @property
    def _ranks(self) -> dict[str, int]:
        return {"rank": self.trainer.global_rank, "world_size": self.trainer.world_size} if self.trainer else {}

    def _loader(self, dataset: Any, draws: Sampler[list[Draw]], *, persistent: bool) -> DataLoader:
        # A loader draws a seed for its workers; from a generator of its own it leaves the global one alone.
        generator = torch.Generator().manual_seed(self.plan.seed)
        return DataLoader(
            dataset,
            batch_sampler=draws,
            generator=generator,
            persistent_workers=persistent and self.num_workers > 0,
            **self.knobs,
        )

    def train_dataloader(self) -> DataLoader:
        draws = TrainingDraws(
            len(self.data.train),
            self.plan,
            iteration=lambda: self.trainer.current_epoch if self.trainer else 0,
            **self._ranks,
        )
        return self._loader(self.data.train, draws, persistent=True)

    def held_out_dataloaders(self) -> dict[str, DataLoader]:
        """A loader for each held-out split."""
        return {
            name: self._loader(
                dataset,
                EvaluationDraws(len(dataset), self.evaluation_batch_size, **self._ranks),
                persistent=False,
            )
            for name, dataset in self.data.held_out.items()
        }

"""Demonstrations of a task as padded batches for supervised training."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from datamodules.task_data import TaskDataModule
from sgrpo_lightning.tasks.prompting import render_prompt

if TYPE_CHECKING:
    from sgrpo_lightning.modules import Policy
    from sgrpo_lightning.tasks import Example, Task

TRIES = 100


class DemonstrationDataset(Dataset[tuple[list[int], list[int]]]):
    """Item i is a training example and one of its demonstrations, both drawn from (seed, i) alone."""

    def __init__(self, task: Task, tokenizer: Any, *, size: int, seed: int) -> None:
        self.task, self.tokenizer, self.size, self.seed = task, tokenizer, size, seed

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[list[int], list[int]]:
        rng = random.Random(f"demonstration {self.seed} {index}")
        example, demonstration = self._drawn(rng)
        completion = demonstration + self.tokenizer.eos_token
        prompt = render_prompt(self.tokenizer, example.prompt, system=example.system)
        prompt_ids = self.tokenizer(prompt, add_special_tokens=False)
        completion_ids = self.tokenizer(completion, add_special_tokens=False)
        return prompt_ids["input_ids"], completion_ids["input_ids"]

    def _drawn(self, rng: random.Random) -> tuple[Example, str]:
        """An example that has a demonstration; those without are passed over."""
        for _ in range(TRIES):
            example = rng.choice(self.task.train)
            try:
                return example, self.task.demonstrate(example, rng)
            except ValueError as error:
                reason = error
        raise ValueError(f"none of {TRIES} random examples has a demonstration; the last: {reason}")


class Share(Sampler[int]):
    """The items of one rank, step by step; where a run goes on, those of the steps to come.

    Args:
        steps: of the whole run.
        first: the step to begin with.
        batch_size: items of a step, over all ranks.
    """

    def __init__(self, steps: int, *, first: int, batch_size: int, rank: int, world_size: int) -> None:
        self.steps, self.first, self.batch_size = steps, first, batch_size
        self.rank, self.size = rank, batch_size // world_size

    def __iter__(self) -> Iterator[int]:
        for step in range(self.first, self.steps):
            start = step * self.batch_size + self.rank * self.size
            yield from range(start, start + self.size)

    def __len__(self) -> int:
        """Of the whole run, for the loop counts on."""
        return self.steps * self.size


def collate(rows: list[tuple[list[int], list[int]]], pad_token_id: int) -> dict[str, Tensor]:
    """Right-padded `input_ids`, `attention_mask` and `loss_mask` [B, L]; only completions train."""
    width = max(len(prompt) + len(completion) for prompt, completion in rows)
    input_ids = torch.full((len(rows), width), pad_token_id)
    attention_mask = torch.zeros(len(rows), width, dtype=torch.bool)
    loss_mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for row, (prompt, completion) in enumerate(rows):
        end = len(prompt) + len(completion)
        input_ids[row, :end] = torch.tensor(prompt + completion)
        attention_mask[row, :end] = True
        loss_mask[row, len(prompt) : end] = True
    return {"input_ids": input_ids, "attention_mask": attention_mask, "loss_mask": loss_mask}


class DemonstrationDataModule(TaskDataModule):
    """`steps` batches of `batch_size` demonstrations, over all ranks, in micro-batches.

    Args:
        micro_batch_size: rows of one forward pass of a rank, a divisor of its share of `batch_size`.
        seed: which examples and demonstrations are drawn, and in which order.
    """

    def __init__(
        self, policy: Policy, task: Task, *, steps: int, batch_size: int, micro_batch_size: int, seed: int
    ) -> None:
        super().__init__(policy, task)
        if batch_size % micro_batch_size:
            raise ValueError(f"micro_batch_size must divide batch_size = {batch_size}, got {micro_batch_size}")
        self.dataset = DemonstrationDataset(task, policy.tokenizer, size=steps * batch_size, seed=seed)
        self.steps, self.batch_size, self.micro_batch_size = steps, batch_size, micro_batch_size
        self.pad_token_id = policy.tokenizer.pad_token_id

    def setup(self, stage: str) -> None:
        if self.trainer:
            together = self.micro_batch_size * self.trainer.world_size
            if self.batch_size % together:
                raise ValueError(
                    f"batch_size must be a multiple of micro_batch_size x ranks = {together}, got {self.batch_size}"
                )
            self.trainer.accumulate_grad_batches = self.batch_size // together

    def train_dataloader(self) -> DataLoader:
        first, rank, world_size = 0, 0, 1
        if self.trainer:
            first, rank, world_size = self.trainer.global_step, self.trainer.global_rank, self.trainer.world_size
        return DataLoader(
            self.dataset,
            sampler=Share(self.steps, first=first, batch_size=self.batch_size, rank=rank, world_size=world_size),
            batch_size=self.micro_batch_size,
            collate_fn=lambda rows: collate(rows, self.pad_token_id),
            generator=torch.Generator().manual_seed(self.dataset.seed),
        )

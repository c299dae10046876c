"""Which setting fits a GPU: from the fastest to the smallest, the first of which the memory plan says that it does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sgrpo_lightning.distributed.architecture import Architecture
from sgrpo_lightning.distributed.memory import MemoryPlan, Setting, memory_plan

TOKENS = (32768, 16384, 8192, 4096)
"""Budgets of a micro-batch. Below a few thousand tokens a GPU is not busy, and above these it is no faster."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Values of the keys that decide about memory, as a user types them."""

    strategy: str
    tokens_per_micro_batch: int
    gradient_checkpointing: bool
    reference: str


def choices(longest: int, reference: str) -> Iterator[Choice]:
    """From what costs least time on.

    Replicas before shards; then a smaller micro-batch, which costs nothing while it is a few thousand tokens;
    checkpointing, a forward pass more; last a reference that comes from the CPU and goes back each iteration.

    Args:
        longest: tokens of the longest row, which no micro-batch can cut.
        reference: "device" where there is one, else "none".
    """
    places = (reference, "cpu") if reference == "device" else (reference,)
    budgets = [tokens for tokens in TOKENS if tokens >= longest] or [longest]
    for place in places:
        for checkpointing in (False, True):
            for strategy in ("ddp", "fsdp2"):
                for tokens in budgets:
                    yield Choice(strategy, tokens, checkpointing, place)


def first_fit(
    model: Architecture, base: Setting, *, longest: int, gib: float, sampler: int = 0, margin: float = 0.1
) -> tuple[Choice, MemoryPlan] | None:
    """The first choice that fits a GPU of so many GiB, and its plan; None where none does.

    Args:
        base: the rest of the setting; every token of a micro-batch is taken to train.
        sampler: B that sampling needs in this process.
    """
    for choice in choices(longest, base.reference):
        setting = replace(
            base,
            tokens=choice.tokens_per_micro_batch,
            trained_tokens=choice.tokens_per_micro_batch,
            checkpointing=choice.gradient_checkpointing,
            reference=choice.reference,
        )
        plan = memory_plan(model, choice.strategy, setting, sampler=sampler)
        if plan.fits(gib, margin=margin):
            return choice, plan
    return None

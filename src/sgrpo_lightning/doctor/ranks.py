"""Whether ranks hold the same weights and data, and draw different samples for different prompts."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sgrpo_lightning.distributed.weights import full_weights
from sgrpo_lightning.doctor.verdict import Finding, judge, of_all_ranks

PART = 2**22
"""Numbers that are summed at once."""


@dataclass(frozen=True, slots=True)
class Rank:
    """What one rank says of itself."""

    data: str | None  # its fingerprint, where it has one
    weights: int  # checksum
    seed: int | None  # of its first samples
    work: tuple[Hashable, ...]  # the prompts or images of its first iteration


def check_ranks(own: Rank) -> Finding:
    """All ranks together."""
    return judge_ranks(of_all_ranks(own))


def judge_ranks(ranks: Sequence[Rank]) -> Finding:
    first = ranks[0]
    figures = f"weights {first.weights & 0xFFFFFFFF:08x}" + (f", data {first.data[:8]}" if first.data else "")
    if len(ranks) == 1:
        return Finding("ranks", "skipped", f"one process; {figures}")
    seeds = {rank.seed for rank in ranks if rank.seed is not None}
    shared = sum(len(set(rank.work)) for rank in ranks) - len({item for rank in ranks for item in rank.work})
    return judge(
        "ranks",
        f"{len(ranks)} processes; {figures}; {len(seeds)} seeds; {shared} prompts or images on two of them",
        failures=[
            (len({r.data for r in ranks}) > 1, "ranks read different data: give all nodes the same files and settings"),
            (
                len({r.weights for r in ranks}) > 1,
                "ranks hold different weights: load the model from one place on all nodes",
            ),
            (
                first.seed is not None and len(seeds) < len(ranks),
                "ranks sample with equal seeds, so they draw the same noise: seed each from the run's seed and its "
                "rank",
            ),
            (
                shared > 0,
                "ranks learn from the same prompts or images: the data module must give each rank a share of its own",
            ),
        ],
    )


def checksum(model: torch.nn.Module) -> int:
    """Of every bit of the whole weights; all ranks have to ask together. Running statistics are no weights."""
    total, buffers = 0, {name for name, _ in model.named_buffers()}
    for place, (name, tensor) in enumerate(full_weights(model)):
        if name not in buffers:
            total = (total * 1_000_003 + place + bits(tensor)) % 2**64
    return total


@torch.no_grad()
def bits(tensor: Tensor) -> int:
    """A sum, modulo 2^64, that any change of a single number changes, and nearly any change of several."""
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    flat, total = tensor.detach().contiguous().view(whole).flatten(), 0
    for start in range(0, len(flat), PART):
        part = flat[start : start + PART].long()
        odd = 2 * torch.arange(start, start + len(part), device=part.device) + 1
        total += int((part * odd).sum())
    return total % 2**64

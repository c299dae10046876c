"""Labels drawn from a softmax, counted: the rollouts of a classifier."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

SCRATCH = 2**20
"""Random numbers alive at once: 8 MiB in float64, however many labels are drawn."""

FINEST = 2.0**52
"""Probabilities count in units of 2^-52: sums of whole numbers are exact in float64, in whatever order they form."""


@torch.no_grad()
def label_counts(probs: Float[Tensor, "B C"], *, samples: int, generator: torch.Generator) -> Float[Tensor, "B C"]:
    """How often each label comes among independent draws.

    The counts are multinomial. They need neither the draws nor a sort: the arrivals of a Poisson process, on a line
    that holds `samples` of them, are as many sorted uniform draws, and label c takes those that fall between the
    cumulative probabilities of c - 1 and c. Long groups are drawn in parts.

    Args:
        probs: non-negative rows that sum to 1 up to rounding, which is normalised away.
        samples: draws per row, >= 1.
        generator: the only source of randomness, on the device of `probs`.

    Returns:
        float32 whole numbers, each row summing to `samples`.

    Edge cases: a label of probability 0 is never drawn, and neither is one below 1e-16. Any other is drawn with its
    probability to within 1e-12. On the CPU a row with NaN gives NaN; anywhere else it gives whole numbers without
    meaning.

    >>> label_counts(torch.tensor([[0.0, 1.0, 0.0]]), samples=5, generator=torch.Generator())
    tensor([[0., 5., 0.]])
    """
    if samples < 1:
        raise ValueError(f"samples must be >= 1, got {samples}")
    if probs.numel() == 0:
        return torch.zeros_like(probs, dtype=torch.float32)
    edges, part = _edges(probs), max(1, SCRATCH // len(probs))
    below = _draws_below(edges, min(part, samples), generator)
    for done in range(part, samples, part):
        below += _draws_below(edges, min(part, samples - done), generator)
    counts = below.float()
    counts[:, 1:] -= counts[:, :-1].clone()
    return counts


def _edges(probs: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
    """Cumulative probabilities in float64; 2 from the last label that can be drawn on, so that no draw is lost."""
    totals = (probs.double() * FINEST).round_().cumsum(dim=1)
    whole = totals[:, -1:].clone()
    return totals.div_(whole).masked_fill_(totals == 1, 2)


def _draws_below(edges: Float[Tensor, "B C"], samples: int, generator: torch.Generator) -> Float[Tensor, "B C"]:
    """How many of `samples` new uniform draws lie below each edge, in float64."""
    times = _arrivals(len(edges) * (samples + 1), edges.device, generator)
    starts, ends = times[: -1 : samples + 1, None], times[samples + 1 :: samples + 1, None]  # of the line of each row
    index = _last_arrival(times, torch.addcmul(starts, edges, ends - starts))
    before = torch.arange(len(edges), device=edges.device)[:, None] * (samples + 1)
    return index.sub_(before).clamp_(max=samples)


def _arrivals(count: int, device: torch.device, generator: torch.Generator) -> Float[Tensor, " count+1"]:
    """Arrival times of a Poisson process, in float64, after a first one at 0."""
    times = torch.zeros(count + 1, dtype=torch.float64, device=device)
    if device.type == "cpu":  # NumPy draws exponentials four times as fast as PyTorch
        seed = int(torch.randint(2**63 - 1, (), generator=generator))
        np.random.default_rng(seed).standard_exponential(out=times.numpy()[1:])
    else:  # whole numbers again, for a sum that is formed in parallel
        times[1:].exponential_(generator=generator).mul_(2.0**32).floor_()
    return times.cumsum(dim=0)


def _last_arrival(times: Float[Tensor, " N"], points: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
    """Index of the last of the sorted `times` that is not after a point."""
    if times.device.type != "cpu":
        return torch.searchsorted(times, points, right=True).sub_(1).double()
    # interp walks along sorted points, which takes half the time of a binary search for each
    index = np.interp(points.flatten().numpy(), times.numpy(), np.arange(len(times), dtype=np.float64))
    return torch.from_numpy(index).view_as(points).floor_()

"""Do sampler and trainer hold the same policy? A few of its tokens, scored once more by the trainer, tell."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sgrpo_lightning.axes import Samples
from sgrpo_lightning.modules.learner import Learner
from sgrpo_lightning.modules.rows import join_rows, micro_batches, scatter
from sgrpo_lightning.samplers import SamplerError


class SamplerGapError(SamplerError):
    """The sampler draws from another distribution than the trainer learns on."""


class Rescoring:
    """Compares the log-probabilities of sampled tokens with those that the trainer gives them.

    Args:
        rows: of each rank's samples, spread evenly over them; 0 rescores none.
        limit: nats, of the mean absolute gap of a token; above it the run stops. None only measures. Float32 on one
            device has gaps of 1e-6, bfloat16 with other kernels of 0.01 to 0.05; a missed update of the weights, a
            stale cache or another temperature have more, as soon as the policy has moved.
    """

    def __init__(self, *, rows: int = 8, limit: float | None = 0.3) -> None:
        if rows < 0:
            raise ValueError(f"rescoring.rows must be >= 0, got {rows}")
        if limit is not None and not limit > 0:
            raise ValueError(f"rescoring.limit must be > 0, or null to only measure, got {limit}")
        self.rows, self.limit = rows, limit

    @torch.no_grad()
    def gaps(self, learner: Learner, samples: Samples) -> Tensor:
        """|trainer - sampler| of each rescored token, [K] nats."""
        count = min(self.rows, len(samples.completion_ids))
        chosen = torch.linspace(0, len(samples.completion_ids) - 1, count, device=samples.completion_ids.device).long()
        nothing = samples.sampler_logprobs.new_zeros(len(samples.prompt_ids), samples.samples_per_group)
        rows = join_rows(samples, nothing)
        ones, parts = torch.ones_like(samples.sampler_logprobs), learner.cut(rows, chosen)
        batches = micro_batches(rows, parts, ones, ones, count=len(parts), packed=learner.packed)
        for batch in batches:
            batch.behavior_logprobs = learner.loss.logprobs(learner.model, batch)
        if not batches:
            return ones.new_zeros(0)
        gap = scatter("behavior_logprobs", batches, samples.completion_mask) - samples.sampler_logprobs
        return gap[chosen][samples.completion_mask[chosen]].abs()

    def measure(
        self, learner: Learner, samples: Samples, over_ranks: Callable[[str, Tensor], float]
    ) -> dict[str, float]:
        """`sampler_gap/mean` and `sampler_gap/max` over all ranks; raises on all of them where one is above the limit.

        Args:
            over_ranks: (name, value) -> the sum, or of a name that ends in /max the largest.
        """
        if not self.rows:
            return {}
        gaps = self.gaps(learner, samples)
        gaps = gaps if len(gaps) else gaps.new_zeros(1)
        worst = over_ranks("/max", gaps.mean())
        total, count = over_ranks("/sum", gaps.sum()), over_ranks("/sum", gaps.new_tensor(len(gaps)))
        if self.limit is not None and not worst <= self.limit:
            raise SamplerGapError(
                f"the sampler's log-probabilities are {worst:.3g} nats a token from the trainer's, more than "
                f"rescoring.limit = {self.limit:g}: it holds other weights, a stale cache, or samples at another "
                "temperature or precision. python doctor.py <the same settings> tells which; rescoring.limit=<nats> "
                "allows more"
            )
        return {"sampler_gap/mean": total / count, "sampler_gap/max": over_ranks("/max", gaps.amax())}

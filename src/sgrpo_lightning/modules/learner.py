"""From an iteration's rows to its optimizer steps: token weights, micro-batches, and the tables that they read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sgrpo_lightning.axes import MicroBatch
from sgrpo_lightning.losses.logprobs import rows_per_chunk
from sgrpo_lightning.modules.plan import UpdatePlan
from sgrpo_lightning.modules.policy_loss import PolicyLoss, states
from sgrpo_lightning.modules.reference import Reference
from sgrpo_lightning.modules.rows import Rows, cut, micro_batches, scatter

AllReduce = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Step:
    """An optimizer step: which rows each forward pass takes, and the weight of every token over all ranks."""

    parts: list[Tensor]
    weights: Tensor  # [N, T]
    shares: Tensor  # [N, T]


@dataclass(frozen=True, slots=True)
class Updates:
    """The micro-batches of an iteration in order, the same number for each step and on each rank, and metrics."""

    micro_batches: list[MicroBatch]
    per_step: int
    metrics: dict[str, Tensor]


class Learner:
    """Cuts the rows of an iteration into steps and micro-batches, in which neither the cut nor the ranks show.

    Args:
        model: the policy.
        loss: of a micro-batch.
        plan: the sizes of an iteration.
        reference: the frozen model of the KL; None without one.
        all_sum, all_max: over the ranks, element by element.
    """

    def __init__(
        self,
        model: Any,
        loss: PolicyLoss,
        plan: UpdatePlan,
        *,
        reference: Reference | None = None,
        all_sum: AllReduce = lambda value: value,
        all_max: AllReduce = lambda value: value,
    ) -> None:
        self.model, self.loss, self.plan, self.reference = model, loss, plan, reference
        self.all_sum, self.all_max = all_sum, all_max
        self.packed = _skips_what_it_masks(model) if plan.packing is None else plan.packing

    def updates(self, rows: Rows, order: torch.Generator) -> Updates:
        """All inner steps of an iteration. The forward passes that fill tables run here, without gradient.

        Args:
            order: decides which groups share a minibatch, anew in each pass.
        """
        steps = [self.step(rows, groups) for groups in self._minibatches(rows, order)]
        most = torch.tensor(max(len(step.parts) for step in steps), device=rows.advantages.device)
        count = max(1, int(self.all_max(most)))
        batches, metrics = list[MicroBatch](), dict[str, Tensor]()
        for epoch in range(self.plan.ppo_epochs):
            part = steps[epoch * self.plan.minibatches : (epoch + 1) * self.plan.minibatches]
            fresh = [batch for step in part for batch in self.micro_batches(rows, step, count=count)]
            self.set_chunks(fresh)
            if epoch == 0:
                metrics = self.fill_tables(rows, fresh)
            self._fill_states(fresh)
            batches += fresh
        return Updates(batches, count, metrics)

    def step(self, rows: Rows, groups: Tensor) -> Step:
        """One optimizer step on these groups: weights over the global minibatch, and the cut of the rows that count."""
        samples = torch.arange(self.plan.samples_per_group, device=groups.device)
        chosen = (groups[:, None] * len(samples) + samples).flatten()
        weights = torch.zeros(rows.loss_mask.shape, device=groups.device)
        weights[chosen] = self.loss.reduction(rows.loss_mask[chosen], rows.group_id[chosen], all_sum=self.all_sum)
        # Without a KL, a row of zero advantage has no gradient: it is not worth a forward pass.
        useful = rows.loss_mask.any(-1) & ((rows.advantages != 0) | bool(self.loss.beta))
        kept = chosen[useful[chosen]]
        shares = torch.ones_like(weights) / self.all_sum(rows.loss_mask[kept].sum()).clamp(min=1)
        return Step(self.cut(rows, kept), weights, shares)

    def cut(self, rows: Rows, kept: Tensor) -> list[Tensor]:
        plan = self.plan
        budget = {"rows": plan.micro_batch_size, "tokens": plan.tokens_per_micro_batch}
        return cut(rows.length, kept, packed=self.packed, **budget)  # type: ignore[arg-type]

    def micro_batches(self, rows: Rows, step: Step, *, count: int) -> list[MicroBatch]:
        return micro_batches(rows, step.parts, step.weights, step.shares, count=count, packed=self.packed)

    def _minibatches(self, rows: Rows, order: torch.Generator) -> list[Tensor]:
        groups, device = len(rows.advantages) // self.plan.samples_per_group, rows.advantages.device
        shuffled = (torch.randperm(groups, generator=order, device=device) for _ in range(self.plan.ppo_epochs))
        return [part for epoch in shuffled for part in epoch.chunk(self.plan.minibatches)]

    def set_chunks(self, batches: Sequence[MicroBatch]) -> None:
        """Parts of the logits, the same number on every rank: each may gather the weights of the output layer."""
        size = self.loss.chunk_size or rows_per_chunk(self.model.config.get_text_config().vocab_size)
        needed = torch.tensor([-(-len(batch.target) // size) for batch in batches], device=batches[0].target.device)
        for batch, chunks in zip(batches, self.all_max(needed).tolist(), strict=True):
            batch.chunks = max(1, int(chunks))

    def fill_tables(self, rows: Rows, batches: Sequence[MicroBatch]) -> dict[str, Tensor]:
        """Log-probabilities of the policy that sampled, and of the reference, where a later step reads them.

        The same micro-batches compute them that learn from them first, so their ratio is exactly 1 there.
        """
        metrics = dict[str, Tensor]()
        if self.plan.steps > 1 or self.loss.importance:
            for batch in batches:
                batch.behavior_logprobs = self.loss.logprobs(self.model, batch)
            rows.behavior_logprobs = scatter("behavior_logprobs", batches, rows.loss_mask)
        if self.loss.importance:
            metrics = self._weigh(rows, batches)
        if self.reference and self.loss.kl != "full":
            with self.reference.at_hand(rows.advantages.device) as reference:
                for batch in batches:
                    batch.reference_logprobs = self.loss.logprobs(reference, batch)
            rows.reference_logprobs = scatter("reference_logprobs", batches, rows.loss_mask)
        return metrics

    def _weigh(self, rows: Rows, batches: Sequence[MicroBatch]) -> dict[str, Tensor]:
        """Multiply advantages by importance weights, in the micro-batches at hand and in those to come."""
        assert self.loss.importance is not None
        assert rows.behavior_logprobs is not None
        rows.importance = self.loss.importance(rows.behavior_logprobs, rows.sampler_logprobs, rows.loss_mask)
        factors = [rows.importance.flatten()[batch.source] for batch in batches]
        for batch, factor in zip(batches, factors, strict=True):
            batch.advantage = batch.advantage * factor
        shares = [batch.share * factor for batch, factor in zip(batches, factors, strict=True)]
        used = [factor[batch.share > 0] for batch, factor in zip(batches, factors, strict=True)]
        return {
            "importance/mean": torch.stack([share.sum() for share in shares]).sum() / self.plan.minibatches,
            "importance/max": torch.cat([*used, used[0].new_zeros(1)]).amax(),
        }

    def _fill_states(self, batches: Sequence[MicroBatch]) -> None:
        """What the full KL needs of a reference that does not stay on the device."""
        if self.reference and self.reference.waits_on_cpu and self.loss.kl == "full":
            with self.reference.at_hand(batches[0].target.device) as reference, torch.no_grad():
                for batch in batches:
                    batch.reference_states = states(reference, batch)[0]


def _skips_what_it_masks(model: Any) -> bool:
    """Whether rows in one cost the attention no more than rows apart."""
    return str(model.config._attn_implementation).startswith(("flash", "flex"))

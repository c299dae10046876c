"""The reinforcement-learning loop: a Lightning epoch is one iteration of sample, reward, advantage, loss, step."""

from __future__ import annotations

import copy
import inspect
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor

from sgrpo_lightning.axes import MicroBatch
from sgrpo_lightning.metrics import group_metrics
from sgrpo_lightning.modules.loading import Policy
from sgrpo_lightning.modules.loop import IterationModule
from sgrpo_lightning.modules.plan import UpdatePlan
from sgrpo_lightning.modules.policy_loss import PolicyLoss, reference_weights
from sgrpo_lightning.modules.rollout import Rollout, roll_out, shape
from sgrpo_lightning.modules.rows import Rows, join_rows, micro_batches, scatter
from sgrpo_lightning.rewards import RewardShaping, Status
from sgrpo_lightning.samplers import Sampler
from sgrpo_lightning.tasks import Example, Task


class PolicyModule(IterationModule):
    """Post-trains a language model with any advantage head.

    Args:
        policy: the model and its tokenizer.
        task: examples and their grader.
        sampler: draws the completions.
        head: rewards [G, M] -> advantages [G, M].
        plan: the sizes of an iteration.
        loss: of a micro-batch.
        optimizer: parameters -> optimizer.
        scheduler: (optimizer=..., num_training_steps=...) -> learning-rate scheduler, or None.
        shaping: what training adds to the task's rewards, evaluation does not; None adds nothing.
    """

    reference: Any

    def __init__(
        self,
        policy: Policy,
        task: Task,
        *,
        sampler: Sampler,
        head: Callable[[Tensor], Tensor],
        plan: UpdatePlan,
        loss: PolicyLoss,
        optimizer: Callable[..., torch.optim.Optimizer],
        scheduler: Callable[..., Any] | None = None,
        shaping: RewardShaping | None = None,
    ) -> None:
        super().__init__(plan=plan, optimizer=optimizer, scheduler=scheduler)
        self.model, self.policy, self.task = policy.model, policy, task
        self.sampler, self.head, self.loss, self.shaping = sampler, head, loss, shaping or RewardShaping()
        # Outside the module tree: a strategy must not wrap, shard or save the reference.
        object.__setattr__(self, "reference", _frozen_copy(policy.model) if loss.beta else None)
        self.rollout: Rollout | None = None
        self.advantages: Tensor | None = None
        self._sampling_seconds = 0.0

    # ---- one iteration ----

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        rollout = self.roll_out(self._data.prompts(self.iteration, **self._ranks))
        self.rollout = shape(rollout, self.shaping, limit=self.sampler.max_new_tokens)
        self._sampling_seconds = time.perf_counter() - self._started
        self._check_range(self.rollout.rewards)
        self.advantages = self.head(self.rollout.rewards)
        rows = join_rows(self.rollout.samples, self.advantages, trains=self.rollout.trains)
        with self.trainer.precision_plugin.forward_context():
            self._data.buffer.fill(self._updates(rows))

    def training_step(self, batch: MicroBatch, _: int) -> Tensor:
        loss, metrics = self.loss(self.model, batch, self.reference)
        self._parts.append(metrics)
        # Lightning divides by the accumulation and averages over ranks; the token weights already did both.
        return loss * self.trainer.accumulate_grad_batches * self.trainer.world_size

    # ---- its parts ----

    @property
    def _data(self) -> Any:
        return self.trainer.datamodule  # type: ignore[attr-defined]

    @property
    def _ranks(self) -> dict[str, int]:
        return {"rank": self.trainer.global_rank, "world_size": self.trainer.world_size}

    def roll_out(
        self, examples: list[Example], *, samples_per_group: int | None = None, key: tuple[object, ...] = ()
    ) -> Rollout:
        """Graded samples of the current policy for `examples`, at the precision of training."""
        with self.trainer.precision_plugin.forward_context():
            rollout = roll_out(
                self.policy,
                self.sampler,
                self.task,
                examples,
                samples_per_group=samples_per_group or self.plan.samples_per_group,
                generator=self.generator("sample", self.iteration, *key),
            )
        # A rank on which every grade failed knows no parts, but all ranks have to add up the same ones.
        absent = dict.fromkeys(self._of_all_ranks(rollout.parts), torch.zeros_like(rollout.rewards))
        return replace(rollout, parts=absent | rollout.parts)

    def _check_range(self, rewards: Tensor) -> None:
        """Warn once of rewards for which the temperature of the head is not meant."""
        has_temperature = "tau" in inspect.signature(self.head).parameters
        if has_temperature and rewards.numel() and not (rewards.min() >= 0 and rewards.max() <= 1):
            # One message without numbers, so that Python shows it once.
            warnings.warn("rewards leave [0, 1], which tau is meant for: rescale the rewards or tau", stacklevel=2)

    def _updates(self, rows: Rows) -> list[MicroBatch]:
        """The micro-batches of all inner steps, in order."""
        batches: list[MicroBatch] = []
        order = self.generator("minibatches", self.iteration)
        for epoch in range(self.plan.ppo_epochs):
            groups = torch.randperm(
                len(rows.advantages) // self.plan.samples_per_group, generator=order, device=self.device
            )
            for part in groups.chunk(self.plan.minibatches):
                batches += self._minibatch(rows, part)
            if epoch == 0:
                self._fill_tables(rows, batches)
        return batches

    def _minibatch(self, rows: Rows, groups: Tensor) -> list[MicroBatch]:
        """One optimizer step: token weights over its global batch, then the cut into micro-batches."""
        samples = torch.arange(self.plan.samples_per_group, device=self.device)
        chosen = (groups[:, None] * len(samples) + samples).flatten()
        weights = torch.zeros(rows.loss_mask.shape, device=self.device)
        weights[chosen] = self.loss.reduction(rows.loss_mask[chosen], rows.group_id[chosen], all_sum=self._all_sum)
        # Without a KL, a row of zero advantage has no gradient: it is not worth a forward pass.
        useful = rows.loss_mask.any(-1) & ((rows.advantages != 0) | bool(self.loss.beta))
        kept = chosen[useful[chosen]]
        shares = torch.ones_like(weights) / self._all_sum(rows.loss_mask[kept].sum()).clamp(min=1)
        count = self.plan.micro_batches(world_size=self.trainer.world_size)
        return micro_batches(rows, kept, weights, shares, size=self.plan.micro_batch_size, count=count)

    def _fill_tables(self, rows: Rows, batches: list[MicroBatch]) -> None:
        """Log-probabilities of the policy that sampled, and of the reference, where a later step reads them.

        The same micro-batches compute them that learn from them first, so their ratio is exactly 1 there.
        """
        if self.plan.steps > 1:
            for batch in batches:
                batch.behavior_logprobs = self.loss.logprobs(self.model, batch)
            rows.behavior_logprobs = scatter("behavior_logprobs", batches, rows.loss_mask)
        if self.loss.beta and self.loss.kl != "full":
            with reference_weights(self.reference):
                for batch in batches:
                    batch.reference_logprobs = self.loss.logprobs(self.reference, batch)
            rows.reference_logprobs = scatter("reference_logprobs", batches, rows.loss_mask)

    # ---- what was measured ----

    def measured(self) -> Mapping[str, Any]:
        assert self.rollout is not None
        assert self.advantages is not None
        groups, samples = self.plan.prompts_per_iteration, self.rollout.samples
        rows = groups * self.plan.samples_per_group
        statuses = self.rollout.statuses()
        return {
            **group_metrics(self.rollout.rewards, self.advantages, num_groups=groups),
            **{f"reward/{name}/mean": part.sum() / rows for name, part in self.rollout.parts.items()},
            "length/mean": samples.completion_mask.sum() / rows,
            "truncated/frac": samples.truncated.sum() / rows,
            "tokens/sum": samples.completion_mask.sum(),
            **{f"{status}/frac": statuses[status] / rows for status in get_args(Status)},
        }

    def derived(self, row: Mapping[str, float], seconds: float) -> Mapping[str, float]:
        return {
            "seconds/sample": self._sampling_seconds,
            "seconds/learn": seconds - self._sampling_seconds,
            "tokens_per_second": row["tokens/sum"] / seconds,
            "samples": (self.iteration + 1) * self.plan.prompts_per_iteration * self.plan.samples_per_group,
        }

    def _of_all_ranks(self, names: Iterable[str]) -> list[str]:
        """The names that any rank has, in one order."""
        found: list[Any] = [list(names)]
        if self.trainer.world_size > 1:
            found *= self.trainer.world_size
            torch.distributed.all_gather_object(found, list(names))
        return list(dict.fromkeys(name for some in found for name in some))

    def _all_sum(self, count: Tensor) -> Tensor:
        return self.trainer.strategy.reduce(count.clone(), reduce_op="sum")

    # ---- what Lightning asks ----

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if self.reference is not None:
            self.reference.to(self.trainer.strategy.root_device)


def _frozen_copy(model: Any) -> Any:
    """The reference: a copy as the policy stands now, or the policy itself where adapters can be switched off."""
    if hasattr(model, "disable_adapter"):
        return model
    return copy.deepcopy(model).requires_grad_(False).eval()

"""The reinforcement-learning loop: a Lightning epoch is one iteration of sample, reward, advantage, loss, step."""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor

from sgrpo_lightning.axes import MicroBatch, Samples
from sgrpo_lightning.distributed.sharding import shard
from sgrpo_lightning.distributed.weights import full_weights, whole_weights
from sgrpo_lightning.metrics import group_metrics
from sgrpo_lightning.modules.learner import Learner, Updates
from sgrpo_lightning.modules.loading import Policy, decoder_layers
from sgrpo_lightning.modules.loop import IterationModule
from sgrpo_lightning.modules.plan import UpdatePlan
from sgrpo_lightning.modules.policy_loss import PolicyLoss
from sgrpo_lightning.modules.reference import Reference
from sgrpo_lightning.modules.rescoring import Rescoring
from sgrpo_lightning.modules.rollout import Rollout, roll_out, shape
from sgrpo_lightning.modules.rows import join_rows
from sgrpo_lightning.rewards import RewardShaping, Status
from sgrpo_lightning.samplers import Sampler, SamplerError
from sgrpo_lightning.tasks import Example, Task

PARTS = ("sync", "sample", "reward")
"""Of an iteration, before it learns."""


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
        rescoring: compares sampler and trainer after each rollout; None measures and allows any gap.
    """

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
        rescoring: Rescoring | None = None,
    ) -> None:
        super().__init__(plan=plan, optimizer=optimizer, scheduler=scheduler)
        self.model, self.policy, self.task = policy.model, policy, task
        self.sampler, self.head, self.loss, self.shaping = sampler, head, loss, shaping or RewardShaping()
        self.rescoring = rescoring or Rescoring(limit=None)
        self.reference = Reference(policy.model, place=loss.reference) if loss.beta else None
        self.learner = Learner(
            policy.model, loss, plan, reference=self.reference, all_sum=self._all_sum, all_max=self._all_max
        )
        self.rollout: Rollout | None = None
        self.advantages: Tensor | None = None
        self._importance: dict[str, Tensor] = {}
        self.gap: dict[str, float] = {}
        self._seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)

    # ---- one iteration ----

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._data.buffer.clear()  # its memory is the sampler's now
        rollout = self.roll_out(self._data.prompts(self.iteration, **self._ranks))
        self.rollout = shape(rollout, self.shaping, limit=self.sampler.max_new_tokens)
        self._check_range(self.rollout.rewards)
        self.advantages = self.head(self.rollout.rewards)
        rows = join_rows(self.rollout.samples, self.advantages, trains=self.rollout.trains)
        with self._forward_passes():
            updates = self.learner.updates(rows, self.generator("minibatches", self.iteration))
        self._importance = updates.metrics
        self._learn_from(updates)

    def forward(self, batch: MicroBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a micro-batch and its metrics. A strategy that shards the weights gathers them around this."""
        return self.loss(self.model, batch, self.reference.of_loss if self.reference else None)

    def training_step(self, batch: MicroBatch, _: int) -> Tensor:
        loss, metrics = self(batch)
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
        with self._forward_passes():
            version = self._hand_over_weights()
            rollout = roll_out(
                self.policy,
                self.sampler,
                self.task,
                examples,
                samples_per_group=samples_per_group or self.plan.samples_per_group,
                generator=self.generator("sample", self.iteration, *key),
            )
            rollout = replace(rollout, samples=_of_version(rollout.samples, version))
            self._seconds |= rollout.seconds
            self.gap = self.rescoring.measure(self.learner, rollout.samples, self.over_ranks)
        self.sampler.sleep()
        # A rank on which every grade failed knows no parts, but all ranks have to add up the same ones.
        absent = dict.fromkeys(self._of_all_ranks(rollout.parts), torch.zeros_like(rollout.rewards))
        return replace(rollout, parts=absent | rollout.parts)

    def _hand_over_weights(self) -> int:
        """Where the sampler has weights of its own, see that they are those of the policy; their version."""
        started, version = time.perf_counter(), self.trainer.global_step
        self.sampler.wake()
        if self.sampler.own_weights and self.sampler.version != version:
            self.sampler.sync(full_weights(self.model), version=version)
        self._seconds["sync"] = time.perf_counter() - started
        return version

    @contextmanager
    def _forward_passes(self) -> Iterator[None]:
        """Forward passes without gradient, at the precision of training; ranks may run different numbers of them."""
        with self.trainer.precision_plugin.forward_context(), whole_weights(self.model, self.trainer.strategy):
            yield

    def _learn_from(self, updates: Updates) -> None:
        """Make the updates the batches of this epoch."""
        self._data.buffer.fill(updates.micro_batches)
        self.trainer.fit_loop.max_batches = len(updates.micro_batches)
        self.trainer.accumulate_grad_batches = updates.per_step

    def _check_range(self, rewards: Tensor) -> None:
        """Warn once of rewards for which the temperature of the head is not meant."""
        has_temperature = "tau" in inspect.signature(self.head).parameters
        if has_temperature and rewards.numel() and not (rewards.min() >= 0 and rewards.max() <= 1):
            # One message without numbers, so that Python shows it once.
            warnings.warn("rewards leave [0, 1], which tau is meant for: rescale the rewards or tau", stacklevel=2)

    # ---- what was measured ----

    def measured(self) -> Mapping[str, Any]:
        assert self.rollout is not None
        assert self.advantages is not None
        groups, samples = self.plan.prompts_per_iteration, self.rollout.samples
        rows = groups * self.plan.samples_per_group
        statuses = self.rollout.statuses()
        return {
            **group_metrics(self.rollout.rewards, self.advantages, num_groups=groups),
            **self._importance,
            **{f"reward/{name}/mean": part.sum() / rows for name, part in self.rollout.parts.items()},
            "length/mean": samples.completion_mask.sum() / rows,
            "truncated/frac": samples.truncated.sum() / rows,
            "tokens/sum": samples.completion_mask.sum(),
            **{f"{status}/frac": statuses[status] / rows for status in get_args(Status)},
        }

    def derived(self, row: Mapping[str, float], seconds: float) -> Mapping[str, float]:
        return {
            **self.gap,
            **{f"seconds/{part}": spent for part, spent in self._seconds.items()},
            "seconds/learn": seconds - sum(self._seconds.values()),
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

    def _all_max(self, count: Tensor) -> Tensor:
        return self.trainer.strategy.reduce(count.clone(), reduce_op="max")

    # ---- what Lightning asks ----

    def configure_model(self) -> None:
        """Shards the policy where the strategy does so by modules: each decoder layer, then the rest."""
        shard(self.trainer.strategy, decoder_layers(self.model), self)

    def on_fit_start(self) -> None:
        if self.reference:
            self.reference.settle(self.device, full_kl=self.loss.kl == "full")
        with self.trainer.precision_plugin.forward_context():  # tells the sampler in what the trainer multiplies
            self.sampler.start(self.model, max_prompt_tokens=self._data.max_prompt_tokens)

    def teardown(self, stage: str) -> None:
        self.sampler.close()


def _of_version(samples: Samples, version: int) -> Samples:
    """The samples, of which it is known that weights of this version drew them; the policy's own always are."""
    if samples.weights_version not in (None, version):
        raise SamplerError(
            f"samples came from weights after {samples.weights_version} optimizer steps, expected {version}: "
            "another run may use the same sampler"
        )
    return replace(samples, weights_version=version)

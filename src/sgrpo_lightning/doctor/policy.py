"""Checks of reinforcement learning on a language model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from sgrpo_lightning.doctor.data import MANY, check_data, check_lengths, prompt_lengths, spread
from sgrpo_lightning.doctor.examination import Examination, Named, after, limit_iterations
from sgrpo_lightning.doctor.grader import check_answers, check_golds, check_grader
from sgrpo_lightning.doctor.memory import check_memory, plan_of
from sgrpo_lightning.doctor.policy_gradient import check_gradient
from sgrpo_lightning.doctor.ranks import Rank, check_ranks, checksum
from sgrpo_lightning.doctor.sampler import check_sampler
from sgrpo_lightning.doctor.speed import tell_policy_speed
from sgrpo_lightning.doctor.template import check_template
from sgrpo_lightning.doctor.verdict import Finding
from sgrpo_lightning.modules.rescoring import Rescoring
from sgrpo_lightning.modules.rollout import Rollout
from sgrpo_lightning.tasks import Example

PROMPTS = 8
"""Of an iteration here, over all ranks, or as many as its minibatches and ranks need."""


class PolicyExamination(Examination):
    """Of `PolicyModule`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.plan, self.task, self.policy = self.module.plan, self.module.task, self.module.policy
        self.limit = self.module.rescoring.limit
        self.iterations = self.trainer.max_epochs or 1
        self.rollout: Rollout | None = None

    def title(self) -> str:
        return f"{super().title()}, {type(self.module.sampler).__name__}"

    # ---- its checks ----

    def cheap(self) -> list[Named]:
        return [
            ("data", partial(check_data, self.task, self.datamodule.notes)),
            ("prompts", self._lengths),
            ("template", partial(check_template, self.task, self.policy)),
        ]

    def inside(self) -> list[Named]:
        return [
            ("ranks", lambda: check_ranks(self._rank())),
            ("golds", self._golds),
            ("answers", self._answers),
            after(lambda: self.rollout, self._grader, "grader"),
            ("sampler", lambda: check_sampler(self.module, self._examples(), limit=self.limit)),
            after(lambda: self.rollout, partial(check_gradient, self.module), "gradient"),
        ]

    def afterwards(self) -> list[Named]:
        return [("memory", self._memory), ("speed", self._speed)]

    def shorten(self) -> None:
        """A few prompts, of which every minibatch and every rank has some; the gap is measured and allowed."""
        module, world_size = self.module, self.trainer.world_size
        self.plan.groups_per_minibatch(world_size=world_size)
        unit = self.plan.minibatches * world_size
        prompts = min(self.plan.prompts_per_iteration, -(-PROMPTS // unit) * unit)
        short = replace(self.plan, prompts_per_iteration=prompts)
        module.plan = module.learner.plan = self.datamodule.plan = short
        module.rescoring = Rescoring(rows=max(8, module.rescoring.rows), limit=None)
        limit_iterations(self.trainer)

    # ---- what they need ----

    def _examples(self) -> list[Example]:
        return self.datamodule.prompts(0, **self.module._ranks)

    def _lengths(self) -> Finding:
        config = self.policy.model.config.get_text_config()
        return check_lengths(
            self.task,
            self.policy,
            max_prompt_tokens=self.datamodule.max_prompt_tokens,
            max_new_tokens=self.module.sampler.max_new_tokens,
            positions=getattr(config, "max_position_embeddings", None),
        )

    def _rank(self) -> Rank:
        enough = self.module.plan.prompts_per_iteration <= len(self.task.train)
        return Rank(
            data=getattr(self.datamodule, "fingerprint", None),
            weights=checksum(self.module.model),
            seed=self.module.generator("sample", 0).initial_seed(),
            work=tuple((e.prompt, str(e.answer)) for e in self._examples()) if enough else (),
        )

    def _golds(self) -> Finding:
        with self.module._forward_passes():
            return check_golds(self.task, self.policy, seed=self.plan.seed)

    def _answers(self) -> Finding:
        self.rollout = self.module.roll_out(self._examples(), key=("doctor",))
        return check_answers(self.rollout, self.policy.eos_token_ids)

    def _grader(self, rollout: Rollout) -> Finding:
        rows = self.plan.prompts_per_iteration * self.plan.samples_per_group
        return check_grader(rollout, rows=rows, world_size=self.trainer.world_size)

    def _memory(self) -> Finding:
        longest = max(prompt_lengths(self.policy.tokenizer, spread(self.task.train, MANY)))
        plan = plan_of(self.module, self.plan, prompt_tokens=longest)
        note = ", with few answers that may be short"
        return check_memory(plan, self.module.device, local_ranks=self.trainer.num_devices, note=note)

    def _speed(self) -> Finding:
        factor = self.plan.prompts_per_iteration / self.module.plan.prompts_per_iteration
        return tell_policy_speed(self.soak.rows, factor=factor, iterations=self.iterations)

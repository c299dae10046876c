"""Checks of supervised training on demonstrations."""

from __future__ import annotations

from functools import partial
from typing import Any

from sgrpo_lightning.doctor.data import check_data, check_lengths
from sgrpo_lightning.doctor.examination import Examination, Named
from sgrpo_lightning.doctor.grader import check_golds
from sgrpo_lightning.doctor.memory import check_memory
from sgrpo_lightning.doctor.ranks import Rank, check_ranks, checksum
from sgrpo_lightning.doctor.soak import ITERATIONS
from sgrpo_lightning.doctor.speed import tell_step_speed
from sgrpo_lightning.doctor.template import check_template, demonstration
from sgrpo_lightning.doctor.verdict import Finding


class SupervisedExamination(Examination):
    """Of `SupervisedModule`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.task, self.policy, self.steps = self.datamodule.task, self.module.policy, self.trainer.max_steps
        self.total_checkpoints = max(
            [1, *(self.steps // every for c in self.callbacks if (every := getattr(c, "every_n_steps", 0)))]
        )

    def cheap(self) -> list[Named]:
        return [
            ("data", partial(check_data, self.task, self.datamodule.notes)),
            ("prompts", self._lengths),
            ("template", partial(check_template, self.task, self.policy)),
            ("golds", partial(check_golds, self.task, self.policy)),
        ]

    def inside(self) -> list[Named]:
        return [("ranks", lambda: check_ranks(self._rank()))]

    def afterwards(self) -> list[Named]:
        return [
            ("memory", lambda: check_memory(None, self.module.device, local_ranks=self.trainer.num_devices)),
            ("speed", lambda: tell_step_speed(self.soak, steps=self.steps)),
        ]

    def shorten(self) -> None:
        self.trainer.fit_loop.epoch_loop.max_steps = ITERATIONS

    def _lengths(self) -> Finding:
        tokenizer = self.policy.tokenizer
        answer = tokenizer((demonstration(self.task) or "") + tokenizer.eos_token, add_special_tokens=False)
        config = self.policy.model.config.get_text_config()
        return check_lengths(
            self.task,
            self.policy,
            max_prompt_tokens=None,
            max_new_tokens=len(answer["input_ids"]),
            positions=getattr(config, "max_position_embeddings", None),
        )

    def _rank(self) -> Rank:
        return Rank(data=self.datamodule.fingerprint, weights=checksum(self.module.model), seed=None, work=())

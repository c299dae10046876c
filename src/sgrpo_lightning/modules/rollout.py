"""Sampling and grading: from examples to completions, outcomes, rewards and advantages."""

from __future__ import annotations

import logging
import math
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from sgrpo_lightning.axes import Samples
from sgrpo_lightning.modules.loading import Policy
from sgrpo_lightning.rewards import Outcome
from sgrpo_lightning.samplers import Sampler
from sgrpo_lightning.tasks import Example, Task
from sgrpo_lightning.tasks.prompting import render_prompt

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rollout:
    """M graded completions of each of G examples; row i belongs to example i // M."""

    examples: Sequence[Example]
    samples: Samples
    completions: list[str]
    outcomes: list[Outcome]
    rewards: Float[Tensor, "G M"]

    def statuses(self) -> Counter[str]:
        return Counter(outcome.status for outcome in self.outcomes)


def roll_out(
    policy: Policy,
    sampler: Sampler,
    task: Task,
    examples: Sequence[Example],
    *,
    samples_per_group: int,
    generator: torch.Generator,
) -> Rollout:
    """Ask each example M times and grade every answer."""
    tokenizer, device = policy.tokenizer, policy.model.device
    prompts = tokenizer(
        [render_prompt(tokenizer, example.prompt) for example in examples],
        padding=True,
        padding_side="left",
        add_special_tokens=tokenizer.chat_template is None,
        return_tensors="pt",
    ).to(device)
    samples = sampler.generate(
        policy.model,
        prompts["input_ids"],
        prompts["attention_mask"].bool(),
        samples_per_group=samples_per_group,
        eos_token_ids=torch.tensor(policy.eos_token_ids, device=device),
        pad_token_id=tokenizer.pad_token_id,
        generator=generator,
    )
    completions = read_completions(tokenizer, samples, policy.eos_token_ids)
    asked = [example for example in examples for _ in range(samples_per_group)]
    outcomes = [grade_safely(task, text, example) for text, example in zip(completions, asked, strict=True)]
    rewards = torch.tensor([outcome.reward for outcome in outcomes]).view(len(examples), samples_per_group)
    if len(rewards) and not (rewards.min() >= 0 and rewards.max() <= 1):
        # One message without numbers, so that Python shows it once.
        warnings.warn("rewards leave [0, 1], which tau is meant for: rescale the rewards or tau", stacklevel=2)
    return Rollout(examples, samples, completions, outcomes, rewards.to(device))


def read_completions(tokenizer: Any, samples: Samples, eos_token_ids: Sequence[int]) -> list[str]:
    """The sampled text of each row, its end token left out."""
    ends = set(eos_token_ids)
    rows = zip(samples.completion_ids.tolist(), samples.completion_mask.sum(-1).tolist(), strict=True)
    kept = [ids[: length - 1] if length and ids[length - 1] in ends else ids[:length] for ids, length in rows]
    return tokenizer.batch_decode(kept)


def grade_safely(task: Task, completion: str, example: Example) -> Outcome:
    """The task's outcome; a grader that raises costs this sample a 0, not the run."""
    try:
        outcome = task.grade(completion, example)
        if not math.isfinite(outcome.reward):
            raise ValueError(f"a reward must be finite, got {outcome.reward}")
        return outcome
    except Exception:
        log.exception("the grader failed on %r; the sample gets 0", completion)
        return Outcome(0.0, "error", None)

"""Sampling and grading: from examples to completions, outcomes, rewards and advantages."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sgrpo_lightning.axes import Samples
from sgrpo_lightning.modules.continuations import continuation_logprobs
from sgrpo_lightning.modules.loading import Policy
from sgrpo_lightning.rewards import Answers, Outcome, RewardShaping
from sgrpo_lightning.samplers import Sampler
from sgrpo_lightning.tasks import Example, Task
from sgrpo_lightning.tasks.base import answers_to
from sgrpo_lightning.tasks.prompting import render_prompt, tokenize_prompts

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rollout:
    """M graded completions of each of G examples; row i belongs to example i // M.

    `rewards` is what is optimised, after shaping; `parts` are what a composed reward and the shaping say of it.
    """

    examples: Sequence[Example]
    samples: Samples
    completions: list[str]
    outcomes: list[Outcome]
    rewards: Float[Tensor, "G M"]
    parts: dict[str, Float[Tensor, "G M"]]
    seconds: dict[str, float]  # of "sample" and "reward"
    trains: Bool[Tensor, " N"] | None = None  # whose tokens are learned from; None: all

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
    started, tokenizer, device = time.perf_counter(), policy.tokenizer, policy.model.device
    texts = [render_prompt(tokenizer, example.prompt, system=example.system) for example in examples]
    prompts = tokenize_prompts(tokenizer, texts, padding=True, padding_side="left", return_tensors="pt").to(device)
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
    sampled = time.perf_counter()
    rows = [group for group in range(len(examples)) for _ in range(samples_per_group)]
    answers = answers_to(
        [examples[group] for group in rows],
        completions,
        prompts=[texts[group] for group in rows],
        logprobs=partial(continuation_logprobs, policy),
    )
    outcomes = grade_safely(task, answers)
    rewards, parts = reward_tensors(outcomes, samples_per_group, device)
    seconds = {"sample": sampled - started, "reward": time.perf_counter() - sampled}
    return Rollout(examples, samples, completions, outcomes, rewards, parts, seconds)


def shape(rollout: Rollout, shaping: RewardShaping, *, limit: int) -> Rollout:
    """The rollout with the rewards that are optimised: those of the task, and what `shaping` adds to them.

    Args:
        limit: of the tokens of a completion.
    """
    samples, like = rollout.samples, rollout.rewards
    lengths, truncated = (
        values.view(like.shape).cpu().numpy() for values in (samples.completion_mask.sum(-1), samples.truncated)
    )
    shaped = shaping(like.double().cpu().numpy(), lengths, truncated, limit=limit)
    if not shaped.parts and shaped.trains.all():
        return rollout
    added = {f"shaping.{name}": like.new_tensor(values) for name, values in shaped.parts.items()}
    trains = torch.as_tensor(shaped.trains, device=like.device).flatten()
    return replace(rollout, rewards=like.new_tensor(shaped.rewards), parts=rollout.parts | added, trains=trains)


def read_completions(tokenizer: Any, samples: Samples, eos_token_ids: Sequence[int]) -> list[str]:
    """The sampled text of each row, its end token left out."""
    ends = set(eos_token_ids)
    rows = zip(samples.completion_ids.tolist(), samples.completion_mask.sum(-1).tolist(), strict=True)
    kept = [ids[: length - 1] if length and ids[length - 1] in ends else ids[:length] for ids, length in rows]
    return tokenizer.batch_decode(kept)


def reward_tensors(outcomes: Sequence[Outcome], size: int, device: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Rewards [G, M], and the parts of them by name; a part that a sample lacks, as after an error, is 0."""
    names = dict.fromkeys(name for outcome in outcomes for name in outcome.parts)
    rewards = torch.tensor([outcome.reward for outcome in outcomes], device=device).view(-1, size)
    parts = {name: rewards.new_tensor([outcome.parts.get(name, 0.0) for outcome in outcomes]) for name in names}
    return rewards, {name: part.view(-1, size) for name, part in parts.items()}


def grade_safely(task: Task, answers: Answers) -> list[Outcome]:
    """The task's outcomes; a sample on which the grader fails costs itself its reward, not the run."""
    try:
        return _graded(task, answers)
    except Exception:
        log.info("the grader failed on a batch; each sample is graded by itself", exc_info=True)
    outcomes, failures = list[Outcome](), list[tuple[str, Exception]]()
    for one in answers.one_by_one():
        try:
            outcomes += _graded(task, one)
        except Exception as error:
            failures.append((one.completions[0], error))
            outcomes.append(Outcome(0.0, "error", None))
    if failures:
        # Where every reward is negative, 0 would be the best of them.
        worst = Outcome(min([0.0, *(outcome.reward for outcome in outcomes)]), "error", None)
        outcomes = [worst if outcome.status == "error" else outcome for outcome in outcomes]
        text, first = failures[0]
        message = "the grader failed on %d of %d samples, which get the least reward; the first is %r"
        log.error(message, len(failures), len(answers), text[:200], exc_info=first)
    return outcomes


def _graded(task: Task, answers: Answers) -> list[Outcome]:
    outcomes = task.grade(answers)
    if len(outcomes) != len(answers):
        raise ValueError(f"a grader must return {len(answers)} outcomes, got {len(outcomes)}")
    if wrong := [outcome.reward for outcome in outcomes if not math.isfinite(outcome.reward)]:
        raise ValueError(f"a reward must be finite, got {wrong[0]}")
    return outcomes

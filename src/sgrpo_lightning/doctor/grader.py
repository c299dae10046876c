"""Sampled answers and gold ones: whether they end, whether golds are right, how fast both are graded."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from sgrpo_lightning.doctor.data import spread
from sgrpo_lightning.doctor.verdict import Finding, judge
from sgrpo_lightning.modules.continuations import continuation_logprobs
from sgrpo_lightning.modules.rollout import Rollout, grade_safely
from sgrpo_lightning.rewards import Outcome
from sgrpo_lightning.tasks import Example
from sgrpo_lightning.tasks.base import answers_to
from sgrpo_lightning.tasks.prompting import render_prompt

GOLDS = 200
"""Training questions whose gold answers are graded."""

RIGHT, MOST = 0.5, 0.95
"""Shares of golds that have to be right, lest the check fails, or warns."""


def check_answers(rollout: Rollout, ends: Sequence[int]) -> Finding:
    """Whether answers end, and with a token that trains."""
    samples = rollout.samples
    lengths, truncated = samples.completion_mask.sum(-1), samples.truncated
    last = samples.completion_ids.gather(1, (lengths - 1).clamp(min=0)[:, None])[:, 0]
    wrong = sum(int(token) not in ends for token in last[~truncated].tolist())
    share = truncated.float().mean().item()
    return judge(
        "answers",
        f"{len(lengths)} sampled, tokens mean {lengths.float().mean().item():.0f}, max {int(lengths.max())}; "
        f"{share:.0%} cut off by the limit",
        failures=[
            (wrong > 0, f"{wrong} answers are said to have ended without an end token: a fault of the sampler"),
        ],
        warnings=[
            (
                share > 0.5,
                "most answers do not end: raise max_new_tokens, or see that the model has learned to end its turn",
            ),
        ],
    )


def check_golds(task: Any, policy: Any, *, seed: int = 0) -> Finding:
    """The share of gold answers that the grader marks right when they are given as the answer.

    Each is the task's demonstration of a question, else what the grader's own audit makes of the answer.
    """
    examples = spread(task.train, GOLDS)
    shown, texts = demonstrations(task, examples, seed=seed)
    audit = getattr(getattr(task, "grader", None), "audit", None)
    started = time.perf_counter()
    outcomes = grade(task, policy, shown, texts)
    audited = list(audit([str(example.answer) for example in examples])) if audit else []
    seconds = time.perf_counter() - started
    verdicts = [outcome.status == "ok" for outcome in outcomes]
    if not verdicts + audited:
        return Finding("golds", "skipped", "the task has no demonstrations, and its grader no audit")
    return judge_golds(verdicts, audited, seconds=seconds, of=len(task.train), statuses=wrong_statuses(outcomes))


def judge_golds(
    demonstrated: Sequence[bool], audited: Sequence[bool], *, seconds: float, of: int, statuses: str = ""
) -> Finding:
    kinds = {"demonstrations": demonstrated, "answers by themselves": audited}
    shares = {kind: sum(right) / len(right) for kind, right in kinds.items() if right}
    worst, count = min(shares.values()), len(demonstrated) + len(audited)
    parts = [f"{share:.1%} of {len(kinds[kind])} {kind} are right" for kind, share in shares.items()]
    return judge(
        "golds",
        "; ".join(
            [*parts, *filter(None, [statuses]), f"sampled from {of:,}", f"{count / max(seconds, 1e-9):.0f} a second"]
        ),
        failures=[
            (
                worst < RIGHT,
                "the grader does not accept what the data calls right: compare reward and task, and the form that the "
                "instruction asks for",
            ),
        ],
        warnings=[
            (RIGHT <= worst < MOST, "some golds are not accepted, whose questions teach nothing"),
        ],
    )


def check_grader(rollout: Rollout, *, rows: int, world_size: int) -> Finding:
    """The time that sampled answers took, and how they were graded.

    Args:
        rows: answers of an iteration of the run, over all ranks.
    """
    return judge_grader(rollout.outcomes, seconds=rollout.seconds["reward"], rows=rows / world_size)


def judge_grader(outcomes: Sequence[Outcome], *, seconds: float, rows: float) -> Finding:
    statuses = Counter(outcome.status for outcome in outcomes)
    rate = len(outcomes) / max(seconds, 1e-9)
    reward = sum(outcome.reward for outcome in outcomes) / len(outcomes)
    return judge(
        "grader",
        f"{rate:.0f} sampled answers a second, {rows / rate:.2f} s an iteration; mean reward {reward:.3f}; "
        + ", ".join(f"{count} {status}" for status, count in statuses.most_common()),
        failures=[
            (statuses["error"] > 0, "the grader raises on sampled answers; the log above has the first"),
        ],
        warnings=[
            (statuses["timeout"] > 0, "answers run into the grader's time limit and count as wrong"),
        ],
    )


def grade(task: Any, policy: Any, examples: Sequence[Example], texts: Sequence[str]) -> list[Outcome]:
    """As in training: the prompts as the policy saw them, and its log-probabilities at hand."""
    prompts = [render_prompt(policy.tokenizer, example.prompt, system=example.system) for example in examples]
    answers = answers_to(examples, texts, prompts=prompts, logprobs=partial(continuation_logprobs, policy))
    return grade_safely(task, answers) if examples else []


def demonstrations(task: Any, examples: Sequence[Example], *, seed: int) -> tuple[list[Example], list[str]]:
    """Those examples that have a demonstration, and one of each."""
    rng, shown, texts = random.Random(seed), list[Example](), list[str]()
    for example in examples:
        try:
            texts.append(task.demonstrate(example, rng))
        except ValueError:
            continue
        shown.append(example)
    return shown, texts


def wrong_statuses(outcomes: Sequence[Outcome]) -> str:
    counts = Counter(outcome.status for outcome in outcomes if outcome.status != "ok")
    return ", ".join(f"{count} {status}" for status, count in counts.most_common())

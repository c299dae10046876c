"""What a task is: examples to ask, a way to grade answers, and (where it has them) demonstrations."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sgrpo_lightning.rewards import Answers, Outcome
from sgrpo_lightning.rewards.answers import ContinuationLogprobs


@dataclass(frozen=True, slots=True)
class Example:
    """One question.

    Args:
        prompt: the text that the policy is asked.
        answer: what its answer is checked against.
        reference: a text that its answer may be compared with, and that a supervised start imitates.
        system: the system message of the prompt, where there is one.
    """

    prompt: str
    answer: Any
    reference: str = ""
    system: str = ""


class Task(Protocol):
    """What the language-model domain asks of a task. A class with these four members is one."""

    train: Sequence[Example]
    held_out: Sequence[Example]

    def grade(self, answers: Answers) -> list[Outcome]:
        """The outcome of each completion."""
        ...

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """A completion that a supervised start can imitate."""
        ...


def answers_to(
    examples: Sequence[Example],
    completions: Sequence[str],
    *,
    prompts: Sequence[str] = (),
    logprobs: ContinuationLogprobs | None = None,
) -> Answers:
    """Completions beside the examples that they answer, one each; `prompts` as the policy saw them."""
    return Answers(
        completions,
        golds=[example.answer for example in examples],
        references=[example.reference for example in examples],
        prompts=prompts or [example.prompt for example in examples],
        logprobs=logprobs,
    )

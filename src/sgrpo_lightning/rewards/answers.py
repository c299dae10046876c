"""What is graded: completions, each beside its prompt and what it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sgrpo_lightning.rewards.outcome import Outcome

ContinuationLogprobs = Callable[[Sequence[str], Sequence[str]], Sequence[tuple[float, int]]]
"""(texts that the policy reads, texts that it would continue with) -> log-probability in nats and tokens of each."""


@dataclass(frozen=True, slots=True)
class Answers:
    """N completions in the order in which they were sampled.

    Args:
        completions: the generated texts.
        golds: what each is checked against: a gold answer, a problem; the task knows its type.
        references: a text that each may be compared with; "" where the task has none.
        prompts: the texts that the policy was asked with, as it saw them.
        logprobs: the policy's own log-probability of other continuations; None where no policy is at hand.
    """

    completions: Sequence[str]
    golds: Sequence[Any]
    references: Sequence[str] = ()
    prompts: Sequence[str] = ()
    logprobs: ContinuationLogprobs | None = None

    def __len__(self) -> int:
        return len(self.completions)

    def one_by_one(self) -> Iterator[Answers]:
        """Each completion as a batch of its own."""
        for row in range(len(self)):
            here = slice(row, row + 1)
            yield replace(
                self,
                completions=self.completions[here],
                golds=self.golds[here],
                references=self.references[here],
                prompts=self.prompts[here],
            )


Grader = Callable[[Answers], list[Outcome]]
"""A reward as a task uses it: an outcome for each completion, in order."""

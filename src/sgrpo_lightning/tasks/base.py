"""What a task is: examples to ask, a way to grade an answer, and (where it has them) demonstrations."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sgrpo_lightning.rewards import Outcome


@dataclass(frozen=True, slots=True)
class Example:
    """One question: the text that the policy is asked, and what its answer is graded against."""

    prompt: str
    answer: Any


class Task(Protocol):
    """What the language-model domain asks of a task. A class with these four members is one."""

    train: Sequence[Example]
    held_out: Sequence[Example]

    def grade(self, completion: str, example: Example) -> Outcome:
        """The outcome of one completion; its reward lies in [0, 1]."""
        ...

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """A completion that a supervised start can imitate."""
        ...

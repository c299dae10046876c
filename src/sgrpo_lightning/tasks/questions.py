"""A task from a data set of questions: rows say what is asked, a reward how it is graded."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from sgrpo_lightning.rewards import Answers, ExactGrader, Grader, Outcome
from sgrpo_lightning.tasks.audit import audit
from sgrpo_lightning.tasks.base import Example
from sgrpo_lightning.tasks.files import load_rows
from sgrpo_lightning.tasks.rows import Question, read_pair
from sgrpo_lightning.tasks.source import Reader, load_questions
from sgrpo_lightning.tasks.split import Chosen, question_key

FAILS_AUDIT = "whose gold answer fails its own check"


class QuestionTask:
    """Questions of a file, a folder or a hub data set, and their grader.

    Rows that cannot be used are left out and counted in `notes`: without question or answer, asked on both sides,
    or with a gold answer that the grader itself does not accept.

    Args:
        data, **source: as for `load_questions`.
        grader: of the answers. The default wants the text between answer tags to equal the gold answer.
        prompt: template with {question}.  instruction: follows it, as it is.  system: the system message.
        demonstrations: a data set whose references replace those of the same questions.
        read_demonstration: the reader of its rows.
    """

    def __init__(
        self,
        *,
        data: str,
        grader: Grader | None = None,
        prompt: str = "{question}",
        instruction: str = "",
        system: str = "",
        demonstrations: str | None = None,
        read_demonstration: Reader = read_pair,
        **source: Any,
    ) -> None:
        if "{question}" not in prompt:
            raise ValueError(f"task.prompt must contain {{question}}, got {prompt!r}")
        self.data, self.grader = data, grader or ExactGrader()
        self._prompt, self._instruction, self._system = prompt, instruction, system
        self._demonstrations, self._read_demonstration = demonstrations, read_demonstration
        sides = load_questions(data, **source)
        self._left_out = sides.left_out
        self.train, self.held_out = (self._examples(side) for side in (sides.train, sides.held_out))
        if not self.train or not self.held_out:
            raise ValueError(
                f"{'; '.join(self.notes)}; both sides need some: change task.held_out_fraction or a size, or name a "
                "split in task.held_out_split"
            )

    def grade(self, answers: Answers) -> list[Outcome]:
        """The outcomes of the task's grader."""
        return self.grader(answers)

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """The example's reference."""
        if not example.reference:
            raise ValueError(f"task.data={self.data} has no demonstration of {example.prompt[:80]!r}")
        return example.reference

    @property
    def notes(self) -> list[str]:
        """How many questions there are, and how many rows were left out for which reason."""
        kept = len(self.train) + len(self.held_out)
        rows = kept + self._left_out.total()
        counts = f"{self.data}: {len(self.train):,} questions to train on, {len(self.held_out):,} held out"
        return [counts, *(f"left out: {n:,} ({n / rows:.2%}) {why}" for why, n in self._left_out.items() if n)]

    def _examples(self, questions: Chosen[Question]) -> Chosen[Example]:
        kept: Sequence[int] = range(len(questions))
        if getattr(self.grader, "audit", None):  # to ask for the answers reads every row
            passes = audit(self.grader, [question.answer for question in questions])
            kept = [place for place in kept if passes[place]]
        self._left_out[FAILS_AUDIT] += len(questions) - len(kept)
        return Chosen(questions, kept, self._example)

    def _example(self, question: Question) -> Example:
        prompt = f"{self._prompt.format(question=question.text)} {self._instruction}".strip()
        reference = question.reference
        if self._demonstrations:
            reference = self._references.get(question_key(question.text), reference)
        return Example(prompt, question.answer, reference, self._system)

    @cached_property
    def _references(self) -> dict[bytes, str]:
        assert self._demonstrations is not None
        read = map(self._read_demonstration, load_rows(self._demonstrations))
        return {question_key(question.text): question.reference for question in read if question is not None}

"""A task that a random policy can learn in seconds: write digits."""

import os
import time
from dataclasses import replace

from sgrpo_lightning.rewards import Outcome
from sgrpo_lightning.tasks import Example


class LetterTask:
    """Rewards the share of digits among the first `letters` characters of the completion.

    Args:
        letters: how many characters count.
        raises_on: a completion that contains this text makes the grader raise.
        seconds: what grading one completion takes.
    """

    def __init__(self, *, letters=8, questions=8, raises_on=None, seconds=0.0):
        self.letters, self.raises_on, self.seconds = letters, raises_on, seconds
        self.train = [Example(f"Make {n}.", n) for n in range(questions)]
        self.held_out = [Example(f"Make {n}.", n) for n in range(questions, 2 * questions)]

    def grade(self, answers):
        return [self.grade_one(text, gold) for text, gold in zip(answers.completions, answers.golds, strict=True)]

    def grade_one(self, completion, gold):
        time.sleep(self.seconds)
        if self.raises_on is not None and self.raises_on in completion:
            raise RuntimeError("this grader has a fault")
        reward = sum(letter.isdigit() for letter in completion[: self.letters]) / self.letters
        return Outcome(reward, "ok" if reward > 0.5 else "wrong", completion[:2])

    def demonstrate(self, example, rng):
        return str(rng.randrange(10**self.letters))


class FailsOnRankOne(LetterTask):
    """Rewards have a part, but no grade of the second rank succeeds."""

    def grade_one(self, completion, gold):
        if os.environ.get("LOCAL_RANK") == "1":
            raise RuntimeError("this rank has a fault")
        outcome = super().grade_one(completion, gold)
        return replace(outcome, parts={"digits": outcome.reward})

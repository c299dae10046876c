"""Exact match: the answer is, letter for letter, the gold one."""

from typing import Any

from sgrpo_lightning.rewards.answers import Answers
from sgrpo_lightning.rewards.forms import plain
from sgrpo_lightning.rewards.outcome import Outcome
from sgrpo_lightning.rewards.reading import read_answer


class ExactGrader:
    """A grader by exact match; see `grade_exact`.

    Args:
        ignore_case: whether capitals and small letters are the same.

    >>> ExactGrader()(Answers(["<answer>Paris</answer>"], golds=["paris"]))[0].status
    'ok'
    """

    def __init__(self, *, ignore_case: bool = True) -> None:
        self.ignore_case = ignore_case

    def __call__(self, answers: Answers) -> list[Outcome]:
        pairs = zip(answers.completions, answers.golds, strict=True)
        return [grade_exact(text, answer=gold, ignore_case=self.ignore_case) for text, gold in pairs]


def grade_exact(completion: object, *, answer: Any, ignore_case: bool = True) -> Outcome:
    """Compare the answer between the answer tags with the gold one, as texts.

    Before that, both are brought to Unicode's NFKC (full-width, super- and subscript characters become plain ones),
    and each run of whitespace becomes one space.

    Args:
        completion: the generated text; nothing it holds, and no type it has, raises.
        answer: the gold one, as `str` writes it.
        ignore_case: whether capitals and small letters are the same.

    Returns:
        Reward 1.0 and `ok`, or reward 0.0 and `wrong` or `no_answer`.

    Raises:
        ValueError: the gold answer is None or blank, which is a fault of the data.

    Edge cases:
        Punctuation counts, and so does the form of a number: "4.0" is not "4".

    >>> outcome = grade_exact("<answer> New\\n York </answer>", answer="new york")
    >>> outcome.reward, outcome.answer
    (1.0, 'New\\n York')
    """
    gold = "" if answer is None else plain(str(answer), ignore_case=ignore_case)
    if not gold:
        raise ValueError(f"a gold answer must hold text, got {answer!r}")
    given = read_answer(completion)
    if given is None:
        return Outcome(0.0, "no_answer", None)
    if plain(given, ignore_case=ignore_case) == gold:
        return Outcome(1.0, "ok", given)
    return Outcome(0.0, "wrong", given)

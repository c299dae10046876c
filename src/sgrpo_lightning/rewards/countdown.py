"""Countdown: combine every given integer exactly once to reach the target."""

from collections.abc import Iterable
from operator import index

from sgrpo_lightning.rewards.answers import Answers
from sgrpo_lightning.rewards.expression import ExpressionError, evaluate
from sgrpo_lightning.rewards.outcome import Outcome
from sgrpo_lightning.rewards.reading import read_answer


def grade_countdown(completion: object, *, numbers: Iterable[int], target: int) -> Outcome:
    """Grade a completion by exact evaluation of the expression it answers with.

    Args:
        completion: the generated text; nothing it holds, and no type it has, raises.
        numbers: the given integers, each to be used exactly once (as often as it is listed).
        target: the value to reach.

    Returns:
        Reward 1.0 and `ok`, or reward 0.0 and `wrong`, `no_answer` or `unparseable`.

    Raises:
        ValueError: `numbers` or `target` are not integers, which is a fault of the data.

    Edge cases:
        Division by zero is `wrong`: it is well formed. A negative number cannot be written, so a task that
        gives one has no right answer. The whole table is in docs/countdown.md.

    >>> grade_countdown("<think>...</think><answer>8/(3-8/3)</answer>", numbers=[3, 3, 8, 8], target=24)
    Outcome(reward=1.0, status='ok', answer='8/(3-8/3)', parts={})

    Reference: Appendix B.3, Countdown.
    """
    given, goal = _as_integers(numbers, target)
    answer = read_answer(completion)
    if answer is None:
        return Outcome(0.0, "no_answer", None)
    try:
        value, used = evaluate(answer)
    except ExpressionError:
        return Outcome(0.0, "unparseable", answer)
    except ZeroDivisionError:
        return Outcome(0.0, "wrong", answer)
    if value == goal and sorted(used) == given:
        return Outcome(1.0, "ok", answer)
    return Outcome(0.0, "wrong", answer)


class CountdownGrader:
    """`grade_countdown` on each completion; its gold has `numbers` and `target`."""

    def __call__(self, answers: Answers) -> list[Outcome]:
        pairs = zip(answers.completions, answers.golds, strict=True)
        return [grade_countdown(text, numbers=gold.numbers, target=gold.target) for text, gold in pairs]


def countdown_reward(completion: object, *, numbers: Iterable[int], target: int) -> float:
    """Return 1.0 for a right answer and 0.0 for anything else; see `grade_countdown`.

    >>> countdown_reward("<answer>(1+2+3)*4</answer>", numbers=[1, 2, 3, 4], target=24)
    1.0
    """
    return grade_countdown(completion, numbers=numbers, target=target).reward


def _as_integers(numbers: Iterable[int], target: int) -> tuple[list[int], int]:
    """Return the sorted numbers and the target as plain `int`; integer arrays and scalars pass."""
    try:
        return sorted(map(index, numbers)), index(target)
    except TypeError:
        message = f"numbers and target must be integers, got numbers={numbers!r} and target={target!r}"
        raise ValueError(message) from None

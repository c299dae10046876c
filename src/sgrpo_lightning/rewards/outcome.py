"""The outcome of grading one answer."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "wrong", "no_answer", "unparseable", "error"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one completion earned, and why.

    Args:
        reward: in [0, 1].
        status: `ok` a right answer; `wrong` an answer that was read and is not right; `no_answer` nothing
            was answered; `unparseable` an answer outside the task's grammar; `error` a grader that raised.
        answer: the answer as it was read, None where there is none.
    """

    reward: float
    status: Status
    answer: str | None

"""The outcome of grading one answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["ok", "wrong", "no_answer", "unparseable", "timeout", "error"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one completion earned, and why.

    Args:
        reward: in [0, 1] for every reward whose documentation does not say otherwise.
        status: `ok` a right answer, or one that was given a score where none is right or wrong; `wrong` an
            answer that was read and is not right; `no_answer` nothing was answered; `unparseable` an answer
            outside the task's grammar; `timeout` an answer whose grading was stopped; `error` a grader that
            failed.
        answer: the answer as it was read, None where there is none.
        parts: of a composed reward, each part's own value before it is weighted.
    """

    reward: float
    status: Status
    answer: str | None
    parts: Mapping[str, float] = field(default_factory=dict)

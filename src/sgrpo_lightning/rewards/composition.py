"""Rewards made of others: weighted sums by name, and functions of one's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any, SupportsFloat

from sgrpo_lightning.rewards.answers import Answers, Grader
from sgrpo_lightning.rewards.outcome import Outcome
from sgrpo_lightning.rewards.reading import read_response

Audit = Callable[[Sequence[Any]], list[bool]]
"""golds -> whether each can be graded at all."""


class WeightedSum:
    """A grader whose reward is the weighted sum of others': sum_k weight_k * reward_k.

    Args:
        parts: name -> {"weight": a finite number, "grader": a grader}, in the order in which they are added. A
            weight of 0 reports a part without optimising it; a negative one makes it a penalty.

    Its outcomes hold each part's own reward under the part's name, so that `reward` is exactly
    `sum(weight[name] * parts[name])`; what a part is itself made of follows as "name.piece". Status and answer are
    those of the first part: put first the one that tells right from wrong. A part that raises is not caught.

    Edge cases:
        The reward stays in [0, 1] if the parts do, no weight is negative and they sum to at most 1.

    >>> parts = {"long": {"weight": 0.25, "grader": FunctionGrader(lambda completion, answer: len(completion) > 1)}}
    >>> outcome = WeightedSum(parts)(Answers(["4", "44"], golds=["4", "4"]))[1]
    >>> outcome.reward, outcome.status, outcome.parts
    (0.25, 'ok', {'long': 1.0})

    Reference: Appendix B.5, r = 0.35 r_format + 0.65 r_sim.
    """

    def __init__(self, parts: Mapping[str, Mapping[str, Any]]) -> None:
        if not isinstance(parts, Mapping) or not parts:
            raise ValueError(f"parts must map at least one name to a weight and a grader, got {parts!r}")
        read = {name: _read_part(name, part) for name, part in parts.items()}
        self.weights: dict[str, float] = {name: weight for name, (weight, _) in read.items()}
        self.graders: dict[str, Grader] = {name: grader for name, (_, grader) in read.items()}

    def __call__(self, answers: Answers) -> list[Outcome]:
        graded = [self._graded(name, answers) for name in self.graders]
        return [self._composed(outcomes) for outcomes in zip(*graded, strict=True)]

    def _graded(self, name: str, answers: Answers) -> list[Outcome]:
        outcomes = self.graders[name](answers)
        if len(outcomes) != len(answers):
            raise ValueError(f"parts.{name} must return {len(answers)} outcomes, got {len(outcomes)}")
        return outcomes

    def _composed(self, outcomes: Sequence[Outcome]) -> Outcome:
        parts: dict[str, float] = {}
        for name, outcome in zip(self.weights, outcomes, strict=True):
            parts[name] = outcome.reward
            parts |= {f"{name}.{piece}": value for piece, value in outcome.parts.items()}
        reward = sum(weight * parts[name] for name, weight in self.weights.items())
        return Outcome(reward, outcomes[0].status, outcomes[0].answer, parts)

    @property
    def audit(self) -> Audit | None:
        """golds -> whether every part that audits can grade each; None where no part audits."""
        audits = [grader.audit for grader in self._auditors]
        return partial(_audit_by_all, audits) if audits else None

    @property
    def version(self) -> str:
        """Of what audits: where this stays the same, so do the verdicts."""
        return "; ".join(f"{type(grader).__qualname__} {getattr(grader, 'version', '')}" for grader in self._auditors)

    @property
    def _auditors(self) -> list[Any]:
        return [grader for grader in self.graders.values() if getattr(grader, "audit", None)]


def _read_part(name: str, part: Any) -> tuple[float, Grader]:
    # A name becomes part of a metric's, and "." leads to what a part is made of.
    if not str(name).isidentifier():
        raise ValueError(f"a part's name must be letters, digits and _, such as 'format', got {name!r}")
    if not isinstance(part, Mapping) or set(part) != {"weight", "grader"}:
        raise ValueError(f"parts.{name} must have weight and grader and nothing else, got {part!r}")
    weight, grader = part["weight"], part["grader"]
    if isinstance(weight, bool) or not isinstance(weight, Real) or not math.isfinite(weight):
        raise ValueError(f"parts.{name}.weight must be a finite number, got {weight!r}")
    if not callable(grader):
        raise ValueError(f"parts.{name}.grader must be a grader (answers -> outcomes), got {grader!r}")
    return float(weight), grader


def _audit_by_all(audits: Sequence[Audit], golds: Sequence[Any]) -> list[bool]:
    return [all(verdicts) for verdicts in zip(*(audit(golds) for audit in audits), strict=True)]


class FunctionGrader:
    """A grader from a function of one completion.

    Args:
        function: (completion, gold answer) -> a finite number, or a bool for right and wrong. In a config:
            `{_target_: hydra.utils.get_method, path: my_module.my_reward}`.

    Its outcomes are `ok` above 0.5 and else `wrong`; the answer is what the completion says after its thinking.

    Edge cases:
        Its reward leaves [0, 1] where the function does.

    >>> grader = FunctionGrader(lambda completion, answer: completion.endswith(answer))
    >>> [outcome.reward for outcome in grader(Answers(["so 4", "5"], golds=["4", "4"]))]
    [1.0, 0.0]
    """

    def __init__(self, function: Callable[[str, Any], Any]) -> None:
        if not callable(function):
            raise ValueError(f"function must be callable as (completion, answer), got {function!r}")
        self.function = function

    def __call__(self, answers: Answers) -> list[Outcome]:
        return [self._grade(*pair) for pair in zip(answers.completions, answers.golds, strict=True)]

    def _grade(self, completion: str, gold: Any) -> Outcome:
        value = self.function(completion, gold)
        reward = _as_number(value)
        if not math.isfinite(reward):
            name = getattr(self.function, "__qualname__", repr(self.function))
            raise ValueError(f"{name} must return a finite number or a bool, got {value!r}")
        return Outcome(reward, "ok" if reward > 0.5 else "wrong", read_response(completion))


def _as_number(value: Any) -> float:
    """NaN for what is no number; those of numpy and torch are."""
    try:
        return float(value) if isinstance(value, SupportsFloat) else math.nan
    except (ArithmeticError, RuntimeError, TypeError, ValueError):  # arrays of several, integers too large
        return math.nan

"""Grades mathematical answers with Math-Verify, in this process or in workers that are stopped when they hang."""

from __future__ import annotations

import logging
import os
import re
from collections import OrderedDict
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib import metadata
from threading import Lock
from typing import Any

from sgrpo_lightning.rewards.answers import Answers
from sgrpo_lightning.rewards.math_answer import read_math_answer
from sgrpo_lightning.rewards.outcome import Outcome
from sgrpo_lightning.rewards.pool import Result, WorkerPool

logger = logging.getLogger(__name__)

MAX_LENGTH = 512
"""Of an answer, in characters; a longer one is a derivation, and parsing it could take any time."""

PRELOAD = "sgrpo_lightning.rewards.math_warmup"
"""What workers import before they grade."""

_INTEGER = re.compile(r"(?:\\?\$)?([+-]?)(?:\\?\$)?([0-9]+|[0-9]{1,3}(?:(?:,|\{,\})[0-9]{3})+)\$?")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|textit)\s*\{([^{}]*)\}")
_WORDS = re.compile(r"[A-Za-z]+(?: +[A-Za-z]+)*")
_TIDY = (
    (re.compile(r"(?<!\.)\.$"), ""),  # the end of the sentence
    (re.compile(r"(?<![\d.,])\d{1,3}(?:(?:\\[,:; ]|[ ~])\d{3})+(?![\d,])"), lambda m: re.sub(r"\D", "", m[0])),
    (re.compile(r"(?<![\d.)}])(\d+) +(\d+)/(\d+)$"), r"\1\\frac{\2}{\3}"),
)


def grade_math(completion: object, *, answer: object) -> Outcome:
    r"""Grade the last boxed answer of a completion, in this process and without a limit of time.

    Args:
        completion: the generated text; nothing it holds, and no type it has, raises.
        answer: the gold answer in LaTeX or plain text, without a box: "18", r"\frac{1}{2}", "Yes".

    Returns:
        Reward 1.0 and `ok`, or reward 0.0 and `wrong`, `no_answer`, `unparseable` (not mathematics, or longer than
        512 characters) or `error` (the gold answer is not mathematics).

    Edge cases:
        May be called from any thread. Some answers take hours or all memory, such as power towers: `MathGrader` gives
        each its limits. The same text as the gold answer, or the same words in any case, is right whatever Math-Verify
        says; two integers are compared as such. "18%" is right for "18" and for "0.18"; "18 dollars" is wrong
        for "18", while r"18\text{ dollars}" and "$18" are right.

    >>> grade_math(r"<think>...</think> \boxed{0.5}", answer=r"\frac{1}{2}")
    Outcome(reward=1.0, status='ok', answer='0.5', parts={})

    Reference: Appendix B.3, GSM8K and DeepMath.
    """
    text, gold = read_math_answer(completion), str(answer).strip()
    return _without_math_verify(text, gold) or _with_math_verify((text or "", gold))


def math_reward(completion: object, *, answer: object) -> float:
    r"""Return 1.0 for a right answer and 0.0 for anything else; see `grade_math`.

    >>> math_reward(r"\boxed{1,000}", answer="1000")
    1.0
    """
    return grade_math(completion, answer=answer).reward


class MathGrader:
    r"""Grades answers in worker processes, so that none can stall or exhaust the run.

    Every distinct pair of an answer and a gold answer is graded once and remembered, also when its time ran out.

    Args:
        workers: processes; None for the CPUs of this process, shared with the other ranks of this machine.
        seconds: of wall clock for one answer, after which it is `timeout`.
        megabytes: for one answer, on Linux; with less it ends as `error`, or as what Math-Verify makes of it.
        remembered: pairs.

    Edge cases:
        Outcomes are those of `grade_math`, or `timeout`, or `error` where a worker died.

    >>> with MathGrader(workers=1, seconds=1.0) as grader:
    ...     answers = Answers([r"\boxed{\frac{2}{4}}", r"\boxed{9^{9^{9^9}}}", "?"], ["0.5", "0.5", "0.5"])
    ...     [outcome.status for outcome in grader(answers)]
    ['ok', 'timeout', 'no_answer']

    Reference: Appendix B.3, GSM8K and DeepMath.
    """

    def __init__(
        self, *, workers: int | None = None, seconds: float = 5.0, megabytes: int = 1024, remembered: int = 2**16
    ) -> None:
        workers = _share_of_cpus() if workers is None else workers
        self._pool = WorkerPool(workers=workers, seconds=seconds, megabytes=megabytes, preload=[PRELOAD])
        self._known: OrderedDict[tuple[str, str], Outcome] = OrderedDict()
        self._remembered, self._lock = remembered, Lock()

    def __call__(self, answers: Answers) -> list[Outcome]:
        """An outcome for each completion, in order; `golds` are the gold answers."""
        pairs = [
            (read_math_answer(completion), str(gold).strip())
            for completion, gold in zip(answers.completions, answers.golds, strict=True)
        ]
        easy = {pair: _without_math_verify(*pair) for pair in pairs}
        hard = self._graded([(text, gold) for (text, gold), outcome in easy.items() if text and outcome is None])
        return [easy[text, gold] or hard[text or "", gold] for text, gold in pairs]

    def audit(self, golds: Sequence[object]) -> list[bool]:
        """Say of each gold answer whether it parses and is right when it is compared with itself."""
        texts = [str(gold).strip() for gold in golds]
        hard = [text for text in dict.fromkeys(texts) if _integer(text) is None]
        sound = {text: bool(result.value) for text, result in zip(hard, self._pool.map(_is_sound, hard), strict=True)}
        return [sound.get(text, True) for text in texts]

    @property
    def version(self) -> str:
        """Of what judges: an audit that was kept does not count after an upgrade."""
        return metadata.version("math-verify")

    def close(self) -> None:
        """Stop the workers; they start again when they are needed."""
        self._pool.close()

    def __enter__(self) -> MathGrader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _graded(self, pairs: list[tuple[str, str]]) -> dict[tuple[str, str], Outcome]:
        """The outcome of each distinct pair, from memory or from a worker."""
        with self._lock:
            graded = {pair: self._known[pair] for pair in pairs if pair in self._known}
        new = [pair for pair in pairs if pair not in graded]
        for pair, result in zip(new, self._pool.map(_with_math_verify, new), strict=True):
            graded[pair] = _outcome(pair, result)
        with self._lock:
            for pair in pairs:
                if graded[pair].status != "error":  # a worker may have died of something else
                    self._known[pair] = graded[pair]
                    self._known.move_to_end(pair)
            while len(self._known) > self._remembered:
                self._known.popitem(last=False)
        return graded


def _share_of_cpus() -> int:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cpus // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _outcome(pair: tuple[str, str], result: Result) -> Outcome:
    if result.failure is None:
        return result.value
    if result.failure == "error":
        logger.warning("grading %r against %r failed: %s", *pair, result.message)
    return Outcome(0.0, result.failure, pair[0])


def _without_math_verify(text: str | None, gold: str) -> Outcome | None:
    """The outcome where it needs no mathematics, else None."""
    if text is None:
        return Outcome(0.0, "no_answer", None)
    if text == gold:
        return Outcome(1.0, "ok", text)
    if len(text) > MAX_LENGTH:
        return Outcome(0.0, "unparseable", text)
    words = _words(text)
    if words is not None and words == _words(gold):
        return Outcome(1.0, "ok", text)
    given, goal = _integer(text), _integer(gold)
    if given is None or goal is None:
        return None
    return Outcome(1.0, "ok", text) if given == goal else Outcome(0.0, "wrong", text)


def _integer(text: str) -> int | None:
    """Read a decimal integer: signed, with thousands, in dollars."""
    match = _INTEGER.fullmatch(text) if len(text) <= MAX_LENGTH else None
    return int(match[1] + re.sub(r"\D", "", match[2])) if match else None


def _words(text: str) -> str | None:
    r"""Read one or more words, perhaps in `\text{}`."""
    plain = _TEXT.sub(r"\1", text).strip().removesuffix(".")
    return plain.lower() if len(plain) > 1 and _WORDS.fullmatch(plain) else None


def _with_math_verify(pair: tuple[str, str]) -> Outcome:
    """The outcome where it takes mathematics; not bounded in time."""
    text, gold = pair
    found, goal = _parse(text), _parse_gold(gold)
    if _agree(goal, found):
        return Outcome(1.0, "ok", text)
    if not _is_mathematics(found):
        return Outcome(0.0, "unparseable", text)
    return Outcome(0.0, "wrong" if _is_mathematics(goal) else "error", text)


def _is_sound(gold: str) -> bool:
    """Whether a gold answer parses and is right when it is compared with itself."""
    goal = _parse_gold(gold)
    return _is_mathematics(goal) and _agree(goal, _parse(gold))


def _agree(goal: Sequence[Any], found: Sequence[Any]) -> bool:
    """Whether an answer is as good as the gold answer, which comes first: Math-Verify's test is not symmetric."""
    from sympy.core.random import seed

    seed(0)  # where SymPy tries an identity on random numbers, on the same ones whatever was graded before
    return _math_verify().verify([*goal], [*found], timeout_seconds=None)


def _is_mathematics(parsed: Sequence[Any]) -> bool:
    """Whether Math-Verify made more of a text than a text."""
    return any(not isinstance(item, str) for item in parsed)


@lru_cache(maxsize=4096)
def _parse_gold(gold: str) -> tuple[Any, ...]:
    return tuple(_parse(gold))


def _parse(text: str) -> list[Any]:
    """Read one answer as Math-Verify reads a box."""
    for pattern, replacement in _TIDY:
        text = pattern.sub(replacement, text)
    config = _math_verify().LatexExtractionConfig(boxed_match_priority=0)
    return _math_verify().parse(rf"\boxed{{{text}}}", [config], parsing_timeout=None)


@cache
def _math_verify() -> Any:
    """Import it once, quiet, and able to read percentages."""
    import math_verify
    from latex2sympy2_extended.antlr_parser import PSParser

    # Its converter asks for a token that its grammar for ANTLR 4.9, which Hydra needs, does not have.
    if not hasattr(PSParser.AtomContext, "FUNC_GAMMA"):
        PSParser.AtomContext.FUNC_GAMMA = lambda self: None
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that nobody limits its time
    return math_verify

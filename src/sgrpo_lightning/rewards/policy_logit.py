"""RL-Logit: how likely the policy finds the expert's answer once it has read its own reasoning."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sgrpo_lightning.rewards.answers import Answers
from sgrpo_lightning.rewards.outcome import Outcome

FLOOR = -1e6
"""The least reward: a perplexity grows exponentially, and a reward must be finite."""


class AnswerLogprob:
    """A grader whose reward is log pi(answer | prompt, reasoning) in nats, of the expert's answer.

    The reasoning is the completion up to and including its last `</think>`, or all of it where there is none. The
    expert's answer is the gold answer; where that is no text or number, as in Countdown, the example's reference.

    Args:
        separator: what stands between the reasoning and the answer; "\\n<answer>" where the policy was taught
            to open its answers so.

    Its outcomes are all `ok` and have no answer: nothing is right or wrong. As a part of a `WeightedSum`, let
    another part come first if that can tell.

    Edge cases:
        The reward lies in [-1e6, 0], not in [0, 1], and falls with the number of tokens of the answer.

    >>> halves = lambda prefixes, continuations: [(len(text) * math.log(0.5), len(text)) for text in continuations]
    >>> [outcome] = AnswerLogprob()(Answers(["<think>1</think>3"], golds=["42"], prompts=["Q"], logprobs=halves))
    >>> round(outcome.reward, 4), outcome.status
    (-1.3863, 'ok')

    Reference: Appendix B.7, log-probability reward.
    """

    def __init__(self, *, separator: str = "\n") -> None:
        self.separator = separator

    def __call__(self, answers: Answers) -> list[Outcome]:
        scores = answer_logprobs(answers, self.separator)
        return [Outcome(max(logprob, FLOOR), "ok", None) for logprob, _ in scores]


class AnswerPerplexity:
    """A grader whose reward is the negative perplexity of the expert's answer: -exp(-log pi / tokens).

    What is read, and what the outcomes hold, is as for `AnswerLogprob`.

    Args:
        separator: as for `AnswerLogprob`.

    Edge cases:
        The reward lies in [-1e6, -1], not in [0, 1]: -1 is certainty, and -V a uniform guess among V tokens.

    >>> halves = lambda prefixes, continuations: [(len(text) * math.log(0.5), len(text)) for text in continuations]
    >>> [outcome] = AnswerPerplexity()(Answers(["<think>1</think>3"], golds=["42"], prompts=["Q"], logprobs=halves))
    >>> outcome.reward
    -2.0

    Reference: Appendix B.7, perplexity reward.
    """

    def __init__(self, *, separator: str = "\n") -> None:
        self.separator = separator

    def __call__(self, answers: Answers) -> list[Outcome]:
        scores = answer_logprobs(answers, self.separator)
        return [Outcome(-perplexity(*score), "ok", None) for score in scores]


def perplexity(logprob: float, tokens: int) -> float:
    """exp(-logprob / tokens), at most 1e6; that of no tokens is 1.

    >>> perplexity(-2 * math.log(2), 2), perplexity(-math.inf, 2)
    (2.0, 1000000.0)
    """
    surprise = -logprob / max(tokens, 1)
    return min(math.exp(min(surprise, 700.0)), -FLOOR)  # exp(710) overflows


def answer_logprobs(answers: Answers, separator: str) -> Sequence[tuple[float, int]]:
    """(log-probability, tokens) of each expert's answer after prompt, reasoning and separator."""
    if answers.logprobs is None:
        raise ValueError(
            "a reward from the policy's probabilities needs answers.logprobs, got None: such a reward can be "
            "computed only where the policy is at hand; use another for answers that are graded without one"
        )
    if len(answers.prompts) != len(answers):
        raise ValueError(f"answers.prompts must hold {len(answers)} texts, got {len(answers.prompts)}")
    pairs = zip(answers.prompts, answers.completions, strict=True)
    prefixes = [prompt + read_reasoning(completion) + separator for prompt, completion in pairs]
    return answers.logprobs(prefixes, [_expert_answer(answers, row) for row in range(len(answers))])


def read_reasoning(completion: str) -> str:
    """The completion up to and including its last `</think>`; all of it where there is none.

    >>> read_reasoning("<think>2 + 2</think><answer>4</answer>"), read_reasoning("2 + 2")
    ('<think>2 + 2</think>', '2 + 2')
    """
    reasoning, end, rest = completion.rpartition("</think>")
    return reasoning + end or rest


def _expert_answer(answers: Answers, row: int) -> str:
    gold = answers.golds[row]
    text = str(gold) if isinstance(gold, str | int | float) else ""
    text = text or (answers.references[row] if answers.references else "")
    if not text:
        raise ValueError(f"row {row} has neither a gold answer that is a text nor a reference, got {gold!r}")
    return text

"""Similarity with a reference text, for tasks without a right answer."""

from __future__ import annotations

import math

from sgrpo_lightning.rewards.answers import Answers
from sgrpo_lightning.rewards.outcome import Outcome
from sgrpo_lightning.rewards.overlap import Measure, Tokenizer, f1_against, rouge_l_against
from sgrpo_lightning.rewards.reading import read_reference, read_response, with_thinking_open


class SimilarityGrader:
    """A grader by overlap with the reference: r_sim = 0.6 F1 + 0.4 ROUGE-L, of the response alone.

    Args:
        f1_weight: of SQuAD's F1, >= 0.
        rouge_weight: of ROUGE-L, >= 0.
        tokenizer: `rouge` gives the values of SQuAD's script and of rouge-score; `unicode` reads every script, which
            texts that are not in English need. See `rewards.overlap`.
        opened_by_prompt: whether the prompt ends in `<think>`, so that a completion that never closes it says nothing.

    Its outcomes are `ok` where there is a response, else `no_answer`, with the reward's parts `f1` and `rouge_l`.

    Edge cases:
        Of a reference that thinks first, as a demonstration does, only the response counts. An empty reference, or one
        of punctuation alone, scores 0. The reward is in [0, 1] if the weights sum to at most 1.

    >>> answers = Answers(["<think>Hm.</think>cat sat"], golds=[None], references=["a cat sat down"])
    >>> [outcome] = SimilarityGrader()(answers)  # F1 = 2 * 2 / (2 + 3), ROUGE-L = 2 * 2 / (2 + 4)
    >>> round(outcome.reward, 4), outcome.status, outcome.answer
    (0.7467, 'ok', 'cat sat')

    Reference: Appendix B.5; GRPO-Sim of Appendix B.8.
    """

    def __init__(
        self,
        *,
        f1_weight: float = 0.6,
        rouge_weight: float = 0.4,
        tokenizer: Tokenizer = "rouge",
        opened_by_prompt: bool = False,
    ) -> None:
        for name, weight in (("f1_weight", f1_weight), ("rouge_weight", rouge_weight)):
            if not 0 <= weight < math.inf:
                raise ValueError(f"{name} must be >= 0 and finite, got {weight}")
        f1_against("", tokenizer=tokenizer)  # names a wrong tokenizer now, not in the first iteration
        self.f1_weight, self.rouge_weight = f1_weight, rouge_weight
        self.tokenizer, self.opened_by_prompt = tokenizer, opened_by_prompt

    def __call__(self, answers: Answers) -> list[Outcome]:
        if len(answers.references) != len(answers):
            raise ValueError(f"expected {len(answers)} references, one per completion, got {len(answers.references)}")
        for reference in answers.references:
            if not isinstance(reference, str):
                raise ValueError(f"a reference must be a text, got {reference!r}")
        measures = {reference: self._measures(reference) for reference in set(answers.references)}
        pairs = zip(answers.completions, answers.references, strict=True)
        return [self._grade(completion, *measures[reference]) for completion, reference in pairs]

    def _measures(self, reference: str) -> tuple[Measure, Measure]:
        text = read_reference(reference)
        return f1_against(text, tokenizer=self.tokenizer), rouge_l_against(text, tokenizer=self.tokenizer)

    def _grade(self, completion: object, f1_of: Measure, rouge_l_of: Measure) -> Outcome:
        response = read_response(with_thinking_open(completion) if self.opened_by_prompt else completion)
        if response is None:
            return Outcome(0.0, "no_answer", None, {"f1": 0.0, "rouge_l": 0.0})
        f1, rouge_l = f1_of(response), rouge_l_of(response)
        reward = self.f1_weight * f1 + self.rouge_weight * rouge_l
        return Outcome(reward, "ok", response, {"f1": f1, "rouge_l": rouge_l})


def similarity_reward(completion: object, *, reference: str) -> float:
    """Return 0.6 F1 + 0.4 ROUGE-L of the response, and 0.0 where there is none; see `SimilarityGrader`.

    >>> similarity_reward("<think>Snow? Rain?</think>Snow falls.", reference="Snow falls.")
    1.0
    """
    return SimilarityGrader()(Answers([completion], golds=[None], references=[reference]))[0].reward  # type: ignore[list-item]

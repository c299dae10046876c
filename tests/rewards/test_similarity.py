"""The similarity reward: arithmetic by hand, and what it makes of completions, references and settings."""

import doctest
import importlib

import pytest

from sgrpo_lightning.rewards import Answers
from sgrpo_lightning.rewards.overlap import rouge_l_against
from sgrpo_lightning.rewards.similarity import SimilarityGrader, similarity_reward


def test_the_reward_by_hand():
    """F1: cat, sat of 2 and 3 words; ROUGE-L: cat sat of 2 and 4."""
    reward = similarity_reward("<think>a cat sat down</think>cat sat", reference="a cat sat down")
    assert reward == pytest.approx(0.6 * 4 / 5 + 0.4 * 4 / 6)
    assert similarity_reward("a cat sat down", reference="A cat sat down.") == 1.0


@pytest.mark.parametrize(
    "completion", [None, b"cat", 3, "", " ", "<think>cat", "<think>cat</think>", "<answer></answer>"]
)
def test_without_a_response(completion):
    assert similarity_reward(completion, reference="cat") == 0.0
    [outcome] = SimilarityGrader()(Answers([completion], golds=[None], references=["cat"]))
    assert (outcome.reward, outcome.status, outcome.answer) == (0.0, "no_answer", None)
    assert outcome.parts == {"f1": 0.0, "rouge_l": 0.0}


def test_outcomes_of_a_batch():
    completions = ["<think>b</think> cat sat ", "dog", "<answer>the cat</answer>", "cat"]
    references = ["a cat sat down", "cat", "a cat sat down", ""]
    outcomes = SimilarityGrader(f1_weight=0.5, rouge_weight=2)(Answers(completions, [None] * 4, references))
    assert [outcome.answer for outcome in outcomes] == ["cat sat", "dog", "the cat", "cat"]
    assert {outcome.status for outcome in outcomes} == {"ok"}
    parts = [(4 / 5, 4 / 6), (0, 0), (2 / 4, 2 / 6), (0, 0)]
    assert [outcome.parts for outcome in outcomes] == [
        pytest.approx({"f1": f1, "rouge_l": rouge}) for f1, rouge in parts
    ]
    assert [outcome.reward for outcome in outcomes] == pytest.approx([0.5 * f1 + 2 * rouge for f1, rouge in parts])


def test_a_reference_is_read_once(monkeypatch):
    read = []
    module = importlib.import_module("sgrpo_lightning.rewards.similarity")
    monkeypatch.setattr(
        module, "rouge_l_against", lambda text, **how: read.append(text) or rouge_l_against(text, **how)
    )
    SimilarityGrader()(Answers(["cat"] * 6, [None] * 6, ["cat", "dog"] * 3))
    assert sorted(read) == ["cat", "dog"]


@pytest.mark.parametrize(
    "reference",
    ["cat sat", "<think>dog</think>cat sat", "<think>dog</think><answer>cat sat</answer>", "dog</think> cat sat\n"],
)
def test_only_the_response_of_a_reference_counts(reference):
    assert similarity_reward("cat sat", reference=reference) == 1.0


def test_a_reference_without_a_response_counts_whole():
    assert similarity_reward("think cat", reference="<think> cat") == 1.0


def test_the_tokenizer_of_the_grader():
    answers = Answers(["落 花"], [None], ["落花"])
    assert SimilarityGrader()(answers)[0].reward == 0.0
    assert SimilarityGrader(tokenizer="unicode")(answers)[0].reward == 1.0


def test_thinking_that_the_prompt_opens():
    answers = Answers(["cat", "dog</think>cat", None], [None] * 3, ["cat"] * 3)
    assert [outcome.reward for outcome in SimilarityGrader()(answers)] == [1.0, 1.0, 0.0]
    assert [outcome.reward for outcome in SimilarityGrader(opened_by_prompt=True)(answers)] == [0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"f1_weight": -0.1}, "f1_weight must be >= 0 and finite, got -0.1"),
        ({"rouge_weight": float("nan")}, "rouge_weight must be >= 0 and finite, got nan"),
        ({"rouge_weight": float("inf")}, "rouge_weight must be >= 0 and finite, got inf"),
        ({"tokenizer": "zh"}, "tokenizer must be one of rouge, unicode, got 'zh'"),
    ],
)
def test_bad_settings(settings_, message):
    with pytest.raises(ValueError, match=message):
        SimilarityGrader(**settings_)
    assert SimilarityGrader(f1_weight=0, rouge_weight=0)


def test_bad_data():
    with pytest.raises(ValueError, match="expected 2 references, one per completion, got 0"):
        SimilarityGrader()(Answers(["a", "b"], [None] * 2))
    for reference in (None, ["cat"]):
        with pytest.raises(ValueError, match="a reference must be a text, got"):
            similarity_reward("cat", reference=reference)


def test_the_examples():
    result = doctest.testmod(importlib.import_module("sgrpo_lightning.rewards.similarity"))
    assert result.attempted
    assert not result.failed

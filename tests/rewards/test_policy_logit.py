"""RL-Logit: which text is read, which continuation is asked for, and what becomes of its probability."""

import doctest
import math
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgrpo_lightning.rewards import Answers, Outcome, policy_logit
from sgrpo_lightning.rewards.composition import FunctionGrader, WeightedSum
from sgrpo_lightning.rewards.exact import ExactGrader
from sgrpo_lightning.rewards.policy_logit import FLOOR, AnswerLogprob, AnswerPerplexity

FUZZ = settings(derandomize=True, max_examples=300, deadline=None)
GRADERS = [AnswerLogprob, AnswerPerplexity]


class Model:
    """Stands for the policy: answers with given pairs, and keeps what it was asked."""

    def __init__(self, *scores):
        self.scores = list(scores)
        self.asked = []

    def __call__(self, prefixes, continuations):
        self.asked += zip(prefixes, continuations, strict=True)
        return self.scores


def answers(model, completions=("<think>so</think>b",), golds=("gold",), references=(), prompts=None):
    prompts = ["Q:"] * len(completions) if prompts is None else prompts
    return Answers(completions, golds=golds, references=references, prompts=prompts, logprobs=model)


def reward(grader, logprob, tokens):
    [outcome] = grader(answers(Model((logprob, tokens))))
    return outcome.reward


# ---- what is read ----


@pytest.mark.parametrize("grader", GRADERS)
@pytest.mark.parametrize(
    ("completion", "reasoning"),
    [
        ("<think>so</think><answer>b</answer>", "<think>so</think>"),
        ("so</think>b", "so</think>"),
        ("<think>a</think>b<think>c</think>d", "<think>a</think>b<think>c</think>"),
        ("</think>b", "</think>"),
        ("<think>so", "<think>so"),
        ("so it is b", "so it is b"),
        ("", ""),
    ],
)
def test_the_policy_reads_prompt_reasoning_and_separator(grader, completion, reasoning):
    model = Model((-1.0, 1))
    grader()(answers(model, [completion], prompts=["Q:"]))
    grader(separator="\n<answer>")(answers(model, [completion], prompts=["Q:"]))
    assert model.asked == [(f"Q:{reasoning}\n", "gold"), (f"Q:{reasoning}\n<answer>", "gold")]


@pytest.mark.parametrize("grader", GRADERS)
def test_the_reference_is_asked_for_where_the_gold_answer_is_no_text(grader):
    model = Model(*[(-1.0, 1)] * 5)
    golds, references = ["1", 2, None, "", (3, 4)], ["one", "two", "three", "four", "five"]
    grader()(answers(model, "vwxyz", golds=golds, references=references, prompts="abcde"))
    assert [answer for _, answer in model.asked] == ["1", "2", "three", "four", "five"]


@pytest.mark.parametrize("grader", GRADERS)
def test_all_completions_are_asked_at_once_and_stay_in_order(grader):
    calls = []

    def model(prefixes, continuations):
        calls.append(len(prefixes))
        return [(-float(len(text)), len(text)) for text in continuations]

    outcomes = grader()(answers(model, "wxyz", golds=["1", "333", "22", "1"]))
    expected = {AnswerLogprob: [-1.0, -3.0, -2.0, -1.0], AnswerPerplexity: [-math.e] * 4}[grader]
    assert [outcome.reward for outcome in outcomes] == pytest.approx(expected)
    assert calls == [4]


@pytest.mark.parametrize("grader", GRADERS)
def test_no_completions(grader):
    assert grader()(answers(lambda prefixes, continuations: [], [], golds=[])) == []


# ---- what it is worth ----


def test_rewards_by_hand():
    """Three tokens of probabilities 1/2, 1/4 and 1/8: their product is 1/64, its cube root 1/4."""
    assert reward(AnswerLogprob(), -math.log(64), 3) == -math.log(64)
    assert reward(AnswerPerplexity(), -math.log(64), 3) == pytest.approx(-4.0)


def test_certainty_is_the_most():
    assert (reward(AnswerLogprob(), 0.0, 5), reward(AnswerPerplexity(), 0.0, 5)) == (0.0, -1.0)
    assert reward(AnswerPerplexity(), 0.0, 0) == -1.0


@pytest.mark.parametrize("grader", GRADERS)
@pytest.mark.parametrize("logprob", [-math.inf, -1e300, -2e6])
def test_rewards_stay_finite(grader, logprob):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reward(grader(), logprob, 1) == FLOOR == -1e6


def test_the_floor_is_not_reached_early():
    assert reward(AnswerLogprob(), -999_999.0, 1) == -999_999.0
    assert reward(AnswerPerplexity(), -math.log(999_999.0), 1) == pytest.approx(-999_999.0)


@pytest.mark.parametrize("grader", GRADERS)
def test_a_broken_probability_stays_visible(grader):
    assert math.isnan(reward(grader(), math.nan, 1))


@FUZZ
@given(st.floats(-13.8, 0), st.integers(1, 1000))
def test_the_perplexity_is_that_of_the_mean(mean, tokens):
    assert reward(AnswerPerplexity(), mean * tokens, tokens) == pytest.approx(-(math.e**-mean), rel=1e-9)
    assert reward(AnswerLogprob(), mean * tokens, tokens) == mean * tokens


@pytest.mark.parametrize("grader", GRADERS)
def test_nothing_is_right_or_wrong(grader):
    [outcome] = grader()(answers(Model((-1.0, 1)), ["<answer>b</answer>"]))
    assert outcome == Outcome(outcome.reward, "ok", None)


# ---- composed ----


def test_a_part_of_a_weighted_sum():
    """1 + 0.1 * log 1/2 and 0 + 0.1 * log 1/4, beside a perplexity that is watched."""
    model = Model((math.log(0.5), 1), (math.log(0.25), 2))
    batch = answers(model, ["<answer>a</answer>", "<answer>b</answer>"], golds=["a", "a"])
    parts = {
        "exact": {"weight": 1.0, "grader": ExactGrader()},
        "logprob": {"weight": 0.1, "grader": AnswerLogprob()},
        "perplexity": {"weight": 0.0, "grader": AnswerPerplexity()},
        "short": {"weight": 0.5, "grader": FunctionGrader(lambda completion, answer: len(completion) < 5)},
    }
    composed = WeightedSum(parts)
    outcomes = composed(batch)
    assert [outcome.reward for outcome in outcomes] == pytest.approx([1 + 0.1 * math.log(0.5), 0.1 * math.log(0.25)])
    assert [(outcome.status, outcome.answer) for outcome in outcomes] == [("ok", "a"), ("wrong", "b")]
    assert outcomes[1].parts == {
        "exact": 0.0,
        "logprob": math.log(0.25),
        "perplexity": pytest.approx(-2.0),
        "short": 0.0,
    }
    for outcome in outcomes:
        assert outcome.reward == sum(composed.weights[name] * value for name, value in outcome.parts.items())


# ---- what is refused ----


@pytest.mark.parametrize("grader", GRADERS)
def test_needs_the_policy(grader):
    with pytest.raises(ValueError, match=r"needs answers\.logprobs, got None"):
        grader()(answers(None))


@pytest.mark.parametrize("grader", GRADERS)
@pytest.mark.parametrize("prompts", [[], ["Q:", "Q:"]])
def test_needs_the_prompts(grader, prompts):
    with pytest.raises(ValueError, match=rf"answers\.prompts must hold 1 texts, got {len(prompts)}"):
        grader()(answers(Model((-1.0, 1)), prompts=prompts))


@pytest.mark.parametrize("grader", GRADERS)
@pytest.mark.parametrize("gold", ["", None])
def test_needs_something_to_ask_for(grader, gold):
    with pytest.raises(ValueError, match="row 1 has neither a gold answer that is a text nor a reference, got "):
        grader()(answers(Model((-1.0, 1)), "xy", golds=["a", gold], references=["", ""]))


def test_doctests():
    failed, tried = doctest.testmod(policy_logit)
    assert (failed, tried > 0) == (0, True)

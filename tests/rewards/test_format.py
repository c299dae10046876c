"""The thinking format: literal cases, and an independent reader built on a regular expression."""

import doctest
import importlib
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sgrpo_lightning.rewards import Answers
from sgrpo_lightning.rewards.format import FormatGrader, format_reward

FUZZ = settings(derandomize=True, max_examples=300, deadline=None)


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("<think>a</think>b", 1.0),
        (" \n<think>\na\n</think>\n\nb\n", 1.0),
        ("<think>a</think><answer>b</answer>", 1.0),
        ("<think>a<answer>b</answer></think>c", 1.0),
        ("<think>a < b > c</think>1 < 2", 1.0),
        ("a</think>b", 0.0),  # opened by the prompt: the caller puts the tag in front
        ("b", 0.0),
        ("<think>a", 0.0),
        ("<think>a</think>", 0.0),
        ("<think>a</think> \n", 0.0),
        ("<think></think>b", 0.0),
        ("<think> \n</think>b", 0.0),
        ("So: <think>a</think>b", 0.0),
        ("b<think>a</think>", 0.0),
        ("<think>a</think>b<think>c</think>d", 0.0),
        ("<think>a</think>b</think>c", 0.0),
        ("</think><think>a</think>b", 0.0),
        ("<think>a</think>b<think>", 0.0),
        ("<think><think>a</think>b", 0.0),
        ("<think><think>a</think></think>b", 0.0),
        ("</think>a<think>b", 0.0),
        ("<think>a</think><answer> </answer>", 0.0),
        ("<THINK>a</THINK>b", 0.0),
        ("", 0.0),
        (None, 0.0),
        (b"<think>a</think>b", 0.0),
        (3.0, 0.0),
    ],
)
def test_literal_cases(completion, reward):
    assert format_reward(completion) == reward


@FUZZ
@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "think>", " ", "\n", "x", "\u3000"]), max_size=8).map("".join)
)
@example("<<think>x</think>x")
@example(" <think>x</think>x")
def test_agrees_with_a_regular_expression(completion):
    text = r"(?:(?!</?think>)[\s\S])*"
    filled = rf"(?={text}[^\s<]|{text}<(?!/?think>)){text}"
    assert format_reward(completion) == float(bool(re.fullmatch(rf"\s*<think>{filled}</think>{filled}", completion)))


def test_outcomes():
    texts = ["<think>a</think> b ", "b", "<think>a</think>b<think>c</think>d", "<think>a", None]
    outcomes = FormatGrader()(Answers(texts, golds=[None] * 5))
    assert [(o.reward, o.status, o.answer) for o in outcomes] == [
        (1.0, "ok", "b"),
        (0.0, "wrong", "b"),
        (0.0, "wrong", "d"),
        (0.0, "no_answer", None),
        (0.0, "no_answer", None),
    ]


def test_thinking_that_the_prompt_opens():
    texts = ["a</think>b", "a", "<think>a</think>b", "</think>b", None]
    outcomes = FormatGrader(opened_by_prompt=True)(Answers(texts, golds=[None] * 5))
    assert [(o.reward, o.status) for o in outcomes] == [
        (1.0, "ok"),
        (0.0, "no_answer"),
        (0.0, "wrong"),
        (0.0, "wrong"),
        (0.0, "no_answer"),
    ]


def test_the_examples():
    result = doctest.testmod(importlib.import_module("sgrpo_lightning.rewards.format"))
    assert result.attempted
    assert not result.failed

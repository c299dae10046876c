"""Finding the answer and the response: literal cases, and independent readers built on regular expressions."""

import doctest
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sgrpo_lightning.rewards import read_answer, reading
from sgrpo_lightning.rewards.reading import read_response, with_thinking_open

FUZZ = settings(derandomize=True, max_examples=500, deadline=None)


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("<think>a</think><answer>b</answer>", "b"),
        ("a</think><answer>b</answer>c", "b"),
        ("<answer>b</answer>", "b"),
        ("<think>a</think><answer>b</answer><answer>c</answer>", "c"),
        ("<answer>a</answer><think></think><answer>b</answer>", "b"),
        ("<answer>a<answer>b</answer>c</answer>", "b"),
        ("<answer>a</answer>b</answer>", "a"),
        ("<answer>a</answer><answer>b", "a"),
        ("<answer>\r\n\t b c \n</answer>", "b c"),
        ("<answer>\u00a0b\x1c\x0b</answer>", "\u00a0b\x1c\x0b"),
        ("<answer></answer>", ""),
        ("<think>a<answer>b</answer></think>c", None),
        ("<think>a<answer>b</answer>", None),
        ("<think>a</think><think><answer>b</answer>", None),
        ("<think>a</think><answer>b</answer><think>", None),
        ("<think>a</think><answer>b", None),
        ("<think>a</think>b</answer>", None),
        ("<answer>b</think></answer>", None),
        ("<THINK><answer >b</answer >", None),
        ("", None),
        (None, None),
        (b"<answer>b</answer>", None),
    ],
)
def test_reads(completion, answer):
    assert read_answer(completion) == answer


def test_a_prompt_that_opens_the_thinking_is_put_in_front():
    completion = "I would say <answer>b</answer>"
    assert read_answer(completion) == "b"
    assert read_answer("<think>" + completion) is None


def reference(completion: str) -> str | None:
    """The same rules by backtracking search, which short texts can afford."""
    if re.search(r"<think>(?!.*</think>)", completion, re.S):
        return None
    spoken = re.sub(r".*</think>", "", completion, flags=re.S)
    answers = re.findall(r"<answer>((?:(?!</?answer>).)*)</answer>", spoken, re.S)
    return re.sub(r"\A[ \t\r\n]+|[ \t\r\n]+\Z", "", answers[-1]) if answers else None


PIECES = ["<think>", "</think>", "<answer>", "</answer>", "<", "answer>", "/", " ", "\n", "x", "1+2"]


@FUZZ
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
@example("<<answer>x</answer></answer>")
def test_agrees_with_the_reference_on_any_arrangement_of_tags(completion):
    assert read_answer(completion) == reference(completion)


@FUZZ
@given(st.text(), st.text(), st.text())
def test_a_plain_answer_is_found_in_any_surroundings(thought, answer, trailer):
    clean = [re.sub(r"[<>]", "", text) for text in (thought, answer, trailer)]
    completion = "<think>{}</think><answer>{}</answer>{}".format(*clean)
    assert read_answer(completion) == clean[1].strip(" \t\r\n")


@pytest.mark.parametrize(
    ("completion", "response"),
    [
        ("<think>a</think>b", "b"),
        ("<think>a</think> \n b  c \u3000\n", "b  c"),
        ("a</think>b", "b"),
        ("b", "b"),
        ("a</think>b</think>c", "c"),
        ("<think>a</think>b<answer> c </answer>d", "c"),
        ("<think>a</think><answer>b</answer><answer>\u00a0c</answer>", "c"),
        ("<think><answer>a</answer></think>b", "b"),
        ("<think>a</think>b <answer>c", "b <answer>c"),
        ("<think>a</think>b</answer>", "b</answer>"),
        ("<think>a</think>b<answer> \n</answer>", None),
        ("<think>a</think> \n\u3000", None),
        ("<think>a</think>", None),
        ("<think>a", None),
        ("a<think>b", None),
        ("<think>a</think>b<think>", None),
        ("<think>a</think><think><answer>b</answer>", None),
        ("", None),
        (" ", None),
        (None, None),
        (b"b", None),
        (["b"], None),
    ],
)
def test_the_response(completion, response):
    assert read_response(completion) == response


@FUZZ
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_the_response_is_the_answer_or_else_what_follows_the_thinking(completion):
    thinks_on = re.search(r"<think>(?!.*</think>)", completion, re.S)
    answer = reference(completion)
    expected = re.sub(r".*</think>", "", completion, flags=re.S) if answer is None else answer
    assert read_response(completion) == (None if thinks_on else expected.strip() or None)


@pytest.mark.parametrize(
    "piece", ["<think>", "</think>", "<answer>", "</answer>", "<answer></answer>", "<", "\0", "\ud800"]
)
def test_long_texts(piece):
    """Quadratic time would take minutes."""
    completion = piece * 150_000
    assert read_answer(completion) in (None, "")
    assert read_response(completion) in (None, completion, "</answer>" * 150_000)


def test_a_prompt_that_opens_the_thinking():
    assert with_thinking_open("a</think>b") == "<think>a</think>b"
    assert read_response(with_thinking_open("a")) is None
    assert with_thinking_open(None) is None


def test_the_examples():
    result = doctest.testmod(reading)
    assert result.attempted
    assert not result.failed

"""Finding the boxed answer: literal cases, an independent reader built on recursive expressions, and sizes."""

import doctest

import pytest
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sgrpo_lightning.rewards import math_answer
from sgrpo_lightning.rewards.math_answer import read_math_answer

FUZZ = settings(derandomize=True, max_examples=300, deadline=None)


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        # The commands, and what may stand between them and their brace.
        (r"\boxed{5}", "5"),
        (r"\fbox{5}", "5"),
        (r"\boxed {5}", "5"),
        ("\\boxed\n\t{5}", "5"),
        (r"\\boxed{5}", "5"),
        (r"x = 5 \\\boxed{5}", "5"),
        (r"$$\boxed{ 1, 2 }$$.", "1, 2"),
        # Braces nest, and an escaped one is not one.
        (r"\boxed{\frac{1}{\sqrt{2}}} done}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{x\right.}", r"\left\{x\right."),
        (r"\boxed{1 \\{2}}", r"1 \\{2}"),
        (r"\boxed{a\}", None),
        (r"{ \boxed{5}", "5"),
        (r"}} \boxed{5}", "5"),
        # The last complete one; of nested ones the inner.
        (r"\boxed{1} or \fbox{2}", "2"),
        (r"\fbox{1} or \boxed{2}", "2"),
        (r"\boxed{1} and \boxed{2", "1"),
        (r"\boxed{1} and \boxed{\frac{2}{3}", "1"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{x = \fbox{5} + 1}", "5"),
        (r"\boxed{\boxed{1} + \boxed{2}} ", "2"),
        # An empty box answers nothing.
        (r"\boxed{}", None),
        (r"\boxed{ }", None),
        (r"\boxed{5}, as asked within \boxed{}.", "5"),
        # GSM8K's form.
        ("9 * 2 = 18\n#### 18", "18"),
        ("#### 18\r\nGood.", "18"),
        ("####-1,000.5  \n", "-1,000.5"),
        ("#### $18", "$18"),
        ("#### 18 eggs", None),
        ("#### Explanation", None),
        ("##### 18", None),
        ("so #### 18", None),
        (r"#### \boxed{5}", "5"),
        ("\\boxed{5}\n#### Step 2\n#### Why", "5"),
        ("\\boxed{5}\n#### 6", "6"),
        ("#### 6\n\\boxed{5}", "5"),
        # What is not a box.
        (r"\boxed 5", None),
        (r"\boxed5", None),
        (r"\boxedone{5}", None),
        (r"boxed{5}", None),
        (r"\Boxed{5}", None),
        ("The answer is 18.", None),
        ("<think></think><answer>18</answer>", None),
        # Only after the thinking.
        (r"<think>\boxed{1}</think>\boxed{2}", "2"),
        (r"\boxed{1}</think>", None),
        (r"<think>\boxed{1}", None),
        (r"<think></think>\boxed{1}<think>", None),
        (r"<think></think><think></think><answer>\boxed{1}</answer>", "1"),
        # Anything at all.
        ("", None),
        (None, None),
        (5, None),
        (rb"\boxed{5}", None),
        ("\\boxed{\ud800\x00}", "\ud800\x00"),
    ],
)
def test_reads(completion, answer):
    assert read_math_answer(completion) == answer


BOX = regex.compile(r"\\(?:boxed|fbox)\s*(\{(?:[^{}\\]|\\.|(?1))*+\})", regex.DOTALL)


def reference(text):
    """Try every place where an answer may begin, by itself, and take the last one that is complete."""
    begun = {match.start(1) + 1: match[1][1:-1].strip() for match in BOX.finditer(text, overlapped=True)}
    place = 0
    for line in text.split("\n"):
        word = line[4:].strip(" \t\r")
        plain = word and not regex.search(r"[\s\\{}]", word) and regex.search("[0-9]", word)
        if line.startswith("####") and plain:
            begun[place + line.index(word, 4)] = word
        place += len(line) + 1
    return next((begun[start] for start in sorted(begun, reverse=True) if begun[start]), None)


PIECES = ["\\boxed", "\\fbox", "{", "{", "}", "}", "\\", " ", "\n", "\n#### ", "7", "x", "\\{", "\\}", "#"]


@FUZZ
@given(st.lists(st.sampled_from(PIECES), max_size=16).map("".join))
@example("\\boxed{\\boxed{1}{}}")
@example("\\boxed{a\n#### 7\n}")
def test_agrees_with_the_reference_on_any_arrangement_of_pieces(text):
    assert read_math_answer(text) == reference(text)


@pytest.mark.parametrize(
    ("piece", "answer"),
    [
        (r"\boxed{", None),
        (r"\boxed{1}", "1"),
        (r"\boxed ", None),
        ("\\", None),
        ("{", None),
        ("}", None),
        ("\n#### ", None),
        ("####", None),
        ("\n#### 1x y", None),
        ("</think>", None),
    ],
)
def test_a_megabyte_of_anything_is_read_in_linear_time(piece, answer):
    """Quadratic time would be hours."""
    assert read_math_answer(piece * (2**20 // len(piece))) == answer


def test_a_long_line_and_a_deep_nest_are_read_in_linear_time():
    assert read_math_answer("#### " + "1" * 2**20 + " x") is None
    assert read_math_answer("\\boxed{" * 10**5 + "5" + "}" * 10**5) == "5"


def test_doctests():
    assert doctest.testmod(math_answer) == doctest.TestResults(failed=0, attempted=3)

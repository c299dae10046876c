"""Answers made to break the readers and the rewards of every task: none raises, none earns more than a right one.

`python benchmarks/hostile.py` does the same with 100,000 answers for each task.
"""

import importlib.util
import random
import unicodedata
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgrpo_lightning.rewards import (
    Answers,
    CountdownGrader,
    ExactGrader,
    FormatGrader,
    SimilarityGrader,
    Status,
    read_answer,
    read_response,
)
from sgrpo_lightning.rewards.math_answer import read_math_answer
from sgrpo_lightning.tasks.countdown import Problem

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("hostile", ROOT / "benchmarks" / "hostile.py")
hostile = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(hostile)

TASKS = sorted(path.stem for path in (ROOT / "conf" / "task").glob("*.yaml"))
COUNT = 1500
CHINESE = "\u843d\u82b1\u6d41\u6c34"


def check(outcomes, count):
    assert len(outcomes) == count
    for outcome in outcomes:
        assert 0 <= outcome.reward <= 1
        assert outcome.status in get_args(Status)
        assert outcome.status == "ok" or outcome.reward in (0, 1) or outcome.parts
        assert outcome.answer is None or isinstance(outcome.answer, str)
        assert (outcome.answer is None) == (outcome.status == "no_answer")


def made(task, count, seed=0):
    """`count` things that are asked, each with a hostile answer."""
    rng = random.Random(f"hostile {task} {seed}")
    asked = [rng.choice(hostile.ASKED[task]) for _ in range(count)]
    return asked, [hostile.hostile_answer(rng, one) for one in asked]


def batch(asked, answers):
    return Answers(answers, golds=[one.gold for one in asked], references=[one.reference for one in asked])


def closed(grader):
    getattr(grader, "close", lambda: None)()


def test_every_task_is_attacked():
    assert set(hostile.ASKED) == set(TASKS)


@pytest.mark.parametrize("task", TASKS)
def test_hostile_answers(task):
    grader = hostile.reward_of(task, workers=2, seconds=1.0)
    asked, answers = made(task, COUNT)
    try:
        check(grader(batch(asked, answers)), COUNT)
    finally:
        closed(grader)


@pytest.mark.parametrize("task", TASKS)
def test_the_right_answers_among_them_are_right(task):
    grader = hostile.reward_of(task, workers=1, seconds=20.0)
    asked = hostile.ASKED[task]
    try:
        outcomes = grader(batch(asked, [one.right for one in asked]))
    finally:
        closed(grader)
    # The default similarity reads Chinese as a word for F1, and not at all for ROUGE-L.
    assert [outcome.reward for outcome in outcomes] == [0.6 if one.gold == CHINESE else 1.0 for one in asked]


def test_what_the_generator_makes():
    """Lone surrogates, NUL, marks, bidi, full-width digits, depth, length, all tags, and objects that are no text."""
    _, answers = made("deepmath", 6000)
    texts = [answer for answer in answers if isinstance(answer, str)]
    letters = {letter for text in texts for letter in text[:5000]}
    assert {unicodedata.category(letter) for letter in letters} >= {
        "Cs",
        "Cc",
        "Cf",
        "Cn",
        "Co",
        "Mn",
        "Nd",
        "No",
        "Sm",
    }
    assert {"\0", "\u202e", "\u200f", "\uff17"} <= letters
    assert max(map(len, texts)) > 2**20 - 100
    assert any(rf"\{kind}{{" * 3 in text for kind in ("sqrt", "boxed") for text in texts)
    assert any("(" * 5000 in text for text in texts)
    assert any(text.find("</answer>") < text.find("<answer>") for text in texts if "</answer>" in text)
    assert {type(answer) for answer in answers} >= {str, bytes, int, float, list, dict, type(None), object}
    assert sum(isinstance(answer, str) for answer in answers) < len(answers)
    again = made("deepmath", 6000)[1]
    assert [answer for answer in again if isinstance(answer, str)] == texts


# ---- whatever Hypothesis thinks of ----

FUZZ = settings(derandomize=True, max_examples=300, deadline=None)
PIECES = [
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
    r"\boxed{",
    r"\fbox {",
    "{",
    "}",
    r"\}",
    "\n#### 7\n",
    "7",
    "\\",
]
ANYTHING = st.one_of(
    st.text(st.characters()),
    st.text(st.characters(categories=["Cs", "Cc", "Cf", "Mn", "Nd", "Zs"])),
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(st.characters(), max_size=3)), max_size=20).map("".join),
    st.none() | st.binary() | st.integers() | st.floats() | st.lists(st.text()),
)


@FUZZ
@given(ANYTHING)
def test_readers(completion):
    for read in (read_answer, read_response, read_math_answer):
        found = read(completion)
        assert found is None or (isinstance(found, str) and found in completion and found == found.strip(" \t\r\n"))
    assert read_response(completion) != ""
    assert read_math_answer(completion) != ""


GRADERS = [
    *(CountdownGrader(), ExactGrader(), FormatGrader(), FormatGrader(opened_by_prompt=True)),
    *(SimilarityGrader(), SimilarityGrader(tokenizer="unicode"), SimilarityGrader(opened_by_prompt=True)),
]


@FUZZ
@given(st.lists(ANYTHING, max_size=4), st.text(st.characters(), max_size=20))
def test_graders(completions, reference):
    for grader in GRADERS:
        gold = Problem((1, 2), 3) if isinstance(grader, CountdownGrader) else "7"
        count = len(completions)
        check(grader(Answers(completions, golds=[gold] * count, references=[reference] * count)), count)


@pytest.fixture(scope="module")
def math_grader():
    with hostile.reward_of("gsm8k", workers=1, seconds=5.0) as grader:
        yield grader


@settings(FUZZ, max_examples=40)
@given(st.lists(ANYTHING | st.text(st.characters(), max_size=30).map(r"\boxed{{{}}}".format), max_size=6))
def test_mathematics(math_grader, completions):
    check(math_grader(Answers(completions, golds=["7"] * len(completions))), len(completions))

"""Exact match: literal cases of what counts as the same text, and what does not."""

import doctest
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgrpo_lightning.rewards import Answers, Outcome, exact
from sgrpo_lightning.rewards.exact import ExactGrader, grade_exact

FUZZ = settings(derandomize=True, max_examples=300, deadline=None)


def tagged(text):
    return f"<think>so</think><answer>{text}</answer>"


@pytest.mark.parametrize(
    ("given", "gold"),
    [
        ("Paris", "Paris"),
        ("PARIS", "paris"),
        ("New\n\t York", " New  York "),
        ("new\u00a0york", "New York"),
        ("\uff11\uff12", "12"),
        ("x\u00b2", "x2"),
        ("e\u0301t\u00e9", "\u00e9te\u0301"),
        ("STRASSE", "stra\u00dfe"),
        ("\ufb01ne", "FINE"),
        ("\u0130", "i\u0307"),
        ("\u03aa\u0301", "\u0390"),
        ("\u1e9b\u0323", "\u1e69"),
        ("4", 4),
        ("0.5", 0.5),
        ("(1, 2)", (1, 2)),
    ],
)
def test_the_same_text(given, gold):
    assert grade_exact(tagged(given), answer=gold) == Outcome(1.0, "ok", given)


@pytest.mark.parametrize(
    ("given", "gold"),
    [
        ("Paris.", "Paris"),
        ("4.0", "4"),
        ("NewYork", "New York"),
        ("e", "\u00e9"),
        ("Paris, France", "Paris"),
        ("", "Paris"),
        ("a\u200bb", "ab"),
    ],
)
def test_another_text(given, gold):
    assert grade_exact(tagged(given), answer=gold) == Outcome(0.0, "wrong", given)


@pytest.mark.parametrize("completion", ["Paris", "<think><answer>Paris</answer>", "", None, b"<answer>Paris</answer>"])
def test_no_answer(completion):
    assert grade_exact(completion, answer="Paris") == Outcome(0.0, "no_answer", None)


def test_case_can_count():
    assert grade_exact(tagged("PARIS"), answer="Paris", ignore_case=False).status == "wrong"
    assert grade_exact(tagged("\uff30"), answer="P", ignore_case=False).status == "ok"
    assert grade_exact(tagged(" Pa\u0301ris\n"), answer="P\u00e1ris", ignore_case=False).status == "ok"


@pytest.mark.parametrize("gold", [None, "", " \n", "\u00a0"])
def test_a_gold_answer_without_text_is_a_fault_of_the_data(gold):
    with pytest.raises(ValueError, match="a gold answer must hold text, got"):
        grade_exact(tagged(""), answer=gold)


def test_a_batch_in_order():
    batch = Answers([tagged("a"), tagged("B"), "c"], golds=["a", "b", "c"])
    assert [outcome.status for outcome in ExactGrader()(batch)] == ["ok", "ok", "no_answer"]
    assert [outcome.status for outcome in ExactGrader(ignore_case=False)(batch)] == ["ok", "wrong", "no_answer"]


TEXTS = st.text(st.characters(exclude_characters="<>", exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@FUZZ
@given(TEXTS, st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]))
def test_a_text_equals_itself_in_every_form(text, form):
    assert grade_exact(tagged(unicodedata.normalize(form, text)), answer=text).status == "ok"


def test_doctests():
    failed, tried = doctest.testmod(exact)
    assert (failed, tried > 0) == (0, True)


def test_a_megabyte_of_combining_marks_costs_linear_time():
    """Unicode's normal forms sort runs of marks in quadratic time: without a limit this test would take hours."""
    marks = "a" + "\u0301\u0327" * 500_000
    assert grade_exact(f"<answer>{marks}</answer>", answer="b").status == "wrong"
    assert grade_exact(f"<answer>{marks}</answer>", answer=marks).status == "ok"

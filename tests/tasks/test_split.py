"""Which rows train and which are held out."""

import pytest

from sgrpo_lightning.tasks.rows import Question
from sgrpo_lightning.tasks.split import (
    REPEATED,
    SHARED,
    UNUSABLE,
    Chosen,
    is_held_out,
    question_key,
    split_as_given,
    split_by_question,
)


def placed(*texts):
    return [(place, None if text is None else Question(text, "1")) for place, text in enumerate(texts)]


def test_keys_of_questions_that_read_the_same():
    assert question_key("What  is\n2 + 2?") == question_key(" what is 2 + 2? ")
    assert question_key("ﬁne ①") == question_key("fine 1")  # by Unicode's compatibility forms
    assert question_key("2 + 2?") != question_key("2 + 3?")
    assert question_key("\ud800") != question_key("")


def test_a_split_as_the_data_gives_it():
    """Training rows 1 and 3 ask held-out questions, row 4 nothing; held-out row 2 repeats row 0."""
    split = split_as_given(placed("a", "B ", "c", "d", None, "a"), placed("b", "D", " b", None))
    assert (split.train, split.held_out) == ([0, 2, 5], [0, 1])
    assert split.left_out == {SHARED: 2, UNUSABLE: 2, REPEATED: 1}


def test_a_split_by_hash_has_no_question_on_both_sides():
    texts = [f"question {n % 400}" for n in range(1000)]
    split = split_by_question(placed(*texts), fraction=0.25, seed=0)
    train, held_out = ({texts[place] for place in places} for places in (split.train, split.held_out))
    assert train & held_out == set()
    assert len(train | held_out) == 400
    assert len(split.held_out) == len(held_out)  # one row of each
    assert split.left_out == {REPEATED: 1000 - len(split.train) - len(split.held_out)}
    assert all(texts.index(texts[place]) == place for place in split.held_out)  # the first
    # Binomial(400, 0.25): within 5 standard deviations of 100, false alarms 6e-7.
    assert abs(len(held_out) - 100) < 5 * (400 * 0.25 * 0.75) ** 0.5


def test_the_side_of_a_question_depends_on_itself_and_the_seed_alone():
    keys = [question_key(str(n)) for n in range(200)]
    sides = [is_held_out(key, fraction=0.5, seed=0) for key in keys]
    assert sides[:100] == [is_held_out(key, fraction=0.5, seed=0) for key in keys[:100]]
    assert sides != [is_held_out(key, fraction=0.5, seed=1) for key in keys]
    larger = [is_held_out(key, fraction=0.6, seed=0) for key in keys]
    assert all(large or not small for small, large in zip(sides, larger, strict=True))
    assert sides[:8] == GOLDEN


GOLDEN = [True, True, False, True, False, False, False, True]


def test_reading_ends_when_there_are_enough():
    read = []

    def rows():
        for place, question in placed(*map(str, range(1000))):
            read.append(place)
            yield place, question

    split = split_by_question(rows(), fraction=0.5, seed=0, enough=lambda s: len(s.train) >= 5 and len(s.held_out) >= 5)
    assert min(len(split.train), len(split.held_out)) == 5
    assert len(read) == len(split.train) + len(split.held_out) < 30


def test_chosen_items_are_made_when_asked_for():
    made = []
    items = Chosen("abcdef", [4, 0, 2], lambda letter: made.append(letter) or letter.upper())
    assert (len(items), made) == (3, [])
    assert (items[1], items[-1], made) == ("A", "C", ["a", "c"])
    assert list(items[1:]) == ["A", "C"]
    assert len(items[::2]) == 2
    assert list(Chosen(items, [2, 2])) == ["C", "C"]
    with pytest.raises(IndexError):
        items[3]
    assert not Chosen("abc", [])

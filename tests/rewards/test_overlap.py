"""Word overlap against rouge-score, torchmetrics' SQuAD, loops and arithmetic by hand."""

import doctest
import importlib
import itertools
import re
import string
import unicodedata
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from torchmetrics.functional.text import squad

from sgrpo_lightning.rewards.overlap import rouge_l, squad_f1

FUZZ = settings(derandomize=True, max_examples=300, deadline=None)
PAIRS = [
    (
        "The council approved the ordinance, which raises the minimum wage to $15.50 by 2026; it passed 7-2.",
        "An ordinance raising the minimum wage to $15.50 passed by a vote of seven to two (7-2) in the council.",
    ),
    ("Two roads diverged in a yellow wood", "A yellow wood, and two roads that diverged!"),
    ("the the the cat", "the cat the"),
    ("don't stop\u2014\u201cthe end\u201d", "dont stop the end"),
    ("a\u2019b an\u00a0the\u2003x", "b x a"),
    ("a\u2019b the\u2014end", "\u2019b \u2014end"),
    ("It\u2019s a na\u00efve Caf\u00e9", "its naive cafe"),
    ("\u212a \u0130stanbul Ma\u00dfe", "k i\u0307stanbul masse"),
    ("x\x00y a\x1cb\x85c\x7fd", "x y a b c d"),
]
WORDS = st.sampled_from(
    ["the", "a", "an", "cat", "Cat", "sat", "mat", "x1", "\u732b", "\u00e9", "don't", "a\u2019s", "_a_"]
)
NATURAL = st.lists(st.tuples(WORDS, st.sampled_from([" ", ", ", "-", "\n", "", "\u00a0"])), max_size=25).map(
    lambda pairs: "".join(itertools.chain.from_iterable(pairs))
)
TEXTS = NATURAL | st.text(max_size=40)


def rouge_score(prediction, reference):
    return RougeScorer(["rougeL"]).score(reference, prediction)["rougeL"].fmeasure


def squad_script(prediction, reference):
    """The rules of the SQuAD v1.1 script, one character and one word at a time."""

    def words(text):
        kept = "".join(letter for letter in text.lower() if letter not in string.punctuation)
        return re.sub(r"\b(a|an|the)\b", " ", kept).split()

    given, expected = words(prediction), words(reference)
    common = sum(min(given.count(word), expected.count(word)) for word in set(given))
    if not common:
        return 0.0
    precision, recall = common / len(given), common / len(expected)
    return 2 * precision * recall / (precision + recall)


@pytest.mark.parametrize(
    ("prediction", "reference", "f1", "rouge"),
    [
        ("The cat sat on a mat.", "On the mat sat the cat!", 1.0, 2 * 2 / 12),  # F1 without articles; LCS "the cat"
        ("cat sat", "a cat sat down", 2 * 2 / 5, 2 * 2 / 6),
        ("cat cat cat", "cat", 2 * 1 / 4, 2 * 1 / 4),
        ("x y x y", "x x x y", 2 * 3 / 8, 2 * 3 / 8),
        ("w x y z", "x z w y", 1.0, 2 * 2 / 8),
        ("don't", "dont", 1.0, 0.0),  # one word for F1; don, t for ROUGE-L
        ("don't", "don t", 0.0, 1.0),
        ("the", "the", 0.0, 1.0),  # nothing but an article
        ("dog", "cat", 0.0, 0.0),
        ("running", "run", 0.0, 0.0),  # no stemming
        ("", "", 0.0, 0.0),
        ("", "cat", 0.0, 0.0),
        ("cat", "", 0.0, 0.0),
        ("?!", "?!", 0.0, 0.0),
        ("...", "cat", 0.0, 0.0),
        (" \n", " \n", 0.0, 0.0),
    ],
)
@pytest.mark.parametrize("tokenizer", ["rouge", "unicode"])
def test_by_hand(prediction, reference, f1, rouge, tokenizer):
    assert squad_f1(prediction, reference, tokenizer=tokenizer) == pytest.approx(f1, abs=1e-15)
    assert rouge_l(prediction, reference, tokenizer=tokenizer) == pytest.approx(rouge, abs=1e-15)


@pytest.mark.parametrize(
    ("prediction", "reference", "f1", "rouge"),
    [
        ("落花人独立", "落花人独立", 1.0, 1.0),
        ("东京塔很高", "东京塔不高", 2 * 4 / 10, 2 * 4 / 10),
        ("你好\uff0c世界\uff01", "你好世界", 1.0, 1.0),
        ("花落", "落花", 1.0, 2 * 1 / 4),
        ("中a文", "中 A 文", 1.0, 1.0),
        ("さくら咲く", "さくら", 2 * 3 / 8, 2 * 3 / 8),
        ("か\u3099", "が", 1.0, 1.0),
        ("ｶﾞ \uff26\uff55\uff4c\uff4c", "ガ full", 1.0, 1.0),
        ("ภาษาไทย", "ไทย", 2 * 3 / 10, 2 * 3 / 10),
        ("\u0e01\u0e34", "\u0e01", 0.0, 0.0),  # a mark goes with its letter
        ("ລາວ ខ្មែរ မြန်မာ", "ວ រ မာ", 2 * 3 / 12, 2 * 3 / 12),  # 3 characters each
        ("हिन्दी भाषा", "हिन्दी", 2 * 1 / 3, 2 * 1 / 3),
        ("Привет, мир", "ПРИВЕТ МИР", 1.0, 1.0),
        ("cafe\u0301", "caf\u00e9", 1.0, 1.0),
        ("\u1eb9\u0302", "\u00ea\u0323", 1.0, 1.0),
        ("Straße \u0390", "STRASSE \u03aa\u0301", 1.0, 1.0),
        ("x²", "x2", 1.0, 1.0),
        ("\U0001d400\U0001d41a", "aa", 1.0, 1.0),  # bold letters of mathematics
        ("the 猫", "猫", 1.0, 2 * 1 / 3),
        ("An é", "é a", 1.0, 2 * 1 / 4),
        ("don\u2019t\u20ac", "dont", 1.0, 0.0),
        ("don\u2019t", "don't", 1.0, 1.0),
        ("\U0001f600 \u2014", "\U0001f600 \u2014", 0.0, 0.0),
        ("\u00e9_\u00e9", "\u00e9 \u00e9", 0.0, 1.0),
    ],
)
def test_other_scripts_by_hand(prediction, reference, f1, rouge):
    assert squad_f1(prediction, reference, tokenizer="unicode") == pytest.approx(f1, abs=1e-15)
    assert rouge_l(prediction, reference, tokenizer="unicode") == pytest.approx(rouge, abs=1e-15)


def test_texts_without_ascii_have_no_words_for_rouge_score():
    poem = "落花人独立"
    assert rouge_l(poem, poem) == rouge_score(poem, poem) == 0.0
    assert squad_f1(poem, poem) == squad_script(poem, poem) == 1.0


@pytest.mark.parametrize(("prediction", "reference"), PAIRS)
def test_published_scripts_on_natural_texts(prediction, reference):
    for one, other in [(prediction, reference), (reference, prediction), (prediction, prediction)]:
        assert rouge_l(one, other) == pytest.approx(rouge_score(one, other), abs=1e-12)
        predicted, target = {"prediction_text": one, "id": "0"}, {"answers": {"text": [other]}, "id": "0"}
        assert squad_f1(one, other) == pytest.approx(squad(predicted, target)["f1"].item() / 100, abs=1e-6)
        assert squad_f1(one, other) == pytest.approx(squad_script(one, other), abs=1e-12)


@FUZZ
@given(TEXTS, TEXTS)
@example("\ud800a", "a")
@example("A\x00b", "a b")
def test_published_scripts_on_any_texts(one, other):
    assert rouge_l(one, other) == pytest.approx(rouge_score(one, other), abs=1e-12)
    assert squad_f1(one, other) == pytest.approx(squad_script(one, other), abs=1e-12)


def unicode_words(text):
    """By category and name of each character; of marks only those of scripts with spaces."""
    words, joins = [], False
    for letter in unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()):
        spaced = not unicodedata.name(letter, "").startswith(("CJK", "HIRAGANA", "KATAKANA LETTER", "THAI", "LAO"))
        if unicodedata.category(letter)[0] not in "LNM":
            joins = False
        elif spaced and joins:
            words[-1] += letter
        else:
            words.append(letter)
            joins = spaced
    return words


def unicode_squad_words(text):
    text = unicodedata.normalize("NFKC", text)  # in which \u00bd has a sign of its own
    kept = "".join(letter for letter in text if unicodedata.category(letter)[0] not in "PS")
    return [word for word in unicode_words(kept) if word not in ("a", "an", "the")]


def overlap_by_loops(one, other):
    """(size of the common multiset, length of the longest common subsequence)."""
    row = [0] * (len(other) + 1)
    for word in one:
        diagonal = 0
        for j, rival in enumerate(other, 1):
            diagonal, row[j] = row[j], diagonal + 1 if word == rival else max(row[j], row[j - 1])
    return sum((Counter(one) & Counter(other)).values()), row[-1]


LETTERS = st.sampled_from(
    [*"aAtThHeEnNéÉßΣςкД猫д落かガไทยลາ७हÅ½²1_-—\u2019$€, \n\u00ad😀", "e\u0301", "ﬁ", "日", "the ", "an "]
)
MIXED = st.lists(LETTERS, max_size=30).map("".join)


@FUZZ
@given(MIXED, MIXED)
@example("the é", "an é a")
@example("a\u2019nd é", "and é")
def test_other_scripts_against_loops(one, other):
    for measure, words_of, which in ((squad_f1, unicode_squad_words, 0), (rouge_l, unicode_words, 1)):
        words, others = words_of(one), words_of(other)
        common = overlap_by_loops(words, others)[which]
        expected = 2 * common / (len(words) + len(others)) if common else 0
        assert measure(one, other, tokenizer="unicode") == pytest.approx(expected, abs=1e-12)


@FUZZ
@given(st.text(string.printable, max_size=60))
@example("don't")
@example("the x_y")
def test_a_letter_beyond_ascii_changes_no_other_word(text):
    """ASCII texts take a short cut, and may meet texts that do not."""
    for measure, words in ((squad_f1, unicode_squad_words(text)), (rouge_l, unicode_words(text))):
        n = len(words)
        assert measure(f"{text} 猫", text, tokenizer="unicode") == 2 * n / (2 * n + 1)


@pytest.mark.parametrize("measure", [squad_f1, rouge_l])
@pytest.mark.parametrize("tokenizer", ["rouge", "unicode"])
@settings(FUZZ, max_examples=100)
@given(one=TEXTS | MIXED, other=TEXTS | MIXED)
def test_properties(measure, tokenizer, one, other):
    value = measure(one, other, tokenizer=tokenizer)
    assert 0 <= value <= 1
    assert value == measure(other, one, tokenizer=tokenizer)
    assert measure(one, one, tokenizer=tokenizer) in (0.0, 1.0)


@pytest.mark.parametrize("measure", [squad_f1, rouge_l])
@pytest.mark.parametrize("tokenizer", ["rouge", "unicode"])
@pytest.mark.parametrize(
    "piece",
    [
        "a b ",
        "the ",
        "x",
        "\0",
        "\ud800",
        "落花",
        "\u0301\u0323",
        "\uff9e\u0301\uff9f\u0323",
        "\u0344\u0323",
        "é-",
        "<think>",
    ],
)
def test_long_texts(measure, tokenizer, piece):
    """Quadratic time would take minutes."""
    text = piece * (100_000 // len(piece))
    assert measure(text, "a b the x", tokenizer=tokenizer) < 1e-2
    assert measure(f"a b{text}", f"a b{text}", tokenizer=tokenizer) == 1.0


def test_at_most_30_marks_in_a_row_are_kept():
    marks = "\u0323\u0301" * 20
    assert rouge_l(f"x{marks}", f"x{marks[:30]}", tokenizer="unicode") == 1.0
    assert rouge_l(f"x{marks}", f"x{marks[:29]}", tokenizer="unicode") == 0.0


def test_more_words_than_code_points():
    reference = " ".join(map(str, range(1_200_000)))
    assert rouge_l("5 1114117 1199999 7", reference) == 2 * 3 / (4 + 1_200_000)


def test_a_wrong_tokenizer():
    for measure in (squad_f1, rouge_l):
        with pytest.raises(ValueError, match="tokenizer must be one of rouge, unicode, got 'zh'"):
            measure("a", "a", tokenizer="zh")


def test_the_examples():
    result = doctest.testmod(importlib.import_module("sgrpo_lightning.rewards.overlap"))
    assert result.attempted
    assert not result.failed

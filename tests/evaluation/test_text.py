"""ROUGE and BLEU of held-out texts, against rouge-score, loops and arithmetic by hand; on one rank and two."""

import doctest
import itertools
import math
from collections import Counter
from pathlib import Path

import pytest
from rouge_score.rouge_scorer import RougeScorer
from text_two_ranks import BATCHES, accumulated

from sgrpo_lightning.evaluation import text
from sgrpo_lightning.evaluation.text import ROUGE, TextOverlap

RESPONSES = [
    "The council approved the ordinance , which raises the minimum wage by 2026 .",
    "Two roads diverged in a yellow wood",
    "",
    "Running the runners ran",
    "Snow falls on the old pond and the frog",
]
REFERENCES = [
    "An ordinance , which raises the minimum wage to fifteen dollars by 2026 , passed the council .",
    "In a yellow wood two roads diverged",
    "Nobody said a word",
    "The runner runs",
    "the frog jumps into the old pond and the snow falls",
]


def bleu(responses, references):
    """Papineni's, of texts whose words blanks part: the geometric mean of clipped n-gram precisions, and brevity."""
    log_precision = 0.0
    pairs = [(one.split(), other.split()) for one, other in zip(responses, references, strict=True)]
    for n in range(1, 5):
        hits = total = 0
        for one, other in pairs:
            found, wanted = (Counter(zip(*(words[i:] for i in range(n)), strict=False)) for words in (one, other))
            hits, total = hits + (found & wanted).total(), total + found.total()
        log_precision += math.log(hits / total) / 4
    length, wanted_length = (sum(map(len, words)) for words in zip(*pairs, strict=True))
    return math.exp(log_precision + min(0, 1 - wanted_length / length))


def expected(responses, references):
    scorer = RougeScorer(ROUGE)
    scores = [scorer.score(other, one) for one, other in zip(responses, references, strict=True)]
    means = {name: sum(score[name].fmeasure for score in scores) / len(scores) for name in ROUGE}
    return {**means, "bleu": bleu(responses, references)}


@pytest.mark.parametrize("cuts", [[], [1], [2, 2, 4], [1, 2, 3, 4]])
def test_against_rouge_score_and_a_loop(cuts):
    edges = [0, *cuts, len(RESPONSES)]
    batches = [(RESPONSES[i:j], REFERENCES[i:j]) for i, j in itertools.pairwise(edges)]
    values = accumulated(batches)
    assert values == pytest.approx(expected(RESPONSES, REFERENCES), rel=1e-5)
    assert list(values) == ["rouge1", "rouge2", "rougeL", "bleu"]


def test_bleu_knows_case_and_punctuation():
    """13a parts the stop from its word: 4 of 5, 3 of 4, 2 of 3 and 1 of 2 n-grams are found."""
    values = accumulated([(["The cat sat down."], ["the cat sat down."])])
    assert values["bleu"] == pytest.approx((4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25, rel=1e-5)
    assert values["rouge1"] == values["rouge2"] == values["rougeL"] == 1


def test_short_responses_are_held_against_bleu():
    values = accumulated([(["a b c d"], ["a b c d e f g h"])])
    assert values["bleu"] == pytest.approx(math.exp(1 - 8 / 4), rel=1e-5)
    assert values["rougeL"] == pytest.approx(2 * 4 / 12)


def test_nothing_said_counts_as_the_empty_text():
    said = (["the cat sat on the mat", None], ["the cat sat on the mat", "snow"])
    values = accumulated([said])
    assert values == accumulated([(["the cat sat on the mat", ""], said[1])])
    assert values["rougeL"] == 0.5
    assert values["bleu"] == pytest.approx(math.exp(1 - 7 / 6), rel=1e-5)


def test_no_four_words_in_common():
    assert accumulated([(["the cat sat"], ["the cat sat"])])["bleu"] == 0


def test_no_text_at_all():
    values = accumulated([([], [])])
    assert math.isnan(values["rouge1"])
    assert values["bleu"] == 0


@pytest.mark.parametrize("hostile", ["\0", "\ud800", "&lt;<skipped>", "1,2.3-4", "落花", "\n\n"])
def test_any_text(hostile):
    values = accumulated([([hostile], ["snow falls"])])
    assert all(0 <= value <= 1 for value in values.values())


def test_lengths_that_differ():
    with pytest.raises(ValueError, match="as many references as responses, got 2 and 1"):
        TextOverlap().update(["a"], ["a", "b"])


def test_computing_does_not_end_the_accumulation():
    overlap = TextOverlap()
    overlap.update(RESPONSES[:2], REFERENCES[:2])
    overlap.compute()
    overlap.update(RESPONSES[2:], tuple(REFERENCES[2:]))
    assert overlap.compute() == pytest.approx(expected(RESPONSES, REFERENCES), rel=1e-5)


def test_two_ranks(on_two_ranks):
    """A rank may have other numbers of texts than the other, or none."""
    results = on_two_ranks(Path(__file__).parent / "text_two_ranks.py")
    alone = accumulated(BATCHES)
    assert 0 < alone["bleu"] < alone["rougeL"] < 1
    assert results["one"] == pytest.approx(alone, rel=1e-5)
    assert results["both"] == pytest.approx(alone, rel=1e-5)
    assert math.isnan(results["none"]["rougeL"])
    assert results["none"]["bleu"] == 0


def test_the_example():
    result = doctest.testmod(text)
    assert result.attempted
    assert not result.failed

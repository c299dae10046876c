"""pass@k and majority vote against enumeration and hand counts."""

import doctest
from itertools import combinations
from math import comb

import numpy as np
import pytest
import torch

from sgrpo_lightning.metrics import answers, majority_vote, pass_at_k, sampling_error


@pytest.mark.parametrize("n", range(1, 8))
def test_equals_the_enumeration_of_all_draws(n):
    for c in range(n + 1):
        for k in range(1, n + 1):
            draws = list(combinations([True] * c + [False] * (n - c), k))
            assert pass_at_k(c, n, k=k) == pytest.approx(sum(map(any, draws)) / len(draws), abs=1e-15)


def test_sampling_error_is_that_of_the_answers_of_each_question():
    """n answers to each of N questions: the variances of the N means, from their samples, over N squared."""
    answered = np.random.default_rng(0).random((7, 5)) < np.linspace(0, 1, 7)[:, None]
    expected = np.sqrt((answered.var(axis=1, ddof=1) / 5).sum()) / 7
    counts = answered.sum(axis=1)
    first, second = (pass_at_k(counts, 5, k=k).mean() for k in (1, 2))
    assert sampling_error(first, second, samples=35) == pytest.approx(expected, rel=1e-12)
    assert sampling_error(0.3, 0.3, samples=9) == 0.0
    assert sampling_error(0.3, 0.3 - 1e-17, samples=9) == 0.0
    with pytest.raises(ValueError, match="samples must be >= 1, got 0"):
        sampling_error(0.3, 0.4, samples=0)


@pytest.mark.parametrize(("c", "n", "k"), [(3, 1000, 500), (1, 100_000, 10), (40, 2048, 1024), (7, 10_000, 9_000)])
def test_large_counts_against_integer_arithmetic(c, n, k):
    failure = comb(n - c, k) / comb(n, k)  # exact integers, one division
    assert pass_at_k(c, n, k=k) == pytest.approx(1 - failure, rel=1e-11)


def test_by_hand():
    assert pass_at_k(1, 4, k=2) == 0.5  # 1 - 3/6
    assert pass_at_k(3, 8, k=1) == 0.375
    assert pass_at_k(0, 8, k=8) == 0.0
    assert pass_at_k(1, 8, k=8) == 1.0
    assert pass_at_k(5, 8, k=4) == 1.0  # only 3 failures: 4 draws cannot miss


def test_is_unbiased():
    # averaged over c ~ Binomial(n, p) it must be 1 - (1 - p)^k
    n, k, p = 9, 4, 0.23
    mean = sum(comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(c, n, k=k) for c in range(n + 1))
    assert mean == pytest.approx(1 - (1 - p) ** k, rel=1e-12)


def test_kinds_of_input():
    assert isinstance(pass_at_k(1, 4, k=2), float)
    array = pass_at_k(np.array([0, 1, 4]), 4, k=2)
    assert isinstance(array, np.ndarray)
    assert array.tolist() == [0.0, 0.5, 1.0]
    tensor = pass_at_k(torch.tensor([[0], [1]]), torch.tensor([2, 4]), k=2)
    assert isinstance(tensor, torch.Tensor)
    assert tensor.tolist() == [[0.0, 0.0], [1.0, 0.5]]


@pytest.mark.parametrize(
    ("correct", "total", "k", "message"),
    [
        (1, 4, 5, "k must not exceed total, got k = 5 with total = 4"),
        (np.array([1, 1]), np.array([8, 3]), 4, "got k = 4 with total = 3"),
        (5, 4, 1, "correct must not exceed total, got 5 correct"),
        (-1, 4, 1, "correct must be >= 0, got -1"),
        (1, 4, 0, "k must be >= 1, got 0"),
        (0, -2, 1, "k must not exceed total, got k = 1 with total = -2"),
    ],
)
def test_rejects_impossible_counts(correct, total, k, message):
    with pytest.raises(ValueError, match=message):
        pass_at_k(correct, total, k=k)


@pytest.mark.parametrize(
    ("given", "correct", "expected"),
    [
        (["a", "b", "a"], [1, 0, 1], 1.0),
        (["a", "b", "b"], [1, 0, 0], 0.0),
        (["a", "b"], [1, 0], 0.5),  # tie
        (["a", "b", "c", "c", "b"], [1, 1, 0, 0, 1], 0.5),  # b and c tie, a is behind
        ([None, None, "a"], [0, 0, 1], 1.0),  # None never votes
        ([None, None], [0, 0], 0.0),
        ([], [], 0.0),
        ([(1, 2), (1, 2), 3], [0.5, 1.0, 0.0], 0.75),  # graded in two ways
        ([0, 0, False, ""], [1, 1, 1, 0], 1.0),  # falsy answers are answers
    ],
)
def test_majority_vote_by_hand(given, correct, expected):
    assert majority_vote(given, correct) == expected


def test_majority_vote_needs_a_grade_per_answer():
    with pytest.raises(ValueError, match="shorter"):
        majority_vote(["a", "b"], [True])


def test_docstring_examples():
    failed, tried = doctest.testmod(answers)
    assert failed == 0
    assert tried > 0

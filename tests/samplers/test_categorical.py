"""Counts of sampled labels: their law, exactly and by chi-square tests, each with a false-alarm rate of 1e-6."""

import doctest
from collections import Counter
from fractions import Fraction
from itertools import accumulate, product
from math import factorial, prod

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, norm

from sgrpo_lightning.samplers import categorical
from sgrpo_lightning.samplers.categorical import label_counts

FALSE_ALARM = 1e-6
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))]
PROBS = [0.0, 0.02, 0.4, 0.0, 0.08, 0.499, 0.001, 0.0]


def seeded(seed, device="cpu"):
    return torch.Generator(device).manual_seed(seed)


def drawn(probs, *, samples, rows=1, seed=0, device="cpu"):
    """Counts [rows, C] of as many rows with the same probabilities."""
    probs = torch.as_tensor(probs, device=device).expand(rows, -1)
    return label_counts(probs, samples=samples, generator=seeded(seed, device)).cpu()


@pytest.fixture(params=[None, 4096, 1], ids=["whole", "parts", "one draw at a time"])
def scratch(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(categorical, "SCRATCH", request.param)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("samples", [1, 7, 60])
def test_labels_come_as_often_as_their_probability_says(samples, device, scratch):
    counts = drawn(PROBS, samples=samples, rows=2000, device=device)
    totals, possible = counts.double().sum(0).numpy(), np.array(PROBS) > 0
    assert (totals[~possible] == 0).all()
    assert chisquare(totals[possible], 2000 * samples * np.array(PROBS)[possible]).pvalue > FALSE_ALARM


@pytest.mark.parametrize("device", DEVICES)
def test_counts_are_multinomial(device, scratch):
    """All 15 ways to count 4 draws of 3 labels; draws that are not independent would spread too little or too much."""
    probs, samples, rows = [0.2, 0.5, 0.3], 4, 20_000
    seen = Counter(map(tuple, drawn(probs, samples=samples, rows=rows, device=device).int().tolist()))
    outcomes = [n for n in product(range(samples + 1), repeat=3) if sum(n) == samples]
    expected = [factorial(samples) * prod(p**k / factorial(k) for p, k in zip(probs, n, strict=True)) for n in outcomes]
    assert chisquare([seen[n] for n in outcomes], rows * np.array(expected)).pvalue > FALSE_ALARM


@pytest.mark.parametrize("device", DEVICES)
def test_rows_are_independent(device, scratch):
    """Neighbours on the line of arrivals: each pair of rows with two draws of two labels, a 3 x 3 table."""
    pairs = drawn([0.5, 0.5], samples=2, rows=20_000, seed=1, device=device)[:, 0].int().view(-1, 2).tolist()
    seen, law = Counter(map(tuple, pairs)), {0: 0.25, 1: 0.5, 2: 0.25}
    outcomes = list(product(law, repeat=2))
    expected = [len(pairs) * law[a] * law[b] for a, b in outcomes]
    assert chisquare([seen[outcome] for outcome in outcomes], expected).pvalue > FALSE_ALARM


@pytest.mark.parametrize("samples", [16, 4096])
def test_a_thousand_labels(samples):
    """The totals, with labels expected less than 10 times as one; and pairs of equal labels, whose rate is sum p^2."""
    probs, rows = (2 * torch.randn(1000, generator=seeded(3))).softmax(-1), 400
    counts = drawn(probs, samples=samples, rows=rows, seed=4).double()
    assert (counts.sum(1) == samples).all()
    law = probs.double() / probs.double().sum()
    totals, expected, rare = counts.sum(0), rows * samples * law, rows * samples * law < 10
    seen, expected = ([*x[~rare].tolist(), x[rare].sum().item()] for x in (totals, expected))
    assert chisquare(seen, expected).pvalue > FALSE_ALARM
    pairs = (counts * (counts - 1)).sum(1) / (samples * (samples - 1)) - law.square().sum()
    assert abs(pairs.mean()) < norm.isf(FALSE_ALARM / 2) * pairs.std() / rows**0.5


def test_rare_labels_keep_their_share():
    """1,000 labels of 1e-6 are 1e-3 together: 4e6 draws bring 4,000 of them, each label a Poisson count of mean 4."""
    probs = torch.full((1001,), 1e-6)
    probs[500] = 0.999
    rare = np.delete(drawn(probs, samples=40_000, rows=100, seed=5).double().sum(0).numpy(), 500)
    bound = norm.isf(FALSE_ALARM / 4)
    assert abs(rare.sum() - 4000) < bound * 4000**0.5
    spread = ((rare - 4) ** 2 / 4).sum()  # the square of a Poisson count has mean 1 and variance 2 + 1/4 here
    assert abs(spread - 1000) < bound * 2250**0.5


def awkward_rows():
    generator, rows = seeded(6), []
    for row in range(300):
        p = torch.rand(40, generator=generator) ** (row % 30)
        p *= torch.rand(40, generator=generator) < 0.1 + 0.9 * (row % 3 > 0)  # many zeros, at both ends too
        p[row % 40] += 1e-3
        rows.append(p / p.sum() * (1 + 1e-6 * (row % 3 - 1)))  # sums of 0.999999 and 1.000001
    return torch.stack([*rows, *torch.eye(40)])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_no_draw_is_lost_and_none_goes_to_an_impossible_label(dtype, device, scratch):
    probs = awkward_rows().to(dtype)
    for samples in (1, 3, 50):
        counts = label_counts(probs.to(device), samples=samples, generator=seeded(samples, device)).cpu()
        assert counts.dtype == torch.float32
        assert (counts == counts.round()).all()
        assert (counts >= 0).all()
        assert (counts.sum(1) == samples).all()
        assert (counts[probs == 0] == 0).all()


def test_edges_are_cumulative_probabilities():
    """In rational arithmetic, to within 40 roundings; 2 from the last label on whose probability is above 2^-53."""
    probs = awkward_rows()
    for row, edges in zip(probs.double().tolist(), categorical._edges(probs).tolist(), strict=True):
        sums = list(accumulate(map(Fraction, row)))
        last = max(c for c, p in enumerate(row) if p > 2**-53)
        assert edges[last:] == [2] * (40 - last)
        assert all(abs(edge - float(s / sums[-1])) < 1e-14 for edge, s in zip(edges[:last], sums, strict=False))
        steps = np.diff(edges[:last], prepend=0)
        assert (steps[np.array(row[:last]) < 1e-16] == 0).all()
        assert (steps[np.array(row[:last]) > 2e-16] > 0).all()


def test_draws_are_counted_as_a_slow_loop_would(monkeypatch):
    """Given arrivals: row 0 has draws at 1/8, 2/8 and 7/8 of its line, row 1 at 1/4, 1/4 and 3/4."""
    times = torch.tensor([0, 1, 2, 7, 8, 9, 9, 11, 12], dtype=torch.float64)
    monkeypatch.setattr(categorical, "_arrivals", lambda count, *_: times if count == 8 else None)
    edges = torch.tensor([[0.0, 0.125, 0.24, 0.9, 2.0], [0.2, 0.25, 0.5, 0.99, 2.0]], dtype=torch.float64)
    below = categorical._draws_below(edges, 3, seeded(0))
    assert below.tolist() == [[0, 1, 1, 3, 3], [0, 2, 2, 3, 3]]


def test_both_ways_to_find_the_last_arrival_agree():
    times = categorical._arrivals(5000, torch.device("cpu"), seeded(7))
    points = torch.cat([times[:-1], torch.rand(5000, generator=seeded(8)).double().mul(times[-1]).sort().values])
    points = torch.cat([points, times[1:] * (1 + 1e-9), torch.zeros(7), times[-1:] * 2, times[-1:] * 1e9])[None]
    expected = torch.searchsorted(times, points, right=True) - 1
    assert torch.equal(categorical._last_arrival(times, points), expected.double())


def test_arrivals_are_those_of_a_poisson_process():
    """Exponential gaps: 20 cells of equal probability, and neighbours without correlation."""
    gaps = categorical._arrivals(50_000, torch.device("cpu"), seeded(9)).diff()
    cells = torch.bincount((-torch.expm1(-gaps) * 20).long(), minlength=20)
    assert chisquare(cells.numpy()).pvalue > FALSE_ALARM
    products = (gaps[1:] - 1) * (gaps[:-1] - 1)  # mean 0, variance 1
    assert abs(products.sum()) < norm.isf(FALSE_ALARM / 2) * 50_000**0.5


@pytest.mark.parametrize("device", DEVICES)
def test_the_generator_decides_everything(device):
    probs, before = torch.rand(8, 100, generator=seeded(10)).softmax(-1).to(device), torch.get_rng_state()
    numpy_before = np.random.get_state()[1].tolist()  # noqa: NPY002
    generator = seeded(11, device)
    first, second = (label_counts(probs, samples=50, generator=generator) for _ in range(2))
    again = label_counts(probs, samples=50, generator=seeded(11, device))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, label_counts(probs, samples=50, generator=seeded(12, device)))
    assert torch.equal(torch.get_rng_state(), before)
    assert np.random.get_state()[1].tolist() == numpy_before  # noqa: NPY002


def test_random_numbers_alive_at_once_are_bounded(monkeypatch):
    asked, arrivals = [], categorical._arrivals
    monkeypatch.setattr(categorical, "SCRATCH", 1000)
    monkeypatch.setattr(categorical, "_arrivals", lambda count, *rest: asked.append(count) or arrivals(count, *rest))
    label_counts(torch.full((10, 4), 0.25), samples=1234, generator=seeded(0))
    assert sum(asked) == 12_340 + 10 * len(asked)
    assert max(asked) <= 1000 + 10


def test_gradients_do_not_pass():
    assert not label_counts(torch.full((1, 2), 0.5, requires_grad=True), samples=3, generator=seeded(0)).requires_grad


def test_rows_without_a_number_do_not_disturb_the_others():
    probs = torch.full((3, 5), 0.2)
    probs[1, 2] = torch.nan
    counts = label_counts(probs, samples=9, generator=seeded(0))
    assert counts[1].isnan().any()
    assert (counts[[0, 2]].sum(1) == 9).all()


def test_bounds_of_the_arguments():
    assert label_counts(torch.zeros(0, 5), samples=3, generator=seeded(0)).shape == (0, 5)
    assert drawn([1.0], samples=3).tolist() == [[3.0]]
    with pytest.raises(ValueError, match="samples must be >= 1, got 0"):
        drawn([1.0], samples=0)


def test_docstring_example():
    assert doctest.testmod(categorical) == (0, 1)

"""Closed-form weights and the softmax objective, against 50-digit arithmetic and their limits."""

import functools
import warnings

import numpy as np
import pytest
import torch
from mpmath import mp, mpf
from numpy.testing import assert_allclose
from scipy.special import roots_legendre

from sgrpo_lightning.geometry import (
    grpo_mean_field_weight,
    maxrl_weight,
    ml_weight,
    reinforce_weight,
    softmax_grpo_mean_field_weight,
    softmax_grpo_objective,
    softmax_grpo_weight,
)

RATES = [0.0, 1e-12, 1e-3, 0.01, 0.3, 0.5, 0.9, 0.99, 1 - 1e-6, 1.0]
TAUS = [0.02, 0.1, 0.3, 1.0, 1e6]


@pytest.fixture(autouse=True)
def fifty_digits():
    """Set mpmath's precision and turn every numerical warning into a failure."""
    with mp.workdps(50), warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@functools.cache
def exact_gaps(M: int, tau: float) -> list[mpf]:
    """Delta_s as M (w1 - w0), the undivided form above Eq. 4."""
    c = mp.exp(1 / mpf(tau))
    return [M * (c / (M + (s + 1) * (c - 1)) - 1 / (M + s * (c - 1))) for s in range(M)]


def exact_pmf(n: int, p: float) -> list[mpf]:
    """Binomial probabilities by the ratio of neighbours."""
    q = 1 - mpf(p)
    if q == 0:
        return [mpf(0)] * n + [mpf(1)]
    terms = [q**n]
    for s in range(n):
        terms.append(terms[-1] * (n - s) * mpf(p) / ((s + 1) * q))
    return terms


def exact_weight(p: float, tau: float, M: int) -> float:
    """Eq. 15, term by term."""
    return float(mp.fdot(exact_gaps(M, tau), exact_pmf(M - 1, p)))


def exact_objective(p: float, tau: float, M: int) -> float:
    """Eq. 16, with I_p(s + 1, M - s) as the binomial tail P(K >= s + 1)."""
    tail, total = mpf(0), mpf(0)
    pmf, gaps = exact_pmf(M, p), exact_gaps(M, tau)
    for s in reversed(range(M)):
        tail += pmf[s + 1]
        total += gaps[s] * tail
    return float(total / M)


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("M", [1, 2, 8, 64, 1024])
def test_weight_and_objective_match_fifty_digits(M, tau):
    rates = RATES if M < 1024 else RATES[1::2]
    weights = [exact_weight(p, tau, M) for p in rates]
    objectives = [exact_objective(p, tau, M) for p in rates]
    assert_allclose(softmax_grpo_weight(np.array(rates), tau=tau, M=M), weights, rtol=1e-11, atol=0)
    assert_allclose(softmax_grpo_objective(np.array(rates), tau=tau, M=M), objectives, rtol=1e-11, atol=0)


def test_largest_group_matches_fifty_digits():
    assert_allclose(softmax_grpo_weight(0.003, tau=0.05, M=4096), exact_weight(0.003, 0.05, 4096), rtol=1e-10)
    assert_allclose(softmax_grpo_objective(0.003, tau=0.05, M=4096), exact_objective(0.003, 0.05, 4096), rtol=1e-10)


@pytest.mark.parametrize(
    ("M", "tau", "values"),
    [
        (8, 0.1, [6.79103568226, 1.9841285855, 1.01004798187]),
        (16, 0.3, [8.93169287085, 1.84333865329, 0.971357298813]),
    ],
)
def test_weight_reference_values(M, tau, values):
    assert_allclose(softmax_grpo_weight(np.array([0.01, 0.5, 0.99]), tau=tau, M=M), values, rtol=1e-11)


def test_objective_reference_values_and_incomplete_beta():
    rates = [0.01, 0.5, 0.99]
    values = softmax_grpo_objective(np.array(rates), tau=0.3, M=8)
    assert_allclose(values, [0.0533157531475, 1.57876415936, 2.21844242997], rtol=1e-11)
    gaps = exact_gaps(8, 0.3)
    literal = [sum(gaps[s] * mp.betainc(s + 1, 8 - s, 0, p, regularized=True) for s in range(8)) / 8 for p in rates]
    assert_allclose(values, np.array(literal, dtype=float), rtol=1e-13)


def test_pairs_weigh_all_prompts_alike():
    # M = 2: Delta_0 = 2c/(1+c) - 1 and Delta_1 = 1 - 2/(1+c), both (c-1)/(c+1) = tanh(1/(2 tau))
    assert_allclose(softmax_grpo_weight(np.array(RATES), tau=0.7, M=2), np.tanh(1 / 1.4), rtol=1e-14)


@pytest.mark.parametrize("M", [2, 8, 64, 1024])
def test_objective_is_the_integral_of_the_weight(M):
    nodes, weights = roots_legendre(M // 2 + 1)  # exact up to degree M + 1, and omega has degree M - 1
    for p in (0.01, 0.4, 1.0):
        integral = p / 2 * weights @ softmax_grpo_weight(p / 2 * (nodes + 1), tau=0.1, M=M)
        assert_allclose(softmax_grpo_objective(p, tau=0.1, M=M), integral, rtol=1e-11)


def test_weight_is_the_derivative_of_the_objective():
    p, step = np.linspace(0.05, 0.95, 10), 1e-3
    h = [softmax_grpo_objective(p + k * step, tau=0.3, M=8) for k in (-2, -1, 1, 2)]
    slope = (h[0] - 8 * h[1] + 8 * h[2] - h[3]) / (12 * step)  # five points: error O(step^4)
    assert_allclose(softmax_grpo_weight(p, tau=0.3, M=8), slope, rtol=1e-8)


@pytest.mark.parametrize(("p", "tau"), [(0.05, 0.3), (0.3, 0.3), (0.9, 1.0)])
def test_mean_field_is_reached_as_one_over_m(p, tau):
    errors = [softmax_grpo_weight(p, tau=tau, M=M) - softmax_grpo_mean_field_weight(p, tau=tau) for M in (1024, 2048)]
    assert abs(errors[0]) < 0.1
    assert_allclose(errors[1] / errors[0], 0.5, rtol=0.02)  # the next order in 1/M is left out


@pytest.mark.parametrize("M", [2, 3, 8, 100, 1024])
@pytest.mark.parametrize("tau", [0.02, 0.001, 1e-9])
def test_low_temperature_is_maxrl(M, tau):
    # the relative distance is of order M e^{-1/tau}: 2e-19 at M = 1024 and tau = 0.02
    weights = softmax_grpo_weight(np.array(RATES), tau=tau, M=M)
    assert_allclose(weights, maxrl_weight(np.array(RATES), T=M - 1), rtol=1e-11)


@pytest.mark.parametrize("tau", [0.02, 0.1, 1.0, 50.0])
@pytest.mark.parametrize("M", [1, 2, 8, 1024])
def test_end_values(M, tau):
    c = mp.exp(1 / mpf(tau))
    assert_allclose(softmax_grpo_weight(1.0, tau=tau, M=M), float(1 - M / (1 + (M - 1) * c)), rtol=1e-12)
    at_zero = M * c / (M + c - 1) - 1  # Delta_0: one success among M, minus the zero of a group without any
    assert_allclose(softmax_grpo_weight(0.0, tau=tau, M=M), float(at_zero), rtol=1e-12, atol=1e-40)
    assert softmax_grpo_objective(0.0, tau=tau, M=M) == 0


def test_high_temperature_is_reinforce():
    weights = softmax_grpo_weight(np.array(RATES), tau=1e6, M=8)
    assert_allclose(1e6 * weights, 7 / 8, rtol=1e-5)  # (M-1)/M, off by O(1/tau)
    assert softmax_grpo_weight(0.3, tau=np.inf, M=8) == 0


def test_mean_field_weight_matches_fifty_digits():
    for tau in TAUS:
        c = mp.exp(1 / mpf(tau))
        exact = [float((c - 1) / (1 - mpf(p) + mpf(p) * c)) for p in RATES]
        assert_allclose(softmax_grpo_mean_field_weight(np.array(RATES), tau=tau), exact, rtol=1e-13)


def test_mean_field_weight_beyond_float64():
    # e^1000 has no float64, but 1 / p is all that is left of the formula at p > 0
    assert_allclose(softmax_grpo_mean_field_weight(np.array([0.0, 0.25, 1.0]), tau=0.001), [np.inf, 4, 1])


def test_textbook_weights():
    assert reinforce_weight(np.array([0.0, 1.0])).tolist() == [1, 1]
    assert ml_weight(np.array([0.0, 0.25, 1.0])).tolist() == [np.inf, 4, 1]
    # sqrt(0.2 * 0.8) = 0.4
    assert_allclose(grpo_mean_field_weight(np.array([0.0, 0.2, 0.8, 1.0])), [np.inf, 2.5, 2.5, np.inf])
    # (1 - 0.5^3) / 0.5
    assert maxrl_weight(0.5, T=3) == 1.75


@pytest.mark.parametrize("T", [1, 7, 1023, 10**6])
def test_maxrl_keeps_its_digits_at_both_ends(T):
    exact = [float((1 - (1 - mpf(p)) ** T) / mpf(p)) for p in RATES[1:]]
    assert_allclose(maxrl_weight(np.array(RATES[1:]), T=T), exact, rtol=1e-13)
    assert maxrl_weight(0.0, T=T) == T


def test_broadcasting_over_every_argument():
    p, tau, M = np.array([0.2, 0.7])[:, None, None], np.array([0.1, 1.0])[:, None], np.array([2, 8, 9])
    table = softmax_grpo_weight(p, tau=tau, M=M)
    assert table.shape == (2, 2, 3)
    assert_allclose(table[1, 0, 2], softmax_grpo_weight(0.7, tau=0.1, M=9), rtol=1e-15)
    assert_allclose(table[0, 1, 0], np.tanh(0.5), rtol=1e-14)  # M = 2, as above
    assert softmax_grpo_objective(p, tau=tau, M=M).shape == (2, 2, 3)


def test_long_grids_are_cut_into_blocks_without_a_seam():
    p = np.linspace(0, 1, 1500)
    whole = softmax_grpo_weight(p, tau=0.1, M=4096)
    assert_allclose(whole[::100], softmax_grpo_weight(p[::100], tau=0.1, M=4096), rtol=1e-15)


def test_containers():
    assert type(softmax_grpo_weight(0.5, tau=0.1, M=8)) is float
    assert type(ml_weight(np.float64(0.5))) is float
    assert softmax_grpo_weight(np.array([0.5]), tau=0.1, M=8).dtype == np.float64
    tensor = softmax_grpo_weight(0.5, tau=torch.tensor([0.1], dtype=torch.bfloat16, requires_grad=True), M=8)
    assert tensor.dtype == torch.float64
    assert not tensor.requires_grad
    assert maxrl_weight(0.5, T=torch.tensor([3])).tolist() == [1.75]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: softmax_grpo_weight(1.2, tau=0.1, M=8), r"p must lie in \[0, 1\], got 1.2"),
        (lambda: ml_weight(np.array([0.1, -0.5])), r"p must lie in \[0, 1\], got -0.5"),
        (lambda: reinforce_weight(float("nan")), r"p must lie in \[0, 1\], got nan"),
        (lambda: grpo_mean_field_weight(torch.tensor([2.0])), r"p must lie in \[0, 1\], got 2.0"),
        (lambda: softmax_grpo_weight(0.5, tau=-0.1, M=8), "tau must be > 0, got -0.1"),
        (lambda: softmax_grpo_objective(0.5, tau=0.0, M=8), "tau must be > 0, got 0.0"),
        (lambda: softmax_grpo_mean_field_weight(0.5, tau=float("nan")), "tau must be > 0, got nan"),
        (lambda: softmax_grpo_weight(0.5, tau=0.1, M=0), "M must be an integer >= 1, got 0"),
        (lambda: softmax_grpo_objective(0.5, tau=0.1, M=8.5), "M must be an integer >= 1, got 8.5"),
        (lambda: softmax_grpo_weight(0.5, tau=0.1, M=float("inf")), "M must be an integer >= 1, got inf"),
        (lambda: maxrl_weight(0.5, T=0), "T must be an integer >= 1, got 0"),
    ],
)
def test_errors_name_the_value(call, message):
    with pytest.raises(ValueError, match=message):
        call()

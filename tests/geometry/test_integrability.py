"""The one-form of a head on the simplex of reward levels, its partial derivatives and its curl."""

import functools
import itertools

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from sgrpo_lightning.geometry import curl, log_mgf, one_form, one_form_jacobian, population_weight

TAU = 0.3
LEVELS = TAU * np.log([1.0, 2.0, 4.0])
PROBS = np.array([0.2, 0.5, 0.3])


def softmax_head(rewards, *, tau=TAU):
    return rewards.shape[-1] * torch.softmax(rewards / tau, dim=-1) - 1


def centred_head(rewards):
    return rewards - rewards.mean(dim=-1, keepdim=True)


def leave_one_out_head(rewards):
    M = rewards.shape[-1]
    return rewards - (rewards.sum(dim=-1, keepdim=True) - rewards) / (M - 1)


def zscore_head(rewards):
    return centred_head(rewards) / (rewards.std(dim=-1, correction=0, keepdim=True) + 1e-6)


def maxrl_head(rewards):
    return centred_head(rewards) / rewards.mean(dim=-1, keepdim=True)


def best_of_two_head(rewards):
    """Twice the mean over partners of max(own, partner): unbiased for the gradient of E[max of 2]."""
    M = rewards.shape[-1]
    best = torch.maximum(rewards[..., :, None], rewards[..., None, :])
    return 2 * (best.sum(dim=-1) - rewards) / (M - 1)


def squared_head(rewards):
    return rewards**2 - rewards.mean(dim=-1, keepdim=True)


def slow_one_form(head, levels, probs, M):
    """F_i from all K^M outcomes; `probs` may be complex, for derivatives by a complex step."""
    K = len(levels)
    means = np.zeros(K, dtype=complex)
    for outcome in itertools.product(range(K), repeat=M):
        own, others = outcome[0], outcome[1:]
        likelihood = np.prod([probs[other] for other in others])
        rewards = torch.tensor([levels[k] for k in outcome], dtype=torch.float64)
        means[own] += likelihood * head(rewards)[0].item()
    return means[:-1] - means[-1]


def slow_jacobian(head, levels, probs, M):
    columns = []
    for j in range(len(levels) - 1):
        shifted = np.array(probs, dtype=complex)
        shifted[j] += 1e-30j
        shifted[-1] -= 1e-30j  # the last probability is what the others leave
        columns.append(slow_one_form(head, levels, shifted, M).imag / 1e-30)
    return np.stack(columns, axis=-1)


def test_the_counterexample_of_eq_8():
    jacobian = one_form_jacobian(softmax_head, LEVELS, PROBS, M=2)
    assert_allclose(jacobian, [[0, -1 / 15], [1 / 15, 0]], atol=1e-15)
    assert_allclose(curl(softmax_head, LEVELS, PROBS, M=2), [[0, -2 / 15], [2 / 15, 0]], atol=1e-15)
    # m1 - m3 = -p2/15 - 3/5 and m2 - m3 = p1/15 - 1/3, at p = (0.2, 0.5, 0.3)
    assert_allclose(one_form(softmax_head, LEVELS, PROBS, M=2), [-0.5 / 15 - 0.6, 0.2 / 15 - 1 / 3], rtol=1e-14)


@pytest.mark.parametrize("probs", [PROBS, [1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])
@pytest.mark.parametrize("head", [softmax_head, zscore_head, best_of_two_head])
@pytest.mark.parametrize("M", [2, 3, 5])
def test_against_all_outcomes(head, M, probs):
    levels = [0.1, 0.4, 1.0]
    assert_allclose(
        one_form(head, levels, probs, M=M), slow_one_form(head, levels, probs, M).real, rtol=1e-12, atol=1e-14
    )
    expected = slow_jacobian(head, levels, probs, M)
    assert_allclose(one_form_jacobian(head, levels, probs, M=M), expected, rtol=1e-12, atol=1e-13)


def test_four_levels_against_all_outcomes():
    levels = torch.tensor([0.0, 0.2, 0.7, 1.0], dtype=torch.float64)
    probs = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    expected = slow_jacobian(softmax_head, levels, probs.numpy(), 4)
    found = curl(softmax_head, levels, probs, M=4)
    assert found.dtype == torch.float64
    assert_allclose(found, expected - expected.T, rtol=1e-12, atol=1e-14)
    assert_allclose(found, -found.T)
    assert (found.abs() > 1e-3).sum() == 6


@pytest.mark.parametrize("head", [centred_head, leave_one_out_head, best_of_two_head, squared_head])
@pytest.mark.parametrize("M", [2, 3, 16])
def test_conservative_heads(head, M):
    assert_allclose(curl(head, [0.1, 0.4, 1.0], PROBS, M=M), np.zeros((2, 2)), atol=1e-13)


@pytest.mark.parametrize("head", [softmax_head, zscore_head, maxrl_head])
@pytest.mark.parametrize("M", [2, 3, 16])
def test_non_conservative_heads(head, M):
    assert abs(curl(head, [0.1, 0.4, 1.0], PROBS, M=M)[0, 1]) > 1e-3


@pytest.mark.parametrize("head", [softmax_head, zscore_head])
def test_two_levels_have_nothing_to_fail(head):
    assert curl(head, [0.0, 1.0], [0.3, 0.7], M=8).tolist() == [[0.0]]
    # the coordinate is the failure rate, so the form is -omega
    assert_allclose(one_form(head, [0.0, 1.0], [0.3, 0.7], M=8), -population_weight(head, 0.7, M=8), rtol=1e-13)


def test_two_levels_in_disguise():
    # levels 1 and 2 pay the same, so only p_1 + p_2 matters and the form is closed again
    assert_allclose(curl(softmax_head, [0.0, 0.0, 1.0], PROBS, M=6), np.zeros((2, 2)), atol=1e-14)


def test_degenerate_sizes():
    assert curl(softmax_head, LEVELS, PROBS, M=1).tolist() == [[0, 0], [0, 0]]
    assert one_form(centred_head, LEVELS, PROBS, M=1).tolist() == [0, 0]
    assert curl(softmax_head, [0.5], [1.0], M=4).shape == (0, 0)


def test_large_groups_follow_the_log_mgf():
    """Eq. 7: F_i - d log Z / d p_i shrinks like 1/M, and so does the curl."""
    t = np.exp(LEVELS / TAU)
    gradient = (t[:-1] - t[-1]) / (PROBS @ t)
    move = 1e-5 * np.array([1, 0, -1])
    values = [log_mgf(LEVELS, PROBS + sign * move, tau=TAU) for sign in (1, -1)]
    assert_allclose((values[0] - values[1]) / 2e-5, gradient[0], rtol=1e-8)
    errors = [one_form(softmax_head, LEVELS, PROBS, M=M) - gradient for M in (32, 64)]
    assert np.abs(errors[1]).max() < 0.02
    assert_allclose(errors[1] / errors[0], 0.5, rtol=0.05)  # the next order in 1/M is left out
    curls = [curl(softmax_head, LEVELS, PROBS, M=M)[0, 1] for M in (24, 48)]
    assert_allclose(curls[1] / curls[0], 0.5, rtol=0.1)  # likewise


def test_high_temperature_is_conservative():
    """Eq. 18: tau A -> r - mean, to first order in 1/tau, so tau times the curl vanishes."""
    rewards = torch.tensor([0.0, 0.25, 1.0, 0.5], dtype=torch.float64)
    for tau in (1e2, 1e4):
        gap = tau * softmax_head(rewards, tau=tau) - centred_head(rewards)
        assert gap.abs().max() < 1 / tau
        head = functools.partial(softmax_head, tau=tau)
        assert abs(tau * curl(head, [0.0, 0.5, 1.0], PROBS, M=4)[0, 1]) < 1 / tau


@pytest.mark.parametrize(
    ("levels", "probs", "M", "message"),
    [
        ([0, 1, 2], [0.5, 0.5], 4, r"levels must be \[K\] and probs \[..., K\], got \[3\] and \[2\]"),
        ([0, np.nan], [0.5, 0.5], 4, "levels must be finite, got nan"),
        ([0, 1], [0.5, 0.6], 4, "probs must sum to 1, got 1.1"),
        ([0, 1], [0.5, 0.5], 0, "M must be an integer >= 1, got 0"),
        ([0, 1], [0.5, 0.5], 2.5, "M must be an integer >= 1, got 2.5"),
        (
            np.arange(10) / 9,
            np.full(10, 0.1),
            64,
            "at most 67,108,864 enumerated advantages, got M = 64 and K = 10",
        ),
    ],
)
def test_errors_name_the_value(levels, probs, M, message):
    with pytest.raises(ValueError, match=message):
        curl(softmax_head, levels, probs, M=M)


def test_position_dependent_heads_are_refused():
    with pytest.raises(ValueError, match="permutation-equivariant"):
        curl(lambda r: r * torch.arange(r.shape[-1]), LEVELS, PROBS, M=4)

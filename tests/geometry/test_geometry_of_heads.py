"""What the packaged heads optimise, by exact enumeration."""

import functools

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sgrpo_lightning import heads
from sgrpo_lightning.geometry import (
    curl,
    maxrl_weight,
    population_objective,
    population_weight,
    softmax_grpo_objective,
    softmax_grpo_weight,
)

RATES = np.array([0.0, 1e-3, 0.01, 0.3, 0.5, 0.9, 0.99, 1.0])
LEVELS, PROBS = np.array([0.1, 0.4, 1.0]), np.array([0.2, 0.5, 0.3])


@pytest.mark.parametrize(("tau", "M"), [(0.1, 8), (0.3, 16), (0.02, 128)])
def test_softmax_grpo(tau, M):
    head = functools.partial(heads.softmax_grpo_advantages, tau=tau)
    assert_allclose(population_weight(head, RATES, M=M), softmax_grpo_weight(RATES, tau=tau, M=M), rtol=1e-12)
    objective = softmax_grpo_objective(RATES, tau=tau, M=M)
    assert_allclose(population_objective(head, RATES, M=M), objective, rtol=1e-12)


def test_grpo_reference_values():
    head = functools.partial(heads.grpo_advantages, ddof=0, eps=0.0)
    values = population_weight(head, np.array([0.001, 0.01, 0.5, 0.9]), M=8)
    assert_allclose(values, [2.64200732911, 2.60886224352, 1.85565594961, 2.32768905211], rtol=1e-11)


def test_maxrl_truncates_the_likelihood_at_m_minus_one():
    assert_allclose(population_weight(heads.maxrl_advantages, RATES, M=8), maxrl_weight(RATES, T=7), rtol=1e-12)


def test_linear_heads_weigh_all_prompts_alike():
    assert_allclose(population_weight(heads.reinforce_advantages, RATES, M=8), 7 / 8, rtol=1e-12)
    assert_allclose(population_weight(heads.dr_grpo_advantages, RATES, M=8), 7 / 8, rtol=1e-12)
    assert_allclose(population_weight(heads.rloo_advantages, RATES, M=8), 1, rtol=1e-12)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_pass_at_k(k):
    head = functools.partial(heads.pass_at_k_advantages, k=k)
    assert_allclose(population_weight(head, RATES, M=8), k * (1 - RATES) ** (k - 1), rtol=1e-12, atol=1e-14)
    assert_allclose(population_objective(head, RATES, M=8), 1 - (1 - RATES) ** k, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("head", [heads.reinforce_advantages, heads.rloo_advantages, heads.dr_grpo_advantages])
def test_conservative_heads(head):
    assert_allclose(curl(head, LEVELS, PROBS, M=6), np.zeros((2, 2)), atol=1e-13)


@pytest.mark.parametrize(
    "head",
    [
        heads.grpo_advantages,
        heads.maxrl_advantages,
        functools.partial(heads.softmax_grpo_advantages, tau=0.3),
        functools.partial(heads.adaptive_softmax_grpo_advantages, ess_fraction=0.5),
    ],
)
def test_non_conservative_heads(head):
    assert abs(curl(head, LEVELS, PROBS, M=6)[0, 1]) > 1e-3


def test_the_counterexample_of_eq_8():
    head = functools.partial(heads.softmax_grpo_advantages, tau=0.3)
    assert_allclose(curl(head, 0.3 * np.log([1, 2, 4]), PROBS, M=2), [[0, -2 / 15], [2 / 15, 0]], atol=1e-14)

"""The weight and objective of any head, from the head itself."""

import functools
import itertools

import numpy as np
import pytest
import torch
from mpmath import mp, mpf
from numpy.testing import assert_allclose
from scipy.special import betainc, roots_legendre

from sgrpo_lightning.geometry import (
    binary_advantages,
    grpo_mean_field_weight,
    maxrl_weight,
    mean_absolute_advantage,
    population,
    population_objective,
    population_weight,
    softmax_grpo_objective,
    softmax_grpo_weight,
    success_gaps,
)

RATES = np.array([0.0, 1e-3, 0.01, 0.3, 0.5, 0.9, 0.99, 1.0])


def softmax_head(rewards, *, tau):
    return rewards.shape[-1] * torch.softmax(rewards / tau, dim=-1) - 1


def centred_head(rewards):
    return rewards - rewards.mean(dim=-1, keepdim=True)


def zscore_head(rewards):
    spread = rewards.std(dim=-1, correction=0, keepdim=True)
    return torch.where(spread > 0, centred_head(rewards) / spread, 0.0)


def maxrl_head(rewards):
    mean = rewards.mean(dim=-1, keepdim=True)
    return torch.where(mean > 0, (rewards - mean) / mean, 0.0)


@pytest.mark.parametrize("tau", [0.02, 0.1, 1.0])
@pytest.mark.parametrize("M", [1, 2, 8, 257])
def test_softmax_head_gives_its_closed_form(M, tau):
    head = functools.partial(softmax_head, tau=tau)
    assert_allclose(population_weight(head, RATES, M=M), softmax_grpo_weight(RATES, tau=tau, M=M), rtol=1e-12)
    objective = softmax_grpo_objective(RATES, tau=tau, M=M)
    assert_allclose(population_objective(head, RATES, M=M), objective, rtol=1e-12)


def test_grpo_reference_values():
    values = population_weight(zscore_head, np.array([0.001, 0.01, 0.5, 0.9]), M=8)
    assert_allclose(values, [2.64200732911, 2.60886224352, 1.85565594961, 2.32768905211], rtol=1e-11)


def test_grpo_end_value_by_hand():
    # p -> 0, M = 8: one success has z = (7/8) / sqrt(7/64) = sqrt(7); the flat group of failures has 0
    assert_allclose(population_weight(zscore_head, np.array([0.0, 1.0]), M=8), np.sqrt(7), rtol=1e-14)


def test_grpo_matches_fifty_digits_at_large_m():
    M, p = 1024, 0.01
    with mp.workdps(50):
        total, pmf = mpf(0), (1 - mpf(p)) ** (M - 1)
        for s in range(M):
            k = s + 1  # z of a success among k is sqrt((M-k)/k); of a failure beside s, -sqrt(s/(M-s))
            total += pmf * (mp.sqrt(mpf(M - k) / k) + mp.sqrt(mpf(s) / (M - s)))
            pmf *= mpf(M - 1 - s) / (s + 1) * mpf(p) / (1 - mpf(p))
    assert_allclose(population_weight(zscore_head, p, M=M), float(total), rtol=1e-10)


def test_grpo_tends_to_its_mean_field():
    p = np.array([0.1, 0.5, 0.8])
    errors = [population_weight(zscore_head, p, M=M) - grpo_mean_field_weight(p) for M in (512, 1024)]
    assert_allclose(errors[1] / errors[0], 0.5, rtol=0.05)  # O(1/M); the next order is left out


def test_linear_heads_weigh_all_prompts_alike():
    # success among s others: 1 - (s+1)/M; failure: -s/M; the gap is 1 - 1/M whatever s
    assert_allclose(population_weight(centred_head, RATES, M=8), 7 / 8, rtol=1e-14)
    assert_allclose(population_objective(centred_head, RATES, M=8), 7 / 8 * RATES, rtol=1e-14)


def test_maxrl_head_is_the_truncated_likelihood():
    assert_allclose(population_weight(maxrl_head, RATES, M=16), maxrl_weight(RATES, T=15), rtol=1e-13)


@pytest.mark.parametrize("head", [functools.partial(softmax_head, tau=0.3), zscore_head, maxrl_head])
def test_enumeration_of_all_outcomes(head):
    """E[(1/M) sum A_i d/dp log pi(z_i)] over the 2^M outcomes of a Bernoulli(p) policy is omega itself."""
    M, p = 5, 0.3
    outcomes = torch.tensor(list(itertools.product([0.0, 1.0], repeat=M)), dtype=torch.float64)
    likelihood = (outcomes * p + (1 - outcomes) * (1 - p)).prod(dim=-1)
    score = outcomes / p - (1 - outcomes) / (1 - p)
    update = likelihood @ (head(outcomes) * score).mean(dim=-1)
    assert_allclose(population_weight(head, p, M=M), update.item(), rtol=1e-13)


@pytest.mark.parametrize("head", [functools.partial(softmax_head, tau=0.05), zscore_head])
def test_objective_is_eq_16_and_the_integral_of_the_weight(head):
    M, p = 32, np.array([0.02, 0.3, 0.97, 1.0])
    groups = torch.ones(M + 1, M, dtype=torch.float64).tril(-1)  # row k: k successes, first
    A = head(groups).numpy()
    literal = sum((A[s + 1, 0] - A[s, -1]) * betainc(s + 1, M - s, p) for s in range(M)) / M
    assert_allclose(population_objective(head, p, M=M), literal, rtol=1e-12)
    nodes, weights = roots_legendre(M)
    grid = p[:, None] / 2 * (nodes + 1)
    assert_allclose(population_objective(head, p, M=M), p / 2 * (population_weight(head, grid, M=M) @ weights))


def test_one_call_per_group_size():
    calls = []

    def head(rewards):
        calls.append(tuple(rewards.shape))
        assert rewards.dtype == torch.float64
        assert sorted(rewards.sum(dim=-1).tolist()) == list(range(len(rewards)))
        return centred_head(rewards)

    table = population_weight(head, RATES[:, None], M=torch.tensor([2, 4, 4]))
    assert_allclose(table, np.broadcast_to([0.5, 0.75, 0.75], (8, 3)), rtol=1e-14)
    assert sorted(calls) == [(3, 2), (5, 4)]
    calls.clear()
    assert_allclose(population_weight(head, np.linspace(0, 1, 9000), M=512), 511 / 512, rtol=1e-11)  # two blocks
    assert calls == [(513, 512)]


def test_any_callable_will_do():
    class Head(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

        def forward(self, rewards):
            return self.scale * centred_head(rewards)

    result = population_weight(Head(), torch.tensor(0.5), M=4)
    assert result.dtype == torch.float64
    assert_allclose(result, 1.5)
    assert type(population_weight(lambda r: r, 0.5, M=4)) is float


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_that_work_in_low_precision_are_served(dtype):
    M = 64
    weight = population_weight(lambda r: softmax_head(r.to(dtype), tau=0.3), 0.4, M=M)
    assert_allclose(weight, softmax_grpo_weight(0.4, tau=0.3, M=M), rtol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rounding_that_depends_on_the_position_is_forgiven(dtype):
    def head(rewards):
        ripple = 4 * torch.finfo(dtype).eps * torch.linspace(-1, 1, rewards.shape[-1], dtype=dtype)
        return centred_head(rewards.to(dtype)) * (1 + ripple)

    assert_allclose(population_weight(head, 0.5, M=16), 15 / 16, rtol=1e-6)


@pytest.mark.parametrize(
    "head",
    [
        lambda r: r * torch.arange(r.shape[-1]),
        lambda r: centred_head(r).cumsum(dim=-1),
        lambda r: centred_head(r).sort(dim=-1).values,
        lambda r: centred_head(r).sort(dim=-1, descending=True).values,
        lambda r: centred_head(r).roll(1, dims=-1),
        lambda r: centred_head(r) + 1e-6 * torch.arange(r.shape[-1]),
    ],
)
@pytest.mark.parametrize("M", [3, 4, 5, 64])
def test_position_dependent_heads_are_refused(head, M):
    with pytest.raises(ValueError, match=r"<lambda> must be permutation-equivariant .*, got .* for reward"):
        population_weight(head, 0.5, M=M)
    with pytest.raises(ValueError, match="permutation-equivariant"):
        population_objective(head, 0.5, M=M)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (lambda r: r.mean(dim=-1), r"rewards \[5, 4\] to advantages of that shape, got \[5\]"),
        (lambda r: None, "got NoneType"),
        (
            lambda r: centred_head(r) / r.std(dim=-1, keepdim=True),
            r"finite advantages, got nan .* \[0, 0, 0, 0\]",
        ),
    ],
)
def test_broken_heads_are_refused(head, message):
    with pytest.raises(ValueError, match=message):
        population_weight(head, 0.5, M=4)


def test_out_of_range_arguments_are_refused():
    with pytest.raises(ValueError, match=r"p must lie in \[0, 1\], got 1.5"):
        population_weight(centred_head, 1.5, M=4)
    with pytest.raises(ValueError, match=r"M must be an integer >= 1, got 2\.5"):
        population_objective(centred_head, 0.5, M=2.5)


def test_noise_moves_the_weight_by_at_most_delta_over_tau():
    """Eq. 25, exactly: the noisy head averages over all 2^M sign patterns of noise +-delta."""
    M, tau, p = 4, 0.2, np.linspace(0, 1, 11)
    signs = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=M)), dtype=torch.float64)

    def shift(delta, pattern):
        def noisy(rewards):
            return softmax_head(rewards[:, None, :] + delta * pattern, tau=tau).mean(dim=1)

        return np.abs(population_weight(noisy, p, M=M) - softmax_grpo_weight(p, tau=tau, M=M)).max()

    deltas = np.array([0.02, 0.01, 0.005])
    symmetric = np.array([shift(delta, signs) for delta in deltas])
    assert (symmetric <= (np.exp(2 * deltas / tau) - 1) * M).all()
    # zero-mean noise: the first order cancels, so halving delta quarters the shift
    assert_allclose(symmetric[:-1] / symmetric[1:], 4, rtol=0.05)


@pytest.mark.parametrize("M", [1, 2, 7])
def test_advantages_by_the_number_of_successes(M):
    """A group of k right and M - k wrong samples in any other order gives them too."""
    head = functools.partial(softmax_head, tau=0.3)
    success, failure = binary_advantages(head, M=M)
    assert success.dtype == failure.dtype == np.float64
    assert success.shape == failure.shape == (M + 1,)
    for k in range(M + 1):
        advantages = head(torch.tensor([0.0] * (M - k) + [1.0] * k, dtype=torch.float64))
        assert_allclose(success[k], advantages[-1] if k else 0, rtol=1e-14)
        assert_allclose(failure[k], advantages[0] if k < M else 0, rtol=1e-14)


def test_advantages_that_no_group_has_are_zero():
    success, failure = binary_advantages(lambda rewards: 2 * rewards - 0.5, M=3)
    assert (success.tolist(), failure.tolist()) == ([0, 1.5, 1.5, 1.5], [-0.5, -0.5, -0.5, 0])


@pytest.mark.parametrize("block", [200, 500])
def test_large_groups_come_in_parts(block, monkeypatch):
    """Of rewards that are bounded, whose rounding is judged as if they came together: here the advantages of the
    easiest groups are 1e-12 of those of the hardest."""
    M, sizes = 30, []

    def head(rewards):
        sizes.append(rewards.numel())
        ripple = 1e-12 * torch.linspace(-1, 1, M, dtype=torch.float64)
        return centred_head(rewards) * 10.0 ** (-0.4 * rewards.sum(-1, keepdim=True)) + ripple

    whole = binary_advantages(head, M=M)
    assert sizes == [(M + 1) * M]
    monkeypatch.setattr(population, "BLOCK_REWARDS", block)
    assert_allclose(binary_advantages(head, M=M), whole, rtol=1e-14)
    assert sum(sizes[1:]) == (M + 1) * M
    assert max(sizes[1:]) < block + M


def test_advantages_of_broken_heads_and_sizes_are_refused():
    with pytest.raises(ValueError, match="permutation-equivariant"):
        binary_advantages(lambda rewards: rewards.cumsum(-1), M=4)
    with pytest.raises(ValueError, match=r"M must be an integer >= 1, got 0"):
        binary_advantages(centred_head, M=0)


def test_success_gaps_by_hand():
    """c = 3, M = 3: weights c / (3 + 2 (s + 1)) and 1 / (3 + 2 s), so 3 (3/5 - 1/3), 3 (3/7 - 1/5), 3 (3/9 - 1/7)."""
    head = functools.partial(softmax_head, tau=1 / np.log(3))
    assert_allclose(success_gaps(head, M=3), [4 / 5, 24 / 35, 4 / 7], rtol=1e-14)
    assert success_gaps(head, M=1).tolist() == [0.0]


@pytest.mark.parametrize("head", [functools.partial(softmax_head, tau=0.3), zscore_head, torch.clone, torch.neg])
@pytest.mark.parametrize("M", [1, 2, 5])
def test_mean_absolute_advantage_over_all_outcomes(head, M):
    outcomes = torch.tensor(list(itertools.product([0.0, 1.0], repeat=M)), dtype=torch.float64)
    sizes, k = head(outcomes).abs().mean(dim=1).numpy(), outcomes.sum(dim=1).numpy()
    expected = [(sizes * p**k * (1 - p) ** (M - k)).sum() for p in RATES]
    assert_allclose(mean_absolute_advantage(head, RATES, M=M), expected, rtol=1e-13)


def test_mean_absolute_advantage_is_the_weight_in_the_coordinate_of_the_logit():
    """E[A R] = E[A (R - p)] = p (1 - p) omega, and half of |A| is on the right samples where A sums to zero."""
    for head in (functools.partial(softmax_head, tau=0.1), zscore_head, centred_head):
        expected = 2 * RATES * (1 - RATES) * population_weight(head, RATES, M=8)
        assert_allclose(mean_absolute_advantage(head, RATES, M=8), expected, rtol=1e-12, atol=1e-15)
    # a head without a baseline: |A| is the reward
    assert_allclose(mean_absolute_advantage(torch.clone, RATES, M=8), RATES, rtol=1e-12)

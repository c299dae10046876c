"""Where theory says that two heads are the same."""

import math

import pytest
import torch

from sgrpo_lightning.heads import (
    adaptive_softmax_grpo_advantages,
    dr_grpo_advantages,
    grpo_advantages,
    maxrl_advantages,
    pass_at_k_advantages,
    reinforce_advantages,
    rloo_advantages,
    softmax_grpo_advantages,
)


def binary_groups(size: int) -> torch.Tensor:
    """One group for each number of successes, 0 to M."""
    return (torch.arange(size) < torch.arange(size + 1)[:, None]).double()


def graded_groups(size: int) -> torch.Tensor:
    return torch.rand(50, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)


@pytest.mark.parametrize("size", [2, 3, 8, 41])
def test_softmax_grpo_at_small_tau_is_maxrl_on_binary_rewards(size):
    """k winners share M: A = M / k - 1 = (1 - k / M) / (k / M); the losers' weight is e^(-1 / tau)."""
    rewards = binary_groups(size)
    actual = softmax_grpo_advantages(rewards, tau=0.02)
    torch.testing.assert_close(actual, maxrl_advantages(rewards), rtol=1e-12, atol=1e-12)


def test_softmax_grpo_at_small_tau_is_not_maxrl_on_graded_rewards():
    rewards = torch.tensor([1.0, 0.5, 0.0, 0.0])
    assert softmax_grpo_advantages(rewards, tau=1e-3).tolist() == [3, -1, -1, -1]
    # mean 3 / 8
    torch.testing.assert_close(maxrl_advantages(rewards), torch.tensor([5 / 3, 1 / 3, -1, -1]))


@pytest.mark.parametrize("size", [2, 8, 41])
def test_softmax_grpo_at_large_tau_is_reinforce_over_tau(size):
    """tau A = r - mean + O(1 / tau), Eq. 18; the second-order term is at most 1 / (2 tau)."""
    rewards = graded_groups(size)
    for tau in (1e2, 1e4, 1e6):
        actual = tau * softmax_grpo_advantages(rewards, tau=tau)
        assert (actual - reinforce_advantages(rewards)).abs().max() <= 0.5 / tau
    single = 1e6 * softmax_grpo_advantages(rewards.float(), tau=1e6)
    torch.testing.assert_close(single, reinforce_advantages(rewards.float()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [2, 3, 8, 41])
def test_rloo_is_reinforce_without_its_bias(size):
    rewards = graded_groups(size)
    expected = size / (size - 1) * reinforce_advantages(rewards)
    torch.testing.assert_close(rloo_advantages(rewards), expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("size", [2, 3, 8, 41])
def test_pass_at_1_is_rloo(size):
    for rewards in (graded_groups(size), binary_groups(size)):
        actual = pass_at_k_advantages(rewards, k=1)
        torch.testing.assert_close(actual, rloo_advantages(rewards), rtol=1e-11, atol=1e-13)


def test_dr_grpo_is_reinforce():
    rewards = graded_groups(8)
    assert torch.equal(dr_grpo_advantages(rewards), reinforce_advantages(rewards))


@pytest.mark.parametrize("size", [2, 3, 8, 41])
def test_the_two_standard_deviations_of_grpo_differ_by_a_factor(size):
    rewards = graded_groups(size)
    expected = math.sqrt(size / (size - 1)) * grpo_advantages(rewards, ddof=1, eps=0.0)
    torch.testing.assert_close(grpo_advantages(rewards, ddof=0, eps=0.0), expected)


@pytest.mark.parametrize("fraction", [0.5, 0.8])
@pytest.mark.parametrize("size", [8, 41])
def test_adaptive_is_a_multiple_of_grpo_on_the_binary_groups_that_reach_the_target(size, fraction):
    """Two levels, mean 0 and mean square 1 / f - 1 leave one choice: sqrt(1 / f - 1) times the z-score."""
    rewards = binary_groups(size)[: math.ceil(fraction * size)]
    expected = math.sqrt(1 / fraction - 1) * grpo_advantages(rewards, ddof=0, eps=0.0)
    actual = adaptive_softmax_grpo_advantages(rewards, ess_fraction=fraction)
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-13)


def test_adaptive_is_maxrl_on_the_other_binary_groups():
    rewards = binary_groups(8)[4:]  # four winners or more, target 4; the floor leaves e^-20 to the losers
    actual = adaptive_softmax_grpo_advantages(rewards, ess_fraction=0.5)
    torch.testing.assert_close(actual, maxrl_advantages(rewards), rtol=0, atol=1e-8)


def test_two_samples_leave_only_a_sign_and_a_size():
    """With M = 2 every zero-sum head is (a, -a), and a has a closed form in the gap g."""
    gaps = torch.tensor([1e-3, 0.1, 0.5, 1.0], dtype=torch.float64)
    rewards = torch.stack([gaps + 0.25, torch.full_like(gaps, 0.25)], dim=-1)

    def sizes(advantages):
        torch.testing.assert_close(advantages[:, 0], -advantages[:, 1], rtol=1e-12, atol=1e-15)
        return advantages[:, 0]

    torch.testing.assert_close(sizes(reinforce_advantages(rewards)), gaps / 2)
    torch.testing.assert_close(sizes(rloo_advantages(rewards)), gaps)
    torch.testing.assert_close(sizes(softmax_grpo_advantages(rewards, tau=0.3)), (gaps / 0.6).tanh())
    torch.testing.assert_close(sizes(maxrl_advantages(rewards)), gaps / (gaps + 0.5))
    torch.testing.assert_close(
        sizes(grpo_advantages(rewards)), (gaps / 2) / (gaps / math.sqrt(2) + 1e-6), rtol=1e-10, atol=0
    )
    # the root mean square is tanh(1 / (2 tau)), up to 1 at the floor
    adaptive = sizes(adaptive_softmax_grpo_advantages(rewards, ess_fraction=0.8))
    torch.testing.assert_close(adaptive, torch.full_like(gaps, 0.5), rtol=1e-10, atol=0)

"""Pass rates of groups, and which of them the gradient goes to."""

import doctest

import numpy as np
import pytest
import torch

from sgrpo_lightning.heads import grpo_advantages
from sgrpo_lightning.metrics import allocation, gradient_shares, pass_rates


def test_the_examples():
    assert doctest.testmod(allocation) == (0, 2)


def test_pass_rates_of_an_array_and_of_a_tensor():
    """0.5 does not pass; more than 1 passes once."""
    rewards = [[0.5, 0.51, 1.0, 7.0], [0.0, -1.0, 0.5, 0.49], [1.0, 1.0, 1.0, 1.0]]
    for given in (rewards, np.array(rewards), torch.tensor(rewards)):
        assert pass_rates(given).tolist() == [0.75, 0.0, 1.0]


def test_shares_of_the_gradient_by_hand():
    """Sizes 2, 6, 3, 1 and 0 of 12. A lower edge is of its bin; 0.9 and 1 are both of the last one."""
    advantages = [[1.0, -1.0], [3.0, -3.0], [-1.5, 1.5], [0.5, -0.5], [0.0, 0.0]]
    rates = [0.1, 0.2, 0.9, 1.0, 0.6]
    assert gradient_shares(advantages, rates) == pytest.approx([2 / 12, 6 / 12, 0, 0, 4 / 12])
    assert gradient_shares(advantages, rates, edges=(0, 0.5, 1)) == pytest.approx([8 / 12, 4 / 12])


def test_the_bins_are_those_of_table_3():
    """[0, 0.2), [0.2, 0.5), [0.5, 0.7), [0.7, 0.9), [0.9, 1]: five groups of one size, each at the top of its bin."""
    shares = gradient_shares(np.ones((5, 2)), [0.199, 0.499, 0.699, 0.899, 1.0])
    assert shares == pytest.approx([0.2] * 5)
    shares = gradient_shares(np.ones((5, 2)), [0.0, 0.2, 0.5, 0.7, 0.9])
    assert shares == pytest.approx([0.2] * 5)


def test_shares_of_grpo_by_hand():
    """Of M = 4 with k passes GRPO's sum of |A| is sqrt(3) sqrt(k (4 - k)): 3, sqrt(12), 3 for k = 1, 2, 3.

    s^2 = k (4 - k) / 12 and sum |r - mean| = k (4 - k) / 2, and their quotient is sqrt(12) sqrt(k (4 - k)) / 2.
    """
    rewards = torch.tensor([[1.0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
    total = 6 + 12**0.5
    shares = gradient_shares(grpo_advantages(rewards), pass_rates(rewards))
    assert shares == pytest.approx([0, 3 / total, 12**0.5 / total, 3 / total, 0], abs=1e-5)


def test_where_nothing_is_learned_there_are_no_shares():
    assert gradient_shares(np.zeros((2, 4)), [0.0, 1.0]).tolist() == [0.0] * 5
    assert gradient_shares(np.zeros((0, 4)), []).tolist() == [0.0] * 5


def test_groups_and_pass_rates_that_do_not_match_are_an_error():
    for advantages, rates in ((np.ones((2, 4)), [0.5]), (np.ones(4), 0.5)):
        with pytest.raises(ValueError, match=r"advantages \[G, M\] need rates \[G\]"):
            gradient_shares(advantages, rates)

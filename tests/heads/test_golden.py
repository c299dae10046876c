"""Values of each head by hand, by mpmath, or by a slow loop over its definition."""

import itertools
import math
import statistics
from functools import partial

import pytest
import torch
from mpmath import mp, mpf

from sgrpo_lightning.geometry import adaptive_tau, effective_sample_size
from sgrpo_lightning.heads import (
    adaptive_softmax_grpo_advantages,
    dr_grpo_advantages,
    grpo_advantages,
    maxrl_advantages,
    mix_advantages,
    pass_at_k_advantages,
    reinforce_advantages,
    rloo_advantages,
    softmax_grpo_advantages,
)

GRADED = [0.25, 0.9, 0.0, 0.9, 0.4, 0.1]


def f64(*rewards: float) -> torch.Tensor:
    return torch.tensor(rewards, dtype=torch.float64)


def random_rewards(kind: str, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    uniform = torch.rand(size, generator=generator)
    return {
        "graded": uniform,
        "binary": (uniform <= uniform.median()).float(),
        "one winner": (uniform == uniform.max()).float(),
        "near ties at the top": 0.1 + 0.85 * uniform**0.01,
        "narrow": 0.5 + uniform * 1e-3,
        "raised": 1000 + uniform,
        "wide": (uniform - 0.5) * 2e6,
    }[kind]


def softmax_advantages_by_mpmath(rewards: torch.Tensor, tau: float) -> torch.Tensor:
    with mp.workdps(40):
        powers = [mp.exp((mpf(r) - mpf(rewards.max().item())) / mpf(tau)) for r in rewards.tolist()]
        total = mp.fsum(powers)
        return f64(*(float(len(powers) * power / total - 1) for power in powers))


@pytest.mark.parametrize("head", [reinforce_advantages, dr_grpo_advantages])
def test_reinforce_and_dr_grpo_subtract_the_mean(head):
    # mean of 2, 5, -1 is 2
    assert head(f64(2, 5, -1)).tolist() == [0, 3, -3]


def test_rloo_subtracts_the_mean_of_the_others():
    expected = [GRADED[i] - statistics.fmean(GRADED[:i] + GRADED[i + 1 :]) for i in range(len(GRADED))]
    torch.testing.assert_close(rloo_advantages(f64(*GRADED)), f64(*expected), rtol=1e-13, atol=1e-15)


def test_grpo_by_hand():
    # 1, 3, 5, 7: mean 4, squares 9 + 1 + 1 + 9 = 20; s = sqrt(20 / 3), or sqrt(20 / 4) with ddof 0
    expected = f64(-3, -1, 1, 3)
    rewards = f64(1, 3, 5, 7)
    torch.testing.assert_close(grpo_advantages(rewards, eps=0.0), expected / math.sqrt(20 / 3))
    torch.testing.assert_close(grpo_advantages(rewards, ddof=0, eps=0.0), expected / math.sqrt(5))
    torch.testing.assert_close(grpo_advantages(rewards, ddof=0, eps=0.5), expected / (math.sqrt(5) + 0.5))
    torch.testing.assert_close(grpo_advantages(rewards), expected / (math.sqrt(20 / 3) + 1e-6), rtol=1e-14, atol=0)


@pytest.mark.parametrize("ddof", [0, 1])
def test_grpo_by_the_statistics_module(ddof):
    deviation = [statistics.pstdev, statistics.stdev][ddof](GRADED)
    expected = (f64(*GRADED) - statistics.fmean(GRADED)) / (deviation + 1e-3)
    actual = grpo_advantages(f64(*GRADED), ddof=ddof, eps=1e-3)
    torch.testing.assert_close(actual, expected, rtol=1e-13, atol=1e-15)


def test_maxrl_by_hand():
    # mean of 0, 1, 2, 1 is 1; of 0.5, 0, 0, 0 it is 0.125, and 0.375 / 0.125 = 3
    assert maxrl_advantages(f64(0, 1, 2, 1)).tolist() == [-1, 0, 1, 0]
    assert maxrl_advantages(f64(0.5, 0, 0, 0)).tolist() == [3, -1, -1, -1]
    assert maxrl_advantages(torch.zeros(5)).tolist() == [0] * 5


def test_softmax_grpo_by_hand():
    # e^(r / tau) = 1, 2, 4, 1 at tau = 1 / log 2, total 8: A = 4 (1, 2, 4, 1) / 8 - 1
    actual = softmax_grpo_advantages(f64(0, 1, 2, 0), tau=1 / math.log(2))
    torch.testing.assert_close(actual, f64(-0.5, 0, 1, -0.5), rtol=1e-14, atol=1e-15)
    # c = e^2 = 7.38905609893: w+ = c / (c + 3), w- = 1 / (c + 3)
    actual = softmax_grpo_advantages(f64(0, 0, 1, 0), tau=0.5)
    winner, loser = 4 * 7.38905609893065 / 10.38905609893065 - 1, 4 / 10.38905609893065 - 1
    torch.testing.assert_close(actual, f64(loser, loser, winner, loser), rtol=1e-14, atol=0)


KINDS = ["graded", "binary", "one winner", "near ties at the top", "narrow", "raised", "wide"]


@pytest.mark.parametrize(
    ("kind", "size", "tau"),
    [
        *itertools.product(KINDS, [2, 8, 41], [1e-4, 1e-2, 0.1, 0.3, 1.0, 10.0, 1e3, 1e6]),
        *itertools.product(["graded", "one winner"], [4096], [1e-4, 0.1, 1e6]),
    ],
)
def test_softmax_grpo_in_float32_against_mpmath(kind, size, tau):
    rewards = random_rewards(kind, size)
    expected = softmax_advantages_by_mpmath(rewards, tau)
    actual = softmax_grpo_advantages(rewards, tau=tau).double()
    error = (actual - expected).abs()
    assert error.max() <= 3e-6 * expected.abs().max()
    assert (error / expected.abs()).median() <= 1e-5  # A itself, not only the largest of its group


@pytest.mark.parametrize("tau", [1e-40, 1e-300, 5e-324])
def test_softmax_grpo_below_the_range_of_float32_shares_the_group_among_the_best(tau):
    actual = softmax_grpo_advantages(torch.tensor([0.0, 1.0, 1.0, 0.5]), tau=tau)
    assert actual.tolist() == [-1, 1, 1, -1]


def test_softmax_grpo_above_the_range_of_float32_is_flat():
    assert softmax_grpo_advantages(torch.tensor([0.0, 1.0]), tau=1e300).abs().max() < 1e-30


@pytest.mark.parametrize(("k", "expected"), [(1, 0.565508333915), (2, 0.535829860026), (3, 0.431248270226)])
def test_adaptive_tau_is_that_of_the_closed_form(k, expected):
    # A.3 at M = 8 and ESS = 4, in 40 digits; a gap of 3 between the levels scales it
    rewards = torch.zeros(8, dtype=torch.float64)
    rewards[:k] = 3.0
    actual = adaptive_softmax_grpo_advantages(rewards - 5, ess_fraction=0.5)
    torch.testing.assert_close(actual, softmax_grpo_advantages(rewards, tau=3 * expected), rtol=1e-10, atol=0)


@pytest.mark.parametrize(("M", "fraction"), [(8, 0.5), (8, 0.97), (16, 0.3), (41, 0.9999)])
def test_adaptive_tau_agrees_with_the_geometry(M, fraction):
    for k in range(1, math.ceil(fraction * M)):
        rewards = (torch.arange(M) < k).double()
        tau = adaptive_tau(k, M=M, ess=fraction * M)
        if tau >= 0.05:
            actual = adaptive_softmax_grpo_advantages(rewards, ess_fraction=fraction)
            expected = softmax_grpo_advantages(rewards, tau=tau)
            torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("fraction", [0.3, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e5])
def test_adaptive_weights_have_the_effective_sample_size_asked_for(dtype, fraction, scale):
    generator = torch.Generator().manual_seed(0)
    rewards = (torch.rand(64, 16, generator=generator, dtype=torch.float64) - 0.5).to(dtype) * scale
    advantages = adaptive_softmax_grpo_advantages(rewards, ess_fraction=fraction, tau_floor=1e-4).double()
    ess = effective_sample_size((advantages + 1) / 16)
    torch.testing.assert_close(ess, torch.full_like(ess, fraction * 16), rtol=2e-5, atol=0)


def test_adaptive_reaches_the_same_tau_by_either_road():
    """A third level within 1e-12 of the lower one turns the closed form into the root find."""
    rewards = f64(1, 1, 0, 0, 0, 0, 0, 0)
    nudged = rewards + f64(0, 0, 1e-12, 0, 0, 0, 0, 0)
    torch.testing.assert_close(
        adaptive_softmax_grpo_advantages(nudged, ess_fraction=0.5),
        adaptive_softmax_grpo_advantages(rewards, ess_fraction=0.5),
        rtol=1e-10,
        atol=1e-10,
    )


@pytest.mark.parametrize("rewards", [[2, 2, 2, 2, 0, 0], [2, 2, 2, 1, 0.5, 0], [2, 2, 2, 0, 0, 0]])
def test_adaptive_goes_to_the_floor_where_winners_outnumber_the_target(rewards):
    # target ESS 3 with three winners or more; the spread is 2, the floor 0.2 of it
    actual = adaptive_softmax_grpo_advantages(f64(*rewards), ess_fraction=0.5, tau_floor=0.2)
    expected = softmax_grpo_advantages(f64(*rewards), tau=0.4)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_adaptive_never_goes_below_the_floor():
    """Two rewards 1e-9 apart at the top would need tau of that size."""
    rewards = f64(1, 1 - 1e-9, 0, 0)
    actual = adaptive_softmax_grpo_advantages(rewards, ess_fraction=0.4)
    torch.testing.assert_close(actual, softmax_grpo_advantages(rewards, tau=0.05), rtol=1e-12, atol=1e-12)


def pass_at_k_by_subsets(rewards: list[float], k: int) -> list[float]:
    """k (mean over B of max(r_i, r_B) - mean over C of max r_C), by listing the subsets."""
    advantages = []
    for i, reward in enumerate(rewards):
        others = rewards[:i] + rewards[i + 1 :]
        with_i = [max((reward, *B)) for B in itertools.combinations(others, k - 1)]
        without_i = [max(C) for C in itertools.combinations(others, min(k, len(others)))]
        advantages.append(k * (statistics.fmean(with_i) - statistics.fmean(without_i)))
    return advantages


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize(
    "rewards", [GRADED, [1.0, 0.0, 0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 5.0, 0.0, 0.0, 0.0], [-3.0, -1, -2, -1, -9, -5]]
)
def test_pass_at_k_by_subsets(rewards, k):
    actual = pass_at_k_advantages(f64(*rewards), k=k)
    torch.testing.assert_close(actual, f64(*pass_at_k_by_subsets(rewards, k)), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "head", [partial(pass_at_k_advantages, k=2), partial(adaptive_softmax_grpo_advantages, ess_fraction=0.9)]
)
def test_winners_that_fall_short_by_rounding_are_counted(head):
    """In float32 these positions sum to 6 - 5e-7, and so do their squares."""
    short = 1 - 2**-24
    rewards = torch.tensor([short, 0, short, 1, short, short, 1])
    torch.testing.assert_close(head(rewards), head(rewards.round()), rtol=1e-5, atol=1e-6)


def test_pass_at_k_by_hand():
    # M = 4, k = 2, one pass: it alone makes any pair pass: 2 (1 - 0); a failure makes a pair pass with 1 / 3,
    # and 2 / 3 of the pairs of others pass without it: 2 (1 / 3 - 2 / 3)
    torch.testing.assert_close(pass_at_k_advantages(f64(1, 0, 0, 0), k=2), f64(2, -2 / 3, -2 / 3, -2 / 3))
    # one failure among four cannot make a pair fail
    assert pass_at_k_advantages(f64(1, 1, 1, 0), k=2).tolist() == [0, 0, 0, 0]


def test_mix_adds_weighted_heads_that_need_no_decorator():
    def centred(rewards):
        return rewards - rewards.mean(-1, keepdim=True)

    mixed = mix_advantages(f64(1, 0, 0, 0), heads=[maxrl_advantages, centred], weights=[0.5, -2])
    assert mixed.tolist() == [0.5 * 3 - 2 * 0.75, -0.5 + 0.5, -0.5 + 0.5, -0.5 + 0.5]
    flat = mix_advantages(torch.ones(3), heads=[lambda rewards: rewards], weights=[1.0])
    assert flat.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("head", "knobs", "message"),
    [
        (softmax_grpo_advantages, {"tau": -0.1}, r"tau must be > 0 and finite, got -0\.1"),
        (softmax_grpo_advantages, {"tau": 0}, "tau must be > 0 and finite, got 0"),
        (softmax_grpo_advantages, {"tau": math.nan}, "tau must be > 0 and finite, got nan"),
        (softmax_grpo_advantages, {"tau": math.inf}, "tau must be > 0 and finite, got inf"),
        (grpo_advantages, {"ddof": 2}, "ddof must be 0 or 1, got 2"),
        (grpo_advantages, {"eps": -1e-6}, "eps must be >= 0 and finite, got -1e-06"),
        (grpo_advantages, {"eps": math.nan}, "eps must be >= 0 and finite, got nan"),
        (adaptive_softmax_grpo_advantages, {"ess_fraction": 1.0}, r"ess_fraction must lie in \(0, 1\), got 1\.0"),
        (adaptive_softmax_grpo_advantages, {"ess_fraction": 0.0}, r"ess_fraction must lie in \(0, 1\), got 0\.0"),
        (
            adaptive_softmax_grpo_advantages,
            {"ess_fraction": 0.5, "tau_floor": 0.0},
            r"tau_floor must be > 0 and finite, got 0\.0",
        ),
        (pass_at_k_advantages, {"k": 0}, "k must be an integer from 1 to samples per group = 3, got 0"),
        (pass_at_k_advantages, {"k": 4}, "k must be an integer from 1 to samples per group = 3, got 4"),
        (pass_at_k_advantages, {"k": 2.0}, r"k must be an integer from 1 to samples per group = 3, got 2\.0"),
        (mix_advantages, {"heads": [], "weights": []}, "must pair up, got 0 heads and 0 weights"),
        (mix_advantages, {"heads": [rloo_advantages], "weights": [1, 2]}, "must pair up, got 1 heads and 2 weights"),
        (mix_advantages, {"heads": [rloo_advantages], "weights": [math.inf]}, r"weights must be finite, got \[inf\]"),
    ],
)
def test_bad_knobs_are_refused(head, knobs, message):
    with pytest.raises(ValueError, match=message):
        head(torch.tensor([0.0, 1.0, 1.0]), **knobs)


def test_maxrl_refuses_negative_rewards():
    with pytest.raises(ValueError, match=r"rewards must be >= 0 for MaxRL, got -0\.5 at index \(1, 0\)"):
        maxrl_advantages(f64(1, 0.25, -0.5, 2).reshape(2, 2))

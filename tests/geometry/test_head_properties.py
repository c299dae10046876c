"""What `head_properties` finds, against a table that was filled in from the formulas by hand."""

from functools import partial

import pytest
import torch

from sgrpo_lightning import heads
from sgrpo_lightning.geometry import breaches, head_properties
from sgrpo_lightning.heads.contract import PROPERTIES, advantage_head

NAMES = [
    "zero_sum",
    "shift_invariant",
    "scale_invariant",
    "scale_equivariant",
    "permutation_equivariant",
    "groupwise",
    "silent_on_equal_rewards",
    "monotone",
    "bounded",
    "conservative",
]


def centred(rewards):
    return rewards - rewards.mean(-1, keepdim=True)


def places(rewards):
    """0 for the lowest, M - 1 for the highest; equal rewards in the order in which they stand."""
    return rewards.argsort(stable=True, dim=-1).argsort(-1).double()


def neighbours(rewards):
    """Reward minus the mean of those beside it: only a swap shows that the order matters, no turn and no reversal."""
    return rewards - (rewards.roll(1, -1) + rewards.roll(-1, -1)) / 2


def unit_interval(rewards):
    if ((rewards < 0) | (rewards > 1)).any():
        raise ValueError("rewards must lie in [0, 1]")
    return centred(rewards)


def one_group(rewards):
    if rewards.ndim > 1:
        raise ValueError("one group at a time")
    return centred(rewards)


def by_the_mean(rewards):
    """MaxRL without its refusal: a negative mean turns it upside down, one near zero blows it up."""
    return centred(rewards) / rewards.mean(-1, keepdim=True)


mixed = partial(heads.mix_advantages, heads=[heads.reinforce_advantages, heads.maxrl_advantages], weights=[1.0, 1.0])

# The columns are NAMES: Z shift, scale invariant, E scale equivariant, P, G, silent, M, bounded, conservative.
TABLE = {
    # r - mean: scales with the reward, hence no bound; a function of the own reward but for a baseline: conservative
    "reinforce": (heads.reinforce_advantages, "11 01 1111 01"),
    "rloo": (heads.rloo_advantages, "11 01 1111 01"),
    "dr_grpo": (heads.dr_grpo_advantages, "11 01 1111 01"),
    # |z| <= (M - 1) / sqrt(M); eps = 1e-6 counts beside a spread of a millionth, eps = 0 never
    "grpo": (heads.grpo_advantages, "11 00 1111 10"),
    "grpo, eps 0": (partial(heads.grpo_advantages, eps=0.0), "11 10 1111 10"),
    # (r - mean) / mean in [-1, M - 1]: a shift changes the mean
    "maxrl": (heads.maxrl_advantages, "10 10 1111 10"),
    # M w - 1 in [-1, M - 1]: tau is in units of the reward, unless it follows the group
    "softmax_grpo": (partial(heads.softmax_grpo_advantages, tau=0.1), "11 00 1111 10"),
    "softmax_grpo_adaptive": (partial(heads.adaptive_softmax_grpo_advantages, ess_fraction=0.5), "11 10 1111 10"),
    # unbiased for E[max of k]: conservative; with k = M only a lone winner has an advantage, so no zero sum
    "pass_at_k": (partial(heads.pass_at_k_advantages, k=4), "11 01 1111 01"),
    "pass_at_k, k = M": (partial(heads.pass_at_k_advantages, k=8), "01 01 1111 01"),
    # r - mean scales and (r - mean) / mean does not: their sum does neither, nor is it shift-invariant or bounded
    "mix": (mixed, "10 00 1111 00"),
    # from here on with something missing
    "nothing": (torch.zeros_like, "11 11 1111 11"),
    "rewards themselves": (torch.clone, "00 01 1101 01"),
    "median baseline": (lambda r: r - r.median(-1, keepdim=True).values, "01 01 1111 01"),
    "upside down": (lambda r: -centred(r), "11 01 1110 01"),
    "clipped": (lambda r: centred(r).clamp(-0.5, 0.5), "01 00 1111 10"),
    "winners": (lambda r: (r == r.amax(-1, keepdim=True)).double(), "01 10 1101 10"),
    "whole batch": (lambda r: r - r.mean(), "11 01 1011 01"),
    # the curl asks about many groups at once: not judged, so not held
    "one group": (one_group, "11 01 1011 00"),
    "sorted": (lambda r: centred(r.sort(-1).values), "11 01 0110 00"),
    "neighbours": (neighbours, "11 01 0110 00"),
    # ties broken by position: equal rewards differ, so no group is silent and the curl is not defined
    "places": (lambda r: centred(places(r)), "11 10 0101 10"),
    "z-score of nothing": (lambda r: centred(r) / r.std(-1, keepdim=True), "11 10 1101 10"),
    "in float32": (lambda r: centred(r.float()), "11 01 1111 01"),
    # [0, 1] leaves the shifts by 1 and -3 nothing but refusals; shrinking is always allowed
    "unit interval": (unit_interval, "10 01 1111 11"),
}


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_table(name, seed):
    head, row = TABLE[name]
    found = {name: bool(check) for name, check in head_properties(head, seed=seed).items()}
    assert found == dict(zip(NAMES, (mark == "1" for mark in row.replace(" ", "")), strict=True))


def test_every_property_has_heads_on_both_sides():
    columns = zip(*(row.replace(" ", "") for _, row in TABLE.values()), strict=True)
    assert {name: set(column) for name, column in zip(NAMES, columns, strict=True)} == {n: {"0", "1"} for n in NAMES}


def test_the_words_are_those_of_the_contract():
    assert set(NAMES) >= PROPERTIES


@pytest.mark.parametrize("name", [name for name, (head, _) in TABLE.items() if name != "pass_at_k, k = M"])
def test_no_head_of_the_library_breaks_a_promise(name):
    assert breaches(TABLE[name][0]) == {}


def test_a_promise_that_holds_for_some_knobs_only():
    """k = M leaves no others to compare with: a lone winner alone has an advantage, as the docstring says."""
    assert list(breaches(TABLE["pass_at_k, k = M"][0])) == ["zero_sum"]
    assert breaches(partial(heads.pass_at_k_advantages, k=4), M=5) == {}


def test_a_broken_promise_comes_with_a_group_that_proves_it():
    @advantage_head("zero_sum", "shift_invariant", "scale_invariant")
    def median_baseline(groups, *, factor):
        return factor * (groups.rewards - groups.rewards.median(-1, keepdim=True).values)

    broken = breaches(partial(partial(median_baseline), factor=2.0), M=5)
    assert set(broken) == {"zero_sum", "scale_invariant"}
    rewards = sorted(broken["zero_sum"].rewards)
    assert len(rewards) == 5
    around_the_median = [reward - rewards[2] for reward in rewards]
    expected = abs(sum(around_the_median)) / max(abs(d) for d in around_the_median)
    assert broken["zero_sum"].violation == pytest.approx(expected)
    # rewards shrunk by 2^20 leave advantages 2^20 times smaller, grown by 2^20 they are 2^20 - 1 too large
    assert broken["scale_invariant"].violation == pytest.approx(2**20 - 1)


def test_a_violation_is_judged_by_the_dtype_of_the_answers():
    """One part in a million: nothing in float32, a fault in float64."""
    slightly_off = torch.tensor([1 + 1e-6, 1, 1, 1, 1, 1, 1, 1], dtype=torch.float64)
    assert not head_properties(lambda r: r * slightly_off)["permutation_equivariant"]
    assert head_properties(lambda r: (r * slightly_off).float())["permutation_equivariant"]


@pytest.mark.parametrize("seed", [0, 1])
def test_negative_rewards_are_among_the_groups(seed):
    check = head_properties(by_the_mean, seed=seed)["monotone"]
    assert not check
    assert min(check.rewards) < 0


def test_what_is_judged_nowhere_does_not_hold():
    check = head_properties(unit_interval)["shift_invariant"]
    assert (check.holds, check.rewards) == (False, ())
    assert check.violation != check.violation


def test_an_answer_that_is_not_a_number_holds_nothing():
    checks = head_properties(lambda r: r * torch.nan)
    assert not any(checks.values())


def test_the_head_may_work_in_place_and_return_integers():
    checks = head_properties(lambda r: r.sub_(r.mean(-1, keepdim=True)))
    assert [name for name in NAMES if not checks[name]] == ["scale_invariant", "bounded"]
    assert head_properties(lambda r: torch.zeros_like(r, dtype=torch.int64))["zero_sum"]


def test_other_group_sizes():
    for M in (3, 5, 32):
        checks = head_properties(heads.maxrl_advantages, M=M)
        assert [name for name in NAMES if not checks[name]] == [
            "shift_invariant",
            "scale_equivariant",
            "conservative",
        ], M


@pytest.mark.parametrize(
    ("head", "M", "message"),
    [
        (centred, 2, "M must be from 3 to 128, to hold three reward levels, got 2"),
        (centred, 129, "got 129"),
        (partial(heads.pass_at_k_advantages, k=9), 8, "k must be an integer from 1 to samples per group = 8, got 9"),
        (lambda r: r.sum(-1), 8, r"head must map rewards \[8\] to advantages of that shape, got Tensor"),
        (lambda r: None, 8, "got NoneType"),
    ],
)
def test_errors_name_the_value(head, M, message):
    with pytest.raises(ValueError, match=message):
        head_properties(head, M=M)

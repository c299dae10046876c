"""Group statistics and their accumulation, by hand."""

import doctest
import math
from itertools import pairwise

import pytest
import torch

from sgrpo_lightning.metrics import accumulate, group_metrics, groups, reduce

REWARDS = torch.tensor([[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.4], [0.0, 0.0, 0.0, 0.0]])
ADVANTAGES = torch.tensor([[1.0, -1.0, -1.0, 1.0], [0.0] * 4, [0.0, -0.5, -1.0, 1.5], [1e-7, 0.0, 0.0, -1e-7]])


def test_by_hand():
    metrics = {name: value.item() for name, value in group_metrics(REWARDS, ADVANTAGES).items()}
    assert metrics == pytest.approx(
        {
            "reward/mean": 6.4 / 16,
            # spreads within the groups: 1/2, 0, sqrt(.16 / 4 - .01) = sqrt(.03), 0
            "reward_std/mean": (0.5 + math.sqrt(0.03)) / 4,
            "pass_rate/mean": 6 / 16,
            "all_pass/frac": 1 / 4,
            "all_fail/frac": 2 / 4,  # 0.4 does not pass
            "no_signal/frac": 2 / 4,  # the fourth is rounding
            # A + 1: (2, 0, 0, 2) -> 16 / 8 = 2; four ones -> 4; (1, .5, 0, 2.5) -> 16 / 7.5; ~ones -> 4
            "ess/mean": (2 + 4 + 16 / 7.5 + 4) / 4,
            "advantage/max": 1.5,
            "advantage/min": -1.0,
        },
        rel=1e-6,
    )


def test_ess_is_that_of_the_softmax_weights():
    torch.manual_seed(0)
    rewards = torch.rand(5, 8, dtype=torch.float64)
    w = torch.softmax(rewards / 0.2, dim=1)
    ess = group_metrics(rewards, 8 * w - 1)["ess/mean"]
    torch.testing.assert_close(ess, (1 / w.square().sum(1)).mean())


def test_ess_clips_what_cannot_be_a_weight():
    metrics = group_metrics(torch.zeros(2, 2), torch.tensor([[3.0, -3.0], [-2.0, -2.0]]))
    assert metrics["ess/mean"].item() == pytest.approx((1 + 0) / 2)  # (4, 0) -> 1; nothing left -> 0


def test_pass_threshold():
    rates = [group_metrics(REWARDS, ADVANTAGES, pass_threshold=x)["pass_rate/mean"] for x in (0.3, 0.4, 1.0)]
    assert torch.stack(rates).tolist() == pytest.approx([7 / 16, 7 / 16, 0])  # 0.4 in float32 is above 0.4
    assert group_metrics(torch.tensor([[0.5]]), torch.zeros(1, 1))["pass_rate/mean"].item() == 0.0


@pytest.mark.parametrize("cuts", [(0, 4), (0, 1, 4), (0, 2, 2, 3, 4)])
def test_parts_accumulate_to_the_whole(cuts):
    whole = group_metrics(REWARDS, ADVANTAGES)
    parts = [group_metrics(REWARDS[a:b], ADVANTAGES[a:b], num_groups=4) for a, b in pairwise(cuts)]
    torch.testing.assert_close(accumulate(parts), whole, rtol=1e-12, atol=1e-12)


def test_no_groups():
    metrics = group_metrics(torch.zeros(0, 4), torch.zeros(0, 4))
    assert metrics.pop("advantage/max").item() == -math.inf
    assert metrics.pop("advantage/min").item() == math.inf
    assert all(value.item() == 0 for value in metrics.values())


def test_values_are_detached_scalars():
    metrics = group_metrics(REWARDS, ADVANTAGES.clone().requires_grad_())
    assert all(v.ndim == 0 and not v.requires_grad for v in metrics.values())


@pytest.mark.parametrize("shape", [(4,), (2, 3)])
def test_rejects_wrong_shapes(shape):
    with pytest.raises(ValueError, match=r"must both be \[G, M\], got"):
        group_metrics(torch.zeros(shape), torch.zeros(4))


def test_accumulate_by_suffix():
    parts = [
        {"x/mean": 0.25, "x/frac": torch.tensor(0.5), "x/sum": 2, "x/max": 3.0, "x/min": 3.0},
        {
            "x/mean": 0.5,
            "x/frac": torch.tensor(0.25),
            "x/sum": 3,
            "x/max": -1.0,
            "x/min": -1.0,
            "a/b/max": 7.0,
        },
    ]
    got = {name: value.item() for name, value in accumulate(parts).items()}
    assert got == {"x/mean": 0.75, "x/frac": 0.75, "x/sum": 5, "x/max": 3.0, "x/min": -1.0, "a/b/max": 7.0}
    assert accumulate([]) == {}


@pytest.mark.parametrize("name", ["loss", "mean", "reward/std", "reward/mean/last"])
def test_accumulate_rejects_a_name_that_does_not_say_how(name):
    with pytest.raises(ValueError, match=f"metric names must end in one of .*, got '{name}'"):
        accumulate([{name: 1.0}])


@pytest.mark.parametrize("module", [groups, reduce])
def test_docstring_examples(module):
    failed, tried = doctest.testmod(module)
    assert failed == 0
    assert tried > 0

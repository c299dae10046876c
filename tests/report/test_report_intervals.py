"""Means over seeds, and the gap to cross-entropy, against hand arithmetic."""

import math

import pytest
from report_runs import made

from sgrpo_lightning.report.intervals import by_seed, gap_closed, mean_interval


def top1(run):
    return run.last("eval/top1")


def several(objective, *values, seeds=None, **more):
    seeds = range(len(values)) if seeds is None else seeds
    return [made(objective, seed, top1=value, **more) for seed, value in zip(seeds, values, strict=True)]


def test_interval_is_students_t():
    # mean 0.3, s = 0.1, t(0.975, 2) = 4.30265: 4.30265 * 0.1 / sqrt(3) = 0.24841
    mean, half = mean_interval([0.2, 0.3, 0.4])
    assert mean == pytest.approx(0.3)
    assert half == pytest.approx(0.24841, abs=1e-5)
    # t(0.95, 1) = 6.31375, s = 0.2 / sqrt(2), over sqrt(2): 6.31375 * 0.1
    assert mean_interval([0.2, 0.4], level=0.9)[1] == pytest.approx(0.631375, abs=1e-6)
    mean, half = mean_interval([0.2])
    assert mean == 0.2
    assert math.isnan(half)


def test_values_by_seed():
    """Two runs of seed 1 count once, as their mean; one without the metric not at all."""
    runs = [*several("grpo", 0.5, 0.1, 0.2, 0.6, seeds=[2, 1, 1, 0]), made("grpo", 3)]
    found = by_seed(runs, top1)
    assert found == {0: 0.6, 1: pytest.approx(0.15), 2: 0.5}
    assert list(found) == [0, 1, 2]
    assert by_seed([made("grpo")], top1) == {}


LOW, HIGH = several("reinforce", 0.1, 0.2, 0.3), several("cross_entropy", 0.5, 0.7, 0.7)


def test_the_gap_is_closed_seed_by_seed():
    """Ratios 0.2 / 0.4, 0.4 / 0.5, 0.2 / 0.4: mean 0.6, s = sqrt((0.01 + 0.04 + 0.01) / 2) = 0.173205.

    Half the width is 4.30265 * 0.173205 / sqrt(3) = 0.430265. The ratio of the means is another number: 8 / 13.
    """
    own = several("softmax_grpo", 0.3, 0.6, 0.5)
    runs = LOW + HIGH + own
    assert gap_closed(own, runs) == pytest.approx((0.6, 0.430265), abs=1e-6)
    assert gap_closed(own[::-1], runs[::-1]) == pytest.approx((0.6, 0.430265), abs=1e-6)
    assert gap_closed(LOW, runs) == pytest.approx((0, 0))
    assert gap_closed(HIGH, runs) == pytest.approx((1, 0))


def test_only_shared_seeds_are_paired():
    """Seeds 1 and 2 are in all three: 0.8 and 0.5, mean 0.65, half 12.7062 * 0.212132 / sqrt(2) = 1.90593."""
    own = several("softmax_grpo", 0.6, 0.5, 0.9, seeds=[1, 2, 3])
    assert gap_closed(own, LOW + HIGH + own) == pytest.approx((0.65, 1.90593), abs=1e-5)


@pytest.mark.parametrize("seeds", [(7, 8), (0, 8)])
def test_without_two_shared_seeds_it_is_the_ratio_of_the_means(seeds):
    """(0.4 - 0.2) / (0.633333 - 0.2) = 0.461538."""
    own = several("softmax_grpo", 0.3, 0.5, seeds=seeds)
    mean, half = gap_closed(own, LOW + HIGH + own)
    assert mean == pytest.approx(0.461538, abs=1e-6)
    assert math.isnan(half)


def test_no_gap_no_number():
    own = several("softmax_grpo", 0.3, 0.6)
    assert gap_closed(own, own + LOW) is None
    assert gap_closed(own, own + HIGH) is None
    assert gap_closed(own, own + LOW + several("cross_entropy", 0.5, 0.2)) is None  # 0 at seed 1
    assert gap_closed(own, own + LOW + several("cross_entropy", 0.5, 0.1)) is None
    assert gap_closed(own, own + LOW + several("cross_entropy", 0.2, seeds=[9])) is None  # equal means
    assert gap_closed(own, own + LOW + several("cross_entropy", float("nan"), 0.5)) is None
    assert gap_closed(own, own + LOW + [made("cross_entropy")]) is None
    assert gap_closed([made("softmax_grpo")], LOW + HIGH) is None


def with_M(M, **more):
    return {"settings": {"data.size": 1, "samples_per_group": M, **more}}


def test_reinforce_is_that_of_the_groups_own_size():
    """At M = 16: (0.4 - 0.1) / (0.6 - 0.1) = 0.6; at M = 128: (0.4 - 0.3) / 0.3; elsewhere against the mean 0.2."""
    runs = several("reinforce", 0.1, **with_M(16)) + several("reinforce", 0.3, **with_M(128))
    runs += several("cross_entropy", 0.6, **with_M(16))
    for M, expected in ((16, 0.6), (128, 1 / 3), (1024, 0.5)):
        own = several("softmax_grpo", 0.4, **with_M(M))
        assert gap_closed(own, runs + own)[0] == pytest.approx(expected)
    assert gap_closed(several("softmax_grpo", 0.4), runs)[0] == pytest.approx(0.5)  # no settings: all of them


def test_the_size_counts_before_the_other_settings():
    """The row is at M = 128 and rate 1; REINFORCE of M = 128 ran at rate 2 only: (0.4 - 0.3) / (0.6 - 0.3)."""
    runs = several("reinforce", 0.1, settings={"rate": 1, "samples_per_group": 16})
    runs += several("reinforce", 0.3, settings={"rate": 2, "samples_per_group": 128})
    runs += several("cross_entropy", 0.6)
    own = several("softmax_grpo", 0.4, settings={"rate": 1, "samples_per_group": 128})
    assert gap_closed(own, runs + own)[0] == pytest.approx(1 / 3)


def test_other_settings_are_matched_too_where_they_can_be():
    """The row is at rate 2: (0.4 - 0.2) / (0.5 - 0.2). Against all runs it were (0.4 - 0.1) / (0.6 - 0.1)."""
    runs = [run for rate, value in ((1, 0.0), (2, 0.2)) for run in several("reinforce", value, **with_M(8, rate=rate))]
    runs += [
        run for rate, value in ((1, 0.7), (2, 0.5)) for run in several("cross_entropy", value, **with_M(8, rate=rate))
    ]
    own = several("softmax_grpo", 0.4, **with_M(8, rate=2))
    assert gap_closed(own, runs + own)[0] == pytest.approx(2 / 3)
    own = several("softmax_grpo", 0.4, **with_M(8, rate=3))
    assert gap_closed(own, runs + own)[0] == pytest.approx(3 / 5)


def test_another_task_is_no_yardstick():
    own = several("softmax_grpo", 0.3, 0.6, task="other")
    assert gap_closed(own, own + LOW + HIGH) is None

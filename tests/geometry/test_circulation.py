"""Line integrals of the one-form of a head along paths of level probabilities."""

import itertools
from functools import partial

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from sgrpo_lightning.geometry import (
    circulation,
    curl,
    log_mgf,
    one_form,
    one_form_jacobian,
    population_objective,
    work_along,
)

TAU = 0.3
LEVELS = TAU * np.log([1.0, 2.0, 4.0])
BORDER = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]], dtype=float)
ROAD = np.array([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1], [0.1, 0.1, 0.8]])


def softmax_head(rewards, *, tau=TAU):
    return rewards.shape[-1] * torch.softmax(rewards / tau, dim=-1) - 1


def leave_one_out_head(rewards):
    M = rewards.shape[-1]
    return (rewards - rewards.mean(dim=-1, keepdim=True)) * M / (M - 1)


def zscore_head(rewards):
    deviations = rewards - rewards.mean(dim=-1, keepdim=True)
    return deviations / (rewards.std(dim=-1, correction=0, keepdim=True) + 1e-6)


def slow_work(head, levels, start, end, M, pieces=2000):
    """Trapezoids of m . (end - start), with m from all K^M outcomes."""
    shares = np.linspace(0, 1, pieces + 1)
    points = start + shares[:, None] * (end - start)
    slope = np.zeros(pieces + 1)
    for outcome in itertools.product(range(len(levels)), repeat=M):
        own, others = outcome[0], outcome[1:]
        advantage = head(torch.tensor([levels[k] for k in outcome], dtype=torch.float64))[0].item()
        slope += np.prod([points[:, k] for k in others], axis=0) * advantage * (end - start)[own]
    return np.trapezoid(slope, shares)


@pytest.mark.parametrize(
    ("loop", "area"),
    [
        (BORDER, 1 / 2),  # (1, 0), (0, 1), (0, 0) in (p1, p2), counter-clockwise
        ([[0.5, 0.1, 0.4], [0.2, 0.6, 0.2], [0.2, 0.1, 0.7], [0.5, 0.1, 0.4]], 0.075),  # legs 0.3 and 0.5, right angle
        ([[0.4, 0.4, 0.2], [0.4, 0.2, 0.4], [0.2, 0.2, 0.6], [0.2, 0.4, 0.4], [0.4, 0.4, 0.2]], -0.04),  # clockwise
    ],
)
def test_stokes_on_the_counterexample_of_eq_8(loop, area):
    """dF2/dp1 - dF1/dp2 = 1/15 + 1/15 at every point."""
    assert_allclose(circulation(softmax_head, LEVELS, loop, M=2), area * 2 / 15, rtol=1e-13)
    assert_allclose(circulation(softmax_head, LEVELS, loop[::-1], M=2), -area * 2 / 15, rtol=1e-13)


def test_one_leg_by_hand():
    """F1 = -p2/15 - 3/5, F2 = p1/15 - 1/3: from (0, 0) to (0.5, 0.5) dp1 = dp2, where the p cancel."""
    found = circulation(softmax_head, LEVELS, [[0, 0, 1], [0.5, 0.5, 0]], M=2)
    assert_allclose(found, 0.5 * (-3 / 5 - 1 / 3), rtol=1e-13)


@pytest.mark.parametrize("head", [softmax_head, zscore_head])
@pytest.mark.parametrize("M", [1, 2, 3, 4, 5])
def test_against_trapezoids_over_all_outcomes(head, M):
    levels = [0.1, 0.4, 1.0]
    expected = [slow_work(head, levels, start, end, M) for start, end in itertools.pairwise(ROAD)]
    found = work_along(head, levels, ROAD, M=M)
    assert_allclose(found, expected, rtol=1e-5, atol=1e-12)  # the trapezoids' error, 1/2000^2 times a curvature
    assert_allclose(circulation(head, levels, ROAD, M=M), sum(expected), rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("M", [1, 2, 3, 4, 5, 8])
def test_polynomials_of_the_highest_degree_are_exact(M):
    """A = the product of the group's rewards has m_k = r_k mu^(M-1), the gradient of mu^M / M. It does not sum to 0;
    where advantages do, the degree along a leg is one less.
    """
    levels = np.array([0.1, 0.4, 1.0])
    found = work_along(lambda r: r.prod(-1, keepdim=True).expand(r.shape), levels, ROAD, M=M)
    assert_allclose(found, np.diff((ROAD @ levels) ** M) / M, rtol=1e-12)


def test_four_levels():
    levels, road = [0.0, 0.2, 0.7, 1.0], np.array([[0.1, 0.2, 0.3, 0.4], [0.4, 0.4, 0.0, 0.2]])
    expected = slow_work(softmax_head, levels, *road, M=4)
    assert_allclose(circulation(softmax_head, levels, road, M=4), expected, rtol=1e-5)  # as above


@pytest.mark.parametrize("M", [2, 7])
def test_rloo_claims_what_the_mean_reward_gains(M):
    levels = np.array([0.1, 0.4, 1.0])
    assert_allclose(work_along(leave_one_out_head, levels, ROAD, M=M), np.diff(ROAD @ levels), rtol=1e-12)
    closed = [*ROAD, ROAD[0]]
    assert_allclose(circulation(leave_one_out_head, levels, closed, M=M), 0, atol=1e-14)
    assert abs(circulation(softmax_head, levels, closed, M=M)) > 1e-2


@pytest.mark.parametrize("head", [softmax_head, zscore_head])
@pytest.mark.parametrize("M", [2, 9])
def test_sides_are_right_or_wrong(head, M):
    """Where two levels have all the probability, the claim is the objective of these two rewards."""
    for low, high in ((0, 1), (1, 2), (0, 2)):
        side = np.eye(3)[[low, high]]
        spread = LEVELS[high] - LEVELS[low]
        expected = population_objective(lambda r, spread=spread: head(spread * r), 1.0, M=M)
        assert_allclose(circulation(head, LEVELS, side, M=M), expected, rtol=1e-10)


def test_a_point_on_the_way_changes_nothing():
    halfway = np.insert(ROAD, 1, (ROAD[0] + ROAD[1]) / 2, axis=0)
    whole, parts = (work_along(softmax_head, LEVELS, road, M=6) for road in (ROAD, halfway))
    assert_allclose(parts[:2].sum(), whole[0], rtol=1e-13)
    assert_allclose(parts[2], whole[1], rtol=1e-13)


def test_large_groups_climb_the_log_mgf():
    """Eq. 7. The error falls like 1 / M."""
    gain = log_mgf(LEVELS, ROAD[-1], tau=TAU) - log_mgf(LEVELS, ROAD[0], tau=TAU)
    errors = [circulation(softmax_head, LEVELS, ROAD, M=M) - gain for M in (16, 32)]
    assert abs(errors[1]) < 0.03
    assert_allclose(errors[1] / errors[0], 0.5, rtol=0.1)  # the next order in 1/M is left out


def test_containers():
    assert isinstance(circulation(softmax_head, LEVELS, BORDER, M=3), float)
    path = torch.tensor(BORDER, dtype=torch.float32)
    found = circulation(softmax_head, LEVELS, path, M=2), work_along(softmax_head, LEVELS, path, M=2)
    assert [(part.dtype, part.shape) for part in found] == [(torch.float64, ()), (torch.float64, (3,))]
    assert_allclose(found[0], 1 / 15, rtol=1e-13)


@pytest.mark.parametrize(
    ("path", "M", "message"),
    [
        ([0.2, 0.5, 0.3], 2, r"path must be \[P, K\] with P >= 2 points, got \[3\]"),
        ([[0.2, 0.5, 0.3]], 2, r"path must be \[P, K\] with P >= 2 points, got \[1, 3\]"),
        ([[0.5, 0.5], [0.1, 0.9]], 2, r"probs \[..., K\], got \[3\] and \[2, 2\]"),
        ([[0.2, 0.5, 0.3], [0.2, 0.5, 0.4]], 2, "must sum to 1, got 1.1"),
        ([[0.2, 0.5, 0.3], [-0.2, 0.9, 0.3]], 2, r"must lie in \[0, 1\], got -0.2"),
        (BORDER, 0, "M must be an integer >= 1, got 0"),
        (BORDER, 10**4, "at most 67,108,864 enumerated advantages, got M = 10000 and K = 3"),
    ],
)
def test_errors_name_the_value(path, M, message):
    with pytest.raises(ValueError, match=message):
        circulation(softmax_head, LEVELS, path, M=M)


def test_position_dependent_heads_are_refused():
    with pytest.raises(ValueError, match="permutation-equivariant"):
        circulation(lambda r: r * torch.arange(r.shape[-1]), LEVELS, BORDER, M=4)


def test_many_points_at_once():
    """The one-form and its derivatives take [..., K]: each point as if it were alone."""
    probs = np.stack([ROAD, ROAD[::-1]])
    for function in (one_form, one_form_jacobian, curl):
        together = function(partial(softmax_head, tau=0.2), LEVELS, probs, M=4)
        alone = [[function(partial(softmax_head, tau=0.2), LEVELS, p, M=4) for p in row] for row in probs]
        assert_allclose(together, alone, rtol=1e-14)
        assert abs(together).max() > 0.01
    assert one_form_jacobian(softmax_head, LEVELS, probs, M=1).shape == (2, 3, 2, 2)

"""Shaping: hand arithmetic, the references' formulas completion by completion, and sums that come out exactly."""

import doctest
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sgrpo_lightning.rewards import shaping
from sgrpo_lightning.rewards.shaping import RewardShaping

FUZZ = settings(derandomize=True, max_examples=200, deadline=None)
LIMIT = 20

REWARDS = [[1.0, 0.0, 1.0, 0.5], [0.25, 1.0, 0.75, -2.0]]
LENGTHS = [[10, 20, 15, 12], [20, 20, 17, 20]]
TRUNCATED = [[False, True, False, False], [True, False, False, True]]


def shape(limit=LIMIT, rewards=REWARDS, **knobs):
    return RewardShaping(**knobs)(rewards, LENGTHS, TRUNCATED, limit=limit)


@pytest.mark.parametrize(
    ("penalty", "expected"),
    [
        ("linear", [[-0.5, -1.0, -0.75, -0.6], [-1.0, -1.0, -0.85, -1.0]]),
        # In the first group 0.5 - (length - 10) / 10; in the second 0.5 - (length - 17) / 3. Right: reward > 0.5.
        ("group", [[0.5, -0.5, 0.0, 0.0], [-0.5, -0.5, 0.5, -0.5]]),
    ],
)
def test_length_penalties_by_hand(penalty, expected):
    shaped = shape(length_penalty=penalty, length_weight=1.0)
    assert list(shaped.parts) == ["length"]
    np.testing.assert_allclose(shaped.parts["length"], expected, rtol=0, atol=1e-15)
    np.testing.assert_allclose(shaped.rewards, np.add(REWARDS, expected), rtol=0, atol=1e-15)
    half = shape(length_penalty=penalty, length_weight=0.5)
    np.testing.assert_allclose(half.parts["length"], np.array(expected) / 2, rtol=0, atol=1e-15)
    assert shaped.trains.all()


@pytest.mark.parametrize(
    ("overlong", "added"),
    [
        ("zero", [[0.0, 0.0, 0.0, 0.0], [-0.25, 0.0, 0.0, 0.0]]),
        # The buffer is 0.2 * 20 = 4 tokens: 17 of them are a quarter of the way from 16 to 20.
        ("soft", [[0.0, -1.0, 0.0, 0.0], [-1.0, -1.0, -0.25, -1.0]]),
    ],
)
def test_overlong_completions_by_hand(overlong, added):
    shaped = shape(overlong=overlong)
    assert list(shaped.parts) == ["overlong"]
    np.testing.assert_array_equal(shaped.parts["overlong"], added)
    np.testing.assert_array_equal(shaped.rewards, np.add(REWARDS, added))
    assert shaped.trains.all()
    assert not np.signbit(shaped.parts["overlong"][0, 0])  # no -0 in what is reported


def test_masked_completions_do_not_train_and_keep_their_reward():
    shaped = shape(overlong="mask")
    np.testing.assert_array_equal(shaped.trains, np.logical_not(TRUNCATED))
    np.testing.assert_array_equal(shaped.rewards, REWARDS)
    assert shaped.parts == {}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_default_nothing_happens(dtype):
    rewards = np.array([[0.1, -0.0, 1e-30, np.pi]], dtype)
    shaped = RewardShaping()(rewards, [[1, 2, 3, 9]], [[False, True, False, True]], limit=9)
    assert shaped.rewards.astype(dtype).tobytes() == rewards.tobytes()
    assert shaped.parts == {}
    assert shaped.trains.dtype == bool
    assert shaped.trains.tolist() == [[True] * 4]


def test_a_completion_never_gains_by_being_cut_off():
    shaped = RewardShaping(overlong="zero", length_penalty="linear", length_weight=0.1)(
        [[1.0, 0.0, -3.0, 0.0]], [[20, 20, 20, 19]], [[True, True, True, False]], limit=20
    )
    assert shaped.rewards.tolist() == [[-0.1, -0.1, -3.1, pytest.approx(-0.095)]]


SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 6))
KNOBS = st.fixed_dictionaries(
    {
        "length_penalty": st.sampled_from(["none", "linear", "group"]),
        "length_weight": st.floats(0, 10),
        "overlong": st.sampled_from(["keep", "zero", "mask", "soft"]),
        "overlong_buffer": st.floats(0.01, 1),
    }
)


@st.composite
def rollouts(draw):
    """Rewards, lengths up to 50 tokens, and who was cut off; all [G, M]."""
    size = draw(SHAPES)
    rewards = draw(arrays.arrays(np.float64, size, elements=st.floats(-10, 10)))
    lengths = draw(arrays.arrays(np.int64, size, elements=st.integers(0, 50)))
    return rewards, lengths, draw(arrays.arrays(np.bool_, size))


@FUZZ
@given(rollouts(), KNOBS)
def test_what_is_reported_adds_up_exactly(rollout, knobs):
    rewards, before = rollout[0], rollout[0].copy()
    shaped = RewardShaping(**knobs)(*rollout, limit=50)
    total = rewards
    for part in shaped.parts.values():
        total = total + part
    np.testing.assert_array_equal(shaped.rewards, total)
    np.testing.assert_array_equal(rewards, before)
    active = {"overlong": knobs["overlong"] in ("zero", "soft"), "length": knobs["length_penalty"] != "none"}
    assert list(shaped.parts) == [name for name in ("overlong", "length") if active[name]]
    assert {part.dtype for part in shaped.parts.values()} | {shaped.rewards.dtype} == {np.dtype(np.float64)}


@FUZZ
@given(rollouts())
def test_the_group_penalty_completion_by_completion(rollout):
    rewards, lengths, _ = rollout
    found = RewardShaping(length_penalty="group", length_weight=1.0)(*rollout, limit=50).parts["length"]
    for group, row in enumerate(lengths.tolist()):
        for sample, length in enumerate(row):
            expected = 0.0
            if max(row) > min(row):
                expected = 0.5 - (length - min(row)) / (max(row) - min(row))
                expected = expected if rewards[group, sample] > 0.5 else min(0.0, expected)
            assert found[group, sample] == expected


@FUZZ
@given(rollouts(), st.integers(1, 60), st.floats(0.01, 1))
def test_the_soft_handling_completion_by_completion(rollout, limit, share):
    rewards, lengths, truncated = rollout
    found = RewardShaping(overlong="soft", overlong_buffer=share)(*rollout, limit=limit).parts["overlong"]
    buffer = share * limit
    for place in np.ndindex(rewards.shape):
        length = int(lengths[place])
        if truncated[place] or length > limit:
            expected = -1.0
        elif length <= limit - buffer:
            expected = 0.0
        else:
            expected = ((limit - buffer) - length) / buffer
        assert found[place] == pytest.approx(expected, abs=1e-12)


def test_the_setting_of_the_reference():
    """16,384 tokens and a buffer of 4,096: nothing up to the one, everything after both."""
    lengths = [[16384, 16385, 18432, 20479, 20480]]
    shaped = RewardShaping(overlong="soft")(np.zeros((1, 5)), lengths, np.zeros((1, 5), bool), limit=20480)
    np.testing.assert_allclose(shaped.rewards, [[0, -1 / 4096, -0.5, -4095 / 4096, -1]], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"length_penalty": "quadratic"}, "length_penalty must be one of none, linear, group, got 'quadratic'"),
        ({"length_penalty": None}, "length_penalty must be one of none, linear, group, got None"),
        ({"overlong": "drop"}, "overlong must be one of keep, zero, mask, soft, got 'drop'"),
        ({"length_weight": -0.1}, "length_weight must be finite and >= 0, got -0.1"),
        ({"length_weight": math.inf}, "length_weight must be finite and >= 0, got inf"),
        ({"length_weight": math.nan}, "length_weight must be finite and >= 0, got nan"),
        ({"overlong_buffer": 0}, r"overlong_buffer must be a share of the limit in \(0, 1\], got 0"),
        ({"overlong_buffer": 4096}, r"overlong_buffer must be a share of the limit in \(0, 1\], got 4096"),
        ({"overlong_buffer": math.nan}, r"overlong_buffer must be a share of the limit in \(0, 1\], got nan"),
    ],
)
def test_refuses_bad_settings(knobs, message):
    with pytest.raises(ValueError, match=message):
        RewardShaping(**knobs)


@pytest.mark.parametrize(
    ("rewards", "lengths", "truncated"),
    [
        ([1.0, 0.0], [1, 2], [True, False]),
        ([[1.0, 0.0]], [[1], [2]], [[True, False]]),
        ([[1.0, 0.0]], [[1, 2]], [[True]]),
    ],
)
def test_refuses_arrays_of_other_shapes(rewards, lengths, truncated):
    with pytest.raises(ValueError, match=r"expected three arrays \[G, M\], got shapes"):
        RewardShaping()(rewards, lengths, truncated, limit=5)


def test_refuses_a_limit_of_nothing():
    with pytest.raises(ValueError, match="limit must be > 0 tokens, got 0"):
        shape(limit=0)


def test_doctests():
    failed, tried = doctest.testmod(shaping)
    assert (failed, tried > 0) == (0, True)

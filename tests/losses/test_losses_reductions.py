"""Token weights against loops written from the definitions."""

import random
from functools import partial

import pytest
import torch

from sgrpo_lightning.losses import fixed_length, group_token_mean, sequence_mean, token_mean

LENGTH = 5


def loop_group_token_mean(mask, group_id):
    groups = {}
    for i, row in enumerate(mask):
        groups.setdefault(group_id[i], []).extend((i, t) for t, on in enumerate(row) if on)
    groups = {g: tokens for g, tokens in groups.items() if tokens}
    weights = [[0.0] * len(row) for row in mask]
    for tokens in groups.values():
        for i, t in tokens:
            weights[i][t] = 1 / len(tokens) / len(groups)
    return weights


def loop_token_mean(mask, group_id):
    total = sum(sum(row) for row in mask)
    return [[on / total if on else 0.0 for on in row] for row in mask]


def loop_sequence_mean(mask, group_id):
    rows = sum(any(row) for row in mask)
    return [[1 / sum(row) / rows if on else 0.0 for on in row] for row in mask]


def loop_fixed_length(mask, group_id):
    return [[on / (len(mask) * LENGTH) for on in row] for row in mask]


CASES = {
    "group_token_mean": (group_token_mean, loop_group_token_mean),
    "token_mean": (token_mean, loop_token_mean),
    "sequence_mean": (sequence_mean, loop_sequence_mean),
    "fixed_length": (partial(fixed_length, length=LENGTH), loop_fixed_length),
}
SUM_TO_ONE = ["group_token_mean", "token_mean", "sequence_mean"]


def random_batch(seed):
    """Rows of a group are not adjacent, ids are arbitrary, some rows and groups have no tokens."""
    draw = random.Random(seed)
    n, t = draw.randint(1, 9), draw.randint(1, 6)
    share = draw.choice([0.1, 0.5, 0.9])
    mask = [[draw.random() < share for _ in range(t)] for _ in range(n)]
    return mask, [draw.choice([-4, 3, 1000]) for _ in range(n)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(40))
def test_equals_the_loop(name, seed):
    reduction, loop = CASES[name]
    mask, group_id = random_batch(seed)
    weights = reduction(torch.tensor(mask), torch.tensor(group_id))
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.tolist(), loop(mask, group_id), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", SUM_TO_ONE)
@pytest.mark.parametrize("seed", range(40))
def test_weights_sum_to_one(name, seed):
    mask, group_id = (torch.tensor(x) for x in random_batch(seed))
    expected = 1.0 if mask.any() else 0.0
    assert CASES[name][0](mask, group_id).sum().item() == pytest.approx(expected, abs=1e-6)


def test_fixed_length_sums_to_mean_length_over_length():
    mask = torch.tensor([[True, True, True], [True, False, False]])  # mean length 2
    weights = fixed_length(mask, torch.tensor([0, 0]), length=8)
    assert weights.sum().item() == pytest.approx(2 / 8)
    assert weights[mask].tolist() == [1 / 16] * 4


def test_equation_10_by_hand():
    # Prompt a: rows of 3 and 1 tokens; prompt b: one row of 2; prompt c: nothing trains.
    # Two prompts count: a's tokens get 1/2 * 1/4, b's 1/2 * 1/2.
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]], dtype=torch.bool)
    weights = group_token_mean(mask, torch.tensor([5, 2, 5, 9]))
    expected = [[1 / 8] * 3, [1 / 4, 1 / 4, 0], [1 / 8, 0, 0], [0, 0, 0]]
    assert weights.tolist() == expected


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (3, 0), (0, 0)])
def test_no_trained_token_gives_zeros(name, shape):
    weights = CASES[name][0](torch.zeros(shape, dtype=torch.bool), torch.arange(shape[0]))
    assert weights.shape == shape
    assert torch.equal(weights, torch.zeros(shape))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("ranks", [[0, 0, 1, 1, 0], [1, 1, 1, 1, 1]])  # in the second, rank 0 has no rows
def test_ranks_agree_with_the_whole_batch(name, ranks):
    reduction, _ = CASES[name]
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 0]], dtype=torch.bool)
    group_id = torch.tensor([4, 4, 8, 8, 6])
    rows = [[i for i, r in enumerate(ranks) if r == rank] for rank in (0, 1)]
    counts = []  # what each rank would contribute to the all-reduce
    for own in rows:
        reduction(mask[own], group_id[own], all_sum=lambda c: counts.append(c) or c)
    assert len(counts) == 2, "each rank must call all_sum exactly once"
    whole = reduction(mask, group_id)
    for own in rows:
        part = reduction(mask[own], group_id[own], all_sum=lambda _: counts[0] + counts[1])
        torch.testing.assert_close(part, whole[own])


@pytest.mark.parametrize("name", CASES)
def test_rejects_wrong_inputs(name):
    reduction = CASES[name][0]
    with pytest.raises(ValueError, match=r"loss_mask must be bool .* got torch.float32"):
        reduction(torch.ones(2, 3), torch.zeros(2, dtype=torch.long))
    with pytest.raises(ValueError, match=r"group_id must have one entry per row .* \[2\], got \[3\]"):
        reduction(torch.ones(2, 3, dtype=torch.bool), torch.zeros(3, dtype=torch.long))


def test_fixed_length_rejects_no_length():
    with pytest.raises(ValueError, match="length must be >= 1 token, got 0"):
        fixed_length(torch.ones(2, 3, dtype=torch.bool), torch.zeros(2, dtype=torch.long), length=0)

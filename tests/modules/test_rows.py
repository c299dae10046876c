"""Rows and micro-batches, token by token."""

import itertools

import pytest
import torch
from fixed_samples import ADVANTAGES, G, M, T, made_up_samples, text_of

from sgrpo_lightning.modules.rows import cut, join_rows, micro_batches, scatter

N = G * M


@pytest.fixture
def samples():
    return made_up_samples(300)


@pytest.fixture
def rows(samples):
    return join_rows(samples, ADVANTAGES)


def test_rows_hold_prompt_and_completion_side_by_side(rows, samples):
    for row in range(N):
        prompt, completion = text_of(samples, row)
        assert torch.equal(rows.input_ids[row, : len(prompt) + len(completion)], torch.cat([prompt, completion]))
        assert (rows.prompt_length[row], rows.length[row]) == (len(prompt), len(prompt) + len(completion))
    assert rows.group_id.tolist() == [row // M for row in range(N)]
    assert torch.equal(rows.advantages.view(G, M), ADVANTAGES)


def cut_up(rows, chosen, weights, shares, *, size, count):
    return micro_batches(rows, cut(rows.length, chosen, rows=size), weights, shares, count=count)


@pytest.mark.parametrize("size", [1, 2, 3, 5, N, 100])
@pytest.mark.parametrize("chosen", [list(range(N)), [7, 2, 11, 3, 4], [5]])
def test_every_token_trains_exactly_once(rows, samples, size, chosen):
    weights, shares = torch.rand(N, T), torch.rand(N, T)
    batches = cut_up(rows, torch.tensor(chosen), weights, shares, size=size, count=N)
    assert len(batches) == N
    trained = []
    for batch in batches:
        assert len(batch.input_ids) <= size
        for k in range(len(batch.row)):
            row, token = divmod(batch.source[k].item(), T)
            text = torch.cat(text_of(samples, row))
            prompt_length = len(text_of(samples, row)[0])
            assert torch.equal(batch.input_ids[batch.row[k], : len(text)], text)
            assert batch.position[k] == prompt_length + token - 1
            assert batch.target[k] == text[prompt_length + token]
            assert batch.advantage[k] == ADVANTAGES[row // M, row % M]
            if batch.weight[k] != 0:
                assert (batch.weight[k], batch.share[k]) == (weights[row, token], shares[row, token])
                trained.append((row, token))
    assert sorted(trained) == [(r, t) for r in sorted(chosen) for t in range(T) if samples.completion_mask[r, t]]


def test_rows_of_like_length_share_a_micro_batch(rows):
    batches = cut_up(rows, torch.arange(N), torch.ones(N, T), torch.ones(N, T), size=4, count=3)
    lengths = [rows.length[batch.source.div(T, rounding_mode="floor").unique()].tolist() for batch in batches]
    assert sorted(length for part in lengths for length in part) == sorted(rows.length.tolist())
    assert all(max(a) <= min(b) for a, b in itertools.pairwise(lengths))
    assert [batch.input_ids.shape[1] for batch in batches] == [max(part) for part in lengths]


def test_missing_micro_batches_are_one_row_without_weight(rows):
    batches = cut_up(rows, torch.tensor([0]), torch.ones(N, T), torch.ones(N, T), size=2, count=4)
    assert len(batches) == 4
    for batch in batches[1:]:
        assert (len(batch.input_ids), len(batch.target) > 0) == (1, True)
        assert (batch.weight == 0).all()
        assert (batch.share == 0).all()


def test_nothing_to_learn_from(rows):
    nothing = torch.tensor([], dtype=torch.long)
    batches = cut_up(rows, nothing, torch.ones(N, T), torch.ones(N, T), size=2, count=2)
    assert [batch.weight.sum().item() for batch in batches] == [0, 0]


def test_too_many_rows_is_a_fault_of_the_plan(rows):
    with pytest.raises(AssertionError, match="3 parts do not fit in 2 micro-batches"):
        cut_up(rows, torch.arange(N), torch.ones(N, T), torch.ones(N, T), size=4, count=2)


def test_tables_are_read_and_filled_at_the_right_places(rows):
    rows.behavior_logprobs = torch.arange(N * T).view(N, T).float()
    batches = cut_up(rows, torch.tensor([3, 8]), torch.ones(N, T), torch.ones(N, T), size=1, count=2)
    for batch in batches:
        assert torch.equal(batch.behavior_logprobs, batch.source.float())
        assert batch.reference_logprobs is None
    table = scatter("behavior_logprobs", batches, rows.loss_mask)
    learned = torch.zeros(N, T, dtype=torch.bool)
    learned[[3, 8]] = rows.loss_mask[[3, 8]]
    assert torch.equal(table, torch.where(learned, rows.behavior_logprobs, 0.0))


def test_micro_batches_move_as_one(rows):
    batch = cut_up(rows, torch.arange(N), torch.ones(N, T), torch.ones(N, T), size=N, count=1)[0]
    moved = batch.to("meta")
    assert moved.target.device.type == moved.weight.device.type == "meta"
    assert moved.behavior_logprobs is None

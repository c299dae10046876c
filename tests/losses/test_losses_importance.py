"""Importance weights for a sampler that is not the policy."""

import itertools
import math

import pytest
import torch

from sgrpo_lightning.losses import sequence_importance, token_importance

BEHAVIOR = torch.tensor([[0.5, 0.9, 0.2], [0.3, 0.3, 0.3]]).log()
SAMPLER = torch.tensor([[0.4, 0.3, 0.4], [0.5, 0.3, 0.1]]).log()
TRAINS = torch.tensor([[True, True, True], [True, True, False]])


def test_token_weights_by_hand():
    """0.5 / 0.4, 0.9 / 0.3 cut at 2, 0.2 / 0.4; 0.3 / 0.5, 1, and a token that does not train."""
    found = token_importance(BEHAVIOR, SAMPLER, TRAINS)
    torch.testing.assert_close(found, torch.tensor([[1.25, 2.0, 0.5], [0.6, 1.0, 1.0]]))
    masked = token_importance(BEHAVIOR, SAMPLER, TRAINS, mask=True)
    torch.testing.assert_close(masked, torch.tensor([[1.25, 0.0, 0.5], [0.6, 1.0, 1.0]]))


def test_sequence_weights_by_hand():
    """1.25 x 3 x 0.5 = 1.875 of the whole row; 0.6 of the two tokens that train."""
    found = sequence_importance(BEHAVIOR, SAMPLER, TRAINS, cap=10)
    torch.testing.assert_close(found, torch.tensor([[1.875] * 3, [0.6, 0.6, 1.0]]))
    cut = sequence_importance(BEHAVIOR, SAMPLER, TRAINS, cap=1.5)
    torch.testing.assert_close(cut[0], torch.tensor([1.5] * 3))
    masked = sequence_importance(BEHAVIOR, SAMPLER, TRAINS, cap=1.5, mask=True)
    torch.testing.assert_close(masked, torch.tensor([[0.0] * 3, [0.6, 0.6, 1.0]]))


def test_sequence_weights_undo_the_gap_in_expectation():
    """All 3^2 rows of two tokens, enumerated: the sampler's mean with weights is the policy's without."""
    p = torch.tensor([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]], dtype=torch.float64)
    q = torch.tensor([[0.3, 0.3, 0.4], [0.4, 0.3, 0.3]], dtype=torch.float64)
    rows = torch.tensor(list(itertools.product(range(3), repeat=2)))
    value = torch.arange(9.0).double() ** 2
    under_p, under_q = (table.gather(1, rows.T).T for table in (p, q))
    weights = sequence_importance(under_p.log(), under_q.log(), torch.ones(9, 2).bool(), cap=100)
    wanted = (under_p.prod(1) * value).sum()
    assert (under_q.prod(1) * weights[:, 0] * value).sum().item() == pytest.approx(wanted.item())
    assert (under_q.prod(1) * value).sum().item() != pytest.approx(wanted.item(), rel=0.05)


@pytest.mark.parametrize("importance", [token_importance, sequence_importance])
def test_where_both_agree_every_weight_is_one(importance):
    assert torch.equal(importance(BEHAVIOR, BEHAVIOR, TRAINS), torch.ones(2, 3))


@pytest.mark.parametrize("importance", [token_importance, sequence_importance])
def test_what_is_not_known_counts_for_nothing(importance):
    behavior = torch.tensor([[math.nan, -1.0]])
    assert importance(behavior, torch.zeros(1, 2) - 1, torch.ones(1, 2).bool())[0, 0] == 0
    huge = importance(torch.zeros(1, 1), torch.full((1, 1), -1e4), torch.ones(1, 1).bool(), cap=1e12)
    assert huge.item() == pytest.approx(math.exp(20))


@pytest.mark.parametrize("importance", [token_importance, sequence_importance])
def test_a_cap_below_one(importance):
    with pytest.raises(ValueError, match=r"cap must be >= 1, got 0\.5"):
        importance(BEHAVIOR, SAMPLER, TRAINS, cap=0.5)
    with pytest.raises(ValueError, match="cap must be >= 1, got nan"):
        importance(BEHAVIOR, SAMPLER, TRAINS, cap=math.nan)


def test_weights_carry_no_gradient():
    behavior = BEHAVIOR.clone().requires_grad_()
    assert not token_importance(behavior, SAMPLER, TRAINS).requires_grad

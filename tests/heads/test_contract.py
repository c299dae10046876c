"""The decorator: what it records, what it hides and what it guarantees to a new head."""

import inspect
import pickle
from functools import partial

import pytest
import torch

from sgrpo_lightning import heads
from sgrpo_lightning.heads import advantage_head, softmax_grpo_advantages
from sgrpo_lightning.heads.contract import Groups


@advantage_head("zero_sum")
def doubled(groups, *, factor=2.0):
    """Twice the deviation."""
    return groups.deviations() * factor


def test_a_new_head_gets_the_contract():
    assert doubled.declares == frozenset({"zero_sum"})
    assert doubled.__doc__ == "Twice the deviation."
    assert str(inspect.signature(doubled)).startswith("(rewards")
    assert doubled(torch.tensor([1.0, 0.0]), factor=3.0).tolist() == [1.5, -1.5]
    assert doubled(rewards=torch.tensor([1.0, 0.0], dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_unknown_declarations_are_refused():
    with pytest.raises(ValueError, match=r"declares must be among \[.*\], got \['sums_to_zero'\]"):
        advantage_head("sums_to_zero")


def test_the_package_exports_every_head_and_knobs_are_keywords():
    for name in set(heads.__all__) - {"advantage_head"}:
        first, *knobs = inspect.signature(getattr(heads, name)).parameters.values()
        assert first.name == "rewards"
        assert all(knob.kind is inspect.Parameter.KEYWORD_ONLY for knob in knobs)


def test_heads_travel_between_processes():
    head = pickle.loads(pickle.dumps(partial(softmax_grpo_advantages, tau=0.5)))
    rewards = torch.tensor([0.0, 1.0])
    assert torch.equal(head(rewards), softmax_grpo_advantages(rewards, tau=0.5))


def test_float16_saturates_instead_of_overflowing():
    # 65504 - (-65504 * 3 + 65504) / 4 = 98256 > 65504
    rewards = torch.tensor([65504.0, -65504.0, -65504.0, -65504.0], dtype=torch.float16)
    assert doubled(rewards, factor=1.0).tolist() == [65504, -32752, -32752, -32752]


def test_positions_run_from_the_lowest_to_the_highest():
    rewards = torch.tensor([[2.0, 6.0, 3.0], [5.0, 5.0, 5.0]])
    groups = Groups(rewards, rewards.amin(-1, keepdim=True), rewards.amax(-1, keepdim=True))
    assert groups.positions().tolist() == [[0, 1, 0.25], [0, 0, 0]]
    assert groups.size == 3
    # mean 11 / 3
    torch.testing.assert_close(groups.deviations()[0], torch.tensor([-5 / 3, 7 / 3, -2 / 3]))
    assert groups.deviations()[1].tolist() == [0, 0, 0]

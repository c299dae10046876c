import pytest

from sgrpo_lightning.modules import UpdatePlan

PLAN = {
    "prompts_per_iteration": 8,
    "samples_per_group": 3,
    "ppo_epochs": 2,
    "minibatches": 2,
    "micro_batch_size": 5,
    "seed": 0,
}


def test_sizes_by_hand():
    """8 prompts in 2 minibatches are 4 groups, 12 rows, 3 micro-batches of 5; on 2 ranks 2 groups, 6 rows, 2."""
    plan = UpdatePlan(**PLAN)
    assert plan.steps == 4
    assert [plan.groups_per_minibatch(world_size=n) for n in (1, 2, 4)] == [4, 2, 1]
    assert [plan.micro_batches(world_size=n) for n in (1, 2, 4)] == [3, 2, 1]


@pytest.mark.parametrize("name", [name for name in PLAN if name != "seed"])
def test_sizes_below_one(name):
    with pytest.raises(ValueError, match=f"{name} must be >= 1, got 0"):
        UpdatePlan(**PLAN | {name: 0})


def test_prompts_that_do_not_divide():
    with pytest.raises(ValueError, match=r"multiple of minibatches x ranks = 2 x 1, got 7"):
        UpdatePlan(**PLAN | {"prompts_per_iteration": 7})
    with pytest.raises(ValueError, match=r"multiple of minibatches x ranks = 2 x 3, got 8"):
        UpdatePlan(**PLAN).groups_per_minibatch(world_size=3)

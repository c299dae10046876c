import pytest

from sgrpo_lightning.modules import StepPlan, UpdatePlan

PLAN = {
    "prompts_per_iteration": 8,
    "samples_per_group": 3,
    "ppo_epochs": 2,
    "minibatches": 2,
    "micro_batch_size": 5,
    "seed": 0,
    "tokens_per_micro_batch": 30,
}


def test_sizes_by_hand():
    """8 prompts in 2 minibatches are 4 groups; on 2 ranks 2, on 4 ranks 1."""
    plan = UpdatePlan(**PLAN)
    assert plan.steps == 4
    assert [plan.groups_per_minibatch(world_size=n) for n in (1, 2, 4)] == [4, 2, 1]


@pytest.mark.parametrize("name", [name for name in PLAN if name != "seed"])
def test_sizes_below_one(name):
    with pytest.raises(ValueError, match=f"{name} must be >= 1, got 0"):
        UpdatePlan(**PLAN | {name: 0})


def test_prompts_that_do_not_divide():
    with pytest.raises(ValueError, match=r"multiple of minibatches x ranks = 2 x 1, got 7"):
        UpdatePlan(**PLAN | {"prompts_per_iteration": 7})
    with pytest.raises(ValueError, match=r"multiple of minibatches x ranks = 2 x 3, got 8"):
        UpdatePlan(**PLAN).groups_per_minibatch(world_size=3)


STEPS = {"total_steps": 12, "steps": 4, "batch_size": 12, "micro_batch_size": None, "seed": 0}


def test_step_sizes_by_hand():
    """12 steps in iterations of 4 are 3 iterations; 12 images in micro-batches of 4 are 3, on any number of ranks."""
    assert StepPlan(**STEPS).iterations == 3
    assert [StepPlan(**STEPS).micro_batches(world_size=n) for n in (1, 2, 3)] == [1, 1, 1]
    small = StepPlan(**STEPS | {"micro_batch_size": 4})
    assert [small.micro_batches(world_size=n) for n in (1, 2, 4)] == [3, 3, 3]


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"total_steps": 0}, "steps must be >= 1, got 0"),
        ({"steps": 0}, "steps_per_iteration must be >= 1, got 0"),
        ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
        ({"total_steps": 13}, "steps must be a multiple of steps_per_iteration = 4, got 13"),
        ({"micro_batch_size": 0}, "micro_batch_size must divide batch_size = 12, got 0"),
        ({"micro_batch_size": 5}, "micro_batch_size must divide batch_size = 12, got 5"),
    ],
)
def test_step_sizes_that_cannot_be(knobs, message):
    with pytest.raises(ValueError, match=message):
        StepPlan(**STEPS | knobs)


def test_a_micro_batch_that_ranks_cannot_share():
    with pytest.raises(ValueError, match="must be a multiple of 3 ranks, got 4"):
        StepPlan(**STEPS | {"micro_batch_size": 4}).micro_batches(world_size=3)

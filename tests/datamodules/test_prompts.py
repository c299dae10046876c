"""Which questions an iteration asks."""

from collections import Counter

import pytest

from datamodules.prompts import PromptDataModule, RolloutBuffer
from sgrpo_lightning.modules import UpdatePlan
from sgrpo_lightning.tasks import Example


class Task:
    train = [Example(str(n), n) for n in range(10)]  # noqa: RUF012


def data(prompts=4, seed=0):
    plan = UpdatePlan(
        prompts_per_iteration=prompts, samples_per_group=2, ppo_epochs=1, minibatches=1, micro_batch_size=3, seed=seed
    )
    return PromptDataModule(None, Task(), plan=plan)


def asked(module, iterations, **ranks):
    return [example.answer for i in iterations for example in module.prompts(i, **ranks)]


def test_each_pass_is_a_new_permutation():
    """Ten questions, four at a time: five iterations are two passes."""
    twice = asked(data(), range(5))
    assert Counter(twice) == dict.fromkeys(range(10), 2)
    assert sorted(twice[:10]) == sorted(twice[10:]) == list(range(10))
    assert twice[:10] != twice[10:]
    assert twice[:10] != list(range(10))


def test_an_iteration_is_a_function_of_seed_and_number():
    assert asked(data(), [7]) == asked(data(), range(8))[-4:]
    assert asked(data(seed=0), range(5)) != asked(data(seed=1), range(5))


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_share_an_iteration(world_size):
    shares = [asked(data(), [3], rank=rank, world_size=world_size) for rank in range(world_size)]
    assert {len(share) for share in shares} == {4 // world_size}
    assert sorted(n for share in shares for n in share) == sorted(asked(data(), [3]))


def test_more_prompts_than_questions():
    """Twenty-five of ten: each is asked two or three times."""
    assert set(Counter(asked(data(prompts=25), [0])).values()) == {2, 3}


def test_the_buffer_has_the_length_of_an_iteration():
    """Four groups of two rows in micro-batches of three: three of them."""
    module = data()
    module.setup("fit")
    assert len(module.buffer) == 3
    module.buffer.fill(["a", "b", "c"])
    assert list(module.train_dataloader()) == ["a", "b", "c"]
    module.buffer.fill(["d", "e", "f"])
    assert list(module.train_dataloader()) == ["d", "e", "f"]
    with pytest.raises(AssertionError, match="1 micro-batches for 3 places"):
        module.buffer.fill(["a"])
    assert len(RolloutBuffer(2)) == 2

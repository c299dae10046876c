"""Which questions an iteration asks."""

from collections import Counter
from types import SimpleNamespace

import pytest

from datamodules.prompts import PromptDataModule, RolloutBuffer
from sgrpo_lightning.modules import UpdatePlan
from sgrpo_lightning.tasks import Example
from sgrpo_lightning.tasks.survey import DataChanged


class Task:
    """Ten questions to train on and ten held out."""

    def __init__(self, train=range(10), held_out=range(10, 20)):
        self.train, self.held_out = ([Example("1" * n, n) for n in side] for side in (train, held_out))


NO_POLICY = SimpleNamespace(tokenizer=None)


def data(prompts=4, seed=0, task=None, policy=NO_POLICY, **limit):
    plan = UpdatePlan(
        prompts_per_iteration=prompts, samples_per_group=2, ppo_epochs=1, minibatches=1, micro_batch_size=3, seed=seed
    )
    return PromptDataModule(policy, task or Task(), plan=plan, **limit)


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


def test_the_buffer_has_the_length_of_what_fills_it():
    module = data()
    module.setup("fit")
    assert len(module.buffer) > 1e9
    module.buffer.fill(["a", "b", "c"])
    assert list(module.train_dataloader()) == ["a", "b", "c"]
    module.buffer.fill(["d", "e", "f"])
    assert list(module.train_dataloader()) == ["d", "e", "f"]
    module.buffer.fill(["g"])
    assert list(module.train_dataloader()) == ["g"]
    with pytest.raises(AssertionError, match="nothing was filled in"):
        RolloutBuffer()[0]


def test_long_prompts_are_left_out_not_cut(make_policy):
    """A prompt of n ones is n / 2 tokens, rounded up, beside the two of the chat template."""
    policy, task = make_policy(), Task()
    before = [example.prompt for example in [*task.train, *task.held_out]]
    module = data(task=task, policy=policy, max_prompt_tokens=8)
    assert [example.answer for example in task.train] == list(range(10))
    assert [example.answer for example in task.held_out] == [10, 11, 12]
    assert [example.prompt for example in [*task.train, *task.held_out]] == before[:13]
    assert module.notes == ["left out: 7 of 10 held_out prompts, over 8 tokens"]
    with pytest.raises(ValueError, match="the task has no held_out prompt of at most max_prompt_tokens = 6 tokens"):
        data(policy=policy, max_prompt_tokens=6)
    with pytest.raises(ValueError, match="max_prompt_tokens must be >= 1, or null for no limit, got 0"):
        data(policy=policy, max_prompt_tokens=0)
    with pytest.raises(ValueError, match=r"the task has no held_out prompt$"):
        data(task=Task(held_out=[]))


def test_the_fingerprint_is_that_of_the_examples_in_order():
    """Not of the run's seed, nor of objects: another process finds the same."""
    same = data(seed=1).fingerprint
    assert data().fingerprint == same == "0ceac9ae19378898f0b0e33d192e820e"
    changed = Task()
    changed.held_out[3] = Example(changed.held_out[3].prompt, "13")
    system = Task()
    system.train[0] = Example(system.train[0].prompt, 0, system="Count.")
    reference = Task()
    reference.train[0] = Example(reference.train[0].prompt, 0, "none")
    others = [
        reference,
        Task(train=range(9)),
        Task(train=[1, 0, *range(2, 10)]),
        Task(range(11), range(11, 20)),
        changed,
        system,
    ]
    assert len({data(task=task).fingerprint for task in others} | {same}) == 7


def test_other_data_is_refused_at_a_resume():
    kept = data().state_dict()
    data(seed=1).load_state_dict(kept)
    data().load_state_dict({})  # a checkpoint from before there was one
    with pytest.raises(DataChanged, match=r"the data is not what the run began with \(fingerprint .{8}, was .{8}\)"):
        data(task=Task(train=range(9))).load_state_dict(kept)

"""Grading a rollout."""

import warnings

import pytest
import torch
from toys import LetterTask

from sgrpo_lightning.modules.rollout import roll_out
from sgrpo_lightning.rewards import Outcome
from sgrpo_lightning.samplers.hf import HFSampler


class Scaled(LetterTask):
    """Rewards of a given size."""

    def __init__(self, reward):
        super().__init__()
        self.reward = reward

    def grade(self, completion, example):
        return Outcome(self.reward, "ok", completion)


def sample(policy, reward):
    task, generator = Scaled(reward), torch.Generator().manual_seed(0)
    return roll_out(policy, HFSampler(max_new_tokens=2), task, task.train[:2], samples_per_group=2, generator=generator)


@pytest.mark.parametrize("reward", [-0.1, 1.5])
def test_rewards_outside_of_the_unit_interval_warn(make_policy, reward):
    with pytest.warns(UserWarning, match=r"rewards leave \[0, 1\]"):
        assert sample(make_policy(), reward).rewards.eq(torch.tensor(reward)).all()


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_rewards_inside_do_not(make_policy, reward):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sample(make_policy(), reward)


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_costs_its_sample_the_reward(make_policy, reward):
    rollout = sample(make_policy(), reward)
    assert rollout.rewards.eq(0).all()
    assert rollout.statuses() == {"error": 4}

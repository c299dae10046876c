"""Grading a rollout, and what training makes of its rewards."""

import logging
import warnings
from functools import partial

import pytest
import torch
from loop import run
from toys import LetterTask

from sgrpo_lightning.callbacks import HeldOutEvaluation
from sgrpo_lightning.callbacks.samples import sample_records
from sgrpo_lightning.heads import grpo_advantages, softmax_grpo_advantages
from sgrpo_lightning.modules.rollout import grade_safely, roll_out
from sgrpo_lightning.modules.rows import join_rows
from sgrpo_lightning.rewards import FunctionGrader, Outcome, RewardShaping, WeightedSum
from sgrpo_lightning.samplers.hf import HFSampler
from sgrpo_lightning.tasks import Example, answers_to


class Scaled(LetterTask):
    """Rewards of a given size."""

    def __init__(self, reward):
        super().__init__()
        self.reward = reward

    def grade_one(self, completion, gold):
        return Outcome(self.reward, "ok", completion)


class Graded(LetterTask):
    """A task with a grader of its own."""

    def __init__(self, grader, **knobs):
        super().__init__(**knobs)
        self.grade = grader


def sample(policy, task, groups=2):
    generator = torch.Generator().manual_seed(0)
    sampler = HFSampler(max_new_tokens=2)
    return roll_out(policy, sampler, task, task.train[:groups], samples_per_group=2, generator=generator)


SOFTMAX = partial(softmax_grpo_advantages, tau=0.1)


@pytest.mark.parametrize(("reward", "head"), [(-0.1, SOFTMAX), (1.5, SOFTMAX)])
def test_rewards_outside_of_the_unit_interval_warn(make_policy, reward, head):
    with pytest.warns(UserWarning, match=r"rewards leave \[0, 1\]"):
        run(make_policy(), Scaled(reward), iterations=1, head=head)


@pytest.mark.parametrize(("reward", "head"), [(0.0, SOFTMAX), (1.0, SOFTMAX), (1.5, grpo_advantages)])
def test_no_warning_inside_of_it_nor_of_a_head_without_temperature(make_policy, reward, head):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "rewards leave")
        run(make_policy(), Scaled(reward), iterations=1, head=head)


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_costs_its_sample_the_reward(make_policy, reward):
    rollout = sample(make_policy(), Scaled(reward))
    assert rollout.rewards.eq(0).all()
    assert rollout.statuses() == {"error": 4}


def bad_on_three(answers):
    if "3" in answers.completions:
        raise RuntimeError("this grader has a fault")
    return [Outcome(1.0, "ok", text) for text in answers.completions]


@pytest.mark.parametrize(
    ("grade", "statuses"),
    [
        (bad_on_three, ["ok", "ok", "error", "ok"]),
        (lambda answers: [Outcome(1.0, "ok", None)] * min(len(answers), 2), ["ok"] * 4),  # too few for the batch
        (lambda answers: [], ["error"] * 4),
        (lambda answers: [Outcome(float("nan"), "ok", None)] * len(answers), ["error"] * 4),
    ],
)
def test_a_failure_costs_its_own_sample_alone(grade, statuses, caplog):
    examples = [Example(f"{n}?", n) for n in (1, 2, 3, 4)]
    with caplog.at_level(logging.WARNING):
        outcomes = grade_safely(Graded(grade), answers_to(examples, ["1", "2", "3", "4"]))
    assert [outcome.status for outcome in outcomes] == statuses
    failures = statuses.count("error")
    assert [record.getMessage()[:39] for record in caplog.records] == (
        [f"the grader failed on {failures} of 4 samples, wh"] if failures else []
    )


def test_a_failure_is_never_worth_more_than_an_answer():
    def grade(answers):
        return [Outcome(-2.0 * float(text), "ok", None) for text in answers.completions]

    outcomes = grade_safely(Graded(grade), answers_to([Example("?", 0)] * 3, ["1", "one", "3"]))
    assert [outcome.reward for outcome in outcomes] == [-2.0, -6.0, -6.0]


def test_the_grader_sees_each_completion_with_its_question(make_policy):
    seen = []

    def grade(answers):
        seen.append(answers)
        return [Outcome(0.0, "wrong", None)] * len(answers)

    policy = make_policy()
    rollout = sample(policy, Graded(grade))
    (answers,) = seen
    assert list(answers.completions) == rollout.completions
    assert list(answers.golds) == [0, 0, 1, 1]
    assert list(answers.prompts) == ["<|user|>Make 0.<|assistant|>"] * 2 + ["<|user|>Make 1.<|assistant|>"] * 2
    (score, tokens), _ = answers.logprobs(answers.prompts[:2], ["12", ""])
    assert (tokens, score < 0) == (1, True)


DIGIT = FunctionGrader(lambda text, _: text[:1].isdigit())
SHORT = FunctionGrader(lambda text, _: len(text) / 100)
TWO = WeightedSum({"digit": {"weight": 0.75, "grader": DIGIT}, "short": {"weight": -0.5, "grader": SHORT}})


def test_the_parts_of_a_reward_add_up_to_what_is_optimised(make_policy):
    shaping = RewardShaping(length_penalty="linear", length_weight=0.25)
    seen = []

    def head(rewards):
        seen.append(rewards)
        return rewards - rewards.mean(-1, keepdim=True)

    module, (row,) = run(make_policy(), Graded(TWO), iterations=1, head=head, max_new_tokens=4, shaping=shaping)
    parts = {name: row[f"reward/{name}/mean"] for name in ("digit", "short", "shaping.length")}
    total = 0.75 * parts["digit"] - 0.5 * parts["short"] + parts["shaping.length"]
    assert row["reward/mean"] == pytest.approx(total, abs=1e-6)
    assert row["reward/mean"] == pytest.approx(seen[0].mean().item())
    assert parts["shaping.length"] == pytest.approx(-0.25 * row["length/mean"] / 4)
    for record, reward in zip(sample_records(module), seen[0].flatten().tolist(), strict=True):
        assert record["reward"] == reward
        total = 0.75 * record["parts"]["digit"] - 0.5 * record["parts"]["short"] + record["parts"]["shaping.length"]
        assert reward == pytest.approx(total, abs=1e-6)


def test_evaluation_reports_the_rewards_of_the_task(make_policy):
    shaping, held_out = RewardShaping(length_penalty="linear", length_weight=1.0), HeldOutEvaluation(ks=(1,))
    _, (row,) = run(make_policy(), Graded(TWO), iterations=1, callbacks=[held_out], shaping=shaping)
    parts = {name: row[f"eval/reward/{name}"] for name in ("digit", "short")}
    assert row["eval/reward"] == pytest.approx(0.75 * parts["digit"] - 0.5 * parts["short"], abs=1e-6)
    assert "eval/reward/shaping.length" not in row


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_masked_completions_do_not_train(make_policy, beta):
    """Of 64 random tokens one ends the completion now and then."""
    shaping = RewardShaping(overlong="mask")
    module, (row,) = run(
        make_policy(), LetterTask(), iterations=1, max_new_tokens=64, shaping=shaping, loss={"beta": beta}
    )
    rollout = module.rollout
    rows = join_rows(rollout.samples, module.advantages, trains=rollout.trains)
    assert 0 < rollout.trains.sum() < len(rollout.trains)
    assert torch.equal(rollout.trains, ~rollout.samples.truncated)
    assert torch.equal(rows.loss_mask.any(-1), rollout.trains)
    learned = [batch for batch in module.trainer.datamodule.buffer.micro_batches if batch.weight.any()]
    assert sum(len(batch.input_ids) for batch in learned) <= rollout.trains.sum()
    kept = rollout.samples.completion_mask[rollout.trains]
    assert rows.loss_mask.sum() == kept.sum()
    assert row["reward/mean"] == pytest.approx(
        sum(outcome.reward for outcome in rollout.outcomes) / len(rollout.outcomes)
    )


def test_when_all_are_masked_the_weights_stay(make_policy):
    policy = make_policy()
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}

    class Endless(HFSampler):
        def generate(self, *args, **kwargs):
            samples = super().generate(*args, **kwargs)
            samples.truncated.fill_(True)
            return samples

    _, (row,) = run(
        policy,
        LetterTask(letters=1),
        iterations=1,
        sampler=Endless(max_new_tokens=2),
        shaping=RewardShaping(overlong="mask"),
        optimizer=partial(torch.optim.SGD, lr=1.0),
    )
    assert row["no_signal/frac"] < 1
    assert all(torch.equal(before[name], value) for name, value in policy.model.state_dict().items())

"""The whole loop on a toy: what it learns, what it survives, what it measures."""

import copy
import math
from functools import partial
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from loop import run
from omegaconf import OmegaConf
from toys import LetterTask

from sgrpo_lightning import losses
from sgrpo_lightning.callbacks.samples import sample_records
from sgrpo_lightning.metrics import group_metrics
from sgrpo_lightning.modules import load_policy

OBJECTIVES = Path(__file__).parents[2] / "conf" / "objective"


def heads():
    nodes = {path.stem: OmegaConf.load(path) for path in OBJECTIVES.glob("*.yaml")}
    return {
        name: instantiate(node.get("objective", node))
        for name, node in nodes.items()
        if "llm" in node.get("objective", node).get("domains", ["llm"])
    }


HEADS = heads()


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("objective", HEADS)
def test_every_objective_learns_to_write_a_digit(make_policy, objective):
    """A random policy begins with a digit about one time in four."""
    _, rows = run(make_policy(), LetterTask(letters=1), iterations=15, head=HEADS[objective], max_new_tokens=1)
    rewards = [row["reward/mean"] for row in rows]
    assert rewards[0] < 0.5
    assert sum(rewards[-3:]) / 3 > 0.8, rewards


def test_it_learns_with_everything_on(make_policy):
    """Several inner steps, small micro-batches, reference KL, bf16, a graded reward, accumulation and clipping."""
    _, rows = run(
        make_policy(),
        LetterTask(letters=4),
        iterations=12,
        max_new_tokens=4,
        ppo_epochs=2,
        minibatches=2,
        micro_batch_size=3,
        loss={"beta": 0.01, "kl": "full"},
        trainer={"precision": "bf16-mixed", "gradient_clip_val": 1.0},
    )
    assert rows[-1]["reward/mean"] > rows[0]["reward/mean"] + 0.3
    assert rows[0]["kl/mean"] < rows[-1]["kl/mean"]
    assert rows[-1]["ratio/min"] < 1 < rows[-1]["ratio/max"]


def test_the_loop_reads_rewards_once_and_learns_from_advantages(make_policy):
    """A head that asks for the opposite gets the opposite."""
    _, rows = run(
        make_policy(),
        LetterTask(letters=1),
        iterations=10,
        max_new_tokens=1,
        head=lambda r: r.mean(-1, keepdim=True) - r,
    )
    assert rows[-1]["reward/mean"] < 0.12


def test_a_grader_that_raises_costs_its_samples_their_reward(make_policy):
    module, rows = run(make_policy(), LetterTask(letters=1, raises_on="1"), iterations=3, max_new_tokens=3)
    hit = [record for record in sample_records(module) if "1" in record["completion"]]
    assert hit
    assert all((record["status"], record["reward"]) == ("error", 0.0) for record in hit)
    assert rows[-1]["error/frac"] == pytest.approx(len(hit) / 64)
    assert any(record["reward"] == 1 for record in sample_records(module))
    total = sum(rows[-1][f"{name}/frac"] for name in ("ok", "wrong", "no_answer", "unparseable", "timeout", "error"))
    assert total == pytest.approx(1)


@pytest.mark.parametrize("minibatches", [1, 2])
def test_groups_without_signal_leave_the_weights_alone(make_policy, minibatches):
    policy = make_policy()
    before = weights(policy.model)
    always = LetterTask(raises_on="")
    _, rows = run(policy, always, iterations=2, optimizer=partial(torch.optim.SGD, lr=1.0), minibatches=minibatches)
    assert same(weights(policy.model), before)
    for row in rows:
        assert (row["error/frac"], row["no_signal/frac"], row["grad_norm/max"]) == (1, 1, 0)
        assert all(math.isfinite(value) for value in row.values())


def test_some_groups_without_signal(make_policy):
    """Of the eight questions one alone can be answered: fewer micro-batches are needed than there are."""

    class OneOfEight(LetterTask):
        def grade_one(self, completion, gold):
            return super().grade_one(completion if gold == 3 else "", gold)

    policy = make_policy()
    before = weights(policy.model)
    _, rows = run(policy, OneOfEight(letters=1), iterations=2, micro_batch_size=4)
    assert rows[0]["no_signal/frac"] == 7 / 8
    assert not same(weights(policy.model), before)


def test_each_iteration_draws_anew(make_policy):
    """The same questions to the same policy, for nothing is learned."""

    class Keep(LetterTask):
        def grade_one(self, completion, gold):
            seen.append(completion)
            return super().grade_one("", gold)

    seen = []
    run(make_policy(), Keep(), iterations=2, max_new_tokens=8)
    assert not set(seen[:64]) & set(seen[64:])


def test_the_seed_decides_the_run(make_policy):
    def trained(seed, noise):
        torch.manual_seed(noise)
        policy = make_policy()
        _, rows = run(policy, LetterTask(), iterations=2, seed=seed, minibatches=2, ppo_epochs=2)
        return weights(policy.model), rows[-1]["reward/mean"]

    (one, reward), (again, other_reward), (other, _) = trained(0, 1), trained(0, 2), trained(1, 1)
    assert same(one, again)
    assert reward == other_reward
    assert not same(one, other)


def test_micro_batches_do_not_change_the_update(make_policy):
    def trained(size):
        policy = make_policy(sharpness=5.0)
        policy.model.double()
        run(
            policy,
            LetterTask(),
            iterations=2,
            micro_batch_size=size,
            minibatches=2,
            max_new_tokens=6,
            optimizer=partial(torch.optim.SGD, lr=0.1),
        )
        return torch.cat([p.flatten() for p in policy.model.parameters()])

    start = torch.cat([p.flatten() for p in make_policy(sharpness=5.0).model.double().parameters()])
    whole = trained(64)
    for size in (1, 7):
        assert (trained(size) - whole).norm() < 1e-6 * (whole - start).norm()


def test_measurements_of_an_iteration(make_policy):
    policy = make_policy()
    module, rows = run(policy, LetterTask(letters=2), iterations=2, max_new_tokens=4, minibatches=2)
    row, records = rows[-1], sample_records(module)
    mask = module.rollout.samples.completion_mask
    assert row["reward/mean"] == pytest.approx(sum(r["reward"] for r in records) / 64)
    assert row["pass_rate/mean"] == pytest.approx(sum(r["reward"] > 0.5 for r in records) / 64)
    assert row["length/mean"] == pytest.approx(mask.sum().item() / 64)
    assert row["tokens/sum"] == mask.sum()
    assert row["truncated/frac"] == pytest.approx(
        (~torch.isin(module.rollout.samples.completion_ids, torch.tensor(policy.eos_token_ids)).any(-1))
        .float()
        .mean()
        .item()
    )
    assert row["tokens_per_second"] == pytest.approx(
        row["tokens/sum"] / sum(row[f"seconds/{part}"] for part in ("sync", "sample", "reward", "learn")), rel=1e-3
    )
    assert row["learning_rate"] == 0.02
    expected = group_metrics(module.rollout.rewards, module.advantages)
    assert {name: row[name] for name in expected} == pytest.approx({name: v.item() for name, v in expected.items()})
    assert 4 < row["entropy/mean"] < math.log(374)


def test_a_sampler_that_is_the_policy_has_weights_of_one(make_policy):
    """In each of two passes of two steps; and the policy learns what it does without weights."""
    weighed, plain = (
        run(make_policy(), LetterTask(), iterations=1, minibatches=2, ppo_epochs=2, loss={"importance": importance})
        for importance in (losses.sequence_importance, None)
    )
    row = weighed[1][0]
    assert (row["importance/mean"], row["importance/max"]) == pytest.approx((1, 1), abs=1e-4)
    assert row["loss/sum"] == pytest.approx(plain[1][0]["loss/sum"], rel=1e-4)
    assert "importance/mean" not in plain[1][0]


def test_the_gradient_norm_is_that_before_clipping(make_policy):
    _, rows = run(
        make_policy(),
        LetterTask(),
        iterations=1,
        optimizer=partial(torch.optim.SGD, lr=1.0),
        trainer={"gradient_clip_val": 1e-3},
    )
    assert rows[0]["grad_norm/max"] > 1e-2
    assert rows[0]["grad_norm/mean"] == pytest.approx(rows[0]["grad_norm/max"])


def test_the_scheduler_steps_with_the_optimizer(make_policy):
    """Two iterations of three steps: the rate is multiplied by 0.9 at each."""

    def halving(optimizer, num_training_steps):
        assert num_training_steps == 6
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    _, rows = run(
        make_policy(),
        LetterTask(),
        iterations=2,
        prompts_per_iteration=3,
        minibatches=3,
        scheduler=halving,
        optimizer=partial(torch.optim.SGD, lr=1.0),
    )
    assert [row["learning_rate"] for row in rows] == pytest.approx([0.9**3, 0.9**6])


# ---- adapters and checkpointing, from a folder ----

LORA = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}


@pytest.mark.parametrize("checkpointing", [False, True])
def test_only_adapters_train_and_the_base_is_the_reference(policy_folder, checkpointing):
    policy = load_policy(str(policy_folder), lora=LORA, gradient_checkpointing=checkpointing)
    before = weights(policy.model)
    module, rows = run(policy, LetterTask(), iterations=3, loss={"beta": 0.01}, max_new_tokens=3)
    after = weights(policy.model)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all("lora_" in name for name in changed)
    assert module.reference.model is policy.model
    assert rows[0]["kl/mean"] == pytest.approx(0, abs=1e-6)
    assert rows[2]["kl/mean"] > 1e-4

    base = load_policy(str(policy_folder)).model
    ids = torch.arange(5, 15)[None]
    with torch.no_grad(), policy.model.eval().disable_adapter():
        torch.testing.assert_close(policy.model(ids).logits, base(ids).logits)
    with torch.no_grad():
        assert (policy.model(ids).logits - base(ids).logits).abs().max() > 1e-3


@pytest.mark.parametrize("checkpointing", [False, True])
def test_layers_are_recomputed_where_checkpointing_asks_for_it(policy_folder, checkpointing):
    policy = load_policy(str(policy_folder), gradient_checkpointing=checkpointing)
    with_gradient = []
    layer = policy.model.model.layers[0].mlp
    layer.register_forward_pre_hook(lambda *_: with_gradient.append(torch.is_grad_enabled()))
    run(policy, LetterTask(), iterations=1, micro_batch_size=64)
    assert sum(with_gradient) == (2 if checkpointing else 1)


def test_checkpointing_changes_no_gradient(policy_folder):
    def trained(**knobs):
        policy = load_policy(str(policy_folder), **knobs)
        run(policy, LetterTask(), iterations=1, optimizer=partial(torch.optim.SGD, lr=1.0))
        return copy.deepcopy(weights(policy.model))

    plain, checkpointed = trained(), trained(gradient_checkpointing=True)
    for name in plain:
        torch.testing.assert_close(plain[name], checkpointed[name])

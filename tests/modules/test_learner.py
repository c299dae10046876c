"""From rows to updates: the cut of the work does not show in the gradient, and no pass is made for nothing."""

import pytest
import torch
from fixed_samples import (
    ADVANTAGES,
    REDUCTIONS,
    G,
    M,
    flat_gradient,
    learner_for,
    made_up_samples,
    nudged,
    policy_loss,
)

from sgrpo_lightning.losses import token_importance
from sgrpo_lightning.modules.learner import Learner
from sgrpo_lightning.modules.policy_loss import is_plain
from sgrpo_lightning.modules.reference import Reference
from sgrpo_lightning.modules.rows import join_rows

CUTS = {
    "rows": {"micro_batch_size": 5},
    "one by one": {"micro_batch_size": 1},
    "tokens": {"tokens_per_micro_batch": 14},
    "fewer tokens than a row": {"tokens_per_micro_batch": 1},
    "packed": {"micro_batch_size": 5, "packing": True},
    "packed by tokens": {"tokens_per_micro_batch": 17, "packing": True},
}


@pytest.fixture
def model(make_policy):
    return make_policy(hidden_size=64, layers=2, sharpness=5.0).model


def gradient(model, loss, *, place="device", samples=None, advantages=ADVANTAGES, **sizes):
    """Of one optimizer step on all groups, in as many micro-batches as `sizes` ask for."""
    learner = learner_for(model, loss, **sizes)
    if loss.beta:
        learner.reference = Reference(nudged(model, 0.05, seed=1), place=place)
        learner.reference.settle(torch.device("cpu"), full_kl=loss.kl == "full")
    rows = join_rows(samples or made_up_samples(300), advantages)
    updates = learner.updates(rows, torch.Generator().manual_seed(0))
    model.zero_grad()
    for batch in updates.micro_batches:
        loss(model, batch, learner.reference and learner.reference.of_loss)[0].backward()
    return flat_gradient(model), updates


@pytest.mark.parametrize("kl", ["none", "full", "k3"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("cut", CUTS)
def test_the_cut_does_not_show(model, cut, reduction, kl):
    loss = policy_loss(reduction, beta=0.3, kl=kl)
    whole, _ = gradient(model, loss, micro_batch_size=G * M)
    found, updates = gradient(model, loss, **CUTS[cut])
    assert len(updates.micro_batches) == updates.per_step > 1
    assert (found - whole).norm() < 1e-5 * whole.norm()
    assert whole.norm() > 1e-3


@pytest.mark.parametrize("kl", ["full", "k2"])
def test_a_reference_on_the_cpu_is_the_same_reference(model, kl):
    loss = policy_loss(beta=0.3, kl=kl)
    near, _ = gradient(model, loss)
    far, updates = gradient(model, loss, place="cpu")
    assert (near - far).norm() < 1e-6 * near.norm()
    assert all((batch.reference_states is not None) == (kl == "full") for batch in updates.micro_batches)


def test_a_reference_whose_logits_are_not_plain_cannot_wait_on_the_cpu(gemma):
    with pytest.raises(ValueError, match="reference=cpu with kl=full needs a model whose logits are one linear layer"):
        Reference(gemma, place="cpu").settle(torch.device("cpu"), full_kl=True)


def test_a_token_budget_by_hand(model):
    """No two rows of 3 to 12 tokens share a pass that would hold more than 20, padding counted; or, packed, 22."""
    learner = learner_for(model, policy_loss(beta=0.3), tokens_per_micro_batch=20)
    rows = join_rows(made_up_samples(300), ADVANTAGES)
    assert sorted(rows.length.tolist()) == [3, 4, 4, 5, 6, 7, 7, 8, 9, 9, 9, 12]
    parts = [rows.length[part].tolist() for part in learner.cut(rows, torch.arange(G * M))]
    assert parts == [[3, 4, 4, 5], [6, 7], [7, 8], [9, 9], [9], [12]]
    packed = learner_for(model, policy_loss(), tokens_per_micro_batch=22, packing=True)
    parts = [rows.length[part].tolist() for part in packed.cut(rows, torch.arange(G * M))]
    assert parts == [[3, 4, 4, 5, 6], [7, 7, 8], [9, 9], [9, 12]]


@pytest.mark.parametrize(
    ("attention", "packed"), [("sdpa", False), ("eager", False), ("flash_attention_2", True), ("flex_attention", True)]
)
def test_rows_are_packed_where_the_attention_skips_what_it_masks(model, attention, packed):
    model.config._attn_implementation = attention
    assert learner_for(model, policy_loss()).packed is packed
    assert learner_for(model, policy_loss(), packing=not packed).packed is not packed


def test_an_iteration_has_as_many_passes_as_its_largest_step_needs(model):
    """One group has three rows to learn from, and no other has any: three passes of that step, and of the other."""
    learner = learner_for(model, policy_loss(), micro_batch_size=1, minibatches=2)
    advantages = torch.zeros(G, M)
    advantages[0] = ADVANTAGES[0]
    updates = learner.updates(join_rows(made_up_samples(300), advantages), torch.Generator().manual_seed(0))
    useful = [bool((batch.weight != 0).any()) for batch in updates.micro_batches]
    assert updates.per_step == 3
    assert sorted([useful[:3], useful[3:]]) == [[False] * 3, [True] * 3]
    nothing = learner.updates(join_rows(made_up_samples(300), 0 * ADVANTAGES), torch.Generator().manual_seed(0))
    assert (nothing.per_step, len(nothing.micro_batches)) == (1, 2)


def test_every_rank_makes_as_many_passes_and_as_many_parts_of_the_logits(model):
    """Another rank needs seven passes, and parts of the logits for nine tokens; it is asked once for each."""
    asked = []

    def all_max(values):
        asked.append(values.shape)
        return values.clamp(min=7 if values.ndim == 0 else 9)

    loss = policy_loss(chunk_size=1000)
    learner = Learner(model, loss, learner_for(model, loss, micro_batch_size=12).plan, all_max=all_max)
    updates = learner.updates(join_rows(made_up_samples(300), ADVANTAGES), torch.Generator().manual_seed(0))
    assert (updates.per_step, {batch.chunks for batch in updates.micro_batches}) == (7, {9})
    assert asked == [(), (7,)]
    heads = []
    is_plain(model)
    model.lm_head.register_forward_hook(lambda *_: heads.append(1))
    loss(model, updates.micro_batches[-1])
    assert len(heads) == 9


@pytest.mark.parametrize("ppo_epochs", [1, 2])
def test_importance_weighs_the_advantages(model, ppo_epochs):
    """The sampler gave each token half the probability, but for one row, which it gave four times as much."""
    samples = made_up_samples(300)
    learner = learner_for(model, policy_loss(), micro_batch_size=5)
    plain = learner.updates(join_rows(samples, ADVANTAGES), torch.Generator())
    table = torch.zeros(samples.completion_mask.shape)
    for batch in plain.micro_batches:
        table.view(-1)[batch.source] = learner.loss.logprobs(model, batch)
    object.__setattr__(samples, "sampler_logprobs", table - torch.tensor(2.0).log())
    samples.sampler_logprobs[0] = table[0] + torch.tensor(4.0).log()

    weighed = learner_for(model, policy_loss(importance=token_importance), micro_batch_size=5, ppo_epochs=ppo_epochs)
    updates = weighed.updates(join_rows(samples, ADVANTAGES), torch.Generator())
    factors = {0: 0.25} | dict.fromkeys(range(1, G * M), 2.0)
    for batch in updates.micro_batches:
        rows = batch.source.div(table.shape[1], rounding_mode="floor").tolist()
        expected = [ADVANTAGES.flatten()[row].item() * factors[row] for row in rows]
        assert batch.advantage.tolist() == pytest.approx(expected, rel=1e-4)
    learned = ADVANTAGES.flatten() != 0
    tokens = samples.completion_mask.sum(-1)
    mean = (tokens * torch.tensor([factors[row] for row in range(G * M)]))[learned].sum() / tokens[learned].sum()
    assert updates.metrics["importance/mean"].item() == pytest.approx(mean.item(), rel=1e-5)
    assert updates.metrics["importance/max"].item() == pytest.approx(2.0)

"""The loss of micro-batches against a slow loop written from Eq. 10 and 11, row by row, with all logits."""

import pytest
import torch
from fixed_samples import (
    ADVANTAGES,
    LENGTH,
    REDUCTIONS,
    G,
    M,
    flat_gradient,
    gradient_of,
    learner_for,
    made_up_samples,
    module_for,
    next_token_logits,
    nudged,
    policy_loss,
)

from sgrpo_lightning import losses
from sgrpo_lightning.metrics import accumulate
from sgrpo_lightning.modules import PolicyLoss
from sgrpo_lightning.modules.policy_loss import states
from sgrpo_lightning.modules.rows import join_rows

CLOSE = 2e-6  # of the gradient's norm: normalisation layers compute in float32 whatever the weights are


@pytest.fixture(scope="module")
def model(make_policy):
    return make_policy(hidden_size=64, layers=2, sharpness=5.0).model.double()


@pytest.fixture(scope="module")
def old(model):
    """The policy that sampled: far enough for ratios on both sides of the clip range."""
    return nudged(model, 0.01, seed=1)


@pytest.fixture(scope="module")
def reference(model):
    return nudged(model, 0.02, seed=2)


# ---- the slow loop ----


def weight_of(name, lengths, group, row):
    """Of each token of a row, from the definition of the reduction."""
    in_group = sum(lengths[i] for i in range(len(lengths)) if i // M == group)
    return {
        "group_token_mean": 1 / (G * in_group),
        "token_mean": 1 / sum(lengths),
        "sequence_mean": 1 / (len(lengths) * lengths[row]),
        "fixed_length": 1 / (len(lengths) * LENGTH),
    }[name]


def slow_kl(kind, policy, reference, tokens):
    """[T_i], of log-probabilities [T_i, V]."""
    if kind == "full":
        return (policy.exp() * (policy - reference)).sum(-1)
    gap = (policy - reference).gather(-1, tokens[:, None]).squeeze(-1)
    return {"k1": gap, "k2": gap**2 / 2, "k3": (-gap).exp() - 1 + gap}[kind]


def slow_loss(model, samples, *, old=None, reference=None, beta=0.0, kind="full", reduction, temperature=1.0):
    """Eq. 10 and 11 with the clip range [0.8, 1.28]; and what the metrics should be."""
    lengths = samples.completion_mask.sum(-1).tolist()
    learned = [row for row in range(G * M) if beta or ADVANTAGES[row // M, row % M] != 0]
    share = 1 / sum(lengths[row] for row in learned)
    loss, metrics = 0.0, {"entropy/mean": 0.0, "clip_high/frac": 0.0, "clip_low/frac": 0.0, "kl/mean": 0.0}
    for row in range(G * M):
        group, advantage = row // M, ADVANTAGES[row // M, row % M].item()
        weight = weight_of(reduction, lengths, group, row)
        logits, tokens = next_token_logits(model, samples, row)
        policy = (logits / temperature).log_softmax(-1)
        chosen = policy.gather(-1, tokens[:, None]).squeeze(-1)
        before = chosen.detach()
        if old is not None:
            logits, _ = next_token_logits(old, samples, row)
            before = (logits / temperature).log_softmax(-1).gather(-1, tokens[:, None]).squeeze(-1)
        ratio = (chosen - before).exp()
        loss = loss - weight * torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage).sum()
        if beta:
            logits, _ = next_token_logits(reference, samples, row)
            kl = slow_kl(kind, policy, (logits / temperature).log_softmax(-1), tokens)
            loss = loss + beta * weight * kl.sum()
            metrics["kl/mean"] += share * kl.sum().item()
        if row in learned:
            metrics["entropy/mean"] -= share * (policy.exp() * policy).sum().item()
            metrics["clip_high/frac"] += share * ((ratio > 1.28) & (advantage > 0)).sum().item()
            metrics["clip_low/frac"] += share * ((ratio < 0.8) & (advantage < 0)).sum().item()
    return loss, metrics if beta else {name: value for name, value in metrics.items() if name != "kl/mean"}


def slow_gradient(model, samples, **knobs):
    model.zero_grad()
    loss, metrics = slow_loss(model, samples, **knobs)
    loss.backward()
    return flat_gradient(model), loss.item(), metrics


# ---- the fast one ----


def fast_gradient(model, samples, loss, *, old=None, reference=None, micro_batch_size=4):
    learner = learner_for(model, loss, micro_batch_size=micro_batch_size, reference=reference if loss.beta else None)
    rows = join_rows(samples, ADVANTAGES)
    if old is not None:
        rows.behavior_logprobs = table_of(old, samples, loss.temperature)
    step = learner.step(rows, torch.tensor([2, 0, 3, 1]))
    batches = learner.micro_batches(rows, step, count=len(step.parts))
    learner.set_chunks(batches)
    if loss.beta and loss.kl != "full":
        learner.fill_tables(rows, batches)
    gradient, parts = gradient_of(model, batches, loss, learner.reference and learner.reference.of_loss)
    return gradient, {name: value.item() for name, value in accumulate(parts).items()}, batches


def table_of(model, samples, temperature):
    table = torch.zeros(samples.completion_mask.shape, dtype=torch.float64)
    for row in range(G * M):
        logits, tokens = next_token_logits(model, samples, row)
        logprobs = (logits / temperature).log_softmax(-1).gather(-1, tokens[:, None]).squeeze(-1)
        table[row, : len(tokens)] = logprobs
    return table


def assert_same(found, expected):
    assert expected.norm() > 0
    assert (found - expected).norm() < CLOSE * expected.norm()


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("on_policy", [True, False])
def test_gradient_of_the_surrogate(model, old, reduction, on_policy):
    samples = made_up_samples(300)
    before = None if on_policy else old
    expected, value, metrics = slow_gradient(model, samples, old=before, reduction=reduction)
    found, measured, _ = fast_gradient(model, samples, policy_loss(reduction), old=before)
    assert_same(found, expected)
    assert measured["loss/sum"] == pytest.approx(value, rel=1e-6, abs=1e-8)
    for name, number in metrics.items():
        assert measured[name] == pytest.approx(number, rel=1e-6), name
    assert on_policy is (metrics["clip_high/frac"] == 0 and metrics["clip_low/frac"] == 0)


@pytest.mark.parametrize("kind", ["full", "k1", "k2", "k3"])
@pytest.mark.parametrize("reduction", ["group_token_mean", "fixed_length"])
def test_gradient_with_the_reference_kl(model, old, reference, kind, reduction):
    samples, knobs = made_up_samples(300), {"beta": 0.3, "temperature": 0.7}
    expected, _, metrics = slow_gradient(
        model, samples, old=old, reference=reference, kind=kind, reduction=reduction, **knobs
    )
    loss = policy_loss(reduction, kl=kind, **knobs)
    found, measured, _ = fast_gradient(model, samples, loss, old=old, reference=reference)
    assert_same(found, expected)
    for name, number in metrics.items():
        assert measured[name] == pytest.approx(number, rel=1e-6), name


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_the_size_of_a_micro_batch_changes_nothing(model, old, reference, beta):
    samples, loss = made_up_samples(300), policy_loss(beta=beta)
    whole, expected, _ = fast_gradient(model, samples, loss, old=old, reference=reference, micro_batch_size=G * M)
    for size in (1, 2, 5):
        found, measured, batches = fast_gradient(
            model, samples, loss, old=old, reference=reference, micro_batch_size=size
        )
        assert len(batches) == -(-(G * M if beta else 8) // size)  # without a KL, 4 rows have no gradient
        assert_same(found, whole)
        assert measured == pytest.approx(expected, rel=1e-6)


def test_neither_does_the_size_of_a_chunk(model, old, reference):
    samples = made_up_samples(300)
    knobs = {"old": old, "reference": reference}
    whole, _, _ = fast_gradient(model, samples, policy_loss(beta=0.3), **knobs)
    chunked, _, _ = fast_gradient(model, samples, policy_loss(beta=0.3, chunk_size=3), **knobs)
    assert_same(chunked, whole)


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_rows_without_an_advantage_are_read_for_the_kl_alone(model, reference, beta):
    """Four rows have advantage 0: row 10, and the second group."""
    _, _, batches = fast_gradient(model, made_up_samples(300), policy_loss(beta=beta), reference=reference)
    learned = {
        row for batch in batches for row in batch.source[batch.weight != 0].div(7, rounding_mode="floor").tolist()
    }
    assert learned == set(range(12)) - (set() if beta else {3, 4, 5, 10})


def test_kl_of_the_policy_to_itself(model):
    """Zero, and no gradient beside that of the surrogate."""
    samples = made_up_samples(300)
    without, _, _ = fast_gradient(model, samples, policy_loss())
    found, measured, _ = fast_gradient(model, samples, policy_loss(beta=1.0), reference=nudged(model, 0.0, seed=0))
    assert measured["kl/mean"] == pytest.approx(0, abs=1e-12)
    assert_same(found, without)


def test_a_model_that_caps_its_logits(gemma):
    """The states do not lead to the logits by the output layer alone: the logits themselves are read."""
    samples, loss = made_up_samples(300), policy_loss(beta=0.3)
    old, reference = nudged(gemma, 0.02, seed=1), nudged(gemma, 0.02, seed=2)
    expected, _, _ = slow_gradient(gemma, samples, old=old, reference=reference, beta=0.3, reduction="group_token_mean")
    found, _, batches = fast_gradient(gemma, samples, loss, old=old, reference=reference)
    assert expected.norm() > 0
    assert (found - expected).norm() < 1e-4 * expected.norm()  # a float32 model
    capped = gemma.get_output_embeddings()(gemma.model(batches[0].input_ids).last_hidden_state)
    assert capped.abs().max() > 2  # without the cap


def test_logits_are_made_where_tokens_train(model, gemma):
    """For a plain model the output layer meets the K states; for another one the K logits are what is handed on."""
    _, _, batches = fast_gradient(model, made_up_samples(300), policy_loss())
    hidden, head = states(model, batches[0])
    assert hidden.shape == (len(batches[0].target), 64)
    assert head is model.get_output_embeddings()
    hidden, head = states(gemma, batches[0])
    assert hidden.shape == (len(batches[0].target), 300)
    assert isinstance(head, torch.nn.Identity)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_the_ratio_of_the_first_inner_step_is_exactly_one(make_policy, precision):
    """Two passes of two steps: 1 at the first step; not at the second, nor when its rows come again."""
    model = make_policy(hidden_size=64, layers=2, sharpness=5.0).model
    module = module_for(model, policy_loss(), micro_batch_size=2, minibatches=2, ppo_epochs=2, precision=precision)
    rows = join_rows(made_up_samples(300), ADVANTAGES)
    with module.trainer.precision_plugin.forward_context():
        updates = module.learner.updates(rows, torch.Generator().manual_seed(0))
        steps = list(zip(*[iter(updates.micro_batches)] * updates.per_step, strict=True))
        assert len(steps) == 4
        optimizer, extremes = torch.optim.SGD(model.parameters(), lr=0.1), []
        for batches in steps:
            optimizer.zero_grad()
            parts = []
            for batch in batches:
                value, metrics = module.loss(model, batch)
                value.backward()
                parts.append(metrics)
            measured = accumulate(parts)
            extremes.append((measured["ratio/min"].item(), measured["ratio/max"].item()))
            optimizer.step()
    assert extremes[0] == (1.0, 1.0)
    assert all(both != (1.0, 1.0) for both in extremes[1:])


def test_inner_steps_cover_every_group_once_a_pass(make_policy):
    module = module_for(make_policy().model, policy_loss(), minibatches=2, ppo_epochs=3)
    rows = join_rows(made_up_samples(300), torch.arange(1.0, 13).view(G, M))
    updates = module.learner.updates(rows, torch.Generator().manual_seed(0))
    batches = updates.micro_batches
    assert (len(batches), updates.per_step) == (12, 2)
    per_step = [batches[i : i + 2] for i in range(0, 12, 2)]
    groups = [{int(s) // 7 // M for b in step for s in b.source[b.weight != 0]} for step in per_step]
    assert all(len(part) == 2 for part in groups)
    assert all(groups[i] | groups[i + 1] == set(range(G)) for i in (0, 2, 4))
    assert len({frozenset(part) for part in groups}) > 2  # another order each pass
    weight = [sum(b.weight.sum().item() for b in step) for step in per_step]
    assert weight == pytest.approx([1.0] * 6)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"beta": -0.1}, r"beta must be >= 0, got -0\.1"),
        ({"kl": "foo"}, r"kl must be one of full, k1, k2, k3, none, got 'foo'"),
        ({"temperature": 0.0}, r"temperature must be > 0, got 0"),
        ({"clip_low": 1.5}, r"clip_low must lie in \[0, 1\], got 1\.5"),
        ({"clip_high": -0.2}, r"clip_high must be >= 0, got -0\.2"),
        ({"chunk_size": 0}, r"chunk_size must be >= 1 row, got 0"),
    ],
)
def test_knobs_that_cannot_be(knobs, message):
    """Refused when the loss is made, before any rollout."""
    with pytest.raises(ValueError, match=message):
        PolicyLoss(reduction=losses.token_mean, **knobs)


def test_no_kl_keeps_no_reference(make_policy):
    for loss in (policy_loss(beta=0.0, kl="full"), policy_loss(beta=0.5, kl="none")):
        assert (loss.beta, loss.kl) == (0.0, "none")
        assert module_for(make_policy().model, loss).reference is None


def test_the_reference_is_outside_the_module(make_policy):
    module = module_for(make_policy().model, policy_loss(beta=0.5))
    assert all(name.startswith("model.") for name in module.state_dict())
    reference = module.reference.model
    assert not any(p.requires_grad for p in reference.parameters())
    assert reference.get_input_embeddings().weight is not module.model.get_input_embeddings().weight

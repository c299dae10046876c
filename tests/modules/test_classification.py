"""The training of a classifier: one step by hand, its measurements, and what may not change a gradient."""

import math
from functools import partial

import pytest
import torch
from images import Images, made_up, network, train, vector
from torch.nn import functional as F

from datamodules.images import EvaluationDraws, TrainingDraws
from sgrpo_lightning.heads import rloo_advantages, softmax_grpo_advantages
from sgrpo_lightning.modules import ExactLoss, PopulationLoss, SampledLabels, StepPlan

SOFTMAX = partial(softmax_grpo_advantages, tau=0.2)
LIKELIHOOD = ExactLoss(loss=F.cross_entropy)
LOSSES = {
    "cross_entropy": LIKELIHOOD,
    "sampled": SampledLabels(head=SOFTMAX, samples_per_group=8),
    "expected": SampledLabels(head=SOFTMAX, samples_per_group=8, failures="expected"),
    "population": PopulationLoss(head=SOFTMAX, samples_per_group=8),
}


def batches(data, count, size=8):
    """The images and labels of the first steps of a run with seed 0."""
    plan = StepPlan(total_steps=count, steps=count, batch_size=size, micro_batch_size=None, seed=0)
    draws = TrainingDraws(len(data.train), plan, iteration=lambda: 0)
    return [data.train.__getitems__(batch) for batch in draws]


def pixels(batch):
    return (batch.images / 255 - 0.4) / 0.2


@pytest.mark.parametrize("name", ["cross_entropy", "population"])
def test_a_step_by_hand(name):
    """Three steps of SGD on the mean over the batch, pixels normalised by the data's own mean and spread."""
    data, model = made_up(), network()
    module, rows = train(LOSSES[name], data=data, total_steps=3)
    for batch in batches(data, 3):
        losses, _ = LOSSES[name](model(pixels(batch)), batch.labels, generator=None)
        gradients = torch.autograd.grad(losses.mean(), list(model.parameters()))
        with torch.no_grad():
            for weight, gradient in zip(model.parameters(), gradients, strict=True):
                weight -= 0.1 * gradient
    torch.testing.assert_close(vector(module.model), vector(model), rtol=1e-4, atol=1e-6)
    assert rows[-1]["loss/mean"] == pytest.approx(losses.mean().item(), rel=1e-4)
    norm = torch.cat([g.flatten() for g in gradients]).norm().item()
    assert rows[-1]["grad_norm/mean"] == rows[-1]["grad_norm/max"] == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize("name", LOSSES)
def test_every_kind_of_loss_learns(name):
    _, rows = train(LOSSES[name], total_steps=60, steps=30, optimizer=partial(torch.optim.SGD, lr=0.3))
    assert rows[0]["top1/frac"] < rows[1]["top1/frac"]
    assert rows[1]["top1/frac"] > 0.95, rows


@pytest.mark.parametrize("name", ["cross_entropy", "population"])
@pytest.mark.parametrize("micro_batch_size", [1, 2, 4])
def test_micro_batches_do_not_change_the_gradient(name, micro_batch_size):
    """Nor the measurements; with an image in the batch that cannot be read."""
    data = made_up(16, broken=[3, 7])
    whole, parts = (train(LOSSES[name], data=data, micro_batch_size=size) for size in (None, micro_batch_size))
    start = vector(network())
    step = (vector(whole[0].model) - start).norm()
    assert step > 1e-3
    assert (vector(whole[0].model) - vector(parts[0].model)).norm() < 1e-5 * step
    for one, other in zip(whole[1], parts[1], strict=True):
        assert {k: v for k, v in one.items() if k != "images_per_second"} == pytest.approx(
            {k: v for k, v in other.items() if k != "images_per_second"}, rel=1e-4, abs=1e-6
        )


@pytest.mark.parametrize("name", LOSSES)
def test_an_image_that_cannot_be_read_costs_its_row(name, capfd):
    """The others keep their share of the batch; each name is said once, each row counted."""
    data = made_up(8, broken=[2, 5])
    module, rows = train(LOSSES[name], data=data, total_steps=2)
    assert capfd.readouterr().out.count("skipped, cannot be read as an image: image-2\n") == 1
    assert module.unreadable == {"image-2", "image-5"}
    assert [row["unreadable/sum"] for row in rows] == [2, 2]
    if name == "cross_entropy":
        kept = [i for i in range(8) if i not in (2, 5)]
        logits = network()((data.train.images[kept] / 255 - 0.4) / 0.2)
        expected = F.cross_entropy(logits, data.train.labels[kept], reduction="sum").item() / 8
        assert rows[0]["loss/mean"] == pytest.approx(expected, rel=1e-4)


def test_a_batch_of_nothing():
    module, rows = train(LOSSES["sampled"], data=made_up(8, broken=range(8)))
    assert torch.equal(vector(module.model), vector(network()))
    assert rows[0]["loss/mean"] == rows[0]["grad_norm/max"] == 0


def test_measurements_by_hand():
    """One step; shares and gradient norms for the bins of Table 3, from probabilities that are known."""
    data = made_up()
    p = [0.1, 0.22, 0.49, 0.51, 0.6, 0.8, 0.91, 0.95]
    module, _ = train(LIKELIHOOD, data=data)
    labels = torch.arange(8) % 4
    logits = torch.tensor([[(1 - q) / 3] * 4 for q in p]).log()
    logits[range(8), labels] = torch.tensor(p).log()
    logits.requires_grad_()
    module._parts.clear()
    weights = torch.full((8,), 1 / 8)
    module._measure_step(logits, labels, weights, {"loss/mean": torch.arange(8.0)}, 0)
    (F.cross_entropy(logits, labels, reduction="none") @ weights).backward()
    first, gradient = module._parts
    shares = {name.split("/")[1]: value.item() for name, value in first.items() if name.startswith("p_true/0")}
    edges = ("0.0-0.2", "0.2-0.5", "0.5-0.7", "0.7-0.9", "0.9-1.0")
    assert shares == pytest.approx(dict(zip(edges, (1 / 8, 2 / 8, 2 / 8, 1 / 8, 2 / 8), strict=True)))
    assert first["p_true/mean"].item() == pytest.approx(sum(p) / 8)
    assert first["top1/frac"].item() == pytest.approx(6 / 8)  # 0.1 beside 0.3 is a miss, and 0.22 beside 0.26
    assert first["cross_entropy/mean"].item() == pytest.approx(-sum(map(math.log, p)) / 8)
    assert first["loss/mean"].item() == pytest.approx(28 / 8)
    norm = [((1 - q) ** 2 + 3 * ((1 - q) / 3) ** 2) ** 0.5 / 8 for q in p]  # of softmax minus one-hot
    assert gradient["logit_gradient/0.2-0.5/mean"].item() == pytest.approx(norm[1] + norm[2])
    assert gradient["logit_gradient/0.9-1.0/mean"].item() == pytest.approx(norm[6] + norm[7])


def test_rows_average_the_steps_of_an_iteration():
    one = train(LIKELIHOOD, total_steps=4, steps=1)[1]
    four = train(LIKELIHOOD, total_steps=4, steps=4)[1]
    for name in ("loss/mean", "top1/frac", "p_true/mean", "logit_gradient/0.2-0.5/mean", "grad_norm/mean"):
        assert four[0][name] == pytest.approx(sum(row[name] for row in one) / 4, rel=1e-4)
    assert four[0]["grad_norm/max"] == pytest.approx(max(row["grad_norm/max"] for row in one), rel=1e-4)


def test_samples_are_counted():
    _, rows = train(LOSSES["sampled"], total_steps=4, steps=2)
    assert [row["samples"] for row in rows] == [2 * 8 * 8, 4 * 8 * 8]
    assert train(LIKELIHOOD)[1][-1]["samples"] == 0


def test_labels_are_drawn_from_seed_and_step_alone():
    def runs(**knobs):
        return vector(train(LOSSES["sampled"], **knobs)[0].model)

    assert torch.equal(runs(), runs())
    assert not torch.equal(runs(), runs(seed=1))
    # two steps with the same images and weights: only the labels differ
    frozen = partial(torch.optim.SGD, lr=0.0)
    _, rows = train(LOSSES["sampled"], data=made_up(8), optimizer=frozen, total_steps=2)
    assert rows[0]["cross_entropy/mean"] == pytest.approx(rows[1]["cross_entropy/mean"])
    assert rows[0]["loss/mean"] != rows[1]["loss/mean"]


def test_evaluation_leaves_padding_out_and_the_mode_as_it_was():
    data = made_up(held_out=10)
    module, _ = train(LIKELIHOOD, data=data)
    held_out = data.held_out["eval"]
    loader = [held_out.__getitems__(draws) for draws in EvaluationDraws(10, 4)]
    values = module.evaluate(loader, ks=(1, 2))
    logits = module.model((held_out.images / 255 - 0.4) / 0.2)
    p = logits.softmax(1)[range(10), held_out.labels]
    assert values["top1"] == pytest.approx((logits.argmax(1) == held_out.labels).float().mean().item())
    assert values["pass@2"] == pytest.approx((1 - (1 - p) ** 2).mean().item(), rel=1e-5)
    assert module.training


def test_the_exact_objective_of_the_unbiased_head_is_the_expected_reward():
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    losses, _ = PopulationLoss(head=rloo_advantages, samples_per_group=2)(logits, torch.arange(5), generator=None)
    torch.testing.assert_close(losses, -logits.softmax(1)[range(5), range(5)], check_dtype=False)


def test_the_schedule_ends_with_the_run():
    from sgrpo_lightning.modules import cosine_with_warmup

    _, rows = train(LIKELIHOOD, total_steps=4, steps=2, scheduler=cosine_with_warmup)
    assert [row["learning_rate"] for row in rows] == pytest.approx([0.05, 0.0], abs=1e-9)


def test_memory_format_and_compilation_do_not_change_what_is_computed():
    images = Images(4).images
    module, _ = train(LIKELIHOOD)
    before = module(images)
    module.memory_format = torch.contiguous_format
    module.model.to(memory_format=torch.contiguous_format)
    torch.testing.assert_close(module(images), before, rtol=1e-4, atol=1e-4)

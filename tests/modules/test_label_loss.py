"""Losses from sampled labels against enumeration, a slow loop and the geometry package."""

import copy
import functools
import itertools
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.stats import binom, chisquare, norm, poisson
from torch.nn.functional import cross_entropy, log_softmax

sys.path.insert(0, str(Path(__file__).parents[1] / "heads"))
from heads_catalogue import HEADS, head_for

from sgrpo_lightning.geometry import population_objective, population_weight
from sgrpo_lightning.heads import maxrl_advantages, rloo_advantages, softmax_grpo_advantages
from sgrpo_lightning.modules import label_loss
from sgrpo_lightning.modules.label_loss import ExactLoss, PopulationLoss, SampledLabels

FALSE_ALARM = 1e-6
LOGITS = [[0.3, -1.2, 0.8], [-4.0, 1.0, 0.0], [5.0, 0.5, -0.5]]
MODES = ["sampled", "expected"]


def successes_only(rewards):
    """A head with an advantage in groups that all succeed, and none for a failure."""
    return rewards.shape[-1] * rewards / rewards.sum(-1, keepdim=True).clamp(min=1)


def no_baseline(rewards):
    """A head with an advantage in groups that all fail, and not zero-sum."""
    return 2 * rewards - 0.5


ALL_HEADS = {**{name: functools.partial(head_for, name) for name in HEADS}, "successes only": lambda M: successes_only}
ALL_HEADS["no baseline"] = lambda M: no_baseline


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def gradient(loss, logits, labels, *, weights=None, generator=None):
    """Of the sum of the losses, or of a weighted one, with respect to the logits."""
    logits = logits.detach().clone().requires_grad_()
    losses, _ = loss(logits, labels, generator=generator)
    return torch.autograd.grad(losses.sum() if weights is None else losses @ weights, logits)[0]


# ---- the expected gradient, by enumeration ----


def enumerated(monkeypatch, head, logits, label, M):
    """Expected gradient of `SampledLabels`: a row for each of the C^M groups of labels, weighed by its probability."""
    classes = len(logits)
    groups = torch.cartesian_prod(*[torch.arange(classes)] * M).reshape(-1, M)
    counts = torch.nn.functional.one_hot(groups, classes).sum(1).float()
    monkeypatch.setattr(label_loss, "label_counts", lambda probs, *, samples, generator: counts)
    likelihood = logits.softmax(0)[groups].prod(1)
    loss = SampledLabels(head=head, samples_per_group=M)
    rows = gradient(loss, logits.expand(len(groups), -1), torch.full((len(groups),), label), weights=likelihood)
    return rows.sum(0)


def enumerated_counts(monkeypatch, head, logits, label, M):
    """As `enumerated` for failures=expected: a row for each number of right labels."""
    p = logits.softmax(0)[label].item()
    k = torch.arange(M + 1.0, dtype=torch.float64)[:, None]
    # torch.binomial is asked for the rarer of right and wrong labels
    monkeypatch.setattr(torch, "binomial", lambda count, prob, generator: k if p <= 0.5 else M - k)
    loss, rows = SampledLabels(head=head, samples_per_group=M, failures="expected"), logits.expand(M + 1, -1)
    labels, likelihood = torch.full((M + 1,), label), torch.tensor(binom.pmf(np.arange(M + 1), M, p))
    assert loss(rows, labels, generator=None)[1]["reward/mean"].tolist() == pytest.approx((k[:, 0] / M).tolist())
    return gradient(loss, rows, labels, weights=likelihood).sum(0)


@pytest.mark.parametrize("name", ALL_HEADS)
@pytest.mark.parametrize("M", [1, 2, 3, 5])
@pytest.mark.parametrize("logits", LOGITS, ids=str)
def test_the_expected_gradient_is_that_of_the_objective(name, M, logits, monkeypatch):
    head, logits = ALL_HEADS[name](M), torch.tensor(logits, dtype=torch.float64)
    for label in (0, 2):
        exact = gradient(PopulationLoss(head=head, samples_per_group=M), logits[None], torch.tensor([label]))[0]
        probs = logits.softmax(0)
        scores = torch.eye(3, dtype=torch.float64)[label] - probs
        by_geometry = -population_weight(head, probs[label].item(), M=M) * probs[label] * scores
        for expected in (enumerated, enumerated_counts):
            assert_allclose(expected(monkeypatch, head, logits, label, M), exact, rtol=0, atol=1e-12)
        assert_allclose(exact, by_geometry, rtol=0, atol=1e-12)
        assert M == 1 or abs(exact).max() > 1e-9


def mean_and_spread(loss, logits, label, rows, directions):
    """Of the gradient of `rows` repeats, along some directions [D, C]."""
    projections = (
        gradient(loss, logits.expand(rows, -1), torch.full((rows,), label), generator=seeded(1)) @ directions.T
    )
    return projections.mean(0), projections.std(0) / rows**0.5


@pytest.mark.parametrize("failures", MODES)
@pytest.mark.parametrize("sharpness", [0.5, 4.0])
def test_a_thousand_classes(failures, sharpness):
    """Means of 4,000 gradients along 22 directions against the exact one: all |z| below the normal quantile at 1e-6.

    The directions: 20 random ones, the right label, and the exact gradient.
    """
    logits, M, label = sharpness * torch.randn(1000, generator=seeded(0), dtype=torch.float64), 32, 3
    logits[label] = logits.logsumexp(0) - 2  # p = 0.1 or so
    head = functools.partial(softmax_grpo_advantages, tau=0.2)
    exact = gradient(PopulationLoss(head=head, samples_per_group=M), logits[None], torch.tensor([label]))[0]
    random = torch.randn(20, 1000, generator=seeded(2), dtype=torch.float64)
    directions = torch.cat([random, torch.eye(1000, dtype=torch.float64)[[label]], exact[None]])
    loss = SampledLabels(head=head, samples_per_group=M, failures=failures)
    mean, error = mean_and_spread(loss, logits, label, 4000, directions)
    assert (abs(mean - directions @ exact) / error).max() < norm.isf(FALSE_ALARM / 2 / len(directions))


def test_expected_failures_have_less_noise():
    """Each gradient is a multiple of grad log p: of the wrong labels only their number makes noise."""
    logits, labels = torch.zeros(2000, 100, dtype=torch.float64), torch.zeros(2000, dtype=torch.long)
    head = functools.partial(softmax_grpo_advantages, tau=0.2)
    sampled, expected = (
        gradient(SampledLabels(head=head, samples_per_group=16, failures=mode), logits, labels, generator=seeded(3))
        for mode in MODES
    )
    torch.testing.assert_close(expected[:, 1:], -expected[:, :1].expand(-1, 99) / 99)
    assert expected[:, 1:].std(0).norm() < 0.5 * sampled[:, 1:].std(0).norm()


@pytest.mark.parametrize("failures", MODES)
@pytest.mark.parametrize("p", [0.003, 0.3, 0.97])
def test_right_labels_are_binomial(failures, p):
    M, rows = 40, 20_000
    logits = torch.tensor([p, *[(1 - p) / 9] * 9]).log().roll(4).expand(rows, -1)
    loss = SampledLabels(head=rloo_advantages, samples_per_group=M, failures=failures)
    _, metrics = loss(logits, torch.full((rows,), 4), generator=seeded(5))
    k = (metrics["reward/mean"] * M).round().int().numpy()
    expected = rows * binom.pmf(np.arange(M + 1), M, p)
    usual = expected >= 10
    seen = np.bincount(k, minlength=M + 1)
    seen, expected = ([*x[usual], x[~usual].sum()] for x in (seen, expected))
    assert chisquare(seen, expected).pvalue > FALSE_ALARM


# ---- the same labels, one by one ----


@pytest.mark.parametrize("name", ALL_HEADS)
@pytest.mark.parametrize("M", [1, 8, 33])
def test_counts_give_what_a_loop_over_labels_gives(name, M, monkeypatch):
    head, drawn = ALL_HEADS[name](M), []
    logits = 2 * torch.randn(20, 6, generator=seeded(M), dtype=torch.float64)
    labels = torch.randint(6, (20,), generator=seeded(M + 1))

    def remembered(*args, **kwargs):
        drawn.append(count(*args, **kwargs))
        return drawn[-1]

    count = label_loss.label_counts
    monkeypatch.setattr(label_loss, "label_counts", remembered)
    logits.requires_grad_()
    losses, metrics = SampledLabels(head=head, samples_per_group=M)(logits, labels, generator=seeded(7))

    def one_image(row, label, counts):
        sampled = torch.repeat_interleave(torch.arange(6), counts.int())
        rewards = (sampled == label).double()
        assert len(rewards) == M
        return -(head(rewards) * log_softmax(row, -1)[sampled]).mean(), rewards

    loop, rewards = zip(*itertools.starmap(one_image, zip(logits, labels, drawn[0], strict=True)), strict=True)
    torch.testing.assert_close(losses, torch.stack(loop), rtol=1e-12, atol=1e-12)
    (by_counts,), (by_loop,) = (torch.autograd.grad(x, logits) for x in (losses.sum(), torch.stack(loop).sum()))
    torch.testing.assert_close(by_counts, by_loop, rtol=1e-12, atol=1e-12)
    silent = [(head(r).abs() <= 1e-6).all().item() for r in rewards]
    assert metrics["reward/mean"].tolist() == pytest.approx([r.mean().item() for r in rewards])
    assert metrics["no_signal/frac"].tolist() == silent
    assert metrics["all_fail/frac"].tolist() == [r.sum().item() == 0 for r in rewards]
    assert metrics["all_pass/frac"].tolist() == [r.sum().item() == M for r in rewards]


def test_metrics_by_hand(monkeypatch):
    counts = torch.tensor([[0.0, 4, 0], [2, 1, 1], [4, 0, 0]])  # the right label is 0
    monkeypatch.setattr(label_loss, "label_counts", lambda *args, **kwargs: counts)
    loss = SampledLabels(head=successes_only, samples_per_group=4)
    losses, metrics = loss(torch.zeros(3, 3), torch.zeros(3, dtype=torch.long), generator=seeded(0))
    assert {name: value.tolist() for name, value in metrics.items()} == {
        "reward/mean": [0.0, 0.5, 1.0],
        "all_fail/frac": [1.0, 0.0, 0.0],
        "all_pass/frac": [0.0, 0.0, 1.0],
        "no_signal/frac": [1.0, 0.0, 0.0],
    }
    assert {value.dtype for value in metrics.values()} == {torch.float32}
    # two right labels of advantage 4/2, then four of 4/4, each with log pi = -log 3: means of log 3
    torch.testing.assert_close(losses, torch.tensor([0.0, 1.0, 1.0]) * torch.tensor(3.0).log())


def test_rounding_is_no_signal():
    """Advantages of 1e-7 at most: a softmax of equal rewards can be off by that much in float32."""
    loss = SampledLabels(head=lambda rewards: 1e-7 * rloo_advantages(rewards), samples_per_group=4)
    _, metrics = loss(torch.zeros(50, 3), torch.zeros(50, dtype=torch.long), generator=seeded(0))
    assert metrics["no_signal/frac"].tolist() == [1.0] * 50


@pytest.mark.parametrize("failures", MODES)
def test_a_small_temperature_is_maxrl(failures):
    logits, labels = torch.randn(50, 10, generator=seeded(0)), torch.arange(50) % 10
    cold = functools.partial(softmax_grpo_advantages, tau=1e-3)
    knobs = {"samples_per_group": 16, "failures": failures}
    losses = [SampledLabels(head=head, **knobs) for head in (cold, maxrl_advantages)]
    first, second = (gradient(loss, logits, labels, generator=seeded(3)) for loss in losses)
    torch.testing.assert_close(first, second)
    assert first.abs().max() > 0.1


# ---- the objective itself ----

RATES = np.array([1e-30, 1e-12, 1e-6, 1e-3, 0.2, 0.5, 0.9, 0.999])
LOG_ODDS = torch.tensor([*np.log(RATES / (1 - RATES)), -np.log(1e-6), -np.log(1e-15)], dtype=torch.float64)
RATES = np.array([*RATES, 1 - 1e-6, 1 - 1e-15])


@pytest.mark.parametrize("name", ALL_HEADS)
@pytest.mark.parametrize("M", [1, 2, 8, 300])
def test_value_and_slope_are_those_of_the_geometry(name, M):
    head, labels = ALL_HEADS[name](M), torch.zeros(len(RATES), dtype=torch.long)
    logits = torch.stack([LOG_ODDS, torch.zeros_like(LOG_ODDS)], 1).requires_grad_()
    losses, metrics = PopulationLoss(head=head, samples_per_group=M)(logits, labels, generator=None)
    assert metrics == {}
    assert_allclose(-losses.detach(), population_objective(head, RATES, M=M), rtol=1e-9, atol=0)
    (found,) = torch.autograd.grad(losses.sum(), logits)
    log_p = log_softmax(logits, 1)[:, 0]
    (score,) = torch.autograd.grad(log_p.sum(), logits)
    weight = population_weight(head, RATES, M=M)
    expected = -(weight * RATES)[:, None] * score.numpy()
    assert_allclose(found, expected, rtol=1e-9, atol=1e-20 if name != "pass_at_k" else 1e-14)
    assert M == 1 or abs(found[0]).max() > 1e-33


def test_a_weight_that_vanishes_keeps_its_digits():
    """pass@k at 1 - p = q: the weight is k q^(k - 1), down to 3e-18 here."""
    q = torch.tensor([1e-9, 1e-6, 1e-3, 0.5], dtype=torch.float64)
    log_p = torch.log1p(-q).requires_grad_()
    table = PopulationLoss(head=head_for("pass_at_k", 3), samples_per_group=3)._table.on(log_p.device)
    (slope,) = torch.autograd.grad(label_loss._Objective.apply(log_p, table).sum(), log_p)
    torch.testing.assert_close(slope, (1 - q) * 3 * q**2, rtol=1e-9, atol=0)


def test_an_impossible_label():
    logits = torch.tensor([[-torch.inf, 0.0], [0.0, -torch.inf]], requires_grad=True)
    losses, _ = PopulationLoss(head=rloo_advantages, samples_per_group=4)(logits, torch.tensor([0, 0]))
    assert losses.tolist() == [0.0, -1.0]
    assert torch.autograd.grad(losses.sum(), logits)[0].tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_large_groups_keep_their_digits():
    head, M = functools.partial(softmax_grpo_advantages, tau=0.1), 2000  # whose groups come in two parts
    logits = torch.stack([LOG_ODDS, torch.zeros_like(LOG_ODDS)], 1)
    losses, _ = PopulationLoss(head=head, samples_per_group=M)(logits, torch.zeros(len(RATES)).long())
    assert_allclose(-losses, population_objective(head, RATES, M=M), rtol=1e-9)


@pytest.mark.parametrize("name", ALL_HEADS)
def test_the_slope_is_that_of_the_value(name):
    """Finite differences in float64."""
    loss = PopulationLoss(head=ALL_HEADS[name](8), samples_per_group=8)
    logits = torch.randn(5, 4, generator=seeded(0), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss(x, torch.arange(5) % 4)[0], logits)


def test_it_is_differentiated_once():
    logits = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    losses, _ = PopulationLoss(head=rloo_advantages, samples_per_group=4)(logits, torch.tensor([0]))
    with pytest.raises(NotImplementedError, match="can be differentiated once"):
        torch.autograd.grad(losses.sum(), logits, create_graph=True)


@pytest.mark.parametrize("M", [2, 5])
def test_rloo_is_exact_reinforce(M):
    logits = (5 * torch.randn(100, 4, generator=seeded(0), dtype=torch.float64)).requires_grad_()
    labels = torch.arange(100) % 4
    losses, _ = PopulationLoss(head=rloo_advantages, samples_per_group=M)(logits, labels)
    p = logits.softmax(1)[range(100), labels]
    torch.testing.assert_close(losses, -p, rtol=1e-13, atol=0)
    (found,), (expected,) = (torch.autograd.grad(x.sum(), logits) for x in (losses, -p))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)


def test_a_large_cold_group_is_nearly_cross_entropy():
    """MaxRL's weight is (1 - (1 - p)^(M-1)) / p: at p = 0.1 and M = 256 the rest is 2e-12."""
    logits = torch.tensor([[0.1, 0.9]], dtype=torch.float64).log()
    found = gradient(PopulationLoss(head=maxrl_advantages, samples_per_group=256), logits, torch.tensor([0]))
    torch.testing.assert_close(found, torch.tensor([[-0.9, 0.9]], dtype=torch.float64), rtol=1e-10, atol=0)


# ---- whatever the logits ----


def every_loss(M=16):
    head = functools.partial(softmax_grpo_advantages, tau=0.1)
    sampled = [SampledLabels(head=head, samples_per_group=M, failures=mode) for mode in MODES]
    return [*sampled, PopulationLoss(head=head, samples_per_group=M), ExactLoss(loss=cross_entropy)]


@pytest.mark.parametrize("loss", every_loss(), ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits(loss, dtype):
    """A certain and an impossible right label, in both orders of magnitude that softmax can still tell apart."""
    logits = torch.tensor([[1e4, 0, -5], [0, 1e4, 0], [60, 0, 0], [0, 60, 0], [15, 0, 0]], dtype=dtype)
    labels = torch.zeros(5, dtype=torch.long)
    losses, metrics = loss(logits.requires_grad_(), labels, generator=seeded(0))
    (slope,) = torch.autograd.grad(losses.sum(), logits)
    assert losses.dtype == dtype
    assert losses.isfinite().all()
    assert slope.isfinite().all()
    assert slope[0].abs().max() < 1e-6
    assert all(value.shape == (5,) for value in metrics.values())


@pytest.mark.parametrize("loss", every_loss(), ids=lambda loss: type(loss).__name__)
def test_logits_that_are_not_numbers_give_a_loss_that_is_none(loss):
    logits = torch.zeros(3, 4)
    logits[1, 2] = torch.nan
    losses, _ = loss(logits, torch.tensor([0, 1, 2]), generator=seeded(0))
    assert losses.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("loss", every_loss(), ids=lambda loss: type(loss).__name__)
def test_no_images_no_losses(loss):
    losses, metrics = loss(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), generator=seeded(0))
    assert losses.shape == (0,)
    assert all(value.shape == (0,) for value in metrics.values())


@pytest.mark.parametrize("p", [1e-7, 1 - 2.5e-8])
def test_float32_keeps_the_digits_of_rare_outcomes(p):
    """failures=expected with M = 2,000: how many of 1e9 labels are of the rare kind is a Poisson count.

    p = 1 - 2.5e-8 is 1 in float32.
    """
    M, rows = 2000, 500_000
    logits = torch.tensor([p, 0.3 * (1 - p), 0.7 * (1 - p)], dtype=torch.float64).log().float().expand(rows, -1)
    loss = SampledLabels(head=rloo_advantages, samples_per_group=M, failures="expected")
    _, metrics = loss(logits, torch.zeros(rows, dtype=torch.long), generator=seeded(4))
    right = (metrics["reward/mean"].double() * M).round()
    rare = (right if p < 0.5 else M - right).sum().item()
    low, high = poisson.interval(1 - FALSE_ALARM, rows * M * min(p, 1 - p))
    assert 0 < low <= rare <= high


def test_a_rare_failure_has_a_bounded_gradient(monkeypatch):
    """One wrong label at 1 - p = 1e-6: the failure's part of the gradient is A_f / M (e_y - mean of the wrong)."""
    logits = torch.tensor([[np.log(2e6), 0.0, 0.0]], dtype=torch.float64)
    monkeypatch.setattr(torch, "binomial", lambda count, prob, generator: torch.ones_like(count))
    loss = SampledLabels(head=rloo_advantages, samples_per_group=8, failures="expected")
    p = logits.softmax(1)[0, 0].item()
    # k = 7 of 8 right: RLOO gives 1/7 and -1; scores are (1 - p, ...) and, for the wrong ones, (-p, 1/2 - ..., ...)
    right, wrong = (1 - p) * np.array([1, -0.5, -0.5]), np.array([-p, p / 2, p / 2])
    expected = -(7 * (1 / 7) * right - wrong) / 8
    assert_allclose(gradient(loss, logits, torch.tensor([0]))[0], expected, rtol=1e-8)


# ---- the contract ----


def test_exact_loss_is_the_function():
    logits, labels = torch.randn(6, 5, generator=seeded(0)), torch.arange(6) % 5
    losses, metrics = ExactLoss(loss=cross_entropy)(logits, labels, generator=seeded(0))
    assert torch.equal(losses, -log_softmax(logits, 1)[range(6), labels])
    assert metrics == {}


def test_samples_are_counted():
    assert [loss.samples for loss in every_loss(M=24)] == [24, 24, 0, 0]


@pytest.mark.parametrize("loss", every_loss(), ids=lambda loss: type(loss).__name__)
def test_the_generator_decides_everything(loss):
    logits, labels, before = torch.randn(30, 20, generator=seeded(0)), torch.arange(30) % 20, torch.get_rng_state()
    copies = [loss, copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))]
    first, *same = (gradient(x, logits, labels, generator=seeded(1)) for x in [loss, *copies])
    other = gradient(loss, logits, labels, generator=seeded(2))
    assert all(torch.equal(first, x) for x in same)
    assert torch.equal(first, other) == (loss.samples == 0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", [SampledLabels, PopulationLoss])
def test_the_head_is_called_when_the_loss_is_made(kind):
    calls = []

    def head(rewards):
        calls.append(tuple(rewards.shape))
        return rloo_advantages(rewards)

    loss = kind(head=head, samples_per_group=8)
    loss(torch.zeros(2, 3), torch.tensor([0, 1]), generator=seeded(0))
    assert calls == [(9, 8)]
    assert loss._table.on(torch.device("cpu")) is loss._table.on(torch.device("cpu"))


def test_bad_settings_are_refused():
    for kind in (SampledLabels, PopulationLoss):
        with pytest.raises(ValueError, match=r"samples_per_group must be >= 1, got 0"):
            kind(head=rloo_advantages, samples_per_group=0)
        with pytest.raises(ValueError, match="permutation-equivariant"):
            kind(head=lambda r: r.cumsum(-1), samples_per_group=4)
    with pytest.raises(ValueError, match="failures must be one of sampled, expected, got 'mean'"):
        SampledLabels(head=rloo_advantages, samples_per_group=4, failures="mean")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("index", range(4))
def test_the_tables_follow_the_logits(index):
    loss, logits, labels = every_loss(M=64)[index], torch.randn(400, 50, generator=seeded(0)), torch.arange(400) % 50
    here = gradient(loss, logits, labels, generator=seeded(1))
    there = gradient(loss, logits.cuda(), labels.cuda(), generator=torch.Generator("cuda").manual_seed(1)).cpu()
    if loss.samples == 0:
        torch.testing.assert_close(here, there)
    else:
        assert abs((here - there).mean(0)).max() < 6 * (here.std(0) + there.std(0)).max() / 20

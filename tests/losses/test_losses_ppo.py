"""The clipped surrogate: hand arithmetic, gradients, masking, splitting."""

import math

import pytest
import torch

from sgrpo_lightning.losses import group_token_mean, kl_k2, kl_penalty, ppo_surrogate
from sgrpo_lightning.losses.numerics import LOG_RATIO_BOUND
from sgrpo_lightning.metrics import accumulate

# Four tokens, one per row: (A, rho) = (+1, .5), (+1, 1.5), (-1, .5), (-1, 1.5), weights .1 .2 .3 .4.
RATIOS = torch.tensor([[0.5], [1.5], [0.5], [1.5]], dtype=torch.float64)
SIGNS = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
WEIGHTS = torch.tensor([[0.1], [0.2], [0.3], [0.4]], dtype=torch.float64)


def quadrants(**clip):
    behavior = torch.full((4, 1), -2.0, dtype=torch.float64)
    policy = (behavior + RATIOS.log()).requires_grad_()
    loss, metrics = ppo_surrogate(policy, behavior, SIGNS, WEIGHTS, **clip)
    (gradient,) = torch.autograd.grad(loss, policy)
    return loss.item(), gradient.flatten().tolist(), {k: v.item() for k, v in metrics.items()}


def test_all_four_quadrants_by_hand():
    loss, gradient, metrics = quadrants()
    # min(.5, .8) = .5;  min(1.5, 1.28) = 1.28;  min(-.5, -.8) = -.8;  min(-1.5, -1.28) = -1.5
    # loss = -(.1 * .5 + .2 * 1.28 - .3 * .8 - .4 * 1.5) = -(.05 + .256 - .24 - .6) = .534
    assert loss == pytest.approx(0.534, rel=1e-12)
    # d/dlogp = -w A rho where unclipped: -.1 * .5 and +.4 * 1.5; 0 where the clip binds
    assert gradient == pytest.approx([-0.05, 0.0, 0.0, 0.6], rel=1e-12)
    assert gradient[1] == gradient[2] == 0.0
    assert metrics["clip_low/frac"] == pytest.approx(0.3)
    assert metrics["clip_high/frac"] == pytest.approx(0.2)
    assert metrics["ratio/max"] == pytest.approx(1.5)
    assert metrics["ratio/min"] == pytest.approx(0.5)
    # rho - 1 - log rho: .4 of the weight at rho = .5 (log 2 - .5), .6 at 1.5 (.5 - log 1.5)
    expected = 0.4 * (math.log(2) - 0.5) + 0.6 * (0.5 - math.log(1.5))
    assert metrics["kl_sampler/mean"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("clip", "loss", "gradient", "low", "high"),
    [
        # without the low side row 3 is -.5: -(.05 + .256 - .15 - .6) = .444, gradient +.3 * .5
        ({"clip_low": None}, 0.444, [-0.05, 0, 0.15, 0.6], 0, 0.2),
        # without the high side row 2 is 1.5: -(.05 + .3 - .24 - .6) = .49, gradient -.2 * 1.5
        ({"clip_high": None}, 0.49, [-0.05, -0.3, 0, 0.6], 0.3, 0),
        ({"clip_low": None, "clip_high": None}, 0.4, [-0.05, -0.3, 0.15, 0.6], 0, 0),
        # a range that reaches both ratios clips nothing
        ({"clip_low": 0.6, "clip_high": 0.6}, 0.4, [-0.05, -0.3, 0.15, 0.6], 0, 0),
    ],
)
def test_each_side_of_the_clip_by_hand(clip, loss, gradient, low, high):
    got, got_gradient, metrics = quadrants(**clip)
    assert got == pytest.approx(loss, rel=1e-12)
    assert got_gradient == pytest.approx(gradient, rel=1e-12)
    assert metrics["clip_low/frac"] == pytest.approx(low)
    assert metrics["clip_high/frac"] == pytest.approx(high)


def random_batch(seed, n=6, t=5, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(3, n, t, generator=generator, dtype=dtype)
    mask = torch.rand(n, t, generator=generator) < 0.7
    weights = group_token_mean(mask, torch.arange(n) // 2).to(dtype)
    return draw[0] - 2, draw[0] - 2 + 0.4 * draw[1], draw[2, :, 0], weights


@pytest.mark.parametrize("clip", [{}, {"clip_low": 0.0, "clip_high": 0.0}, {"clip_low": None, "clip_high": None}])
def test_on_policy_ratio_is_exactly_one_and_the_gradient_is_reinforce(clip):
    policy, _, advantages, weights = random_batch(0)
    policy.requires_grad_()
    loss, metrics = ppo_surrogate(policy, None, advantages, weights, **clip)
    (gradient,) = torch.autograd.grad(loss, policy)
    assert metrics["ratio/max"].item() == metrics["ratio/min"].item() == 1.0
    assert metrics["kl_sampler/mean"].item() == 0.0
    assert metrics["clip_low/frac"].item() == metrics["clip_high/frac"].item() == 0.0
    assert torch.equal(gradient, -weights * advantages[:, None])
    same, _ = ppo_surrogate(policy, policy.detach().clone(), advantages, weights, **clip)
    assert same.item() == loss.item()


@pytest.mark.parametrize("on_policy", [True, False])
def test_gradcheck(on_policy):
    policy, behavior, advantages, weights = random_batch(1)
    if on_policy:  # a finite difference moves both sides of the ratio, so it is checked against fixed ones
        behavior = policy.clone()
    policy.requires_grad_()
    clip = {"clip_low": 0.2, "clip_high": 0.28}
    assert torch.autograd.gradcheck(lambda lp: ppo_surrogate(lp, behavior, advantages, weights, **clip)[0], policy)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["policy", "behavior", "both", "on_policy"])
def test_masked_tokens_get_exactly_zero_gradient(bad, side):
    policy, behavior, advantages, weights = random_batch(2)
    masked = weights == 0
    assert masked.any()
    clean, clean_metrics = ppo_surrogate(policy, None if side == "on_policy" else behavior, advantages, weights)
    if side != "behavior":
        policy[masked] = bad
    if side in ("behavior", "both"):
        behavior[masked] = bad
    policy.requires_grad_()
    entropy = torch.where(masked, bad, 1.0)
    loss, metrics = ppo_surrogate(
        policy, None if side == "on_policy" else behavior, advantages, weights, entropy=entropy
    )
    (gradient,) = torch.autograd.grad(loss, policy)
    assert torch.equal(gradient[masked], torch.zeros(int(masked.sum()), dtype=gradient.dtype))
    assert gradient.isfinite().all()
    assert loss.item() == clean.item()
    assert metrics.pop("entropy/mean").item() == pytest.approx(1.0)
    assert metrics == clean_metrics


def test_a_fully_masked_row_may_have_no_advantage():
    weights = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    policy = torch.zeros(2, 2, requires_grad=True)
    loss, _ = ppo_surrogate(policy, None, torch.tensor([2.0, math.nan]), weights)
    loss.backward()
    assert loss.item() == -2.0
    assert policy.grad.tolist() == [[-2.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (3, 0)])
@pytest.mark.parametrize("on_policy", [True, False])
def test_an_empty_batch_costs_nothing(shape, on_policy):
    policy = torch.randn(shape, requires_grad=True)
    behavior = None if on_policy else torch.randn(shape)
    loss, metrics = ppo_surrogate(policy, behavior, torch.ones(shape[0]), torch.zeros(shape))
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(policy.grad, torch.zeros(shape))
    assert metrics["ratio/max"].item() == -math.inf
    assert metrics["ratio/min"].item() == math.inf
    assert all(v.item() == 0 for k, v in metrics.items() if not k.startswith("ratio"))


@pytest.mark.parametrize(("gap", "gradient"), [(19.0, math.exp(19)), (60.0, 0.0), (1e5, 0.0), (-1e5, 0.0)])
def test_the_ratio_cannot_overflow(gap, gradient):
    policy = torch.tensor([[gap]], requires_grad=True)
    loss, metrics = ppo_surrogate(policy, torch.zeros(1, 1), torch.tensor([-1.0]), torch.ones(1, 1), clip_low=None)
    loss.backward()
    bounded = math.exp(max(-LOG_RATIO_BOUND, min(LOG_RATIO_BOUND, gap)))
    assert loss.item() == pytest.approx(bounded, rel=1e-5)
    assert policy.grad.item() == pytest.approx(gradient, rel=1e-5)
    assert all(v.isfinite() for v in metrics.values())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("parts", [1, 2, 3, 5, 12])
def test_any_split_equals_the_whole(dtype, tolerance, parts):
    policy, behavior, advantages, weights = random_batch(3, n=12, dtype=dtype)
    weights[4] = 0  # with 12 parts one of them has no tokens at all
    entropy, reference = behavior.exp(), behavior - 0.3
    advantages, policy = advantages, policy.requires_grad_()

    def learn(rows):
        lp, w = policy[rows], weights[rows]
        surrogate, metrics = ppo_surrogate(lp, behavior[rows], advantages[rows], w, entropy=entropy[rows])
        penalty, kl_metrics = kl_penalty(kl_k2(lp, reference[rows]), w, 0.1)
        return torch.autograd.grad(surrogate + penalty, policy)[0], metrics | kl_metrics

    order = torch.randperm(12, generator=torch.Generator().manual_seed(parts))
    gradient, metrics = learn(order)
    pieces = [learn(rows) for rows in order.tensor_split(parts)]
    torch.testing.assert_close(sum(g for g, _ in pieces), gradient, rtol=0, atol=tolerance)
    assert gradient.abs().max() > 0.01
    torch.testing.assert_close(accumulate(m for _, m in pieces), metrics, rtol=0, atol=tolerance)


def test_metrics_are_detached_scalars_with_their_own_weights():
    policy, behavior, advantages, weights = random_batch(4)
    policy.requires_grad_()
    entropy = torch.full_like(policy, 0.7)
    _, metrics = ppo_surrogate(policy, behavior, advantages, weights / 3, entropy=entropy, metric_weights=weights)
    assert all(v.ndim == 0 and not v.requires_grad for v in metrics.values())
    assert metrics["entropy/mean"].item() == pytest.approx(0.7)
    _, whole = ppo_surrogate(policy, behavior, advantages, weights, entropy=entropy)
    assert metrics == whole


def test_low_precision_inputs_are_raised():
    policy = torch.full((1, 1), -1.0, dtype=torch.bfloat16, requires_grad=True)
    loss, metrics = ppo_surrogate(policy, None, torch.ones(1, dtype=torch.bfloat16), torch.ones(1, 1))
    assert loss.dtype == metrics["ratio/max"].dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clip_low": -0.1}, r"clip_low must lie in \[0, 1\], got -0.1"),
        ({"clip_low": 1.5}, r"clip_low must lie in \[0, 1\], got 1.5"),
        ({"clip_high": -0.1}, "clip_high must be >= 0, got -0.1"),
        ({"advantages": torch.zeros(2, 3)}, r"advantages must be \[2\], one per row, got \[2, 3\]"),
        ({"weights": torch.zeros(2, 1)}, r"weights must have the shape .* \[2, 3\], got \[2, 1\]"),
        (
            {"behavior_logprobs": torch.zeros(3)},
            r"behavior_logprobs must have the shape .* \[2, 3\], got \[3\]",
        ),
    ],
)
def test_rejects_wrong_inputs(change, message):
    arguments = {
        "policy_logprobs": torch.zeros(2, 3),
        "behavior_logprobs": torch.zeros(2, 3),
        "advantages": torch.zeros(2),
        "weights": torch.zeros(2, 3),
    }
    with pytest.raises(ValueError, match=message):
        ppo_surrogate(**(arguments | change))

"""Exact expectations: every group that a three-class policy can sample, weighed with its probability.

The unclipped update of Eq. 2, mean of A_i grad log pi(z_i), is expected to be omega(p) grad p.
"""

from functools import partial

import pytest
import torch
from heads_catalogue import HEADS, head_for

from sgrpo_lightning.geometry import population_weight
from sgrpo_lightning.heads import (
    grpo_advantages,
    maxrl_advantages,
    mix_advantages,
    pass_at_k_advantages,
    reinforce_advantages,
    rloo_advantages,
    softmax_grpo_advantages,
)

LOGITS = [[0.3, -1.2, 0.8], [-4.0, 1.0, 0.0], [5.0, 0.5, -0.5], [0.0, 0.0, 0.0]]
CORRECT = {"one correct class": [1.0, 0.0, 0.0], "two correct classes": [1.0, 0.0, 1.0]}


def expected_update(head, logits: torch.Tensor, class_rewards: torch.Tensor, M: int) -> torch.Tensor:
    """E[1/M sum_i A_i grad log pi(z_i)] in float64, over the 3^M groups."""
    probs = logits.softmax(0)
    groups = torch.cartesian_prod(*[torch.arange(3)] * M).reshape(-1, M)
    scores = torch.eye(3, dtype=torch.float64) - probs  # row z is grad log pi(z)
    updates = (head(class_rewards[groups])[..., None] * scores[groups]).mean(1)
    return (probs[groups].prod(1)[:, None] * updates).sum(0)


def value_and_gradient(objective, logits: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    logits = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    value = objective(logits.softmax(0))
    return value.detach(), torch.autograd.grad(value, logits)[0]


def f64(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("M", [2, 3, 4, 5])
@pytest.mark.parametrize("correct", CORRECT.values(), ids=CORRECT.keys())
@pytest.mark.parametrize("logits", LOGITS, ids=str)
def test_the_expected_update_is_the_population_weight_times_the_gradient(name, M, correct, logits):
    head = head_for(name, M)
    p, gradient = value_and_gradient(lambda probs: probs @ f64(correct), logits)
    update = expected_update(head, f64(logits), f64(correct), M)
    expected = population_weight(head, p, M=M) * gradient
    torch.testing.assert_close(update, expected, rtol=0, atol=1e-12)
    assert update.abs().max() > 1e-9


@pytest.mark.parametrize("M", [2, 4, 5])
def test_a_mix_of_heads_has_the_sum_of_their_weights(M):
    parts = [partial(softmax_grpo_advantages, tau=0.1), maxrl_advantages]
    head = partial(mix_advantages, heads=parts, weights=[0.75, -2.0])
    p, gradient = value_and_gradient(lambda probs: probs[0], LOGITS[0])
    weight = 0.75 * population_weight(parts[0], p, M=M) - 2 * population_weight(parts[1], p, M=M)
    update = expected_update(head, f64(LOGITS[0]), f64([1, 0, 0]), M)
    torch.testing.assert_close(update, weight * gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("M", [2, 3, 8, 16])
@pytest.mark.parametrize("p", [1e-6, 0.01, 0.5, 0.99, 1.0])
def test_weights_known_in_closed_form(M, p):
    close = partial(pytest.approx, rel=1e-11, abs=1e-13)
    assert population_weight(reinforce_advantages, p, M=M) == close((M - 1) / M)
    assert population_weight(rloo_advantages, p, M=M) == close(1)
    assert population_weight(maxrl_advantages, p, M=M) == close(sum((1 - p) ** t for t in range(M - 1)))
    for k in range(1, M + 1):
        head = partial(pass_at_k_advantages, k=k)
        assert population_weight(head, p, M=M) == close(k * (1 - p) ** (k - 1))


@pytest.mark.parametrize(
    ("head", "M", "weights"),
    [
        # 40-digit arithmetic on Eq. 4, and on the z-score of k successes in M
        (
            partial(softmax_grpo_advantages, tau=0.1),
            8,
            {0.01: 6.79103568226, 0.5: 1.9841285855, 0.99: 1.01004798187},
        ),
        (
            partial(softmax_grpo_advantages, tau=0.3),
            16,
            {0.01: 8.93169287085, 0.5: 1.84333865329, 0.99: 0.971357298813},
        ),
        (
            partial(grpo_advantages, ddof=0, eps=0.0),
            8,
            {0.001: 2.64200732911, 0.01: 2.60886224352, 0.5: 1.85565594961, 0.9: 2.32768905211},
        ),
    ],
)
def test_weights_known_in_numbers(head, M, weights):
    for p, weight in weights.items():
        assert population_weight(head, p, M=M) == pytest.approx(weight, rel=1e-11)


@pytest.mark.parametrize("logits", LOGITS, ids=str)
@pytest.mark.parametrize(("M", "k"), [(2, 1), (3, 2), (4, 2), (4, 3), (5, 4), (3, 3), (5, 5)])
def test_pass_at_k_climbs_the_best_of_k_for_graded_rewards(logits, M, k):
    """E[max of k] = sum over levels of (level - level below) * (1 - P(below)^k), levels 0, 0.4 and 1."""
    rewards = [0.4, 1.0, 0.0]

    def best_of_k(probs):
        return 0.4 * (1 - probs[2] ** k) + 0.6 * (1 - (probs[0] + probs[2]) ** k)

    _, gradient = value_and_gradient(best_of_k, logits)
    update = expected_update(partial(pass_at_k_advantages, k=k), f64(logits), f64(rewards), M)
    torch.testing.assert_close(update, gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("logits", LOGITS, ids=str)
@pytest.mark.parametrize("M", [2, 3, 5])
def test_rloo_climbs_the_expected_reward_for_graded_rewards(logits, M):
    rewards = f64([0.4, 1.0, -2.0])
    _, gradient = value_and_gradient(lambda probs: probs @ rewards, logits)
    update = expected_update(rloo_advantages, f64(logits), rewards, M)
    torch.testing.assert_close(update, gradient, rtol=0, atol=1e-12)

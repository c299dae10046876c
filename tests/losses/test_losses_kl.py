"""KL estimators by exact enumeration of a small softmax policy."""

import math

import pytest
import torch

from sgrpo_lightning.losses import kl_full, kl_k1, kl_k2, kl_k3, kl_penalty

POLICY = torch.tensor([0.9, -0.3, 0.2, -1.5, 0.0], dtype=torch.float64)
REFERENCE = torch.tensor([-0.2, 0.8, 0.1, -0.4, 0.5], dtype=torch.float64)
SAMPLED = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}


def divergence(p, q):
    """KL between two categorical distributions, by the definition."""
    return sum(a * (a / b).log() for a, b in zip(p, q, strict=True))


def expectation(estimator, policy, reference):
    """E over z ~ policy of the estimator's value, and of its gradient with z held fixed."""
    policy = policy.clone().requires_grad_()
    log_p, log_q = policy.log_softmax(0), reference.log_softmax(0)
    p = log_p.exp().detach()
    values = estimator(log_p, log_q)
    (gradient,) = torch.autograd.grad((p * values).sum(), policy)
    return (p * values.detach()).sum(), gradient


def exact(policy, reference, *, forward=False):
    policy = policy.clone().requires_grad_()
    p, q = policy.softmax(0), reference.softmax(0)
    value = divergence(q, p) if forward else divergence(p, q)
    (gradient,) = torch.autograd.grad(value, policy)
    return value.detach(), gradient


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_k1_and_k3_have_the_right_expected_value(name):
    value, _ = expectation(SAMPLED[name], POLICY, REFERENCE)
    torch.testing.assert_close(value, exact(POLICY, REFERENCE)[0], rtol=1e-12, atol=0)


def test_k1_has_no_expected_gradient():
    _, gradient = expectation(kl_k1, POLICY, REFERENCE)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-15)
    assert exact(POLICY, REFERENCE)[1].abs().max() > 0.1


def test_k2_has_the_gradient_of_the_reverse_kl_and_a_biased_value():
    value, gradient = expectation(kl_k2, POLICY, REFERENCE)
    exact_value, exact_gradient = exact(POLICY, REFERENCE)
    torch.testing.assert_close(gradient, exact_gradient, rtol=1e-12, atol=1e-15)
    assert (value - exact_value).abs() > 0.01


def test_k3_has_the_gradient_of_the_forward_kl():
    _, gradient = expectation(kl_k3, POLICY, REFERENCE)
    torch.testing.assert_close(gradient, exact(POLICY, REFERENCE, forward=True)[1], rtol=1e-12, atol=1e-15)
    assert (gradient - exact(POLICY, REFERENCE)[1]).abs().max() > 0.01


def test_k3_agrees_with_the_reverse_kl_to_first_order():
    def mismatch(step):
        near = REFERENCE + step * (POLICY - REFERENCE)
        return (expectation(kl_k3, near, REFERENCE)[1] - exact(near, REFERENCE)[1]).norm()

    # gradients are O(step) and differ by O(step^2): a tenth of the step leaves a hundredth of the mismatch
    assert (mismatch(1e-3) / mismatch(1e-4)).item() == pytest.approx(100, rel=0.01)  # next order is 1e-3 / 1


def test_k2_is_the_kl_to_second_order():
    def bias(step):
        near = REFERENCE + step * (POLICY - REFERENCE)
        return (expectation(kl_k2, near, REFERENCE)[0] - exact(near, REFERENCE)[0]).abs()

    assert (bias(1e-2) / bias(1e-3)).item() == pytest.approx(1000, rel=0.05)  # third order, up to step itself


def test_full_is_exact_in_value_and_gradient():
    policy = POLICY.clone().requires_grad_()
    value = kl_full(policy, REFERENCE)
    (gradient,) = torch.autograd.grad(value, policy)
    exact_value, exact_gradient = exact(POLICY, REFERENCE)
    torch.testing.assert_close(value.detach(), exact_value, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, exact_gradient, rtol=1e-12, atol=1e-15)


def test_values_by_hand():
    policy, reference = torch.tensor([math.log(0.6)]), torch.tensor([math.log(0.3)])  # g = log 2
    assert kl_k1(policy, reference).item() == pytest.approx(math.log(2), rel=1e-6)
    assert kl_k2(policy, reference).item() == pytest.approx(math.log(2) ** 2 / 2, rel=1e-6)
    assert kl_k3(policy, reference).item() == pytest.approx(0.5 - 1 + math.log(2), rel=1e-6)
    # (1/2, 1/2) against (3/4, 1/4): 1/2 log(2/3) + 1/2 log 2 = 1/2 log(4/3)
    full = kl_full(torch.zeros(2), torch.tensor([3.0, 1.0]).log())
    assert full.item() == pytest.approx(0.5 * math.log(4 / 3), rel=1e-6)


@pytest.mark.parametrize("name", SAMPLED)
def test_gradcheck_sampled(name):
    torch.manual_seed(0)
    policy = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    reference = torch.randn(3, 4, dtype=torch.float64)
    weights = torch.rand(3, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda lp: SAMPLED[name](lp, reference), policy)
    assert torch.autograd.gradcheck(lambda lp: kl_penalty(SAMPLED[name](lp, reference), weights, 0.3)[0], policy)


def test_gradcheck_full():
    torch.manual_seed(0)
    policy = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    reference = torch.randn(2, 3, 5, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda logits: kl_full(logits, reference), policy)


@pytest.mark.parametrize("estimator", [kl_k1, kl_k2, kl_k3, kl_full])
def test_the_reference_is_a_constant(estimator):
    reference = torch.randn(2, 4, requires_grad=True)
    policy = torch.randn(2, 4, requires_grad=True)
    estimator(policy, reference).sum().backward()
    assert reference.grad is None
    assert policy.grad is not None


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38, -3e38])
@pytest.mark.parametrize("side", ["policy", "reference"])
def test_masked_tokens_get_exactly_zero_gradient(name, bad, side):
    policy, reference = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-2.0, -2.0]])
    (policy if side == "policy" else reference)[0, 1] = bad
    policy.requires_grad_()
    weights = torch.tensor([[1.0, 0.0]])
    loss, metrics = kl_penalty(SAMPLED[name](policy, reference), weights, beta=2.0)
    loss.backward()
    assert policy.grad[0, 1].item() == 0.0
    value = {"k1": 1.0, "k2": 0.5, "k3": math.exp(-1)}[name]  # g = 1
    assert metrics["kl/mean"].item() == pytest.approx(value)
    assert loss.item() == pytest.approx(2 * value)


def test_k3_cannot_overflow_and_keeps_its_pull_on_over_weighted_tokens():
    policy = torch.tensor([-200.0, -0.1], requires_grad=True)
    values = kl_k3(policy, torch.tensor([-0.1, -200.0]))
    values.sum().backward()
    assert values.isfinite().all()
    assert policy.grad.tolist() == pytest.approx([0.0, 1.0])  # 1 - exp(-g) -> 1


def test_full_handles_impossible_tokens():
    policy = torch.tensor([0.0, 0.0, -math.inf], requires_grad=True)
    kl = kl_full(policy, torch.zeros(3))  # (1/2, 1/2, 0) against thirds: log(3/2)
    kl.backward()
    assert kl.item() == pytest.approx(math.log(1.5))
    assert policy.grad.isfinite().all()
    both = kl_full(torch.tensor([0.0, 0.0, -math.inf]), torch.tensor([0.0, 0.0, -math.inf]))
    assert both.item() == pytest.approx(0.0)


@pytest.mark.parametrize("shape", [(2, 3), (0, 3)])
def test_penalty_without_tokens(shape):
    policy = torch.zeros(shape, requires_grad=True)
    loss, metrics = kl_penalty(kl_k2(policy, torch.ones(shape)), torch.zeros(shape), 0.1)
    loss.backward()
    assert loss.item() == metrics["kl/mean"].item() == 0.0
    assert torch.equal(policy.grad, torch.zeros(shape))


def test_penalty_metric_has_its_own_weights_and_no_graph():
    kl = torch.full((1, 2), 0.4, requires_grad=True)
    loss, metrics = kl_penalty(kl, torch.full((1, 2), 0.1), 0.5, metric_weights=torch.full((1, 2), 0.5))
    assert loss.item() == pytest.approx(0.5 * 0.08)
    assert metrics["kl/mean"].item() == pytest.approx(0.4)
    assert not metrics["kl/mean"].requires_grad


def test_rejects_a_negative_beta():
    with pytest.raises(ValueError, match=r"beta must be >= 0, got -0.1"):
        kl_penalty(torch.zeros(1, 1), torch.zeros(1, 1), -0.1)


@pytest.mark.parametrize("estimator", [kl_k1, kl_k2, kl_k3, kl_full])
def test_arithmetic_is_at_least_float32(estimator):
    low = torch.zeros(2, 3, dtype=torch.bfloat16)
    assert estimator(low, low).dtype == torch.float32
    assert estimator(low.double(), low.double()).dtype == torch.float64

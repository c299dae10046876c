"""log-mgf, softmax weights, effective sample size, adaptive temperature and the noise envelope."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from mpmath import mp, mpf
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from scipy.special import ndtri, softmax

from sgrpo_lightning.geometry import adaptive_tau, effective_sample_size, log_mgf, noisy_weight_bounds, tilted_weights
from sgrpo_lightning.heads import softmax_grpo_advantages


@pytest.fixture(autouse=True)
def warnings_are_errors():
    """Turn every numerical warning into a failure."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("tau", [0.001, 0.02, 0.3, 10.0, 1e6])
@pytest.mark.parametrize("probs", [[0.2, 0.3, 0.5], [1 - 2e-12, 1e-12, 1e-12], [0.0, 0.4, 0.6], [0.4, 0.6, 0.0]])
def test_log_mgf_matches_fifty_digits(tau, probs):
    rewards = [0.1, 0.25, 1.0]
    with mp.workdps(50):
        total = mp.fsum(mpf(p) for p in probs)
        exact = mp.log(mp.fsum(mpf(p) / total * mp.exp(mpf(r) / mpf(tau)) for r, p in zip(rewards, probs, strict=True)))
    assert_allclose(log_mgf(rewards, probs, tau=tau), float(exact), rtol=1e-13)


def test_log_mgf_by_hand():
    # rewards 0 and 1 at even odds, tau = 1: log((1 + e) / 2); a constant reward r: r / tau
    assert_allclose(log_mgf([0, 1], [0.5, 0.5], tau=1.0), np.log((1 + np.e) / 2), rtol=1e-15)
    assert_allclose(log_mgf([0.3], [1.0], tau=0.1), 3.0, rtol=1e-15)
    assert log_mgf([0.3, 0.9], [0.5, 0.5], tau=np.inf) == 0


def test_probabilities_in_single_precision_are_normalised():
    rewards, probs = np.array([0.0, 1.0]), np.array([0.9, 0.1])
    off = log_mgf(rewards, probs * (1 - 5e-7), tau=0.01)
    assert_allclose(off, log_mgf(rewards, probs, tau=0.01), rtol=1e-14)


def test_log_mgf_broadcasts():
    rewards, probs = torch.tensor([0.0, 1.0]), torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    values = log_mgf(rewards, probs, tau=torch.tensor([[1.0], [0.5]]))
    assert values.shape == (2, 2)
    assert values.dtype == torch.float64
    assert_allclose(values[1], [np.log((1 + np.e**2) / 2), 2.0], rtol=1e-14)


def test_gradient_of_the_log_mgf_is_the_large_group_update():
    """Eq. 7: d log Z / d p_i at fixed sum is (t_i - t_K) / Z."""
    levels, probs, tau, step = np.array([0.0, 0.4, 1.0]), np.array([0.5, 0.3, 0.2]), 0.3, 1e-5
    t = np.exp(levels / tau)
    for i in range(2):
        move = step * (np.eye(3)[i] - np.eye(3)[2])
        slope = (log_mgf(levels, probs + move, tau=tau) - log_mgf(levels, probs - move, tau=tau)) / (2 * step)
        assert_allclose(slope, (t[i] - t[2]) / (probs @ t), rtol=1e-8)


@pytest.mark.parametrize(("mu", "sigma", "tau"), [(0.5, 0.2, 0.3), (0.0, 0.1, 0.1), (-1.0, 0.3, 0.2)])
def test_gaussian_rewards(mu, sigma, tau):
    """Eq. 21 and 22, by the trapezoid rule, which converges exponentially for a Gaussian."""
    z = np.linspace(-14, 14, 2001)
    density = np.exp(-(z**2) / 2)
    log_z = [log_mgf(mu + sigma * z, density / density.sum(), tau=t) for t in (tau, tau / 2)]
    assert_allclose(log_z[0], mu / tau + sigma**2 / (2 * tau**2), rtol=1e-12, atol=1e-12)
    # ESS / M -> E[X]^2 / E[X^2], and X^2 = exp(2 R / tau)
    assert_allclose(2 * log_z[0] - log_z[1], -((sigma / tau) ** 2), rtol=1e-11)


def test_effective_sample_size_of_gaussian_rewards():
    M, sigma, tau = 200_000, 0.1, 0.2
    rewards = sigma * ndtri((np.arange(M) + 0.5) / M)  # one sample per quantile
    ratio = effective_sample_size(np.exp(rewards / tau)) / M
    assert_allclose(ratio, np.exp(-((sigma / tau) ** 2)), rtol=1e-4)


def test_softmax_weights_maximise_the_regularised_reward():
    """Eq. 9: the optimum over the simplex is the softmax, and its value is tau times the log-mgf."""
    rewards, tau = np.array([0.9, 0.1, 0.4, 0.35, 0.7]), 0.3
    uniform = np.full(5, 0.2)

    def loss(q):
        return -(q @ rewards) + tau * (q * np.log(q / uniform)).sum()

    found = minimize(
        loss,
        uniform,
        jac=lambda q: -rewards + tau * (np.log(q / uniform) + 1),
        bounds=[(1e-9, 1)] * 5,
        constraints={"type": "eq", "fun": lambda q: q.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-15},
    )
    assert_allclose(found.x, softmax(rewards / tau), rtol=1e-5)  # as near as the solver comes
    assert_allclose(-found.fun, tau * log_mgf(rewards, uniform, tau=tau), rtol=1e-10)
    assert_allclose(-loss(softmax(rewards / tau)), tau * log_mgf(rewards, uniform, tau=tau), rtol=1e-14)


@pytest.mark.parametrize("tau", [0.02, 0.3, 10.0])
def test_tilted_weights_match_two_other_softmaxes(tau):
    rewards = np.random.default_rng(0).normal(size=(5, 7))
    weights = tilted_weights(rewards, tau=tau)
    assert_allclose(weights, softmax(rewards / tau, axis=-1), rtol=1e-13)
    assert_allclose(7 * weights - 1, softmax_grpo_advantages(torch.tensor(rewards), tau=tau), rtol=1e-12, atol=1e-13)


def test_tilted_weights_by_hand():
    # e^(ln 3) : 1; at half the temperature 9 : 1
    rewards = [np.log(3), 0.0]
    assert_allclose(tilted_weights(rewards, tau=[1.0, 0.5]), [[3 / 4, 1 / 4], [9 / 10, 1 / 10]], rtol=1e-15)
    assert tilted_weights(torch.tensor([1, 0, 1, 0]), tau=1e-310).tolist() == [0.5, 0, 0.5, 0]
    assert tilted_weights([1e300, -1e300], tau=np.inf).tolist() == [0.5, 0.5]
    far_apart = [[1e4 + 1, 1e4], [1.0, 0.0]]
    assert_allclose(tilted_weights(far_apart, tau=1.0), [softmax([1, 0])] * 2, rtol=1e-15)


def test_a_temperature_per_group():
    weights = tilted_weights(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), tau=torch.tensor([1.0, 2.0]))
    assert weights.dtype == torch.float64
    assert_allclose(weights, [softmax([1, 0]), softmax([0.5, 0])], rtol=1e-15)


@pytest.mark.parametrize("tau", [0.05, 0.3, 2.0])
def test_price_of_distance_is_tau(tau):
    """Eq. 9: along the weights the reward rises by tau for each nat of KL; and Eq. 7: by w = d(tau log Z) / dr."""
    rewards, step = np.array([0.9, 0.1, 0.4, 0.35, 0.7]), 1e-5
    near = tilted_weights(rewards, tau=np.array([tau * (1 + step), tau * (1 - step)]))
    kl = (near * np.log(5 * near)).sum(-1)
    assert_allclose(np.diff(near @ rewards) / np.diff(kl), tau, rtol=1e-6)
    for i, weight in enumerate(tilted_weights(rewards, tau=tau)):
        move = step * tau * np.eye(5)[i]
        up, down = (tau * log_mgf(rewards + sign * move, np.full(5, 0.2), tau=tau) for sign in (1, -1))
        assert_allclose((up - down) / (2 * step * tau), weight, rtol=1e-8, atol=1e-9)


def test_effective_sample_size_by_hand():
    # (3 + 1)^2 / (9 + 1)
    assert_allclose(effective_sample_size([3.0, 1.0]), 1.6, rtol=1e-15)
    assert effective_sample_size(np.ones((2, 7))).tolist() == [7, 7]
    assert effective_sample_size(torch.tensor([0, 0, 5])).item() == 1
    assert_allclose(effective_sample_size([3e300, 1e300]), 1.6)
    assert_allclose(effective_sample_size([3e-300, 1e-300]), 1.6)


def test_adaptive_tau_reference_values():
    values = adaptive_tau(torch.tensor([1, 2, 3]), M=8, ess=4)
    assert values.dtype == torch.float64
    assert_allclose(values, [0.565508333915, 0.535829860026, 0.431248270226], rtol=1e-11)


@pytest.mark.parametrize("M", [2, 8, 1024])
def test_adaptive_tau_inverts_the_effective_sample_size(M):
    for k in {1, M // 2, M - 1}:
        for fraction in (1e-6, 0.1, 0.5, 0.9, 1 - 1e-6):
            target = k + fraction * (M - k)
            rewards = (np.arange(M) < k).astype(float)
            weights = softmax(rewards / adaptive_tau(k, M=M, ess=target))
            assert_allclose(effective_sample_size(weights), target, rtol=1e-10)


def test_adaptive_tau_matches_fifty_digits_near_the_ends():
    M, k = 16, 3
    for ess in (3 + 1e-9, 3.5, 15.9, 16 - 1e-9):
        with mp.workdps(50):
            n = mpf(ess)
            c = (k * (M - k) + mp.sqrt(k * (M - k) * n * (M - n))) / (k * (n - k))
            assert_allclose(adaptive_tau(k, M=M, ess=ess), float(1 / mp.log(c)), rtol=1e-13)
    assert adaptive_tau(k, M=M, ess=M) == np.inf


def test_noise_stays_inside_the_envelope():
    rng = np.random.default_rng(0)
    for tau, delta in itertools.product([0.1, 0.3], [0.01, 0.1, 0.5]):
        clean = rng.integers(0, 2, size=(500, 8)).astype(float)
        noise = rng.uniform(-delta, delta, size=clean.shape)
        noise[:250] = delta * np.sign(noise[:250])
        lower, upper = noisy_weight_bounds(softmax(clean / tau, axis=-1), delta=delta, tau=tau)
        noisy = softmax((clean + noise) / tau, axis=-1)
        assert (lower <= noisy).all()
        assert (noisy <= upper).all()


@pytest.mark.parametrize("sign", [-1, 1])
def test_no_tighter_envelope_exists(sign):
    # w' / w = e^{2 x} / (1 + w (e^{2 x} - 1)) with x = +-delta/tau, which tends to e^{2 x} as w -> 0
    delta, tau, M = 0.05, 0.1, 8
    clean = np.zeros(M)
    clean[0] = -3.0  # its weight is below e^-30
    noise = np.full(M, -sign * delta)
    noise[0] = sign * delta
    weights, noisy = softmax(clean / tau), softmax((clean + noise) / tau)
    bound = noisy_weight_bounds(weights, delta=delta, tau=tau)[(1 + sign) // 2]
    assert_allclose(noisy[0], bound[0], rtol=1e-10)


def test_envelope_closes_linearly_in_delta_over_tau():
    widths = []
    for delta in (1e-4, 5e-5):
        lower, upper = noisy_weight_bounds(0.25, delta=delta, tau=0.1)
        widths.append(upper - lower)
    assert_allclose(widths[0], 0.25 * 2 * np.sinh(2e-3), rtol=1e-12)
    assert_allclose(widths[0] / widths[1], 2, rtol=1e-5)


def test_envelope_far_beyond_float64():
    lower, upper = noisy_weight_bounds(torch.tensor([0.0, 1.0]), delta=10.0, tau=0.001)
    assert lower.tolist() == [0, 0]
    assert upper.tolist() == [0, np.inf]
    assert type(noisy_weight_bounds(0.5, delta=0.1, tau=1.0)[0]) is float


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: log_mgf([0, 1], [0.5, 0.5], tau=0), "tau must be > 0, got 0.0"),
        (lambda: log_mgf([0, 1], [0.5, 0.4], tau=1), "probs must sum to 1, got 0.9"),
        (lambda: log_mgf([0, 1], [1.5, -0.5], tau=1), r"probs must lie in \[0, 1\], got 1.5"),
        (lambda: log_mgf([0, np.inf], [0.5, 0.5], tau=1), "rewards must be finite, got inf"),
        (lambda: tilted_weights([0, 1], tau=[1.0, -0.3]), "tau must be > 0, got -0.3"),
        (lambda: tilted_weights([0, np.nan], tau=1), "rewards must be finite, got nan"),
        (lambda: effective_sample_size([0.5, -0.1]), "weights must be >= 0, got -0.1"),
        (lambda: effective_sample_size([[1.0, 1.0], [0.0, 0.0]]), "the largest weight must be > 0, got 0.0"),
        (lambda: adaptive_tau(0, M=8, ess=4), "k must be an integer >= 1, got 0"),
        (lambda: adaptive_tau(8, M=8, ess=8), r"k must be an integer in \[1, M - 1\], got 8"),
        (lambda: adaptive_tau(4, M=8, ess=4), r"ess must lie in \(k, M\], got 4.0"),
        (lambda: adaptive_tau(1, M=8, ess=8.5), r"ess must lie in \(k, M\], got 8.5"),
        (lambda: adaptive_tau(1.5, M=8, ess=4), "k must be an integer >= 1, got 1.5"),
        (lambda: noisy_weight_bounds([1.0], delta=-0.1, tau=1), "delta must be >= 0, got -0.1"),
        (lambda: noisy_weight_bounds([1.0], delta=0.1, tau=-1), "tau must be > 0, got -1.0"),
        (lambda: noisy_weight_bounds([np.nan], delta=0.1, tau=1), "weights must be finite, got nan"),
    ],
)
def test_errors_name_the_value(call, message):
    with pytest.raises(ValueError, match=message):
        call()

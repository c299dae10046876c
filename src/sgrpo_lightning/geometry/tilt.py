"""Exponential tilting: log moment-generating function, weights, effective samples, adaptive temperature, noise."""

import numpy as np

from sgrpo_lightning.geometry._arrays import (
    Real,
    Result,
    as_count,
    as_distribution,
    as_finite,
    as_positive,
    in_float64,
    require,
)


@in_float64
def log_mgf(rewards: Real, probs: Real, *, tau: Real) -> Result:
    r"""Log moment-generating function of the reward: what the softmax head climbs in large groups.

    $$\log Z_\tau = \log \sum_k p_k e^{r_k/\tau}$$

    Args:
        rewards: [..., K], finite.
        probs: [..., K], each row summing to 1 within 1e-6 (the rest is normalised away).
        tau: temperature > 0, a scalar or [...], in units of reward.

    Returns:
        log Z, [...]. Precise at both ends: tau * log Z tends to the mean reward as tau grows, and to the
        largest reward of positive probability as tau shrinks.

    >>> round(log_mgf([0.0, 1.0], [0.5, 0.5], tau=1.0), 10)  # log((1 + e) / 2)
    0.620114507

    Reference: Eq. 6 and 7.
    """
    rewards, probs = np.broadcast_arrays(as_finite("rewards", rewards), as_distribution(probs))
    tau = as_positive("tau", tau)[..., None]
    top = np.where(probs > 0, rewards, -np.inf).max(axis=-1, keepdims=True)
    exponent = np.where(probs > 0, rewards - top, 0.0) / tau
    mean = (probs * np.exp(exponent)).sum(axis=-1)
    excess = (probs * np.expm1(exponent)).sum(axis=-1)
    # mean = 1 + excess: the first is exact when little mass is left, the second when the tilt is slight
    with np.errstate(divide="ignore"):
        log_mean = np.where(mean < 0.5, np.log(mean), np.log1p(excess))
    return (top / tau)[..., 0] + log_mean


@in_float64
def tilted_weights(rewards: Real, *, tau: Real) -> Result:
    r"""Softmax weights of a group: the best trade of expected reward against the distance from uniform.

    $$w_i = \frac{e^{r_i/\tau}}{\sum_j e^{r_j/\tau}}
      = \arg\max_q \Big\{ \sum_i q_i r_i - \tau \, \mathrm{KL}(q \| u) \Big\}, \quad u_i = \tfrac{1}{M}$$

    The softmax head's advantages are M w - 1.

    Args:
        rewards: [..., M], finite.
        tau: temperature > 0, a scalar or [...], in units of reward.

    Returns:
        w, [..., M], each row summing to 1: uniform as tau grows, shared by the best samples as tau shrinks.

    >>> tilted_weights([np.log(3), 0.0], tau=1.0).round(12).tolist()
    [0.75, 0.25]

    Reference: Eq. 1 and 9.
    """
    rewards, tau = as_finite("rewards", rewards), as_positive("tau", tau)[..., None]
    with np.errstate(over="ignore"):  # a loss of any size weighs 0
        mass = np.exp((rewards - rewards.max(axis=-1, keepdims=True)) / tau)
    return mass / mass.sum(axis=-1, keepdims=True)


@in_float64
def effective_sample_size(weights: Real) -> Result:
    r"""Number of equally weighted samples that would estimate as well.

    $$\mathrm{ESS} = \frac{(\sum_i w_i)^2}{\sum_i w_i^2}$$

    Args:
        weights: [..., M], non-negative and not all zero; any scale.

    Returns:
        ESS in samples, [...], from 1 (one weight) to M (equal weights).

    >>> effective_sample_size([1.0, 1.0, 0.0, 0.0])
    2.0

    Reference: Eq. 22 and A.3.
    """
    weights = _as_weights(weights)
    top = weights.max(axis=-1, keepdims=True)
    require(top > 0, "the largest weight", "be > 0", top)
    scaled = weights / top
    return scaled.sum(axis=-1) ** 2 / (scaled**2).sum(axis=-1)


@in_float64
def adaptive_tau(k: Real, *, M: Real, ess: Real) -> Result:
    r"""Temperature at which the softmax weights of a binary group have a given effective sample size.

    $$\tau = \frac{1}{\log c}, \quad c = \frac{k(M-k) + \sqrt{k(M-k)\,\nu(M-\nu)}}{k(\nu-k)}, \quad
      \nu = \mathrm{ESS}$$

    Args:
        k: successes in the group, an integer in [1, M - 1]; without both outcomes no temperature matters.
        M: samples per group, an integer >= 1.
        ess: target in samples, in (k, M]; k equal winners already count as k.

    Returns:
        tau, of the broadcast shape, in units of reward: towards 0 as ess -> k, infinity at ess = M.

    >>> round(adaptive_tau(1, M=8, ess=4.0), 10)
    0.5655083339

    Reference: A.3.
    """
    k, M, nu = np.broadcast_arrays(as_count("k", k), as_count("M", M), np.asarray(ess, dtype=np.float64))
    require(k < M, "k", "be an integer in [1, M - 1]", k)
    require((nu > k) & (nu <= M), "ess", "lie in (k, M]", nu)
    # c - 1 as a sum of positive terms, so tau keeps its digits as ess nears M
    excess = (k * (M - nu) + np.sqrt(k * (M - k) * nu * (M - nu))) / (k * (nu - k))
    with np.errstate(divide="ignore"):
        return 1 / np.log1p(excess)


@in_float64
def noisy_weight_bounds(weights: Real, *, delta: Real, tau: Real) -> tuple[Result, Result]:
    r"""Envelope of the softmax weights when every reward is off by at most delta.

    $$e^{-2\delta/\tau} w_i \le \tilde{w}_i \le e^{2\delta/\tau} w_i$$

    Args:
        weights: clean softmax weights, non-negative.
        delta: noise bound >= 0, in units of reward.
        tau: temperature > 0, in units of reward.

    Returns:
        (lower, upper), each of the broadcast shape. The upper bound is not cut at 1 and is infinite where
        float64 cannot hold it; a zero weight stays zero. Neither factor can be bettered: a vanishing weight
        whose own reward is off by delta one way, and all others by delta the other way, attains it.

    >>> lower, upper = noisy_weight_bounds([0.2, 0.8], delta=0.0, tau=0.1)
    >>> lower.tolist() == upper.tolist() == [0.2, 0.8]
    True

    Reference: Eq. 23 and 24.
    """
    weights, delta = _as_weights(weights), as_finite("delta", delta)
    require(delta >= 0, "delta", "be >= 0", delta)
    with np.errstate(over="ignore", invalid="ignore"):
        exponent = 2 * delta / as_positive("tau", tau)
        upper = np.where(weights > 0, weights * np.exp(exponent), 0.0)
        return weights * np.exp(-exponent), upper


def _as_weights(weights: Real) -> np.ndarray:
    values = as_finite("weights", weights)
    require(values >= 0, "weights", "be >= 0", values)
    return values

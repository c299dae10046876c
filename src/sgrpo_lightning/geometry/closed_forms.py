"""Prompt weights known in closed form, and the softmax head's objective."""

import numpy as np
from scipy.special import xlog1py

from sgrpo_lightning.geometry._arrays import Real, Result, as_count, as_positive, as_probability, in_float64
from sgrpo_lightning.geometry.binomial import bernstein, bernstein_integral, by_group_size

LARGEST_EXPONENT = 700.0  # e^-700 is still a normal float64 and already negligible beside 1


@in_float64
def softmax_grpo_weight(p: Real, *, tau: Real, M: Real) -> Result:
    r"""Weight of the softmax head on the gradient of the pass rate, exact at group size M.

    $$\omega_{M,\tau}(p) = E[\Delta_S], \quad S \sim \mathrm{Binomial}(M-1, p), \quad
      \Delta_s = \frac{M (c-1) (M-1+s(c-1))}{(M+s(c-1)) (M+(s+1)(c-1))}, \quad c = e^{1/\tau}$$

    Args:
        p: pass rate in [0, 1].
        tau: temperature > 0, in units of reward; infinity gives 0.
        M: samples per group, an integer >= 1; M = 1 gives 0.

    Returns:
        omega, of the broadcast shape. Below M - 1 everywhere, and 1 - M / (1 + (M-1) c) < 1 at p = 1: easy
        prompts stay bounded.

    >>> round(softmax_grpo_weight(0.5, tau=0.1, M=8), 10)
    1.9841285855

    Reference: Eq. 4, 14, 15 and 17.
    """
    return by_group_size(
        lambda size, p, tau: bernstein(_softmax_gaps(size, tau), p),
        as_count("M", M),
        as_probability(p),
        as_positive("tau", tau),
    )


@in_float64
def softmax_grpo_objective(p: Real, *, tau: Real, M: Real) -> Result:
    r"""Scalar objective that the softmax head climbs under binary rewards, exact at group size M.

    $$h_{M,\tau}(p) = \frac{1}{M} \sum_{s=0}^{M-1} \Delta_s I_p(s+1, M-s), \quad h' = \omega_{M,\tau}$$

    Args:
        p: pass rate in [0, 1].
        tau: temperature > 0, in units of reward; infinity gives 0.
        M: samples per group, an integer >= 1; M = 1 gives 0.

    Returns:
        h, of the broadcast shape; h(0) = 0.

    >>> round(softmax_grpo_objective(0.5, tau=0.3, M=8), 10)
    1.5787641594

    Reference: Eq. 16.
    """
    return by_group_size(
        lambda size, p, tau: bernstein(bernstein_integral(_softmax_gaps(size, tau)), p),
        as_count("M", M),
        as_probability(p),
        as_positive("tau", tau),
    )


def _softmax_gaps(M: int, tau: np.ndarray) -> np.ndarray:
    """Delta_s of Eq. 14, [N, M] for tau [N], with both fractions divided through by c to keep them finite."""
    exponent = 1 / np.maximum(tau, 1 / LARGEST_EXPONENT)[:, None]
    inverse_c, rise = np.exp(-exponent), -np.expm1(-exponent)
    s = np.arange(M)
    return M * rise / (M * inverse_c + (s + 1) * rise) * (((M - 1) * inverse_c + s * rise) / (M * inverse_c + s * rise))


@in_float64
def softmax_grpo_mean_field_weight(p: Real, *, tau: Real) -> Result:
    r"""Large-group limit of the softmax head's weight.

    $$\omega_\tau(p) = \frac{c-1}{1-p+pc}, \quad c = e^{1/\tau}$$

    Args:
        p: pass rate in [0, 1].
        tau: temperature > 0, in units of reward.

    Returns:
        omega, of the broadcast shape: c - 1 at p = 0 (infinite where float64 cannot hold it, tau < 0.0014)
        and 1 - 1/c at p = 1.

    >>> round(softmax_grpo_mean_field_weight(0.5, tau=0.1), 10)  # 2 tanh(5)
    1.9998184085

    Reference: Eq. 3.
    """
    p, tau = as_probability(p), as_positive("tau", tau)
    with np.errstate(over="ignore", divide="ignore"):
        exponent = 1 / tau
        rise = -np.expm1(-exponent)
        return rise / (np.exp(-exponent) + p * rise)


@in_float64
def reinforce_weight(p: Real) -> Result:
    r"""Weight of the plain expected reward: $\omega(p) = 1$.

    Args:
        p: pass rate in [0, 1].

    Returns:
        1, of the shape of p.

    >>> reinforce_weight(0.3)
    1.0

    Reference: Table 1.
    """
    return np.ones_like(as_probability(p))


@in_float64
def ml_weight(p: Real) -> Result:
    r"""Weight of maximum likelihood: $\omega(p) = 1/p$, the derivative of $\log p$.

    Args:
        p: pass rate in [0, 1].

    Returns:
        1/p, of the shape of p; infinity at p = 0.

    >>> ml_weight(0.25), ml_weight(0.0)
    (4.0, inf)

    Reference: Table 1.
    """
    with np.errstate(divide="ignore", over="ignore"):
        return 1 / as_probability(p)


@in_float64
def grpo_mean_field_weight(p: Real) -> Result:
    r"""Large-group limit of GRPO's weight: $\omega(p) = 1/\sqrt{p(1-p)} = \frac{d}{dp} 2\arcsin\sqrt{p}$.

    Args:
        p: pass rate in [0, 1].

    Returns:
        omega, of the shape of p; infinity at both ends. At finite M the exact weight
        (`population_weight` of the head) stays bounded.

    >>> grpo_mean_field_weight(0.5), grpo_mean_field_weight(1.0)
    (2.0, inf)

    Reference: Table 1.
    """
    p = as_probability(p)
    with np.errstate(divide="ignore"):
        return 1 / np.sqrt(p * (1 - p))


@in_float64
def maxrl_weight(p: Real, *, T: Real) -> Result:
    r"""Weight of MaxRL, the maximum-likelihood series cut after T terms.

    $$\omega_T(p) = \frac{1-(1-p)^T}{p} = \sum_{j=0}^{T-1} (1-p)^j$$

    Args:
        p: pass rate in [0, 1].
        T: number of terms, an integer >= 1. The softmax head at group size M tends to T = M - 1 as tau -> 0.

    Returns:
        omega, of the broadcast shape: T at p = 0 and 1 at p = 1.

    >>> maxrl_weight(0.5, T=3), maxrl_weight(0.0, T=7)
    (1.75, 7.0)

    Reference: Eq. 5 and Table 1.
    """
    p, T = np.broadcast_arrays(as_probability(p), as_count("T", T))
    positive = np.where(p > 0, p, 1.0)
    return np.where(p > 0, -np.expm1(xlog1py(T, -positive)) / positive, T)

"""The one-form of a head on the simplex of several reward levels, and whether a scalar objective exists."""

import math
from itertools import combinations_with_replacement, product

import numpy as np
from scipy.special import gammaln, xlogy

from sgrpo_lightning.geometry._arrays import Real, Result, as_count, as_distribution, as_finite, in_float64
from sgrpo_lightning.geometry.groups import Head, evaluate_head

MAX_ADVANTAGES = 2**26  # about a second


@in_float64
def one_form(head: Head, levels: Real, probs: Real, *, M: int) -> Result:
    r"""Expected update of a head in the coordinates p_1, ..., p_{K-1} of the simplex.

    $$E\Big[\tfrac{1}{M} \sum_i A_i \nabla \log \pi(z_i)\Big] = \sum_{i<K} F_i \nabla p_i, \quad
      F_i = m_i - m_K, \quad m_k = E[A_1 \mid r_1 = \text{level } k]$$

    Args:
        head: rewards [..., M] -> advantages [..., M]; any callable.
        levels: the rewards of the K levels, [K].
        probs: their probabilities, [K].
        M: samples per group, an integer >= 1.

    Returns:
        F, [K - 1]. For binary rewards (0, 1) it is -omega_M(p_2): the coordinate is the failure rate.

    Raises:
        ValueError: bad levels, probs or M; a head that is not permutation-equivariant; too many groups.

    >>> one_form(lambda r: r - r.mean(-1, keepdim=True), [0.0, 1.0], [0.5, 0.5], M=4)
    array([-0.75])

    Reference: Eq. 8.
    """
    levels, probs, M = _checked(levels, probs, M, fixed=1)
    means = _conditional_means(head, levels, probs, M, fixed=1)
    return means[:-1] - means[-1]


@in_float64
def one_form_jacobian(head: Head, levels: Real, probs: Real, *, M: int) -> Result:
    r"""Partial derivatives of the one-form, exact.

    $$J_{ij} = \frac{\partial F_i}{\partial p_j} = D_{ij} - D_{iK} - D_{Kj} + D_{KK}, \quad
      D_{kl} = (M-1)\, E[A_1 \mid r_1 = \text{level } k,\ r_2 = \text{level } l]$$

    since m_k is a polynomial of degree M - 1 in p whose derivative fixes one more sample of the group.

    Args:
        head, levels, probs, M: as for `one_form`.

    Returns:
        J, [K - 1, K - 1]; zero at M = 1.

    >>> import torch
    >>> head = lambda r: 2 * torch.softmax(r, -1) - 1
    >>> (15 * one_form_jacobian(head, np.log([1, 2, 4]), [0.2, 0.3, 0.5], M=2)).round(12) + 0.0
    array([[ 0., -1.],
           [ 1.,  0.]])

    Reference: Eq. 8 and A.1.
    """
    levels, probs, M = _checked(levels, probs, M, fixed=2)
    if M == 1:
        return np.zeros((levels.size - 1, levels.size - 1))
    derivatives = (M - 1) * _conditional_means(head, levels, probs, M, fixed=2)
    rows = derivatives[:-1] - derivatives[-1]
    return rows[:, :-1] - rows[:, -1:]


@in_float64
def curl(head: Head, levels: Real, probs: Real, *, M: int) -> Result:
    r"""Failure of a head's expected update to be a gradient, exact.

    $$C_{ij} = \frac{\partial F_i}{\partial p_j} - \frac{\partial F_j}{\partial p_i}, \quad F_i = m_i - m_K$$

    A head is conservative, that is, it climbs a scalar objective of the level probabilities, if and only if
    the curl vanishes on the whole simplex. Two levels leave nothing to fail. With three or more, advantages
    that are a function of the own reward up to a shift of the group are conservative (REINFORCE, RLOO,
    Dr. GRPO), and so are unbiased estimators of any objective (the best of k). A scale that depends on the
    group breaks it: softmax, z-scores and division by the mean are not conservative.

    Args:
        head, levels, probs, M: as for `one_form`. The cost is binomial(M + K - 3, K - 1) groups for each of
            the K^2 pairs of levels.

    Returns:
        C, antisymmetric [K - 1, K - 1]; [[0]] for K = 2, zero at M = 1.

    Raises:
        ValueError: bad levels, probs or M; a head that is not permutation-equivariant; too many groups.

    >>> import torch
    >>> head = lambda r: 2 * torch.softmax(r, -1) - 1
    >>> (15 * curl(head, np.log([1, 2, 4]), [0.2, 0.3, 0.5], M=2)).round(12) + 0.0
    array([[ 0., -2.],
           [ 2.,  0.]])

    Reference: Eq. 8.
    """
    jacobian = one_form_jacobian(head, levels, probs, M=M)
    return jacobian - jacobian.T


def _conditional_means(head: Head, levels: np.ndarray, probs: np.ndarray, M: int, *, fixed: int) -> np.ndarray:
    """E[A of the first sample | levels of the first `fixed` samples], [K] * fixed, over all other samples."""
    others = np.array(list(combinations_with_replacement(range(levels.size), M - fixed)), dtype=np.int64)
    likelihood = _multinomial(others, probs)
    means = np.empty((levels.size,) * fixed)
    for given in product(range(levels.size), repeat=fixed):
        index = np.concatenate([np.broadcast_to(given, (len(others), fixed)), others], axis=-1)
        means[given] = likelihood @ evaluate_head(head, levels, index)[:, 0]
    return means


def _multinomial(samples: np.ndarray, probs: np.ndarray) -> np.ndarray:
    """Probability of each multiset of levels, [N] for [N, n]."""
    counts = (samples[:, :, None] == np.arange(probs.size)).sum(axis=1)
    log_orders = gammaln(samples.shape[1] + 1) - gammaln(counts + 1).sum(axis=-1)
    return np.exp(log_orders + xlogy(counts, probs).sum(axis=-1))


def _checked(levels: Real, probs: Real, M: int, *, fixed: int) -> tuple[np.ndarray, np.ndarray, int]:
    levels, probs, size = as_finite("levels", levels), as_distribution(probs), int(as_count("M", M))
    if levels.ndim != 1 or levels.shape != probs.shape or levels.size == 0:
        raise ValueError(f"levels and probs must both be [K], got {list(levels.shape)} and {list(probs.shape)}")
    K = levels.size
    cost = math.comb(max(size - fixed, 0) + K - 1, K - 1) * size * K**fixed
    if cost > MAX_ADVANTAGES:
        raise ValueError(
            f"M and K must need at most {MAX_ADVANTAGES:,} enumerated advantages, "
            f"got M = {size} and K = {K}, which need {cost:,}"
        )
    return levels, probs, size

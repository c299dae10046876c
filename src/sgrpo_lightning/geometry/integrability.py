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
        probs: their probabilities, [..., K].
        M: samples per group, an integer >= 1.

    Returns:
        F, [..., K - 1]. For binary rewards (0, 1) it is -omega_M(p_2): the coordinate is the failure rate.

    Raises:
        ValueError: bad levels, probs or M; a head that is not permutation-equivariant; too many groups.

    >>> one_form(lambda r: r - r.mean(-1, keepdim=True), [0.0, 1.0], [0.5, 0.5], M=4)
    array([-0.75])

    Reference: Eq. 8.
    """
    levels, probs, M = _checked(levels, probs, M, fixed=1)
    means = _conditional_means(head, levels, probs, M, fixed=1)
    return means[..., :-1] - means[..., -1:]


@in_float64
def one_form_jacobian(head: Head, levels: Real, probs: Real, *, M: int) -> Result:
    r"""Partial derivatives of the one-form, exact.

    $$J_{ij} = \frac{\partial F_i}{\partial p_j} = D_{ij} - D_{iK} - D_{Kj} + D_{KK}, \quad
      D_{kl} = (M-1)\, E[A_1 \mid r_1 = \text{level } k,\ r_2 = \text{level } l]$$

    since m_k is a polynomial of degree M - 1 in p whose derivative fixes one more sample of the group.

    Args:
        head, levels, probs, M: as for `one_form`.

    Returns:
        J, [..., K - 1, K - 1]; zero at M = 1.

    >>> import torch
    >>> head = lambda r: 2 * torch.softmax(r, -1) - 1
    >>> (15 * one_form_jacobian(head, np.log([1, 2, 4]), [0.2, 0.3, 0.5], M=2)).round(12) + 0.0
    array([[ 0., -1.],
           [ 1.,  0.]])

    Reference: Eq. 8 and A.1.
    """
    levels, probs, M = _checked(levels, probs, M, fixed=2)
    if M == 1:
        return np.zeros((*probs.shape[:-1], levels.size - 1, levels.size - 1))
    derivatives = (M - 1) * _conditional_means(head, levels, probs, M, fixed=2)
    rows = derivatives[..., :-1, :] - derivatives[..., -1:, :]
    return rows[..., :-1] - rows[..., -1:]


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
        C, antisymmetric [..., K - 1, K - 1]; [[0]] for K = 2, zero at M = 1.

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
    return jacobian - jacobian.swapaxes(-1, -2)


@in_float64
def work_along(head: Head, levels: Real, path: Real, *, M: int) -> Result:
    r"""What the update claims to gain on each leg of a path: line integrals of the one-form, exact.

    $$W_s = \int_0^1 \sum_{i<K} F_i\bigl(p(u)\bigr)\, \frac{dp_i}{du}\, du, \quad p(u) = (1 - u)\, p_s + u\, p_{s+1}$$

    F is a polynomial of degree M - 1 along a straight leg, so ceil(M / 2) Gauss-Legendre nodes make no error.
    The differences of an objective are W where there is one.

    Args:
        head, levels, M: as for `one_form`.
        path: probabilities of the K levels at P >= 2 points, joined by straight legs, [P, K]. It ends at its last
            point: for a closed loop repeat the first one there.

    Returns:
        W, [P - 1].

    Raises:
        ValueError: bad levels, path or M; a head that is not permutation-equivariant; too many groups.

    >>> rloo = lambda r: (r - r.mean(-1, keepdim=True)) * r.shape[-1] / (r.shape[-1] - 1)
    >>> path = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]]  # with mean rewards 0, 0.2 and 0.5
    >>> work_along(rloo, [0.0, 0.2, 1.0], path, M=4).round(12)
    array([0.2, 0.3])

    Reference: Eq. 8.
    """
    corners = np.asarray(path, dtype=np.float64)
    if corners.ndim != 2 or len(corners) < 2:
        raise ValueError(f"path must be [P, K] with P >= 2 points, got {list(corners.shape)}")
    levels, corners, M = _checked(levels, corners, M, fixed=1)
    nodes, weights = np.polynomial.legendre.leggauss((M + 1) // 2)
    steps = np.diff(corners, axis=0)
    points = corners[:-1, None] + (nodes[:, None] + 1) / 2 * steps[:, None]
    means = _conditional_means(head, levels, points, M, fixed=1)
    return np.einsum("n,snk,sk->s", weights / 2, means, steps)  # steps sum to 0: what all m_k share does not count


@in_float64
def circulation(head: Head, levels: Real, path: Real, *, M: int) -> Result:
    r"""What the update claims to gain along a path of level probabilities, exact.

    $$\int_\gamma \sum_{i<K} F_i\, dp_i$$

    If the head climbs an objective this is the difference of the objective between the ends of the path, on
    whichever way, and 0 on a closed loop. By Stokes a loop has the integral of the curl over what it surrounds:
    for K = 3, counter-clockwise in (p_1, p_2), minus `curl(...)[0, 1]` integrated over the area.

    Args:
        head, levels, path, M: as for `work_along`, whose sum this is. The path is not closed for you.

    Returns:
        The line integral, a scalar.

    >>> import torch
    >>> head = lambda r: 2 * torch.softmax(r, -1) - 1
    >>> loop = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]  # surrounds an area of 1/2
    >>> round(circulation(head, np.log([1, 2, 4]), loop, M=2), 12), round(1 / 15, 12)
    (0.066666666667, 0.066666666667)

    Reference: Eq. 8.
    """
    return np.asarray(work_along(head, levels, path, M=M)).sum()


def _conditional_means(head: Head, levels: np.ndarray, probs: np.ndarray, M: int, *, fixed: int) -> np.ndarray:
    """E[A of the first sample | levels of the first `fixed` samples], [..., *[K] * fixed], for probs [..., K]."""
    others = np.array(list(combinations_with_replacement(range(levels.size), M - fixed)), dtype=np.int64)
    advantages = np.empty((*(levels.size,) * fixed, len(others)))
    for given in product(range(levels.size), repeat=fixed):
        index = np.concatenate([np.broadcast_to(given, (len(others), fixed)), others], axis=-1)
        advantages[given] = evaluate_head(head, levels, index)[:, 0]
    counts = (others[:, :, None] == np.arange(levels.size)).sum(axis=1)
    means = [advantages @ _multinomial(counts, point) for point in probs.reshape(-1, levels.size)]
    return np.reshape(means, (*probs.shape[:-1], *(levels.size,) * fixed))


def _multinomial(counts: np.ndarray, probs: np.ndarray) -> np.ndarray:
    """Probability of each multiset of levels, [N], from how often it holds each level, [N, K]."""
    log_orders = gammaln(counts.sum(axis=-1) + 1) - gammaln(counts + 1).sum(axis=-1)
    return np.exp(log_orders + xlogy(counts, probs).sum(axis=-1))


def _checked(levels: Real, probs: Real, M: int, *, fixed: int) -> tuple[np.ndarray, np.ndarray, int]:
    levels, probs, size = as_finite("levels", levels), as_distribution(probs), int(as_count("M", M))
    if levels.ndim != 1 or levels.shape != probs.shape[-1:] or levels.size == 0:
        raise ValueError(f"levels must be [K] and probs [..., K], got {list(levels.shape)} and {list(probs.shape)}")
    K = levels.size
    cost = math.comb(max(size - fixed, 0) + K - 1, K - 1) * size * K**fixed
    if cost > MAX_ADVANTAGES:
        raise ValueError(
            f"M and K must need at most {MAX_ADVANTAGES:,} enumerated advantages, "
            f"got M = {size} and K = {K}, which need {cost:,}"
        )
    return levels, probs, size

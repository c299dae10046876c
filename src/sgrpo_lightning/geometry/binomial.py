"""Bernstein polynomials: the expectation of a sequence under a binomial count, and its integral."""

from collections.abc import Callable

import numpy as np
from scipy.special import gammaln, xlog1py, xlogy

BLOCK_ELEMENTS = 2**22  # 32 MiB of float64 at a time, however long the grid


def bernstein(coefficients: np.ndarray, p: np.ndarray) -> np.ndarray:
    r"""Evaluate a polynomial in Bernstein form.

    $$\sum_{s=0}^{n} a_s \binom{n}{s} p^s (1-p)^{n-s} = E[a_S], \quad S \sim \mathrm{Binomial}(n, p)$$

    Args:
        coefficients: a [n + 1], or [N, n + 1] with a row per point.
        p: [N] in [0, 1].

    Returns:
        [N]. Exactly a_0 at p = 0 and a_n at p = 1.

    >>> bernstein(np.array([0.0, 1.0, 2.0]), np.array([0.25]))  # the mean 2 p
    array([0.5])
    """
    n = coefficients.shape[-1] - 1
    s = np.arange(n + 1.0)
    log_choose = gammaln(n + 1) - gammaln(s + 1) - gammaln(n - s + 1)
    points = p[:, None]
    pmf = np.exp(log_choose + xlogy(s, points) + xlog1py(n - s, -points))
    return (pmf * coefficients).sum(axis=-1)


def bernstein_integral(coefficients: np.ndarray) -> np.ndarray:
    r"""Coefficients, one degree up, of the integral from 0.

    $$\frac{1}{n+1} \sum_s a_s I_p(s+1, n+1-s) = E[b_K], \quad b_k = \frac{1}{n+1} \sum_{s<k} a_s,
      \quad K \sim \mathrm{Binomial}(n+1, p)$$

    because the regularised incomplete beta function I_p(s+1, n+1-s) is the tail P(K > s): summation by parts
    turns n + 1 beta functions per point into one binomial expectation.

    Args:
        coefficients: a [..., n + 1].

    Returns:
        b [..., n + 2].

    >>> bernstein_integral(np.array([1.0, 1.0]))  # of the constant 1: p
    array([0. , 0.5, 1. ])
    """
    sums = np.cumsum(coefficients, axis=-1) / coefficients.shape[-1]
    return np.concatenate([np.zeros_like(sums[..., :1]), sums], axis=-1)


def by_group_size(evaluate: Callable[..., np.ndarray], M: np.ndarray, *columns: np.ndarray) -> np.ndarray:
    """Broadcast M and `columns`; call `evaluate(size, *rows)` per distinct M, block by block."""
    M, *columns = np.broadcast_arrays(M, *columns)  # type: ignore[assignment]
    sizes, flat = M.ravel(), [column.ravel() for column in columns]
    result = np.empty(sizes.shape)
    for size in np.unique(sizes).tolist():
        rows = np.flatnonzero(sizes == size)
        for block in np.array_split(rows, 1 + rows.size * size // BLOCK_ELEMENTS):
            result[block] = evaluate(size, *(column[block] for column in flat))
    return result.reshape(M.shape)

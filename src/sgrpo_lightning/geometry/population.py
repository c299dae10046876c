"""The prompt weight and the scalar objective of any advantage head under binary rewards."""

import functools

import numpy as np

from sgrpo_lightning.geometry._arrays import Real, Result, as_count, as_probability, in_float64
from sgrpo_lightning.geometry.binomial import bernstein, bernstein_integral, by_group_size
from sgrpo_lightning.geometry.groups import Head, evaluate_head


@in_float64
def population_weight(head: Head, p: Real, *, M: Real) -> Result:
    r"""Weight that a head puts on the gradient of the pass rate, exact at group size M.

    $$\omega_M(p) = E[\Delta_S], \quad S \sim \mathrm{Binomial}(M-1, p), \quad
      \Delta_s = A(\text{success} \mid s) - A(\text{failure} \mid s)$$

    where s counts the successes among the other M - 1 samples. The head is called once per distinct M, on the
    M + 1 groups with 0, ..., M successes, in float64; it may answer in any precision.

    Args:
        head: rewards [..., M] -> advantages [..., M]; any callable, `functools.partial` included.
        p: pass rate in [0, 1].
        M: samples per group, an integer >= 1.

    Returns:
        omega_M(p), of the broadcast shape of p and M. Delta_0 at p = 0 and Delta_{M-1} at p = 1.

    Raises:
        ValueError: p or M out of range, or a head that is not permutation-equivariant, changes the shape or
            is not finite on these groups.

    >>> round(population_weight(lambda r: r - r.mean(-1, keepdim=True), 0.3, M=4), 12)
    0.75

    Reference: Eq. 4 and 15, with the head's own gaps.
    """
    gaps = functools.cache(functools.partial(_success_gaps, head))
    return by_group_size(lambda size, p: bernstein(gaps(size), p), as_count("M", M), as_probability(p))


@in_float64
def population_objective(head: Head, p: Real, *, M: Real) -> Result:
    r"""Scalar objective that a head climbs under binary rewards, exact at group size M.

    $$h_M(p) = \frac{1}{M} \sum_{s=0}^{M-1} \Delta_s I_p(s+1, M-s), \quad h_M(0) = 0, \quad h_M' = \omega_M$$

    Args:
        head: rewards [..., M] -> advantages [..., M], as for `population_weight`.
        p: pass rate in [0, 1].
        M: samples per group, an integer >= 1.

    Returns:
        h_M(p), of the broadcast shape of p and M. 0 at p = 0 and the mean of the gaps at p = 1.

    Raises:
        ValueError: as `population_weight`.

    >>> population_objective(lambda r: r - r.mean(-1, keepdim=True), 0.5, M=4)
    0.375

    Reference: Eq. 16, with the head's own gaps.
    """
    gaps = functools.cache(functools.partial(_success_gaps, head))
    return by_group_size(
        lambda size, p: bernstein(bernstein_integral(gaps(size)), p), as_count("M", M), as_probability(p)
    )


def _success_gaps(head: Head, M: int) -> np.ndarray:
    """Delta_s for s = 0, ..., M - 1: success among s other successes, minus failure among s."""
    rank = np.random.default_rng(0).permutation(M)  # scattered, so a head that sorts its answer is caught
    success = rank < np.arange(M + 1)[:, None]
    advantages = evaluate_head(head, np.array([0.0, 1.0]), success.astype(np.int64))
    first, last = (
        rank.argmin(),
        rank.argmax(),
    )  # succeeds in every group but k = 0; fails in every group but k = M
    return advantages[1:, first] - advantages[:-1, last]

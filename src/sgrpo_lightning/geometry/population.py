"""The prompt weight and the scalar objective of any advantage head under binary rewards."""

import functools

import numpy as np

from sgrpo_lightning.geometry._arrays import Real, Result, as_count, as_probability, in_float64
from sgrpo_lightning.geometry.binomial import bernstein, bernstein_integral, by_group_size
from sgrpo_lightning.geometry.groups import Head, evaluate_head

BLOCK_REWARDS = 2**21  # 16 MiB of float64 at a time: all groups up to M = 1,447


@in_float64
def population_weight(head: Head, p: Real, *, M: Real) -> Result:
    r"""Weight that a head puts on the gradient of the pass rate, exact at group size M.

    $$\omega_M(p) = E[\Delta_S], \quad S \sim \mathrm{Binomial}(M-1, p), \quad
      \Delta_s = A(\text{success} \mid s) - A(\text{failure} \mid s)$$

    where s counts the successes among the other M - 1 samples. The head is called on the M + 1 groups with
    0, ..., M successes, once per distinct M (in parts if they are large), in float64; it may answer in any precision.

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
    gaps = functools.cache(lambda size: success_gaps(head, M=size))
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
    gaps = functools.cache(lambda size: success_gaps(head, M=size))
    return by_group_size(
        lambda size, p: bernstein(bernstein_integral(gaps(size)), p), as_count("M", M), as_probability(p)
    )


@in_float64
def mean_absolute_advantage(head: Head, p: Real, *, M: Real) -> Result:
    r"""How large a head's advantages are on a prompt, on average: the paper's Figure 1a, exact.

    $$E|A| = E\Big[\tfrac{K}{M} |A_s(K)| + \tfrac{M-K}{M} |A_f(K)|\Big], \quad K \sim \mathrm{Binomial}(M, p)$$

    A head whose advantages sum to zero and never reward a failure has E|A| = 2 p (1-p) omega_M(p): what a prompt
    adds to an update is its weight times p (1-p), the slope of p in its own logit.

    Args:
        head: rewards [..., M] -> advantages [..., M], as for `population_weight`.
        p: pass rate in [0, 1].
        M: samples per group, an integer >= 1.

    Returns:
        E|A|, of the broadcast shape of p and M.

    Raises:
        ValueError: as `population_weight`.

    >>> round(mean_absolute_advantage(lambda r: r - r.mean(-1, keepdim=True), 0.3, M=4), 12)  # 2 * 0.21 * 0.75
    0.315

    Reference: Figure 1a; Eq. 13 for the advantages of the softmax head.
    """

    def by_successes(size: int) -> np.ndarray:
        k = np.arange(size + 1)
        success, failure = binary_advantages(head, M=size)
        return (k * abs(success) + (size - k) * abs(failure)) / size

    sizes = functools.cache(by_successes)
    return by_group_size(lambda size, p: bernstein(sizes(size), p), as_count("M", M), as_probability(p))


def binary_advantages(head: Head, *, M: int) -> tuple[np.ndarray, np.ndarray]:
    """Advantages of a right and of a wrong sample, by the number of right ones in their group.

    They are all there is to know of a head under binary rewards. The head is called in float64 on the M + 1 groups,
    about `BLOCK_REWARDS` rewards at a time.

    Args:
        head: rewards [..., M] -> advantages [..., M], as for `population_weight`.
        M: samples per group, an integer >= 1.

    Returns:
        (success, failure), float64 arrays [M + 1] for k = 0, ..., M right samples. success[0] and failure[M], which
        no group has, are 0.

    Raises:
        ValueError: as `population_weight`.

    >>> success, failure = binary_advantages(lambda r: r - r.mean(-1, keepdim=True), M=4)
    >>> success, failure
    (array([0.  , 0.75, 0.5 , 0.25, 0.  ]), array([ 0.  , -0.25, -0.5 , -0.75,  0.  ]))
    """
    M = int(as_count("M", M))
    success, failure = np.zeros(M + 1), np.zeros(M + 1)
    rank = np.random.default_rng(0).permutation(M)  # scattered, so a head that sorts its answer is caught
    first, last = rank.argmin(), rank.argmax()  # succeeds in every group but k = 0; fails in every group but k = M
    blocks = 1 + (M + 1) * M // BLOCK_REWARDS
    for block in range(blocks):
        k = np.arange(block, M + 1, blocks)  # over all of the range, for rounding is judged by the largest advantage
        passed = rank < k[:, None]
        advantages = evaluate_head(head, np.array([0.0, 1.0]), passed.astype(np.int64))
        success[k], failure[k] = advantages[:, first], advantages[:, last]
    success[0], failure[M] = 0.0, 0.0
    return success, failure


def success_gaps(head: Head, *, M: int) -> np.ndarray:
    r"""What success is worth among s other successes: the Bernstein coefficients of a head's weight.

    $$\Delta_s = A(\text{success} \mid s) - A(\text{failure} \mid s), \quad
      \omega_M(p) = \sum_{s=0}^{M-1} \Delta_s \binom{M-1}{s} p^s (1-p)^{M-1-s}$$

    Args:
        head: rewards [..., M] -> advantages [..., M], as for `population_weight`.
        M: samples per group, an integer >= 1.

    Returns:
        Delta, a float64 array [M] for s = 0, ..., M - 1. The weight is Delta_0 at p = 0, Delta_{M-1} at p = 1, and
        between the least and the largest of them everywhere.

    Raises:
        ValueError: as `population_weight`.

    >>> success_gaps(lambda r: r - r.mean(-1, keepdim=True), M=4)
    array([0.75, 0.75, 0.75, 0.75])

    Reference: Eq. 14 and 15, with the head's own advantages.
    """
    success, failure = binary_advantages(head, M=M)
    return success[1:] - failure[:-1]

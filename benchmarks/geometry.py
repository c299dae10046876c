"""Cost of the exact prompt weights of a head: a 201-point grid of pass rates, one thread.

`python benchmarks/geometry.py [M]` prints milliseconds, best of seven, and the ratio to the two things that
cannot be avoided: the binomial probabilities of the grid and one call of the head on the M + 1 binary groups.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from sgrpo_lightning.geometry import curl, population_objective, population_weight, softmax_grpo_weight
from sgrpo_lightning.geometry.binomial import bernstein

TAU = 0.1


def softmax_head(rewards: torch.Tensor) -> torch.Tensor:
    """Softmax advantages, M w - 1."""
    return rewards.shape[-1] * torch.softmax(rewards / TAU, dim=-1) - 1


def milliseconds(function: Callable[[], object], repeats: int = 7) -> float:
    """Best wall-clock time of `repeats` calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


def main(M: int = 1024) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    p = np.linspace(0.0, 1.0, 201)
    groups = torch.ones(M + 1, M, dtype=torch.float64).tril(-1)
    gaps, levels, probs = np.ones(M), [0.0, 0.5, 1.0], [0.2, 0.3, 0.5]
    floor = milliseconds(lambda: bernstein(gaps, p)) + milliseconds(lambda: softmax_head(groups))
    rows: dict[str, Callable[[], object]] = {
        "binomial grid": lambda: bernstein(gaps, p),
        "head on M + 1 groups": lambda: softmax_head(groups),
        "population_weight": lambda: population_weight(softmax_head, p, M=M),
        "population_objective": lambda: population_objective(softmax_head, p, M=M),
        "softmax_grpo_weight": lambda: softmax_grpo_weight(p, tau=TAU, M=M),
        "curl, 3 levels, M = 16": lambda: curl(softmax_head, levels, probs, M=16),
    }
    print(f"M = {M}, {p.size} pass rates, float64, 1 thread; grid + head = {floor:.1f} ms")
    for name, function in rows.items():
        cost = milliseconds(function)
        print(f"{name:24}{cost:9.1f} ms {cost / floor:7.2f} x (grid + head)")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

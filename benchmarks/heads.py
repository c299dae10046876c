"""Time of each head relative to a bare softmax over the same rewards: `python benchmarks/heads.py`.

CPU time of one thread, float32 [65536, 16]. Graded rewards are uniform in [0, 1]; binary ones pass with
probability 0.3. Every round times each head right after the softmax; the medians over the rounds are
printed.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from sgrpo_lightning import heads

HEADS: dict[str, Callable[[Tensor], Tensor]] = {
    "reinforce": heads.reinforce_advantages,
    "grpo": heads.grpo_advantages,
    "softmax_grpo": partial(heads.softmax_grpo_advantages, tau=0.1),
    "softmax_grpo_adaptive": partial(heads.adaptive_softmax_grpo_advantages, ess_fraction=0.5),
    "maxrl": heads.maxrl_advantages,
    "rloo": heads.rloo_advantages,
    "dr_grpo": heads.dr_grpo_advantages,
    "pass_at_k": partial(heads.pass_at_k_advantages, k=4),
    "mix": partial(heads.mix_advantages, heads=[heads.maxrl_advantages, heads.rloo_advantages], weights=[0.5, 0.5]),
}


def seconds(function: Callable[[Tensor], Tensor], rewards: Tensor) -> float:
    start = time.thread_time()
    function(rewards)
    return time.thread_time() - start


def median_times(rewards: Tensor, rounds: int) -> dict[str, tuple[float, float]]:
    """Milliseconds and ratio to the softmax, per head."""
    softmax = partial(torch.softmax, dim=-1)
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in HEADS}
    for _ in range(rounds):
        for name, head in HEADS.items():
            base = seconds(softmax, rewards)
            elapsed = seconds(head, rewards)
            samples[name].append((1e3 * elapsed, elapsed / base))
    return {
        name: (statistics.median(t for t, _ in pairs), statistics.median(ratio for _, ratio in pairs))
        for name, pairs in samples.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=65536)
    parser.add_argument("--samples", type=int, default=16, help="per group")
    parser.add_argument("--rounds", type=int, default=41)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    graded = torch.rand(arguments.groups, arguments.samples)
    tables = [median_times(rewards, arguments.rounds) for rewards in ((graded < 0.3).float(), graded)]
    print(f"float32 [{arguments.groups}, {arguments.samples}], one thread, {arguments.rounds} rounds")
    print(f"{'head':22} {'binary':>10} {'x softmax':>10} {'graded':>10} {'x softmax':>10}")
    for name in HEADS:
        cells = (f"{table[name][0]:7.2f} ms {table[name][1]:10.2f}" for table in tables)
        print(f"{name:22} " + " ".join(cells))


if __name__ == "__main__":
    main()

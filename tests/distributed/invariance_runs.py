"""Trains on made-up rollouts under each strategy and saves what came out: `invariance_runs.py FILE` under torchrun.

Every strategy meets every reduction, and each of either meets the reference KL and its absence.
"""

import sys
from functools import partial
from pathlib import Path

import lightning as L
import torch

sys.path.append(str(Path(__file__).parents[1] / "modules"))

from fixed_samples import REDUCTIONS
from loop import run, save_from_ranks
from sharded_runs import STRATEGIES
from toys import LetterTask
from two_ranks import SampledBefore

from sgrpo_lightning.distributed.weights import full_weights
from sgrpo_lightning.modules.tiny import tiny_policy

BETAS = (0.0, 0.3)
CASES = [
    (strategy, reduction, BETAS[(i + j) % 2])
    for i, strategy in enumerate(STRATEGIES)
    for j, reduction in enumerate(REDUCTIONS)
]
MICRO_BATCH_SIZE = {1: 5, 2: 3}  # by ranks


class Accumulation(L.Callback):
    """Keeps the number of micro-batches that a step of each iteration took."""

    def __init__(self):
        self.counts = []

    def on_train_epoch_end(self, trainer, pl_module):
        self.counts.append(trainer.accumulate_grad_batches)


def trained(strategy, reduction, beta, world_size):
    """Weights, norms of the gradient and micro-batches of two iterations, each of two passes over eight groups."""
    policy, accumulation = tiny_policy(hidden_size=32, layers=1, heads=1), Accumulation()
    policy.model.model.norm.weight.data.mul_(5)
    module, rows = run(
        policy,
        LetterTask(letters=4),
        iterations=2,
        sampler=SampledBefore(max_new_tokens=6),
        samples_per_group=4,
        micro_batch_size=MICRO_BATCH_SIZE[world_size],
        ppo_epochs=2,
        optimizer=partial(torch.optim.SGD, lr=0.05),
        loss={"reduction": REDUCTIONS[reduction], "beta": beta},
        callbacks=[accumulation],
        trainer={"devices": world_size, "strategy": STRATEGIES[strategy]() if world_size > 1 else "auto"},
    )
    weights = {name: weight.flatten().clone() for name, weight in full_weights(module.model)}
    del weights["lm_head.weight"]  # the embedding once more
    return {
        "weights": torch.cat([*weights.values()]),
        "norms": [row["grad_norm/mean"] for row in rows],
        "counts": accumulation.counts,
    }


if __name__ == "__main__":
    save_from_ranks(trained, CASES)

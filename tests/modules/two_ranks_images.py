"""Trains a classifier on labels that are drawn beforehand and saves what came out, under torchrun.

What is sampled for an image depends on the image alone, so that any number of ranks learns from the same.
"""

from functools import partial

import torch
from images import made_up, train
from loop import save_from_ranks
from torch.nn import functional as F

from sgrpo_lightning.distributed.sharding import FullyShardedStrategy
from sgrpo_lightning.heads import softmax_grpo_advantages
from sgrpo_lightning.modules import ExactLoss, PopulationLoss, SampledLabels, label_loss

SAMPLES = 16
HEAD = partial(softmax_grpo_advantages, tau=0.2)
LOSSES = {
    "sampled": SampledLabels(head=HEAD, samples_per_group=SAMPLES),
    "population": PopulationLoss(head=HEAD, samples_per_group=SAMPLES),
    "cross_entropy": ExactLoss(loss=F.cross_entropy),
}
CASES = [(name, micro, "ddp") for name in LOSSES for micro in (None, 4)] + [("sampled", None, "fsdp2")]


def counts_by_image(probs, *, samples, generator):
    """Labels at places of a grid on [0, 1] that the probabilities alone decide, shifted by the first of them."""
    places = (torch.arange(samples, device=probs.device) / samples + probs[:, :1]) % 1
    inside = places[:, None, :] < probs.double().cumsum(1)[:, :, None]
    return inside.sum(2).diff(dim=1, prepend=torch.zeros(len(probs), 1, dtype=torch.long)).to(probs)


def trained(name, micro_batch_size, strategy, world_size):
    """Weights and the last row after three steps of 8 images, one of which cannot be read."""
    label_loss.label_counts = counts_by_image
    strategies = {"ddp": "ddp", "fsdp2": FullyShardedStrategy()}
    module, rows = train(
        LOSSES[name],
        data=made_up(20, broken=[4]),
        total_steps=3,
        steps=3,
        micro_batch_size=micro_batch_size,
        optimizer=partial(torch.optim.SGD, lr=0.3),
        trainer={"devices": world_size, "strategy": strategies[strategy] if world_size > 1 else "auto"},
    )
    held_out = module.evaluate(module.trainer.datamodule.held_out_dataloaders()["eval"], ks=(1, 4))
    weights = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in module.model.parameters()]
    return {"weights": torch.cat([w.detach().flatten() for w in weights]), "row": rows[-1] | held_out}


if __name__ == "__main__":
    save_from_ranks(trained, CASES)

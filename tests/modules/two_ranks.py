"""Trains on made-up rollouts and saves what came out: `python two_ranks.py FILE` on one rank, or under torchrun.

A prompt's completions and rewards depend on the prompt alone, so that any number of ranks learns from the same.
"""

import random
from functools import partial

import torch
from fixed_samples import REDUCTIONS
from loop import run, save_from_ranks
from toys import LetterTask

from sgrpo_lightning.axes import Samples
from sgrpo_lightning.modules.tiny import tiny_policy
from sgrpo_lightning.samplers import Sampler

CASES = [(name, beta) for name in REDUCTIONS for beta in (0.0, 0.3)]


class SampledBefore(Sampler):
    """Completions of 1 to 6 tokens that a prompt's own seed decides; those of "Make 5." are all the same."""

    def generate(self, model, prompt_ids, prompt_mask, *, samples_per_group, eos_token_ids, pad_token_id, generator):
        rows = []
        for ids, mask in zip(prompt_ids, prompt_mask, strict=True):
            rng = random.Random(str(ids[mask].tolist()))
            group = [[rng.randrange(10, 370) for _ in range(rng.randint(1, 6))] for _ in range(samples_per_group)]
            rows += [group[0]] * samples_per_group if sum(ids[mask]) % 4 == 0 else group
        completion_ids, completion_mask = torch.full((len(rows), 6), pad_token_id), torch.zeros(len(rows), 6).bool()
        for row, tokens in enumerate(rows):
            completion_ids[row, : len(tokens)], completion_mask[row, : len(tokens)] = torch.tensor(tokens), True
        longest = int(completion_mask.any(0).sum())
        completion_ids, completion_mask = completion_ids[:, :longest], completion_mask[:, :longest]
        logprobs, truncated = torch.zeros(completion_ids.shape), torch.zeros(len(rows)).bool()
        return Samples(prompt_ids, prompt_mask, completion_ids, completion_mask, logprobs, truncated)


def trained(reduction, beta, world_size):
    """Weights and the last row after two iterations of two passes over eight groups."""
    policy = tiny_policy(hidden_size=32, layers=1, heads=1)
    policy.model.double().model.norm.weight.data.mul_(5)
    module, rows = run(
        policy,
        LetterTask(letters=4),
        iterations=2,
        sampler=SampledBefore(max_new_tokens=6),
        samples_per_group=4,
        micro_batch_size=3,
        ppo_epochs=2,
        optimizer=partial(torch.optim.SGD, lr=0.05),
        loss={"reduction": REDUCTIONS[reduction], "beta": beta},
        trainer={"devices": world_size, "strategy": "ddp" if world_size > 1 else "auto"},
    )
    vector = torch.cat([p.detach().flatten() for p in module.model.parameters()])
    return {"weights": vector, "row": rows[-1]}


if __name__ == "__main__":
    save_from_ranks(trained, CASES)

"""Overlap of texts that the ranks share unevenly, or have none of; saved to the file that the command line names."""

import sys

import torch
from torch import distributed

from sgrpo_lightning.evaluation.text import TextOverlap

BATCHES = [(["the cat sat on the mat", "two roads"], ["the cat sat on a mat", "the roads"]), (["snow falls"], ["snow"])]


def accumulated(batches):
    overlap = TextOverlap()
    for batch in batches:
        overlap.update(*batch)
    return overlap.compute()


if __name__ == "__main__":
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    first = distributed.get_rank() == 0
    results = {
        "one": accumulated(BATCHES if first else []),
        "both": accumulated(BATCHES[:1] if first else BATCHES[1:]),
        "none": accumulated([]),
    }
    if first:
        torch.save(results, sys.argv[1])
    distributed.barrier()
    distributed.destroy_process_group()

"""Two gloo ranks under DDP: first with an engine each, then with one over both of them."""

import os
import sys

import torch
import torch.distributed as dist
from test_vllm_sampler import draw, gaps, prompts, push
from torch.nn.parallel import DistributedDataParallel

from sgrpo_lightning.modules.tiny import tiny_policy
from sgrpo_lightning.samplers.vllm import VLLMSampler

RANK = int(os.environ["RANK"])
ASKED = (prompts(5), prompts(9, 4, 7))[RANK]


def gathered(value):
    values = [None, None]
    dist.all_gather_object(values, value)
    return values


def sampled(model, tensor_parallel_size):
    """What both ranks draw for their prompts, before and after a step of DDP."""
    sampler = VLLMSampler(
        max_new_tokens=6,
        temperature=0.7,
        max_model_len=64,
        max_num_seqs=16,
        tensor_parallel_size=tensor_parallel_size,
        engine={"kv_cache_memory_bytes": 2**26},
    )
    sampler.start(model)
    push(sampler, model)
    first, second = gathered(draw(sampler, model, prompts(5), seed=RANK).completion_ids.tolist())
    ranks = DistributedDataParallel(model)
    for version in range(2):
        push(sampler, model, version)
        samples = draw(sampler, model, ASKED, seed=RANK + 2 * version)
        gap = gaps(model, samples).max().item()
        ids = torch.tensor([ASKED[0]])
        ranks(input_ids=ids, labels=ids).loss.backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    sampler.close()
    return {"gaps": gathered(gap), "rows": gathered(len(samples.completion_ids)), "differ": first != second}


def main():
    torch.set_num_threads(1)
    model, results = tiny_policy(hidden_size=64, layers=2, heads=2).model, {}
    try:
        VLLMSampler(max_new_tokens=6).start(model)
    except RuntimeError as error:
        results["before the group"] = str(error)
    dist.init_process_group("gloo")
    results["own"], results["shared"] = sampled(model, 1), sampled(model, 2)
    ones = torch.ones(())
    dist.all_reduce(ones)
    results["ranks"] = int(ones)
    if RANK == 0:
        torch.save(results, sys.argv[1])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

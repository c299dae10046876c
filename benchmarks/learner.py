"""The learner's throughput against the least that its tokens could cost.

    python benchmarks/learner.py [--model tiny] [--threads 1] [--laps 9] [--completion 20 48]

Ours is one optimizer step over micro-batches as the training loop prepares them: rows of mixed lengths, padded,
log-probabilities, entropy, clipped surrogate, metrics, gradient norm. The bare step is a forward and backward
pass with PyTorch's cross-entropy over as many tokens in batches without padding, of the same number of rows, and
nothing else. The two alternate, a ratio is of neighbours, and time is that of the CPU: other work on the machine then
counts little.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers.utils.logging import disable_progress_bar

from sgrpo_lightning.axes import MicroBatch, Samples
from sgrpo_lightning.losses import token_mean
from sgrpo_lightning.modules import PolicyLoss, load_policy
from sgrpo_lightning.modules.rows import Rows, cut, join_rows, micro_batches

PROMPT = (12, 16)  # tokens
CLIP_NORM = 1.0


def random_rows(
    groups: int, samples: int, completion: tuple[int, int], vocabulary: int, generator: torch.Generator
) -> Rows:
    """Rows of uniform lengths, `completion` tokens and a prompt; every one has an advantage."""

    def lengths(bounds: tuple[int, int], size: int) -> Tensor:
        return torch.randint(bounds[0], bounds[1] + 1, (size, 1), generator=generator)

    def tokens(rows: int, columns: int) -> Tensor:
        return torch.randint(vocabulary, (rows, columns), generator=generator)

    size = groups * samples
    prompt_mask = torch.arange(PROMPT[1]) >= PROMPT[1] - lengths(PROMPT, groups)
    mask = torch.arange(completion[1]) < lengths(completion, size)
    completions, logprobs = tokens(size, completion[1]), torch.zeros(mask.shape)
    prompts = tokens(groups, PROMPT[1])
    drawn = Samples(prompts, prompt_mask, completions, mask, logprobs, torch.zeros(size, dtype=torch.bool))
    return join_rows(drawn, torch.randn(groups, samples, generator=generator))


def prepared(rows: Rows, size: int) -> list[MicroBatch]:
    """Every row once, in the loop's micro-batches."""
    weights = token_mean(rows.loss_mask, rows.group_id)
    chosen = torch.arange(len(rows.advantages))
    parts = cut(rows.length, chosen, rows=size)
    return micro_batches(rows, parts, weights, weights, count=len(parts))


def dense(rows: Rows, size: int, vocabulary: int, generator: torch.Generator) -> list[Tensor]:
    """As many tokens in as many batches of `size` equal rows, to within the last column."""
    count = -(-len(rows.advantages) // size)
    length = round(int(rows.length.sum()) / (size * count))
    return [torch.randint(vocabulary, (size, length), generator=generator) for _ in range(count)]


def our_step(model: Any, optimizer: torch.optim.Optimizer, loss: PolicyLoss, batches: list[MicroBatch]) -> None:
    for batch in batches:
        value, _ = loss(model, batch)
        value.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
    optimizer.step()
    optimizer.zero_grad()


def bare_step(model: Any, optimizer: torch.optim.Optimizer, batches: list[Tensor]) -> None:
    for ids in batches:
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()


def seconds(function: Callable[[], None]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny", help="the embedded policy, a folder or a hub id")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--laps", type=int, default=9)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--completion", type=int, nargs=2, default=(20, 48), help="shortest and longest, tokens")
    parser.add_argument("--micro-batch-size", type=int, default=64)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    disable_progress_bar()
    torch.set_num_threads(arguments.threads)
    generator, size = torch.Generator().manual_seed(0), arguments.micro_batch_size
    model = load_policy(arguments.model).model.train()
    vocabulary = model.config.vocab_size
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    rows = random_rows(arguments.prompts, arguments.samples, arguments.completion, vocabulary, generator)
    batches, bare = prepared(rows, size), dense(rows, size, vocabulary, generator)
    loss = PolicyLoss(reduction=token_mean)
    ours_s, bare_s = [], []
    for _ in range(arguments.laps + 1):
        ours_s.append(seconds(lambda: our_step(model, optimizer, loss, batches)))
        bare_s.append(seconds(lambda: bare_step(model, optimizer, bare)))
    tokens, bare_tokens = int(rows.length.sum()), sum(batch.numel() for batch in bare)
    padded = sum(batch.input_ids.numel() for batch in batches)
    ratio = median(b / bare_tokens * tokens / o for o, b in zip(ours_s[1:], bare_s[1:], strict=True))
    print(f"{len(rows.advantages)} rows, {tokens} tokens, {padded / tokens - 1:.1%} padding")
    print(f"ours   {tokens / median(ours_s[1:]):8.0f} tokens per CPU second")
    print(f"bare   {bare_tokens / median(bare_s[1:]):8.0f} tokens per CPU second")
    print(f"ratio  {ratio:8.2f}")


if __name__ == "__main__":
    main()

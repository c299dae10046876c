"""Ways to cut an optimizer step into micro-batches: tokens per second of the learner, and what of them is padding.

    python benchmarks/packing.py [--model tiny] [--device cpu] [--attention sdpa] [--rows 128] [--budget 1024]

Four cuts of the same rows: as many rows each, in the order in which they were sampled; the same, sorted by length; as
many tokens each (`tokens_per_micro_batch`), sorted by length; and packed, one row after the other without padding
(`packing=true`). The first two have as many micro-batches as the third. Two kinds of answers: those of the policy to
Countdown, which it samples here, and short ones with a long tail (log-normal). The cuts take turns, a ratio is of
neighbours, and on a CPU time is that of the process, so that other work on the machine counts little. With sdpa packed
rows need a mask, and PyTorch multiplies what it masks: it is there to show what that costs. On a GPU give
`--attention flash_attention_2` or `flex_attention`.
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers.utils.logging import disable_progress_bar

from sgrpo_lightning.axes import MicroBatch, Samples
from sgrpo_lightning.losses import token_mean
from sgrpo_lightning.losses.logprobs import rows_per_chunk
from sgrpo_lightning.modules import PolicyLoss, load_policy
from sgrpo_lightning.modules.loading import Policy
from sgrpo_lightning.modules.rows import Rows, cut, join_rows, micro_batches
from sgrpo_lightning.samplers.hf import HFSampler
from sgrpo_lightning.tasks.countdown import CountdownTask
from sgrpo_lightning.tasks.prompting import render_prompt, tokenize_prompts

SAMPLES = 8
PROMPT = 16  # tokens of an invented prompt
LIMIT = 256  # tokens of an invented answer
TYPICAL, SPREAD = 24.0, 1.0  # median of the log-normal, and the standard deviation of the logarithm


def countdown_rows(policy: Policy, rows: int, generator: torch.Generator) -> Rows:
    """Answers of the policy to Countdown."""
    examples = CountdownTask(instruction="").train[: rows // SAMPLES]
    texts = [render_prompt(policy.tokenizer, example.prompt) for example in examples]
    prompts = tokenize_prompts(policy.tokenizer, texts, padding=True, padding_side="left", return_tensors="pt")
    device = policy.model.device
    samples = HFSampler(max_new_tokens=48).generate(
        policy.model,
        prompts["input_ids"].to(device),
        prompts["attention_mask"].bool().to(device),
        samples_per_group=SAMPLES,
        eos_token_ids=torch.tensor(policy.eos_token_ids, device=device),
        pad_token_id=policy.tokenizer.pad_token_id,
        generator=generator,
    )
    return _learnt(samples)


def long_tailed_rows(policy: Policy, rows: int, generator: torch.Generator) -> Rows:
    """Random tokens, of lengths as answers have that are mostly short."""
    device = policy.model.device
    lengths = torch.empty(rows, device=device).log_normal_(0, SPREAD, generator=generator).mul_(TYPICAL)
    mask = torch.arange(LIMIT, device=device) < lengths.ceil().clamp(max=LIMIT)[:, None]

    def tokens(*shape: int) -> Tensor:
        return torch.randint(policy.model.config.vocab_size, shape, generator=generator, device=device)

    prompts = tokens(rows // SAMPLES, PROMPT)
    nothing = torch.zeros(mask.shape, device=device)
    samples = Samples(prompts, torch.ones_like(prompts).bool(), tokens(*mask.shape), mask, nothing, ~mask.any(-1))
    return _learnt(samples)


def _learnt(samples: Samples) -> Rows:
    return join_rows(samples, torch.randn(len(samples.prompt_ids), SAMPLES, device=samples.prompt_ids.device))


def cuts(rows: Rows, budget: int) -> dict[str, tuple[list[Tensor], bool]]:
    """The parts of each cut, and whether they are packed."""
    every = torch.arange(len(rows.advantages), device=rows.advantages.device)
    by_tokens = cut(rows.length, every, rows=1, tokens=budget)
    size = -(-len(every) // len(by_tokens))
    return {
        "rows, as sampled": (list(every.split(size)), False),
        "rows, sorted": (cut(rows.length, every, rows=size), False),
        "tokens, sorted": (by_tokens, False),
        "packed": (cut(rows.length, every, rows=1, tokens=budget, packed=True), True),
    }


def prepared(rows: Rows, parts: list[Tensor], packed: bool, vocabulary: int) -> list[MicroBatch]:
    weights = token_mean(rows.loss_mask, rows.group_id)
    batches = micro_batches(rows, parts, weights, weights, count=len(parts), packed=packed)
    for batch in batches:
        batch.chunks = -(-len(batch.target) // rows_per_chunk(vocabulary))
    return batches


def step_seconds(model: Any, loss: PolicyLoss, batches: list[MicroBatch]) -> float:
    """Forward and backward passes of an optimizer step."""
    on_gpu = model.device.type == "cuda"
    precision = torch.autocast("cuda", torch.bfloat16) if on_gpu else nullcontext()
    start = _clock(on_gpu)
    for batch in batches:
        with precision:
            value, _ = loss(model, batch)
        value.backward()
    elapsed = _clock(on_gpu) - start
    model.zero_grad()
    return elapsed


def _clock(on_gpu: bool) -> float:
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() if on_gpu else time.process_time()


def report(title: str, policy: Policy, rows: Rows, budget: int, laps: int) -> None:
    """A line per cut; the ratio is its tokens per second over those of the first."""
    loss, tokens = PolicyLoss(reduction=token_mean), int(rows.length.sum())
    model: Any = policy.model
    steps = {n: prepared(rows, *found, model.config.vocab_size) for n, found in cuts(rows, budget).items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for lap in range(laps + 1):
        for name, batches in steps.items():
            elapsed = step_seconds(model, loss, batches)
            if lap:  # the first one warms up
                times[name].append(elapsed)
    first = times["rows, as sampled"]
    lengths = rows.length.float()
    print(f"\n{title}: {len(lengths)} rows of {lengths.mean():.0f} tokens, the longest {int(lengths.max())}")
    print(f"{'':18} {'passes':>6} {'padding':>8} {'tokens/s':>9} {'ratio':>6}")
    for name, batches in steps.items():
        padding = 1 - tokens / sum(batch.input_ids.numel() for batch in batches)
        ratio = median(base / own for base, own in zip(first, times[name], strict=True))
        print(f"{name:18} {len(batches):6} {padding:8.1%} {tokens / median(times[name]):9.0f} {ratio:6.2f}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny", help="the embedded policy, a folder or a hub id")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--attention", default="sdpa", help="as attn_implementation of transformers")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--budget", type=int, default=1024, help="tokens of a micro-batch")
    parser.add_argument("--laps", type=int, default=3)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    disable_progress_bar()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    policy = load_policy(arguments.model, attn_implementation=arguments.attention)
    policy.model.to(arguments.device)
    generator = torch.Generator(arguments.device).manual_seed(0)
    for title, make in {"Countdown": countdown_rows, "a long tail": long_tailed_rows}.items():
        report(title, policy, make(policy, arguments.rows, generator), arguments.budget, arguments.laps)


if __name__ == "__main__":
    main()

"""The learner on a GPU: tokens per second, model FLOPs utilisation and peak memory, against a bare step and the plan.

    python benchmarks/gpu_learner.py [--size 0.5b] [--tokens 8192] [--attention sdpa] [--packed]
    python benchmarks/gpu_learner.py --device cpu --size tiny

A Qwen2 with random weights, so nothing is fetched; float32 weights, bf16 arithmetic, as trainer.precision=bf16-mixed
does it (float32 on a CPU). A step is a forward and backward pass of every micro-batch, of at most `--tokens` tokens,
and an AdamW step. Ours has rows of mixed lengths as the loop cuts them (two thirds of the tokens train),
log-probabilities, entropy, clipped surrogate and gradient norm; the bare one has PyTorch's cross-entropy over as many
tokens in rows without padding. MFU counts 6 FLOPs for each weight and token, the output layer for each token that
meets it, and causal attention; what checkpointing computes again does not count. Peak memory is that of PyTorch's
allocator, beside what the memory plan says. Variants take turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, Qwen2Config

from sgrpo_lightning.axes import MicroBatch, Samples
from sgrpo_lightning.distributed.architecture import Architecture, architecture
from sgrpo_lightning.distributed.memory import GIB, MemoryPlan, Setting, memory_plan
from sgrpo_lightning.losses import token_mean
from sgrpo_lightning.losses.logprobs import rows_per_chunk
from sgrpo_lightning.modules import PolicyLoss
from sgrpo_lightning.modules.rows import cut, join_rows, micro_batches

SIZES = {  # hidden, intermediate, layers, heads, key-value heads, vocabulary, longest completion
    "tiny": (128, 336, 4, 4, 2, 2048, 48),
    "0.5b": (896, 4864, 24, 14, 2, 151936, 1024),
    "1.5b": (1536, 8960, 28, 12, 2, 151936, 1024),
}
PEAK = {"H200": 989e12, "H100": 989e12, "A100": 312e12}
"""Dense bf16 FLOP/s of a GPU whose name holds the key."""
SAMPLES, PROMPT = 8, 0.5  # of a group; tokens of a prompt for each of the mean completion
CLIP_NORM = 1.0


@dataclass(frozen=True)
class Variant:
    """A way to take the step."""

    name: str
    batches: list[Any]
    setting: Setting | None = None  # None: the bare one, for which there is no plan
    checkpointing: bool = False


def random_model(size: str, attention: str, device: str) -> Any:
    hidden, intermediate, layers, heads, kv_heads, vocabulary, _ = SIZES[size]
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32).train()


def our_batches(size: str, tokens: int, count: int, *, packed: bool, whole: bool, device: str) -> list[MicroBatch]:
    """`count` full micro-batches of rows with completions of uniform lengths, from a quarter of the longest."""
    vocabulary, longest = SIZES[size][-2:]
    generator = torch.Generator().manual_seed(0)
    prompt = int(PROMPT * longest * 5 / 8)
    groups = -(-2 * tokens * count // (SAMPLES * longest))
    lengths = torch.randint(longest // 4, longest + 1, (groups * SAMPLES, 1), generator=generator)
    mask = torch.arange(longest) < lengths
    ids = torch.randint(vocabulary, (groups, prompt), generator=generator)
    completions = torch.randint(vocabulary, mask.shape, generator=generator)
    samples = Samples(ids, torch.ones_like(ids).bool(), completions, mask, torch.zeros(mask.shape), ~mask.any(-1))
    rows = join_rows(samples, torch.randn(groups, SAMPLES, generator=generator))
    parts = cut(rows.length, torch.arange(len(mask)), rows=1, tokens=tokens, packed=packed)[-count - 1 : -1]
    weights = token_mean(rows.loss_mask, rows.group_id)
    batches = micro_batches(rows, parts, weights, weights, count=len(parts), packed=packed)
    for batch in batches:
        batch.chunks = 1 if whole else -(-len(batch.target) // rows_per_chunk(vocabulary))
    return [batch.to(device) for batch in batches]


def bare_batches(ours: list[MicroBatch], vocabulary: int, rows: int, device: str) -> list[Tensor]:
    """As many tokens in equal rows, to within the last column."""
    length = sum(map(useful_tokens, ours)) // (rows * len(ours))
    return [torch.randint(vocabulary, (rows, length), device=device) for _ in ours]


def useful_tokens(batch: Any) -> int:
    """Of a micro-batch, without padding: the last position that trains in each row, and the token that it predicts."""
    if isinstance(batch, Tensor):
        return batch.numel()
    if batch.position_ids is not None:
        return batch.input_ids.numel()
    last = torch.zeros(len(batch.input_ids), dtype=torch.long, device=batch.row.device)
    return int((last.scatter_reduce(0, batch.row, batch.position, "amax") + 2).sum())


def flops(model: Architecture, batch: Any) -> float:
    """Of a forward and a backward pass, for tokens that are not padding."""
    tokens = useful_tokens(batch)
    rows = len(batch) if isinstance(batch, Tensor) else int((batch.position[1:] < batch.position[:-1]).sum()) + 1
    if not isinstance(batch, Tensor) and batch.position_ids is not None:
        rows = int((batch.position_ids == 0).sum())
    in_output = tokens if isinstance(batch, Tensor) else len(batch.target)
    attention = 12 * model.layers * model.heads * model.head_dim * (tokens / rows) / 2  # half of it is masked
    return tokens * (6 * model.layers * model.layer_matrices + attention) + 6 * in_output * model.output_layer


def step(model: Any, optimizer: torch.optim.Optimizer, batches: list[Any], loss: Callable[[Any, Any], Tensor]) -> None:
    """Forward and backward passes, and the update."""
    autocast = torch.autocast("cuda", torch.bfloat16) if model.device.type == "cuda" else nullcontext()
    for batch in batches:
        with autocast:
            value = loss(model, batch)
        value.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
    optimizer.step()
    optimizer.zero_grad()


def bare_loss(model: Any, ids: Tensor) -> Tensor:
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    return cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def our_loss(model: Any, batch: MicroBatch) -> Tensor:
    return PolicyLoss(reduction=token_mean)(model, batch)[0]


def variants(arguments: argparse.Namespace, vocabulary: int) -> list[Variant]:
    """The bare step, ours, and ours with whole logits and with checkpointing."""
    cuts = {
        whole: our_batches(
            arguments.size,
            arguments.tokens,
            arguments.batches,
            packed=arguments.packed,
            whole=whole,
            device=arguments.device,
        )
        for whole in (False, True)
    }
    chunked, trained = cuts[False], max(len(batch.target) for batch in cuts[False])

    def setting(chunk: int, checkpointing: bool = False) -> Setting:
        padded = max(batch.input_ids.numel() for batch in chunked)
        cpu = arguments.device == "cpu"
        return Setting(1, padded, trained, chunk, checkpointing=checkpointing, float32=cpu)

    chunk, rows = min(trained, rows_per_chunk(vocabulary)), max(1, arguments.tokens // SIZES[arguments.size][-1])
    return [
        Variant("bare", bare_batches(chunked, vocabulary, rows, arguments.device)),
        Variant("ours", chunked, setting(chunk)),
        Variant("ours, whole logits", cuts[True], setting(trained)),
        Variant("ours, checkpointing", chunked, setting(chunk, True), checkpointing=True),
    ]


def measure(model: Any, optimizer: Any, variant: Variant) -> tuple[float, int]:
    """(seconds, peak bytes) of a step; 0 bytes where the allocator does not count."""
    on_gpu = model.device.type == "cuda"
    if variant.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    else:
        model.gradient_checkpointing_disable()
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    clock = time.perf_counter if on_gpu else time.process_time
    start = clock()
    step(model, optimizer, variant.batches, bare_loss if variant.setting is None else our_loss)
    if on_gpu:
        torch.cuda.synchronize()
    return clock() - start, torch.cuda.max_memory_allocated() if on_gpu else 0


def planned(model: Architecture, setting: Setting | None) -> MemoryPlan | None:
    return None if setting is None else memory_plan(model, "auto", setting)


def report(model: Any, timed: dict[str, list[tuple[float, int]]], found: list[Variant]) -> None:
    """A line per variant; the ratio is its tokens per second over those of the bare step."""
    sizes, name = architecture(model.config), _device_name(model)
    peak = next((value for key, value in PEAK.items() if key in name), None)
    bare = median(s for s, _ in timed["bare"]) / sum(map(useful_tokens, found[0].batches))
    print(f"{sizes.parameters:,} weights, {found[1].batches[0].input_ids.numel()} tokens a micro-batch, {name}")
    print(f"{'':20} {'padding':>8} {'tokens/s':>9} {'ratio':>6} {'MFU':>6} {'peak GiB':>9} {'planned':>8}")
    for variant in found:
        seconds, tokens = median(s for s, _ in timed[variant.name]), sum(map(useful_tokens, variant.batches))
        passed = sum(b.numel() if isinstance(b, Tensor) else b.input_ids.numel() for b in variant.batches)
        rate = sum(flops(sizes, batch) for batch in variant.batches) / seconds
        used = max(bytes_ for _, bytes_ in timed[variant.name])
        plan, mfu = planned(sizes, variant.setting), "-" if peak is None else f"{rate / peak:.1%}"
        print(
            f"{variant.name:20} {1 - tokens / passed:8.1%} {tokens / seconds:9.0f} {bare * tokens / seconds:6.2f} "
            f"{mfu:>6} {_gib(used):>9} {_gib(plan.total if plan else 0):>8}"
        )


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}" if size else "-"


def _device_name(model: Any) -> str:
    return torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else "CPU"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", choices=SIZES, default="0.5b")
    parser.add_argument("--tokens", type=int, help="of a micro-batch; 8192, tiny 1024")
    parser.add_argument("--batches", type=int, default=3, help="micro-batches of a step")
    parser.add_argument("--laps", type=int, default=3)
    parser.add_argument("--attention", default="sdpa", help="as attn_implementation of transformers")
    parser.add_argument("--packed", action="store_true", help="rows without padding, for flash or flex attention")
    parser.add_argument("--threads", type=int, default=1, help="of a CPU")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    arguments.tokens = arguments.tokens or (1024 if arguments.size == "tiny" else 8192)
    torch.set_num_threads(arguments.threads)
    model = random_model(arguments.size, arguments.attention, arguments.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    found = variants(arguments, model.config.vocab_size)
    timed: dict[str, list[tuple[float, int]]] = {variant.name: [] for variant in found}
    for lap in range(arguments.laps + 1):
        for variant in found:
            result = measure(model, optimizer, variant)
            if lap:  # the first one warms up
                timed[variant.name].append(result)
    report(model, timed, found)


if __name__ == "__main__":
    main()

"""Peak memory of the learner's loss: chunked log-probabilities against whole logits.

    python benchmarks/memory.py [--tokens 2048] [--vocabulary 150000] [--hidden 896] [--device cpu]

Each variant runs forward and backward through the output layer, the log-probabilities with their entropy and
the clipped surrogate, in a process of its own; the peak is counted above what is held before (weights, hidden
states). The gradient of the output layer is part of both peaks.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import torch
from torch import Tensor, nn

from sgrpo_lightning.losses import ppo_surrogate, token_logprobs

TEMPERATURE = 0.7


def chunked(hidden: Tensor, head: nn.Module, targets: Tensor) -> tuple[Tensor, Tensor]:
    out = token_logprobs(hidden, head, targets, temperature=TEMPERATURE)
    return out.logprobs, out.entropy


def naive(hidden: Tensor, head: nn.Module, targets: Tensor) -> tuple[Tensor, Tensor]:
    logits = head(hidden).float() / TEMPERATURE
    log_p = logits.log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    return log_p.gather(-1, targets[:, None]).squeeze(-1), entropy.detach()


VARIANTS = {"chunked": chunked, "naive": naive}


def peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def learn(variant: str, head: nn.Module, tokens: int, hidden: int, vocabulary: int) -> float:
    """One forward and backward pass; returns the norm of the hidden states' gradient."""
    device = next(head.parameters()).device
    states = torch.randn(tokens, hidden, device=device, requires_grad=True)
    targets = torch.randint(vocabulary, (tokens,), device=device)
    logprobs, entropy = VARIANTS[variant](states, head, targets)
    weights, advantages = torch.full((1, tokens), 1 / tokens, device=device), torch.ones(1, device=device)
    loss, _ = ppo_surrogate(logprobs[None], None, advantages, weights, entropy=entropy[None])
    loss.backward()
    assert states.grad is not None
    return states.grad.norm().item()


def warm_up() -> None:
    """Import what the first call imports, so that it counts as held before."""
    states, targets = torch.zeros(2, 8, requires_grad=True), torch.zeros(2, dtype=torch.long)
    token_logprobs(states, nn.Linear(8, 8), targets, temperature=1.0, chunk_size=1).logprobs.sum().backward()


def measure(variant: str, tokens: int, vocabulary: int, hidden: int, device: torch.device) -> dict[str, float]:
    warm_up()
    torch.manual_seed(0)
    head = nn.Linear(hidden, vocabulary, bias=False, device=device)
    before, start = peak_bytes(device), time.perf_counter()
    norm = learn(variant, head, tokens, hidden, vocabulary)
    return {"bytes": peak_bytes(device) - before, "seconds": time.perf_counter() - start, "gradient": norm}


def in_subprocess(variant: str, arguments: argparse.Namespace) -> dict[str, float]:
    options = [f"--{name}={value}" for name, value in vars(arguments).items() if name != "variant"]
    command = [sys.executable, __file__, f"--variant={variant}", *options]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=150_000)
    parser.add_argument("--hidden", type=int, default=896)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    if arguments.variant:
        sizes = arguments.tokens, arguments.vocabulary, arguments.hidden
        print(json.dumps(measure(arguments.variant, *sizes, torch.device(arguments.device))))
        return
    results = {variant: in_subprocess(variant, arguments) for variant in VARIANTS}
    print(", ".join(f"{name} {value}" for name, value in vars(arguments).items() if value is not None))
    for variant, result in results.items():
        size = result["bytes"] / 2**30
        print(f"{variant:8} {size:6.2f} GiB {result['seconds']:6.1f} s, gradient norm {result['gradient']:.6e}")
    print(f"ratio    {results['chunked']['bytes'] / results['naive']['bytes']:6.2f}x")


if __name__ == "__main__":
    main()

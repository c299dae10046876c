"""Cost of a training step on sampled labels, against one with cross-entropy.

    python benchmarks/labels.py [--model small_cnn] [--samples 16 64 256 1024 4096] [--laps 15] [--device cpu]

A step is forward, loss, backward and SGD on random images. Steps with each loss and steps with cross-entropy take
turns; a ratio of times is of neighbours, and its median is printed, with the time of the loss alone, forward and
backward, and the steadier ratio that follows from it. On a CPU time is that of the process, so that other work on the
machine counts little. Each loss has its peak of memory measured in a process of its own (on a CPU: above what is held
before the first step, on Linux). With a GPU the default is ResNet-50, 256 images of 224 pixels, channels last,
bfloat16.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from sgrpo_lightning.heads import softmax_grpo_advantages
from sgrpo_lightning.modules.label_loss import ExactLoss, LabelLoss, PopulationLoss, SampledLabels
from sgrpo_lightning.modules.vision import resnet, small_cnn

HEAD = partial(softmax_grpo_advantages, tau=0.1)
MODELS: dict[str, Callable[..., torch.nn.Module]] = {
    "small_cnn": small_cnn,
    "resnet18": partial(resnet, 18),
    "resnet50": partial(resnet, 50),
}
BASELINE = "cross-entropy"


def losses(samples: list[int]) -> dict[str, Callable[[], LabelLoss]]:
    """By name, made when they are asked for: tables of large groups take memory while they are made."""
    sampled = {f"{M} labels": partial(SampledLabels, head=HEAD, samples_per_group=M) for M in samples}
    return {
        BASELINE: partial(ExactLoss, loss=cross_entropy),
        **sampled,
        "1024, failures=expected": partial(SampledLabels, head=HEAD, samples_per_group=1024, failures="expected"),
        "population, M = 1024": partial(PopulationLoss, head=HEAD, samples_per_group=1024),
    }


class Training:
    """A model, a batch, and a step on it with any loss."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.device = torch.device(arguments.device)
        format = torch.channels_last if self.device.type == "cuda" else torch.contiguous_format
        shape = (arguments.batch, arguments.channels, arguments.size, arguments.size)
        model = MODELS[arguments.model](num_classes=arguments.classes, channels=arguments.channels)
        self.model = model.to(self.device, memory_format=format)  # type: ignore[call-overload]
        self.images = torch.randn(shape, device=self.device).contiguous(memory_format=format)
        self.labels = torch.randint(arguments.classes, (arguments.batch,), device=self.device)
        self.classes = arguments.classes
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9)
        self.generator = torch.Generator(self.device).manual_seed(0)

    def step(self, loss: LabelLoss) -> None:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            logits = self.model(self.images)
        values, _ = loss(logits.float(), self.labels, generator=self.generator)
        values.mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def loss_alone(self, loss: LabelLoss) -> None:
        logits = torch.zeros(len(self.labels), self.classes, device=self.device, requires_grad=True)
        loss(logits, self.labels, generator=self.generator)[0].mean().backward()

    def milliseconds(self, work: Callable[[LabelLoss], None], loss: LabelLoss) -> float:
        """Of the process on a CPU; of the clock, once all is done, on a GPU."""
        cuda = self.device.type == "cuda"
        clock = time.perf_counter if cuda else time.process_time
        start = clock()
        work(loss)
        if cuda:
            torch.cuda.synchronize(self.device)
        return 1e3 * (clock() - start)


def race(training: Training, made: dict[str, LabelLoss], laps: int) -> dict[str, list[float]]:
    """Medians: a step, its ratio to the step with cross-entropy before it, and the loss alone."""
    laps_of: dict[str, list[tuple[float, ...]]] = {name: [] for name in made}
    for _ in range(laps + 1):
        for name, loss in made.items():
            bare = training.milliseconds(training.step, made[BASELINE])
            step = training.milliseconds(training.step, loss)
            laps_of[name].append((step, step / bare, training.milliseconds(training.loss_alone, loss)))
    return {name: [*map(median, zip(*measured[1:], strict=True))] for name, measured in laps_of.items()}


def resident(name: str) -> int:
    """Bytes of this process: `VmRSS` now, `VmHWM` at the peak."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def memory(name: str, arguments: argparse.Namespace) -> int:
    """Bytes at the peak of four steps; on a CPU, above what is held before them."""
    loss, training = losses(arguments.samples)[name](), Training(arguments)
    if cpu := training.device.type == "cpu":
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
        before = resident("VmRSS")
    for _ in range(4):
        training.step(loss)
    return resident("VmHWM") - before if cpu else torch.cuda.max_memory_allocated(training.device)


def in_subprocess(name: str) -> int:
    """`memory` in a new process, whose large arrays go back to the system when they are freed."""
    command, allocator = [sys.executable, *sys.argv, f"--memory-of={name}"], {"MALLOC_MMAP_THRESHOLD_": str(2**16)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **allocator})
    return json.loads(done.stdout)


def parse() -> argparse.Namespace:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="resnet50" if gpu else "small_cnn")
    parser.add_argument("--batch", type=int, default=256 if gpu else 128)
    parser.add_argument("--size", type=int, default=224 if gpu else 32, help="pixels")
    parser.add_argument("--channels", type=int, default=3)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--samples", type=int, nargs="+", default=[16, 64, 256, 1024, 4096])
    parser.add_argument("--laps", type=int, default=15)
    parser.add_argument("--device", default="cuda" if gpu else "cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    if arguments.memory_of:
        print(memory(arguments.memory_of, arguments))
        return
    settings: dict[str, Any] = {name: value for name, value in vars(arguments).items() if name != "memory_of"}
    print(", ".join(f"{name} {value}" for name, value in settings.items()))
    peaks = {name: in_subprocess(name) for name in losses(arguments.samples)}
    made = {name: make() for name, make in losses(arguments.samples).items()}
    figures = race(Training(arguments), made, arguments.laps)
    bare_step, _, bare_loss = figures[BASELINE]
    for name, (step, ratio, alone) in figures.items():
        parts, size, share = 1 + (alone - bare_loss) / bare_step, peaks[name] / 2**20, peaks[name] / peaks[BASELINE]
        times = f"{step:8.1f} ms {ratio:6.3f}x, by parts {parts:6.3f}x ({alone:6.2f} ms alone)"
        print(f"{name:24} {times} {size:8.0f} MiB {share:6.3f}x")


if __name__ == "__main__":
    main()

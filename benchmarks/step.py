"""One iteration of ours against TRL's GRPOTrainer: the same policy, prompts, reward, sizes and threads.

    pip install -e .[benchmark]
    python benchmarks/step.py [--model tiny] [--threads 1] [--laps 5] [--prompts 32] [--samples 8] [--tokens 56]

Every contender trains in a thread of its own, and a relay lets one run at a time: ours does an iteration, then
TRL does one, then ours again, so that a change in the machine's load hits all alike. A lap lasts from the end of
an iteration to the end of the next: data loading, sampling, grading, learning, metrics, hooks. The first lap
holds the set-up and is left out. CPU seconds stand beside the wall clock: only one contender runs at a time, so on
a busy machine their ratio is the steadier one. At a learning rate of 1e-6 the policies stay as good as equal.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from typing import Any

import lightning as L
import torch
from datasets import Dataset
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback
from transformers.utils.logging import disable_progress_bar
from trl import GRPOConfig, GRPOTrainer

from datamodules.prompts import PromptDataModule
from sgrpo_lightning.heads import grpo_advantages
from sgrpo_lightning.losses import token_mean
from sgrpo_lightning.modules import PolicyLoss, PolicyModule, UpdatePlan, load_policy
from sgrpo_lightning.rewards import countdown_reward
from sgrpo_lightning.samplers.hf import HFSampler
from sgrpo_lightning.tasks import CountdownTask

LEARNING_RATE, CLIP_LOW, CLIP_HIGH, CLIP_NORM = 1e-6, 0.2, 0.28, 1.0
Facts = dict[str, float]


@dataclass(frozen=True)
class Setting:
    """What one table compares."""

    model: str
    prompts: int
    samples: int
    tokens: int
    epochs: int
    beta: float
    iterations: int

    @property
    def rows(self) -> int:
        return self.prompts * self.samples

    def plan(self, micro_batch_size: int) -> UpdatePlan:
        sizes = {"prompts_per_iteration": self.prompts, "samples_per_group": self.samples, "ppo_epochs": self.epochs}
        return UpdatePlan(**sizes, minibatches=1, micro_batch_size=micro_batch_size, seed=0)


class Relay:
    """Lets one runner at a time go, in turn, and times their laps in seconds by the wall clock and of the CPU."""

    def __init__(self, names: Sequence[str]) -> None:
        self.laps: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        self.facts: dict[str, list[Facts]] = {name: [] for name in names}
        self._queue, self._turn, self._started = deque(names), threading.Condition(), _clocks()

    def wait(self, name: str) -> None:
        with self._turn:
            self._turn.wait_for(lambda: self._queue[0] == name)
        self._started = _clocks()

    def lap(self, name: str, facts: Facts) -> None:
        """End an iteration: note its time, let the others run theirs."""
        wall, cpu = (now - then for now, then in zip(_clocks(), self._started, strict=True))
        self.laps[name].append((wall, cpu))
        self.facts[name].append(facts)
        with self._turn:
            self._queue.rotate(-1)
            self._turn.notify_all()
        self.wait(name)

    def leave(self) -> None:
        with self._turn:
            self._queue.popleft()
            self._turn.notify_all()


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def ours(setting: Setting, on_lap: Callable[[Facts], None], *, kl: str, micro_batch_size: int) -> None:
    """A fit as a user writes it."""
    task: Any = CountdownTask()
    policy, plan = load_policy(setting.model), setting.plan(micro_batch_size)
    loss = PolicyLoss(reduction=token_mean, clip_low=CLIP_LOW, clip_high=CLIP_HIGH, beta=setting.beta, kl=kl)
    module = PolicyModule(
        policy,
        task,
        sampler=HFSampler(max_new_tokens=setting.tokens),
        head=grpo_advantages,
        plan=plan,
        loss=loss,
        optimizer=partial(torch.optim.AdamW, lr=LEARNING_RATE, weight_decay=0.0),
    )
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=setting.iterations,
        gradient_clip_val=CLIP_NORM,
        callbacks=[_OurLap(on_lap)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, datamodule=PromptDataModule(policy, task, plan=plan))


class _OurLap(L.Callback):
    def __init__(self, on_lap: Callable[[Facts], None]) -> None:
        self.on_lap = on_lap

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        names = ("tokens/sum", "reward/mean", "seconds/sample", "seconds/learn")
        facts = {name: pl_module.row[name] for name in names}
        self.on_lap({**facts, "rows with a gradient/frac": (pl_module.advantages != 0).float().mean().item()})


def trl(setting: Setting, on_lap: Callable[[Facts], None], *, micro_batch_size: int) -> None:
    """The same training by TRL, with what costs time and is not training switched off."""
    task: Any = CountdownTask()
    policy = load_policy(setting.model)
    prompts = PromptDataModule(policy, task, plan=setting.plan(micro_batch_size))
    examples = [example for iteration in range(setting.iterations) for example in prompts.prompts(iteration)]
    facts: Facts = {}

    def reward(completions: Any, completion_ids: Any, numbers: Any, target: Any, **_: Any) -> list[float]:
        asked = zip(completions, numbers, target, strict=True)
        rewards = [countdown_reward(text[0]["content"], numbers=given, target=goal) for text, given, goal in asked]
        facts.update({"tokens/sum": sum(map(len, completion_ids)), "reward/mean": fmean(rewards)})
        return rewards

    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=policy.model,
            processing_class=policy.tokenizer,
            reward_funcs=reward,
            args=trl_arguments(setting, micro_batch_size, folder),
            train_dataset=Dataset.from_list(
                [
                    {"prompt": [{"role": "user", "content": example.prompt}], **_columns(example.answer)}
                    for example in examples
                ]
            ),
            callbacks=[_TheirLap(setting.epochs, lambda: on_lap(dict(facts)))],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()


def _columns(problem: Any) -> dict[str, Any]:
    return {"numbers": list(problem.numbers), "target": problem.target}


def trl_arguments(setting: Setting, micro_batch_size: int, folder: str) -> GRPOConfig:
    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=micro_batch_size,
        gradient_accumulation_steps=setting.rows // micro_batch_size,
        num_generations=setting.samples,
        max_completion_length=setting.tokens,
        num_iterations=setting.epochs,
        beta=setting.beta,
        epsilon=CLIP_LOW,
        epsilon_high=CLIP_HIGH,
        temperature=1.0,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        max_grad_norm=CLIP_NORM,
        max_steps=setting.iterations * setting.epochs,
        shuffle_dataset=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )


class _TheirLap(TrainerCallback):
    def __init__(self, epochs: int, on_lap: Callable[[], None]) -> None:
        self.epochs, self.on_lap = epochs, on_lap

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self.epochs == 0:
            self.on_lap()


def race(setting: Setting, contenders: Mapping[str, Callable[..., None]], threads: int) -> Relay:
    """Run all contenders, one lap at a time."""
    relay = Relay(list(contenders))

    def run(name: str) -> None:
        try:
            relay.wait(name)
            contenders[name](setting, partial(relay.lap, name))
        finally:
            relay.leave()

    with ThreadPoolExecutor(len(contenders), initializer=torch.set_num_threads, initargs=(threads,)) as pool:
        for done in [pool.submit(run, name) for name in contenders]:
            done.result()
    return relay


def report(title: str, relay: Relay) -> None:
    """A row per contender; the ratios are how many times faster it is than the faster TRL."""
    medians = {name: [median(column) for column in zip(*laps[1:], strict=True)] for name, laps in relay.laps.items()}
    wall_best, cpu_best = map(
        min, zip(*(pair for name, pair in medians.items() if name.startswith("TRL")), strict=True)
    )
    print(f"\n{title}\n{'':14} {'seconds':>8} {'ratio':>6} {'CPU s':>8} {'ratio':>6}  means over the laps")
    for name, (wall, cpu) in medians.items():
        facts = relay.facts[name][1:]
        means = ", ".join(f"{key} {fmean(row[key] for row in facts):.3g}" for key in facts[0])
        print(f"{name:14} {wall:8.2f} {wall_best / wall:6.2f} {cpu:8.2f} {cpu_best / cpu:6.2f}  {means}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny", help="the embedded policy, a folder or a hub id")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--laps", type=int, default=5, help="timed iterations of each contender")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=56)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    warnings.filterwarnings("ignore")
    disable_progress_bar()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(arguments.threads)
    sizes = {name: getattr(arguments, name) for name in ("model", "prompts", "samples", "tokens")}
    one_step = Setting(**sizes, epochs=1, beta=0.0, iterations=arguments.laps + 1)
    full = Setting(**sizes, epochs=2, beta=1e-3, iterations=arguments.laps + 1)
    whole, quarter = one_step.rows, one_step.rows // 4
    theirs = {f"TRL {size} rows": partial(trl, micro_batch_size=size) for size in (whole, quarter)}
    print(f"{sizes}, {arguments.threads} threads; medians of {arguments.laps} laps")
    fast = {"ours": partial(ours, kl="none", micro_batch_size=quarter), **theirs}
    report("one inner step, no KL", race(one_step, fast, arguments.threads))
    slow = {f"ours, kl={kl}": partial(ours, kl=kl, micro_batch_size=quarter) for kl in ("k3", "full")}
    report("two inner steps, KL 1e-3", race(full, {**slow, **theirs}, arguments.threads))


if __name__ == "__main__":
    main()

"""What an exact resume needs beyond weights, and how a run is asked to stop."""

from __future__ import annotations

import random
import signal
import time
from typing import Any

import lightning as L
import numpy as np
import torch


class RandomState(L.Callback):
    """Keeps the random states of every rank in the checkpoint; Lightning keeps none.

    Sampling does not need them (it draws from the seed and the iteration), dropout and user code may.

    Args:
        seed: of the run; a rank that the checkpoint does not know begins with a state of its own from it.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed
        self._restored: dict[str, Any] | None = None
        self._new = False

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        states: list[Any] = [None] * trainer.world_size
        if trainer.world_size > 1:
            torch.distributed.all_gather_object(states, random_state())
        else:
            states = [random_state()]
        checkpoint["random_states"] = states

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        states, rank = checkpoint.get("random_states", []), trainer.global_rank
        self._restored, self._new = (states[rank], False) if rank < len(states) else (None, True)

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        if self._restored is not None:
            set_random_state(self._restored)
        elif self._new:
            source = random.Random(f"{self.seed} {trainer.global_rank} {trainer.global_step}")
            L.seed_everything(source.getrandbits(32), verbose=False)


def random_state() -> dict[str, Any]:
    """The states of python, numpy, torch and this rank's GPU, as plain containers and tensors."""
    version, internal, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002 - the global state is what is kept
    return {
        "python": [version, list(internal), gauss],
        "numpy": [np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Restore what `random_state` returned."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] is not None and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(state["cuda"].cpu())


SAME_PRESS = 1.0
"""Seconds within which signals are one request: under torchrun a single Ctrl-C reaches each process twice."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class GracefulStop(L.Callback):
    """Ctrl-C, SIGTERM or SIGUSR1 ends the run after this iteration's checkpoint; another Ctrl-C ends it at once.

    SIGUSR1 is how SLURM warns of a time limit; `requeue` then asks for the job to be queued again. A signal to one
    rank stops all.

    Args:
        every_step: end after the optimizer step at hand, in training without iterations.
    """

    def __init__(self, *, every_step: bool = False) -> None:
        self.every_step = every_step
        self.asked, self.requeue, self._asked_at = False, False, 0.0
        self._step = 0
        self._previous: dict[int, Any] = {}
        self._listening = False

    def on_fit_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        self._listen()

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        # By now Lightning has its own handler of SIGTERM, which this replaces: it would end the run at once.
        self._listen()
        self._step = trainer.global_step

    def _listen(self) -> None:
        self._listening = True
        for number in SIGNALS:
            self._previous.setdefault(number, signal.signal(number, self._ask))

    def _ask(self, number: int, _: Any) -> None:
        if not self._listening:  # Lightning puts back what it found, this handler, when a run has failed
            signal.signal(number, self._previous[number])
            signal.raise_signal(number)
            return
        self.requeue |= number == signal.SIGUSR1
        now = time.monotonic()
        if self.asked and (now - self._asked_at < SAME_PRESS or number != signal.SIGINT):
            return
        if self.asked:
            raise KeyboardInterrupt
        self.asked, self._asked_at = True, now
        unit = "step" if self.every_step else "iteration"
        print(f"\nstopping after this {unit}; once more to stop at once", flush=True)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: object) -> None:
        if self.every_step and trainer.global_step != self._step:
            self._step = trainer.global_step
            self._decide(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self._decide(trainer)

    def _decide(self, trainer: L.Trainer) -> None:
        agree = trainer.strategy.reduce_boolean_decision
        self.requeue = agree(self.requeue, all=False)
        if agree(self.asked, all=False):
            trainer.should_stop = True

    def on_exception(self, trainer: L.Trainer, pl_module: Any, exception: BaseException) -> None:
        self._listening = False

    def teardown(self, trainer: L.Trainer, pl_module: Any, stage: str) -> None:
        self._listening = False
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

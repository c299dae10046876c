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
    """

    def __init__(self) -> None:
        self._restored: dict[str, Any] | None = None

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        states: list[Any] = [None] * trainer.world_size
        if trainer.world_size > 1:
            torch.distributed.all_gather_object(states, random_state())
        else:
            states = [random_state()]
        checkpoint["random_states"] = states

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        states = checkpoint.get("random_states", [])
        self._restored = states[trainer.global_rank] if trainer.global_rank < len(states) else None

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        if self._restored is not None:
            set_random_state(self._restored)


def random_state() -> dict[str, Any]:
    """The states of python, numpy, torch and CUDA, as plain containers and tensors."""
    version, internal, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002 - the global state is what is kept
    return {
        "python": [version, list(internal), gauss],
        "numpy": [np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Restore what `random_state` returned."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"]:
        torch.cuda.set_rng_state_all([s.cpu() for s in state["cuda"]])


SAME_PRESS = 1.0
"""Seconds within which signals are one request: under torchrun a single Ctrl-C reaches each process twice."""


class GracefulStop(L.Callback):
    """Ctrl-C or SIGTERM ends the run after this iteration's checkpoint; another Ctrl-C ends it at once."""

    def __init__(self) -> None:
        self.asked, self._asked_at = False, 0.0
        self._previous: dict[int, Any] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        # By now Lightning has its own handler, which this one replaces: that would end the run within the iteration.
        def ask(number: int, _: Any) -> None:
            now = time.monotonic()
            if self.asked and now - self._asked_at < SAME_PRESS:
                return
            if self.asked and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.asked, self._asked_at = True, now
            print("\nstopping after this iteration; once more to stop at once", flush=True)

        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, ask)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if trainer.strategy.reduce_boolean_decision(self.asked, all=False):
            trainer.should_stop = True

    def teardown(self, trainer: L.Trainer, pl_module: Any, stage: str) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

"""The policy as a transformers folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from sgrpo_lightning.distributed.weights import full_weights, trained_weights


class PolicyExport(L.Callback):
    """Writes weights, configuration and tokenizer with `save_pretrained` when training ends, under any strategy.

    Adapters are merged; by themselves they are beside the weights, in `adapter/`. The folder is written under another
    name and then moved into its place.

    Args:
        folder: loads with `model.path=<folder>`, with transformers and with vLLM.
        every_n_steps: also every so many optimizer steps; 0 does so at the end alone.
        dtype: of the written weights, such as bfloat16; None leaves that of training.
    """

    def __init__(self, folder: str, *, every_n_steps: int = 0, dtype: str | None = None) -> None:
        if dtype is not None and not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise ValueError(f"dtype of the export must be a floating-point type of torch or null, got {dtype!r}")
        self.folder, self.every, self._written = Path(folder), every_n_steps, 0
        self.dtype: torch.dtype | None = None if dtype is None else getattr(torch, dtype)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: object) -> None:
        step = trainer.global_step
        if self.every and step % self.every == 0 and step != self._written:  # a step may have several batches
            self._write(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self._write(trainer, pl_module)

    def _write(self, trainer: L.Trainer, pl_module: Any) -> None:
        """All ranks gather the weights, the first keeps them, in the memory of the CPU."""
        policy, writes = pl_module.policy, trainer.is_global_zero
        weights = {name: self._kept(weight) for name, weight in full_weights(policy.model) if writes}
        adapters: dict[str, Tensor] = {}
        if hasattr(policy.model, "peft_config"):
            adapters = {name: self._kept(weight) for name, weight in trained_weights(policy.model) if writes}
        if writes:
            part = _beside(self.folder, "part")
            shutil.rmtree(part, ignore_errors=True)
            save_policy(policy, part, weights, adapters)
            move_into_place(part, self.folder)
        self._written = trainer.global_step
        trainer.strategy.barrier("policy")

    def _kept(self, weight: Tensor) -> Tensor:
        return weight.to("cpu", self.dtype if weight.is_floating_point() else None)


def save_policy(policy: Any, folder: Path, weights: dict[str, Tensor], adapters: Mapping[str, Tensor]) -> None:
    """Files of a policy whose whole weights are at hand.

    Args:
        weights: from `full_weights`.
        adapters: from `trained_weights`, of a model in PEFT adapters.
    """
    model = policy.model.get_base_model() if adapters else policy.model
    for tied, source in model.all_tied_weights_keys.items():  # two copies would be written
        if torch.equal(weights[tied], weights[source]):
            weights[tied] = weights[source]
    dtype = next(iter(weights.values())).dtype
    model.save_pretrained(folder, state_dict=weights)
    _correct(folder / "config.json", dtype)
    policy.tokenizer.save_pretrained(folder)
    if adapters:
        policy.model.save_pretrained(folder / "adapter", state_dict=adapters, save_embedding_layers=False)


def _correct(config: Path, dtype: torch.dtype) -> None:
    """The type of what was written, rather than of what trains."""
    facts = json.loads(config.read_text())
    facts["dtype"] = str(dtype).removeprefix("torch.")
    config.write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n")


def move_into_place(part: Path, folder: Path) -> None:
    """`folder` is the old one or the new one; a kill between two renames leaves the old one whole, beside it."""
    old = _beside(folder, "old")
    if folder.is_dir():
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    part.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _beside(folder: Path, suffix: str) -> Path:
    return folder.with_name(f"{folder.name}.{suffix}")

"""Checkpoints that are complete or not there, and which runs can go on from one."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.strategies import DeepSpeedStrategy
from lightning_utilities.core.apply_func import apply_to_collection

PART = ".part"
"""Ends the name of what is being written or removed; nobody reads it, and the next start clears it away."""


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written, or from which this run cannot go on."""


class RunCheckpoint(Checkpoint):
    """Writes the whole state to `<folder>/step-<optimizer steps>.ckpt`: a file, or a folder under DeepSpeed.

    It gets that name once it is complete and on the disk, and only then do older ones go: a kill at any moment
    and a full disk leave the last good one. So the disk has to hold one more than are kept.

    Args:
        folder: on a disk that all nodes share.
        every_n_iterations: and after the last iteration, and when the run is stopped.
        every_n_steps: also every so many optimizer steps, for training without iterations; 0 does not.
        save_top_k: the latest so many are kept; -1 keeps all, 0 writes none.
    """

    def __init__(
        self, folder: str, *, every_n_iterations: int = 1, every_n_steps: int = 0, save_top_k: int = 1
    ) -> None:
        for name, value, least in (
            ("every_n_iterations", every_n_iterations, 1),
            ("every_n_steps", every_n_steps, 0),
            ("save_top_k", save_top_k, -1),
        ):
            if value < least:
                raise ValueError(f"{name} must be >= {least}, got {value}")
        self.folder, self.save_top_k = Path(folder), save_top_k
        self.every_n_iterations, self.every_n_steps = every_n_iterations, every_n_steps
        self._step = 0  # of the latest
        self._kept: list[str] = []  # the names of those that may go one day, oldest first

    # ---- when ----

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: object) -> None:
        if self.every_n_steps and (trainer.global_step % self.every_n_steps == 0 or trainer.should_stop):
            self._save(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        done = trainer.current_epoch + 1
        if done % self.every_n_iterations == 0 or done == trainer.max_epochs or trainer.should_stop:
            self._save(trainer)

    # ---- how ----

    def setup(self, trainer: L.Trainer, pl_module: Any, stage: str) -> None:
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = StraightToFile()
        if trainer.is_global_zero:
            for leftover in self.folder.glob(f"*.ckpt{PART}"):
                _remove(leftover)

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        self._step = trainer.global_step
        if (first := trainer.strategy.broadcast(self._step)) != self._step:
            raise CheckpointError(
                f"rank 0 goes on from step {first}, rank {trainer.global_rank} from step {self._step}: "
                f"{self.folder} must be on a disk that all nodes share"
            )

    def _save(self, trainer: L.Trainer) -> None:
        if not self.save_top_k or trainer.global_step == self._step:
            return
        path = self.folder / f"step-{trainer.global_step:07d}.ckpt"
        if self.save_top_k > 0:
            self._kept.append(path.name)  # before it is written, for this list is in it
        surplus = self._kept[: -self.save_top_k] if self.save_top_k > 0 else []
        try:
            self._write(trainer, path)
        except OSError as error:
            reason = error.strerror or error
            raise CheckpointError(f"{path} could not be written: {reason}; the one before it is intact") from error
        if trainer.is_global_zero:
            for name in surplus:
                _remove(self.folder / name)
        self._step, self._kept = trainer.global_step, self._kept[len(surplus) :]

    def _write(self, trainer: L.Trainer, path: Path) -> None:
        part = path.with_name(path.name + PART)
        try:
            trainer.save_checkpoint(part, weights_only=False)  # ends with a barrier: all ranks have written
            if trainer.local_rank == 0:  # what another node wrote is flushed there
                _flush(part)
            trainer.strategy.barrier()
            if trainer.is_global_zero:
                os.replace(part, path)
                _flush_folder(path.parent)
        except OSError:
            if trainer.is_global_zero:
                _remove(part)
            raise

    # ---- what is in it ----

    def state_dict(self) -> dict[str, Any]:
        return {"kept": list(self._kept)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._kept = list(state_dict["kept"])

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["world"] = _world(trainer)


class StraightToFile(TorchCheckpointIO):
    """Without Lightning's detour over a copy in memory and one in the system's temporary folder.

    Tensors are written in plain order: FSDP2 sends what it reads from rank 0 to the others as it lies in memory, and
    weights in channels-last order would arrive permuted.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        plain = apply_to_collection(checkpoint, torch.Tensor, torch.Tensor.contiguous)
        try:
            with open(path, "wb") as file:
                torch.save(plain, file)
        except RuntimeError as error:  # torch's writer hides what the system said, as when the disk is full
            reason = error.__context__
            raise reason if isinstance(reason, OSError) else error from None


def checkpoints(run_dir: Path) -> list[Path]:
    """The complete checkpoints of a run, by their optimizer steps."""
    return sorted((run_dir / "checkpoints").glob("*.ckpt"), key=_steps)


def _steps(path: Path) -> int:
    """In its name; -1 where there are none."""
    found = re.search(r"step[-=](\d+)", path.name)
    return int(found[1]) if found else -1


def check_world(path: Path, trainer: L.Trainer) -> str | None:
    """CheckpointError if this strategy, or this number of ranks, cannot go on from a checkpoint.

    Args:
        path: of the checkpoint; of its tensors none is read.

    Returns:
        What to know about a number of ranks that has changed.
    """
    file = path if path.is_file() else min(path.rglob("*model_states.pt"))
    saved = torch.load(file, map_location="cpu", mmap=True, weights_only=path.is_file()).get("world")
    now = _world(trainer)
    if saved is None or saved == now:
        return None
    if saved["shards"] or now["shards"]:
        raise CheckpointError(
            f"the checkpoint was saved with {_in_words(saved)}, and this is {_in_words(now)}: "
            "an optimizer that DeepSpeed sharded goes on under the same strategy, on as many ranks"
        )
    if saved["size"] == now["size"]:
        return None
    return (
        f"{now['size']} ranks go on with what {saved['size']} ranks began: no prompt is skipped or repeated, but each "
        "rank draws its own samples, so the numbers will not be those of an uninterrupted run"
    )


def _world(trainer: L.Trainer) -> dict[str, Any]:
    """The number of ranks, and the strategy where its checkpoints are in shards."""
    strategy = trainer.strategy
    sharded = isinstance(strategy, DeepSpeedStrategy)
    return {
        "size": trainer.world_size,
        "shards": f"deepspeed_{strategy.config['zero_optimization']['stage']}" if sharded else None,  # type: ignore
    }


def _in_words(world: dict[str, Any]) -> str:
    return f"strategy={world['shards'] or 'auto, ddp or fsdp2'} on {world['size']} ranks"


def write_whole(path: Path, text: str) -> None:
    """A file that has all of its new text or all of its old one, whatever happens."""
    part = path.with_name(path.name + PART)
    part.write_text(text)
    _flush(part)
    os.replace(part, path)


def _flush(path: Path) -> None:
    """A file, or all files of a folder, to the disk."""
    for file in [path] if path.is_file() else [found for found in path.rglob("*") if found.is_file()]:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    if path.is_dir():
        for folder in (path, *(found for found in path.rglob("*") if found.is_dir())):
            _flush_folder(folder)


def _flush_folder(folder: Path) -> None:
    """Its names; some network file systems have no such call, and need none."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _remove(path: Path) -> None:
    """A folder under a name that nobody reads first, so that a kill leaves no half of it."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    if not path.name.endswith(PART):
        path = path.rename(path.with_name(path.name + PART))
    shutil.rmtree(path)

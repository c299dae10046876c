"""Whether the disk takes what a run will write."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sgrpo_lightning.callbacks import PolicyExport
from sgrpo_lightning.callbacks.checkpoint import RunCheckpoint
from sgrpo_lightning.doctor.verdict import Finding, judge

GB = 1e9


def check_disk(
    run_dir: Path,
    weights: Sequence[nn.Parameter],
    make_optimizer: Callable[..., Any],
    callbacks: Sequence[Any],
    total: int,
) -> Finding:
    """Free space against checkpoints and export.

    Args:
        weights: whole, before a strategy parts them.
        total: checkpoints that a run makes where all are kept.
    """
    where = existing(run_dir)
    size, kept = checkpoint_bytes(weights, make_optimizer), checkpoints_kept(callbacks, total)
    exports = sum(isinstance(callback, PolicyExport) for callback in callbacks)
    needed = size * kept + exports * bytes_of(weights)
    free = shutil.disk_usage(where).free
    return judge(
        "disk",
        f"{free / GB:.1f} GB free, {needed / GB:.2f} GB needed ({kept} checkpoints of {size / GB:.2f} GB, "
        f"{exports} exports of {bytes_of(weights) / GB:.2f} GB)",
        failures=[
            (not is_writable(where), f"no file can be written below {where}: give another run_dir"),
            (
                free < needed,
                f"free {max(0, needed - free) / GB:.1f} GB below {where}, give another run_dir, or keep fewer "
                "checkpoints with callbacks.checkpoint.save_top_k",
            ),
        ],
    )


def existing(path: Path) -> Path:
    """The path, or the nearest folder above it that there is."""
    path = path.absolute()
    return path if path.is_dir() else existing(path.parent)


def is_writable(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
    except OSError:
        return False
    return True


def bytes_of(weights: Sequence[torch.Tensor]) -> int:
    return sum(weight.numel() * weight.element_size() for weight in weights)


def checkpoint_bytes(weights: Sequence[nn.Parameter], make_optimizer: Callable[..., Any]) -> int:
    """The weights, and for those that train what the optimizer keeps of each."""
    trained = bytes_of([weight for weight in weights if weight.requires_grad])
    return bytes_of(weights) + trained * states_per_weight(make_optimizer)


def states_per_weight(make_optimizer: Callable[..., Any]) -> int:
    """Numbers that the optimizer keeps of each weight, found by a step on two of them."""
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = make_optimizer([weight])
    optimizer.step()
    return sum(torch.is_tensor(value) and value.shape == (2,) for value in optimizer.state[weight].values())


def checkpoints_kept(callbacks: Sequence[Any], total: int) -> int:
    """On the disk at a time: one more than are kept, for a new one is complete before the oldest goes."""
    tops = [callback.save_top_k for callback in callbacks if isinstance(callback, RunCheckpoint)]
    return sum(total if top < 0 else min(total, top + 1) if top else 0 for top in tops)

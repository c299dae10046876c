"""Starting a run on several devices of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import torch


def processes_to_launch(accelerator: str, devices: Any, num_nodes: int) -> int:
    """Processes that this one should start; 0 where it should itself train.

    A sweep must not be started again in each of them, so they run under torchrun with one job's overrides.
    """
    if "LOCAL_RANK" in os.environ or "SLURM_PROCID" in os.environ or num_nodes > 1:
        return 0
    if devices in ("auto", -1):
        on_gpu = accelerator in ("auto", "gpu", "cuda")
        devices = torch.cuda.device_count() if on_gpu else 1
    count = len(devices) if isinstance(devices, (list, tuple)) else int(devices)
    return count if count > 1 else 0


def launch(processes: int, overrides: Sequence[str]) -> None:
    """Run this script under torchrun, and end with its exit code if it fails."""
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={processes}",
    ]
    done = subprocess.run([*torchrun, sys.argv[0], *overrides], check=False)
    if done.returncode:
        sys.exit(done.returncode)

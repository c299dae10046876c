"""Starting a run on several devices of this machine."""

from __future__ import annotations

import os
import signal
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
        devices = 1 if accelerator == "cpu" else torch.cuda.device_count()
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
    # torchrun kills after 30 seconds what it was asked to end; an iteration may take longer.
    environment = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "3600"} | os.environ
    if code := _wait(subprocess.Popen([*torchrun, sys.argv[0], *overrides], env=environment)):
        sys.exit(code)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Its exit code. The processes of the run finish their iteration after a signal, and this one waits for them.

    A Ctrl-C reaches them by itself; SIGTERM is passed on, and SIGUSR1 too, of which torchrun would die, as SIGTERM.
    """
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: process.send_signal(signal.SIGTERM))
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


def leave_together() -> None:
    """End the process group once all ranks are done: one that exits earlier can make another abort at its exit."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()

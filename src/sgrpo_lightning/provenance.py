"""Where a run came from: commit, versions, host, command."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = (
    "sgrpo-lightning",
    "torch",
    "torchvision",
    "lightning",
    "transformers",
    "hydra-core",
    "numpy",
    "vllm",
    "deepspeed",
)


def provenance(arguments: Sequence[str], *, seed: int) -> dict[str, Any]:
    """Plain facts for `provenance.json`. What cannot be found out is null.

    Args:
        arguments: the command line that makes this run again, and that a resumed run starts from.
    """
    status = _git("status", "--porcelain")
    return {
        "command": f"python {Path(sys.argv[0]).name}",
        "arguments": list(arguments),
        "seed": seed,
        "git": {"sha": _git("rev-parse", "HEAD"), "dirty": None if status is None else bool(status)},
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "host": {
            "system": platform.platform(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        },
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    folder = Path(__file__).parent
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None

"""A job that SLURM will end soon goes back into its queue."""

from __future__ import annotations

import os
import subprocess


def slurm_job() -> str | None:
    """The batch job of this process; None outside SLURM and in an interactive session."""
    if os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive"):
        return None
    if array := os.environ.get("SLURM_ARRAY_JOB_ID"):  # the number alone can stand for the whole array
        return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ.get("SLURM_JOB_ID")


def requeue(job: str) -> str | None:
    """Put a job back into the queue; what went wrong, where something did."""
    try:
        done = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else None

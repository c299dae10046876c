"""The job that a process belongs to, and putting it back into its queue."""

import pytest

from sgrpo_lightning.distributed.slurm import requeue, slurm_job


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        ({}, None),
        ({"JOB_ID": "77", "JOB_NAME": "train"}, "77"),
        ({"JOB_ID": "80", "JOB_NAME": "train", "ARRAY_JOB_ID": "77", "ARRAY_TASK_ID": "3"}, "77_3"),
        ({"JOB_ID": "77", "JOB_NAME": "bash"}, None),
        ({"JOB_ID": "77", "JOB_NAME": "interactive"}, None),
    ],
)
def test_the_job_of_this_process(monkeypatch, environment, job):
    for name in ("JOB_ID", "JOB_NAME", "ARRAY_JOB_ID", "ARRAY_TASK_ID"):
        monkeypatch.delenv(f"SLURM_{name}", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert slurm_job() == job


def test_a_machine_without_the_command(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "scontrol" in requeue("77")


@pytest.mark.parametrize(
    ("script", "said"), [("exit 0", None), ("exit 3", "exit code 3"), ("echo no >&2; exit 1", "no")]
)
def test_what_became_of_it(monkeypatch, tmp_path, script, said):
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert requeue("77") == said

"""The scripts that start a run on several GPUs or nodes, with stand-ins for SLURM and for Python."""

import os
import re
import subprocess

import pytest
from places import ROOT

from sgrpo_lightning.overrides import check_command_line, resumed_command_line

SCRIPTS = sorted((ROOT / "scripts").iterdir())
PYTHON = """#!/bin/sh
[ "$1" != -c ] || { echo 4; exit; }
printf '%s\\n' "$@" > "$NOTES"
"""
SRUN = """#!/bin/sh
while case "$1" in -*) true;; *) false;; esac; do shift; done
exec "$@"
"""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_shell_reads_it(script):
    subprocess.run(["bash", "-n", script], check=True)
    assert os.access(script, os.X_OK)


@pytest.fixture
def started(tmp_path, monkeypatch):
    """(script, *arguments, **environment) -> the command line that Python gets."""
    for name, text in (("python", PYTHON), ("srun", SRUN)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    fixed = {"PATH": path, "PYTHON": str(tmp_path / "python"), "NOTES": str(tmp_path / "notes")}

    def started(script, *arguments, **environment):
        command = ["bash", str(ROOT / "scripts" / script), *arguments]
        subprocess.run(command, env=os.environ | fixed | environment, cwd=ROOT, check=True)
        return (tmp_path / "notes").read_text().splitlines()

    return started


def requested(script):
    """What its lines for sbatch ask of SLURM."""
    text = (ROOT / "scripts" / script).read_text()
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", text, re.MULTILINE))


@pytest.mark.parametrize(
    ("script", "experiment"), [("slurm.sbatch", "countdown_1.5b"), ("slurm_two_nodes.sbatch", "deepmath_1.5b")]
)
def test_a_slurm_job_starts_a_run_that_can_be_queued_again(started, script, experiment):
    """The numbers of nodes and devices are those asked for and those of the paper's configuration."""
    asked = requested(script)
    assert asked.keys() >= {"requeue", "open-mode"}
    assert asked["signal"].startswith("USR1@")
    assert asked["gres"] == f"gpu:{asked['ntasks-per-node']}"
    job = {"JOB_ID": "77", "NNODES": asked["nodes"], "NTASKS_PER_NODE": asked["ntasks-per-node"]}
    environment = {f"SLURM_{name}": value for name, value in job.items()}
    program, *arguments = started(script, f"experiment=paper/{experiment}", **environment)
    assert program == "train.py"
    given = dict(argument.split("=") for argument in arguments)
    settings = (ROOT / "conf/experiment/paper" / f"{experiment}.yaml").read_text()
    assert f"devices: {given['trainer.devices']}\n  num_nodes: {given['trainer.num_nodes']}\n" in settings
    assert (given["run_dir"], given["resume"]) == ("runs/slurm/77", "auto")
    check_command_line(arguments, str(ROOT / "conf"), "train")
    assert resumed_command_line(arguments, holds_checkpoint=lambda _: False) == arguments


def test_torchrun_on_several_machines(started):
    given = started("torchrun.sh", "seed=3", HOST="node0", NODES="2", NODE_RANK="1", RESTARTS="3")
    assert given[:2] == ["-m", "torch.distributed.run"]
    assert {"--nnodes=2", "--node-rank=1", "--nproc-per-node=4", "--master-addr=node0", "--max-restarts=3"} < {*given}
    assert given[-3:] == ["trainer.devices=4", "trainer.num_nodes=2", "seed=3"]
    assert given[-4].endswith("train.py")

"""Runs that are killed, preempted, or go on with another number of ranks; each is a process that was forked."""

import json
import os
import random
import signal
import socket
import subprocess
import sys

import pytest
import torch
from places import ROOT, TOYS
from test_resume import STATEFUL, assert_identical, checkpoint, rows

from sgrpo_lightning.callbacks.checkpoint import checkpoints

LENGTH = 6  # iterations of the run that is killed


@pytest.fixture(scope="module")
def server(environment):
    path = os.pathsep.join([str(ROOT / "tests"), environment["PYTHONPATH"]])
    process = subprocess.Popen(
        [sys.executable, str(TOYS / "forked.py")],
        env=environment | {"PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.stdin.close()
    process.wait()


@pytest.fixture
def forked(server, tmp_path):
    """(*arguments, ranks=1, **environment) -> exit codes of the ranks, and what they printed."""
    count = iter(range(100))

    def run(*arguments, ranks=1, **environment):
        output = tmp_path / f"output-{next(count)}"
        job = {"arguments": [*map(str, arguments)], "output": str(output), "folder": str(tmp_path)}
        job["environments"] = [environment | ranked(rank, ranks) for rank in range(ranks)]
        if ranks > 1:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                for variables in job["environments"]:
                    variables["MASTER_PORT"] = str(free.getsockname()[1])
        print(json.dumps(job), file=server.stdin, flush=True)
        return json.loads(server.stdout.readline()), output.read_text()

    return run


def ranked(rank, ranks):
    """The variables that torchrun gives to a rank."""
    if ranks == 1:
        return {}
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "GROUP_RANK": 0}
    return {k: str(v) for k, v in names.items()} | {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "test"}


@pytest.fixture
def stateful(quick):
    """The arguments of a run in which everything carries state: the head too."""
    kills = ["objective=running", "+callbacks.moment._target_=kills.Moment"]
    return [*quick, *STATEFUL, "task.seconds=0", f"iterations={LENGTH}", *kills]


def moments():
    """Ten, of which the first four come before there is a checkpoint; the chain ends in the sixth iteration."""
    draw = random.Random(0).randint
    return [
        "start 1",
        "settings 1",
        f"grade {draw(1, 24)}",  # of the held-out questions before training, or of the first rollout
        "half 1",
        "row 2",
        f"grade {draw(1, 24)}",  # of an iteration, or of the held-out questions after it
        f"step {draw(1, 8)}",
        "flush 2",
        "rename 2",
        "renamed 1",
    ]


@pytest.mark.timeout(600)
def test_killed_ten_times(forked, stateful, tmp_path):
    """The same command each time, as from a script that is queued again; the last word is the uninterrupted run's."""
    codes, output = forked(*stateful, "run_dir=whole")
    assert codes == [0], output
    folder, again = tmp_path / "killed", [*stateful, "run_dir=killed", "resume=auto"]
    reached = []
    for moment in moments():
        codes, output = forked(*again, MOMENT=moment)
        assert codes == [-signal.SIGKILL], (moment, output)
        found = checkpoints(folder)
        reached.append(checkpoint(folder)["global_step"] // 4 if found else 0)
        assert len(list((folder / "checkpoints").glob("*.part"))) == (moment.split()[0] in ("half", "flush", "rename"))
        assert len(found) == (2 if moment.startswith("renamed") else min(reached[-1], 1))
    assert reached == sorted(reached)
    assert reached[3:6] == [0, 1, 1]
    assert 4 <= reached[-1] < LENGTH
    codes, output = forked("resume=killed")
    assert codes == [0], output
    assert_identical(tmp_path / "whole", folder, length=LENGTH)
    assert "head.mean" in checkpoint(folder)["state_dict"]
    assert [path.name for path in (folder / "checkpoints").iterdir()] == [f"step-{4 * LENGTH:07d}.ckpt"]


def test_a_full_disk_ends_the_run_and_spares_its_checkpoint(forked, stateful, tmp_path):
    codes, output = forked(*stateful, "run_dir=full", MOMENT="half 2", FULL="1")
    assert codes == [1]
    assert "error: full/checkpoints/step-0000008.ckpt could not be written: No space left on device" in output
    assert "Traceback" not in output
    assert [path.name for path in (tmp_path / "full" / "checkpoints").iterdir()] == ["step-0000004.ckpt"]


# ---- SLURM ----

SCONTROL = """#!/bin/sh
echo "$@ with $(ls held/checkpoints)" >> asked
[ -z "$REFUSES" ] || { echo "Requeue is disabled" >&2; exit 1; }
"""
TASK = {"JOB_ID": 77, "JOB_NAME": "train", "NTASKS": 1, "NTASKS_PER_NODE": 1, "NNODES": 1, "NODEID": 0}
ONE_TASK = {f"SLURM_{name}": str(value) for name, value in (TASK | {"PROCID": 0, "LOCALID": 0}).items()}


@pytest.fixture
def slurm(tmp_path):
    """The environment of a job of one task, with a command `scontrol` that notes what it is asked."""
    (folder := tmp_path / "bin").mkdir()
    (folder / "scontrol").write_text(SCONTROL)
    (folder / "scontrol").chmod(0o755)
    return ONE_TASK | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def test_slurm_requeues_a_run_that_it_warns(forked, stateful, slurm, tmp_path):
    """Once, after the checkpoint of the iteration at hand, without a checkpoint of Lightning's; then it goes on."""
    warned = slurm | {"MOMENT": "step 6", "SEND": str(int(signal.SIGUSR1))}
    again = [*stateful, "run_dir=held", "resume=auto"]
    codes, output = forked(*again, "iterations=4", **warned)
    assert codes == [0], output
    assert (tmp_path / "asked").read_text() == "requeue 77 with step-0000008.ckpt\n"
    assert "stopped after 2 of 4 iterations\nSLURM requeued job 77" in output
    assert not list(tmp_path.rglob("hpc_ckpt*"))
    codes, output = forked(*again, "iterations=4", **warned | {"MOMENT": "step 1", "REFUSES": "1"})
    assert codes == [0], output
    assert "SLURM did not requeue job 77: Requeue is disabled\ngo on with\n  python train.py resume=held" in output
    codes, output = forked(*again, "iterations=4", **slurm)
    assert codes == [0], output
    assert [row["iteration"] for row in rows(tmp_path / "held")] == [0, 1, 2, 3, 4]
    assert len((tmp_path / "asked").read_text().splitlines()) == 2


def test_a_warning_outside_slurm_and_one_to_stop_requeue_nothing(forked, stateful, slurm, tmp_path):
    """SIGUSR1 in an interactive session; SIGTERM, which `scancel` sends."""
    interactive = slurm | {"SLURM_JOB_NAME": "bash", "SEND": str(int(signal.SIGUSR1))}
    cancelled = slurm | {"SEND": str(int(signal.SIGTERM))}
    for done, environment in enumerate((interactive, cancelled), start=1):
        codes, output = forked(*stateful, "run_dir=held", "resume=auto", MOMENT="grade 1", **environment)
        assert codes == [0], output
        assert f"stopped after {done} of {LENGTH} iterations" in output
    assert not (tmp_path / "asked").exists()


# ---- another number of ranks ----


def prompts(folder, iteration):
    files = sorted((folder / "samples").glob(f"iteration-{iteration:06d}-rank-*.jsonl"))
    texts = [json.loads(line)["prompt"] for file in files for line in file.read_text().splitlines()]
    return sorted(texts)


@pytest.mark.parametrize(("first", "then"), [(1, 2), (2, 1)])
def test_another_number_of_ranks_goes_on(forked, stateful, tmp_path, first, then):
    """No prompt is skipped or repeated, the optimizer keeps its moments, and a line says what differs."""
    each = [*stateful, "callbacks.sample_files.every_n_iterations=1"]
    halves = [a for a in each if not a.startswith("iterations")]
    codes, output = forked(*halves, f"trainer.devices={first}", "iterations=1", "run_dir=other", ranks=first)
    assert codes == [0] * first, output
    began = checkpoint(tmp_path / "other")
    more = (f"trainer.devices={then}", "iterations=2")
    codes, output = forked("resume=other", *more, ranks=then)
    assert codes == [0] * then, output
    assert f"{then} ranks go on with what {first} ranks began" in output
    codes, output = forked(*halves, "iterations=2", "run_dir=whole")
    assert codes == [0], output
    for iteration in (1, 2):
        assert prompts(tmp_path / "other", iteration) == prompts(tmp_path / "whole", iteration)
    assert prompts(tmp_path / "other", 1) != prompts(tmp_path / "other", 2)
    assert [row["iteration"] for row in rows(tmp_path / "other")] == [0, 1, 2]
    ended = checkpoint(tmp_path / "other")
    assert (began["global_step"], ended["global_step"]) == (4, 8)
    assert {int(state["step"]) for state in ended["optimizer_states"][0]["state"].values()} == {8}
    assert (len(began["random_states"]), len(ended["random_states"])) == (first, then)


def test_whole_checkpoints_pass_between_strategies(forked, tmp_path):
    """Two steps each on one device, two under FSDP2, two under DDP: the weights are those of six on one device."""
    sizes = ["data.train_size=64", "data.eval_size=20", "model.widths=[8,16]", "model.norm=group"]
    plan = ["batch_size=16", "steps_per_iteration=2", "objective=cross_entropy", "warmup_steps=0"]
    quiet = ["logger.tensorboard=null", "callbacks.plot=null", "trainer.accelerator=cpu"]
    common = ["domain=imagenet", "data=fake", *sizes, *plan, *quiet, "module.scheduler=null"]
    codes, output = forked(*common, "steps=6", "run_dir=whole")
    assert codes == [0], output
    codes, output = forked(*common, "steps=2", "run_dir=passed")
    assert codes == [0], output
    for steps, strategy in ((4, "fsdp2"), (6, "ddp")):
        more = ("trainer.devices=2", f"strategy={strategy}", f"steps={steps}")
        codes, output = forked("resume=passed", *more, ranks=2)
        assert codes == [0, 0], output
    one, other = (checkpoint(tmp_path / name) for name in ("whole", "passed"))
    assert one["global_step"] == other["global_step"] == 6
    assert one["state_dict"].keys() == other["state_dict"].keys()
    for name, weight in one["state_dict"].items():
        torch.testing.assert_close(other["state_dict"][name], weight, rtol=1e-4, atol=1e-6)

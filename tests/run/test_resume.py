"""A run that was stopped or killed and then resumed ends with the very numbers of one that was not."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from places import ROOT

from sgrpo_lightning.run import latest_checkpoint

LENGTH = 4  # iterations
# Everything that carries state: Adam, several inner steps, a reference policy, a schedule that falls.
STATEFUL = [
    f"iterations={LENGTH}",
    "ppo_epochs=2",
    "beta=0.1",
    "kl=k3",
    "module.scheduler.name=linear",
    "task.seconds=0.01",
    "callbacks.plot=null",
]


def checkpoint(folder):
    return torch.load(latest_checkpoint(folder), weights_only=True)


def rows(folder):
    """Without what depends on the clock."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not clock(k)} for line in lines]


def clock(name):
    return name in ("elapsed", "tokens_per_second") or name.startswith("seconds/")


def assert_identical(one, other, *, length=LENGTH):
    """Every weight, every moment of the optimizer and every number that was logged, to the last bit."""
    a, b = checkpoint(one), checkpoint(other)
    assert a["global_step"] == b["global_step"] == length * 4
    assert a["state_dict"].keys() == b["state_dict"].keys()
    assert all(torch.equal(a["state_dict"][name], b["state_dict"][name]) for name in a["state_dict"])
    (first,), (second,) = a["optimizer_states"], b["optimizer_states"]
    assert first["param_groups"] == second["param_groups"]
    assert first["state"].keys() == second["state"].keys() != set()
    for index, state in first["state"].items():
        assert all(
            torch.equal(torch.as_tensor(v), torch.as_tensor(second["state"][index][k])) for k, v in state.items()
        )
    assert a["lr_schedulers"] == b["lr_schedulers"]
    assert rows(one) == rows(other)


@pytest.fixture
def uninterrupted(cli, quick, tmp_path):
    ended = cli(*quick, *STATEFUL, "run_dir=whole")
    assert not ended.code, ended
    whole = tmp_path / "whole"
    start, end = (state["reward/mean"] for state in (rows(whole)[1], rows(whole)[-1]))
    assert start != end
    assert rows(whole)[-1]["kl/mean"] > 0
    return whole


@pytest.fixture
def start(environment, tmp_path):
    """(*arguments) -> `train.py` in a process of its own, killed at the end whatever happens."""
    processes = []

    def start(*arguments):
        log = (tmp_path / "log").open("w")
        command = [sys.executable, str(ROOT / "train.py"), *arguments]
        process = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def wait_for_iteration(process, folder, number):
    """Until the row of that iteration is written."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        assert process.poll() is None, (folder.parent / "log").read_text()
        file = folder / "metrics.jsonl"
        if file.is_file() and len(file.read_text().splitlines()) > number:
            return
        time.sleep(0.01)
    raise TimeoutError(f"iteration {number} did not come")


def test_after_sigkill(cli, quick, uninterrupted, start, tmp_path):
    """Killed somewhere within the third iteration, in a process of its own; resumed here."""
    process = start(*quick, *STATEFUL, "run_dir=killed")
    wait_for_iteration(process, tmp_path / "killed", 2)
    time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert len(rows(tmp_path / "killed")) < LENGTH + 1
    ended = cli("resume=killed")
    assert not ended.code, ended
    assert_identical(uninterrupted, tmp_path / "killed")
    summary = json.loads((tmp_path / "killed" / "summary.json").read_text())
    assert (summary["iterations"], summary["samples"]) == (LENGTH, LENGTH * 16)


def test_after_ctrl_c(cli, quick, uninterrupted, start, tmp_path):
    """The run ends with its iteration, says how to go on, and can."""
    process = start(*quick, *STATEFUL, "run_dir=stopped")
    wait_for_iteration(process, tmp_path / "stopped", 1)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=100) == 130
    log = (tmp_path / "log").read_text()
    done = len(rows(tmp_path / "stopped")) - 1
    assert 1 <= done < LENGTH
    assert checkpoint(tmp_path / "stopped")["global_step"] == done * 4
    assert f"stopped after {done} of {LENGTH} iterations" in log
    assert "python train.py resume=stopped" in log
    assert "Traceback" not in log
    ended = cli("resume=stopped")
    assert not ended.code, ended
    assert_identical(uninterrupted, tmp_path / "stopped")


def test_a_longer_run_goes_on_from_a_shorter_one(cli, quick, tmp_path):
    """Twice two iterations are four; the folder is found whatever stands beside `resume`."""
    constant = [*STATEFUL[:4], "task.seconds=0", "callbacks.plot=null"]
    cli(*quick, *constant, "run_dir=whole")
    cli(*quick, *constant, "iterations=2", "run_dir=half")
    assert checkpoint(tmp_path / "half")["global_step"] == 8
    ended = cli("resume=half", f"iterations={LENGTH}")
    assert not ended.code, ended
    assert_identical(tmp_path / "whole", tmp_path / "half")


def test_a_finished_run_has_nothing_to_go_on_with(cli, quick, tmp_path):
    cli(*quick, "run_dir=done")
    before = rows(tmp_path / "done")
    ended = cli("resume=done")
    assert not ended.code, ended
    assert rows(tmp_path / "done") == before


def test_a_run_without_a_checkpoint(cli, quick, tmp_path):
    """It cannot go on; begun anew, it leaves no row of the first attempt."""
    cli(*quick, "iterations=1", "run_dir=early")
    first = rows(tmp_path / "early")
    for file in (tmp_path / "early" / "checkpoints").iterdir():
        file.unlink()
    ended = cli("resume=early")
    assert ended.code.startswith("error: resume=early: no checkpoint there; the run ended before its first iteration")
    ended = cli(*quick, "iterations=1", "run_dir=early", "resume=auto")
    assert not ended.code, ended
    assert rows(tmp_path / "early") == first
    assert len((tmp_path / "early" / "metrics.csv").read_text().splitlines()) == 3


def test_going_on_by_itself_needs_a_folder(cli, quick):
    ended = cli(*quick, "resume=auto")
    assert ended.code == "error: resume=auto: no run_dir to look into; give run_dir=<folder>"


def test_another_folder_with_a_run_in_it_is_not_overwritten(cli, quick, tmp_path):
    for name in ("one", "two"):
        cli(*quick, "iterations=1", f"run_dir={name}")
    before = rows(tmp_path / "two")
    ended = cli("resume=one", "run_dir=two")
    assert ended.code == "error: run_dir=two holds a run already; resume=two goes on with it"
    assert rows(tmp_path / "two") == before


def test_another_seed_is_another_run(cli, quick, tmp_path):
    cli(*quick, "run_dir=one")
    cli(*quick, "run_dir=two", "seed=1")
    assert rows(tmp_path / "one") != rows(tmp_path / "two")

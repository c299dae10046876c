"""A run on two processes of this machine."""

import json

import pytest


def test_a_run_on_two_devices(cli, quick, environment, tmp_path, monkeypatch):
    """It ends, leaves one set of records, and its numbers are those of all samples; each rank draws its own."""
    for name in ("PYTHONPATH", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, environment[name])
    ended = cli(*quick, "run_dir=here", "trainer.devices=2", "strategy=ddp", "beta=0.01")
    assert not ended.code, ended
    folder = tmp_path / "here"
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["iterations"], summary["step"], summary["samples"]) == (2, 4, 32)
    assert summary["eval/samples"] == 8
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [0, 1, 2]
    records = []
    for rank in range(2):
        text = (folder / "samples" / f"iteration-000001-rank-{rank}.jsonl").read_text()
        records.append([json.loads(line) for line in text.splitlines()])
    assert [len(part) for part in records] == [8, 8]
    for field in ("prompt", "completion"):
        assert not {r[field] for r in records[0]} & {r[field] for r in records[1]}
    assert rows[1]["reward/mean"] == pytest.approx(sum(r["reward"] for part in records for r in part) / 16)
    assert ended.output.count("done: held-out pass@1") == 1
    assert len(list((folder / "checkpoints").glob("*.ckpt"))) == 1


def test_ranks_that_know_different_things_stay_in_step(cli, quick, environment, tmp_path, monkeypatch):
    """One held-out question for two ranks, and a rank whose every grade fails: it knows no parts of the reward."""
    for name in ("PYTHONPATH", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, environment[name])
    task = ["task._target_=toys.FailsOnRankOne", "callbacks.evaluation.max_questions=1", "iterations=1"]
    ended = cli(*quick, *task, "run_dir=here", "trainer.devices=2", "strategy=ddp")
    assert not ended.code, ended
    first, last = map(json.loads, (tmp_path / "here" / "metrics.jsonl").read_text().splitlines())
    assert first["eval/samples"] == last["eval/samples"] == 2
    assert first["eval/reward"] == first["eval/reward/digits"]
    assert last["error/frac"] == 0.5
    assert last["reward/mean"] == pytest.approx(last["reward/digits/mean"])

"""The rows of a run and the summary that follows from them."""

import csv
import json

import pytest

from sgrpo_lightning.callbacks.run_log import RunLogger, read_rows, summarise


def rows_of_csv(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


def log(logger, *rows):
    for row in rows:
        logger.log_metrics(row, step=row["iteration"] * 2)


def test_both_files_hold_the_same_rows(tmp_path):
    """A column that appears later is added to the table."""
    log(RunLogger(str(tmp_path)), {"iteration": 1, "a/mean": 0.5}, {"iteration": 2, "a/mean": 0.25, "b/max": 3.0})
    log(RunLogger(str(tmp_path)), {"iteration": 3, "b/max": 4.0})
    rows = read_rows(tmp_path)
    assert rows == rows_of_csv(tmp_path)
    assert [row["step"] for row in rows] == [2, 4, 6]
    assert [row.get("a/mean") for row in rows] == [0.5, 0.25, None]
    assert [row.get("b/max") for row in rows] == [None, 3.0, 4.0]


def test_time_goes_on_where_a_resumed_run_left_off(tmp_path):
    log(first := RunLogger(str(tmp_path)), {"iteration": 1}, {"iteration": 2})
    first.rows[-1]["elapsed"] = 100.0
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in first.rows))
    resumed = RunLogger(str(tmp_path))
    resumed.forget_after(2)
    log(resumed, {"iteration": 3})
    assert 100 <= read_rows(tmp_path)[-1]["elapsed"] < 101


def test_rows_after_the_checkpoint_are_forgotten(tmp_path):
    log(RunLogger(str(tmp_path)), *({"iteration": n, "reward/mean": n / 10} for n in range(6)))
    resumed = RunLogger(str(tmp_path))
    resumed.forget_after(3)
    log(resumed, {"iteration": 4, "reward/mean": 0.9})
    assert [row["iteration"] for row in read_rows(tmp_path)] == [0, 1, 2, 3, 4]
    assert rows_of_csv(tmp_path) == read_rows(tmp_path)
    assert resumed.rows[-1]["reward/mean"] == 0.9


def test_a_line_that_a_kill_cut_short_is_dropped(tmp_path):
    log(RunLogger(str(tmp_path)), {"iteration": 1, "a/mean": 0.5}, {"iteration": 2, "a/mean": 0.25})
    for name in ("metrics.jsonl", "metrics.csv"):
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text[:-4])
    assert [row["iteration"] for row in read_rows(tmp_path)] == [1]
    resumed = RunLogger(str(tmp_path))
    resumed.forget_after(1)
    log(resumed, {"iteration": 2, "a/mean": 0.75})
    assert [row["a/mean"] for row in read_rows(tmp_path)] == [0.5, 0.75]
    assert rows_of_csv(tmp_path) == read_rows(tmp_path)


def test_the_summary_by_hand():
    """The last of each metric; of held-out ones the first too, under names of their own."""
    rows = [
        {"step": 0, "elapsed": 1.0, "iteration": 0, "eval/pass@1": 0.1, "eval/samples": 32},
        {"step": 2, "elapsed": 2.0, "iteration": 1, "reward/mean": 0.3, "kl/mean": 0.01},
        {"step": 4, "elapsed": 3.5, "iteration": 2, "reward/mean": 0.4, "eval/pass@1": 0.6, "eval/samples": 32},
    ]
    identity = {"domain": "llm", "task": "toy", "objective": "grpo", "seed": 3}
    assert summarise(rows, identity) == {
        **identity,
        "iterations": 2,
        "seconds": 3.5,
        "step": 4,
        "reward/mean": 0.4,
        "kl/mean": 0.01,
        "eval/samples": 32,
        "eval/pass@1/first": 0.1,
        "eval/pass@1/last": 0.6,
    }


def test_an_empty_folder(tmp_path):
    assert read_rows(tmp_path) == []
    logger = RunLogger(str(tmp_path / "new"))
    logger.forget_after(0)
    log(logger, {"iteration": 1})
    assert len(read_rows(tmp_path / "new")) == 1
    with pytest.raises(FileNotFoundError):
        (tmp_path / "metrics.jsonl").read_text()

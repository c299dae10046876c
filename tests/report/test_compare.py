"""Comparison of runs: read from folders, averaged over seeds."""

import json

import pytest

from sgrpo_lightning.report import find_runs, plot_comparison, table
from sgrpo_lightning.report.compare import by_objective, mean_interval


def write_run(folder, objective, seed, first, last):
    folder.mkdir(parents=True)
    summary = {"objective": objective, "seed": seed, "seconds": 10.0 * (seed + 1)}
    summary |= {"eval/pass@1/first": first, "eval/pass@1/last": last}
    (folder / "summary.json").write_text(json.dumps(summary))
    rows = [
        {"iteration": 0, "eval/pass@1": first},
        {"iteration": 1, "reward/mean": 0.0},
        {"iteration": 2, "eval/pass@1": last},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def runs(tmp_path):
    for seed, last in enumerate((0.2, 0.3, 0.4)):
        write_run(tmp_path / "grpo" / str(seed), "grpo", seed, 0.1, last)
    write_run(tmp_path / "maxrl" / "0", "maxrl", 0, 0.1, 0.5)
    return find_runs(f"{tmp_path}/**")


def test_each_run_is_found_once_and_grouped_by_objective(runs):
    assert {name: len(group) for name, group in by_objective(runs).items()} == {"grpo": 3, "maxrl": 1}


def test_interval_is_students_t():
    # mean 0.3, s = 0.1, t(0.975, 2) = 4.30265: 4.30265 * 0.1 / sqrt(3) = 0.24841
    mean, half = mean_interval([0.2, 0.3, 0.4])
    assert mean == pytest.approx(0.3)
    assert half == pytest.approx(0.24841, abs=1e-5)


def test_table_gives_every_seed_the_mean_and_the_gain(runs):
    text = table(runs, metric="eval/pass@1")
    assert "| `grpo` | 0.100 | 0: 0.200, 1: 0.300, 2: 0.400 | 0.300 ± 0.248 | +0.200 | 20 |" in text
    assert "| `maxrl` | 0.100 | 0: 0.500 | 0.500 | +0.400 | 10 |" in text  # one seed says nothing of the spread


def test_figure_is_written(runs, tmp_path):
    plot_comparison(runs, tmp_path / "out" / "curves.png", metric="eval/pass@1", label="pass@1")
    assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_no_runs_is_an_error_that_names_the_pattern(tmp_path):
    with pytest.raises(ValueError, match=r"runs=.*nothing/\*\*: no run"):
        find_runs(f"{tmp_path}/nothing/**")

"""Tables of runs, against hand arithmetic."""

import csv

import pytest
from report_runs import columns, made, write_run

from sgrpo_lightning.report import find_runs, table, write_report
from sgrpo_lightning.report.tables import other_splits, write_csv

IMAGES = ["eval/top1", "eval/pass@1", "eval/pass@128"]


def language(objective, seed, last=None, first=0.1, seconds=10.0):
    measured = {"eval/pass@1/last": last, "eval/pass@1/first": first}
    measured = {name: value for name, value in measured.items() if value is not None}
    return (
        made(objective, seed, domain="llm", seconds=seconds, **measured)
        if measured
        else made(objective, seed, domain="llm")
    )


def test_the_table_of_language_runs():
    """Every seed, the mean with its interval (4.30265 * 0.1 / sqrt(3)), the gain, the mean of the seconds."""
    runs = [language("grpo", seed, last, seconds=10.0 * (seed + 1)) for seed, last in enumerate((0.2, 0.3, 0.4))]
    runs += [language("maxrl", 0, 0.5)]
    assert table(runs[::-1], metrics=["eval/pass@1"]) == (
        "| objective | before | after, by seed | mean ± 95% | gain | seconds |\n"
        "|---|---|---|---|---|---|\n"
        "| `grpo` | 0.100 | 0: 0.200, 1: 0.300, 2: 0.400 | 0.300 ± 0.248 | +0.200 | 20 |\n"
        "| `maxrl` | 0.100 | 0: 0.500 | 0.500 | +0.400 | 10 |\n"  # one seed says nothing of the spread
    )


def test_language_runs_that_lack_a_measurement():
    """The gain is of the seeds that have both: 0.4 - 0.1."""
    runs = [language("grpo", 0, 0.2, first=None), language("grpo", 1, 0.4), language("grpo", 2, None, first=None)]
    row = columns(table([*runs, language("maxrl", 0, None, first=0.3)], metrics=["eval/pass@1"]))
    assert row["grpo"] == {
        "objective": "`grpo`",
        "before": "0.100",
        "after, by seed": "0: 0.200, 1: 0.400",
        "mean ± 95%": "0.300 ± 1.271",  # 12.7062 * 0.141421 / sqrt(2)
        "gain": "+0.300",
        "seconds": "10",
    }
    assert list(row["maxrl"].values())[1:] == ["0.300", "–", "–", "–", "10"]  # noqa: RUF001


def image(objective, seed, top1, M=16, **summary):
    measured = {"eval/pass@1/last": top1 / 2, "eval/cross_entropy/last": 2 * top1, **summary}
    return made(objective, seed, top1=top1, settings={"samples_per_group": M, "objective": 1}, **measured)


@pytest.fixture
def images():
    runs = [image("softmax_grpo", seed, value, seconds=value * 100) for seed, value in enumerate((0.3, 0.6, 0.5))]
    runs += [image("softmax_grpo", 0, 0.75, M=128, **{"eval_unseen_style/top1/last": 0.25, "eval/pass@128/last": 0.9})]
    runs += [image("reinforce", seed, value) for seed, value in enumerate((0.1, 0.2, 0.3))]
    return runs + [image("cross_entropy", seed, value) for seed, value in enumerate((0.5, 0.7, 0.7))]


def test_the_table_of_image_runs(images):
    """top-1: 0.3, 0.6, 0.5, mean 0.466667, s = 0.152753, half 4.30265 * 0.152753 / sqrt(3) = 0.379460.

    pass@1 is half of it, cross-entropy twice, the seconds a hundred times. The gaps are those of
    test_report_intervals; at M = 128: (0.75 - mean 0.2 of REINFORCE) / (mean 0.633333 - 0.2) = 1.269231.
    """
    rows = columns(table(images, metrics=IMAGES))
    assert list(rows) == ["cross_entropy", "reinforce", "softmax_grpo M=16", "softmax_grpo M=128"]
    assert rows["softmax_grpo M=16"] == {
        "objective": "`softmax_grpo M=16`",
        "seeds": "3",
        "top-1": "0.467 ± 0.379",
        "pass@1": "0.233 ± 0.190",
        "pass@128": "–",  # noqa: RUF001
        "cross-entropy": "0.933 ± 0.759",
        "gap closed": "0.600 ± 0.430",
        "top-1, unseen style": "–",  # noqa: RUF001
        "seconds": "47 ± 38",
    }
    assert list(rows["softmax_grpo M=16"])[-1] == "seconds"
    larger = " | ".join(list(rows["softmax_grpo M=128"].values())[1:])
    assert larger == "1 | 0.750 | 0.375 | 0.900 | 1.500 | 1.269 | 0.250 | 10"
    assert rows["reinforce"]["gap closed"] == "0.000 ± 0.000"
    assert rows["cross_entropy"]["gap closed"] == "1.000 ± 0.000"


def test_the_gap_needs_both_yardsticks(images):
    for missing in ("reinforce", "cross_entropy"):
        text = table([run for run in images if run.objective != missing], metrics=IMAGES)
        assert "gap closed" not in text
        assert "`softmax_grpo M=128` | 1 | 0.750" in text
    assert "gap closed" not in table([made("softmax_grpo", top1=0.1)], metrics=IMAGES)


def test_a_gap_that_cannot_be_told_is_left_open(images):
    """Cross-entropy below REINFORCE."""
    worse = [run for run in images if run.objective != "cross_entropy"] + [image("cross_entropy", 0, 0.1)]
    assert {row["gap closed"] for row in columns(table(worse, metrics=IMAGES)).values()} == {"–"}  # noqa: RUF001


def test_a_mean_of_fewer_seeds_says_so():
    runs = [made("grpo", 0, top1=0.1), made("grpo", 1, top1=0.3), made("grpo", 2), made("grpo", 2)]
    row = columns(table(runs, metrics=["eval/top1"]))["grpo"]
    assert row["seeds"] == "3"
    assert row["top-1"] == "0.200 ± 1.271 (2 of 3)"
    assert row["cross-entropy"] == "–"  # noqa: RUF001
    assert row["seconds"] == "10 ± 0"


def test_metrics_of_ones_own_are_the_columns():
    run = made("grpo", top1=0.1, **{"reward/mean": 0.25, "eval/cross_entropy/last": 1.0})
    row = columns(table([run], metrics=["reward/mean", "eval/cross_entropy"]))["grpo"]
    assert list(row) == ["objective", "seeds", "reward/mean", "cross-entropy", "seconds"]
    assert row["reward/mean"] == "0.250"


def test_other_splits_are_found_under_either_name():
    runs = [made("grpo", **{"eval_b/top1/last": 0.1, "eval_b/top1/first": 0.0, "eval/top1/last": 0.2})]
    runs += [made("grpo", **{"eval_a/top1": 0.1, "eval_a/pass@1": 0.3, "eval_c/top10": 0.4})]
    assert other_splits(runs) == ["eval_a/top1", "eval_b/top1"]
    assert columns(table(runs, metrics=IMAGES))["grpo"]["top-1, a"] == "0.100"


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_numbers_of_image_runs(images, tmp_path):
    write_csv(images[::-1], tmp_path / "new" / "table.csv", metrics=IMAGES)
    rows = read(tmp_path / "new" / "table.csv")
    assert [(row["label"], row["seed"]) for row in rows] == [
        *(("cross_entropy", str(seed)) for seed in range(3)),
        *(("reinforce", str(seed)) for seed in range(3)),
        *(("softmax_grpo M=16", str(seed)) for seed in range(3)),
        ("softmax_grpo M=128", "0"),
    ]
    assert rows[7] == {
        "label": "softmax_grpo M=16",
        "seed": "1",
        "seconds": "60.0",
        "eval/top1/last": "0.6",
        "eval/pass@1/last": "0.3",
        "eval/pass@128/last": "",
        "eval/cross_entropy/last": "1.2",
        "eval_unseen_style/top1/last": "",
    }
    assert rows[9]["eval_unseen_style/top1/last"] == "0.25"


def test_cross_entropy_is_one_column(images, tmp_path):
    write_csv(images, tmp_path / "table.csv", metrics=["eval/cross_entropy", "eval/top1"])
    head = (tmp_path / "table.csv").read_text().splitlines()[0]
    assert head == "label,seed,seconds,eval/cross_entropy/last,eval/top1/last,eval_unseen_style/top1/last"


def test_the_numbers_of_language_runs(tmp_path):
    write_csv([language("grpo", 0, 0.25), language("grpo", 1, 0.5)], tmp_path / "table.csv", metrics=["eval/pass@1"])
    assert (tmp_path / "table.csv").read_text().splitlines() == [
        "label,seed,seconds,eval/pass@1/first,eval/pass@1/last",
        "grpo,0,10.0,0.1,0.25",
        "grpo,1,10.0,0.1,0.5",
    ]


def test_a_report_is_three_files(tmp_path):
    """From folders; the run that stopped is named below the table."""
    for seed, done in ((0, 4), (1, 3)):
        rows = [{"step": step, "iteration": step, "eval/pass@1": step / 10} for step in range(done + 1)]
        write_run(
            tmp_path / f"grpo/{seed}",
            "grpo",
            seed,
            first={"eval/pass@1": 0.0},
            last={"eval/pass@1": done / 10},
            rows=rows,
            config={"seed": seed, "run_dir": f"grpo/{seed}", "iterations": 4},
            iterations=done,
        )
    runs = find_runs(f"{tmp_path}/grpo/**")
    text = write_report(runs, tmp_path / "out", metrics=["eval/pass@1"], x="iteration")
    assert "| `grpo` | 0.000 | 0: 0.400, 1: 0.300 |" in text
    assert text.endswith(f"\n\nNot finished: {tmp_path}/grpo/1 (3 of 4 iterations)\n")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"table.md", "table.csv", "curves.png"}
    assert (tmp_path / "out" / "table.md").read_text() == text
    assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert len(read(tmp_path / "out" / "table.csv")) == 2
    assert "Not finished" not in write_report(runs[:1], tmp_path / "out", metrics=["eval/pass@1"], x="iteration")

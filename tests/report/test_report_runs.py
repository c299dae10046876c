"""Runs, read from their folders."""

import json

import pytest
from report_runs import made, write_run

from sgrpo_lightning.report import find_runs, read_rows, what_to_show
from sgrpo_lightning.report.runs import domain_of, flat, unfinished


def test_each_run_is_found_once_in_the_order_of_the_paths(tmp_path):
    for name in ("b/1", "a/0", "b/0/deeper"):
        write_run(tmp_path / name, "grpo", 0)
    found = find_runs(f"{tmp_path}/**")
    assert [str(run.folder.relative_to(tmp_path)) for run in found] == ["a/0", "b/0/deeper", "b/1"]
    assert [run.folder.name for run in find_runs(f"{tmp_path}/b/*")] == ["1"]


def test_no_runs_is_an_error_that_names_the_pattern(tmp_path):
    with pytest.raises(ValueError, match=r"runs=.*nothing/\*\*: no run"):
        find_runs(f"{tmp_path}/nothing/**")


def test_a_run_is_what_its_files_say(tmp_path):
    rows = [{"step": 0, "iteration": 0, "eval/pass@1": 0.1}, {"step": 2, "iteration": 1, "reward/mean": 0.3}]
    config = {"seed": 4, "steps": 9, "objective": {"_target_": "a.b.softmax", "tau": 0.3}}
    write_run(
        tmp_path / "run", "grpo", 4, last={"eval/pass@1": 0.2}, first={"eval/pass@1": 0.1}, rows=rows, config=config
    )
    (run,) = find_runs(f"{tmp_path}/**")
    assert (run.objective, run.seed, run.rows) == ("grpo", 4, rows)
    assert (run.first("eval/pass@1"), run.last("eval/pass@1")) == (0.1, 0.2)
    assert run.last("seconds") == 10.0
    assert (run.first("kl/mean"), run.last("kl/mean")) == (None, None)
    assert run.settings == {"steps": 9, "objective._target_": "softmax", "objective.tau": 0.3, "task": "toy"}
    assert run.curve("eval/pass@1", x="step") == {0: 0.1}
    assert run.curve("reward/mean", x="step") == {2: 0.3}
    assert run.curve("reward/mean", x="iteration") == {1: 0.3}
    assert run.curve("reward/mean", x="epoch") == {}


def test_rows_and_settings_may_be_missing(tmp_path):
    write_run(tmp_path / "run", "grpo", 0)
    (run,) = find_runs(f"{tmp_path}/**")
    assert list(run.rows) == []
    assert run.settings == {}


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path):
    write_run(tmp_path / "run", "grpo", 0, rows=[{"step": 1, "a": 0.5}, {"step": 2, "a": 0.25}])
    path = tmp_path / "run" / "metrics.jsonl"
    path.write_text(path.read_text()[:-4])
    assert read_rows(tmp_path / "run") == [{"step": 1, "a": 0.5}]
    assert find_runs(f"{tmp_path}/run")[0].rows == [{"step": 1, "a": 0.5}]
    assert read_rows(tmp_path / "nothing") == []


def test_the_settings_of_a_configuration():
    """What names or records a run, says where it ran or how fast, and what is null, is no setting."""
    config = {
        "seed": 1,
        "run_dir": "runs/x",
        "resume": "runs/x",
        "identity": {"objective": "grpo"},
        "steps": 9,
        "micro_batch_size": 4,
        "trainer": {"_target_": "lightning.Trainer", "devices": 2, "accelerator": "cpu", "precision": "32-true"},
        "model": {
            "_target_": "modules.vision.resnet",
            "seed": 3,
            "lora": None,
            "sizes": [64, 128],
            "deep": {"er": True},
        },
        "callbacks": {"log": {"run_dir": "runs/x"}},
        "datamodule": {"plan": {"seed": 1, "size": 2.5}, "_partial_": True},
    }
    assert flat(config) == {
        "steps": 9,
        "trainer._target_": "Trainer",
        "trainer.precision": "32-true",
        "model._target_": "resnet",
        "model.sizes": json.dumps([64, 128]),
        "model.deep.er": True,
        "datamodule.plan.size": 2.5,
    }


def test_a_report_is_about_one_domain():
    assert domain_of([made("grpo"), made("maxrl")]) == "imagenet"
    mixed = [made("grpo"), made("grpo", domain="llm")]
    message = r"one domain, got imagenet and llm; narrow them, for instance runs='runs/imagenet/\*\*'"
    for refuse in (domain_of, what_to_show):
        with pytest.raises(ValueError, match=message):
            refuse(mixed)


def test_the_domain_chooses_what_is_shown():
    llm = [made("grpo", domain="llm", **{"eval/pass@1/last": 0.1})]
    assert what_to_show(llm) == (["eval/pass@1"], "iteration")
    images = [made("grpo", top1=0.1)]
    assert what_to_show(images) == (["eval/top1", "eval/pass@1", "eval/pass@128"], "step")


def test_a_report_shows_what_its_tasks_end_with(tmp_path):
    for name, metric in (("one", "eval/reward"), ("two", "eval/reward"), ("three", "eval/pass@1")):
        config = {"headline": {"metric": metric, "label": "held-out"}}
        last = {"eval/reward": 0.5, "eval/pass@1": 0.25}
        write_run(tmp_path / name, "grpo", 0, last=last, rows=[{"iteration": 1, "eval/reward": 0.5}], config=config)
    runs = find_runs(str(tmp_path / "*"))
    assert [run.headline for run in runs] == ["eval/reward", "eval/pass@1", "eval/reward"]
    assert what_to_show([runs[0], runs[2]])[0] == ["eval/reward"]
    assert what_to_show(runs)[0] == ["eval/reward", "eval/pass@1"]
    assert what_to_show(runs, metrics="eval/pass@1")[0] == ["eval/pass@1"]


def test_metrics_and_x_of_ones_own():
    rows = [{"step": 3, "iteration": 1, "reward/mean": 0.5}]
    runs = [made("grpo", top1=0.1, rows=rows), made("maxrl")]
    assert what_to_show(runs, metrics="reward/mean", x="iteration") == (["reward/mean"], "iteration")
    assert what_to_show(runs, metrics=["eval/top1", "reward/mean"]) == (["eval/top1", "reward/mean"], "step")
    with pytest.raises(ValueError, match=r"metrics: no run has eval/top2; there are eval/top1$"):  # its own kind
        what_to_show(runs, metrics=["eval/top1", "eval/top2"])
    with pytest.raises(
        ValueError, match=r"has objective; there are eval/top1, iteration, reward/mean, seconds, seed, step$"
    ):
        what_to_show(runs, metrics="objective")
    with pytest.raises(ValueError, match=r"x=epoch: no row has it; there are iteration, step$"):
        what_to_show(runs, x="epoch")


def test_runs_without_any_metric_of_the_domain():
    with pytest.raises(
        ValueError, match=r"no run has eval/top1 or eval/pass@1 or eval/pass@128; there are seconds, seed$"
    ):
        what_to_show([made("grpo")])
    with pytest.raises(ValueError, match=r"no run has eval/pass@1; there are eval/pass@2$"):
        what_to_show([made("grpo", domain="llm", **{"eval/pass@2/last": 0.1, "eval/pass@1/first": 0.1})])


def test_runs_that_ended_early_are_named():
    def images(done, planned):
        return made("grpo", settings={"steps": planned}, step=done, iterations=1)

    def llm(done, planned):
        return made("grpo", settings={"iterations": planned, "steps": 99}, step=1, iterations=done, domain="llm")

    assert unfinished([images(100, 100), images(40, 100), images(101, 100)]) == ["grpo-0 (40 of 100 steps)"]
    assert unfinished([llm(80, 80), llm(79, 80)]) == ["grpo-0 (79 of 80 iterations)"]
    assert unfinished([made("grpo", step=3)]) == []  # what was planned is unknown

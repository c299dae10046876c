"""Command lines in this process: what a run leaves behind, and mistakes that end one before any work."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import yaml
from places import TOYS

KEYS = {"domain", "task", "objective", "seed", "iterations", "seconds", "samples"}


def metrics_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_leaves_its_records(cli, quick, tmp_path):
    ended = cli(*quick, "run_dir=here", "objective=maxrl", "seed=3", "beta=0.01")
    assert not ended.code, ended
    folder = tmp_path / "here"
    summary = json.loads((folder / "summary.json").read_text())
    assert {name: summary[name] for name in ("domain", "task", "objective", "seed", "iterations")} == {
        "domain": "llm",
        "task": "letters",
        "objective": "maxrl",
        "seed": 3,
        "iterations": 2,
    }
    assert set(summary) >= KEYS
    assert {"eval/pass@1/first", "eval/pass@1/last", "eval/samples", "reward/mean", "kl/mean"} <= set(summary)
    assert (summary["eval/samples"], summary["step"], summary["samples"]) == (8, 4, 32)
    rows = metrics_of(folder)
    assert [(row["iteration"], row["step"]) for row in rows] == [(0, 0), (1, 2), (2, 4)]
    assert summary["reward/mean"] == rows[-1]["reward/mean"]
    with (folder / "metrics.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [{name: float(v) for name, v in row.items() if v} for row in table] == rows
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["seed"] == 3
    assert set(provenance) >= {"git", "versions", "host", "command", "arguments"}
    assert "objective=maxrl" in provenance["arguments"]
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert (config["seed"], config["objective"]["_target_"].rpartition(".")[2]) == (3, "maxrl_advantages")
    assert "${" not in (folder / "config.yaml").read_text()
    assert sorted(path.name for path in (folder / "samples").iterdir()) == ["iteration-000001-rank-0.jsonl"]
    assert [path.suffix for path in (folder / "plots").iterdir()] == [".png"]
    assert len(list((folder / "checkpoints").glob("*.ckpt"))) == 1
    assert "done: held-out pass@1" in ended.output


def test_a_run_names_its_own_folder(cli, quick, tmp_path):
    ended = cli(*quick, "iterations=1", "seed=4")
    (folder,) = (tmp_path / "runs/llm/letters/softmax_grpo").iterdir()
    assert folder.name.startswith("4-20")
    assert f"run folder: runs/llm/letters/softmax_grpo/{folder.name}" in ended.output


def test_a_folder_holds_one_run(cli, quick, tmp_path):
    cli(*quick, "iterations=1", "run_dir=here")
    before = metrics_of(tmp_path / "here")
    ended = cli(*quick, "iterations=1", "run_dir=here", "seed=1")
    assert ended.code == "error: run_dir=here holds a run already; resume=here goes on with it"
    assert metrics_of(tmp_path / "here") == before


def test_a_sweep_leaves_folders_that_compare(cli, quick, tmp_path):
    """Two objectives and two seeds. Runs of one seed begin alike: the same questions, samples and rewards."""
    ended = cli("-m", *quick, "iterations=1", "objective=grpo,softmax_grpo", "seed=0,1")
    assert not ended.code, ended
    runs = {}
    for folder in (tmp_path / "runs/llm/letters").glob("*/*"):
        summary = json.loads((folder / "summary.json").read_text())
        runs[summary["objective"], summary["seed"]] = summary
        assert (folder.parent.name, folder.name[:2]) == (summary["objective"], f"{summary['seed']}-")
    assert set(runs) == {(objective, seed) for objective in ("grpo", "softmax_grpo") for seed in (0, 1)}
    assert len({frozenset(summary) for summary in runs.values()}) == 1
    for name in ("eval/pass@1/first", "reward/mean", "length/mean"):
        assert all(runs["grpo", seed][name] == runs["softmax_grpo", seed][name] for seed in (0, 1))
    assert runs["grpo", 0]["reward/mean"] != runs["grpo", 1]["reward/mean"]
    assert runs["grpo", 0]["advantage/max"] != runs["softmax_grpo", 0]["advantage/max"]


# ---- mistakes ----


def nothing_was_done(ended, tmp_path):
    """One line, and no folder."""
    assert isinstance(ended.code, str), ended
    assert ended.code.startswith("error: ")
    assert "\n" not in ended.code
    return list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("objectiv=grpo", "unknown objectiv; did you mean objective?"),
        ("iteration=3", "unknown iteration; did you mean iterations?"),
        ("objective=grop", "unknown objective=grop; did you mean objective=grpo?"),
        ("objective=softmax_grpo,grop", "unknown objective=grop; did you mean objective=grpo?"),
        ("tau=0.2", "unknown tau; did you mean objective.tau?"),
        ("objective.tua=0.2", "unknown objective.tua; did you mean objective.tau?"),
        ("sampler=zzz", "unknown sampler=zzz; there are hf, vllm, vllm_server"),
        ("reward=similarty", "unknown reward=similarty; did you mean reward=similarity?"),
        ("experiment=gsm8k_1.5b", "unknown experiment=gsm8k_1.5b; did you mean experiment=paper/gsm8k_1.5b?"),
        ("experiment=paper/gsm8k_7b", "unknown experiment=paper/gsm8k_7b; did you mean experiment=paper/gsm8k_3b?"),
        ("data=glyphs", "Could not override 'data'. No match in the defaults list. The chosen domain or task has no "),
        ("task.data_file=x", "unknown task.data_file; did you mean task.data?"),
        (
            "callbacks.evaluation.every=2",
            "unknown callbacks.evaluation.every; there are callbacks.evaluation.every_n_iterations, ",
        ),
        ("zzz=1", "unknown zzz; there are "),
        ("seed=[0,1", "cannot read seed=[0,1: "),
    ],
)
def test_unknown_names(cli, tmp_path, argument, message):
    ended = cli("domain=llm", "task=countdown", argument)
    assert nothing_was_done(ended, tmp_path)
    assert ended.code.startswith(f"error: {message}")


def test_a_knob_of_another_objective(cli, tmp_path):
    ended = cli("objective=grpo", "objective.tau=0.2")
    assert nothing_was_done(ended, tmp_path)
    assert ended.code.startswith("error: unknown objective.tau; there are objective.ddof, objective.eps")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["objective.tau=-0.1"], "objective: tau must be > 0 and finite, got -0.1"),
        (
            ["objective=pass_at_k", "objective.k=5"],
            "objective: k must be an integer from 1 to samples per group = 4, got 5",
        ),
        (["samples_per_group=0"], "samples_per_group must be >= 1, got 0"),
        (["prompts_per_iteration=7", "minibatches=2"], "prompts_per_iteration must be a multiple of minibatches x"),
        (["micro_batch_size=0"], "micro_batch_size must be >= 1, got 0"),
        (["reduction=foo"], "Interpolation key 'reductions.foo' not found"),
        (["kl=foo"], "kl must be one of full, k1, k2, k3, none, got 'foo'"),
        (["beta=-1"], "beta must be >= 0, got -1"),
        (["clip_low=2"], "clip_low must lie in [0, 1], got 2"),
        (["temperature=0"], "temperature must be > 0, got 0"),
        (["max_new_tokens=0"], "max_new_tokens must be >= 1, got 0"),
        (["learning_rate=-1"], "optimizer: Invalid learning rate: -1"),
        (["objective=cross_entropy"], "objective=cross_entropy serves domain=imagenet only"),
        (["model.path=./nowhere"], "model.path=./nowhere: no such folder"),
        (["resume=nowhere"], "resume=nowhere: no provenance.json there"),
        (["task=countdown", "task.target=100000"], "task=countdown has 0 training and 0 held-out problems"),
        (["task=countdown", "task.data=none.jsonl"], "task.data=none.jsonl: no such file"),
        (["trainer.accelerator=abacus"], "You selected an invalid accelerator name"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_values_that_cannot_be(cli, quick, tmp_path, arguments, message):
    keys = {argument.partition("=")[0] for argument in arguments}
    ended = cli(*(a for a in quick if a.partition("=")[0] not in keys), *arguments)
    assert nothing_was_done(ended, tmp_path)
    assert message in ended.code


# ---- one's own objective ----

HEAD = '''
"""Rewards against a fixed bar."""

from sgrpo_lightning.heads import advantage_head


@advantage_head()
def over_the_bar_advantages(groups, *, bar):
    return groups.rewards - bar
'''


@pytest.mark.parametrize("how", ["--config-dir", "-cd", "hydra.searchpath"])
def test_a_new_objective_is_two_new_files(cli, quick, tmp_path, monkeypatch, how):
    """A function somewhere on the path and a YAML file that names it: nothing of this project is edited."""
    own = tmp_path / "own"
    (own / "conf" / "objective").mkdir(parents=True)
    (own / "over_the_bar.py").write_text(HEAD)
    (own / "conf" / "objective" / "over_the_bar.yaml").write_text(
        "_target_: over_the_bar.over_the_bar_advantages\n_partial_: true\nbar: 0.5\n"
    )
    monkeypatch.syspath_prepend(str(own))
    quick = [argument for argument in quick if not argument.startswith("--config-dir")]
    flag = [f"hydra.searchpath=[file://{own / 'conf'}]", f"--config-dir={TOYS / 'conf'}"]
    if how != "hydra.searchpath":
        shutil.copytree(TOYS / "conf", own / "conf", dirs_exist_ok=True)
        flag = [f"{how}={own / 'conf'}"] if how.startswith("--") else [how, str(own / "conf")]
    ended = cli(*flag, *quick, "objective=over_the_bar", "objective.bar=0.25", "iterations=1", "run_dir=here")
    assert not ended.code, ended
    summary = json.loads(Path("here/summary.json").read_text())
    assert (summary["objective"], summary["iterations"]) == ("over_the_bar", 1)
    assert summary["advantage/max"] <= 0.75
    assert summary["grad_norm/max"] > 0
    ended = cli("resume=here", "iterations=2")
    assert not ended.code, ended
    assert json.loads(Path("here/summary.json").read_text())["iterations"] == 2
    ended = cli(*flag, "objective=over_the_bra")
    assert ended.code == "error: unknown objective=over_the_bra; did you mean objective=over_the_bar?"

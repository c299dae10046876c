"""Runs of the image domain from the command line: records, exact resume, mistakes."""

import csv
import json

import pytest
import torch
from test_resume import checkpoint, rows, start, wait_for_iteration  # noqa: F401 - a fixture among them

QUICK = [
    "domain=imagenet",
    "data=fake",
    "trainer.accelerator=cpu",
    "data.train_size=64",
    "data.eval_size=20",
    "model.widths=[8,16]",
    "steps=8",
    "steps_per_iteration=2",
    "batch_size=16",
    "callbacks.evaluation.every_n_iterations=1",
    "logger.tensorboard=null",
]
CLOCK = ("images_per_second", "elapsed")


def test_a_run_leaves_its_records(cli, tmp_path):
    ended = cli(*QUICK, "run_dir=here", "objective=maxrl", "seed=3", "samples_per_group=4")
    assert not ended.code, ended
    folder = tmp_path / "here"
    summary = json.loads((folder / "summary.json").read_text())
    expected = {"domain": "imagenet", "task": "fake", "objective": "maxrl", "seed": 3, "iterations": 4, "step": 8}
    assert {name: summary[name] for name in expected} == expected
    assert summary["samples"] == 8 * 16 * 4
    held_out = {"eval/top1/first", "eval/top1/last", "eval/top5/last", "eval/pass@1/last", "eval/pass@1024/last"}
    assert held_out | {"eval/cross_entropy/last", "seconds", "reward/mean", "all_fail/frac"} <= set(summary)
    logged = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [(row["iteration"], row["step"]) for row in logged] == [(0, 0), (1, 2), (2, 4), (3, 6), (4, 8)]
    with (folder / "metrics.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [{name: float(v) for name, v in row.items() if v} for row in table] == logged
    assert {path.suffix for path in (folder / "plots").iterdir()} == {".png"}
    assert "done: held-out top-1" in ended.output


def test_glyphs_are_the_default_and_come_with_a_contact_sheet(cli, tmp_path):
    few = ["data.classes=8", "data.train_per_class=4", f"data.cache_dir={tmp_path / 'cache'}", "steps=2"]
    ended = cli("domain=imagenet", *QUICK[5:], *few, "run_dir=here")
    assert not ended.code, ended
    assert (tmp_path / "here" / "plots" / "contact_sheet.png").stat().st_size > 1000
    summary = json.loads((tmp_path / "here" / "summary.json").read_text())
    assert (summary["task"], summary["objective"]) == ("glyphs", "softmax_grpo")
    assert "eval_unseen_style/top1/last" in summary


@pytest.mark.parametrize(
    "objective",
    [
        "objective=cross_entropy",
        "objective=exact_softmax_grpo",
        "objective=exact_reinforce",
        "objective=grpo loss=population",
        "objective=grpo loss.failures=expected",
        "objective=pass_at_k",
        "objective=softmax_grpo_adaptive",
    ],
)
def test_every_kind_of_objective_runs(cli, tmp_path, objective):
    ended = cli(*QUICK, "steps=2", *objective.split(), "run_dir=here")
    assert not ended.code, ended
    assert json.loads((tmp_path / "here" / "summary.json").read_text())["iterations"] == 1


def test_a_folder_of_pictures_with_a_broken_one(cli, tmp_path):
    """Random crops read by two processes; the broken file is said once, counted, and costs its row alone."""
    from PIL import Image

    generator = torch.Generator().manual_seed(0)
    for split in ("train", "val"):
        for name, colour in (("n01", 60), ("n02", 180)):
            (folder := tmp_path / "images" / split / name).mkdir(parents=True)
            for number in range(4):
                pixels = colour + torch.randint(0, 60, (40, 50, 3), generator=generator)
                Image.fromarray(pixels.to(torch.uint8).numpy()).save(folder / f"{number}.JPEG")
    broken = tmp_path / "images" / "train" / "n02" / "3.JPEG"
    broken.write_bytes(broken.read_bytes()[:200])
    sizes = ["data.image_size=32", "data.resize=36", "datamodule.num_workers=2", "model=resnet18", "model.stem=small"]
    kept = [a for a in QUICK if not a.startswith(("data", "model"))]
    ended = cli(*kept, "data=imagenet", f"data.path={tmp_path / 'images'}", *sizes, "warmup_steps=2", "run_dir=here")
    assert not ended.code, ended
    assert ended.output.count("skipped, cannot be read as an image") == 1
    assert str(broken) in ended.output
    summary = json.loads((tmp_path / "here" / "summary.json").read_text())
    assert summary["unreadable/sum"] == 2 * 16 / 8  # two steps of 16 draws are four passes over 8 images
    assert summary["eval/top1/last"] >= 0.5


STATEFUL = ["warmup_steps=2", "model.norm=batch", "data.train_size=40"]  # a pass ends within an iteration


def assert_identical(one, other):
    a, b = checkpoint(one), checkpoint(other)
    assert a["global_step"] == b["global_step"] == 8
    assert all(torch.equal(a["state_dict"][name], b["state_dict"][name]) for name in a["state_dict"])
    moments = [state["optimizer_states"][0]["state"] for state in (a, b)]
    assert moments[0].keys() == moments[1].keys() != set()
    for index in moments[0]:
        assert torch.equal(moments[0][index]["momentum_buffer"], moments[1][index]["momentum_buffer"])
    assert a["lr_schedulers"] == b["lr_schedulers"]
    first, second = ([{k: v for k, v in row.items() if k not in CLOCK} for row in rows(run)] for run in (one, other))
    assert first == second


def test_after_sigkill(cli, start, tmp_path):  # noqa: F811
    ended = cli(*QUICK, *STATEFUL, "run_dir=whole")
    assert not ended.code, ended
    process = start(*QUICK, *STATEFUL, "run_dir=killed")
    wait_for_iteration(process, tmp_path / "killed", 2)
    process.kill()
    process.wait()
    ended = cli("resume=killed")
    assert not ended.code, ended
    assert_identical(tmp_path / "whole", tmp_path / "killed")


def test_a_run_on_two_devices(cli, environment, tmp_path, monkeypatch):
    for name in ("PYTHONPATH", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, environment[name])
    ended = cli(*QUICK, "steps=4", "run_dir=here", "trainer.devices=2", "strategy=fsdp2")
    assert not ended.code, ended
    summary = json.loads((tmp_path / "here" / "summary.json").read_text())
    assert (summary["iterations"], summary["step"], summary["samples"]) == (2, 4, 4 * 16 * 16)
    ended = cli("resume=here", "steps=8")
    assert not ended.code, ended
    assert json.loads((tmp_path / "here" / "summary.json").read_text())["step"] == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["objective.tau=-0.1"], "tau must be > 0 and finite, got -0.1"),
        (["objective=pass_at_k", "objective.k=17"], "k must be an integer from 1 to samples per group = 16, got 17"),
        (["samples_per_group=0"], "samples_per_group must be >= 1, got 0"),
        (["steps=7"], "steps must be a multiple of steps_per_iteration = 2, got 7"),
        (["micro_batch_size=5"], "micro_batch_size must divide batch_size = 16, got 5"),
        (["learning_rate=-1"], "optimizer: Invalid learning rate: -1"),
        (["model.norm=layer"], "model.norm must be one of batch, group, got 'layer'"),
        (["model=tiny"], "model=tiny serves domain=llm only"),
        (["objective=grpo", "loss=exact"], "loss=exact needs a function of logits and labels, not a head"),
        (["objective=cross_entropy", "loss=sampled_labels"], "sampled labels need a head, rewards -> advantages"),
        (["loss.failures=guessed"], "failures must be one of"),
        (["data=imagenet"], "no images at path=./data/imagenet: put the images there in one of two forms"),
        (["data=imagenet"], "folders: ./data/imagenet/train/<class>/*.JPEG"),
        (["data=glyphs", "data.classes=99999"], "the fonts have 2,182 distinct glyphs; got classes=99,999"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_values_that_cannot_be(cli, tmp_path, arguments, message):
    keys = {argument.partition("=")[0] for argument in arguments}
    other = {"data": ("data", "model"), "model": ("model",)}  # whose knobs another choice may not have
    left_out = tuple(name for key in keys for name in other.get(key, ())) or ("-",)
    kept = [a for a in QUICK if a.partition("=")[0] not in keys and not a.startswith(left_out)]
    ended = cli(*kept, *arguments)
    assert isinstance(ended.code, str), ended
    assert ended.code.startswith("error: ")
    assert message in ended.code
    assert list(tmp_path.iterdir()) == []


def test_a_classifier_is_no_policy_of_the_language_domain(cli, tmp_path):
    ended = cli("domain=llm", "model=resnet50")
    assert ended.code == "error: model=resnet50 serves domain=imagenet only"

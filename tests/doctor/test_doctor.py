"""`python doctor.py`, from the command line to the exit code."""

import shutil
from collections import namedtuple

LINES = (
    *("data", "prompts", "template", "disk", "ranks", "golds", "answers", "grader", "sampler", "gradient"),
    *("soak", "memory", "speed"),
)
SGD = ["module.optimizer._target_=torch.optim.SGD", "~module.optimizer.betas"]


def test_a_healthy_run(examine, quick, tmp_path):
    """Every check has a line, none fails, and nothing is left behind."""
    code, report = examine(*quick, "run_dir=here", "sampler._target_=sick.CopySampler")
    assert code == 0, report.text
    assert tuple(report.lines) == LINES
    assert report.status("failed") == []
    assert report.status("skipped") == ["ranks"]
    assert "bit-equal" in report.lines["soak"]
    assert list(tmp_path.iterdir()) == []


def test_what_a_sick_run_is_told(examine, quick, monkeypatch):
    """A sampler that keeps its first weights, a grader that rejects golds, a stubborn optimizer, and a full disk."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 1000))
    sick = ["sampler._target_=sick.CopySampler", "+sampler.syncs=1", "task._target_=sick.RejectingTask"]
    optimizer = [SGD[1], "module.optimizer._target_=sick.Stubborn"]
    code, report = examine(*quick, *sick, *optimizer)
    assert code == 1
    assert report.status("failed") == ["disk", "golds", "sampler", "soak"]
    for name, advice in {
        "disk": "callbacks.checkpoint.save_top_k",
        "golds": "0.0% of 8 demonstrations are right",
        "sampler": "the sampler keeps old weights",
        "soak": "weights changed at a learning rate of 0",
    }.items():
        assert advice in report.lines[name]
        assert "->" in report.lines[name]
    assert "4 failed" in report.text.splitlines()[-1]


def test_a_grader_that_raises(examine, quick):
    """It fails two checks; without any signal the gradient is that of made-up advantages."""
    code, report = examine(*quick, "task._target_=sick.RaisingTask")
    assert code == 1
    assert report.status("failed") == ["golds", "grader"]
    assert "the grader raises" in report.lines["grader"]
    assert "advantages are made up" in report.lines["gradient"]
    assert "no group had signal" in report.lines["soak"]


def test_a_run_that_cannot_begin(examine, quick):
    """The reason is one line, and what it keeps from being checked is named."""
    code, report = examine(*quick, "sampler._target_=sick.SamplerWithoutServer")
    assert code == 1
    assert report.status("failed") == ["start"]
    assert "RuntimeError: no server answers" in report.lines["start"]
    assert report.status("skipped") == list(LINES[4:])
    assert report.status("ok") == list(LINES[:4])


def test_settings_that_cannot_be_built(examine, quick):
    """They end it with the line that train.py ends with."""
    code, report = examine(*quick, "temperature=0")
    assert code == "error: temperature must be > 0, got 0"
    assert not report.lines


def test_two_processes(examine, quick, environment, monkeypatch, tmp_path):
    """Ranks are compared, a failure of a check is the exit code, and torchrun adds no words of its own."""
    for name in ("PYTHONPATH", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, environment[name])
    settings = ["trainer.devices=2", "strategy=ddp", "beta=0.01", "+task.raises_on=e"]
    code, report = examine(*quick, *settings, "run_dir=here")
    assert code == 1, report.text + report.err
    assert set(report.status("failed")) == {"grader"}, report.text
    assert tuple(report.lines) == LINES
    assert "2 processes" in report.lines["ranks"]
    assert "2 seeds; 0 prompts or images on two of them" in report.lines["ranks"]
    assert "summed over ranks" in report.lines["gradient"]
    assert "ChildFailedError" not in report.err
    assert list(tmp_path.iterdir()) == []


IMAGES = ["domain=imagenet", "data=fake", "trainer.accelerator=cpu", "data.train_size=64", "data.eval_size=32"]


def test_images(examine, tmp_path):
    """Group normalisation looks at one image alone; a learning rate of 0 leaves it as it is."""
    code, report = examine(*IMAGES, "model.norm=group", "steps=20", "micro_batch_size=8")
    assert code == 0, report.text
    assert tuple(report.lines) == ("data", "disk", "ranks", "gradient", "soak", "memory", "speed")
    assert report.status("skipped") == ["ranks"]
    assert "0 of 96 that were tried cannot be read" in report.lines["data"]
    assert "images/s" in report.lines["speed"]
    assert list(tmp_path.iterdir()) == []


def test_batch_normalisation(examine):
    """It makes the gradient depend on the micro-batch, and its running statistics are no weights that changed."""
    code, report = examine(*IMAGES)
    assert code == 0, report.text
    assert report.status("skipped") == ["ranks", "gradient"]
    assert "batch normalisation in 4 layers" in report.lines["gradient"]


def test_supervised_training(examine, quick, tmp_path):
    """It has the checks that need no reward."""
    code, report = examine("--config-name=sft", "task=letters", quick[0], "trainer.accelerator=cpu", "steps=20")
    assert code == 0, report.text
    assert report.status("failed") == []
    assert tuple(report.lines) == (
        *("data", "prompts", "template", "golds", "disk", "ranks", "soak", "memory", "speed"),
    )
    assert list(tmp_path.iterdir()) == []

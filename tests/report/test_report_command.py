"""`python report.py`, from its configuration to its files."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from report_runs import write_run

from sgrpo_lightning.run import ConfigurationError, report

CONF = Path(__file__).parents[2] / "conf"


def reported(*overrides):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("report", overrides=list(overrides))
    report(cfg)


@pytest.fixture
def images(tmp_path):
    rows = [{"step": step, "iteration": step, "eval/top1": step / 10, "eval/top5": step / 5} for step in range(4)]
    for seed in (0, 1):
        last = {"eval/top1": 0.3, "eval/top5": 0.6}
        write_run(tmp_path / f"runs/a/{seed}", "grpo", seed, last=last, rows=rows, domain="imagenet")
    return tmp_path


def test_the_domain_decides_where_nothing_is_asked(images, capsys):
    reported(f"runs={images}/runs/**", f"out={images}/out")
    assert {path.name for path in (images / "out").iterdir()} == {"table.md", "table.csv", "curves.png"}
    text = capsys.readouterr().out
    assert (images / "out" / "table.md").read_text() in text
    assert "| `grpo` | 2 | 0.300 ± 0.000 |" in text


def test_what_is_asked_for_is_passed_on(images, monkeypatch):
    seen = {}
    monkeypatch.setattr(
        "sgrpo_lightning.run.write_report", lambda runs, out, **more: seen.update(out=out, **more) or ""
    )
    asked = ["metrics=[eval/top5,eval/top1]", "x=iteration", "labels={eval/top1: accuracy, grpo: GRPO}"]
    reported(f"runs={images}/runs/**", f"out={images}/out", *asked)
    labels = {"eval/top1": "accuracy", "grpo": "GRPO"}
    assert seen == {"out": images / "out", "metrics": ["eval/top5", "eval/top1"], "x": "iteration", "labels": labels}


def test_mistakes_end_in_one_line(images):
    with pytest.raises(ConfigurationError, match="no run with a summary"):
        reported(f"runs={images}/nothing/**")
    with pytest.raises(ConfigurationError, match="no run has eval/top2; there are eval/top1, eval/top5"):
        reported(f"runs={images}/runs/**", "metrics=eval/top2")
    write_run(images / "runs/b/0", "grpo", 0, domain="llm")
    with pytest.raises(ConfigurationError, match="one domain, got imagenet and llm"):
        reported(f"runs={images}/runs/**")

"""docs/metrics.md, and the commands, settings and files of the README, against the configuration and a run."""

import json
import re
import shlex
from pathlib import Path

import pytest
from docs_pages import CONF, METRICS, PAGES, README, TINY, code, table, written
from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from sgrpo_lightning.overrides import check_command_line, resumed_command_line

PARTS = "## Rewards of several parts, and texts"
ENDINGS = {"mean": "mean", "frac": "mean", "sum": "sum", "max": "largest", "min": "smallest"}


def logged(folder: Path) -> set[str]:
    return {name for line in (folder / "metrics.jsonl").read_text().splitlines() for name in json.loads(line)}


def test_a_run_logs_what_the_page_lists_and_leaves_what_the_readme_lists(cli, tmp_path):
    sizes = ["iterations=1", "prompts_per_iteration=2", "samples_per_group=2", "max_new_tokens=2"]
    sizes += ["beta=0.1", "importance=token"]
    ended = cli(*TINY, *sizes, "callbacks.evaluation.max_questions=1", "run_dir=run")
    assert not ended.code, ended.output
    assert logged(tmp_path / "run") == set(table(METRICS[: METRICS.index(PARTS)], "Metric"))
    files = {name for row in table(README, "File", "Holds").values() for name in code(row["File"])}
    assert {f"{path.name}/" if path.is_dir() else path.name for path in (tmp_path / "run").iterdir()} == files


def test_a_run_on_texts_adds_what_the_page_lists(cli, tmp_path):
    poems = [{"prompt": f"A poem of {n} words.", "poem": "snow " * n} for n in range(1, 40)]
    (tmp_path / "poems.jsonl").write_text("".join(json.dumps(poem) + "\n" for poem in poems))
    sizes = ["iterations=1", "prompts_per_iteration=2", "samples_per_group=2", "max_new_tokens=2"]
    sizes += ["beta=0.1", "importance=token"]
    ended = cli("task=poetry", *TINY, *sizes, "callbacks.evaluation.max_questions=1", "run_dir=run")
    assert not ended.code, ended.output
    start, end = METRICS.index(PARTS), METRICS.index("## Image classification")
    assert logged(tmp_path / "run") == set(table(METRICS[:start], "Metric")) | set(table(METRICS[start:end], "Metric"))


def test_image_classification_logs_what_the_page_lists(cli, tmp_path):
    sizes = ["steps=2", "steps_per_iteration=1", "batch_size=4", "data.train_size=8", "data.eval_size=4"]
    ended = cli("domain=imagenet", "data=fake", "trainer.accelerator=cpu", *sizes, "run_dir=run")
    assert not ended.code, ended.output
    page = METRICS[METRICS.index("## Image classification") : METRICS.index("## Supervised training")]
    shared = {"step", "iteration", "elapsed", "learning_rate", "grad_norm/mean", "grad_norm/max"}
    assert logged(tmp_path / "run") == shared | set(table(page, "Metric"))


def test_supervised_training_logs_what_the_page_lists(cli, tmp_path):
    sizes = ["steps=2", "batch_size=2", "micro_batch_size=2", "trainer.log_every_n_steps=1", "callbacks.export=null"]
    ended = cli("--config-name=sft", *TINY[1:], *sizes, "run_dir=run")
    assert not ended.code, ended.output
    supervised = table(METRICS[METRICS.index("## Supervised training") :], "Metric")
    assert logged(tmp_path / "run") == {"step", "elapsed", *supervised}


def test_a_metric_combines_as_its_name_says():
    for name, row in table(METRICS, "Metric").items():
        ending = name.rpartition("/")[2]
        if "/" in name and ending in ENDINGS:
            assert row["Combines as"] == ENDINGS[ending], name


def commands() -> list[str]:
    """Every command of every page, without comments."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES).replace("\\\n", " ")
    lines = re.findall(r"python (?:train|doctor|report)\.py[^`\n#]*", text)
    lines += [f"python train.py {arguments}" for arguments in re.findall(r'make train ARGS="([^"]*)"', text)]
    return sorted({line.strip() for line in lines})


def test_the_commands_are_all_found():
    found = "\n".join(commands())
    for part in (
        "-m objective=reinforce,grpo",
        "resume=",
        "model.lora=",
        "logger=wandb",
        "python doctor.py task=",
        "sampler=vllm_server",
        "--config-name sft",
        "task=gsm8k",
        "--config-dir=my_conf task=capitals",
    ):
        assert part in found
    assert len(commands()) >= 10


def jobs(overrides: list[str]) -> list[list[str]]:
    """The overrides of each run of a sweep."""
    parsed = OverridesParser.create().parse_overrides(overrides)
    return [job for batch in BasicSweeper.split_arguments(parsed, max_batch_size=None) for job in batch]


@pytest.mark.parametrize("command", commands())
def test_each_command_composes(command, tmp_path, monkeypatch):
    """As train.py would: the check of the keys, then each job of a sweep, once for all its seeds."""
    monkeypatch.chdir(tmp_path)
    script, *arguments = shlex.split(command)[1:]
    for folder in re.findall(r"resume=(\S+)", command):
        Path(folder).mkdir(parents=True)
        (Path(folder) / "provenance.json").write_text(json.dumps({"arguments": ["domain=llm", "objective=grpo"]}))
    arguments = resumed_command_line(arguments, holds_checkpoint=lambda _: False)
    is_sft = "sft" in arguments or "--config-name=sft" in arguments
    name = "sft" if is_sft else {"report.py": "report"}.get(script, "train")
    overrides = [a for a in arguments if "=" in a and not a.startswith("-")]
    search = f"hydra.searchpath=['file://{written(tmp_path / 'new')}']"
    check_command_line([f"--config-name={name}", search, *overrides], str(CONF), name)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for job in {tuple(o for o in job if not o.startswith("seed=")) for job in jobs(overrides)}:
            assert compose(name, overrides=[search, *job])


def test_the_sweep_of_the_readme_is_twelve_runs():
    sweep = next(command for command in commands() if "reinforce,grpo,softmax_grpo,maxrl" in command)
    assert len(jobs([argument for argument in shlex.split(sweep)[2:] if "=" in argument])) == 4 * 3


def test_the_settings_of_the_readme_are_the_defaults():
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("train", overrides=["model=qwen2.5-1.5b"])
    for row in table(README, "Key", "Default").values():
        keys, values = code(row["Key"]), row["Default"].replace("`", "").split(", ")
        for key, value in zip(keys, values, strict=True):
            shown = OmegaConf.select(cfg, key)
            if "<" not in key and key not in ("objective", "task", "reward", "task.data"):
                assert shown == OmegaConf.create(f"value: {value}").value, key

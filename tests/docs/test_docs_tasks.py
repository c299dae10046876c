"""docs/tasks.md: its table of tasks, its example answers, and the task of one's own."""

import re

import pytest
from docs_pages import CONF, ROOT, code, table
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf

from sgrpo_lightning.rewards import Answers
from sgrpo_lightning.tasks.countdown import Problem

PAGE = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
TASKS = sorted(path.stem for path in (CONF / "task").glob("*.yaml"))


def settings(task):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", overrides=[f"task={task}", "model=qwen2.5-1.5b"])


def test_the_table_of_tasks():
    rows = table(PAGE, "Task", "Data")
    assert sorted(rows) == TASKS
    for task, row in rows.items():
        cfg = settings(task)
        assert float(row["`tau`"]) == cfg.objective.tau
        reward = OmegaConf.load(CONF / "reward" / f"{code(row['Reward'])[0]}.yaml")
        assert cfg.reward == reward
        if cfg.task.data:
            assert cfg.task.data == code(row["Data"])[0]


@pytest.mark.parametrize("task", TASKS)
def test_the_example_answer_earns_1(task):
    row = table(PAGE, "Task", "Completion")[task]
    cfg = settings(task)
    asked = re.sub(r"\s+", " ", cfg.task.instruction)
    assert row["Instruction"].replace("`", "") in asked
    gold, (completion,) = code(row["Checked against"])[0], code(row["Completion"])
    if task == "countdown":
        *numbers, target = map(int, re.findall(r"\d+", gold))
        gold = Problem(tuple(numbers), target)
    (outcome,) = instantiate(cfg.reward, _convert_="all")(Answers([completion], [gold], references=[str(gold)]))
    assert outcome.status == "ok"
    assert outcome.reward == pytest.approx(1, abs=1e-12)


def test_a_task_of_ones_own(cli, tmp_path, monkeypatch, policy_folder):
    """The files of the page, as it says, with more capitals."""
    folder = tmp_path / "my_conf" / "task"
    folder.mkdir(parents=True)
    rows, _ = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL), None
    lines = rows[0].splitlines()
    more = [lines[0].replace("France", f"country {n}") for n in range(30)]
    (tmp_path / "capitals.jsonl").write_text("\n".join([*lines, *more]) + "\n")
    first, second = [block for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "data: capitals" in block]
    (tmp_path / "capitals.py").write_text(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0])
    monkeypatch.syspath_prepend(str(tmp_path))
    sizes = ["iterations=1", "prompts_per_iteration=2", "samples_per_group=2", "max_new_tokens=2"]
    quick = [*sizes, f"model.path={policy_folder}", "trainer.accelerator=cpu", "callbacks.evaluation.max_questions=1"]
    for number, yaml in enumerate((first, second)):
        (folder / "capitals.yaml").write_text(yaml)
        ended = cli("--config-dir=my_conf", "task=capitals", *quick, f"run_dir=run{number}")
        assert not ended.code, ended.output
        assert "capitals.jsonl: " in ended.output

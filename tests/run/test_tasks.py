"""Every task runs from the command line on small files in the columns of its hub data set, and so does one's own."""

import json
import math
import re
from contextlib import nullcontext
from pathlib import Path
from typing import get_args

import pytest
import task_data
from places import ROOT

from sgrpo_lightning.rewards import Status
from sgrpo_lightning.tasks import QuestionTask, answers_to
from sgrpo_lightning.tasks.split import REPEATED

TASKS = sorted(path.stem for path in (ROOT / "conf" / "task").glob("*.yaml"))


@pytest.fixture(autouse=True)
def no_cache_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setattr("sgrpo_lightning.tasks.audit.default_cache_dir", lambda: tmp_path / "cache")


@pytest.fixture
def small(quick):
    """A run of two iterations with a random policy; the task is still to be named."""
    return [
        *(argument for argument in quick if not argument.startswith(("--config-dir", "task="))),
        "samples_per_group=2",
        "minibatches=1",
        "callbacks.evaluation.samples_per_question=1",
        "callbacks.plot=null",
        "run_dir=here",
    ]


@pytest.fixture
def data(tmp_path):
    """(task) -> the overrides that choose it, and small data for it."""
    return lambda task: [f"task={task}", *task_data.write(task, tmp_path / "data")]


def rows_of(ended, folder="here"):
    """The rows of a run that went well; every one of them trained."""
    assert not ended.code, ended
    rows = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    for row in rows[1:]:
        assert math.isfinite(row["reward/mean"])
        assert sum(row[f"{status}/frac"] for status in get_args(Status)) == pytest.approx(1)
        assert row["error/frac"] == 0
    assert len(rows) == 3
    return rows


def provenance(folder="here"):
    return json.loads((Path(folder) / "provenance.json").read_text())["data"]


@pytest.mark.parametrize("task", TASKS)
def test_every_task_runs(task, cli, small, data):
    ended = cli(*data(task), *small, "max_new_tokens=24")
    rows = rows_of(ended)
    facts = provenance()
    assert re.fullmatch("[0-9a-f]{32}", facts["fingerprint"])
    assert all(note in ended.output.splitlines() for note in facts["notes"])
    held_out = 4  # callbacks.evaluation.max_questions
    if task != "countdown":  # which says nothing: a bad row ends the run
        counts, *left_out = facts["notes"]
        train, held_out = map(int, re.search(r": (\d+) questions to train on, (\d+) held out$", counts).groups())
        found = [re.fullmatch(r"left out: (\d+) \(\d+\.\d\d%\) (.*)", note).groups() for note in left_out]
        assert train == 6
        expected = task_data.LEFT_OUT[task] | ({REPEATED: held_out} if task == "openthoughts" else {})
        assert {why: int(count) for count, why in found} == expected
    assert rows[-1]["eval/samples"] == min(4, held_out)
    assert {"eval/pass@1", "eval/reward"} <= set(rows[0])
    check_its_own_metrics(task, rows)


def check_its_own_metrics(task, rows):
    overlap = {"eval/rouge1", "eval/rouge2", "eval/rougeL", "eval/bleu"}
    assert overlap & set(rows[0]) == (overlap if task in ("meetingbank", "poetry") else set())
    for row in rows[1:]:
        if task in ("meetingbank", "poetry"):
            assert row["reward/mean"] > 0
            f1, rouge_l = row["reward/f1/mean"], row["reward/rouge_l/mean"]
            assert row["reward/mean"] == pytest.approx(0.6 * f1 + 0.4 * rouge_l, abs=1e-6)
            assert all(0 <= row[name] <= 1 for name in overlap if name in row)
        if task == "openthoughts":
            similarity, form = row["reward/similarity/mean"], row["reward/format/mean"]
            assert similarity > 0
            assert row["reward/mean"] == pytest.approx(0.65 * similarity + 0.35 * form, abs=1e-6)


def test_a_prompt_that_is_too_long_is_left_out_and_counted(cli, small, data):
    """Of all that there are: task.train_size would not always draw it."""
    arguments = [argument for argument in data("meetingbank") if not argument.startswith("task.train_size")]
    ended = cli(*arguments, *small, "max_prompt_tokens=450")
    rows_of(ended)
    assert "left out: 1 of 11 train prompts, over 450 tokens" in ended.output.splitlines()


def test_other_data_is_another_run(cli, small, data):
    chosen = data("gsm8k")
    rows_of(cli(*chosen, *small))
    before = {path: path.read_bytes() for path in Path("here").iterdir() if path.is_file()}
    ended = cli("resume=here", "iterations=3", "task.train_size=5")
    assert isinstance(ended.code, str), ended
    assert ended.code.startswith("error: resume=here: the data is not what the run began with (fingerprint ")
    assert "\n" not in ended.code
    assert {path: path.read_bytes() for path in Path("here").iterdir() if path.is_file()} == before
    ended = cli("resume=here", "iterations=3")
    assert not ended.code, ended
    assert len((Path("here") / "metrics.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize("reward", ["answer_logprob", "similarity"])
def test_another_reward(reward, cli, small, data):
    beyond = pytest.warns(UserWarning, match="rewards leave") if reward == "answer_logprob" else nullcontext()
    with beyond:
        last = rows_of(cli(*data("gsm8k"), *small, f"reward={reward}"))[-1]
    if reward == "answer_logprob":
        assert last["reward/mean"] < -10  # nats: a random policy, and references of some forty tokens
        assert last["ok/frac"] == 1
    else:
        assert 0 <= last["reward/f1/mean"] <= 1


def test_supervised_training_on_demonstrations(cli, policy_folder, data):
    ended = cli(
        *("--config-name=sft", *data("gsm8k"), "model=tiny", f"model.path={policy_folder}", "trainer.accelerator=cpu"),
        *("steps=2", "batch_size=2", "micro_batch_size=2", "trainer.log_every_n_steps=1", "run_dir=here"),
    )
    assert not ended.code, ended
    assert "6 questions to train on, 4 held out" in ended.output
    assert (Path("here") / "policy" / "model.safetensors").is_file()


# ---- one's own task: a YAML file, a file of rows, and perhaps a function ----
# Not under the name that docs/tasks.md gives to its example: Python imports a module once.

RIVERS = """
_target_: sgrpo_lightning.tasks.QuestionTask
data: rivers.jsonl
"""
WITH_FUNCTION = """
grader:
  _target_: sgrpo_lightning.rewards.FunctionGrader
  function: {_target_: hydra.utils.get_method, path: rivers.reward}
"""
FUNCTION = '''
def reward(completion, answer):
    """The share of the answer's letters that the completion holds."""
    assert answer.startswith("River ")
    return sum(letter in completion for letter in answer) / len(answer)
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    """(YAML) -> the arguments that choose a task of one's own."""

    def write(text):
        (tmp_path / "my_conf" / "task").mkdir(parents=True)
        (tmp_path / "my_conf" / "task" / "rivers.yaml").write_text(text)
        (tmp_path / "rivers.py").write_text(FUNCTION)
        monkeypatch.syspath_prepend(str(tmp_path))
        rows = [{"prompt": f"Which river flows through land {n}?", "answer": f"River {n}"} for n in range(40)]
        task_data.write_jsonl(tmp_path / "rivers.jsonl", [*rows, {"prompt": "What is it?", "answer": " "}])
        return ["--config-dir=my_conf", "task=rivers"]

    return write


def test_ones_own_task_and_reward(cli, small, own):
    rows = rows_of(cli(*own(RIVERS + WITH_FUNCTION), *small, "max_new_tokens=16"))
    assert any(0 < row["reward/mean"] < 1 for row in rows[1:])  # 32 random letters and signs meet one of a name's
    notes = provenance()["notes"]
    assert notes[0].startswith("rivers.jsonl: ")
    assert notes[1:] == [f"left out: 1 ({1 / 41:.2%}) without a question or an answer"]


def test_without_a_grader_the_text_between_the_answer_tags_counts(cli, small, own):
    rows = rows_of(cli(*own(RIVERS), *small))
    assert [row["reward/mean"] for row in rows[1:]] == [0, 0]
    assert rows[-1]["no_answer/frac"] == 1  # a random policy writes no tags
    task = QuestionTask(data="rivers.jsonl")
    example = next(iter(task.train))
    name = example.answer
    completions = [f"<answer> {name.upper()} </answer>", f"<answer>{name}!</answer>", name]
    graded = task.grade(answers_to([example] * 3, completions))
    assert [(outcome.reward, outcome.status) for outcome in graded] == [(1, "ok"), (0, "wrong"), (0, "no_answer")]

"""What a task's prompt asks for is what its grader reads: an answer in that form is right."""

import random
from pathlib import Path

import pytest
import task_data
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from sgrpo_lightning.tasks import answers_to

CONF = Path(__file__).parents[2] / "conf"
TASKS = sorted(path.stem for path in (CONF / "task").glob("*.yaml"))


def boxed(example):
    return rf"<think>I counted twice.</think> So the final answer is \boxed{{{example.answer}}}."


def after_thinking(example):
    return f"<think>What would an expert write?</think>\n\n{example.answer}"


def tagged(example):
    """The targets of the small data are the sums of the integers."""
    return f"<think>Add them.</think> <answer>{'+'.join(map(str, example.answer.numbers))}</answer>"


EXAMPLES = {
    "countdown": tagged,
    "deepmath": boxed,
    "gsm8k": boxed,
    "meetingbank": after_thinking,
    "openthoughts": after_thinking,
    "poetry": after_thinking,
}
MARKERS = {tagged: ("<answer>", "</answer>"), boxed: (r"\boxed{}",), after_thinking: ("<think>", "</think>", "Then")}


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """(task) -> the task that its YAML describes, on its small data and with the instruction of a hub model."""
    folder, graders = tmp_path_factory.mktemp("data"), []

    def build(task):
        overrides = [f"task={task}", "model=qwen2.5-0.5b", *task_data.write(task, folder / task)]
        with initialize_config_dir(str(CONF), version_base="1.3"):
            cfg = compose("train", overrides=overrides)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sgrpo_lightning.tasks.audit.default_cache_dir", lambda: folder / "cache")
            built = instantiate(cfg.task, _convert_="all")
        graders.append(built.grader)
        return built

    yield build
    for grader in graders:
        getattr(grader, "close", lambda: None)()


def graded(task, examples, completions):
    return [(outcome.reward, outcome.status) for outcome in task.grade(answers_to(examples, completions))]


def test_every_task_has_an_example_and_small_data():
    assert set(TASKS) == set(EXAMPLES) == set(task_data.WRITERS) == set(task_data.LEFT_OUT)


@pytest.mark.parametrize("name", TASKS)
def test_what_the_prompt_asks_for_is_right(name, build):
    """Every example of either side, answered in the form that its own prompt names, and by its demonstration."""
    task = build(name)
    for examples in (list(task.train), list(task.held_out)):
        assert all(marker in example.prompt for example in examples for marker in MARKERS[EXAMPLES[name]])
        asked_for = [EXAMPLES[name](example) for example in examples]
        shown = [task.demonstrate(example, random.Random(0)) for example in examples]
        if name != "openthoughts":  # whose demonstrations are the examples of the form
            assert not set(asked_for) & set(shown)
        assert graded(task, examples, [*asked_for]) == [(1.0, "ok")] * len(examples)
        assert graded(task, examples, shown) == [(1.0, "ok")] * len(examples)


@pytest.mark.parametrize("name", TASKS)
def test_an_answer_to_another_question_is_not(name, build):
    task = build(name)
    asked, other = task.train[0], next(e for e in task.train if e.answer != task.train[0].answer)
    ((reward, _),) = graded(task, [asked], [EXAMPLES[name](other)])
    assert reward < 1


@pytest.mark.parametrize("name", TASKS)
def test_the_form_alone_or_a_thought_earns_no_full_reward(name, build):
    task = build(name)
    example = task.train[0]
    right = EXAMPLES[name](example)
    thought = f"<think>{right.replace('<think>', '').replace('</think>', '')}"
    outcomes = graded(task, [example] * 2, [thought, "<think></think>"])
    assert outcomes == [(0.0, "no_answer")] * 2

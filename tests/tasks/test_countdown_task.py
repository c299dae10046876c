"""Countdown as a task: demonstrations, the split, data of one's own."""

import csv
import json
import random
import re

import datasets
import pytest

from sgrpo_lightning.tasks import CountdownTask, answers_to

STEP = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)")


@pytest.fixture(scope="module")
def task():
    return CountdownTask()


@pytest.fixture(scope="module")
def any_target():
    return CountdownTask(target="any", low=1, high=8, train_size=3000, held_out_size=400)


def multisets(examples):
    return {tuple(sorted(example.answer.numbers)) for example in examples}


def check_demonstration(task, example, rng):
    """Right by the grader; every sum true and whole; each sum uses what is left, and the last one is the target."""
    text = task.demonstrate(example, rng)
    assert task.grade(answers_to([example], [text]))[0].status == "ok", text
    thinking = re.fullmatch(r"<think>(.*)</think><answer>.*</answer>", text)[1]
    left = list(example.answer.numbers)
    for step in thinking.split(";"):
        a, op, b, value = STEP.fullmatch(step).groups()
        a, b, value = int(a), int(b), int(value)
        assert value * b == a if op == "/" else value == {"+": a + b, "-": a - b, "*": a * b}[op], step
        left.remove(a)
        left.remove(b)
        left.append(value)
    assert left == [example.answer.target]


def test_every_training_example_has_a_right_demonstration(task):
    for seed, example in enumerate([*task.train, *task.held_out]):
        check_demonstration(task, example, random.Random(seed))


def test_demonstrations_for_any_target(any_target):
    for seed, example in enumerate([*any_target.train[:500], *any_target.held_out[:100]]):
        check_demonstration(any_target, example, random.Random(seed))


def test_a_problem_without_a_solution_is_named(tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps({"nums": [1, 1, 1, n], "target": 24}) + "\n" for n in range(1, 8)))
    task = CountdownTask(data=str(file), held_out_fraction=0.5)
    with pytest.raises(ValueError, match=r"no solution .*numbers=\(.*1, 1.*target=24"):
        task.demonstrate(task.train[0], random.Random(0))


def test_the_split_of_the_papers_variant(task):
    """The embedded policy was warm-started on one side of this split: it must never move."""
    assert (len(task.train), len(task.held_out)) == (1214, 132)  # 1346 in all
    assert sorted(multisets(task.held_out))[:3] == [(1, 1, 6, 9), (1, 2, 2, 11), (1, 2, 4, 4)]


def test_no_multiset_is_on_both_sides(task, any_target):
    for some in (task, any_target):
        assert multisets(some.train) & multisets(some.held_out) == set()
    assert multisets(any_target.train) & multisets(task.held_out) == set()  # another target of the same integers
    assert multisets(any_target.held_out) & multisets(task.train) == set()
    assert len({example.answer.target for example in any_target.train}) > 50


def test_the_share_that_is_held_out(any_target):
    """Each multiset is held out with probability 0.25: of 330 at 4 from 1..8, within 5 standard deviations."""
    task = CountdownTask(target="any", low=1, high=8, held_out_fraction=0.25, train_size=10**6, held_out_size=10**6)
    train, held_out = len(multisets(task.train)), len(multisets(task.held_out))
    assert train + held_out == 330
    assert abs(held_out - 82.5) < 5 * (330 * 0.25 * 0.75) ** 0.5


def test_problems_depend_on_the_split_seed_alone(task):
    random.seed(1)
    again, other = CountdownTask(), CountdownTask(split_seed=1)
    assert (again.train, again.held_out) == (task.train, task.held_out)
    assert multisets(other.held_out) != multisets(task.held_out)


def test_the_sides_may_be_cut_short(task):
    small = CountdownTask(train_size=10, held_out_size=3)
    assert (small.train, small.held_out) == (task.train[:10], task.held_out[:3])


def test_a_large_space_is_sampled():
    """Six integers from 1..40: C(45, 6) = 8.1 million multisets."""
    task = CountdownTask(numbers=6, low=1, high=40, target=100, train_size=20, held_out_size=3)
    assert len(task.train) == 20
    check_demonstration(task, task.train[0], random.Random(0))


def test_the_question_names_the_integers_in_order_and_the_target():
    task = CountdownTask(prompt="{target} from {numbers}?", instruction="Think.")
    example = task.train[0]
    shown = ", ".join(str(n) for n in example.answer.numbers)
    assert example.prompt == f"24 from {shown}? Think."
    assert any(list(example.answer.numbers) != sorted(example.answer.numbers) for example in task.train[:20])


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"numbers": 1}, r"task\.numbers must be >= 2, got 1"),
        ({"low": 9, "high": 3}, r"0 <= low <= high, got 9 and 3"),
        ({"low": -1}, r"0 <= low <= high, got -1"),
        ({"held_out_fraction": 1.0}, r"held_out_fraction must lie in \(0, 1\), got 1\.0"),
        ({"target": "most"}, r"task\.target must be an integer or 'any', got 'most'"),
        ({"high": 2, "target": 1000}, r"0 training and 0 held-out problems"),
    ],
)
def test_knobs_that_cannot_be(knobs, message):
    with pytest.raises(ValueError, match=message):
        CountdownTask(**knobs)


# ---- data of one's own ----

ROWS = [{"nums": [a, b, 3, c], "target": a + b + 3 + c} for a in range(1, 5) for b in range(1, 5) for c in range(5, 9)]


def write_jsonl(path):
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def write_csv(path, numbers="[{}]"):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["nums", "target"])
        writer.writerows([numbers.format(", ".join(map(str, row["nums"]))), row["target"]] for row in ROWS)
    return path


def write_parquet(path):
    datasets.Dataset.from_list(ROWS).to_parquet(path)
    return path


def write_folder(path):
    path.mkdir()
    write_jsonl(path / "train.jsonl")
    return path


WRITERS = {
    "data.jsonl": write_jsonl,
    "data.json": write_jsonl,
    "lists.csv": write_csv,
    "plain.csv": lambda path: write_csv(path, "{}"),
    "data.parquet": write_parquet,
    "folder": write_folder,
}


@pytest.mark.parametrize("name", WRITERS)
def test_problems_of_a_file_or_folder(name, tmp_path):
    task = CountdownTask(data=str(WRITERS[name](tmp_path / name)), held_out_fraction=0.3)
    found = sorted((*example.answer.numbers, example.answer.target) for example in [*task.train, *task.held_out])
    assert found == sorted((*row["nums"], row["target"]) for row in ROWS)
    assert multisets(task.train) & multisets(task.held_out) == set()  # each multiset occurs in several orders
    check_demonstration(task, task.train[0], random.Random(0))


def test_data_that_cannot_be_read(tmp_path):
    for name, message in [
        ("gone.jsonl", r"task\.data=.*gone\.jsonl: no such file"),
        ("data.txt", r"task\.data=.*data\.txt: expected one of \.jsonl, .*got \.txt"),
    ]:
        (tmp_path / "data.txt").write_text("[]")
        with pytest.raises(ValueError, match=message):
            CountdownTask(data=str(tmp_path / name))


def test_a_missing_column_is_named(tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_text(json.dumps({"numbers": [1, 2], "target": 3}) + "\n")
    with pytest.raises(ValueError, match=r"needs the columns \['nums', 'target'\], has \['numbers', 'target'\]"):
        CountdownTask(data=str(file))


@pytest.mark.parametrize("row", [{"nums": "four, 5", "target": 9}, {"nums": [4, 5.5], "target": 9}])
def test_a_row_without_integers_is_named(row, tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_text(json.dumps(row) + "\n")
    with pytest.raises(ValueError, match=r"data\.jsonl, row 0: nums must be integers"):
        CountdownTask(data=str(file))


def test_an_unknown_source_fails_offline(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"task\.data=no-such-owner/no-such-name cannot be loaded: .*\n.*from disk"):
        CountdownTask(data="no-such-owner/no-such-name")

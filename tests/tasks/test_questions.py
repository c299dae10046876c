"""Tasks from files of questions: sides, prompts, references, what is left out."""

import json
import random
from functools import partial

import pytest

from sgrpo_lightning.rewards import ExactGrader, Outcome
from sgrpo_lightning.tasks import Example, QuestionTask, answers_to
from sgrpo_lightning.tasks.rows import read_gsm8k, read_gsm8k_thoughts
from sgrpo_lightning.tasks.split import is_held_out, question_key


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def write(tmp_path):
    """(name, rows) -> the path of a file of these rows."""

    def write(name, rows):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write


def pairs(*numbers):
    return [{"prompt": f"What is {n} + 1?", "answer": str(n + 1)} for n in numbers]


def prompts(examples):
    return [example.prompt for example in examples]


def test_one_file_of_prompts_and_answers_is_a_task(write):
    task = QuestionTask(data=write("sums.jsonl", pairs(*range(50))), held_out_fraction=0.3)
    assert sorted(prompts(task.train) + prompts(task.held_out)) == sorted(row["prompt"] for row in pairs(*range(50)))
    for side, held in ((task.train, False), (task.held_out, True)):
        assert side
        for example in side:
            assert is_held_out(question_key(example.prompt), fraction=0.3, seed=0) == held
    example = task.train[0]
    assert example == Example("What is 0 + 1?", "1", "1") or example in list(task.train)
    right, wrong = task.grade(answers_to([example] * 2, [f"<answer>{example.answer}</answer>", "<answer>x</answer>"]))
    assert (right.status, wrong.status) == ("ok", "wrong")
    assert task.demonstrate(example, random.Random(0)) == example.reference == example.answer
    assert task.notes == [f"{task.data}: {len(task.train)} questions to train on, {len(task.held_out)} held out"]


def test_a_folder_with_a_held_out_split(write, tmp_path):
    """The training question 3 is asked in the test file too, in other letters; row 9 has no answer."""
    write("data/train.jsonl", [*pairs(1, 2, 3), {"prompt": "What is 9 + 1?", "answer": ""}])
    write("data/test.jsonl", [{"prompt": "what is  3 + 1?", "answer": "4"}, *pairs(7), *pairs(7)])
    task = QuestionTask(data=str(tmp_path / "data"), subset="of the hub, not of a folder")
    assert prompts(task.train) == ["What is 1 + 1?", "What is 2 + 1?"]
    assert prompts(task.held_out) == ["what is  3 + 1?", "What is 7 + 1?"]
    assert task.notes[1:] == [
        "left out: 1 (14.29%) held out with a question seen before",
        "left out: 1 (14.29%) for training with a held-out question",
        "left out: 1 (14.29%) without a question or an answer",
    ]


def test_held_out_data_of_its_own(write):
    train, held_out = write("train.jsonl", pairs(*range(8))), write("other.jsonl", pairs(5, 50))
    task = QuestionTask(data=train, held_out_data=held_out, held_out_split="train")
    assert prompts(task.held_out) == ["What is 5 + 1?", "What is 50 + 1?"]
    assert len(task.train) == 7
    assert "What is 5 + 1?" not in prompts(task.train)


def test_sizes(write):
    data = write("sums.jsonl", pairs(*range(400)))
    whole = QuestionTask(data=data, held_out_fraction=0.5)
    some = QuestionTask(data=data, held_out_fraction=0.5, train_size=10, held_out_size=7)
    again = QuestionTask(data=data, held_out_fraction=0.5, train_size=10, held_out_size=7)
    other = QuestionTask(data=data, held_out_fraction=0.5, train_size=10, held_out_size=7, split_seed=1)
    lopsided = QuestionTask(data=data, held_out_fraction=0.1, train_size=3, held_out_size=20)
    one_side = QuestionTask(data=data, held_out_fraction=0.5, train_size=10)
    assert (len(some.train), len(some.held_out)) == (10, 7)
    assert (len(lopsided.train), len(lopsided.held_out)) == (3, 20)
    numbers = [int(example.answer) for example in some.train]
    assert numbers == sorted(numbers)  # the order of the rows
    assert set(prompts(some.train)) < set(prompts(whole.train))
    assert set(prompts(some.held_out)) < set(prompts(whole.held_out))
    assert prompts(some.train) == prompts(again.train) != prompts(whole.train)[:10]
    assert prompts(other.train) != prompts(some.train)
    assert (len(one_side.train), prompts(one_side.held_out)) == (10, prompts(whole.held_out))


def test_the_prompt(write):
    data = write("sums.jsonl", [{"prompt": f"{n} {{braces}} 100%", "answer": n} for n in range(1, 40)])
    task = QuestionTask(
        data=data, prompt="Q: {question}", instruction="Put it in \\boxed{}.", system="Be brief.", held_out_fraction=0.5
    )
    example = task.train[0]
    assert example.prompt == f"Q: {example.answer} {{braces}} 100% Put it in \\boxed{{}}."
    assert example.system == "Be brief."
    assert example.reference == ""
    with pytest.raises(ValueError, match=r"has no demonstration of 'Q: "):
        task.demonstrate(example, random.Random(0))


def test_other_demonstrations_are_found_by_their_question(write):
    rows = [{"question": f"Q{n}?", "answer": f"so {n}\n#### {n}"} for n in range(20)]
    thoughts = [{"question": f" q{n}? ", "cot": f"think {n}", "final_answer": n} for n in range(0, 20, 2)]
    task = QuestionTask(
        data=write("questions.jsonl", rows),
        read=read_gsm8k,
        held_out_fraction=0.5,
        demonstrations=write("thoughts.jsonl", thoughts),
        read_demonstration=read_gsm8k_thoughts,
    )
    for example in [*task.train, *task.held_out]:
        n = int(example.answer)
        assert example.reference == f"{'so' if n % 2 else 'think'} {n}\n\\boxed{{{n}}}"


class Strict(ExactGrader):
    """Knows no answer with a 7 in it."""

    version = 1

    def __init__(self):
        super().__init__()
        self.audited = []

    def audit(self, golds):
        self.audited += golds
        return ["7" not in gold for gold in golds]


def test_gold_answers_that_fail_their_own_check_are_left_out(write):
    data, grader = write("sums.jsonl", pairs(*[n % 30 for n in range(60)])), Strict()
    task = QuestionTask(data=data, grader=grader, held_out_fraction=0.5)
    assert sorted(grader.audited) == sorted({str(n + 1) for n in range(30)})  # each once, over both sides
    assert not [example for example in [*task.train, *task.held_out] if "7" in example.answer]
    gone = [row["prompt"] for row in pairs(*range(30)) if "7" in row["answer"]]
    rows = sum(1 if is_held_out(question_key(prompt), fraction=0.5, seed=0) else 2 for prompt in gone)
    assert f"left out: {rows} ({rows / 60:.2%}) whose gold answer fails its own check" in task.notes


def test_an_audit_is_made_once(write):
    data = write("sums.jsonl", pairs(*range(30)))
    first, second, newer = Strict(), Strict(), Strict()
    newer.version = 2
    tasks = [QuestionTask(data=data, grader=grader, held_out_fraction=0.5) for grader in (first, second, newer)]
    assert len({tuple(prompts(task.train)) for task in tasks}) == 1
    assert (len(first.audited), len(second.audited), len(newer.audited)) == (30, 0, 30)


def test_where_nothing_can_be_written_the_audit_is_made_all_the_same(write, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    grader = Strict()
    task = QuestionTask(data=write("sums.jsonl", pairs(*range(30))), grader=grader, held_out_fraction=0.5)
    assert len(grader.audited) == 30
    assert not [example for example in task.train if "7" in example.answer]


def test_a_row_that_the_reader_cannot_read_is_left_out(write):
    def read(row):
        return None if row["answer"] == "3" else Outcome(1 / (int(row["answer"]) - 5), "ok", None) and read_plain(row)

    from sgrpo_lightning.tasks.rows import read_pair as read_plain

    rows = [*pairs(*range(30)), {"prompt": "bad?", "answer": "five"}]
    with pytest.raises(ZeroDivisionError):  # a fault of the reader itself is not hidden
        QuestionTask(data=write("sums.jsonl", rows), read=read)
    task = QuestionTask(data=write("more.jsonl", [row for row in rows if row["answer"] != "5"]), read=read)
    assert task.notes[1] == f"left out: 2 ({2 / 30:.2%}) without a question or an answer"


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"held_out_fraction": 0}, r"task\.held_out_fraction must lie in \(0, 1\), got 0"),
        ({"prompt": "Answer."}, r"task\.prompt must contain \{question\}, got 'Answer\.'"),
        ({"train_split": "all"}, r"no split 'all'; there are train"),
        ({"read": read_gsm8k}, r"no column question; there are prompt, answer"),
        ({"held_out_fraction": 1e-9}, r"3 questions to train on, 0 held out; both sides need some"),
        ({"data": "no/such/file.jsonl"}, r"no such file"),
        ({"data": __file__}, r"expected one of \.jsonl, .*, got \.py"),
        ({"held_out_data": "no/such/file.json"}, r"no such file"),
    ],
)
def test_mistakes(knobs, message, write):
    data = write("sums.jsonl", pairs(1, 2, 3))
    with pytest.raises(ValueError, match=message):
        QuestionTask(**{"data": data} | knobs)


def test_a_file_that_is_not_what_it_seems(tmp_path):
    (tmp_path / "sums.jsonl").write_text('{"prompt": \n')
    with pytest.raises(ValueError, match=r"sums\.jsonl cannot be loaded: "):
        QuestionTask(data=str(tmp_path / "sums.jsonl"))


def test_formats(write, tmp_path):
    import datasets

    rows = datasets.Dataset.from_list(pairs(*range(20)))
    rows.to_json(str(tmp_path / "a.json"))
    rows.to_csv(str(tmp_path / "a.csv"))
    rows.to_parquet(str(tmp_path / "a.parquet"))
    sides = [
        prompts(QuestionTask(data=str(tmp_path / f"a.{end}"), held_out_fraction=0.5).train)
        for end in ("json", "csv", "parquet")
    ]
    assert sides[0] == sides[1] == sides[2]


def test_the_questions_are_read_when_they_are_asked_for(write):
    """The answers of the rows are not held in memory."""
    read = []

    def counted(row):
        from sgrpo_lightning.tasks.rows import read_pair

        read.append(row["prompt"])
        return read_pair(row)

    task = QuestionTask(data=write("sums.jsonl", pairs(*range(40))), read=partial(counted), held_out_fraction=0.5)
    read.clear()
    example = task.train[3]
    assert read == [example.prompt]

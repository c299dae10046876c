"""Small data files in the columns of the hub's data sets, one for each option of conf/task, with a few useless rows."""

import json
import string

import datasets

from sgrpo_lightning.tasks.questions import FAILS_AUDIT
from sgrpo_lightning.tasks.split import SHARED, UNUSABLE

LETTERS = " ".join(string.ascii_lowercase[1:] + string.digits)
"""In every expert text: words of which a random policy writes some."""

LEFT_OUT = {
    "countdown": {},
    "deepmath": {UNUSABLE: 2, FAILS_AUDIT: 1},
    "gsm8k": {UNUSABLE: 3, SHARED: 1},
    "meetingbank": {UNUSABLE: 2, SHARED: 1},
    "openthoughts": {UNUSABLE: 3},
    "poetry": {UNUSABLE: 2},
}
"""How many rows of a task's data are left out for which reason, when all of them are read."""


def write(task, folder):
    """Write the data of `task` into `folder`; the overrides that use it, without `task=` itself."""
    folder.mkdir(parents=True, exist_ok=True)
    return WRITERS[task](folder)


def write_jsonl(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def split_by_hash(file):
    """Overrides for data without a held-out split."""
    return [f"task.data={file}", "task.held_out_fraction=0.4", "task.train_size=6"]


def countdown(folder):
    """Columns of HuggingFaceTB/Countdown-Task-GOLD; each target is the sum of the integers."""
    rows = []
    for n in range(24):
        nums = [1 + n % 7, 2 + n // 7, 5 + n % 3, 9]
        answer = f"<think>Add them all.</think>\n<answer>{' + '.join(map(str, nums))}</answer>"
        question = f"Using the numbers {nums}, create an equation that equals {sum(nums)}."
        turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        rows.append({"target": sum(nums), "nums": nums, "messages": turns})
    datasets.Dataset.from_list(rows).to_parquet(folder / "countdown.parquet")
    return split_by_hash(folder / "countdown.parquet")


def gsm8k(folder):
    """openai/gsm8k: a folder with its two splits; thousands, calculator marks and a negative number."""

    def row(n):
        total = 1000 * n + 7
        steps = f"Tom has {n} * 1000 = <<{n}*1000={1000 * n}>>{1000 * n} eggs.\nWith 7 more he has {total}."
        return {"question": f"Tom has {n} thousand eggs and 7 more. How many?", "answer": f"{steps}\n#### {total:,}"}

    debt = {"question": "Ann has 3 dollars and owes 8. What is she worth?", "answer": "3 - 8 = <<3-8=-5>>-5\n#### -5"}
    useless = [
        {"question": "Whose answer is not marked?", "answer": "It is 5."},
        {"question": "Whose answer is empty?", "answer": "So\n#### "},
        {"question": None, "answer": "#### 4"},
    ]
    shared = {**row(20), "question": row(20)["question"].upper() + " "}
    write_jsonl(folder / "train.jsonl", [*map(row, range(10)), debt, *useless, shared])
    write_jsonl(folder / "test.jsonl", map(row, range(20, 26)))
    return [f"task.data={folder}", "task.subset=null", "task.train_size=6", "task.held_out_size=4"]


def deepmath(folder):
    """zwhe99/DeepMath-103K; one gold answer is no mathematics."""

    def row(question, answer, solution=""):
        reasoning = f"Okay, so let me think.\n</think>\n\n{solution} \\boxed{{{answer}}}"
        return {
            "question": question,
            "final_answer": answer,
            "difficulty": 5.5,
            "topic": "Mathematics -> Algebra -> Other",
            "r1_solution_1": f"Hmm, again. {reasoning}",
            "r1_solution_2": reasoning,
            "r1_solution_3": None,
        }

    rows = [row(f"Evaluate $\\frac{{{n}}}{{14}}$.", f"\\dfrac{{{n}}}{{14}}", "It stays so:") for n in range(1, 9)]
    rows += [row(f"Find the interval where $x \\le {n}$.", f"(-\\infty, {n}]") for n in range(4)]
    rows += [row(f"Solve $x^2 = {n * n}$.", f"x = {n}, x = -{n}") for n in range(2, 5)]
    rows += [row("Is 7 prime?", "Yes"), row("What is $2^{64}$?", "2^{64}"), row("What is ???", "???")]
    rows += [row("Whose answer is missing?", None), row("  ", "5")]
    datasets.Dataset.from_list(rows).to_parquet(folder / "deepmath.parquet")
    return split_by_hash(folder / "deepmath.parquet")


def poetry(folder):
    """The two columns that `tasks.poem_prompts` writes, as CSV: lines, quotes and other scripts in a field."""
    poems = [f'The {n}th snow, "so still",\nfalls on the pond \u2014 \u843d\u82b1;\n{LETTERS}.' for n in range(18)]
    rows = [{"prompt": f"Write a poem about the {n}th snow.", "poem": poem} for n, poem in enumerate(poems)]
    rows += [{"prompt": "Write nothing.", "poem": ""}, {"prompt": None, "poem": "Nobody asked."}]
    datasets.Dataset.from_list(rows).to_csv(folder / "poems.csv")
    return split_by_hash(folder / "poems.csv")


def meetingbank(folder):
    """microsoft/MeetingBank-LLMCompressed to train on, the test split of huuuyeah/meetingbank held out."""

    def row(n, transcript, summary):
        halves = [transcript[: len(transcript) // 2], transcript[len(transcript) // 2 :]]
        short = [half[::2] for half in halves]
        names = ("idx", "prompt", "prompt_list", "compressed_prompt_list", "compressed_prompt", "summary")
        return dict(zip(names, (n, transcript, halves, short, " ".join(short), summary), strict=True))

    def transcript(n):
        return f"Speaker 1: Item {n}, please.\nSpeaker 2: I move to adopt bill {n}.\nSpeaker 1: All in favour? Adopted."

    rows = [row(n, transcript(n), f"The council adopted bill {n}: {LETTERS}.") for n in range(10)]
    rows += [
        row(10, transcript(20), "A held-out meeting."),
        row(11, "", "An empty one."),
        row(12, transcript(12), None),
    ]
    rows += [row(13, "Speaker 1: And so on. " * 20, "A longer meeting.")]
    (folder / "train.json").write_text(json.dumps(rows))
    held_out = [
        {
            "summary": f"Council bill {n} was adopted: {LETTERS}.",
            "uid": f"City_{n}",
            "id": n,
            "transcript": transcript(n),
        }
        for n in range(20, 26)
    ]
    (folder / "held_out").mkdir(exist_ok=True)
    write_jsonl(folder / "held_out" / "test.jsonl", held_out)
    sizes = ["task.train_size=6", "task.held_out_size=4"]
    return [f"task.data={folder / 'train.json'}", f"task.held_out_data={folder / 'held_out'}", *sizes]


def openthoughts(folder):
    """open-thoughts/OpenThoughts3-1.2M: a conversation of two turns; each question comes with several answers."""

    def row(n, turns):
        talk = [{"from": who, "value": text} for who, text in turns]
        return {"difficulty": n % 10 or None, "source": "stackexchange", "domain": "science", "conversations": talk}

    rows = []
    for n in range(16):
        question = f"Why does ice number {n} float?"
        answers = (
            f"<think>\nDensity, {thought}.\n</think>\n\nIce {n} is lighter: {LETTERS}." for thought in ("then", "so")
        )
        rows += [row(n, [("human", question), ("gpt", answer)]) for answer in answers]
    rows += [
        row(1, [("human", "Who answers?")]),
        row(2, [("human", "Where does it end?"), ("gpt", "<think>Nowhere.</think>")]),
        row(3, [("human", None), ("gpt", "<think>Hm.</think>Nobody asked.")]),
    ]
    write_jsonl(folder / "openthoughts.jsonl", rows)
    return split_by_hash(folder / "openthoughts.jsonl")


WRITERS = {
    "countdown": countdown,
    "deepmath": deepmath,
    "gsm8k": gsm8k,
    "meetingbank": meetingbank,
    "openthoughts": openthoughts,
    "poetry": poetry,
}

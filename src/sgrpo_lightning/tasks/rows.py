"""From a row of a data set to a question: one reader for each layout of columns.

A reader returns None for a row without a question or an answer, which is left out and counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sgrpo_lightning.rewards import read_response

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Question:
    """What a task asks, before it is put into a prompt.

    Args:
        text: the question.
        answer: what an answer is checked against.
        reference: a whole completion to imitate or to compare with; "" where the data has none.
    """

    text: str
    answer: Any
    reference: str = ""


def read_pair(
    row: Row, *, question: str = "prompt", answer: str = "answer", reference: str | None = None
) -> Question | None:
    """Columns by name. The reference is the column `reference`, else the answer where that is a text."""
    text = row[reference or answer]
    return _question(row[question], row[answer], text if isinstance(text, str) else "")


def read_named_pair(row: Row, *, questions: Sequence[str], answers: Sequence[str]) -> Question | None:
    """The first column of each list that the row has: the same data under other names. The answer is the reference."""
    question, answer = (next((row[name] for name in names if name in row), None) for names in (questions, answers))
    if question is None and answer is None:
        raise KeyError(f"{' or '.join(questions)}, nor {' or '.join(answers)}")
    return _question(question, answer, answer if isinstance(answer, str) else "")


def read_gsm8k(row: Row) -> Question | None:
    """openai/gsm8k: the answer stands after `####`, without its thousands separators.

    The reference is the solution without its calculator marks, then the answer in a box, as the prompt asks for it.
    """
    question, (solution, mark, final) = row["question"], row["answer"].rpartition("####")
    final = final.strip().replace(",", "")
    if not mark or not final:
        return None
    steps = re.sub(r"<<[^<>]*>>", "", solution).strip()
    return _question(question, final, f"{steps}\n\\boxed{{{final}}}")


def read_gsm8k_thoughts(row: Row) -> Question | None:
    """HAD653/gsm8k-cot-120b: demonstrations for GSM8K in the columns question, cot and final_answer."""
    final = str(row["final_answer"]).strip()
    return _question(row["question"], final, f"{str(row['cot']).strip()}\n\\boxed{{{final}}}")


def read_deepmath(row: Row) -> Question | None:
    """zwhe99/DeepMath-103K: the reference is the shortest of its three solutions (Appendix B.3)."""
    solutions = [row.get(f"r1_solution_{n}") for n in (1, 2, 3)]
    shortest = min((text for text in solutions if text and text.strip()), key=len, default="")
    return _question(row["question"], row["final_answer"], shortest)


def read_conversation(row: Row) -> Question | None:
    """open-thoughts/OpenThoughts3-1.2M: the first turn asks, the second answers after its thinking."""
    spoken = [turn.get("value") for turn in row["conversations"] if turn.get("from") != "system"]
    if len(spoken) < 2 or not all(spoken[:2]):
        return None
    question, completion = spoken[:2]
    return _question(question, read_response(completion), completion)


def _question(text: Any, answer: Any, reference: str) -> Question | None:
    """None where the question or the answer is missing or blank."""
    if not isinstance(text, str) or not text.strip() or answer is None:
        return None
    if isinstance(answer, str) and not answer.strip():
        return None
    return Question(text.strip(), answer.strip() if isinstance(answer, str) else answer, reference.strip())

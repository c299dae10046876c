"""From rows in the columns of the hub's data sets to questions."""

from functools import partial

import pytest

from sgrpo_lightning.tasks.rows import (
    Question,
    read_conversation,
    read_deepmath,
    read_gsm8k,
    read_gsm8k_thoughts,
    read_named_pair,
    read_pair,
)

SOLUTION = "She sold 48/2 = <<48/2=24>>24 clips.\nIn all <<48+24=72>>72.\n#### 1,072"


@pytest.mark.parametrize(
    ("read", "row", "question"),
    [
        (read_pair, {"prompt": " a? ", "answer": "b"}, Question("a?", "b", "b")),
        (read_pair, {"prompt": "a?", "answer": 3}, Question("a?", 3, "")),
        (read_pair, {"prompt": "a?", "answer": False}, Question("a?", False, "")),
        (
            partial(read_pair, question="q", answer="a", reference="r"),
            {"q": "a?", "a": "b", "r": "because b"},
            Question("a?", "b", "because b"),
        ),
        (
            read_gsm8k,
            {"question": "How many?", "answer": SOLUTION},
            Question("How many?", "1072", "She sold 48/2 = 24 clips.\nIn all 72.\n\\boxed{1072}"),
        ),
        (
            read_gsm8k_thoughts,
            {"question": "How many?", "cot": "48 + 24. ", "final_answer": 72},
            Question("How many?", "72", "48 + 24.\n\\boxed{72}"),
        ),
        (
            read_deepmath,
            {
                "question": "x?",
                "final_answer": "\\frac{1}{2}",
                "r1_solution_1": "a long one",
                "r1_solution_2": "short",
                "r1_solution_3": None,
            },
            Question("x?", "\\frac{1}{2}", "short"),
        ),
        (read_deepmath, {"question": "x?", "final_answer": "1", "r1_solution_1": " "}, Question("x?", "1", "")),
        (
            read_conversation,
            {
                "conversations": [
                    {"from": "system", "value": "Be brief."},
                    {"from": "human", "value": "2 + 2?"},
                    {"from": "gpt", "value": "<think>two twos</think>\n\nIt is 4."},
                ]
            },
            Question("2 + 2?", "It is 4.", "<think>two twos</think>\n\nIt is 4."),
        ),
    ],
)
def test_reads(read, row, question):
    assert read(row) == question


@pytest.mark.parametrize(
    ("read", "row"),
    [
        (read_pair, {"prompt": "", "answer": "b"}),
        (read_pair, {"prompt": None, "answer": "b"}),
        (read_pair, {"prompt": "a?", "answer": " \n"}),
        (read_pair, {"prompt": "a?", "answer": None}),
        (read_gsm8k, {"question": "How many?", "answer": "No mark: 72"}),
        (read_gsm8k, {"question": "How many?", "answer": "#### "}),
        (read_deepmath, {"question": "x?", "final_answer": ""}),
        (read_conversation, {"conversations": []}),
        (read_conversation, {"conversations": [{"from": "human", "value": "2 + 2?"}]}),
        (read_conversation, {"conversations": [{"from": "human", "value": "2?"}, {"from": "gpt"}]}),
        (read_conversation, {"conversations": [{"from": "human", "value": "2?"}, {"from": "gpt", "value": "<think>"}]}),
        (
            read_conversation,
            {"conversations": [{"from": "human", "value": "2?"}, {"from": "gpt", "value": "<think>2</think>\n"}]},
        ),
    ],
)
def test_a_row_without_question_or_answer_is_none(read, row):
    assert read(row) is None


MINUTES = partial(read_named_pair, questions=["prompt", "transcript"], answers=["summary"])


@pytest.mark.parametrize("name", ["prompt", "transcript"])
def test_the_same_data_under_other_names(name):
    row = {name: "Item 7 ...", "summary": "Passed."}
    assert MINUTES(row) == Question("Item 7 ...", "Passed.", "Passed.")


def test_no_name_fits():
    with pytest.raises(KeyError, match="prompt or transcript, nor summary"):
        MINUTES({"text": "Item 7 ..."})

"""docs/countdown.md: each row of its tables is put to the grader."""

from pathlib import Path
from typing import get_args

import pytest

from sgrpo_lightning.rewards import Status, countdown_reward, grade_countdown

PAGE = (Path(__file__).parents[2] / "docs" / "countdown.md").read_text(encoding="utf-8")


def documented_rows() -> list[dict[str, str]]:
    """Every table row of the page that says what a case gets, keyed by its column heads."""
    rows: list[dict[str, str]] = []
    heads: list[str] = []
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            heads = []
        elif not heads:
            heads = cells
        elif "Gets" in heads and set("".join(cells)) != {"-"}:
            assert len(cells) == len(heads), line
            rows.append(dict(zip(heads, cells, strict=True)))
    return rows


def unquoted(cell: str) -> str:
    return cell[1:-1] if cell.startswith("`") and cell.endswith("`") else cell


def completion_of(row: dict[str, str]) -> object:
    if "Answer" in row:
        return f"<think>...</think><answer>{unquoted(row['Answer'])}</answer>"
    if "Completion in Python" in row:
        return eval(unquoted(row["Completion in Python"]))
    return unquoted(row["Completion"])


ROWS = documented_rows()


@pytest.mark.parametrize("row", ROWS, ids=[row["Case"] for row in ROWS])
def test_each_documented_case_gets_what_the_page_says(row):
    numbers = [int(number) for number in unquoted(row.get("Integers", "`1 2 3 4`")).split()]
    target = int(unquoted(row.get("Target", "`24`")))
    completion = completion_of(row)
    outcome = grade_countdown(completion, numbers=numbers, target=target)
    assert outcome.status == unquoted(row["Gets"])
    assert outcome.reward == (1.0 if outcome.status == "ok" else 0.0)
    assert countdown_reward(completion, numbers=numbers, target=target) == outcome.reward


def test_the_page_has_no_repeated_case_and_shows_every_status():
    cases = [row["Case"] for row in ROWS]
    assert len(cases) == len(set(cases)) > 80
    assert {unquoted(row["Gets"]) for row in ROWS} == {"ok", "wrong", "no_answer", "unparseable"}
    assert {"ok", "wrong", "no_answer", "unparseable"} <= set(get_args(Status))

"""docs/rewards.md: its tables against the configuration and the graders."""

import doctest
import re
from typing import get_args

import pytest
from docs_pages import CONF, ROOT, code, table, tables

from sgrpo_lightning.rewards import Status, format_reward, grade_math, math_reward, similarity_reward
from sgrpo_lightning.rewards.shaping import LENGTH_NAMES, OVERLONG_NAMES

PAGE = (ROOT / "docs" / "rewards.md").read_text(encoding="utf-8")
CASES = next(found for found in tables(PAGE) if "Gold" in found[0])


def test_every_reward_and_every_status_has_a_row():
    rows = [row for found in tables(PAGE) if "Range" in found[0] for row in found]
    names = [name for row in rows for name in code(row["Reward"])]
    assert sorted(names) == sorted(path.stem for path in (CONF / "reward").glob("*.yaml"))
    assert list(table(PAGE, "Status")) == list(get_args(Status))


@pytest.mark.parametrize("row", CASES, ids=lambda row: row["Case"])
def test_an_answer_gets_what_the_table_says(row):
    (completion,), (gold,), (status,) = (code(row[column]) for column in ("Completion", "Gold", "Gets"))
    assert grade_math(completion, answer=gold).status == status


def test_the_values_in_the_example():
    values = re.findall(r"^(\w+_reward\(.*\))  # (\S+)$", PAGE, re.MULTILINE)
    names = {"math_reward": math_reward, "similarity_reward": similarity_reward, "format_reward": format_reward}
    assert [eval(call, names) for call, _ in values] == [float(value) for _, value in values] == [1.0, 1.0, 1.0]


def test_every_setting_of_length_has_a_row():
    rows = [code(row["Setting"])[0] for row in table(PAGE, "Setting", "Adds").values()]
    lengths = [f"length_penalty={name}" for name in LENGTH_NAMES if name != "none"]
    assert rows == [*lengths, *(f"overlong={name}" for name in OVERLONG_NAMES if name != "keep")]


def test_doctests_of_the_package():
    """Of what is small and needs no worker."""
    from sgrpo_lightning.rewards import countdown, expression, forms, reading

    for module in (countdown, expression, forms, reading):
        failed, tried = doctest.testmod(module)
        assert (failed, tried > 0) == (0, True), module.__name__

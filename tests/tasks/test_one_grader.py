"""The 24-game, general Countdown and the hub's Countdown agree on one grader, and it agrees with exact fractions."""

import ast
import json
import operator
import random
from fractions import Fraction

import pytest

from sgrpo_lightning.tasks import CountdownTask, Example, answers_to
from sgrpo_lightning.tasks.countdown import Problem

NUMBERS = [1, 2, 3, 4]
COMPLETIONS = {
    "<think>1*2*3 is 6</think><answer>1*2*3*4</answer>": (1.0, "ok"),
    "<answer> ( 1 + 2 + 3 ) * 4 </answer>": (1.0, "ok"),
    "<answer>4/(1/2)*3</answer>": (1.0, "ok"),  # by way of a half
    "<answer>1</answer> no: <answer>4*3*2/1</answer>": (1.0, "ok"),
    "<answer>2*3*4</answer>": (0.0, "wrong"),  # 24, of too few
    "<answer>1*2*3*4+4-4</answer>": (0.0, "wrong"),  # 24, of too many
    "<answer>4*5+4*1</answer>": (0.0, "wrong"),  # 24, of others
    "<answer>1+2+3+4</answer>": (0.0, "wrong"),
    "<answer>1/(2-2)*3*4</answer>": (0.0, "wrong"),
    "<answer>24</answer>": (0.0, "wrong"),
    "<answer>1*2*3*4=24</answer>": (0.0, "unparseable"),
    "<answer>(1*2*3*4</answer>": (0.0, "unparseable"),
    r"<answer>1\times2\times3\times4</answer>": (0.0, "unparseable"),
    "<answer></answer>": (0.0, "unparseable"),
    r"\boxed{1*2*3*4}": (0.0, "no_answer"),
    "<think><answer>1*2*3*4</answer>": (0.0, "no_answer"),
    "": (0.0, "no_answer"),
}


@pytest.fixture(scope="module")
def variants(tmp_path_factory):
    """Name -> a task; each of them has a problem over 1, 2, 3, 4 with the target 24."""
    folder = tmp_path_factory.mktemp("data")
    others = [{"nums": [n, n + 1, n + 2], "target": 3 * n + 3} for n in range(2, 20)]
    rows = [{"target": 24, "nums": NUMBERS}, *others]
    (folder / "hub.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = "".join(f'{row["target"]},"{row["nums"]}"\n' for row in rows)
    (folder / "hub.csv").write_text("target,nums\n" + table)
    return {
        "24-game": CountdownTask(),
        "any target": CountdownTask(target="any", low=1, high=6),
        "hub": CountdownTask(data=str(folder / "hub.jsonl"), held_out_fraction=0.3),
        "csv": CountdownTask(data=str(folder / "hub.csv"), held_out_fraction=0.3),
    }


def problem_of(task):
    sides = [*task.train, *task.held_out]
    (example,) = (e for e in sides if sorted(e.answer.numbers) == NUMBERS and e.answer.target == 24)
    return example


def test_the_variants_agree(variants):
    expected = [*COMPLETIONS.values()]
    outcomes = {}
    for name, task in variants.items():
        answers = answers_to([problem_of(task)] * len(COMPLETIONS), [*COMPLETIONS])
        outcomes[name] = task.grade(answers)
        assert [(outcome.reward, outcome.status) for outcome in outcomes[name]] == expected, name
    assert all(found == outcomes["24-game"] for found in outcomes.values())


# ---- against an evaluation of its own ----

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def exact(text):
    """The value of an expression as Python reads it, in fractions, and the integers that it holds."""

    def value(node):
        if isinstance(node, ast.BinOp):
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        assert isinstance(node, ast.Constant)
        return Fraction(node.value)

    tree = ast.parse(text, mode="eval")
    used = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return value(tree.body), sorted(used)


def expression(numbers, rng):
    """A random one over these integers in this order, with more parentheses than it needs, or fewer."""
    if len(numbers) == 1:
        return str(numbers[0])
    cut = rng.randrange(1, len(numbers))
    halves = [expression(half, rng) for half in (numbers[:cut], numbers[cut:])]
    left, right = (f"({half})" if rng.random() < 0.6 else half for half in halves)
    return f"{left}{rng.choice(['+', '-', '*', '/', ' * ', ' - '])}{right}"


def test_random_expressions_against_exact_fractions(variants):
    """The target is the value itself, the value cut to an integer, or another; the integers are those given or not."""
    rng, seen = random.Random(0), []
    for _ in range(600):
        numbers = [rng.randint(0, 9) for _ in range(rng.randint(2, 6))]
        text = expression(numbers, rng)
        given = numbers if rng.random() < 0.8 else [*numbers[1:], rng.randint(0, 9)]
        try:
            value, used = exact(text)
        except ZeroDivisionError:
            value, used = None, numbers
        target = int(value or 0) + rng.choice([0, 0, 0, 1])
        right = value == target and used == sorted(given)
        outcome = graded(variants["hub"], f"<answer>{text}</answer>", given, target)
        assert (outcome.reward, outcome.status) == ((1.0, "ok") if right else (0.0, "wrong")), (text, given, target)
        seen.append((right, value is None, value is not None and value.denominator > 1))
    assert min(sum(column) for column in zip(*seen, strict=True)) > 20  # right ones, undefined ones, fractions


def graded(task, completion, numbers, target):
    asked = Example("", Problem(tuple(numbers), target))
    (outcome,) = task.grade(answers_to([asked], [completion]))
    return outcome

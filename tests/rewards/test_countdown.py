"""The Countdown grader: whole games by enumeration, and completions that mean harm."""

import doctest
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from operator import add, mul, sub, truediv

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgrpo_lightning.rewards import countdown, countdown_reward, expression, grade_countdown, reading

FUZZ = settings(derandomize=True, max_examples=300, deadline=None)
MEGABYTE = 1_000_000


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<think>t</think>\n<answer>\n 1*2*3*4 \n</answer>", (1.0, "ok", "1*2*3*4")),
        ("<think>t</think><answer>1+2+3+4</answer>", (0.0, "wrong", "1+2+3+4")),
        ("<think>t</think><answer> 1*2*3*4=24 </answer>", (0.0, "unparseable", "1*2*3*4=24")),
        ("<think>t</think><answer>1/(2-2)</answer>", (0.0, "wrong", "1/(2-2)")),
        ("<think>t</think><answer> </answer>", (0.0, "unparseable", "")),
        ("<think>t", (0.0, "no_answer", None)),
    ],
)
def test_outcome_carries_reward_status_and_the_answer_as_read(completion, expected):
    outcome = grade_countdown(completion, numbers=[1, 2, 3, 4], target=24)
    assert (outcome.reward, outcome.status, outcome.answer) == expected
    assert type(outcome.reward) is float


def test_numbers_count_as_often_as_they_are_listed_in_any_order():
    completion = "<answer>8/(3-8/3)</answer>"
    for order in itertools.permutations([3, 8, 3, 8]):
        assert countdown_reward(completion, numbers=list(order), target=24) == 1.0
    for other in ([3, 8], [3, 3, 3, 8], [3, 3, 8], [3, 3, 8, 8, 8], []):
        assert countdown_reward(completion, numbers=other, target=24) == 0.0


def test_one_part_in_ten_to_the_thirty_is_still_wrong():
    # 24 + 1/10^30: as a float it equals 24 exactly, since a double resolves 3.6e-15 there.
    ten = 10**15
    completion = f"<answer>24+1/{ten}/{ten}</answer>"
    assert 24 + 1 / ten / ten == 24
    assert countdown_reward(completion, numbers=[24, 1, ten, ten], target=24) == 0.0


SHAPES = (
    "(({0}{4}{1}){5}{2}){6}{3}",
    "({0}{4}({1}{5}{2})){6}{3}",
    "({0}{4}{1}){5}({2}{6}{3})",
    "{0}{4}(({1}{5}{2}){6}{3})",
    "{0}{4}({1}{5}({2}{6}{3}))",
)


def apply(sign: str, left: Fraction | None, right: Fraction | None) -> Fraction | None:
    """Exact arithmetic in which a division by zero is None and stays None."""
    if left is None or right is None or (sign == "/" and right == 0):
        return None
    return {"+": add, "-": sub, "*": mul, "/": truediv}[sign](left, right)


def all_games(numbers: list[int]) -> Iterator[tuple[str, Fraction | None]]:
    """All 5 x 64 x (orders) expressions over four numbers, with values that no parser has touched."""
    for order in sorted(set(itertools.permutations(numbers))):
        a, b, c, d = map(Fraction, order)
        for x, y, z in itertools.product("+-*/", repeat=3):
            values = (
                apply(z, apply(y, apply(x, a, b), c), d),
                apply(z, apply(x, a, apply(y, b, c)), d),
                apply(y, apply(x, a, b), apply(z, c, d)),
                apply(x, a, apply(z, apply(y, b, c), d)),
                apply(x, a, apply(y, b, apply(z, c, d))),
            )
            yield from ((s.format(*order, x, y, z), v) for s, v in zip(SHAPES, values, strict=True))


@pytest.mark.parametrize(("numbers", "solvable"), [([3, 3, 8, 8], True), ([1, 1, 1, 1], False), ([0, 4, 6, 6], True)])
def test_every_expression_over_four_numbers_is_graded_by_its_exact_value(numbers, solvable):
    right = 0
    for text, value in all_games(numbers):
        outcome = grade_countdown(f"<answer>{text}</answer>", numbers=numbers, target=24)
        assert outcome.status == ("ok" if value == 24 else "wrong"), text
        right += value == 24
    assert (right > 0) is solvable


def splits(hand: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Every way to deal a hand to a left and a right side, neither empty."""
    for mask in range(1, 2 ** len(hand) - 1):
        sides = [tuple(n for i, n in enumerate(hand) if mask >> i & 1 == side) for side in (1, 0)]
        yield sides[0], sides[1]


@cache
def reachable(hand: tuple[int, ...]) -> dict[Fraction, str]:
    """All values that use the whole hand, each with an expression for it."""
    found = {Fraction(hand[0]): str(hand[0])} if len(hand) == 1 else {}
    for left, right in splits(hand):
        for (a, a_text), (b, b_text) in itertools.product(reachable(left).items(), reachable(right).items()):
            for sign in "+-*/":
                value = apply(sign, a, b)
                if value is not None:
                    found[value] = f"({a_text}{sign}{b_text})"
    return found


def solve(hand: tuple[int, ...]) -> str | None:
    """An expression over the hand that equals 24: what its smaller part makes, the larger must complete."""
    for left, right in splits(hand):
        for a, text in reachable(left).items() if len(left) <= 2 else ():
            partners = {24 - a: "({}+{})", a - 24: "({}-{})", 24 + a: "({1}-{0})"}
            if a:
                partners |= {24 / a: "({}*{})", a / 24: "({}/{})", 24 * a: "({1}/{0})"}
            for b, form in partners.items():
                if b in reachable(right):
                    return form.format(text, reachable(right)[b])
    return None


def test_the_papers_variant_has_its_known_number_of_solvable_hands():
    # 1362 of the 1820 hands of four from 1..13 reach 24, the well-known count of this card game.
    hands = list(itertools.combinations_with_replacement(range(1, 14), 4))
    solutions = {hand: solve(hand) for hand in hands}
    for hand, text in solutions.items():
        completion = f"<answer>{text}</answer>"
        assert countdown_reward(completion, numbers=hand, target=24) == float(text is not None), text
        assert countdown_reward(completion, numbers=(*hand[:3], 14), target=24) == 0.0, text
    assert (len(hands), sum(map(bool, solutions.values()))) == (1820, 1362)


HOSTILE = {
    "opening answers": lambda: "<answer>" * MEGABYTE,
    "closing answers": lambda: "</answer>" * MEGABYTE,
    "opening answers, closed once": lambda: "<answer>" * MEGABYTE + "</answer>",
    "opened once, closing answers": lambda: "<answer>" + "</answer>" * MEGABYTE,
    "all opened, all closed": lambda: "<answer>" * MEGABYTE + "</answer>" * MEGABYTE,
    "empty answers": lambda: "<answer></answer>" * MEGABYTE,
    "opening thoughts": lambda: "<think>" * MEGABYTE,
    "closing thoughts": lambda: "</think>" * MEGABYTE,
    "thoughts in turn": lambda: "<think></think>" * MEGABYTE + "<answer>",
    "almost tags": lambda: "</answer" * MEGABYTE + "</think" * MEGABYTE + "<answer" * MEGABYTE,
    "angle brackets": lambda: "<" * 10 * MEGABYTE,
    "slashes": lambda: "<answer>" + "</" * 5 * MEGABYTE + "</answer>",
    "parentheses": lambda: "<answer>" + "(" * 10 * MEGABYTE + "</answer>",
    "digits": lambda: "<answer>" + "9" * 10 * MEGABYTE + "</answer>",
    "spaces": lambda: "<answer>1" + " " * 10 * MEGABYTE + "1</answer>",
    "outer spaces": lambda: "<answer>" + " " * 10 * MEGABYTE + "</answer>",
    "sum": lambda: "<answer>1" + "+1" * 5 * MEGABYTE + "</answer>",
    "quotients": lambda: "<answer>1" + "/3" * 5 * MEGABYTE + "</answer>",
    "tower of powers": lambda: "<answer>9**9**9**9**9</answer>",
    "surrogates": lambda: "<answer>" + "\ud800" * MEGABYTE + "</answer>",
    "wide characters": lambda: "\U0010ffff" * MEGABYTE + "<answer>" + "\U0001d7db" * MEGABYTE + "</answer>",
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("build", HOSTILE.values(), ids=HOSTILE.keys())
def test_ten_megabytes_of_malice_earn_nothing_in_linear_time(build):
    # A scan that is quadratic in 10^7 characters cannot meet the time limit.
    assert countdown_reward(build(), numbers=[1, 2, 3, 4], target=24) == 0.0


@pytest.mark.parametrize("completion", [None, 24, 24.0, True, b"<answer>24</answer>", [], {}, object(), str])
def test_what_is_not_text_has_no_answer(completion):
    assert grade_countdown(completion, numbers=[24], target=24).status == "no_answer"


PIECES = [
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
    "<",
    "/",
    "1",
    "2",
    "(1+2)",
    "*4",
    " ",
    "\n",
    "\0",
    "\ud800",
    "²",
]


@FUZZ
@given(
    completion=st.text(st.characters(exclude_categories=[])) | st.lists(st.sampled_from(PIECES)).map("".join),
    numbers=st.lists(st.integers(-3, 13) | st.integers(), max_size=6),
    target=st.integers(-1, 30) | st.integers(),
)
def test_no_text_and_no_integers_raise(completion, numbers, target):
    for text in (completion, f"<answer>{completion}</answer>"):
        outcome = grade_countdown(text, numbers=numbers, target=target)
        assert outcome.reward == float(outcome.status == "ok")
        assert (outcome.answer is None) == (outcome.status == "no_answer")


@pytest.mark.parametrize(
    ("numbers", "target"),
    [
        (["1", "2"], 3),
        ([1.0, 2], 3),
        ([None], 3),
        (None, 3),
        (3, 3),
        ([1, 2], "3"),
        ([1, 2], 3.0),
        ([1, 2], None),
    ],
)
def test_data_that_are_not_integers_are_named_in_the_error(numbers, target):
    message = f"must be integers, got numbers={numbers!r} and target={target!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        countdown_reward("no answer at all", numbers=numbers, target=target)


def test_integer_arrays_serve_as_numbers():
    numpy = pytest.importorskip("numpy")
    completion = "<answer>(1+2+3)*4</answer>"
    assert countdown_reward(completion, numbers=numpy.array([4, 3, 2, 1]), target=numpy.int64(24)) == 1.0


@pytest.mark.parametrize("module", [countdown, expression, reading])
def test_examples_of_the_docstrings(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_importing_the_rewards_loads_nothing_heavy():
    """Every worker that grades does so when it starts."""
    code = (
        "import sys; before = set(sys.modules); import sgrpo_lightning.rewards;"
        "new = {name.split('.')[0] for name in set(sys.modules) - before};"
        "print(*sorted(new - sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "sympy", "math_verify", "pebble", "transformers", "torchmetrics"}
    assert {"sgrpo_lightning", "rapidfuzz"} <= set(done.stdout.split())
    assert not heavy & set(done.stdout.split())

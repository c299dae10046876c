"""The solver against two slow ones: every written form evaluated, and numbers joined pair by pair."""

import itertools
import random
from fractions import Fraction

import pytest

from sgrpo_lightning.rewards.expression import evaluate
from sgrpo_lightning.tasks.arithmetic import Node, can_reach, reachable, solve, splits

SHAPES = {  # how n operands are bracketed, as nested pairs of places
    2: [(0, 1)],
    3: [((0, 1), 2), (0, (1, 2))],
    4: [(((0, 1), 2), 3), ((0, (1, 2)), 3), ((0, 1), (2, 3)), (0, ((1, 2), 3)), (0, (1, (2, 3)))],
}


def whole_step(op, a, b):
    """The value of one step, or None where it is not a non-negative integer."""
    if op == "/":
        return a // b if b and a % b == 0 else None
    value = {"+": a + b, "-": a - b, "*": a * b}[op]
    return value if value >= 0 else None


def fold(shape, numbers, ops):
    """The value of a bracketing with its operators taken in order, or None."""
    if isinstance(shape, int):
        return numbers[shape]
    a, b = fold(shape[0], numbers, ops), fold(shape[1], numbers, ops)
    op = next(ops)
    return None if a is None or b is None else whole_step(op, a, b)


def every_value(numbers):
    """All permutations x operators x bracketings."""
    forms = itertools.product(
        set(itertools.permutations(numbers)), itertools.product("+-*/", repeat=len(numbers) - 1), SHAPES[len(numbers)]
    )
    return {fold(shape, order, iter(ops)) for order, ops, shape in forms} - {None}


def reaches(numbers, target):
    """Join any two of the numbers by any step until one is left."""
    if len(numbers) == 1:
        return numbers[0] == target
    for i, j in itertools.permutations(range(len(numbers)), 2):
        rest = [n for place, n in enumerate(numbers) if place not in (i, j)]
        for op in "+-*/":
            value = whole_step(op, numbers[i], numbers[j])
            if value is not None and (i < j or op in "-/") and reaches([*rest, value], target):
                return True
    return False


SMALL = [
    *itertools.combinations_with_replacement(range(8), 2),
    *itertools.combinations_with_replacement(range(6), 3),
    (0, 0, 0, 0),
    (0, 1, 1, 2),
    (3, 3, 8, 8),
    (1, 5, 5, 5),
    (2, 4, 7, 12),
    (1, 2, 3, 4),
]


@pytest.mark.parametrize("numbers", SMALL)
def test_reachable_values_are_those_of_every_written_form(numbers):
    assert reachable(numbers) == every_value(numbers)


@pytest.mark.parametrize("numbers", SMALL)
def test_can_reach_and_solve_agree_with_the_reachable_values(numbers):
    values = every_value(numbers)
    for target in range(-2, max(values) + 3):
        assert can_reach(numbers, target) is (target in values)
        assert (solve(numbers, target, random.Random(0)) is not None) is (target in values)


def test_hands_of_four_that_reach_24():
    """Of the C(16, 4) = 1820 hands; with fractions on the way it would be 1362, (1, 5, 5, 5) among them."""
    hands = list(itertools.combinations_with_replacement(range(1, 14), 4))
    solvable = [hand for hand in hands if can_reach(hand, 24)]
    assert (len(hands), len(solvable)) == (1820, 1346)
    assert solvable == [hand for hand in hands if reaches(list(hand), 24)]


def test_splits_of_a_multiset_with_repeats():
    assert set(splits((1, 1, 2))) == {((1,), (1, 2)), ((2,), (1, 1))}
    assert set(splits((5, 5, 5, 5))) == {((5,), (5, 5, 5)), ((5, 5), (5, 5))}


def leaf(value):
    return Node(value)


def test_steps_and_text_of_a_known_solution():
    """4 * (8 - (5 - 3)) = 4 * (8 - 2) = 4 * 6 = 24."""
    two = Node(2, "-", leaf(5), leaf(3))
    node = Node(24, "*", leaf(4), Node(6, "-", leaf(8), two))
    assert node.steps() == ["5-3=2", "8-2=6", "4*6=24"]
    assert str(node) == "4*(8-(5-3))"


def tree(shape, numbers, ops):
    if isinstance(shape, int):
        return leaf(numbers[shape]), Fraction(numbers[shape])
    (left, a), (right, b) = tree(shape[0], numbers, ops), tree(shape[1], numbers, ops)
    op = next(ops)
    value = {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "/": lambda: a / b}[op]()
    return Node(0, op, left, right), value  # the text does not depend on the value of a node


def without_each_pair(text):
    """The text with one pair of parentheses taken out, for each pair."""
    open_at = []
    for place, letter in enumerate(text):
        if letter == "(":
            open_at.append(place)
        elif letter == ")":
            start = open_at.pop()
            yield text[:start] + text[start + 1 : place] + text[place + 1 :]


@pytest.mark.parametrize("shape", SHAPES[4])
def test_parentheses_keep_the_value_and_none_is_spare(shape):
    """Over primes no two forms are equal by chance, so a pair that can go is one that nothing needs."""
    for ops in itertools.product("+-*/", repeat=3):
        node, value = tree(shape, (7, 13, 29, 47), iter(ops))
        assert evaluate(str(node)) == (value, [7, 13, 29, 47])
        for shorter in without_each_pair(str(node)):
            assert evaluate(shorter)[0] != value, f"{node} could be {shorter}"


def test_solutions_are_drawn_from_more_than_one():
    texts = {str(solve((2, 3, 4, 6), 24, random.Random(seed))) for seed in range(30)}
    assert len(texts) > 5
    assert all(evaluate(text)[0] == 24 for text in texts)

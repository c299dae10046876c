"""The expression reader against hand arithmetic and against Python's own grammar."""

import ast
import operator
import re
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sgrpo_lightning.rewards.expression import ExpressionError, evaluate

FUZZ = settings(derandomize=True, max_examples=500, deadline=None)


@pytest.mark.parametrize(
    ("text", "value", "used"),
    [
        ("7", 7, [7]),
        ("0", 0, [0]),
        ("1+2*3", 7, [1, 2, 3]),
        ("(1+2)*3", 9, [1, 2, 3]),
        ("9-3-2", 4, [9, 3, 2]),  # (9 - 3) - 2, not 9 - 1 = 8
        ("9-(3-2)", 8, [9, 3, 2]),
        ("8/4/2", 1, [8, 4, 2]),  # (8 / 4) / 2, not 8 / 2 = 4
        ("8/4*2", 4, [8, 4, 2]),  # (8 / 4) * 2, not 8 / 8 = 1
        ("8-6/3+1", 7, [8, 6, 3, 1]),  # 8 - 2 + 1
        ("2*3-4*5", -14, [2, 3, 4, 5]),  # 6 - 20
        ("8/(3-8/3)", 24, [8, 3, 8, 3]),  # 8 / (1/3)
        ("6/(1-3/4)", 24, [6, 1, 3, 4]),  # 6 / (1/4)
        ("1/3+1/6", Fraction(1, 2), [1, 3, 1, 6]),
        ("  ( 10 - 4 ) *4  ", 24, [10, 4, 4]),
        ("0/5", 0, [0, 5]),
        ("9999999999999999999", 10**19 - 1, [10**19 - 1]),
    ],
)
def test_value_and_integers(text, value, used):
    result, integers = evaluate(text)
    assert (result, integers) == (value, used)
    assert type(result) is Fraction


SYMBOLS = """
2**3 2^3 7//2 7%2 -1 +1 2*-1 2--1 (-1) 2(3) (2)(3) (2)3 1.5 .5 5. 1e3 1j 1,2 1_000 1=1 8*3=24 1<2 1|2 1&2 ~1
01 00 007+1 0x1 0b1 () ( ) (1 1) )1( 1+ *1 1+*2 (1+)2 [1] {1} 1;2 1#2 1! '1' a x+1 True __import__('os')
\\frac{1}{2} ４ 1² ٣ 一 ½ 2×3 6÷2 3−1 1·2
""".split()  # noqa: RUF001, SIM905
SPACES = [
    "",
    " ",
    "( )",
    "1 2",
    "1 (2)",
    "1 + ",
    "1\t+2",
    "1\n+2",
    "1\r+2",
    "1\v+2",
    "1\u00a0+2",
    "1\u200b+2",
]
BROKEN = ["1\0", "\0", "\ud800", "1+\udfff", "1\x1c+2", "\ufeff1"]


@pytest.mark.parametrize("text", SYMBOLS + SPACES + BROKEN, ids=ascii)
def test_outside_the_grammar(text):
    with pytest.raises(ExpressionError):
        evaluate(text)


@pytest.mark.parametrize("text", ["1/0", "0/0", "1/(2-2)", "3*(1/(4/2-2))", "5/(1/3-2/6)"])
def test_division_by_zero_has_its_own_error(text):
    with pytest.raises(ZeroDivisionError):
        evaluate(text)


@pytest.mark.parametrize("text", ["1/0+", "1/0)", "1/0 2", "(1/0", "1/0**2"])
def test_grammar_is_checked_before_any_division(text):
    with pytest.raises(ExpressionError):
        evaluate(text)


def test_limits_are_exact():
    assert evaluate("1" + " " * 255)[1] == [1]
    with pytest.raises(ExpressionError, match="at most 256 characters, got 257"):
        evaluate("1" + " " * 256)
    assert evaluate("9" * 19)[1] == [10**19 - 1]
    with pytest.raises(ExpressionError, match="at most 19 digits"):
        evaluate("1" + "0" * 19)
    assert evaluate("1+1", max_length=3, max_digits=1)[0] == 2
    with pytest.raises(ExpressionError):
        evaluate("1+10", max_length=3)
    with pytest.raises(ExpressionError):
        evaluate("10", max_digits=1)


def test_the_length_bounds_the_nesting_and_the_values():
    assert evaluate("(" * 127 + "13" + ")" * 127) == (13, [13])
    # 1 - (1 - (1 - ... 1)), an odd number of ones
    assert evaluate("1" + "-(1" * 50 + ")" * 50) == (1, [1] * 51)
    assert evaluate("*".join(["9" * 19] * 12))[0] == (10**19 - 1) ** 12
    assert evaluate("1" + "/99" * 85)[0] == Fraction(1, 99**85)


Tree = int | tuple["Tree", str, "Tree"]
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
TREES = st.recursive(st.integers(0, 99), lambda tree: st.tuples(tree, st.sampled_from("+-*/"), tree), max_leaves=10)


def value_of(tree: Tree) -> Fraction:
    """The value of a tree, in which no text and no precedence is involved."""
    if isinstance(tree, int):
        return Fraction(tree)
    return OPERATORS[tree[1]](value_of(tree[0]), value_of(tree[2]))


def leaves_of(tree: Tree) -> list[int]:
    return [tree] if isinstance(tree, int) else leaves_of(tree[0]) + leaves_of(tree[2])


def fully_parenthesised(tree: Tree) -> str:
    if isinstance(tree, int):
        return f"({tree})"
    return f"({fully_parenthesised(tree[0])}{tree[1]}{fully_parenthesised(tree[2])})"


def sparsely_parenthesised(tree: Tree, least: int = 0) -> str:
    """Parentheses only where precedence and left association need them."""
    if isinstance(tree, int):
        return str(tree)
    rank = 1 if tree[1] in "+-" else 2
    text = f"{sparsely_parenthesised(tree[0], rank)} {tree[1]} {sparsely_parenthesised(tree[2], rank + 1)}"
    return f"({text})" if rank < least else text


def mirrored(tree: Tree) -> Tree:
    """Operands of + and * exchanged, at every level."""
    if isinstance(tree, int):
        return tree
    left, sign, right = mirrored(tree[0]), tree[1], mirrored(tree[2])
    return (right, sign, left) if sign in "+*" else (left, sign, right)


@FUZZ
@given(TREES)
def test_parentheses_spaces_and_commuting_keep_the_value(tree):
    texts = [fully_parenthesised(tree), sparsely_parenthesised(tree), f" (({sparsely_parenthesised(tree)})) "]
    value = verdict(lambda tree: (value_of(tree), []), tree)
    for text in texts:
        assert verdict(evaluate, text) == value, text
    assert verdict(evaluate, sparsely_parenthesised(mirrored(tree))) == value
    if value != "undefined":
        assert all(evaluate(text)[1] == leaves_of(tree) for text in texts)
        assert sorted(evaluate(fully_parenthesised(mirrored(tree)))[1]) == sorted(leaves_of(tree))


GRAMMAR = (ast.Expression, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Constant)


def reference(text: str) -> tuple[Fraction, list[int]]:
    """Value and integers by Python's own parser; SyntaxError for what the task does not allow."""
    tree = ast.parse(text.strip(" "), mode="eval")
    leaves: list[Any] = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    allowed = all(isinstance(node, GRAMMAR) for node in ast.walk(tree))
    integers = all(type(leaf.value) is int for leaf in leaves)
    if not (allowed and integers) or re.search(r"_|(?<![0-9])0[0-9]", text):
        raise SyntaxError("outside the task's grammar")
    return walk(tree.body), [leaf.value for leaf in sorted(leaves, key=lambda leaf: leaf.col_offset)]


def walk(node: Any) -> Fraction:
    if hasattr(node, "value"):
        return Fraction(node.value)
    sign = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}[type(node.op)]
    return OPERATORS[sign](walk(node.left), walk(node.right))


def verdict(function, text) -> Fraction | str:
    """The value, or why there is none."""
    try:
        return function(text)[0]
    except (SyntaxError, ExpressionError):
        return "refused"
    except ZeroDivisionError:
        return "undefined"


SYMBOL = st.sampled_from([*"01279+-*/() .,=%^_"])
WRITTEN = st.recursive(
    st.sampled_from(["0", "1", "2", "3", "13", "01"]),
    lambda text: st.one_of(
        st.tuples(text, st.sampled_from(["+", "-", "*", "/", " + ", "**", "//", ""]), text).map("".join),
        text.map("({})".format),
        text.map("-{}".format),
    ),
    max_leaves=10,
)


@FUZZ
@given(st.lists(SYMBOL, max_size=10).map("".join) | WRITTEN)
@example("1/0+2**3")
@example("1/(2-2)")
def test_agrees_with_pythons_parser(text):
    expected = verdict(reference, text)
    assert verdict(evaluate, text) == expected
    if isinstance(expected, Fraction):
        assert evaluate(text) == reference(text)


@FUZZ
@given(st.text(st.characters(exclude_categories=[])))
def test_any_text_has_a_value_or_one_of_two_errors(text):
    assert isinstance(verdict(evaluate, text), Fraction | str)

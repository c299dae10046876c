"""Exact value of an arithmetic expression written by an untrusted author."""

import operator
import re
from collections.abc import Callable, Iterable
from fractions import Fraction

Number = int | Fraction

_OPERATIONS: dict[str, Callable[[Number, Number], Number]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": Fraction,
}
_PRECEDENCE = {"(": 0, "+": 1, "-": 1, "*": 2, "/": 2}
_TOKEN = re.compile(r"[0-9]+|[^ ]")


class ExpressionError(ValueError):
    """The text is outside the grammar."""


def evaluate(expression: str, *, max_length: int = 256, max_digits: int = 19) -> tuple[Fraction, list[int]]:
    """Evaluate integers joined by `+ - * /` and parentheses, exactly.

        sum = product (("+" | "-") product)*
        product = atom (("*" | "/") atom)*
        atom = integer | "(" sum ")"

    Args:
        expression: the text. Outside its integers only `+ - * / ( )` and the space may appear.
        max_length: in characters, checked before anything is read. It also bounds the nesting, which lives
            on a list and not on the call stack, and the size of every intermediate value.
        max_digits: of one integer; the default holds any 64-bit one.

    Returns:
        The value, and the integers used, in order of appearance.

    Raises:
        ExpressionError: outside the grammar: signs in front of a number, powers, `//`, decimals, products
            without `*`, leading zeros, other alphabets' digits and operators, `=`, nothing at all.
        ZeroDivisionError: within the grammar, but without a value.

    >>> evaluate("8 / (3 - 8/3)")
    (Fraction(24, 1), [8, 3, 8, 3])
    """
    if len(expression) > max_length:
        raise ExpressionError(f"expected at most {max_length} characters, got {len(expression)}")
    postfix = _to_postfix(_TOKEN.findall(expression), max_digits)
    return Fraction(_fold(postfix)), [item for item in postfix if isinstance(item, int)]


def _to_postfix(tokens: Iterable[str], max_digits: int) -> list[int | str]:
    """Reorder with Dijkstra's shunting-yard: operands alternate with operators, all left-associative."""
    postfix: list[int | str] = []
    pending: list[str] = []
    expect_operand = True
    for token in tokens:
        if expect_operand and token == "(":
            pending.append(token)
        elif expect_operand:
            postfix.append(_read_integer(token, max_digits))
            expect_operand = False
        elif token == ")":
            _release(pending, postfix, 1)
            if not pending:
                raise ExpressionError("a parenthesis closes that was never opened")
            pending.pop()
        elif token in _OPERATIONS:
            _release(pending, postfix, _PRECEDENCE[token])
            pending.append(token)
            expect_operand = True
        else:
            raise ExpressionError(f"expected an operator, got {token!r}")
    if expect_operand or "(" in pending:
        raise ExpressionError("the expression ends too early")
    return postfix + pending[::-1]


def _release(pending: list[str], postfix: list[int | str], precedence: int) -> None:
    """Move the operators that bind at least this tightly to the output."""
    while pending and _PRECEDENCE[pending[-1]] >= precedence:
        postfix.append(pending.pop())


def _read_integer(token: str, max_digits: int) -> int:
    """Read one plain decimal integer: ASCII digits, no leading zero."""
    if not (token.isascii() and token.isdigit()):
        raise ExpressionError(f"expected an integer, got {token!r}")
    if len(token) > max_digits or (token[0] == "0" and token != "0"):
        raise ExpressionError(f"expected at most {max_digits} digits and no leading zero, got {token!r}")
    return int(token)


def _fold(postfix: list[int | str]) -> Number:
    """Evaluate postfix; values stay `int` until a division, which is several times faster."""
    values: list[Number] = []
    for item in postfix:
        if isinstance(item, str):
            right, left = values.pop(), values.pop()
            values.append(_OPERATIONS[item](left, right))
        else:
            values.append(item)
    return values.pop()

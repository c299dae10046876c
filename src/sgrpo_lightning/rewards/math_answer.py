"""Finds the answer in a completion that was asked to box it."""

from __future__ import annotations

import re

_EVENT = re.compile(
    r"""(?P<box> \\{1,2} (?:boxed|fbox) \s* \{ )     # one backslash too many is common
    | \\.                                            # an escaped character, so also a brace that is only printed
    | (?P<brace> \{ ) | (?P<close> \} )
    | ^ \#{4} [ \t]* (?P<line> (?= \S*[0-9] ) [^\s\\{}]+ ) [ \t\r]* $
    """,
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)


def read_math_answer(completion: object) -> str | None:
    r"""Return the content of the last `\boxed{...}` or `\fbox{...}`, or of a line `#### 18`, after the thinking.

    The thinking ends at the last `</think>`. Boxes are found by scanning, so braces nest; an escaped brace, `\{`
    or `\}`, is not one. Time and memory are linear in the length.

    Args:
        completion: the generated text; anything but a `str` has no answer.

    Returns:
        The answer without surrounding whitespace, never empty, or None.

    Edge cases:
        No think tag at all: the whole text is read. `<think>` after the last `</think>`: None. A box that is never
        closed, or that is empty (as in the instruction, when a completion repeats it), is passed over. Of nested
        boxes the innermost counts. `\boxed 5`, without braces, is no box, and `<answer>5</answer>` is no answer:
        the prompt asks for a box. A line `#### ...` is GSM8K's form if it holds one word with a digit and no LaTeX;
        `#### Step 2: add` is a heading. There is no fallback to a number in the text.

    >>> read_math_answer(r"<think>\boxed{1}?</think> So \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    >>> read_math_answer("She sells 9 * 2 = 18 eggs.\n#### 18")
    '18'
    >>> read_math_answer("The answer is 18.") is None
    True
    """
    if not isinstance(completion, str):
        return None
    spoken = completion.rpartition("</think>")[2]
    return None if "<think>" in spoken else _last_answer(spoken)


def _last_answer(text: str) -> str | None:
    """Of the complete answers that hold something, the one that begins last."""
    answer, begun = None, -1
    opened: list[int] = []  # of each open brace: where the content of its box begins, -1 if it is no box's
    for event in _EVENT.finditer(text):
        kind = event.lastgroup
        if kind in ("box", "brace"):
            opened.append(event.end() if kind == "box" else -1)
            continue
        start, end = event.span("line")
        if kind == "close" and opened:
            start, end = opened.pop(), event.start()
        if start > begun and (content := text[start:end].strip()):
            answer, begun = content, start
    return answer

"""Finds the answer in a think-then-answer completion."""


def read_answer(completion: object) -> str | None:
    """Return the last closed answer of `<think>...</think><answer>...</answer>`.

    The thinking ends at the last `</think>`; the answer runs from the last `<answer>` that is closed after
    it to the nearest `</answer>`. Time and memory are linear in the length.

    Args:
        completion: the generated text; anything but a `str` has no answer. Where the prompt itself opens
            the thinking, pass `"<think>" + completion` to refuse a completion that never closes it.

    Returns:
        The answer without its surrounding ASCII whitespace, perhaps empty, or None.

    Edge cases:
        No think tag at all: the whole text is read. Only `</think>`: what follows is read. `<think>` after
        the last `</think>`: None. Answers within the thinking, or not closed, are passed over. Of nested
        answers the innermost counts. Tags are matched letter for letter.

    >>> read_answer("<think>2*3? No.</think> So: <answer> 8*3 </answer> Done.")
    '8*3'
    >>> read_answer("<think><answer>8*3</answer>") is None
    True
    """
    if not isinstance(completion, str):
        return None
    spoken = completion.rpartition("</think>")[2]
    if "<think>" in spoken:
        return None
    _, opening, rest = spoken.rpartition("</answer>")[0].rpartition("<answer>")
    return rest.partition("</answer>")[0].strip(" \t\r\n") if opening else None

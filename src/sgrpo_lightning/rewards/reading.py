"""Finds what is answered in a think-then-answer completion."""


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
    spoken = _spoken(completion)
    if spoken is None:
        return None
    _, opening, rest = spoken.rpartition("</answer>")[0].rpartition("<answer>")
    return rest.partition("</answer>")[0].strip(" \t\r\n") if opening else None


def read_response(completion: object) -> str | None:
    """Return what a completion says after its thinking, for tasks that have no right answer.

    That is its last closed `<answer>...</answer>`, as `read_answer` finds it, or else all that follows the
    last `</think>`.

    Args:
        completion: the generated text; anything but a `str` says nothing.

    Returns:
        The response without the whitespace around it, never empty, or None.

    Edge cases:
        No think tag at all: the whole text. `<think>` after the last `</think>`, nothing but whitespace
        after it, or nothing but that in the answer: None. An answer that is not closed is kept, tag and all.

    >>> read_response("<think>Short or long?</think> Snow falls. ")
    'Snow falls.'
    >>> read_response("<think>Short or long? Snow falls.") is None
    True
    """
    answer = read_answer(completion)
    spoken = _spoken(completion) if answer is None else answer
    return (spoken or "").strip() or None


def read_reference(reference: str) -> str:
    """Return what a reference says after its thinking, as a demonstration may have; all of it if that is nothing.

    >>> read_reference("<think>Short or long?</think>Snow falls."), read_reference("<think>")
    ('Snow falls.', '<think>')
    """
    return read_response(reference) or reference


def with_thinking_open(completion: object) -> object:
    """Put the `<think>` in front that a prompt has written already; what is no `str` stays as it is.

    >>> with_thinking_open("Short or long?</think>Snow falls.")
    '<think>Short or long?</think>Snow falls.'
    """
    return f"<think>{completion}" if isinstance(completion, str) else completion


def _spoken(completion: object) -> str | None:
    """What follows the last `</think>`, None where the thinking goes on after it."""
    if not isinstance(completion, str):
        return None
    spoken = completion.rpartition("</think>")[2]
    return None if "<think>" in spoken else spoken

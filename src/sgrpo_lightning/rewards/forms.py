"""One form for texts that read the same, in linear time whatever they hold."""

import unicodedata

import regex

# Sorting a run of marks takes quadratic time; Unicode's stream-safe texts have at most 30 (UAX 15). The two letters
# become marks in NFKC.
_MARKS_BEYOND_30 = regex.compile(r"(?<=[\p{M}\uff9e\uff9f]{30})[\p{M}\uff9e\uff9f]+")


def folded(text: str, *, ignore_case: bool = True) -> str:
    """Unicode's NFKC form, in which full-width, super- and subscript characters are plain ones; perhaps without case.

    >>> folded("Ｓnow²")
    'snow2'
    """
    text = unicodedata.normalize("NFKC", _MARKS_BEYOND_30.sub("", text))
    # Folding can leave the form that was just reached.
    return unicodedata.normalize("NFKC", text.casefold()) if ignore_case else text


def plain(text: str, *, ignore_case: bool = True) -> str:
    """`folded`, with one space for each run of whitespace and none at the ends.

    >>> plain("  New\\n York ")
    'new york'
    """
    return " ".join(folded(text, ignore_case=ignore_case).split())

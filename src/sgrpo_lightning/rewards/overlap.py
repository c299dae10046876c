r"""Overlap of two texts in words: F1 as SQuAD's script has it, ROUGE-L as the package rouge-score has it.

Both are 2 * common / (words of one + words of the other). For F1, `common` counts the words that both hold, in any
order; for ROUGE-L it is the length of their longest common subsequence. Which words a text has:

- `rouge`, for ROUGE-L: lower case, runs of `a-z` and `0-9`. For F1: lower case without ASCII punctuation and without
  `a`, `an`, `the`, split at whitespace. These are the values of rouge-score as it comes, without its Porter stemmer,
  and of the SQuAD v1.1 script. A text without ASCII letters and digits has no words for ROUGE-L.
- `unicode`, for ROUGE-L: NFKC and case folding, runs of letters, digits and marks of any script. For F1: the same, once
  punctuation and symbols are taken out, without `a`, `an`, `the`. Chinese, Japanese, Thai, Lao, Khmer and Burmese,
  which put no spaces between words, go character by character. On ASCII both tokenizers agree.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal

import regex
from rapidfuzz.distance import LCSseq

from sgrpo_lightning.rewards.forms import folded

Tokenizer = Literal["rouge", "unicode"]
Measure = Callable[[str], float]
"""text -> its overlap with a reference, in [0, 1]."""
Reader = Callable[[str], list[str]]
"""text -> its words."""

_KEPT = (string.ascii_lowercase + string.digits).encode()
_OTHERS_TO_BLANKS = bytes(code if code in _KEPT else ord(" ") for code in range(256))
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")

_UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
_WORD = regex.compile(rf"(?V1)[{_UNSPACED}--\p{{M}}]\p{{M}}*|[[\p{{L}}\p{{N}}\p{{M}}]--{_UNSPACED}]+")
_PUNCTUATION = regex.compile(r"[\p{P}\p{S}]+")


def squad_f1(prediction: str, reference: str, *, tokenizer: Tokenizer = "rouge") -> float:
    """Return the F1 of the words of two texts, order aside, as the script of SQuAD v1.1 does.

    Args:
        prediction: any text.
        reference: the text to compare it with; swapping the two changes nothing.
        tokenizer: `rouge` or `unicode`, see above.

    Returns:
        2 * (words in common, each as often as both have it) / (words of both), in [0, 1].

    Edge cases:
        0 where either has no word, as an empty text or punctuation alone; also where both have none (SQuAD 2.0, which
        has questions without answer, gives 1 there).

    >>> round(squad_f1("The cat sat.", "A cat sat down!"), 3)  # cat, sat: 2 * 2 / (2 + 3)
    0.8

    Reference: Appendix B.5.
    """
    return f1_against(reference, tokenizer=tokenizer)(prediction)


def rouge_l(prediction: str, reference: str, *, tokenizer: Tokenizer = "rouge") -> float:
    """Return ROUGE-L's F-measure, as rouge-score does.

    Args:
        prediction: any text.
        reference: the text to compare it with; swapping the two changes nothing.
        tokenizer: `rouge` or `unicode`, see above.

    Returns:
        2 * (length of the longest common subsequence of words) / (words of both), in [0, 1].

    Edge cases:
        0 where either or both have no word. Time grows as |prediction| * |reference| / 64 words: 32,768
        words against as many take 0.25 s.

    >>> rouge_l("down sat the cat", "the cat sat down")  # the cat: 2 * 2 / (4 + 4)
    0.5
    >>> rouge_l("落花", "落花"), rouge_l("落花", "落花", tokenizer="unicode")
    (0.0, 1.0)

    Reference: Appendix B.5.
    """
    return rouge_l_against(reference, tokenizer=tokenizer)(prediction)


def f1_against(reference: str, *, tokenizer: Tokenizer = "rouge") -> Measure:
    """Return `squad_f1` of any text with one reference, whose words are read once."""
    read = _reader(_F1_WORDS, tokenizer)
    counts = Counter(read(reference))
    total = counts.total()

    def measure(prediction: str) -> float:
        words = read(prediction)
        return _f_measure((Counter(words) & counts).total(), len(words), total)

    return measure


def rouge_l_against(reference: str, *, tokenizer: Tokenizer = "rouge") -> Measure:
    """Return `rouge_l` of any text with one reference, whose words are read once."""
    read = _reader(_ROUGE_WORDS, tokenizer)
    words = read(reference)
    # Numbers from 0, as those below 256 are fastest to compare. They stand for this reference's words alone, so two
    # words never share one, and a word that it lacks, which no common subsequence holds, needs none.
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    numbered = [numbers[word] for word in words]

    def measure(prediction: str) -> float:
        given = read(prediction)
        common = LCSseq.similarity(numbered, [numbers[word] for word in given if word in numbers])
        return _f_measure(common, len(given), len(words))

    return measure


def _f_measure(common: int, one: int, other: int) -> float:
    return 2 * common / (one + other) if common else 0.0


def _reader(readers: Mapping[str, Reader], tokenizer: str) -> Reader:
    if tokenizer not in readers:
        raise ValueError(f"tokenizer must be one of {', '.join(readers)}, got {tokenizer!r}")
    return readers[tokenizer]


def _rouge_words(text: str) -> list[str]:
    return text.lower().encode("ascii", "replace").translate(_OTHERS_TO_BLANKS).decode().split()


def _squad_words(text: str) -> list[str]:
    return _ARTICLE.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split()


def _unicode_words(text: str) -> list[str]:
    return _rouge_words(text) if text.isascii() else _WORD.findall(folded(text))  # the same, but faster


def _unicode_squad_words(text: str) -> list[str]:
    if text.isascii():
        return _squad_words(text)
    words = _WORD.findall(_PUNCTUATION.sub("", folded(text)))
    return [word for word in words if word not in ("a", "an", "the")]


_F1_WORDS = {"rouge": _squad_words, "unicode": _unicode_squad_words}
_ROUGE_WORDS = {"rouge": _rouge_words, "unicode": _unicode_words}

"""Which rows train and which are held out, without a question on both sides."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Generic, TypeVar, overload

from sgrpo_lightning.rewards.forms import plain
from sgrpo_lightning.tasks.rows import Question

Item = TypeVar("Item", covariant=True)
Placed = Iterable[tuple[int, Question | None]]
"""Places of rows and their questions; None for a row that cannot be used."""


class Chosen(Sequence[Item], Generic[Item]):
    """Some items of a sequence, each made when it is asked for: only their places are held in memory."""

    def __init__(self, items: Any, places: Sequence[int], make: Callable[[Any], Item] = lambda item: item) -> None:
        self._items, self._places, self._make = items, places, make

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Chosen[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | Chosen[Item]:
        if isinstance(index, slice):
            return Chosen(self._items, self._places[index], self._make)
        return self._make(self._items[self._places[index]])


@dataclass(slots=True)
class Split:
    """Places of rows on either side, and how many rows were left out for which reason."""

    train: list[int] = field(default_factory=list)
    held_out: list[int] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


UNUSABLE = "without a question or an answer"
SHARED = "for training with a held-out question"
REPEATED = "held out with a question seen before"


def question_key(text: str) -> bytes:
    """Equal for questions that differ in case, spacing or Unicode form alone."""
    return blake2b(plain(text).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def is_held_out(key: bytes, *, fraction: float, seed: int) -> bool:
    """A hash decides: the side of a question never depends on which other rows there are."""
    return random.Random(f"questions {seed} {key.hex()}").random() < fraction


def split_as_given(train: Placed, held_out: Placed) -> Split:
    """Data with a held-out split of its own; training rows that ask one of its questions are left out."""
    split, keys = Split(), set[bytes]()
    for place, question in held_out:
        _hold_out(place, question, split, keys)
    for place, question in train:
        if question is not None and question_key(question.text) in keys:
            split.left_out[SHARED] += 1
        elif question is not None:
            split.train.append(place)
        else:
            split.left_out[UNUSABLE] += 1
    return split


def split_by_question(
    rows: Placed, *, fraction: float, seed: int, enough: Callable[[Split], bool] = lambda _: False
) -> Split:
    """Data without one: all rows of a question go to the side that its hash says.

    Args:
        rows: in the order in which they are taken.
        fraction: of the questions that is held out.
        enough: looked at after each row; True ends the reading.
    """
    split, keys = Split(), set[bytes]()
    for place, question in rows:
        if question is None or is_held_out(question_key(question.text), fraction=fraction, seed=seed):
            _hold_out(place, question, split, keys)
        else:
            split.train.append(place)
        if enough(split):
            break
    return split


def _hold_out(place: int, question: Question | None, split: Split, keys: set[bytes]) -> None:
    """Add a row whose question is new to the held-out side; count any other."""
    if question is None:
        split.left_out[UNUSABLE] += 1
    elif (key := question_key(question.text)) in keys:
        split.left_out[REPEATED] += 1
    else:
        keys.add(key)
        split.held_out.append(place)

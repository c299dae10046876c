"""Questions of a data set, on two sides: those to train on and those held out."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sgrpo_lightning.tasks.files import Rows, load_splits, named_split
from sgrpo_lightning.tasks.rows import Question, Row, read_pair
from sgrpo_lightning.tasks.split import Chosen, Placed, Split, split_as_given, split_by_question

Reader = Callable[[Row], Question | None]


@dataclass(frozen=True, slots=True)
class Sides:
    """Questions, read from their rows when they are asked for, and how many rows were left out for which reason."""

    train: Chosen[Question]
    held_out: Chosen[Question]
    left_out: Counter[str]


def load_questions(
    data: str,
    *,
    read: Reader = read_pair,
    subset: str | None = None,
    train_split: str = "train",
    held_out_split: str = "test",
    held_out_data: str | None = None,
    held_out_subset: str | None = None,
    held_out_fraction: float = 0.1,
    split_seed: int = 0,
    train_size: int | None = None,
    held_out_size: int | None = None,
) -> Sides:
    """Questions of a file, a folder or a hub data set.

    Data with a split named `held_out_split` is held out by it; of other data, a hash of each question decides.
    Either way no question is on both sides, whatever its case or spacing.

    Args:
        data: a .jsonl/.json/.csv/.parquet file, a folder or a hub id.  subset: of a hub data set.
        read: row -> Question, None for a row to leave out. The default reads the columns `prompt` and `answer`.
        train_split, held_out_split: names of splits.
        held_out_data, held_out_subset: where the held-out split comes from, if not from `data`.
        held_out_fraction: of the questions, where no split is held out.  split_seed: which these are.
        train_size, held_out_size: keep a random subset of so many; None keeps all. With both, rows that are not
            needed are not read.

    Raises:
        ValueError: data that cannot be loaded, a split or column that it lacks, a fraction outside of (0, 1).
    """
    if not 0 < held_out_fraction < 1:
        raise ValueError(f"task.held_out_fraction must lie in (0, 1), got {held_out_fraction}")
    splits = load_splits(data, subset=subset)
    rows, rng = named_split(splits, train_split, data), random.Random(f"subset {split_seed}")
    others = load_splits(held_out_data, subset=held_out_subset) if held_out_data else splits
    if held_out_data or held_out_split in others:
        other = named_split(others, held_out_split, held_out_data or data)
        split = split_as_given(_questions(rows, read, data), _questions(other, read, held_out_data or data))
    else:
        other, order = rows, list(range(len(rows)))
        if train_size is not None and held_out_size is not None:
            order = rng.sample(order, len(order))
        placed = _questions(rows, read, data, order)
        sizes = (train_size, held_out_size)
        split = split_by_question(placed, fraction=held_out_fraction, seed=split_seed, enough=lambda s: _full(s, sizes))
    return Sides(
        Chosen(rows, _some(split.train, train_size, rng), read),  # type: ignore[arg-type]
        Chosen(other, _some(split.held_out, held_out_size, rng), read),  # type: ignore[arg-type]
        split.left_out,
    )


def _questions(rows: Rows, read: Reader, data: str, order: Sequence[int] | None = None) -> Placed:
    """Each row's place and question. A column that is not there is a mistake in the settings, not a bad row."""
    for place in range(len(rows)) if order is None else order:
        try:
            yield place, read(rows[place])
        except KeyError as error:
            raise ValueError(
                f"task.data={data}: no column {error.args[0]}; there are {', '.join(rows.column_names)}"
            ) from error
        except (AttributeError, IndexError, TypeError, ValueError):
            yield place, None


def _full(split: Split, sizes: tuple[int | None, int | None]) -> bool:
    return None not in sizes and len(split.train) >= sizes[0] and len(split.held_out) >= sizes[1]  # type: ignore[operator]


def _some(places: list[int], size: int | None, rng: random.Random) -> list[int]:
    """At most `size` of the places, in the order of the rows."""
    return sorted(places if size is None or size >= len(places) else rng.sample(places, size))

"""Rows of a local file, a local folder or a hub data set, through `datasets`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_READERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}

Rows = Any
"""A `datasets.Dataset`: rows on disk, read when they are asked for."""


def load_splits(source: str, *, subset: str | None = None) -> Mapping[str, Rows]:
    """Every split of `source` by its name.

    Args:
        source: a .jsonl, .json, .csv or .parquet file, which is one split `train`; a folder of such files, whose
            names say the split (train.jsonl, test.jsonl); or a hub id.
        subset: of a hub data set that has several.
    """
    import datasets

    path = Path(source).expanduser()
    if path.is_file() and path.suffix not in _READERS:
        raise ValueError(f"task.data={source}: expected one of {', '.join(_READERS)}, got {path.suffix or 'no ending'}")
    if path.suffix in _READERS and not path.is_file():
        raise ValueError(f"task.data={source}: no such file")
    try:
        if path.is_file():
            return datasets.load_dataset(_READERS[path.suffix], data_files=str(path))
        return datasets.load_dataset(str(path)) if path.is_dir() else datasets.load_dataset(source, subset)
    except Exception as error:  # `datasets` has many, for a hub out of reach as for a file that is not what it seems
        reason = str(error.__cause__ or error).splitlines()[0]
        raise ValueError(
            f"task.data={source} cannot be loaded: {reason}\n  task.data=<file or folder> reads rows from disk"
        ) from error


def load_rows(source: str, *, columns: Sequence[str] = (), split: str = "train", subset: str | None = None) -> Rows:
    """The rows of one split as dictionaries with at least `columns`."""
    rows = named_split(load_splits(source, subset=subset), split, source)
    missing = [name for name in columns if name not in rows.column_names]
    if missing:
        raise ValueError(f"task.data={source}: needs the columns {list(columns)}, has {list(rows.column_names)}")
    return rows


def named_split(splits: Mapping[str, Rows], name: str, source: str) -> Rows:
    """One of the splits of `source`; ValueError with those that there are."""
    if name not in splits:
        raise ValueError(f"task.data={source}: no split {name!r}; there are {', '.join(splits)}")
    return splits[name]

"""Rows of a local file, a local folder or a hub data set, through `datasets`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_READERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}


def load_rows(source: str, *, columns: Sequence[str], split: str = "train") -> Iterable[dict[str, Any]]:
    """The rows of `source` as dictionaries with at least `columns`.

    Args:
        source: a .jsonl, .json, .csv or .parquet file, a folder of such files, or a hub id.
        columns: what each row must have.
        split: which split of a folder or hub data set.
    """
    import datasets

    path = Path(source).expanduser()
    if path.is_file():
        if path.suffix not in _READERS:
            raise ValueError(
                f"task.data={source}: expected one of {', '.join(_READERS)}, got {path.suffix or 'no ending'}"
            )
        rows = datasets.load_dataset(_READERS[path.suffix], data_files=str(path), split="train")
    elif path.suffix in _READERS:
        raise ValueError(f"task.data={source}: no such file")
    else:
        rows = datasets.load_dataset(str(path) if path.is_dir() else source, split=split)
    missing = [name for name in columns if name not in rows.column_names]
    if missing:
        raise ValueError(f"task.data={source}: needs the columns {list(columns)}, has {rows.column_names}")
    return rows

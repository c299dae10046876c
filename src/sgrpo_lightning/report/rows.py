"""The rows of a run, as they lie in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Row = dict[str, float]


def read_rows(run_dir: str | Path) -> list[Row]:
    """The rows of a run; none where it wrote none."""
    path = Path(run_dir) / "metrics.jsonl"
    return read_whole_lines(path) if path.is_file() else []


def read_whole_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file, one a line; a last line that a kill cut short is left out."""
    with path.open(encoding="utf-8") as file:  # its lines end in newlines alone; `splitlines` would cut at U+2028 too
        return [json.loads(line) for line in file if line.endswith("}\n")]

"""The rows of a run, as they lie in its folder."""

from __future__ import annotations

import json
from pathlib import Path

Row = dict[str, float]


def read_rows(run_dir: str | Path) -> list[Row]:
    """The rows of a run; a last line that a kill cut short is left out."""
    path = Path(run_dir) / "metrics.jsonl"
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("}\n")]

"""How long the notebooks take at their full settings, against the limit of two minutes on two cores.

`python benchmarks/notebooks.py [number ...]` runs each in a kernel of its own, from an empty cache, and prints its
seconds, those without the start of the kernel and the imports, and the ratio to the limit.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

LIMIT = 120.0  # seconds
FOLDER = Path(__file__).resolve().parents[1] / "notebooks"


class Timed(NotebookClient):
    """Notes when the cell of the imports, the third, has run."""

    imported = 0.0

    async def async_execute_cell(self, cell, cell_index, **kwargs):  # type: ignore[no-untyped-def]
        done = await super().async_execute_cell(cell, cell_index, **kwargs)
        if cell_index == 2:
            self.imported = time.perf_counter()
        return done


def seconds(path: Path) -> tuple[float, float]:
    """Of the whole notebook, and of what comes after its imports."""
    book = nbformat.read(path, as_version=4)
    client = Timed(book, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}})
    with tempfile.TemporaryDirectory() as cache:
        began = time.perf_counter()
        client.execute(env=os.environ | {"XDG_CACHE_HOME": cache})
    ended = time.perf_counter()
    return ended - began, ended - client.imported


def main(*numbers: str) -> None:
    """Print a line a notebook."""
    print(f"{'notebook':36}{'seconds':>9}{'after imports':>15}{'of the limit':>14}")
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not numbers or path.stem[:2] in numbers:
            whole, after = seconds(path)
            print(f"{path.stem:36}{whole:9.1f}{after:15.1f}{whole / LIMIT:14.2f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

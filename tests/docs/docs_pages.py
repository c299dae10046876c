"""The pages of this project, and how to read their tables and blocks."""

import doctest
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
README, OBJECTIVES, METRICS, LOG = (
    (ROOT / name).read_text(encoding="utf-8")
    for name in ("README.md", "docs/objectives.md", "docs/metrics.md", "docs/LOG.md")
)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TINY = ["model=scratch", "model.hidden_size=32", "model.layers=1", "model.heads=1", "trainer.accelerator=cpu"]


def tables(page: str) -> Iterator[list[dict[str, str]]]:
    """Every table of a page: its rows, keyed by their column heads."""
    for lines in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        heads, _, *rows = ([cell.strip() for cell in line.strip("|\n").split("|")] for line in lines.splitlines())
        yield [dict(zip(heads, row, strict=True)) for row in rows]


def table(page: str, *columns: str) -> dict[str, dict[str, str]]:
    """The rows of all tables that have these columns, by the code in the first of them."""
    rows = [row for found in tables(page) if set(columns) <= set(found[0]) for row in found]
    assert rows, f"no table has the columns {columns}"
    return {code(row[columns[0]])[0]: row for row in rows}


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]*)`", cell)


def block(language: str, *, after: str = "") -> str:
    """The first fenced block of the README in that language, or the one that follows a line."""
    found = re.search(rf"{re.escape(after)}\s*```{language}\n(.*?)```", README, re.DOTALL)
    assert found, f"no {language} block after {after!r}"
    return found[1]


def written(folder: Path) -> Path:
    """The README's new objective and new task as files: a module, and a configuration folder beside it."""
    for group in ("objective", "task"):
        (folder / group).mkdir(parents=True)
    (folder / "task/capitals.yaml").write_text(block("yaml", after="`my_conf/task/capitals.yaml`:"))
    (folder / "objective/win_rate.yaml").write_text(block("yaml", after="`conf/objective/win_rate.yaml`"))
    (folder / "win_rate.py").write_text(block("python", after="`src/sgrpo_lightning/heads/win_rate.py`"))
    return folder


def run_examples(page: Path) -> int:
    failed, attempted = doctest.testfile(str(page), module_relative=False)
    assert attempted > 0
    return failed

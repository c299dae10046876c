"""The notebooks, and how to run one."""

import base64
import os
import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from places import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
EXAMPLES = re.compile(r"```python\n(.*?)```", re.DOTALL)

RUN_EXAMPLES = """
import doctest

examples = doctest.DocTestParser().get_doctest({text!r}, dict(globals()), "answers", None, 0)
runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
runner.run(examples)
assert runner.tries == {count} and not runner.failures
"""


def read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def tagged(book: NotebookNode, tag: str) -> list[int]:
    return [place for place, cell in enumerate(book.cells) if tag in cell.metadata.get("tags", [])]


def answers(book: NotebookNode) -> list[str]:
    """The examples in the text, which are those of the answers."""
    return [block for cell in book.cells if cell.cell_type == "markdown" for block in EXAMPLES.findall(cell.source)]


def run(book: NotebookNode, settings: dict, *, folder: Path = ROOT / "notebooks", **environment: str) -> NotebookNode:
    """Executes a notebook in a kernel of its own, then its answers; `settings` replace those of its settings cell."""
    lines = "\n".join(f"{name} = {value!r}" for name, value in settings.items())
    (place,) = tagged(book, "parameters")
    book.cells.insert(place + 1, nbformat.v4.new_code_cell(lines))
    text = "\n".join(answers(book))
    book.cells.append(nbformat.v4.new_code_cell(RUN_EXAMPLES.format(text=text, count=text.count(">>> "))))
    client = NotebookClient(book, kernel_name="python3", timeout=240, resources={"metadata": {"path": str(folder)}})
    return client.execute(env=os.environ | {"OMP_NUM_THREADS": "1"} | environment)


def pictures(cell: NotebookNode) -> list[bytes]:
    """The PNGs that a code cell shows."""
    found = [output["data"]["image/png"] for output in cell["outputs"] if "image/png" in output.get("data", {})]
    return [base64.b64decode(image) for image in found]


def under_sliders(book: NotebookNode) -> list[list[bytes]]:
    """The PNGs of each group of sliders in a notebook that was executed."""
    widgets = book.metadata.get("widgets", {}).get("application/vnd.jupyter.widget-state+json", {}).get("state", {})
    return [pictures(widget["state"]) for widget in widgets.values() if widget["model_name"] == "OutputModel"]


def printed(cell: NotebookNode, stream: str) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream" and output.name == stream)

"""Each notebook: its form, and all of it run on small settings, the answers to its exercises too."""

import ast
import io
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import nbformat
import numpy as np
import pytest
import yaml
from books import NOTEBOOKS, answers, pictures, printed, read, run, tagged, under_sliders
from IPython.core.interactiveshell import InteractiveShell
from PIL import Image
from places import ROOT

SMALL = {
    "01_where_does_the_gradient_go": {"groups": 500, "points": 50},
    "02_from_tau_to_an_objective": {"points": 50, "learners": 20, "steps": 40},
    "03_three_reward_levels": {"sizes": [2, 4], "rows": 6, "legs": 12},
    "04_choosing_tau": {
        "points": 20,
        "distributions": 300,
        "gaussian_groups": 20,
        "large_group": 1000,
        "noise_draws": 20,
    },
    "05_imagenet_in_a_minute": {
        "classes": 8,
        "steps": 2,
        "steps_per_row": 1,
        "batch_size": 8,
        "group_sizes": [2, 4, 8],
    },
    "06_bring_your_own_head": {
        "points": 21,
        "curl_powers": 4,
        "iterations": 1,
        "prompts": 2,
        "every": 5,
        "questions": 4,
        "answers": 2,
    },
    "07_a_real_run_read": {"iterations": (1, 80), "window": 1},
}

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_of(book):
    return [cell for cell in book.cells if cell.cell_type == "code"]


def with_sliders(book):
    return [cell for cell in code_of(book) if "\nexplore(" in cell.source]


def plain(source):
    """Without the lines that only IPython reads."""
    return re.sub(r"^(\s*)[%!].*$", r"\1pass", source, flags=re.MULTILINE)


def test_there_are_seven():
    assert [path.stem[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05", "06", "07"]
    assert set(SMALL) == {path.stem for path in NOTEBOOKS}


@each_notebook
def test_nothing_of_a_run_is_kept(path):
    book = read(path)
    assert set(book.metadata) <= {"kernelspec", "language_info"}
    for cell in code_of(book):
        assert (cell.outputs, cell.execution_count) == ([], None)
    assert {key for cell in book.cells for key in cell.metadata} <= {"tags"}


@each_notebook
def test_a_question_first_and_three_exercises_last(path):
    """A title, a question in bold, the cell that installs; in the end three exercises, each with a folded answer."""
    first, *middle = read(path).cells[:-3]
    exercises = read(path).cells[-3:]
    title, question = re.match(r"# (.+)\n\n\*\*(.+?)\*\*", first.source).groups()
    assert title
    assert question.endswith("?")
    assert middle[0].source == read(NOTEBOOKS[0]).cells[1].source
    assert middle[-1].source.endswith("## Exercises")
    for number, cell in enumerate(exercises, 1):
        pattern = rf"\*\*{number}\.\*\* .+\n\n<details><summary>Answer</summary>\n\n.+\n\n</details>"
        assert re.fullmatch(pattern, cell.source, re.DOTALL)
        assert ">>> " in cell.source


@each_notebook
def test_only_public_functions_are_called(path):
    for cell in code_of(read(path)):
        for node in ast.walk(ast.parse(plain(cell.source))):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in ("sgrpo_lightning", "datamodules"):
                public = getattr(import_module(node.module), "__all__", None)
                assert {alias.name for alias in node.names} <= set(public or vars(import_module(node.module)))
                assert not [alias.name for alias in node.names if alias.name.startswith("_")]


@each_notebook
def test_small_settings_are_settings(path):
    book = read(path)
    (place,) = tagged(book, "parameters")
    names = {node.targets[0].id for node in ast.parse(book.cells[place].source).body}
    assert set(SMALL[path.stem]) <= names


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """(path) -> the notebook after its run, which takes place once."""
    done = {}

    def execute(path):
        if path not in done:
            done[path] = run(read(path), SMALL[path.stem], XDG_CACHE_HOME=str(tmp_path_factory.mktemp("cache")))
        return done[path]

    return execute


@each_notebook
def test_it_runs_and_its_answers_hold(path, executed):
    """A cell that ends in a figure shows one; nothing is written to stderr; the examples of the answers are run."""
    assert len(answers(read(path))) >= 3
    shown = 0
    for cell in code_of(executed(path)):
        assert printed(cell, "stderr") == ""
        if cell.source.rstrip().endswith("\nfigure"):
            shown += len(pictures(cell))
            assert len(pictures(cell)) == 1
    assert shown >= 4
    assert [len(images) for images in under_sliders(executed(path))] == [1] * len(with_sliders(read(path)))


def test_some_have_sliders():
    assert sum(len(with_sliders(read(path))) for path in NOTEBOOKS) == 5


def test_the_figure_of_the_readme_is_the_first_figure(executed):
    """Up to how two versions of a font or of matplotlib draw a line: 3 of 255 on average."""
    drawn = next(pictures(cell)[0] for cell in code_of(executed(NOTEBOOKS[0])) if pictures(cell))
    kept = Image.open(ROOT / "docs/where_the_gradient_goes.png").convert("L")
    drawn = Image.open(io.BytesIO(drawn)).convert("L").resize(kept.size)
    assert "(docs/where_the_gradient_goes.png)" in (ROOT / "README.md").read_text()
    assert np.abs(np.asarray(kept, float) - np.asarray(drawn, float)).mean() < 3
    assert np.asarray(kept).std() > 10  # not an empty page


def test_sliders_are_optional(tmp_path):
    """The first notebook on a machine without ipywidgets: still figures in the place of the sliders."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['ipywidgets'] = None\n")
    hide = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = run(read(NOTEBOOKS[0]), SMALL[NOTEBOOKS[0].stem], PYTHONPATH=hide)
    (cell,) = with_sliders(done)
    assert len(pictures(cell)) == 3
    assert "pip install ipywidgets" in printed(cell, "stdout")


def install(monkeypatch, *, present, repository=None):
    """The commands that the first cell gives to the shell and to IPython's magics."""
    given = []
    shell = InteractiveShell()
    shell.system = lambda command: given.append(shell.var_expand(command))
    shell.run_line_magic = lambda name, line, **_: given.append(f"%{name} {line}")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: present or None)
    monkeypatch.setattr("builtins.input", lambda prompt: "https://example.org/typed")
    if repository:
        monkeypatch.setenv("SGRPO_REPOSITORY", repository)
    result = shell.run_cell(read(NOTEBOOKS[0]).cells[1].source)
    result.raise_error()
    return given


def test_the_first_cell_installs_what_is_missing(monkeypatch):
    assert install(monkeypatch, present=True) == []
    rest = ["%pip install --quiet ./sgrpo-lightning", "%cd sgrpo-lightning/notebooks"]
    for repository in (None, "https://example.org/set"):
        given = install(monkeypatch, present=False, repository=repository)
        address = repository or "https://example.org/typed"
        assert given == [f"git clone --quiet --depth 1 {address} sgrpo-lightning", *rest]


def test_the_hook_strips_outputs(tmp_path):
    ran, book = tmp_path / "ran.ipynb", read(NOTEBOOKS[0])
    book.cells[1].execution_count, book.cells[1].outputs = 3, [nbformat.v4.new_output("stream", text="done")]
    nbformat.write(book, ran)
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    (entry,) = [hook["entry"].split() for hook in hooks if hook["id"] == "nbstripout"]
    subprocess.run([Path(sys.executable).with_name(Path(entry[0]).name), *entry[1:], ran], check=True)
    assert read(ran) == read(NOTEBOOKS[0])

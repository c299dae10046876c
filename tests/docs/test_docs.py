"""The README, the log and the files beside them: examples, equations, tree, links, figures."""

import ast
import doctest
import hashlib
import importlib
import itertools
import math
import re
import tomllib
from functools import partial

import numpy as np
import pytest
import torch
import yaml
from docs_pages import CONF, LOG, PAGES, README, ROOT, block, code, run_examples, table, tables
from pre_commit.clientlib import load_config

from sgrpo_lightning.geometry import maxrl_weight, population_objective, population_weight, softmax_grpo_weight
from sgrpo_lightning.heads import grpo_advantages, rloo_advantages, softmax_grpo_advantages


def test_the_examples_of_the_geometry_page():
    assert run_examples(ROOT / "docs/geometry.md") == 0


def test_the_heads_in_another_trainer():
    """The gradient is -A_i / (number of tokens) at each token that counts."""
    logprobs, mask = torch.zeros(4, 3, requires_grad=True), torch.tensor([[1.0, 1, 0]] * 4)
    scope = {"rewards": torch.tensor([1.0, 0, 0, 0]), "samples_per_group": 4, "token_logprobs": logprobs, "mask": mask}
    exec(block("python", after="advantages come out without gradient:\n"), scope)
    scope["loss"].backward()
    c = math.exp(10)
    expected = torch.tensor([[4 * c / (c + 3) - 1], *[[4 / (c + 3) - 1]] * 3])
    torch.testing.assert_close(logprobs.grad, -expected * mask / 8)


def test_every_name_and_number_of_the_paper_table_exists():
    rows = next(rows for rows in tables(README) if "Paper" in rows[0])
    for name in itertools.chain.from_iterable(code(row["Code"]) for row in rows):
        module, _, function = name.partition(".")
        if name.startswith("tests/"):
            assert (ROOT / name).is_file()
        elif function and "=" not in name:
            assert callable(getattr(importlib.import_module(f"sgrpo_lightning.{module}"), function)), name
    numbers = re.findall(r"\d+(?:-\d+)?", " ".join(row["Paper"] for row in rows if row["Paper"].startswith("Eq.")))
    spans = [[int(end) for end in number.split("-")] for number in numbers]
    assert set(range(1, 26)) == {n for span in spans for n in range(span[0], span[-1] + 1)}


def test_the_tree_of_the_readme_is_the_tree():
    folders, listed = [""], set()
    for line in re.search(r"## The tree\n\n```\n(.*?)```", README, re.DOTALL)[1].splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        names = re.split(r" {3,}", line.strip())[0].split()
        listed |= {f"{folders[depth]}{name}" for name in names}
        folders[depth + 1 :] = [f"{folders[depth]}{names[-1]}"]
    assert not {name for name in listed if not (ROOT / name).exists()}
    packages = {f"src/sgrpo_lightning/{path.parent.name}/" for path in ROOT.glob("src/sgrpo_lightning/*/__init__.py")}
    groups = {f"conf/{path.parent.name}/" for path in CONF.glob("*/*.yaml")}
    heads = {f"src/sgrpo_lightning/heads/{p.name}" for p in ROOT.glob("src/sgrpo_lightning/heads/*.py")}
    assert packages | groups | heads - {"src/sgrpo_lightning/heads/__init__.py"} <= listed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("http")}
    assert {link for link in links if not (page.parent / link).exists()} == set()


def test_the_figures_of_the_log():
    p = np.linspace(0, 1, 1001)

    def gap(tau, M):
        return abs(softmax_grpo_weight(p, tau=tau, M=M) / maxrl_weight(p, T=M - 1) - 1).max()

    def easy(head):
        return 1 - np.divide(*population_objective(head, [0.9, 1.0], M=8))

    softmax = partial(softmax_grpo_advantages, tau=0.1)
    assert (round(100 * gap(0.1, 8), 2), round(100 * gap(0.3, 8)), round(100 * gap(0.3, 16))) == (0.04, 23, 37)
    assert [round(100 * easy(head), 1) for head in (grpo_advantages, rloo_advantages, softmax)] == [11.8, 10.0, 4.1]
    ends = [round((M - 1) / math.sqrt(M), 2) for M in (8, 16)]
    assert ends == [round(population_weight(grpo_advantages, 1.0, M=M), 2) for M in (8, 16)] == [2.47, 3.75]
    for figure in ("0.04%", "23%", "37%", "11.8%", "4.1%", "2.47", "3.75"):
        assert figure in LOG


def test_licence_citation_and_extras():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert hashlib.md5((ROOT / "LICENSE").read_bytes()).hexdigest() == "3b83ef96387f14655fc854ddc3c6bd57"  # apache.org
    assert (citation["license"], citation["version"]) == (project["license"], project["version"])
    names = [author["family-names"] for author in citation["preferred-citation"]["authors"]]
    assert names == ["Hernandez", "Koo", "Xiao", "Wei", "Ordonez"]
    extras = {name for cell in table(README, "Extra").values() for name in code(cell["Extra"])}
    assert extras == set(project["optional-dependencies"])


def test_the_commit_hooks_are_valid_and_download_nothing():
    load_config(str(ROOT / ".pre-commit-config.yaml"))
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = {hook["id"]: (hook["language"], hook["entry"].split()[0]) for hook in repository["hooks"]}
    tools = {"ruff": "ruff", "ruff-format": "ruff", "mypy": "mypy", "nbstripout": "nbstripout"}
    assert repository["repo"] == "local"
    assert hooks == {name: ("system", f".venv/bin/{tool}") for name, tool in tools.items()}


def test_python_blocks_are_python():
    for page in PAGES:
        for text in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            examples = [example.source for example in doctest.DocTestParser().get_examples(text)]
            ast.parse("".join(examples) or text)

"""The examples in the docstrings run, and the package imports nothing but torch."""

import ast
import doctest
import importlib
import pkgutil
import sys
from pathlib import Path

import pytest

import sgrpo_lightning.losses as package

MODULES = [f"{package.__name__}.{m.name}" for m in pkgutil.iter_modules(package.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert failed == 0
    assert tried > 0


@pytest.mark.parametrize("path", sorted(Path(package.__path__[0]).glob("*.py")), ids=lambda p: p.stem)
def test_imports_only_torch(path):
    roots = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level != 1:
            roots.add((node.module or "..").split(".")[0])
    assert roots <= {"torch", *sys.stdlib_module_names}

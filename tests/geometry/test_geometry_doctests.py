"""The examples in the docstrings of the geometry package."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("module", ["binomial", "closed_forms", "integrability", "population", "properties", "tilt"])
def test_docstring_examples(module):
    failed, attempted = doctest.testmod(importlib.import_module(f"sgrpo_lightning.geometry.{module}"))
    assert attempted > 0
    assert failed == 0

"""The runs of `sharded_runs.py`, made once for all files here."""

from pathlib import Path

import pytest


@pytest.fixture(scope="package")
def strategy_runs(on_two_ranks):
    """(strategy, kind of run) -> what each of two ranks saw."""
    pytest.importorskip("deepspeed")
    return on_two_ranks(Path(__file__).parent / "sharded_runs.py")

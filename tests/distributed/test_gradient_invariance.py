"""The gradient of an optimizer step is the same under every strategy, on one rank or two, however the rows are cut."""

from functools import cache
from pathlib import Path

import pytest
import torch
from invariance_runs import CASES, trained

from sgrpo_lightning.modules.tiny import tiny_policy


@pytest.fixture(scope="module")
def two_ranks(on_two_ranks):
    pytest.importorskip("deepspeed")
    return dict(zip(CASES, on_two_ranks(Path(__file__).parent / "invariance_runs.py"), strict=True))


@cache
def one_process(reduction, beta):
    return trained(None, reduction, beta, world_size=1)


@cache
def start():
    model = tiny_policy(hidden_size=32, layers=1, heads=1).model
    model.model.norm.weight.data.mul_(5)
    return model


def flat(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_a_step_is_the_same(two_ranks, case):
    """Four steps of SGD in float32, which shows a wrong scale, against a process without a strategy."""
    two, one = two_ranks[case], one_process(*case[1:])
    learned = (one["weights"] - flat(start())).norm()
    assert learned > 1e-3
    assert (two["weights"] - one["weights"]).norm() < 1e-5 * learned
    assert two["norms"] == pytest.approx(one["norms"], rel=1e-5)


def test_the_cut_differs(two_ranks):
    """Between iterations, so that a strategy that counts micro-batches by itself would lose some, and between runs."""
    counts = [result["counts"] for result in two_ranks.values()]
    assert any(first != second for first, second in counts)
    assert all(result["counts"] != one_process(*case[1:])["counts"] for case, result in two_ranks.items())

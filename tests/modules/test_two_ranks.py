"""Two gloo processes against one, on the same rollouts."""

from pathlib import Path

import pytest
import torch
from two_ranks import CASES, trained


@pytest.fixture(scope="module")
def two_ranks(on_two_ranks):
    return dict(zip(CASES, on_two_ranks(Path(__file__).parent / "two_ranks.py"), strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_two_ranks_learn_what_one_does(two_ranks, case):
    """Weights and every measurement, for each reduction, with and without the reference KL.

    The groups, of which one in four or so has no signal, fall on the ranks unevenly.
    """
    two, one = two_ranks[case], trained(*case, world_size=1)
    start = weights_at_the_start()
    assert 1e-3 < (one["weights"] - start).norm() < 10
    assert (two["weights"] - one["weights"]).norm() < 1e-6 * (one["weights"] - start).norm()
    # The sampler made its log-probabilities up, and which rows are rescored depends on the ranks.
    names = [name for name in one["row"] if "second" not in name and not name.startswith("sampler_gap/")]
    assert 0 < one["row"]["no_signal/frac"] < 1
    assert {name: two["row"][name] for name in names} == pytest.approx(
        {name: one["row"][name] for name in names}, rel=1e-4, abs=1e-6
    )


def weights_at_the_start():
    from sgrpo_lightning.modules.tiny import tiny_policy

    model = tiny_policy(hidden_size=32, layers=1, heads=1).model
    model.double().model.norm.weight.data.mul_(5)
    return torch.cat([p.detach().flatten() for p in model.parameters()])

"""Two gloo processes against one, on the same images and the same sampled labels."""

from pathlib import Path

import pytest
from images import network, vector
from two_ranks_images import CASES, trained

from sgrpo_lightning.modules import label_loss


@pytest.fixture(scope="module")
def two_ranks(on_two_ranks):
    return dict(zip(CASES, on_two_ranks(Path(__file__).parent / "two_ranks_images.py"), strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_two_ranks_learn_what_one_does(two_ranks, case, monkeypatch):
    """Weights, every measurement and the held-out images, with DDP and with sharded weights (FSDP2)."""
    monkeypatch.setattr(label_loss, "label_counts", label_loss.label_counts)  # `trained` replaces it
    two, one = two_ranks[case], trained(*case, world_size=1)
    step = (one["weights"] - vector(network())).norm()
    assert step > 1e-2
    assert (two["weights"] - one["weights"]).norm() < 1e-6 * step
    names = [name for name in one["row"] if name != "images_per_second"]
    assert {name: two["row"][name] for name in names} == pytest.approx(
        {name: one["row"][name] for name in names}, rel=1e-4, abs=1e-6
    )

"""Two gloo processes against one, on the same images and the same sampled labels."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from images import network, vector
from two_ranks_images import CASES, trained

from sgrpo_lightning.modules import label_loss

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def on_two_ranks(environment, tmp_path_factory):
    file = tmp_path_factory.mktemp("ranks") / "results.pt"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run(
        [*command, str(HERE / "two_ranks_images.py"), str(file)],
        env=environment | {"PYTHONPATH": f"{HERE}{os.pathsep}{environment['PYTHONPATH']}"},
        check=True,
        timeout=280,
    )
    return dict(zip(CASES, torch.load(file), strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_two_ranks_learn_what_one_does(on_two_ranks, case, monkeypatch):
    """Weights, every measurement and the held-out images, with DDP and with sharded weights (FSDP2)."""
    monkeypatch.setattr(label_loss, "label_counts", label_loss.label_counts)  # `trained` replaces it
    two, one = on_two_ranks[case], trained(*case, world_size=1)
    step = (one["weights"] - vector(network())).norm()
    assert step > 1e-2
    assert (two["weights"] - one["weights"]).norm() < 1e-6 * step
    names = [name for name in one["row"] if name != "images_per_second"]
    assert {name: two["row"][name] for name in names} == pytest.approx(
        {name: one["row"][name] for name in names}, rel=1e-4, abs=1e-6
    )

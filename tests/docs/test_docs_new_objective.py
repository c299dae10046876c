"""The README's new objective: its two files, in a temporary folder, do what the README says."""

import json
import sys

import numpy as np
import pytest
import torch
import yaml
from docs_pages import ROOT, TINY, run_examples, written
from hydra.utils import instantiate

import sgrpo_lightning.heads
from sgrpo_lightning.geometry import curl, population_weight


@pytest.fixture
def win_rate(tmp_path, monkeypatch):
    """The README's head, imported from a temporary folder that extends the package of heads."""
    folder = written(tmp_path / "new")
    monkeypatch.setattr(sgrpo_lightning.heads, "__path__", [*sgrpo_lightning.heads.__path__, str(folder)])
    yield instantiate(yaml.safe_load((folder / "objective/win_rate.yaml").read_text()))
    sys.modules.pop("sgrpo_lightning.heads.win_rate", None)


def test_the_new_head_by_hand(win_rate):
    """0.9 beats 3 of 3; 0.5 and 0.5 beat 1 and lose to 1; 0.1 loses to 3."""
    rewards = torch.tensor([[0.5, 0.9, 0.1, 0.5], [0.2, 0.2, 0.2, 0.2]])
    torch.testing.assert_close(win_rate(rewards), torch.tensor([[0.0, 1.0, -1.0, 0.0], [0.0] * 4]))
    # a margin of 0.4 (and no more is needed in eighths): only 1 against 0 and 1 against 0.25 differ by more
    eighths = torch.tensor([1.0, 0.625, 0.25, 0.0])
    torch.testing.assert_close(win_rate.func(eighths, margin=0.5), torch.tensor([2.0, 1.0, -1.0, -2.0]) / 3)


def test_the_new_head_keeps_its_promises(win_rate):
    rewards = torch.rand(50, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64).mul(64).round() / 64
    advantages, order = win_rate(rewards), torch.tensor([3, 0, 6, 1, 5, 2, 4])
    assert win_rate.func.declares == {"zero_sum", "shift_invariant"}
    assert (advantages.sum(-1).abs() < 1e-12).all()
    assert torch.equal(win_rate(rewards + 8), advantages)
    assert torch.equal(win_rate(rewards[:, order]), advantages[:, order])
    assert torch.equal(win_rate(rewards.exp()), advantages)  # only the order counts
    assert (win_rate(torch.rand(5, 1)) == 0).all()
    signs = (rewards[:, :, None] - rewards[:, None, :]).sign().sum(-1) / 6
    torch.testing.assert_close(advantages, signs)
    with pytest.raises(ValueError, match=r"margin must be >= 0 and finite, got -0\.1"):
        win_rate.func(rewards, margin=-0.1)


def test_the_geometry_of_the_new_head(win_rate):
    """m_1 = p_1 - 1, m_2 = 2 p_1 + p_2 - 1, m_3 = p_1 + p_2: dF_1/dp_2 - dF_2/dp_1 = -1 - 1."""
    assert population_weight(win_rate, 0.3, M=8) == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(curl(win_rate, [0, 0.5, 1], [0.2, 0.3, 0.5], M=8), [[0, -2], [2, 0]], atol=1e-12)
    assert run_examples(ROOT / "README.md") == 0


def test_the_new_head_trains(win_rate, cli, tmp_path):
    """`--config-dir`, as the README says; the rewards of an untrained policy are all 0."""
    sizes = ["iterations=1", "prompts_per_iteration=2", "samples_per_group=2", "max_new_tokens=2"]
    ended = cli(f"--config-dir={tmp_path / 'new'}", "objective=win_rate", *TINY, *sizes, "callbacks.evaluation=null")
    assert not ended.code, ended.output
    summary = json.loads(next((tmp_path / "runs/llm/countdown/win_rate").glob("*/summary.json")).read_text())
    assert summary["objective"] == "win_rate"

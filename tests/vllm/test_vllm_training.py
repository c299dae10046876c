"""Training with vLLM as the sampler: from the module, and from the command line."""

import csv

import pytest
from loop import run
from toys import LetterTask

pytest.importorskip("vllm.version")  # not "vllm": without the package, this folder itself would be found

SMALL = 2**26  # bytes of the cache


def test_learns_from_vllm(make_policy):
    """Every iteration samples with the weights of the step before it, and the reward rises."""
    from sgrpo_lightning.samplers.vllm import VLLMSampler

    sampler = VLLMSampler(max_new_tokens=1, max_num_seqs=64, engine={"kv_cache_memory_bytes": SMALL})
    module, rows = run(make_policy(), LetterTask(letters=1), iterations=15, sampler=sampler)
    rewards = [row["reward/mean"] for row in rows]
    assert max(row["sampler_gap/max"] for row in rows) < 1e-3
    assert module.rollout.samples.weights_version == 14
    assert rewards[0] < 0.5
    assert sum(rewards[-3:]) / 3 > 0.8, rewards
    assert sampler.engine is None, "the end of the run ends the engine"


def test_the_command_line(cli, quick, tmp_path):
    """With evaluation between the iterations, which samples too."""
    settings = ["sampler=vllm", f"+sampler.engine.kv_cache_memory_bytes={SMALL}", "iterations=3", "run_dir=run"]
    ended = cli(*quick, *settings)
    assert ended.code is None, ended.output
    with open(tmp_path / "run" / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 3
    assert max(float(row["sampler_gap/max"]) for row in rows if row["sampler_gap/max"]) < 1e-3
    assert "vllm" not in ended.output.lower().replace("sampler=vllm", ""), "the terminal is the run's"

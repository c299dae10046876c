"""Every strategy against one process without any, on the same rows."""

import pytest
import torch
from sharded_runs import CASES, CLIP, MICRO_BATCHES, RATE, STEPS, STRATEGIES, trained
from torch import nn

from sgrpo_lightning.distributed import deepspeed
from sgrpo_lightning.distributed.sharding import mixed_precision

STEPS_IN_ALL = STEPS * len(MICRO_BATCHES[1])
everywhere = pytest.mark.parametrize("case", CASES, ids="-".join)
in_float32 = pytest.mark.parametrize("case", [case for case in CASES if case[1] != "bf16"], ids="-".join)
strategies = pytest.mark.parametrize("name", STRATEGIES)


@pytest.fixture(scope="module")
def one_process():
    """By kind of run, what a process sees by itself."""
    return {kind: trained(None, devices=1, **CASES["ddp", kind]) for kind in ("clipped", "adapters")}


def flat(weights):
    """Each weight once: the head is the embedding."""
    return torch.cat([weight.flatten() for name, weight in weights.items() if name != "lm_head.weight"])


def distance(left, right):
    return (flat(left) - flat(right)).norm()


@in_float32
def test_training_is_that_of_one_process(strategy_runs, one_process, case):
    """With SGD, which shows a wrong scale, and a number of micro-batches that changes between iterations."""
    one = one_process[case[1]]
    learned = distance(one["weights"], one["observed"][0]["weights"])
    for two in strategy_runs[case]:
        assert two["weights"].keys() == one["weights"].keys()
        assert distance(two["weights"], one["weights"]) < 1e-5 * learned


@in_float32
def test_the_norm_of_the_gradient_is_that_before_clipping(strategy_runs, one_process, case):
    one = one_process[case[1]]["norms"]
    assert len(one) == STEPS_IN_ALL
    assert all(two["norms"] == pytest.approx(one, rel=1e-5) for two in strategy_runs[case])


@strategies
def test_clipping_clips(strategy_runs, name):
    """Two steps, of the full learning rate and of half of it, go about as far as the limit lets them."""
    assert min(strategy_runs[name, "clipped"][0]["norms"]) > 2 * CLIP
    before, after = (seen["weights"] for seen in strategy_runs[name, "clipped"][0]["observed"])
    assert 0.99 < distance(before, after) / (1.5 * RATE * CLIP) < 1.0001


@everywhere
def test_the_scheduler_steps_with_the_optimizer(strategy_runs, case):
    for seen in strategy_runs[case]:
        assert seen["steps"] == STEPS_IN_ALL
        assert seen["scheduled"] == list(range(1, STEPS_IN_ALL + 1))


@strategies
def test_masters_and_moments_are_float32_in_bf16(strategy_runs, name):
    for seen in strategy_runs[name, "bf16"]:
        assert seen["masters"] == {"torch.float32"}
        assert all(0 < norm < 100 for norm in seen["norms"])


@strategies
def test_what_a_rounding_would_harm_is_float32_in_bf16(strategy_runs, name):
    """Sums of gradients, rotary frequencies, and the weights of tokens that come with a batch."""
    for seen in strategy_runs[name, "bf16"]:
        assert seen["sums"] == seen["buffers"] == {seen["inputs"]} == {"torch.float32"}


@pytest.mark.parametrize(
    ("parts", "precision", "gathered_in"),
    [
        ([nn.Linear(2, 2)], "bf16-mixed", torch.bfloat16),
        ([nn.Linear(2, 2)], "32-true", None),
        ([nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)], "bf16-mixed", None),
    ],
)
def test_weights_are_gathered_in_bf16_but_for_batch_normalisation(parts, precision, gathered_in):
    """Its statistics are float32, and so its weights have to be."""
    policy = mixed_precision(nn.Sequential(*parts), precision)
    assert policy.param_dtype == gathered_in
    assert not policy.cast_forward_inputs


def test_stages_are_one_to_three():
    with pytest.raises(ValueError, match="stage must be 1, 2 or 3, got 4"):
        deepspeed.ZeROStrategy(4)


def test_weights_are_offloaded_in_stage_three_only():
    with pytest.raises(ValueError, match="offload_parameters needs stage 3, got 2"):
        deepspeed.ZeROStrategy(2, offload_parameters=True)


def test_a_missing_deepspeed_is_a_line_that_says_what_to_install(monkeypatch):
    monkeypatch.setattr(deepspeed, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"strategy=deepspeed_3 needs DeepSpeed: pip install 'sgrpo-lightning\[deep"):
        deepspeed.ZeROStrategy(3)

"""What the sampler says before there is an engine: on machines without vLLM too."""

import copy
import importlib.util
from types import SimpleNamespace

import pytest
import torch

from sgrpo_lightning.samplers import SamplerError, vllm_engine
from sgrpo_lightning.samplers.vllm import VLLMSampler, _dtype_name
from sgrpo_lightning.samplers.weights import weights_of


def test_vllm_is_not_installed(make_policy, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SamplerError, match=r"vLLM is not installed; pip install 'sgrpo-lightning\[vllm\]'"):
        VLLMSampler(max_new_tokens=4).start(make_policy().model)


def test_settings_that_cannot_work(make_policy):
    for settings, message in (
        ({"tensor_parallel_size": 0}, "tensor_parallel_size must be >= 1, got 0"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization must lie in"),
        ({"max_new_tokens": 0}, "max_new_tokens must be >= 1"),
    ):
        with pytest.raises(ValueError, match=message):
            VLLMSampler(**{"max_new_tokens": 4} | settings)
    for settings, message in (
        ({"tensor_parallel_size": 2}, r"tensor_parallel_size=2 must divide the 1 rank"),
        ({"max_model_len": 513}, "max_model_len=513, but the model has room for 512"),
    ):
        with pytest.raises(SamplerError, match=message):
            VLLMSampler(max_new_tokens=4, **settings).start(make_policy().model)


def test_nothing_is_asked_of_a_sampler_that_was_not_started(make_policy):
    sampler = VLLMSampler(max_new_tokens=4)
    with pytest.raises(SamplerError, match="start comes first"):
        sampler.sync([], version=0)
    sampler.close()


def test_the_engine_holds_prompt_and_completion():
    """As long as the longest of them, never longer than the model."""
    for of_model, longest_prompt, expected in ((512, None, 512), (512, 100, 104), (512, 510, 512), (None, 7, 11)):
        assert VLLMSampler(max_new_tokens=4)._longest(of_model, longest_prompt) == expected
    assert VLLMSampler(max_new_tokens=4, max_model_len=64)._longest(512, 100) == 64
    with pytest.raises(SamplerError, match="max_model_len=null: give a number"):
        VLLMSampler(max_new_tokens=4)._longest(None, None)


def test_the_engine_multiplies_as_the_trainer_does(make_policy):
    model = make_policy().model
    assert _dtype_name(model) == "float32"
    with torch.autocast("cpu", torch.bfloat16):
        assert _dtype_name(model) == "bfloat16"
    assert _dtype_name(copy.deepcopy(model).bfloat16()) == "bfloat16"
    assert _dtype_name(copy.deepcopy(model).double()) == "float32"


def test_names_and_shapes_do_not_depend_on_the_pieces_that_a_rank_has(make_policy):
    model = make_policy().model
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    assert "lm_head.weight" in expected
    for weight in model.parameters():
        weight.data = weight.data.new_zeros(0)
    assert weights_of(model) == expected


class OnAGPU:
    """Stands in for an engine on a GPU, and writes down what is asked of it."""

    device = torch.device("cuda")

    def __init__(self):
        self.asked = []

    def load(self, weights):
        self.asked.append(f"load {len(list(weights))}")

    def wake(self, what):
        self.asked.append(f"wake {what}")

    def sleep(self):
        self.asked.append("sleep")


def test_memory_between_rollouts_on_a_gpu(make_policy):
    """The cache has room only once the weights are there; weights that were given back are asked for anew."""
    model = make_policy().model
    sampler, weights = VLLMSampler(max_new_tokens=4), list(model.state_dict().items())
    sampler.engine, sampler._expected = OnAGPU(), weights_of(model)
    for version in range(2):
        sampler.wake()
        sampler.wake()
        sampler.sync(weights, version=version)
        assert sampler.version == version
        sampler.sleep()
        sampler.sleep()
        assert sampler.version is None
    load = f"load {len(weights)}"
    assert sampler.engine.asked == [load, "sleep", "wake weights", load, "wake kv_cache", "sleep"]


def test_an_engine_that_stays_awake(make_policy):
    model = make_policy().model
    sampler = VLLMSampler(max_new_tokens=4, enable_sleep_mode=False)
    sampler.engine, sampler._expected = OnAGPU(), weights_of(model)
    sampler.sync(model.state_dict().items(), version=3)
    sampler.sleep()
    assert sampler.version == 3
    assert "sleep" not in sampler.engine.asked


def test_a_completion_that_was_broken_off():
    broken = SimpleNamespace(finish_reason="abort", token_ids=[4, 5])
    with pytest.raises(SamplerError, match=r"vLLM ended a completion with 'abort' after 2 tokens"):
        vllm_engine._read(broken)


def test_heads_that_are_not_served(make_policy):
    """Heads of 16 fail on the CPU inside a kernel at the first request, so the start refuses them."""
    pytest.importorskip("vllm.version")
    from sgrpo_lightning.modules.tiny import tiny_policy

    with pytest.raises(SamplerError, match="heads of 16 are not served on the CPU"):
        VLLMSampler(max_new_tokens=4).start(tiny_policy(hidden_size=32, layers=1, heads=2).model)

"""Real engines on the CPU: one of each kind for the whole session, given new weights by each test."""

import os

import pytest
import torch

os.environ |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_SGL_KERNEL": "0"}


@pytest.fixture(scope="session")
def tied(make_policy):
    """A sharp random policy whose output layer is its embedding."""
    return make_policy(hidden_size=64, layers=2, sharpness=20).model


@pytest.fixture(scope="session")
def untied(tied):
    """The same with an output layer of its own."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    model = Qwen2ForCausalLM(Qwen2Config(**tied.config.to_dict() | {"tie_word_embeddings": False}))
    model.load_state_dict(tied.state_dict())
    with torch.no_grad():
        model.lm_head.weight.copy_(tied.lm_head.weight.flip(0))
    return model.eval()


@pytest.fixture(scope="session")
def start():
    """(model, **settings) -> a sampler whose engine runs until the session ends, where the test does not end it."""
    from sgrpo_lightning.samplers.vllm import VLLMSampler

    started = []

    def begin(model, **settings):
        small = {"max_new_tokens": 12, "temperature": 0.7, "max_model_len": 256, "max_num_seqs": 64}
        sampler = VLLMSampler(**small | settings)
        sampler.start(model)
        started.append(sampler)
        return sampler

    yield begin
    for sampler in started:
        sampler.close()


@pytest.fixture(scope="session")
def sampler_of(start, tied, untied):
    """kind -> (sampler, model)."""
    models, samplers = {"tied": tied, "untied": untied}, {}

    def get(kind):
        if kind not in samplers:
            samplers[kind] = start(models[kind])
        return samplers[kind], models[kind]

    return get

"""The memory plan against storages counted on the CPU: what is held exactly, what comes and goes to a few percent."""

import copy
import weakref
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM

from sgrpo_lightning.axes import MicroBatch
from sgrpo_lightning.distributed.architecture import AUTOCAST, FLOAT32, Architecture, architecture, kv_cache
from sgrpo_lightning.distributed.memory import (
    GIB,
    STRATEGIES,
    Setting,
    hf_sampler,
    kept_activations,
    memory_plan,
    vllm_rows,
    vllm_sampler,
)
from sgrpo_lightning.losses import token_mean
from sgrpo_lightning.modules import PolicyLoss

PUBLIC = {  # hidden, intermediate, layers, heads, key-value heads, parameters
    "0.5b": (896, 4864, 24, 14, 2, 494_032_768),
    "1.5b": (1536, 8960, 28, 12, 2, 1_543_714_304),
    "3b": (2048, 11008, 36, 16, 2, 3_085_938_688),
}
SMALL = Setting(ranks=1, tokens=512, trained_tokens=384, chunk=384, float32=True)


def qwen2(hidden, intermediate, layers, heads, kv_heads, vocabulary=151936):
    return Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=True,
    )


@cache
def qwen(size):
    *sizes, _ = PUBLIC[size]
    return architecture(qwen2(*sizes))


def built(checkpointing=False, **sizes):
    """A random model of which every part shows in the sum."""
    knobs = {"hidden": 128, "intermediate": 704, "layers": 3, "heads": 4, "kv_heads": 2, "vocabulary": 500} | sizes
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(qwen2(**knobs)).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    return model


class PeakMemory(TorchDispatchMode):
    """The most that tensors made inside hold at one time, each storage counted once."""

    def __init__(self, known):
        super().__init__()
        self.known = {tensor.untyped_storage()._cdata for tensor in known}
        self.live, self.peak, self.sizes = 0, 0, {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.note(tensor.untyped_storage())
        return out

    def note(self, storage):
        key = storage._cdata
        if key in self.known or key in self.sizes:
            return
        self.sizes[key] = storage.nbytes()
        self.live += self.sizes[key]
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self.forget, key)

    def forget(self, key):
        self.live -= self.sizes.pop(key)


def micro_batch(setting, vocabulary, rows=4):
    """`tokens` in equal rows, of which the last `trained_tokens` / rows of each train."""
    length, trained = setting.tokens // rows, setting.trained_tokens // rows
    ids = torch.randint(vocabulary, (rows, length), generator=torch.Generator().manual_seed(0))
    row = torch.arange(rows).repeat_interleave(trained)
    position = torch.arange(length - trained - 1, length - 1).repeat(rows)
    each = torch.full((rows * trained,), 1 / (rows * trained))
    batch = MicroBatch(ids, row, position, ids[row, position + 1], each, each, each, torch.arange(len(each)))
    batch.chunks = -(-setting.trained_tokens // setting.chunk)
    return batch


def tensors(*things):
    fields = [getattr(thing, name, None) for thing in things for name in getattr(thing, "__slots__", ())]
    models = [thing for thing in things if isinstance(thing, torch.nn.Module)]
    weights = [tensor for model in models for tensor in (*model.parameters(), *model.buffers())]
    return [t for t in (*fields, *weights, *(p.grad for p in weights)) if isinstance(t, torch.Tensor)]


def measured_peak(model, setting):
    """Of a forward and a backward pass of the learner, with gradients at hand as in all but the first micro-batch."""
    reference = copy.deepcopy(model).requires_grad_(False).eval() if setting.reference == "device" else None
    loss = PolicyLoss(reduction=token_mean, beta=0.1 if reference else 0.0)
    batch = micro_batch(setting, model.config.vocab_size)
    loss(model, batch, reference)  # what is found out once
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with PeakMemory(tensors(model, batch, *([reference] if reference else []))) as memory:
        value, _ = loss(model, batch, reference)
        value.backward()
    return memory.peak


def saved_bytes(model, ids, **autocast):
    """Of all tensors that the backward pass of the decoder will read, its weights and their casts left out."""
    shapes = [tuple(p.shape) for p in model.parameters()]
    weights = {*shapes, *(shape[::-1] for shape in shapes)}
    found = {}

    def pack(tensor):
        if tuple(tensor.shape) not in weights:
            found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), torch.autocast("cpu", **autocast):
        model.model(input_ids=ids, use_cache=False)
    return sum(found.values())


# ---- what is held: exact ----


@pytest.mark.parametrize("size", PUBLIC)
def test_parameters_of_the_public_models(size):
    assert qwen(size).parameters == PUBLIC[size][-1]


def test_weights_gradients_and_moments():
    """On one device: the storages of the parameters, of their gradients and of AdamW."""
    model = built()
    optimizer = torch.optim.AdamW(model.parameters())
    model(input_ids=torch.ones(1, 2, dtype=torch.long)).logits.sum().backward()
    optimizer.step()
    held = [p.nbytes for p in model.parameters()], [p.grad.nbytes for p in model.parameters()]
    moments = [v.nbytes for state in optimizer.state.values() for v in state.values() if v.ndim]
    plan = memory_plan(architecture(model.config), "auto", SMALL)
    assert (plan.weights, plan.gradients, plan.moments) == (*map(sum, held), sum(moments))


def test_only_what_trains_has_a_gradient():
    model = qwen("0.5b")
    plan = memory_plan(model, "auto", replace(SMALL, trained=1000))
    assert (plan.weights, plan.gradients, plan.moments) == (4 * model.parameters, 4000, 8000)


@pytest.mark.parametrize("autocast", [False, True])
def test_the_cache_of_a_rollout(autocast):
    """As transformers keeps it; under autocast in float32."""
    model = built().eval()
    kept = DynamicCache(config=model.config)
    with torch.no_grad(), torch.autocast("cpu", enabled=autocast):
        model(input_ids=torch.ones(2, 7, dtype=torch.long), past_key_values=kept, use_cache=True)
    found = sum(layer.keys.nbytes + layer.values.nbytes for layer in kept.layers)
    assert found == kv_cache(architecture(model.config), 14, bytes_each=4)


def test_a_reference_is_a_whole_copy_and_one_on_the_cpu_its_output_layer_and_its_states():
    model, setting = qwen("0.5b"), replace(SMALL, ranks=8, reference_tokens=100)
    places = {
        place: memory_plan(model, "fsdp2", replace(setting, reference=place)) for place in ("device", "cpu", "none")
    }
    assert places["device"].reference == 4 * model.parameters
    assert places["cpu"].reference == 4 * 896 * (151936 + 100)
    assert places["none"].reference == 0


@pytest.mark.parametrize(
    ("strategy", "whole", "shared"),
    [("ddp", 20, 0), ("fsdp2", 0, 16), ("deepspeed_1", 6, 16), ("deepspeed_2", 2, 20), ("deepspeed_3", 0, 22)],
)
def test_bytes_of_a_parameter(strategy, whole, shared):
    """Weights, gradients and moments: what each rank keeps, and what all of them share out."""
    model = qwen("3b")
    for ranks in (8, 16):
        plan = memory_plan(model, strategy, replace(SMALL, ranks=ranks))
        each = (plan.weights + plan.gradients + plan.moments) / model.parameters
        assert each == pytest.approx(whole + shared / ranks)


# ---- what comes and goes: to a few percent ----


@pytest.mark.parametrize("sizes", [{}, {"hidden": 64, "heads": 2, "kv_heads": 1, "layers": 5}, {"intermediate": 130}])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("arithmetic", [FLOAT32, AUTOCAST], ids=["float32", "autocast"])
def test_activations_that_the_backward_pass_reads(sizes, checkpointing, arithmetic):
    model = built(checkpointing, **sizes)
    ids = torch.randint(500, (3, 20), generator=torch.Generator().manual_seed(0))
    found = saved_bytes(model, ids, enabled=arithmetic is AUTOCAST)
    setting = replace(SMALL, tokens=60, checkpointing=checkpointing)
    planned = kept_activations(architecture(model.config), arithmetic, setting)
    assert planned == pytest.approx(found, rel=0.02)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    ("vocabulary", "chunk", "reference"),
    [
        (500, 384, "none"),
        (4000, 384, "none"),
        (4000, 64, "none"),
        (16000, 32, "none"),
        (4000, 384, "device"),
        (4000, 64, "device"),
    ],
)
def test_the_peak_of_a_micro_batch(checkpointing, vocabulary, chunk, reference):
    """Layers, logits or the output layer's gradient: whichever of them it is."""
    setting = replace(SMALL, chunk=chunk, reference=reference, checkpointing=checkpointing)
    model = built(checkpointing, vocabulary=vocabulary)
    plan = memory_plan(architecture(model.config), "auto", setting)
    assert plan.learning == pytest.approx(measured_peak(model, setting), rel=0.08)


def test_bf16_halves_what_goes_into_products_and_casts_the_weights():
    model, setting = qwen("1.5b"), replace(SMALL, tokens=8192, trained_tokens=8192, chunk=110)
    mixed, whole = (memory_plan(model, "auto", replace(setting, float32=exact)) for exact in (False, True))
    assert whole.whole_weights == 0
    assert mixed.whole_weights >= 2 * model.layers * model.layer_matrices
    assert mixed.activations < 0.7 * whole.activations


# ---- what a user reads ----


def test_the_total_is_what_is_held_and_the_largest_of_three_phases():
    setting = replace(SMALL, ranks=8, reference="device")
    for strategy in STRATEGIES:
        plan = memory_plan(qwen("1.5b"), strategy, setting, sampler=10 * GIB)
        assert plan.total == plan.held + max(plan.learning, plan.optimizer, 10 * GIB)
        parts = plan.parts()
        assert plan.held + plan.learning + plan.optimizer + plan.sampler == sum(parts.values())


def test_a_plan_fits_with_a_margin():
    plan = memory_plan(qwen("0.5b"), "auto", SMALL)
    exact = plan.total / GIB
    assert plan.fits(exact / 0.9 + 0.01)
    assert not plan.fits(exact / 0.9 - 0.01)
    assert plan.fits(exact + 0.01, margin=0)


def test_vllm_takes_its_share_and_keeps_as_many_rows_as_its_cache_has_room_for():
    """28,672 B a token of the 1.5B model: 28 layers, 2 heads of 128, keys and values in bf16."""
    model = qwen("1.5b")
    assert kv_cache(model, 1) == 28_672
    assert vllm_sampler(80, utilization=0.4) == 32 * GIB
    room = 32 * GIB - 2 * 1_543_714_304 - 2 * GIB
    assert vllm_rows(model, 80, utilization=0.4, tokens=1000) == room // 28_672_000
    assert vllm_rows(model, 8, utilization=0.4, tokens=1000) == 0


def test_sampling_with_the_policy_makes_sharded_weights_whole():
    model = qwen("1.5b")
    kept = kv_cache(model, 512 * 768)
    logits = 4 * 4 * 512 * 151936
    expected = {
        "fsdp2": kept + kept // 28 + logits + 2 * model.parameters,
        "deepspeed_1": kept + kept // 28 + logits,
        "ddp": 2 * kept + 2 * kept // 28 + logits + 2 * model.parameters,
    }
    assert {name: hf_sampler(model, name, rows=512, tokens=768) for name in expected} == expected


def test_what_cannot_be_planned():
    with pytest.raises(ValueError, match=r"strategy must be one of auto, ddp, .*, got 'zero'"):
        memory_plan(qwen("0.5b"), "zero", SMALL)
    with pytest.raises(ValueError, match="reference must be device, cpu or none, got 'gpu'"):
        replace(SMALL, reference="gpu")


def test_heads_may_be_larger_than_their_share():
    config = qwen2(128, 256, 2, 4, 2, 500)
    config.head_dim = 64
    assert architecture(config).head_dim == 64
    assert isinstance(architecture(config), Architecture)

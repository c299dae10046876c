"""The sampler on real engines of vLLM's CPU build: `make test-vllm`."""

import copy
import random

import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency, chisquare

from sgrpo_lightning.distributed.weights import full_weights
from sgrpo_lightning.losses import token_mean
from sgrpo_lightning.modules import PolicyLoss, Rescoring, UpdatePlan
from sgrpo_lightning.modules.learner import Learner
from sgrpo_lightning.modules.rescoring import SamplerGapError
from sgrpo_lightning.samplers.hf import HFSampler

pytest.importorskip("vllm.version")  # not "vllm": without the package, this folder itself would be found

PAD, EOS, T = 0, 1, 0.7
BLOCK = 128  # tokens of a block of the prefix cache


def left_padded(prompts):
    """(prompt_ids, prompt_mask)."""
    width = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (width - len(p)) + list(p) for p in prompts])
    return ids, torch.tensor([[False] * (width - len(p)) + [True] * len(p) for p in prompts])


def prompts(*lengths, seed=0):
    chosen = random.Random(seed)
    return [[chosen.randrange(4, 370) for _ in range(length)] for length in lengths]


def draw(sampler, model, asked, samples=2, seed=0, ends=(EOS,)):
    ids, mask = left_padded(asked)
    return sampler.generate(
        model,
        ids,
        mask,
        samples_per_group=samples,
        eos_token_ids=torch.tensor(ends),
        pad_token_id=PAD,
        generator=torch.Generator().manual_seed(seed),
    )


@torch.no_grad()
def gaps(model, samples, temperature=T):
    """|trainer - sampler| of each token, row by row without padding."""
    found = []
    for row, (ids, mask) in enumerate(zip(samples.completion_ids, samples.completion_mask, strict=True)):
        group = row // samples.samples_per_group
        prompt = samples.prompt_ids[group][samples.prompt_mask[group]]
        logits = model(input_ids=torch.cat([prompt, ids[mask]])[None]).logits[0, len(prompt) - 1 : -1]
        scored = torch.log_softmax(logits / temperature, -1).gather(-1, ids[mask][:, None])[:, 0]
        found.append((scored - samples.sampler_logprobs[row][mask]).abs())
    return torch.cat(found)


@torch.no_grad()
def moved(model, by, seed=0):
    """A copy with other weights; `by` is relative to the spread of each."""
    torch.manual_seed(seed)
    other = copy.deepcopy(model)
    for weight in other.parameters():
        weight.add_(torch.randn_like(weight), alpha=by * float(weight.std()))
    return other


@torch.no_grad()
def likely(model, tokens):
    """A copy in which no token is certain, and these come up often."""
    other = copy.deepcopy(model)
    head = other.lm_head.weight
    head.mul_(0.3)
    head[tokens] = head.mean(0) + 0.4 * head[tokens]
    return other


def push(sampler, model, version=0):
    sampler.sync(full_weights(model), version=version)


def stopped(model, samples):
    """Whether the trainer would stop the run, at the settings of a run."""
    plan = UpdatePlan(
        prompts_per_iteration=1, samples_per_group=1, ppo_epochs=1, minibatches=1, micro_batch_size=4, seed=0
    )
    learner = Learner(model, PolicyLoss(reduction=token_mean, temperature=T), plan)
    try:
        Rescoring().measure(learner, samples, lambda name, value: float(value))
    except SamplerGapError:
        return True
    return False


# ---- the same policy in both ----


@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_log_probabilities_are_the_trainers(kind, sampler_of):
    """At the sampling temperature, after each of several pushes, for prompts shorter and longer than a block."""
    sampler, model = sampler_of(kind)
    for version in range(4):
        policy = moved(model, 0.3 * version, seed=version)
        push(sampler, policy, version)
        samples = draw(sampler, policy, prompts(3, 20, BLOCK + 30), seed=version)
        assert samples.weights_version == sampler.version == version
        assert gaps(policy, samples).max() < 1e-4


def test_draws_from_the_distribution_of_the_model(sampler_of):
    """First tokens against softmax(logits / T), and the first two against those of HFSampler.

    Seeds are fixed; over seeds each of the two tests would reject a right sampler with probability 1e-4.
    """
    sampler, model = sampler_of("tied")
    push(sampler, model)
    asked, count = prompts(8), 2000
    ours = draw(sampler, model, asked, samples=count)
    logits = model(input_ids=torch.tensor(asked)).logits[0, -1].detach() / T
    expected = count * torch.softmax(logits.double(), -1)
    seen = torch.bincount(ours.completion_ids[:, 0], minlength=len(expected)).double()
    common = expected > 5
    tail = [t[~common].sum().item() for t in (seen, expected)]
    assert 3 <= common.sum() <= 200, "the policy has to be neither certain nor uniform for this test to tell much"
    assert chisquare([*seen[common], tail[0]], [*expected[common], tail[1]]).pvalue > 1e-4

    theirs = draw(HFSampler(max_new_tokens=2, temperature=T), model, asked, samples=count)
    pairs = [samples.completion_ids[:, :2] @ torch.tensor([1000, 1]) for samples in (ours, theirs)]
    table = np.stack([np.bincount(pair, minlength=400_000) for pair in pairs])
    often = table.sum(0) >= 20
    table = np.column_stack([table[:, often], table[:, ~often].sum(1)])
    assert table.shape[1] > 5
    assert chi2_contingency(table).pvalue > 1e-4


def test_seeds(sampler_of):
    """Equal seeds draw equal completions, other ones others, and the completions of a prompt differ."""
    sampler, model = sampler_of("tied")
    push(sampler, model)
    first, again, other = (draw(sampler, model, prompts(5, 9), samples=4, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.completion_ids, again.completion_ids)
    assert torch.equal(first.sampler_logprobs, again.sampler_logprobs)
    assert first.completion_ids.tolist() != other.completion_ids.tolist()
    assert len({tuple(row) for row in first.completion_ids[:4].tolist()}) > 1


def test_adapters_are_merged(sampler_of, tied):
    """An engine of the base model serves the policy in its adapters."""
    from peft import LoraConfig, get_peft_model

    sampler, _ = sampler_of("tied")
    policy = get_peft_model(copy.deepcopy(tied), LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    push(sampler, policy)
    samples = draw(sampler, policy, prompts(6, 12))
    assert gaps(policy.eval(), samples).max() < 1e-4
    assert gaps(tied, samples).mean() > 0.1, "the adapters have to matter for this test to tell much"


def test_weights_from_one_buffer(sampler_of):
    """A strategy may gather one weight where the last one was; vLLM still has to fuse the two."""
    sampler, model = sampler_of("tied")
    buffer = torch.empty(max(weight.numel() for weight in model.parameters()))

    def gathered():
        for name, weight in full_weights(model):
            yield name, buffer[: weight.numel()].view_as(weight).copy_(weight)

    push(sampler, moved(model, 0.5))
    sampler.sync(gathered(), version=1)
    assert gaps(model, draw(sampler, model, prompts(6, 12))).max() < 1e-4


def test_the_trainers_autocast_stays_outside(sampler_of):
    """An engine in float32 computes in float32, inside of a trainer's bfloat16 too."""
    sampler, model = sampler_of("tied")
    with torch.autocast("cpu", torch.bfloat16):
        push(sampler, model)
        samples = draw(sampler, model, prompts(6, 12))
    assert gaps(model, samples).max() < 1e-4


# ---- what it returns ----


def test_completions_that_end(sampler_of):
    """Any of the end tokens ends a completion and belongs to it; then comes padding; without one it is truncated."""
    sampler, model = sampler_of("untied")
    ends, eager = [EOS, 7], likely(model, [EOS, 7])
    push(sampler, eager)
    samples = draw(sampler, eager, prompts(5, 30), samples=64, ends=ends)
    lengths = samples.completion_mask.sum(-1)
    is_end = torch.isin(samples.completion_ids, torch.tensor(ends)) & samples.completion_mask
    assert samples.completion_ids.shape == samples.completion_mask.shape == samples.sampler_logprobs.shape
    assert len(samples.completion_ids) == 128
    assert lengths.min() >= 1
    assert lengths.max() == samples.completion_ids.shape[1] <= 12
    assert {bool(t) for t in samples.truncated} == {True, False}
    assert set(samples.completion_ids[is_end].tolist()) == set(ends)
    for row, length in enumerate(lengths.tolist()):
        assert samples.completion_mask[row].tolist() == [i < length for i in range(samples.completion_mask.shape[1])]
        assert is_end[row].nonzero().flatten().tolist() == ([] if samples.truncated[row] else [length - 1])
        assert samples.truncated[row] == (not is_end[row].any())
        assert (samples.completion_ids[row, length:] == PAD).all()
    assert gaps(eager, samples).max() < 1e-4


def test_the_end_token_of_the_configuration_alone_ends_nothing(sampler_of):
    """The end tokens are those of the call; the model's own is one token among others."""
    sampler, model = sampler_of("untied")
    policy = likely(model, [EOS, 7])
    push(sampler, policy)
    samples = draw(sampler, policy, prompts(5), samples=64, ends=[7])
    assert policy.config.eos_token_id == EOS
    seen = ((samples.completion_ids == EOS) & samples.completion_mask)[:, :-1]
    assert seen.any(), "the token has to occur for this test to tell much"
    followed = samples.completion_mask[:, 1:][seen]
    assert followed.all()


def test_the_room_of_the_model_ends_a_completion(sampler_of):
    sampler, model = sampler_of("tied")
    push(sampler, model)
    samples = draw(sampler, model, prompts(250), ends=[373])
    assert samples.completion_mask.sum(-1).tolist() == [6, 6]
    assert samples.truncated.all()
    assert gaps(model, samples).max() < 1e-4


# ---- what it refuses ----


def test_prompts_that_cannot_be_read(sampler_of):
    """They are refused before vLLM sees them, and the next call works."""
    sampler, model = sampler_of("tied")
    push(sampler, model)
    for asked, message in (
        ([[5, 374]], "prompt 0 has token 374, which the model's vocabulary of 374 lacks"),
        ([[5], [-1, 5]], "prompt 1 has token -1"),
        ([[5], []], "prompt 1 has 0 tokens"),
        (prompts(256), "prompt 0 has 256 tokens; it must have 1 to 255"),
    ):
        with pytest.raises(ValueError, match=message):
            draw(sampler, model, asked)
    assert draw(sampler, model, prompts(4)).completion_mask.any()


def test_weights_that_do_not_fit(sampler_of):
    """They are named, read to the end all the same, and leave the sampler without weights until the next sync."""
    sampler, model = sampler_of("tied")
    good = dict(full_weights(model))
    bias = "model.layers.1.self_attn.v_proj.bias"
    for change, message in (
        ({"lm_head.weight": None}, "lm_head.weight is missing"),
        ({bias: None}, f"{bias} is missing"),
        ({bias: good[bias][:-1]}, rf"{bias} has shape \(63,\), expected \(64,\)"),
        ({"model.embed.weight": good[bias]}, "model.embed.weight is unknown"),
    ):
        push(sampler, model)
        bad = {name: tensor for name, tensor in (good | change).items() if tensor is not None}
        stream = iter(bad.items())
        with pytest.raises(ValueError, match=message):
            sampler.sync(stream, version=1)
        assert next(stream, None) is None, "another rank would wait for the rest"
        assert sampler.version is None
        with pytest.raises(RuntimeError, match="vLLM has no weights"):
            draw(sampler, model, prompts(4))
    with pytest.raises(ValueError, match=r"lm_head\.weight came twice"):
        sampler.sync([*good.items(), ("lm_head.weight", good["lm_head.weight"])], version=1)


def test_an_error_of_the_engine_leaves_no_rank_waiting(sampler_of, monkeypatch):
    sampler, model = sampler_of("tied")

    def fails(weights):
        next(weights)
        raise OSError("no room")

    monkeypatch.setattr(sampler.engine, "load", fails)
    stream = full_weights(model)
    with pytest.raises(OSError, match="no room"):
        sampler.sync(stream, version=1)
    assert next(stream, None) is None


# ---- what a mistake in handing over weights looks like ----


def test_a_stale_cache_shows(sampler_of, monkeypatch):
    """Without the reset of the prefix cache, a prompt longer than a block is continued by the old weights' states."""
    sampler, model = sampler_of("tied")
    asked, new = prompts(BLOCK + 20, BLOCK + 40), moved(model, 0.5, seed=5)
    push(sampler, model)
    draw(sampler, model, asked)
    with monkeypatch.context() as broken:
        broken.setattr(sampler.engine, "forget", lambda: None)
        push(sampler, new)
    stale = draw(sampler, new, asked)
    assert gaps(new, stale).mean() > 0.3
    assert stopped(new, stale)
    push(sampler, new)
    fresh = draw(sampler, new, asked)
    assert gaps(new, fresh).mean() < 1e-3
    assert not stopped(new, fresh)


def test_a_stale_head_shows(sampler_of):
    """A tied output layer that is not pushed under its own name keeps the old weights."""
    sampler, model = sampler_of("tied")
    push(sampler, model)
    new = moved(model, 0.5, seed=6)
    sampler.engine.load((name, weight.detach()) for name, weight in new.named_parameters())
    stale = draw(sampler, new, prompts(6, 12))
    assert gaps(new, stale).mean() > 0.3
    assert stopped(new, stale)
    push(sampler, new)
    fresh = draw(sampler, new, prompts(6, 12))
    assert gaps(new, fresh).mean() < 1e-3
    assert not stopped(new, fresh)


def test_a_cache_that_cannot_be_emptied_is_an_error(sampler_of, monkeypatch):
    sampler, model = sampler_of("tied")
    monkeypatch.setattr(sampler.engine.llm, "reset_prefix_cache", lambda: False)
    with pytest.raises(RuntimeError, match="did not empty its prefix cache"):
        push(sampler, model)
    assert sampler.version is None


# ---- the process around it ----


def random_states():
    return random.getstate(), tuple(map(str, np.random.get_state())), torch.get_rng_state().tolist()  # noqa: NPY002


def test_leaves_the_process_as_it_was(start, tied):
    """Random numbers, threads and default dtype, by start, sync, generate and close; and it can start once more."""
    before = random_states(), torch.get_num_threads(), torch.set_num_threads, torch.get_default_dtype()

    def now():
        return random_states(), torch.get_num_threads(), torch.set_num_threads, torch.get_default_dtype()

    sampler = start(tied, max_new_tokens=3)
    assert now() == before
    push(sampler, tied)
    assert now() == before
    first = draw(sampler, tied, prompts(5))
    assert now() == before
    sampler.sleep()  # on the CPU nothing is given back
    sampler.wake()
    assert sampler.version == 0
    assert torch.equal(draw(sampler, tied, prompts(5)).completion_ids, first.completion_ids)


def test_two_ranks(on_two_ranks, request):
    """Each rank has an engine of its own, or both share one; the process group outlives it."""
    results = on_two_ranks(request.path.parent / "vllm_two_ranks.py")
    assert "2, but 1 rank(s) know one another" in results["before the group"]
    for engines in ("own", "shared"):
        assert max(results[engines]["gaps"]) < 1e-4, "each rank gets the completions of its own prompts"
        assert results[engines]["rows"] == [2, 6]
    assert results["own"]["differ"], "each rank draws with a seed of its own"
    assert results["ranks"] == 2, "the trainer's process group outlives the engines"

"""The sampler against plain forward passes, transformers' own generation, and the distribution it claims."""

import pytest
import torch
from scipy import stats

from sgrpo_lightning.samplers.hf import HFSampler, sample_token

PAD, EOS = 0, 1


@pytest.fixture(scope="module")
def model(make_policy):
    """Sharp enough that tokens differ in probability by orders of magnitude."""
    return make_policy(hidden_size=64, layers=2, sharpness=10.0).model


@pytest.fixture(scope="module")
def prompts():
    """Five prompts of 1 to 9 tokens, left-padded."""
    rows = torch.randint(4, 300, (5, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(9) >= torch.tensor([[0], [8], [3], [5], [1]])
    return rows.where(mask, torch.tensor(PAD)), mask


def generate(model, prompts, *, samples=4, eos=(EOS,), seed=0, pad=PAD, **knobs):
    return HFSampler(**{"max_new_tokens": 12, **knobs}).generate(
        model,
        *prompts,
        samples_per_group=samples,
        eos_token_ids=torch.tensor(eos),
        pad_token_id=pad,
        generator=torch.Generator().manual_seed(seed),
    )


def common_ends(model):
    """A third of the vocabulary, so that rows end at many different steps."""
    return tuple(range(1, model.config.vocab_size, 3))


def expected_logprobs(model, samples, row, temperature):
    """Of one row, from a forward pass over its unpadded tokens, without a cache."""
    group = row // samples.samples_per_group
    prompt = samples.prompt_ids[group][samples.prompt_mask[group]]
    completion = samples.completion_ids[row][samples.completion_mask[row]]
    with torch.no_grad():
        logits = model(torch.cat([prompt, completion])[None], use_cache=False).logits[0]
    logprobs = (logits[len(prompt) - 1 : -1] / temperature).log_softmax(-1)
    return logprobs.gather(-1, completion[:, None]).squeeze(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("compact_at", [0.01, 0.125, 1.0])
def test_logprobs_are_those_of_a_full_forward_pass(model, prompts, temperature, compact_at):
    """Padding, the cache, repeated prompts and rows that leave the batch change nothing."""
    samples = generate(model, prompts, eos=common_ends(model), temperature=temperature, compact_at=compact_at)
    lengths = samples.completion_mask.sum(-1)
    assert lengths.unique().numel() > 4
    for row in range(20):
        found = samples.sampler_logprobs[row][samples.completion_mask[row]]
        torch.testing.assert_close(found, expected_logprobs(model, samples, row, temperature), rtol=0, atol=1e-5)
    assert (samples.sampler_logprobs[~samples.completion_mask] == 0).all()


def test_logprobs_of_long_completions(model, prompts):
    samples = generate(model, prompts, samples=2, max_new_tokens=150, compact_at=0.01)
    assert samples.completion_mask.sum(-1).max() == 150
    for row in range(0, 10, 3):
        found = samples.sampler_logprobs[row][samples.completion_mask[row]]
        torch.testing.assert_close(found, expected_logprobs(model, samples, row, 1.0), rtol=0, atol=1e-5)


def test_logprobs_of_a_model_with_a_window_and_a_soft_cap(gemma, prompts):
    ids, mask = prompts
    samples = generate(gemma, (ids.clamp(max=299), mask), eos=tuple(range(1, 300, 7)), temperature=0.7, compact_at=0.01)
    assert samples.completion_mask.sum(-1).unique().numel() > 4
    for row in range(20):
        found = samples.sampler_logprobs[row][samples.completion_mask[row]]
        torch.testing.assert_close(found, expected_logprobs(gemma, samples, row, 0.7), rtol=0, atol=1e-5)


@pytest.mark.parametrize("compact_at", [0.01, 1.0])
@pytest.mark.parametrize("max_rows", [None, 6])
def test_near_zero_temperature_is_greedy_generation(model, prompts, compact_at, max_rows):
    ends = common_ends(model)[::3]
    samples = generate(
        model,
        prompts,
        samples=3,
        eos=ends,
        temperature=1e-4,
        max_new_tokens=20,
        compact_at=compact_at,
        max_rows=max_rows,
    )
    ids, mask = prompts
    greedy = model.generate(
        input_ids=ids,
        attention_mask=mask.long(),
        do_sample=False,
        max_new_tokens=20,
        eos_token_id=list(ends),
        pad_token_id=PAD,
    )[:, ids.shape[1] :]
    found = samples.completion_ids.view(5, 3, -1)
    assert samples.completion_mask.sum(-1).unique().numel() > 1
    for copy in range(3):
        assert torch.equal(found[:, copy], greedy)


def test_first_tokens_follow_the_softmax(model, prompts):
    """Chi-square over 20,000 samples; tokens expected less than ten times are one cell. A right sampler would
    fail at one seed in 10,000."""
    prompt = tuple(part[:1] for part in prompts)
    samples = generate(model, prompt, samples=20_000, max_new_tokens=1, temperature=0.7)
    with torch.no_grad():
        logits = model(prompt[0], use_cache=False).logits[0, -1].double()
    expected = 20_000 * (logits / 0.7).softmax(-1)
    counts = torch.bincount(samples.completion_ids.flatten(), minlength=len(expected)).double()
    rare = expected < 10
    cells = [torch.cat([part[~rare], part[rare].sum()[None]]) for part in (counts, expected)]
    assert len(cells[0]) > 20
    assert stats.chisquare(*cells).pvalue > 1e-4


def test_one_step_follows_the_softmax():
    """Probabilities 1/2, 1/4, 1/8, 1/16, 1/16 at temperature 1; at temperature 1/2 they are squared."""
    probabilities = torch.tensor([8.0, 4.0, 2.0, 1.0, 1.0]) / 16
    for temperature in (1.0, 0.5):
        expected = probabilities ** (1 / temperature)
        expected /= expected.sum()
        generator = torch.Generator().manual_seed(1)
        token, logprob = sample_token(probabilities.log().expand(100_000, -1), temperature, generator)
        torch.testing.assert_close(logprob, expected.log()[token])
        assert stats.chisquare(torch.bincount(token), 100_000 * expected.double()).pvalue > 1e-4


def test_the_generator_is_the_only_source_of_randomness(model, prompts):
    torch.manual_seed(0)
    first = generate(model, prompts, seed=5)
    torch.manual_seed(1)
    assert torch.equal(first.completion_ids, generate(model, prompts, seed=5).completion_ids)
    assert not torch.equal(first.completion_ids, generate(model, prompts, seed=6).completion_ids)


def test_samples_of_a_group_differ(model, prompts):
    samples = generate(model, prompts, samples=8)
    assert all(len(group.unique(dim=0)) > 4 for group in samples.completion_ids.view(5, 8, -1))


def test_masks_end_with_the_end_token(model, prompts):
    """A row either ends with its only end token, or is truncated and holds none; what follows is padding."""
    ends = torch.tensor(common_ends(model)[::4])
    samples = generate(model, prompts, samples=8, eos=tuple(ends.tolist()), max_new_tokens=8)
    is_end = torch.isin(samples.completion_ids, ends)
    assert {True, False} == set(samples.truncated.tolist())
    for row, mask in enumerate(samples.completion_mask):
        length = int(mask.sum())
        assert mask.tolist() == [True] * length + [False] * (len(mask) - length)
        assert is_end[row, :length].tolist() == [False] * (length - 1) + [not samples.truncated[row].item()]
        assert (length == 8) or not samples.truncated[row]
        assert (samples.completion_ids[row, length:] == PAD).all()


def test_padding_may_be_the_end_token(model, prompts):
    """Masks go by position: a token that ends a row counts although padding looks the same."""
    ids, mask = prompts
    end = common_ends(model)[::4][0]
    samples = generate(
        model, (ids.where(mask, torch.tensor(end)), mask), samples=8, eos=common_ends(model)[::4], pad=end
    )
    other = generate(model, prompts, samples=8, eos=common_ends(model)[::4])
    assert torch.equal(samples.completion_mask, other.completion_mask)
    assert torch.equal(samples.truncated, other.truncated)
    assert torch.equal(samples.completion_ids.where(samples.completion_mask, torch.tensor(PAD)), other.completion_ids)
    torch.testing.assert_close(samples.sampler_logprobs, other.sampler_logprobs, rtol=0, atol=1e-6)


def test_columns_after_the_longest_row_are_cut(model, prompts):
    everything = tuple(range(model.config.vocab_size))
    samples = generate(model, prompts, eos=everything)
    assert samples.completion_ids.shape == (20, 1)
    assert samples.completion_mask.all()
    assert not samples.truncated.any()


@pytest.mark.parametrize("max_rows", [1, 4, 9, 100])
def test_rows_are_decoded_in_parts(model, prompts, max_rows, monkeypatch):
    """Never more than max_rows together, or one group where that is more."""
    seen = []
    monkeypatch.setattr(HFSampler, "_decode", watched(HFSampler._decode, seen))
    samples = generate(model, prompts, max_rows=max_rows, max_new_tokens=3)
    assert max(seen) <= max(4, max_rows)
    assert (sum(seen), samples.completion_ids.shape) == (20, (20, 3))
    assert samples.prompt_ids is prompts[0]
    for row in (0, 7, 19):
        found = samples.sampler_logprobs[row][samples.completion_mask[row]]
        torch.testing.assert_close(found, expected_logprobs(model, samples, row, 1.0), rtol=0, atol=1e-5)


def watched(decode, seen):
    def wrapper(self, model, ids, mask, samples_per_group, *rest):
        seen.append(len(ids) * samples_per_group)
        return decode(self, model, ids, mask, samples_per_group, *rest)

    return wrapper


def checkpointed(make_policy):
    model = make_policy().model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.model.norm.eval()
    return model


def test_gradient_checkpointing_is_off_meanwhile(make_policy, prompts):
    """Each prompt and each token is read once, with the cache."""
    model, lengths = checkpointed(make_policy), []
    layer = model.model.layers[0]
    with layer.mlp.register_forward_pre_hook(lambda _, inputs: lengths.append(inputs[0].shape[1])):
        samples = generate(model, prompts, max_new_tokens=3)
    assert lengths == [prompts[0].shape[1], 1, 1]
    torch.testing.assert_close(
        samples.sampler_logprobs[0], expected_logprobs(model.eval(), samples, 0, 1.0), rtol=0, atol=1e-5
    )


def test_modes_come_back_as_they_were(make_policy, prompts):
    """After an error too: of each module its own, and checkpointing of the kind that was asked for."""
    model = checkpointed(make_policy)
    with pytest.raises(IndexError):
        generate(model, (prompts[0] + 10_000, prompts[1]))
    generate(model, prompts, max_new_tokens=3)
    assert [name for name, module in model.named_modules() if not module.training] == ["model.norm"]
    layer = model.model.layers[0]
    assert layer.gradient_checkpointing
    assert layer._gradient_checkpointing_func.keywords == {"use_reentrant": False}


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens must be >= 1, got 0"),
        ({"max_new_tokens": 4, "temperature": 0.0}, "temperature must be > 0, got 0"),
        ({"max_new_tokens": 4, "temperature": float("nan")}, "temperature must be > 0, got nan"),
        ({"max_new_tokens": 4, "max_rows": 0}, "max_rows must be >= 1, got 0"),
        ({"max_new_tokens": 4, "compact_at": 0.0}, r"compact_at must lie in \(0, 1\], got 0"),
    ],
)
def test_knobs_that_cannot_be(knobs, message):
    with pytest.raises(ValueError, match=message):
        HFSampler(**knobs)

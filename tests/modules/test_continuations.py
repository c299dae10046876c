"""Log-probabilities of continuations against a slow loop: one row at a time, all logits, float64."""

import random
from functools import partial

import pytest
import torch

from sgrpo_lightning.modules import Policy, continuations
from sgrpo_lightning.modules.continuations import continuation_logprobs
from sgrpo_lightning.rewards import Answers
from sgrpo_lightning.rewards.policy_logit import AnswerLogprob, AnswerPerplexity

CLOSE = 1e-5  # relative; normalisation layers compute in float32 whatever the weights are


@pytest.fixture(scope="module")
def policy(make_policy):
    """Its probabilities depend on every earlier token, and differ by orders of magnitude."""
    return make_policy(hidden_size=64, layers=2, sharpness=10.0)


@pytest.fixture(scope="module")
def texts():
    """17 pairs of many lengths: prefixes of 1 to 33 tokens, continuations of 0 to 12."""
    draw = random.Random(0)

    def text(length):
        return "".join(draw.choice("abc+=() 7") for _ in range(length))

    prefixes = ["<|user|>Make 24 from 3, 8.<|assistant|><think>8*3</think>\n", "x", *(text(n) for n in range(2, 17))]
    return prefixes, ["<answer>8*3</answer>", "", "24", *(text(n % 13) for n in range(3, 17))]


def slow(policy, prefix, continuation, temperature=1.0, special=False):
    """(log-probability, tokens) from the logits of the whole vocabulary at every token."""
    before = policy.tokenizer(prefix, add_special_tokens=special)["input_ids"]
    after = policy.tokenizer(continuation, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([before + after]), use_cache=False).logits[0]
    logprobs = (logits.double() / temperature).log_softmax(-1)
    return sum(logprobs[len(before) - 1 + i, token].item() for i, token in enumerate(after)), len(after)


def assert_same(found, expected):
    assert [tokens for _, tokens in found] == [tokens for _, tokens in expected]
    assert [score for score, _ in found] == pytest.approx([score for score, _ in expected], rel=CLOSE, abs=CLOSE)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("max_tokens", [1, 40, 16384])
def test_as_the_slow_loop(policy, texts, temperature, max_tokens):
    """Alone, a few together, all together: neighbours, padding and order change nothing."""
    found = continuation_logprobs(policy, *texts, max_tokens=max_tokens, temperature=temperature)
    assert_same(found, [slow(policy, *pair, temperature) for pair in zip(*texts, strict=True)])
    assert len({round(score, 3) for score, _ in found}) > 12
    assert all(type(score) is float for score, _ in found)


def test_of_a_model_that_does_more_to_its_logits(gemma, policy):
    capped = Policy(gemma, policy.tokenizer)
    texts = ["abc", "b", "c+b", "a-cab+ab"], ["c", "ab+ca", "a", "b+b"]
    found = continuation_logprobs(capped, *texts, max_tokens=20)
    assert_same(found, [slow(capped, *pair) for pair in zip(*texts, strict=True)])


def test_the_prefix_matters(policy):
    """A token of difference at its start is seen from the continuation."""
    scores = continuation_logprobs(policy, ["a cat is", "b cat is", "a cat is"], ["7+7"] * 3)
    assert scores[0] == scores[2]
    assert abs(scores[0][0] - scores[1][0]) > 0.01


def test_nothing_merges_across_the_boundary(policy):
    """ "1" and "2" stay two tokens, where "12" would be one; the prefix's special tokens are read as such."""
    assert policy.tokenizer("12")["input_ids"] != policy.tokenizer(["1", "2"])["input_ids"][0]
    assert len(policy.tokenizer("12")["input_ids"]) == 1
    [(score, tokens)] = continuation_logprobs(policy, ["<|user|>1"], ["2"])
    assert tokens == 1
    assert score == pytest.approx(slow(policy, "<|user|>1", "2")[0], rel=CLOSE)


def test_nothing_to_do(policy):
    assert continuation_logprobs(policy, [], []) == []
    assert continuation_logprobs(policy, ["a", "b"], ["", ""]) == [(0.0, 0), (0.0, 0)]


# ---- how the model is called ----


class Spy(torch.nn.Module):
    """Records the size of each forward pass."""

    def __init__(self, model):
        super().__init__()
        self.model, self.shapes = model, []
        model.model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, _, args, kwargs):
        self.shapes.append(tuple(kwargs["input_ids"].shape))


def test_the_budget_counts_padding_and_is_used(make_policy, texts):
    policy = make_policy()
    continuation_logprobs(policy, ["a"], ["b"])  # finds out once whether its logits are plain
    spy = Spy(policy.model)
    longest = max(
        sum(len(ids) for ids in policy.tokenizer(list(pair))["input_ids"]) for pair in zip(*texts, strict=True)
    )
    asked = sum(1 for text in texts[1] if text)
    for budget in (1, 40, 60, 16384):
        spy.shapes.clear()
        continuation_logprobs(policy, *texts, max_tokens=budget)
        assert sum(rows for rows, _ in spy.shapes) == asked
        assert all(rows * columns <= budget or rows == 1 for rows, columns in spy.shapes)
        columns = [columns for _, columns in spy.shapes]
        assert columns == sorted(columns)
        assert columns[-1] == longest
        for (rows, _), (_, wider) in zip(spy.shapes, spy.shapes[1:], strict=False):
            # The next row is at most as long as the longest of its own batch.
            assert (rows + 1) * wider > budget
    assert len(spy.shapes) == 1


def test_the_exact_batches():
    """Lengths 2, 2, 3, 4, 9 under a budget of 8: 2 x 2, not 3 x 3; 2 x 4; then 9 alone."""
    pairs = [([0] * (length - 1), [0]) for length in (9, 2, 3, 2, 4)]
    assert list(continuations._budgeted([*pairs, ([0], [])], 8)) == [[1, 3], [2, 4], [0]]


def test_dropout_is_off_and_the_model_is_left_as_it_was(make_policy, texts):
    policy = make_policy(sharpness=10.0)
    expected = continuation_logprobs(policy, *texts)
    for layer in policy.model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    policy.model.train()
    policy.model.gradient_checkpointing_enable()
    assert continuation_logprobs(policy, *texts) == expected
    assert policy.model.training
    assert policy.model.is_gradient_checkpointing
    policy.model.eval()
    continuation_logprobs(policy, *texts)
    assert not policy.model.training


def test_without_gradient(policy, texts, monkeypatch):
    grad = []
    original = continuations.token_logprobs

    def watched(*args, **kwargs):
        out = original(*args, **kwargs)
        grad.append(torch.is_grad_enabled() or out.logprobs.requires_grad)
        return out

    monkeypatch.setattr(continuations, "token_logprobs", watched)
    with torch.enable_grad():
        continuation_logprobs(policy, *texts)
        assert torch.is_grad_enabled()
    assert grad == [False]


def test_special_tokens_are_those_of_prompts(make_policy):
    """Without a chat template the tokenizer opens a prompt itself; a continuation never gets special tokens."""
    from tokenizers.processors import TemplateProcessing

    policy = make_policy(hidden_size=64, layers=2, sharpness=10.0)
    opening = ("<|user|>", policy.tokenizer.convert_tokens_to_ids("<|user|>"))
    policy.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|user|> $A", special_tokens=[opening]
    )
    assert len(policy.tokenizer("a")["input_ids"]) == 2
    assert_same(continuation_logprobs(policy, ["a"], ["b"]), [slow(policy, "a", "b", special=False)])
    policy.tokenizer.chat_template = None
    opened = slow(policy, "a", "b", special=True)
    assert opened[0] != pytest.approx(slow(policy, "a", "b", special=False)[0], abs=0.01)
    assert_same(continuation_logprobs(policy, ["a", ""], ["b", ""]), [opened, (0.0, 0)])


# ---- what is refused ----


@pytest.mark.parametrize(
    ("arguments", "knobs", "message"),
    [
        ((["a", "b"], ["c"]), {}, "expected a continuation of each prefix, got 1 of 2"),
        ((["a", ""], ["c", "d"]), {}, "a prefix must hold at least one token, got ''"),
        ((["a"], ["c"]), {"max_tokens": 0}, "max_tokens must be >= 1, got 0"),
        ((["a"], ["c"]), {"temperature": 0.0}, r"temperature must be > 0, got 0\.0"),
    ],
)
def test_refuses(policy, arguments, knobs, message):
    with pytest.raises(ValueError, match=message):
        continuation_logprobs(policy, *arguments, **knobs)


# ---- as a reward ----


def test_rewards_of_the_policy_itself(policy):
    """B.7: log pi(a* | q, z) and -exp(-log pi / |a*|), of the reference after the sampled reasoning."""
    prompt, reference = "<|user|>Make 24.<|assistant|>", "<answer>8*3</answer>"
    batch = Answers(
        ["<think>8*3</think><answer>1</answer>", "<think>1"],
        golds=[(8, 3)] * 2,  # no text: the reference is asked for
        references=[reference] * 2,
        prompts=[prompt] * 2,
        logprobs=partial(continuation_logprobs, policy),
    )
    expected = [slow(policy, f"{prompt}{read}\n", reference) for read in ("<think>8*3</think>", "<think>1")]
    found = [outcome.reward for outcome in AnswerLogprob()(batch)]
    assert found == pytest.approx([score for score, _ in expected], rel=CLOSE)
    assert found[0] != pytest.approx(found[1], abs=0.01)
    found = [outcome.reward for outcome in AnswerPerplexity()(batch)]
    perplexities = [torch.tensor(-score / tokens, dtype=torch.float64).exp().item() for score, tokens in expected]
    assert found == pytest.approx([-value for value in perplexities], rel=1e-4)

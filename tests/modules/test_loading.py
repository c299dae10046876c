"""Policies from folders in the hub's format."""

import json

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from sgrpo_lightning.modules import load_policy
from sgrpo_lightning.modules.loading import load_tokenizer
from sgrpo_lightning.modules.rollout import roll_out
from sgrpo_lightning.samplers.hf import HFSampler
from sgrpo_lightning.tasks import Example
from sgrpo_lightning.tasks.prompting import render_prompt

END, TURN = "<|endoftext|>", "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def hub_folder(tmp_path_factory):
    """A random Qwen2 with a tokenizer of Qwen2's own class: byte-level BPE, a chat template, two end tokens."""
    folder = tmp_path_factory.mktemp("hub")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[END, "<|im_start|>", TURN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["Make 24 from 1, 2, 3, 4. user assistant"] * 9, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=TURN, chat_template=TEMPLATE)
    fast.save_pretrained(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"tokenizer_class": "Qwen2Tokenizer"}))
    ends = fast.convert_tokens_to_ids([TURN, END])
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = Qwen2Config(vocab_size=len(fast), num_key_value_heads=1, eos_token_id=ends[0], **size)
        model = Qwen2ForCausalLM(config)
    model.generation_config.eos_token_id = ends
    model.save_pretrained(folder)
    return folder


def test_a_folder_with_a_tokenizer_class_of_its_own(hub_folder):
    policy = load_policy(str(hub_folder))
    tokenizer = policy.tokenizer
    assert type(tokenizer).__name__.startswith("Qwen2Tokenizer")
    assert (tokenizer.padding_side, tokenizer.pad_token, tokenizer.eos_token) == ("left", END, TURN)
    assert policy.eos_token_ids == sorted(tokenizer.convert_tokens_to_ids([TURN, END]))
    text = "Make 24 from 12, 7.\n(3+4)*é"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    prompt = "<|im_start|>user\nMake 24.<|im_end|>\n<|im_start|>assistant\n"
    assert render_prompt(tokenizer, "Make 24.") == prompt


class Echo:
    """Keeps what it grades."""

    def __init__(self):
        self.graded = []

    def grade(self, answers):
        from sgrpo_lightning.rewards import Outcome

        self.graded += zip(answers.completions, answers.golds, strict=True)
        return [Outcome(0.5, "wrong", completion) for completion in answers.completions]


def test_rollouts_of_such_a_folder(hub_folder):
    """Prompts are the template's text and nothing else; completions lose their end token and nothing else."""
    policy, task = load_policy(str(hub_folder)), Echo()
    examples = [Example("Make 1.", 1), Example("Make 24 from 1, 2.", 2)]
    rollout = roll_out(
        policy,
        HFSampler(max_new_tokens=40),
        task,
        examples,
        samples_per_group=12,
        generator=torch.Generator().manual_seed(0),
    )
    samples, tokenizer = rollout.samples, policy.tokenizer
    for group, example in enumerate(examples):
        ids = samples.prompt_ids[group][samples.prompt_mask[group]]
        assert tokenizer.decode(ids) == render_prompt(tokenizer, example.prompt)
    assert [gold for _, gold in task.graded] == [1] * 12 + [2] * 12
    assert {True, False} == set(samples.truncated.tolist())
    for row in range(24):
        ids = samples.completion_ids[row][samples.completion_mask[row]]
        ids = ids if samples.truncated[row] else ids[:-1]
        assert task.graded[row][0] == rollout.completions[row] == tokenizer.decode(ids)
    assert (rollout.rewards == 0.5).all()
    assert rollout.rewards.shape == (2, 12)


def test_special_tokens_inside_a_completion_are_kept(hub_folder):
    """Only the last one ends it: what the grader reads is what the policy wrote."""
    from sgrpo_lightning.axes import Samples
    from sgrpo_lightning.modules.rollout import read_completions

    tokenizer = load_tokenizer(str(hub_folder))
    ids = tokenizer("<|im_start|>a<|im_end|>")["input_ids"]
    empty = torch.zeros(2, len(ids))
    samples = Samples(
        empty, empty, torch.tensor([ids, ids]), torch.tensor([[True] * 3, [True, True, False]]), empty, empty
    )
    assert read_completions(tokenizer, samples, [tokenizer.eos_token_id]) == ["<|im_start|>a", "<|im_start|>a"]


def test_a_generic_tokenizer_class_is_taken_at_its_word(policy_folder, make_policy):
    """The embedded policy splits numbers in its own way, whatever the tokenizer of its architecture does."""
    text = "Make 24 from 12, 7, 3.<think>12*2=24</think>"
    expected = make_policy().tokenizer(text)["input_ids"]
    policy = load_policy(str(policy_folder))
    assert policy.tokenizer(text)["input_ids"] == expected
    assert [policy.tokenizer.decode([i]) for i in expected][:4] == ["Make ", "24", " from ", "12"]
    assert policy.eos_token_ids == [policy.tokenizer.eos_token_id]


def test_weights_and_precision_of_a_folder(policy_folder, make_policy):
    ids = torch.arange(5, 15)[None]
    model = load_policy(str(policy_folder)).model
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert torch.equal(model(ids).logits, make_policy().model.eval()(ids).logits)
    assert load_policy(str(policy_folder), dtype="bfloat16").model.dtype == torch.bfloat16


def test_a_tokenizer_without_padding_pads_with_its_end_token(tmp_path, make_policy):
    tokenizer = make_policy().tokenizer
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(str(tmp_path))
    assert loaded.pad_token_id == loaded.eos_token_id == tokenizer.eos_token_id


def test_a_tokenizer_without_an_end_token(tmp_path, make_policy):
    tokenizer = make_policy().tokenizer
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"model\.path=.*: the tokenizer has no eos_token"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("path", ["./nowhere", "/no/such/folder", "~/no-such-folder"])
def test_a_folder_that_is_not_there(path):
    with pytest.raises(ValueError, match=rf"model\.path={path}: no such folder"):
        load_policy(path)


def test_an_unknown_hub_id_fails_offline():
    with pytest.raises(ValueError, match=r"model\.path=no-such-owner/no-such-policy cannot be loaded: "):
        load_policy("no-such-owner/no-such-policy")


def test_an_unknown_precision(policy_folder):
    with pytest.raises(ValueError, match=r"dtype must be one of float32, .*got 'float33'"):
        load_policy(str(policy_folder), dtype="float33")

"""The embedded policy, built from nothing: a Qwen2 of under a million weights and its tokenizer.

`python train.py --config-name sft` trains it; the result ships in `assets/tiny` as a transformers folder.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from sgrpo_lightning.modules.loading import Policy

PHRASES = ("Make ", " from ", ", ", ".")  # of Countdown's prompt
PAD, EOS, USER, ASSISTANT = "<|pad|>", "<|eos|>", "<|user|>", "<|assistant|>"
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def tiny_tokenizer(phrases: Iterable[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE in which every integer below 100 is one token, and so is each of `phrases`.

    Whole integers make short chains of sums; the byte alphabet keeps any other text lossless.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d{1,2}"), behavior="isolated"),
            pre_tokenizers.Split(Regex(r"[-+*/()=;]"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=100_000,
        min_frequency=1,
        special_tokens=[PAD, EOS, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*(f"{n:02d}" for n in range(100)), *phrases], trainer)
    tokenizer.add_tokens(list(TAGS))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )


def tiny_model(
    tokenizer: PreTrainedTokenizerFast,
    *,
    hidden_size: int = 128,
    layers: int = 4,
    heads: int = 4,
    seed: int = 0,
) -> Qwen2ForCausalLM:
    """A Qwen2 with random weights that fits `tokenizer`; its head size of 32 suits every sampler."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=hidden_size * 8 // 3 // 8 * 8,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)


def tiny_policy(*, hidden_size: int = 128, layers: int = 4, heads: int = 4, seed: int = 0) -> Policy:
    """An untrained policy of the embedded kind."""
    tokenizer = tiny_tokenizer(PHRASES)
    return Policy(tiny_model(tokenizer, hidden_size=hidden_size, layers=layers, heads=heads, seed=seed), tokenizer)

"""From a question to tokens and back: begin and end tokens, and whether an answer's end is learned."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Sequence
from typing import Any

import torch

from sgrpo_lightning.axes import Samples
from sgrpo_lightning.doctor.verdict import Finding, judge
from sgrpo_lightning.modules.rows import join_rows
from sgrpo_lightning.tasks.prompting import render_prompt, tokenize_prompts

TRIES = 20


def check_template(task: Any, policy: Any) -> Finding:
    """A real prompt and a real demonstration, as the policy will read them."""
    tokenizer, example = policy.tokenizer, task.train[0]
    text = render_prompt(tokenizer, example.prompt, system=example.system)
    ids = tokenize_prompts(tokenizer, [text])["input_ids"][0]
    begins, wanted = begin_tokens(ids, tokenizer.bos_token_id), begins_by_itself(tokenizer)
    unknown = ids.count(tokenizer.unk_token_id)
    answer = demonstration(task)
    closed = tokenizer((answer or "") + tokenizer.eos_token, add_special_tokens=False)["input_ids"]
    ends = policy.eos_token_ids
    turn = end_of_turn(tokenizer)
    figures = [
        f"{len(ids)} tokens",
        f"{begins} begin token(s)",
        f"{unknown} unknown",
        f"ends {[tokenizer.convert_ids_to_tokens(end) for end in ends]}",
        "end of the demonstration learned" if answer else "no demonstration at hand",
    ]
    return judge(
        "template",
        "; ".join(figures),
        failures=[
            (
                begins > 1,
                "the begin token is doubled: the chat template writes it and the tokenizer adds another; take it "
                "out of the template or set add_bos_token=false in tokenizer_config.json",
            ),
            (
                wanted and not begins,
                "the begin token that the model was trained with is missing: put it into the chat template",
            ),
            (
                unknown > 0,
                "the tokenizer does not know some of the prompt's characters: it is not the model's, or the "
                "prompt needs others",
            ),
            (
                not reads_back(tokenizer, ids, text),
                f"the prompt reads back as {first_difference(tokenizer, ids, text)!r}: the tokenizer loses text",
            ),
            (
                closed[-1] not in ends,
                f"the text of the end token {tokenizer.eos_token!r} is none of those that end an answer, {ends}; "
                "set eos_token in tokenizer_config.json to one of generation_config.json",
            ),
            (
                not end_is_learned(ids, closed),
                "the end token of a demonstration is not among the tokens that train, so no answer would learn to end",
            ),
        ],
        warnings=[
            (
                turn is not None and tokenizer.convert_tokens_to_ids(turn) not in ends,
                f"the chat template ends a turn with {turn!r}, at which sampling does not stop: add it to eos_token_id "
                "in generation_config.json, unless a supervised start has taught another",
            ),
        ],
    )


def begin_tokens(ids: Sequence[int], bos: int | None) -> int:
    """How many of them stand before anything else; a template may use the same token again between turns."""
    return next((place for place, token in enumerate(ids) if token != bos), len(ids))


def begins_by_itself(tokenizer: Any) -> bool:
    """Whether the tokenizer, left to itself, begins a text with its begin token."""
    return tokenizer.bos_token_id is not None and tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]


def reads_back(tokenizer: Any, ids: Sequence[int], text: str) -> bool:
    """Whether the ids decode to the text, up to white space and Unicode form, which some tokenizers normalise."""
    return _form(_decoded(tokenizer, ids)) == _form(_without_begin(tokenizer, text))


def first_difference(tokenizer: Any, ids: Sequence[int], text: str) -> str:
    """The decoded text from where it leaves the other, at most 40 characters."""
    decoded = _decoded(tokenizer, ids)
    text = _without_begin(tokenizer, text)
    same = next(
        (i for i, (a, b) in enumerate(zip(decoded, text, strict=False)) if a != b), min(len(decoded), len(text))
    )
    return decoded[same : same + 40]


def _decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return _without_begin(tokenizer, text)


def _without_begin(tokenizer: Any, text: str) -> str:
    return text.removeprefix(tokenizer.bos_token) if tokenizer.bos_token else text


def _form(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).split())


def demonstration(task: Any) -> str | None:
    """Of one of the first examples; None where none of them has one."""
    rng = random.Random(0)
    for place in range(min(TRIES, len(task.train))):
        try:
            return task.demonstrate(task.train[place], rng)
        except ValueError:
            continue
    return None


def end_of_turn(tokenizer: Any) -> str | None:
    """The special token that the chat template writes after an answer; None where it writes none."""
    if tokenizer.chat_template is None:
        return None
    turns = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]
    _, answer, after = tokenizer.apply_chat_template(turns, tokenize=False).rpartition("answer")
    special = [token for token in tokenizer.get_added_vocab() if answer and after.lstrip().startswith(token)]
    return max(special, key=len, default=None)


def end_is_learned(prompt: Sequence[int], completion: Sequence[int]) -> bool:
    """Whether rows of the learner train on the last token of a completion."""
    ones = torch.ones(1, len(completion))
    samples = Samples(
        prompt_ids=torch.tensor([list(prompt)]),
        prompt_mask=torch.ones(1, len(prompt), dtype=torch.bool),
        completion_ids=torch.tensor([list(completion)]),
        completion_mask=ones.bool(),
        sampler_logprobs=ones,
        truncated=torch.zeros(1, dtype=torch.bool),
    )
    rows = join_rows(samples, torch.ones(1, 1))
    return bool(rows.loss_mask[0, -1]) and int(rows.length[0]) == len(prompt) + len(completion)

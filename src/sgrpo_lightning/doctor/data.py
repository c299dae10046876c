"""Of the data, without a model: how much there is, whether it leaks, and how long the prompts are."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from sgrpo_lightning.doctor.verdict import Finding, judge
from sgrpo_lightning.tasks import Example
from sgrpo_lightning.tasks.prompting import render_prompt, tokenize_prompts
from sgrpo_lightning.tasks.split import question_key

MANY = 20_000
"""Prompts that are looked at, of each side."""


def spread(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many of the items, evenly spread over them."""
    count = min(most, len(items))
    return [items[place * len(items) // count] for place in range(count)]


def check_data(task: Any, notes: Sequence[str]) -> Finding:
    """Counts, what was left out, and that no held-out question is trained on."""
    train, held_out = spread(task.train, MANY), spread(task.held_out, MANY)
    asked = {question_key(example.prompt) for example in train}
    leaked = [example.prompt for example in held_out if question_key(example.prompt) in asked]
    counts = f"{len(task.train):,} training and {len(task.held_out):,} held-out questions"
    left_out = [note for note in notes if note.startswith("left out")]
    looked = "" if len(train) + len(held_out) == len(task.train) + len(task.held_out) else f" of {MANY:,} looked at"
    overlap = f"{len(leaked)} held-out questions in training{looked}"
    return judge(
        "data",
        "; ".join([counts, *left_out, overlap]),
        failures=[
            (
                bool(leaked),
                f"the first on both sides is {[*leaked, ''][0][:60]!r}; name a split in task.held_out_split, or "
                "draw another with task.split_seed",
            ),
        ],
    )


def check_lengths(
    task: Any, policy: Any, *, max_prompt_tokens: int | None, max_new_tokens: int, positions: int | None
) -> Finding:
    """Tokens of the prompts against the limits.

    Args:
        positions: that the model was made for; None where it has no limit.
    """
    sample = spread(task.train, MANY)
    lengths = sorted(prompt_lengths(policy.tokenizer, sample))
    return judge_lengths(
        lengths,
        all_seen=len(sample) == len(task.train),
        max_prompt_tokens=max_prompt_tokens,
        max_new_tokens=max_new_tokens,
        positions=positions,
    )


def judge_lengths(
    lengths: Sequence[int], *, all_seen: bool, max_prompt_tokens: int | None, max_new_tokens: int, positions: int | None
) -> Finding:
    """The same from sorted lengths; `all_seen` says whether they are those of all prompts."""
    longest = lengths[-1]
    limit = max_prompt_tokens or longest
    room = positions or limit + max_new_tokens
    middle, high = statistics.median_low(lengths), lengths[min(len(lengths) - 1, int(0.99 * len(lengths)))]
    return judge(
        "prompts",
        f"tokens min {lengths[0]}, median {middle}, p99 {high}, max {longest}, limit {max_prompt_tokens or 'none'}; "
        f"with max_new_tokens {longest + max_new_tokens} of {positions or 'any number of'} positions",
        failures=[
            (longest > limit, f"a prompt of {longest} tokens is longer than max_prompt_tokens={limit}"),
            (
                longest + max_new_tokens > room,
                f"the longest prompt and max_new_tokens={max_new_tokens} need {longest + max_new_tokens} positions, "
                f"and the model has {positions}: set max_new_tokens={max(1, room - longest)} or max_prompt_tokens="
                f"{max(1, room - max_new_tokens)}",
            ),
        ],
        warnings=[
            (
                not all_seen and limit + max_new_tokens > room,
                f"only a part of the prompts was measured, and max_prompt_tokens={limit} lets in longer ones than fit: "
                f"set max_prompt_tokens={max(1, room - max_new_tokens)}",
            ),
        ],
    )


def prompt_lengths(tokenizer: Any, examples: Sequence[Example]) -> list[int]:
    texts = [render_prompt(tokenizer, example.prompt, system=example.system) for example in examples]
    return [len(ids) for ids in tokenize_prompts(tokenizer, texts, verbose=False)["input_ids"]]

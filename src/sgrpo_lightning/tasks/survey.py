"""One pass over the prompts of a task: which fit the token limit, and what identifies the data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from sgrpo_lightning.tasks.base import Example, Task
from sgrpo_lightning.tasks.prompting import render_prompt, tokenize_prompts
from sgrpo_lightning.tasks.split import Chosen

SIDES = ("train", "held_out")


class DataChanged(ValueError):
    """A run would go on with other data than it began with."""


def survey(task: Task, tokenizer: Any, *, max_prompt_tokens: int | None) -> tuple[str, list[str]]:
    """Leave out the examples whose prompt has too many tokens (none is cut), and identify those that stay.

    Args:
        max_prompt_tokens: >= 1, or None for any number.

    Returns:
        A fingerprint of all that the examples hold, in their order; and a note on each side that lost some.
    """
    if max_prompt_tokens is not None and max_prompt_tokens < 1:
        raise ValueError(f"max_prompt_tokens must be >= 1, or null for no limit, got {max_prompt_tokens}")
    digest, notes = blake2b(digest_size=16), []
    for side in SIDES:
        examples, kept = getattr(task, side), []
        measured = _measured(examples, tokenizer) if max_prompt_tokens else ((example, 0) for example in examples)
        for place, (example, tokens) in enumerate(measured):
            if tokens <= (max_prompt_tokens or 0):
                kept.append(place)
                digest.update(f"{side} {example!r}".encode(errors="replace"))
        if not kept:
            limit = f" of at most max_prompt_tokens = {max_prompt_tokens} tokens" if max_prompt_tokens else ""
            raise ValueError(f"the task has no {side} prompt{limit}")
        if lost := len(examples) - len(kept):
            setattr(task, side, Chosen(examples, kept))
            notes.append(f"left out: {lost:,} of {len(examples):,} {side} prompts, over {max_prompt_tokens} tokens")
    return digest.hexdigest(), notes


def check_fingerprint(now: Mapping[str, Any], then: Mapping[str, Any]) -> None:
    """Refuse to go on with other prompts or answers than a run began with, by the `fingerprint` of each."""
    new, old = now.get("fingerprint"), then.get("fingerprint")
    if new and old and new != old:
        raise DataChanged(
            f"the data is not what the run began with (fingerprint {new[:8]}, was {old[:8]}): restore task.data, the "
            "other settings of task and max_prompt_tokens, or start another run"
        )


def _measured(examples: Sequence[Example], tokenizer: Any) -> Iterator[tuple[Example, int]]:
    """Each example and the tokens of its prompt, many tokenised together."""
    for start in range(0, len(examples), 1000):
        some = list(examples[start : start + 1000])
        prompts = [render_prompt(tokenizer, example.prompt, system=example.system) for example in some]
        ids = tokenize_prompts(tokenizer, prompts, verbose=False)["input_ids"]
        yield from zip(some, map(len, ids), strict=True)

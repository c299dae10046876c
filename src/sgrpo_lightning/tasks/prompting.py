"""From a question to the text that a policy sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def render_prompt(tokenizer: Any, question: str, *, system: str = "") -> str:
    """The question as a user's turn of the tokenizer's chat template, or on a line of its own without one.

    A `system` message goes first: as a turn of the template, or as a line.
    """
    if tokenizer.chat_template is None:
        return "".join(f"{line}\n" for line in (system, question) if line)
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": question})
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def tokenize_prompts(tokenizer: Any, prompts: Sequence[str], **options: Any) -> Any:
    """Rendered prompts as tokens. Special tokens come from the chat template, or from the tokenizer without one."""
    return tokenizer(list(prompts), add_special_tokens=tokenizer.chat_template is None, **options)

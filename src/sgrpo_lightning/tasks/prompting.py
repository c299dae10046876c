"""From a question to the text that a policy sees."""

from __future__ import annotations

from typing import Any


def render_prompt(tokenizer: Any, question: str) -> str:
    """The question as a user's turn of the tokenizer's chat template, or on a line of its own without one."""
    if tokenizer.chat_template is None:
        return f"{question}\n"
    messages = [{"role": "user", "content": question}]
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

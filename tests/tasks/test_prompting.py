from types import SimpleNamespace

from sgrpo_lightning.tasks.prompting import render_prompt


def test_with_a_chat_template(make_policy):
    text = render_prompt(make_policy().tokenizer, "Make 24.")
    assert text == "<|user|>Make 24.<|assistant|>"


def test_without_one():
    assert render_prompt(SimpleNamespace(chat_template=None), "Make 24.") == "Make 24.\n"

"""Loading a policy: the embedded one, a local folder or a hub id; optionally with LoRA adapters."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from sgrpo_lightning.modules.fused import use_liger

GENERIC_TOKENIZERS = ("PreTrainedTokenizerFast", "TokenizersBackend")
DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True, slots=True)
class Policy:
    """A causal language model and its tokenizer."""

    model: PreTrainedModel
    tokenizer: Any

    @property
    def eos_token_ids(self) -> list[int]:
        """Every token that ends a completion: the tokenizer's and those of the generation config."""
        ids = {self.tokenizer.eos_token_id}
        configured = getattr(self.model, "generation_config", None)
        configured = getattr(configured, "eos_token_id", None)
        ids.update(configured if isinstance(configured, list) else [configured])
        return sorted(i for i in ids if i is not None)


def load_policy(
    path: str,
    *,
    dtype: str = "float32",
    attn_implementation: str | None = None,
    gradient_checkpointing: bool = False,
    liger: bool = False,
    lora: dict[str, Any] | None = None,
) -> Policy:
    """Load a policy for training.

    Args:
        path: "tiny" (the embedded policy), a local folder or a hub id.
        dtype: of the weights that the optimizer updates. Keep float32 and let the trainer's precision choose
            bf16 for the arithmetic: at a learning rate of 1e-6 most updates of bf16 weights round to nothing.
        attn_implementation: as in transformers; None lets it choose.
        gradient_checkpointing: trade time for memory while learning; switched off around sampling.
        liger: Liger's fused kernels, on a GPU, if they prove equal to the model's own.
        lora: arguments of `peft.LoraConfig`; the base weights are then frozen.
    """
    if dtype not in DTYPES:
        raise ValueError(f"model.dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    source = _resolve(path)
    knobs = {"dtype": getattr(torch, dtype), "attn_implementation": attn_implementation}
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(source, **knobs)
    except OSError as error:
        raise ValueError(f"model.path={path} cannot be loaded: {str(error).splitlines()[0]}") from error
    tokenizer = load_tokenizer(source)
    if liger:
        use_liger(model)
    if lora is not None:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **lora))
    if gradient_checkpointing:
        model.train()  # a loaded model is in evaluation mode, in which transformers does not checkpoint
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    return Policy(model, tokenizer)


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The blocks of the stack that the architecture itself says must stay whole: the units of sharding."""
    names = set(model._no_split_modules or ())
    stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return [layer for stack in stacks for layer in stack if type(layer).__name__ in names]


def load_tokenizer(source: str) -> Any:
    """The tokenizer of a folder or hub id, left-padded, with a pad token.

    A folder that names a generic tokenizer class is taken at its word: `AutoTokenizer` would look at the
    architecture instead and split the text as that family's own tokenizer does.
    """
    config = Path(source) / "tokenizer_config.json"
    named = json.loads(config.read_text()).get("tokenizer_class") if config.is_file() else None
    loader = PreTrainedTokenizerFast if named in GENERIC_TOKENIZERS else AutoTokenizer
    tokenizer = loader.from_pretrained(source)
    tokenizer.padding_side = "left"
    if tokenizer.eos_token_id is None:
        raise ValueError(f"model.path={source}: the tokenizer has no eos_token, so no completion could end")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _resolve(path: str) -> str:
    embedded = files("sgrpo_lightning") / "assets" / path
    if path.isidentifier() and embedded.is_dir():
        return str(embedded)
    local = Path(path).expanduser()
    if local.is_dir():
        return str(local)
    if path.startswith((".", "/", "~")):
        raise ValueError(f"model.path={path}: no such folder")
    return path

"""The sizes of a causal language model, and what a token of it takes in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Architecture:
    """The sizes of a causal language model."""

    parameters: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool = True  # the output layer is the embedding

    @property
    def layer_matrices(self) -> int:
        """Weights of the matrix products of a layer."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def output_layer(self) -> int:
        return self.vocabulary * self.hidden


def architecture(config: Any) -> Architecture:
    """Read from a transformers config; the parameters are counted on a model without memory."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return Architecture(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        vocabulary=config.vocab_size,
        tied=config.tie_word_embeddings,
    )


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """In what a forward pass computes."""

    stream: int  # B of a number of the residual stream
    product: int  # B of a number that goes into a matrix product
    casts: bool  # autocast: float32 weights are cast for each pass, and inputs for each product anew


FLOAT32 = Arithmetic(stream=4, product=4, casts=False)
AUTOCAST = Arithmetic(stream=4, product=2, casts=True)
BFLOAT16 = Arithmetic(stream=2, product=2, casts=False)


def layer_activations(model: Architecture, arithmetic: Arithmetic) -> int:
    """B that a decoder layer keeps of one token for the backward pass.

    Of both norms the float32 input and the normed one, and one number; what goes into each product (autocast casts the
    same input three times for attention and twice for the MLP); queries, keys, values, the output of attention and
    one number a head; four arrays of the MLP's width.
    """
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    norms = model.hidden * 2 * (4 + arithmetic.stream) + 8
    inputs = model.hidden * (5 if arithmetic.casts else 2) * arithmetic.product
    return norms + inputs + arithmetic.product * (2 * queries + 2 * keys + 4 * model.intermediate) + 4 * model.heads


def kv_cache(model: Architecture, tokens: int, *, bytes_each: int = 2) -> int:
    """B of the keys and values of so many tokens."""
    return 2 * model.layers * model.kv_heads * model.head_dim * bytes_each * tokens

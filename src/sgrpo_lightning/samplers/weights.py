"""What a sampler with weights of its own expects of those that it is sent: names and shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sgrpo_lightning.samplers import Weights


def weights_of(model: Any) -> dict[str, torch.Size]:
    """Names and shapes of all weights of a transformers model, tied ones too, whoever has its pieces.

    Of a model in adapters those of its base, into which they are merged.
    """
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    with torch.device("meta"):
        twin = type(base)(base.config)
    return {name: tensor.shape for name, tensor in twin.state_dict().items()}


def fitting(weights: Weights, expected: Mapping[str, torch.Size], problems: list[str]) -> Iterator[tuple[str, Tensor]]:
    """Those weights that have a place. What is wrong with the others, and which are missing, is added to `problems`.

    A weight that does not come leaves the old one in its place, in vLLM without a word.
    """
    left = dict(expected)
    for name, tensor in weights:
        shape = left.pop(name, None)
        if shape is None:
            problems.append(f"{name} came twice" if name in expected else f"{name} is unknown")
        elif shape != tensor.shape:
            problems.append(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(shape)}")
        else:
            yield name, tensor
    problems += [f"{name} is missing" for name in left]


def refuse(problems: Sequence[str]) -> None:
    """ValueError that names the first few of them; nothing where there are none."""
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise ValueError(
            f"the weights do not fit the model that the sampler was started with: {'; '.join(problems[:5])}{more}"
        )

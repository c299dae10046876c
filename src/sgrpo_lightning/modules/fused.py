"""Liger's fused kernels for norms, rotary positions and gated layers: used only if they compute what they replace."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

TOLERANCE = 1e-3
"""Largest relative difference, in float32, of log-probabilities and of the gradient that reaches the embeddings."""

TOKENS = 64


def use_liger(model: Any, *, device: str = "cuda") -> None:
    """Put Liger's kernels into the model, and compare it on a few tokens with what it was.

    The loss is left alone: log-probabilities of sampled tokens are computed in chunks by `losses.token_logprobs`.

    Args:
        model: a transformers model of an architecture that Liger knows; it ends on the device where it began.
        device: where the kernels run.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("model.liger=true needs a CUDA GPU, and none is there; use model.liger=false")
    try:
        from liger_kernel.transformers import monkey_patch as liger
    except ImportError as error:
        raise ValueError("model.liger=true needs Liger: pip install 'sgrpo-lightning[liger]'") from error
    kind = model.config.model_type
    if kind not in liger.MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise ValueError(f"model.liger=true: Liger has no kernels for {kind}; use model.liger=false")
    home = model.device
    model.to(device)
    before = _probe(model)
    liger._apply_liger_kernel_to_instance(model, cross_entropy=False, fused_linear_cross_entropy=False)
    after = _probe(model)
    model.to(home)
    for name, one, other in zip(("log-probabilities", "gradients"), before, after, strict=True):
        gap = float((one - other).norm() / one.norm())
        if not gap <= TOLERANCE:
            raise ValueError(
                f"model.liger=true: Liger's kernels change the {name} of {kind} by {gap:.1e} of their size, more than "
                f"{TOLERANCE:.0e}; use model.liger=false"
            )


def _probe(model: Any) -> tuple[Tensor, Tensor]:
    """Log-probabilities after each of a few tokens, and the gradient of their mean square in the embeddings."""
    vocabulary = model.config.get_text_config().vocab_size
    ids = torch.arange(TOKENS, device=model.device)[None] * (vocabulary // TOKENS or 1) % vocabulary
    embedded = model.get_input_embeddings()(ids).detach().requires_grad_()
    logprobs = model(inputs_embeds=embedded, use_cache=False).logits.float().log_softmax(-1)
    (gradient,) = torch.autograd.grad(logprobs.square().mean(), embedded)
    return logprobs.detach(), gradient

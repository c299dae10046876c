"""The loss of one micro-batch: forward pass, log-probabilities, clipped surrogate, reference KL."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from sgrpo_lightning import losses
from sgrpo_lightning.axes import MicroBatch
from sgrpo_lightning.losses import TokenLogprobs

KL_ESTIMATORS = {"k1": losses.kl_k1, "k2": losses.kl_k2, "k3": losses.kl_k3}
KL_NAMES = ("full", *KL_ESTIMATORS, "none")


class PolicyLoss:
    """Eq. 10 and 11 on a micro-batch whose token weights are already those of the whole minibatch.

    Args:
        reduction: (loss_mask, group_id, all_sum=...) -> token weights, from `sgrpo_lightning.losses`.
        temperature: of sampling; all log-probabilities are taken at it.
        clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high]; None leaves a side open.
        beta: coefficient of the reference KL. At 0 no reference model is kept.
        kl: "full" over the vocabulary, or a one-sample estimator "k1", "k2", "k3"; "none" is beta = 0.
        chunk_size: tokens whose logits exist at once; None chooses.
        importance: (behavior_logprobs, sampler_logprobs, loss_mask) -> factors of the advantages, for a sampler that
            is not quite the policy; None: it is.
        reference: where the frozen model of the KL waits, "device" or "cpu". From the CPU it is brought in once an
            iteration.
    """

    def __init__(
        self,
        *,
        reduction: Callable[..., Tensor],
        temperature: float = 1.0,
        clip_low: float | None = 0.2,
        clip_high: float | None = 0.28,
        beta: float = 0.0,
        kl: str = "full",
        chunk_size: int | None = None,
        importance: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
        reference: str = "device",
    ) -> None:
        if beta < 0:
            raise ValueError(f"beta must be >= 0, got {beta}")
        if kl not in KL_NAMES:
            raise ValueError(f"kl must be one of {', '.join(KL_NAMES)}, got {kl!r}")
        if reference not in ("device", "cpu"):
            raise ValueError(f"reference must be device or cpu, got {reference!r}; beta=0 keeps none")
        self.reduction, self.temperature, self.chunk_size = reduction, temperature, chunk_size
        self.importance, self.reference = importance, reference
        self.clip_low, self.clip_high = clip_low, clip_high
        self.kl = "none" if beta == 0 else kl
        self.beta = 0.0 if kl == "none" else beta
        self._try_settings()

    def _try_settings(self) -> None:
        """Run on no tokens: a setting that the losses refuse is refused now, not after the first rollout."""
        nothing = torch.zeros(0, 1)
        losses.ppo_surrogate(nothing, None, nothing[:, 0], nothing, clip_low=self.clip_low, clip_high=self.clip_high)
        losses.token_logprobs(
            nothing, nn.Identity(), nothing[:, 0].long(), temperature=self.temperature, chunk_size=self.chunk_size
        )
        if self.importance is not None:
            self.importance(nothing, nothing, nothing.bool())

    def logprobs(self, model: nn.Module, batch: MicroBatch) -> Tensor:
        """[K] log-probabilities of the micro-batch's tokens, without gradient."""
        with torch.no_grad():
            return self._tokens(model, batch).logprobs

    def __call__(
        self, model: nn.Module, batch: MicroBatch, reference: nn.Module | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the micro-batch, and metrics that add up by their suffix.

        Args:
            reference: the frozen model of the KL, or its output layer alone where the batch carries the states that go
                into it; needed for kl="full" alone, the estimators read the batch.
        """
        tokens = self._tokens(model, batch, reference if self.kl == "full" else None)
        loss, metrics = losses.ppo_surrogate(
            tokens.logprobs[:, None],
            None if batch.behavior_logprobs is None else batch.behavior_logprobs[:, None],
            batch.advantage,
            batch.weight[:, None],
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            entropy=tokens.entropy[:, None],
            metric_weights=batch.share[:, None],
        )
        metrics["loss/sum"] = loss.detach()
        if self.beta:
            kl = tokens.kl_full
            if kl is None:
                assert batch.reference_logprobs is not None, "an estimator needs reference log-probabilities"
                kl = KL_ESTIMATORS[self.kl](tokens.logprobs, batch.reference_logprobs)
            penalty, kl_metrics = losses.kl_penalty(
                kl[:, None], batch.weight[:, None], self.beta, metric_weights=batch.share[:, None]
            )
            loss = loss + penalty
            metrics |= kl_metrics
        return loss, metrics

    def _tokens(self, model: nn.Module, batch: MicroBatch, reference: nn.Module | None = None) -> TokenLogprobs:
        hidden, head = states(model, batch)
        frozen: tuple[Tensor, Callable[[Tensor], Tensor]] | None = None
        if batch.reference_states is not None and reference is not None:
            frozen = batch.reference_states, reference
        elif reference is not None:
            with torch.no_grad(), reference_weights(reference):
                frozen = states(reference, batch)
        return losses.token_logprobs(
            hidden,
            head,
            batch.target,
            temperature=self.temperature,
            reference=frozen,
            full_kl=frozen is not None,
            chunks=batch.chunks,
        )


def states(model: Any, batch: MicroBatch) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """What predicts each trained token, [K, H], and the map from it to logits.

    Only these K states meet the output layer. No attention mask: padding is on the right, where a causal model
    never looks. A model that does more to its logits than one linear layer gives the logits themselves.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    inputs = {"input_ids": batch.input_ids, "position_ids": batch.position_ids, "use_cache": False}
    if is_plain(model):
        hidden = base.base_model(**inputs).last_hidden_state
        return hidden[batch.row, batch.position], base.get_output_embeddings()
    logits = base(**inputs).logits
    return logits[batch.row, batch.position], nn.Identity()


def is_plain(model: Any) -> bool:
    """Whether logits = output_embeddings(hidden), found once by trying."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if not hasattr(base, "_logits_are_plain"):
        ids = torch.arange(2, 10, device=base.device)[None]  # not padding, whose state may be all zeros
        with torch.no_grad():
            hidden = base.base_model(input_ids=ids, use_cache=False).last_hidden_state
            logits = base(input_ids=ids, use_cache=False).logits
            head = base.get_output_embeddings()
            base._logits_are_plain = head is not None and torch.equal(head(hidden), logits)
    return base._logits_are_plain


def reference_weights(reference: Any) -> Any:
    """A policy with LoRA adapters is its own reference once they are switched off."""
    return reference.disable_adapter() if hasattr(reference, "disable_adapter") else nullcontext()

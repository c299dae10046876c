"""The frozen policy of the reference KL: where it is, and which weights it has."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from sgrpo_lightning.modules.policy_loss import is_plain, reference_weights


class Reference:
    """A copy of the policy as it stands now, or the policy itself where adapters can be switched off.

    It is no module, and in no module: a strategy must not wrap, shard or save it.

    Args:
        model: the policy.
        place: "device", or "cpu" for a copy that is on the device only while it is asked.
    """

    def __init__(self, model: Any, *, place: str = "device") -> None:
        self.is_policy = hasattr(model, "disable_adapter")
        self.model = model if self.is_policy else copy.deepcopy(model).requires_grad_(False).eval()
        self.waits_on_cpu = place == "cpu" and not self.is_policy
        self._head: Any = None

    def settle(self, device: torch.device, *, full_kl: bool) -> None:
        """Go where it belongs; of one that waits on the CPU, the full KL keeps the output layer on the device."""
        if self.is_policy:
            return
        if not self.waits_on_cpu:
            self.model.to(device)
        elif full_kl:
            if not is_plain(self.model):
                raise ValueError(
                    "reference=cpu with kl=full needs a model whose logits are one linear layer of its last states; "
                    "use kl=k2 or reference=device"
                )
            self._head = copy.deepcopy(self.model.get_output_embeddings()).to(device)

    @property
    def of_loss(self) -> Any:
        """What the loss of a micro-batch asks: the model, or the output layer where its states come with the batch."""
        return self._head if self.waits_on_cpu else self.model

    @contextmanager
    def at_hand(self, device: torch.device) -> Iterator[Any]:
        """The model with the reference's weights on `device`."""
        home = self.model.device
        if self.waits_on_cpu:
            self.model.to(device)
        try:
            with reference_weights(self.model):
                yield self.model
        finally:
            if self.waits_on_cpu:
                self.model.to(home)

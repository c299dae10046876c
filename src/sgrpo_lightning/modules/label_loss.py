"""Losses of a classifier, per image: from sampled labels, from what a head's update is on average, from a function.

An image is a group: M labels are sampled from the softmax over its C logits, and the right one has reward 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.special import gammaln
from torch import Tensor
from torch.nn.functional import log_softmax

from sgrpo_lightning.geometry import binary_advantages, success_gaps
from sgrpo_lightning.geometry.binomial import bernstein_integral
from sgrpo_lightning.losses.numerics import upcast
from sgrpo_lightning.metrics.groups import NO_SIGNAL
from sgrpo_lightning.samplers.categorical import label_counts

Head = Callable[[Tensor], Tensor]
Losses = tuple[Float[Tensor, " B"], dict[str, Tensor]]

FAILURES = ("sampled", "expected")
IMPOSSIBLE = -1e9
"""Stands for log 0, so that 0 log 0 is 0. Its exponential is 0 beside any binomial coefficient."""


class LabelLoss(Protocol):
    """What image classification asks of a loss."""

    samples: int  # labels sampled of each image

    def __call__(
        self, logits: Float[Tensor, "B C"], labels: Int[Tensor, " B"], *, generator: torch.Generator
    ) -> Losses:
        """The loss of each image, and a value of each metric for each image. Labels are >= 0."""
        ...


class SampledLabels:
    r"""The policy gradient of M sampled labels per image.

    $$-\frac{1}{M} \sum_{j=1}^M A_j \log \pi(z_j), \quad z_j \sim \pi$$

    Only its gradient has a meaning, whose mean is that of `PopulationLoss`. A head is permutation-equivariant, so it
    is called once, here, and its advantages are read from a table over k, the number of right labels.

    Args:
        head: rewards [..., M] -> advantages [..., M].
        samples_per_group: M, >= 1.
        failures: `sampled` | `expected`, which samples k alone and takes the gradient's mean over the wrong labels.
            As all wrong labels have the same advantage, and they and the right one have scores of mean zero,

            $$E[\nabla \mid k] = \frac{1}{M} \Bigl( k A_s(k) - (M-k) A_f(k) \frac{p}{1-p} \Bigr) \nabla \log p$$

            which has less noise and costs no more than cross-entropy.

    Metrics: `reward/mean` k / M, `all_fail/frac` k = 0, `all_pass/frac` k = M, `no_signal/frac` no label has an
    advantage.
    """

    def __init__(self, *, head: Head, samples_per_group: int, failures: str = "sampled") -> None:
        self.samples = samples_per_group
        if failures not in FAILURES:
            raise ValueError(f"failures must be one of {', '.join(FAILURES)}, got {failures!r}")
        self.failures = failures
        success, failure = _ask(binary_advantages, head, samples_per_group)
        silent = np.maximum(abs(success), abs(failure)) <= NO_SIGNAL
        self._table = _PerDevice(np.stack([success, failure, silent]))

    def __call__(
        self, logits: Float[Tensor, "B C"], labels: Int[Tensor, " B"], *, generator: torch.Generator
    ) -> Losses:
        log_p, index = log_softmax(upcast(logits), dim=-1), labels[:, None]
        gradient_of = self._sampled if self.failures == "sampled" else self._expected
        losses, k = gradient_of(log_p, log_p.detach().exp(), index, generator)
        return losses / self.samples, self._metrics(k)

    def _sampled(
        self, log_p: Tensor, probs: Tensor, index: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """M times the loss, and k [B, 1]. Labels that came n times add n A log pi: [B, M] never exists."""
        counts = label_counts(probs, samples=self.samples, generator=generator)
        k = self._whole(counts.gather(1, index))
        success, failure, _ = self._table.on(k.device)[:, k].to(log_p.dtype)
        signal = (counts * failure).scatter_(1, index, k * success)
        return -(signal * log_p).sum(dim=1), k

    def _expected(
        self, log_p: Tensor, probs: Tensor, index: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """As `_sampled`, with k ~ Binomial(M, p) and the wrong labels by their mean."""
        right, wrong = probs.gather(1, index), probs.scatter(1, index, 0).sum(dim=1, keepdim=True)
        rarer = torch.minimum(right, wrong).double()  # the one that keeps its digits
        drawn = torch.binomial(torch.full_like(rarer, self.samples), rarer, generator=generator)
        k = self._whole(torch.where(right <= wrong, drawn, self.samples - drawn))
        success, failure, _ = self._table.on(k.device)[:, k].to(log_p.dtype)
        odds = right / wrong.clamp(min=torch.finfo(wrong.dtype).tiny)  # without wrong labels to draw, k = M
        signal = k * success - (self.samples - k) * failure * odds
        return -(signal * log_p.gather(1, index)).squeeze(1), k

    def _whole(self, k: Tensor) -> Tensor:
        """As an index of the table, even if logits are NaN; the loss is then NaN by them."""
        return k.long().clamp_(0, self.samples)

    def _metrics(self, k: Int[Tensor, "B 1"]) -> dict[str, Tensor]:
        k = k.squeeze(1)
        values = {
            "reward/mean": k / self.samples,
            "all_fail/frac": k == 0,
            "all_pass/frac": k == self.samples,
            "no_signal/frac": self._table.on(k.device)[2, k],
        }
        return {name: value.float() for name, value in values.items()}


class PopulationLoss:
    r"""Minus the objective that a head climbs at group size M: sampling without its noise.

    $$-h_M(p), \quad \frac{d h_M}{d p} = \omega_M(p), \quad p = \pi(\text{right label})$$

    Args:
        head: rewards [..., M] -> advantages [..., M]. The softmax head gives Eq. 16; RLOO gives p itself at any
            M >= 2, exact REINFORCE.
        samples_per_group: M, >= 1. The cost is M + 1 float64 numbers per image.

    Edge cases: accurate from p = 1e-30 to 1 - 1e-15 and at both ends, where it has no gradient. It can be
    differentiated once.

    Reference: Eq. 15 and 16, with the head's own gaps.
    """

    samples = 0

    def __init__(self, *, head: Head, samples_per_group: int) -> None:
        self._table = _PerDevice(_population_table(_ask(success_gaps, head, samples_per_group)))

    def __call__(
        self, logits: Float[Tensor, "B C"], labels: Int[Tensor, " B"], *, generator: torch.Generator | None = None
    ) -> Losses:
        log_p = log_softmax(upcast(logits), dim=-1).gather(1, labels[:, None]).squeeze(1)
        objective: Tensor = _Objective.apply(log_p.double(), self._table.on(log_p.device))
        return -objective.to(log_p.dtype), {}


class ExactLoss:
    """Any loss that is a function of logits and labels.

    Args:
        loss: (logits [B, C], labels [B], reduction="none") -> [B], such as `torch.nn.functional.cross_entropy`.
    """

    samples = 0

    def __init__(self, *, loss: Callable[..., Tensor]) -> None:
        try:
            loss(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long), reduction="none")
        except TypeError as error:
            raise ValueError(f"loss=exact needs a function of logits and labels, not a head: {error}") from error
        self._loss = loss

    def __call__(
        self, logits: Float[Tensor, "B C"], labels: Int[Tensor, " B"], *, generator: torch.Generator | None = None
    ) -> Losses:
        return self._loss(logits, labels, reduction="none"), {}


def _population_table(gaps: np.ndarray) -> np.ndarray:
    """Logarithms of the binomial coefficients, and those of h_M and omega_M in Bernstein form, [3, M + 1].

    A polynomial of degree M - 1 is one of degree M too, so that both share the probabilities of k successes in M.
    """
    M = len(gaps)
    k = np.arange(M + 1)
    log_choose = gammaln(M + 1) - gammaln(k + 1) - gammaln(M - k + 1)
    weight = ((M - k) * np.append(gaps, 0) + k * np.append(0, gaps)) / M
    return np.stack([log_choose, bernstein_integral(gaps), weight])


class _Objective(torch.autograd.Function):
    """h_M as a function of log p in float64; its slope is omega_M(p) p."""

    @staticmethod
    def forward(ctx: Any, log_p: Float[Tensor, " B"], table: Float[Tensor, "3 M+1"]) -> Float[Tensor, " B"]:
        log_choose, *coefficients = table
        k = torch.arange(len(log_choose), dtype=log_p.dtype, device=log_p.device)
        log_failure = (-log_p.expm1()).log().clamp(min=IMPOSSIBLE)
        exponent = torch.addcmul(log_choose, log_p.clamp(min=IMPOSSIBLE)[:, None], k)
        likelihood = exponent.addcmul_(log_failure[:, None], k.flip(0)).exp_()  # of k successes among M
        objective, weight = (likelihood @ torch.stack(coefficients, dim=1)).unbind(dim=1)
        ctx.save_for_backward(weight * log_p.exp())
        return objective

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        if torch.is_grad_enabled():  # as under create_graph=True, which would take the slope for a constant
            raise NotImplementedError("PopulationLoss can be differentiated once, got create_graph=True")
        (slope,) = ctx.saved_tensors
        return gradient * slope, None


class _PerDevice:
    """A table that follows the logits: one copy per device. A pickle holds none of them."""

    def __init__(self, values: np.ndarray) -> None:
        self._values, self._copies = values, dict[torch.device, Tensor]()

    def on(self, device: torch.device) -> Tensor:
        if device not in self._copies:
            self._copies[device] = torch.from_numpy(self._values).to(device)
        return self._copies[device]

    def __reduce__(self) -> tuple[Any, ...]:
        return _PerDevice, (self._values,)


def _ask(read: Callable[..., Any], head: Head, samples_per_group: int) -> Any:
    """`read(head, M=samples_per_group)`, with the words of a run where that fails."""
    if samples_per_group < 1:
        raise ValueError(f"samples_per_group must be >= 1, got {samples_per_group}")
    try:
        return read(head, M=samples_per_group)
    except TypeError as error:
        raise ValueError(f"sampled labels need a head, rewards -> advantages: {error}") from error

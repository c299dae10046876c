"""Whether sampler and trainer are the same policy, also after the weights have changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sgrpo_lightning.doctor.soak import ROUNDING
from sgrpo_lightning.doctor.verdict import Finding, judge
from sgrpo_lightning.modules.rollout import Rollout
from sgrpo_lightning.tasks import Example

SCALES = (0.01, 0.04, 0.16, 0.64)
"""Of the noise, in spreads of the weight that it is added to."""

SEEN = 1e-3
"""Nats by which a change of the weights has to move the policy before it tells anything."""


def check_sampler(module: Any, examples: Sequence[Example], *, limit: float | None) -> Finding:
    """The gap of the log-probabilities with the weights as they are, with others, and with the first ones again.

    Args:
        module: the policy module in a run that has begun, whose `rescoring` measures and allows any gap.
        limit: of the run, nats.
    """
    before, rollout = measured(module, examples, "before")
    with other_weights(module, lambda: movement(module, rollout), enough=max(4 * before, SEEN)) as moved:
        after, _ = measured(module, examples, "after")
    restored, _ = measured(module, examples, "restored")
    return judge_gaps(before, moved, after, restored, limit=limit)


def judge_gaps(before: float, moved: float, after: float, restored: float, *, limit: float | None) -> Finding:
    """From mean gaps in nats; `moved` is what a sampler with stale weights would show."""
    stale = before + moved / 2
    return judge(
        "sampler",
        f"gap {before:.1e} nats a token; {after:.1e} after a push of weights that move the policy by {moved:.1e}; "
        f"{restored:.1e} with the first weights again; limit {limit}",
        failures=[
            (
                moved >= SEEN and max(after, restored) > stale,
                "the sampler keeps old weights: see that its sync loads every tensor and resets its prefix cache",
            ),
            (
                limit is not None and not max(before, after, restored) <= limit,
                "the gap is above rescoring.limit: the sampler has another temperature, precision or model; "
                "rescoring.limit=<nats> allows more",
            ),
        ],
        warnings=[
            (
                max(2 * before, ROUNDING) < restored <= stale,
                "the gap has grown although the weights are the first ones again, as with a prefix cache that is not "
                "reset",
            ),
            (
                moved < max(SEEN, 4 * before),
                "the change of the weights does not show beside the gap, so stale weights would not either",
            ),
        ],
    )


def measured(module: Any, examples: Sequence[Example], key: str) -> tuple[float, Rollout]:
    """The gap of a rollout by the loop's own path: push, sample, rescore."""
    if module.sampler.own_weights:
        module.sampler.version = None  # the loop then pushes, as after an optimizer step
    rollout = module.roll_out(list(examples), key=("doctor", key))
    return module.gap["sampler_gap/mean"], rollout


def movement(module: Any, rollout: Rollout) -> float:
    """|change| of the trainer's own log-probabilities since these samples were drawn."""
    with module._forward_passes():
        return module.rescoring.measure(module.learner, rollout.samples, module.over_ranks)["sampler_gap/mean"]


@contextmanager
def other_weights(module: nn.Module, moved: Callable[[], float], *, enough: float) -> Iterator[float]:
    """Weights with reproducible noise, as little as moves the policy enough; afterwards every bit as before."""
    saved = [(tensor, tensor.to("cpu", copy=True)) for tensor in own_tensors(module)]
    movement = 0.0
    try:
        for scale in SCALES:
            restore(saved)
            nudge(saved, scale)
            movement = moved()
            if movement >= enough:
                break
        yield movement
    finally:
        restore(saved)


@torch.no_grad()
def own_tensors(module: nn.Module) -> list[Tensor]:
    """What this rank holds of the weights that train, in the memory that the model computes with."""
    return [_own(parameter) for parameter in module.parameters() if parameter.requires_grad]


def _own(parameter: Any) -> Tensor:
    if hasattr(parameter, "ds_tensor") and parameter.ds_status.name == "NOT_AVAILABLE":
        return parameter.ds_tensor.data
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter.data


@torch.no_grad()
def nudge(saved: Sequence[tuple[Tensor, Tensor]], scale: float) -> None:
    """Noise in proportion to the spread of each weight; of one that is all equal, to 0.01."""
    for seed, (tensor, _) in enumerate(saved):
        generator = torch.Generator(tensor.device).manual_seed(seed)
        spread = tensor.float().std().item() if tensor.numel() > 1 else 0.0
        noise = torch.randn(tensor.shape, generator=generator, device=tensor.device, dtype=torch.float32)
        tensor.add_((noise * scale * (spread or 0.01)).to(tensor.dtype))


@torch.no_grad()
def restore(saved: Sequence[tuple[Tensor, Tensor]]) -> None:
    for tensor, copy in saved:
        tensor.copy_(copy)

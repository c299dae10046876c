"""Checks of image classification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sgrpo_lightning.axes import NO_LABEL, Draw, ImageBatch
from sgrpo_lightning.doctor.examination import Examination, Named, limit_iterations
from sgrpo_lightning.doctor.gradient import Place, in_place, judge_gradient, relative_difference, tolerance
from sgrpo_lightning.doctor.memory import check_memory
from sgrpo_lightning.doctor.ranks import Rank, check_ranks, checksum
from sgrpo_lightning.doctor.soak import ITERATIONS
from sgrpo_lightning.doctor.speed import tell_image_speed
from sgrpo_lightning.doctor.verdict import Finding, judge

READ = 200
"""Images that are read, of each split."""

STEPS = 2
"""Of an iteration of the soak."""

ROWS = 16
"""Images of one rank whose gradient is compared."""


class ImageExamination(Examination):
    """Of `ClassificationModule`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.plan, self.data = self.module.plan, self.datamodule.data
        self.total_checkpoints = self.plan.iterations

    def cheap(self) -> list[Named]:
        return [("data", partial(check_images, self.data))]

    def inside(self) -> list[Named]:
        return [("ranks", lambda: check_ranks(self._rank())), ("gradient", self._gradient)]

    def afterwards(self) -> list[Named]:
        return [
            ("memory", lambda: check_memory(None, self.module.device, local_ranks=self.trainer.num_devices)),
            ("speed", self._speed),
        ]

    def shorten(self) -> None:
        self.plan.micro_batches(world_size=self.trainer.world_size)
        short = replace(self.plan, total_steps=ITERATIONS * STEPS, steps=STEPS)
        self.module.plan = self.datamodule.plan = short
        scheduler = self.module._make_scheduler
        self.module._make_scheduler = scheduler and partial(over, scheduler, self.plan.total_steps)
        limit_iterations(self.trainer)

    def _rank(self) -> Rank:
        draws = [draw for batch in self.datamodule.train_dataloader().batch_sampler for draw in batch]
        return Rank(
            data=None,
            weights=checksum(self.module.model),
            seed=self.module.generator("labels", 0, 0).initial_seed(),
            work=tuple(draws),
        )

    def _gradient(self) -> Finding:
        draws = next(iter(self.datamodule.train_dataloader().batch_sampler))[:ROWS]
        return check_image_gradient(self.module, self.data.train.__getitems__(draws))

    def _speed(self) -> Finding:
        return tell_image_speed(self.soak.rows, batch_size=self.plan.batch_size, steps=self.plan.total_steps)


def over(scheduler: Any, steps: int, *, num_training_steps: int, **knobs: Any) -> Any:
    """The schedule of the whole run: a warm-up may be longer than what is run here."""
    return scheduler(num_training_steps=steps, **knobs)


def check_images(data: Any) -> Finding:
    """Counts, and whether some images of each split can be read."""
    splits = {"train": data.train, **data.held_out}
    read = {name: read_some(split, number=0 if name == "train" else NO_LABEL) for name, split in splits.items()}
    unreadable = [name for batch in read.values() for name in batch.unreadable]
    labels = torch.cat([batch.labels for batch in read.values()])
    counts = ", ".join(f"{len(split):,} of {name}" for name, split in splits.items())
    share = len(unreadable) / max(1, len(labels))
    return judge(
        "data",
        f"{counts}; {data.num_classes} classes; {len(unreadable)} of {len(labels)} that were tried cannot be read",
        failures=[
            (share > 0.01, f"restore the files, of which the first is {[*unreadable, ''][0]}"),
            (
                bool((labels >= data.num_classes).any()),
                f"labels must be below {data.num_classes}, the number of classes",
            ),
        ],
        warnings=[
            (0 < share <= 0.01, f"{[*unreadable, ''][0]} is skipped in training"),
        ],
    )


def read_some(split: Any, *, number: int) -> ImageBatch:
    """Images spread over the split, as training (number >= 0) or evaluation sees them."""
    count = min(READ, len(split))
    draws: list[Draw] = [(place * len(split) // count, number) for place in range(count)]
    return split.__getitems__(draws)


def check_image_gradient(module: Any, batch: ImageBatch) -> Finding:
    """All images together against one at a time in the opposite order, with made-up advantages."""
    if norms := batch_norms(module.model):
        why = f"batch normalisation in {norms} layers: there the gradient depends on the micro-batch by design"
        return Finding("gradient", "skipped", why)
    batch = batch.to(module.device)
    signs = (-1.0) ** torch.arange(len(batch.labels), device=module.device)
    place: Place | None = in_place(module, lambda rows: weighted_loss(module, batch, rows, signs))
    if place is None:
        return Finding("gradient", "skipped", "DeepSpeed moves gradients to where they cannot be read")
    everything = torch.arange(len(batch.labels), device=module.device)
    single: Sequence[Tensor] = everything.flip(0).split(1)
    with module.trainer.precision_plugin.forward_context():
        norm, difference = relative_difference(place, [everything], single)
    cut = f"{len(everything)} images at once against one at a time"
    note = f"{place.name}; advantages are made up"
    return judge_gradient(norm, difference, tolerance=tolerance(module), cut=cut, note=note)


def weighted_loss(module: Any, batch: ImageBatch, rows: Tensor, signs: Tensor) -> Tensor:
    labels = batch.labels[rows].clamp(min=0)
    return nn.functional.cross_entropy(module(batch.images[rows]), labels, reduction="none") @ signs[rows]


def batch_norms(model: nn.Module) -> int:
    return sum(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules())

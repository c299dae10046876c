"""A picture of some of the images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from datamodules.tensor_images import TensorImages

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 12  # classes
ROWS = {"train": 7, "eval": 4, "eval_unseen_style": 1}  # renderings of each, where there are as many


def contact_sheet(splits: Mapping[str, TensorImages], *, class_names: Sequence[str], seed: int) -> Figure:
    """A column for each of some random classes, and rows of renderings, named by their split."""
    from matplotlib.figure import Figure

    from sgrpo_lightning.report.style import VERMILLION

    count = min(COLUMNS, len(class_names))
    classes = np.random.default_rng(seed).permutation(len(class_names))[:count].tolist()
    pictures = [renderings(split, classes, ROWS[name]) for name, split in splits.items()]
    sheet = np.concatenate(pictures)
    rows, side = len(sheet), sheet.shape[-1]
    figure = Figure(figsize=(0.6 * count + 1.6, 0.6 * rows + 0.8), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(sheet.transpose(0, 2, 1, 3).reshape(rows * side, count * side), cmap="gray", vmin=0, vmax=255)
    names = [class_names[index].replace(" ", "\n", 1) for index in classes]
    # the one font that surely has the characters; a dollar sign begins no formula
    axes.set_xticks(side * (np.arange(count) + 0.5) - 0.5, names, family="DejaVu Sans", size=8, parse_math=False)
    heights = side * np.array([len(some) for some in pictures])
    ends = heights.cumsum()
    axes.set_yticks(ends - heights / 2 - 0.5, list(splits))
    for end in ends[:-1]:
        axes.axhline(end - 0.5, color=VERMILLION)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    return figure


def renderings(split: TensorImages, classes: Sequence[int], at_most: int) -> NDArray[np.uint8]:
    """The first images of each class, [rows, classes, H, W]; as many rows as the rarest of them has."""
    found = [split.images[split.labels == index][:at_most, 0] for index in classes]
    rows = min(len(images) for images in found)
    return torch.stack([images[:rows] for images in found], dim=1).numpy()

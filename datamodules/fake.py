"""Made-up images for tests: a pattern per class, and noise."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from datamodules.tensor_images import TensorImages, pixel_statistics

CELLS = 4  # a pattern is a board of 4 x 4 random colours
NOISE = 25.0  # standard deviation, in the 256 levels of a pixel


class FakeImages:
    """Images that a small network learns within a few steps, made in milliseconds.

    Args:
        classes: each is a board of random colours.
        image_size: pixels on a side.
        channels: colours of a pixel.
        train_size, eval_size: images; the classes take turns.
        seed: of the patterns and the noise.

    Raises:
        ValueError: fewer than two classes, or another size below 1.
    """

    def __init__(
        self,
        *,
        classes: int = 10,
        image_size: int = 32,
        channels: int = 3,
        train_size: int = 512,
        eval_size: int = 128,
        seed: int = 0,
    ) -> None:
        sizes = {"image_size": image_size, "channels": channels, "train_size": train_size, "eval_size": eval_size}
        for name, value, least in [("classes", classes, 2), *((name, value, 1) for name, value in sizes.items())]:
            if value < least:
                raise ValueError(f"{name} must be at least {least}; got {value}")
        self.num_classes, self.image_size, self.channels = classes, image_size, channels
        self.class_names = [f"pattern {index}" for index in range(classes)]
        generator = torch.Generator().manual_seed(seed)
        boards = 255 * torch.rand(classes, channels, CELLS, CELLS, generator=generator)
        patterns = F.interpolate(boards, size=(image_size, image_size), mode="nearest")
        self.train = noisy(patterns, train_size, generator)
        self.held_out = {"eval": noisy(patterns, eval_size, generator)}
        self.mean, self.std = pixel_statistics(self.train.images)


def noisy(patterns: Tensor, count: int, generator: torch.Generator) -> TensorImages:
    """`count` copies of patterns [C, ch, H, W] in turn, with noise."""
    labels = torch.arange(count) % len(patterns)
    images = patterns[labels]
    images += NOISE * torch.randn(images.shape, generator=generator)
    return TensorImages(images.round_().clamp_(0, 255).to(torch.uint8), labels)

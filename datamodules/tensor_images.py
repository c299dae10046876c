"""Images that are held in memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int, UInt8
from torch import Tensor
from torch.utils.data import Dataset

from sgrpo_lightning.axes import NO_LABEL, Draw, ImageBatch


class TensorImages(Dataset[ImageBatch]):
    """A dataset of finished images: nothing about a draw is random.

    Args:
        images: uint8 [N, ch, H, W].
        labels: int64 [N], the classes.
    """

    def __init__(self, images: UInt8[Tensor, "N ch H W"], labels: Int[Tensor, " N"]) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise ValueError(f"images must be uint8 [N, ch, H, W]; got {images.dtype} {list(images.shape)}")
        if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
            raise ValueError(f"labels must be int64 [{len(images)}]; got {labels.dtype} {list(labels.shape)}")
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, draws: Sequence[Draw]) -> ImageBatch:
        """The images of the draws; an index of -1 gives zeros and NO_LABEL.

        Raises:
            IndexError: an index is below -1 or beyond the last image.
        """
        index = torch.tensor([index for index, _ in draws], dtype=torch.int64)
        if len(index) and int(index.min()) < -1:
            raise IndexError(f"an index must be -1 (padding) or count from 0, got {int(index.min())}")
        padding = index == -1
        chosen = index.masked_fill(padding, 0)
        images, labels = self.images[chosen], self.labels[chosen]
        images[padding], labels[padding] = 0, NO_LABEL
        return ImageBatch(images, labels)


def pixel_statistics(images: UInt8[Tensor, "N ch H W"]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the pixels of each channel, in units of [0, 1].

    >>> pixel_statistics(torch.tensor([[[[0, 255]], [[51, 51]]]], dtype=torch.uint8))
    ((0.5, 0.2), (0.5, 0.0))
    """
    levels = torch.arange(256, dtype=torch.float64)
    # counting the 256 levels is exact, and needs no copy of the images in floats
    counts = torch.stack([channel.flatten().bincount(minlength=256) for channel in images.unbind(1)])
    share = counts / counts.sum(1, keepdim=True, dtype=torch.float64)
    mean = share @ levels
    variance = (share * (levels - mean[:, None]) ** 2).sum(1)
    return tuple((mean / 255).tolist()), tuple((variance.sqrt() / 255).tolist())

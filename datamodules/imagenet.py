"""ImageNet, and any other set of images that is laid out like it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import Dataset

from datamodules.image_files import ImageSource, open_images
from datamodules.image_pixels import Image, decode, evaluation_pixels, training_pixels
from sgrpo_lightning.axes import NO_LABEL, Draw, ImageBatch

Index = TypeVar("Index", int, Tensor)


class ImageNet:
    """Images of a folder, of parquet shards or of the hub, with the usual ImageNet transforms.

    Training draws are random crops of 8% to 100% of the area, mirrored half of the time; evaluation takes the
    middle of the resized image. Any number of classes serves.

    Args:
        path: a folder or a hub id, in one of the forms that `datamodules.image_files.LAYOUTS` shows.
        seed: with the number of a draw, decides its crop and whether it is mirrored.
        image_size: pixels of a side of what the network sees.
        resize: pixels of the shorter side before evaluation takes the middle; None is 8/7 of `image_size`.
        train_limit: use only so many training images, spread evenly over the sorted files; None uses all.
        eval_limit: the same for evaluation.
    """

    channels = 3
    mean = (0.485, 0.456, 0.406)
    std = (0.229, 0.224, 0.225)

    def __init__(
        self,
        *,
        path: str,
        seed: int = 0,
        image_size: int = 224,
        resize: int | None = None,
        train_limit: int | None = None,
        eval_limit: int | None = None,
    ) -> None:
        resize = round(image_size * 8 / 7) if resize is None else resize
        if not 1 <= image_size <= resize:
            raise ValueError(f"image_size must lie in [1, resize = {resize}], got {image_size}")
        splits = open_images(path)
        self.class_names: Sequence[str] = splits.class_names
        self.num_classes, self.image_size = len(splits.class_names), image_size
        sizes = {"seed": seed, "image_size": image_size, "resize": resize}
        self.train = EncodedImages(splits.train, limit=train_limit, **sizes)
        self.held_out = {"eval": EncodedImages(splits.held_out, limit=eval_limit, **sizes)}


class EncodedImages(Dataset[ImageBatch]):
    """Decodes, crops and resizes one batch at a time.

    A draw with number -1 gets evaluation's transform, another one training's, as a pure function of
    (seed, number, image). Batches have the memory layout "channels last", which is how images are decoded.
    """

    def __init__(self, source: ImageSource, *, limit: int | None, seed: int, image_size: int, resize: int) -> None:
        if limit is not None and limit < 1:
            raise ValueError(f"a limit of images must be >= 1 or null for all, got {limit}")
        self.source, self.seed, self.image_size, self.resize = source, seed, image_size, resize
        size = min(len(source.labels), limit or len(source.labels))
        self.labels: Int[Tensor, " N"] = source.labels[_spread(torch.arange(size), size, len(source.labels))]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, draws: Sequence[Draw]) -> ImageBatch:
        images = torch.zeros(len(draws), self.image_size, self.image_size, 3, dtype=torch.uint8)
        labels = torch.full((len(draws),), NO_LABEL)
        unreadable = []
        for row, (index, number) in enumerate(draws):
            if index < 0:
                continue
            place = _spread(index, len(self), len(self.source.labels))
            image = self._image(place)
            if image is None:
                unreadable.append(self.source.name(place))
            else:
                images[row], labels[row] = self._pixels(image, number), self.labels[index]
        return ImageBatch(images.permute(0, 3, 1, 2), labels, tuple(unreadable))

    def _image(self, place: int) -> Image | None:
        try:
            return decode(self.source.read(place))
        except ImportError:
            raise
        except Exception:  # Pillow raises nearly anything on broken data; the caller names the file
            return None

    def _pixels(self, image: Image, number: int) -> Image:
        if number < 0:
            return evaluation_pixels(image, size=self.image_size, resize=self.resize)
        return training_pixels(image, size=self.image_size, rng=random.Random(f"image {self.seed} {number}"))


def _spread(index: Index, size: int, available: int) -> Index:
    """Place of image `index` of `size` among `available`: evenly spread, so a sorted source keeps all its classes."""
    return index * available // size

"""From encoded bytes to the pixels that a network sees."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn.functional import interpolate

Image = UInt8[Tensor, "height width 3"]

# Of Pillow's readers, those of photographs: some of the others start programs.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM", "TIFF", "GIF")
AREA = (0.08, 1.0)  # of a training crop, as a share of the image's
ASPECT = (3 / 4, 4 / 3)  # width over height of a training crop
UNCHANGED = 0  # torchvision's mode that keeps the file's own channels


def decode(data: bytes) -> Image:
    """RGB pixels of an encoded image, the same as `PIL.Image.open(...).convert("RGB")`.

    Grey, CMYK and palette images are converted, transparency and the orientation in EXIF are ignored, as
    in torchvision's `ImageFolder`.

    Edge cases: bytes that are no image, or only the beginning of one, raise one of many exceptions.
    """
    if data[:2] == b"\xff\xd8" and (decode_jpeg := _torchvision_jpeg()):
        try:
            image = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), UNCHANGED)
        except RuntimeError:  # Pillow decides what is broken
            return decode_with_pillow(data)
        if len(image) in (1, 3):  # CMYK is left to Pillow, which knows Adobe's inverted kind
            return image.expand(3, -1, -1).permute(1, 2, 0)
    return decode_with_pillow(data)


def decode_with_pillow(data: bytes) -> Image:
    """`decode` without torchvision: loading then takes about a fifth longer."""
    from PIL import Image as pillow

    image = pillow.open(io.BytesIO(data), formats=FORMATS)
    return torch.from_numpy(np.array(image if image.mode == "RGB" else image.convert("RGB")))


@cache
def _torchvision_jpeg() -> Callable[[Tensor, int], Any] | None:
    """torchvision's decoder, None without one. Newer versions deprecate the Python function around this operator."""
    try:
        import torchvision.io  # noqa: F401

        return torch.ops.image.decode_jpeg
    except (ImportError, AttributeError, RuntimeError):
        return None


def training_pixels(image: Image, *, size: int, rng: random.Random) -> Image:
    """A random crop of random shape, as size x size pixels, mirrored half of the time."""
    top, left, height, width = random_crop(image.shape[0], image.shape[1], rng)
    pixels = _resized(image[top : top + height, left : left + width], size, size)
    return pixels.flip(1) if rng.random() < 0.5 else pixels


def random_crop(height: int, width: int, rng: random.Random) -> tuple[int, int, int, int]:
    """(top, left, height, width), distributed as those of torchvision's `RandomResizedCrop`.

    Area uniform in `AREA`, logarithm of the aspect uniform in that of `ASPECT`, place uniform. After ten shapes
    that do not fit, the largest crop in the middle whose aspect lies in `ASPECT`.
    """
    for _ in range(10):
        area = height * width * rng.uniform(*AREA)
        aspect = math.exp(rng.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, height - h), rng.randint(0, width - w), h, w
    h, w = min(height, round(width / ASPECT[0])), min(width, round(height * ASPECT[1]))
    return (height - h) // 2, (width - w) // 2, h, w


def evaluation_pixels(image: Image, *, size: int, resize: int) -> Image:
    """The middle size x size pixels of the image whose shorter side was made `resize` pixels long."""
    height, width = image.shape[:2]
    short = min(height, width)
    height, width = int(resize * height / short), int(resize * width / short)
    top, left = round((height - size) / 2), round((width - size) / 2)
    return _resized(image, height, width)[top : top + size, left : left + size]


def _resized(image: Image, height: int, width: int) -> Image:
    """Bilinear with antialiasing; stays in bytes."""
    pixels = image.permute(2, 0, 1)[None].contiguous(memory_format=torch.channels_last)  # halves the kernel's time
    return interpolate(pixels, size=(height, width), mode="bilinear", antialias=True)[0].permute(1, 2, 0)

"""Renderings of a glyph: a style, a size, a place, an angle, two greys and noise at random."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn import functional as F

SCALE = (0.9, 1.15)  # of the size of the bitmap
SHIFT = 0.06  # at most, as a share of the image's side, in each direction
ROTATION = 10.0  # degrees at most, either way
BACKGROUND = (0.0, 0.3)  # grey levels in units of [0, 1]: light glyphs on a darker ground
INK = (0.7, 1.0)
NOISE = 0.05  # standard deviation of a pixel, in the same units

STRENGTH = (SCALE, SHIFT, ROTATION, BACKGROUND, INK, NOISE)

CHUNK = 1000  # images at a time: 16 MB of bitmaps


def draw_variations(
    bitmaps: UInt8[Tensor, "C S canvas canvas"], *, image_size: int, per_class: int, seed: int, stream: int
) -> tuple[UInt8[Tensor, "N 1 H W"], Int[Tensor, " N"]]:
    """`per_class` random renderings of each class, and their labels 0 ... C-1, 0 ... C-1, ...

    Args:
        bitmaps: of each class in each style to choose from.
        image_size: pixels on a side.
        per_class: renderings of each class.
        seed, stream: two non-negative numbers; each pair makes other renderings.
    """
    classes, styles = bitmaps.shape[:2]
    generator = torch.Generator().manual_seed(int(np.random.SeedSequence((seed, stream)).generate_state(1)[0]))
    labels = torch.arange(classes).repeat(per_class)
    images = torch.empty(len(labels), 1, image_size, image_size, dtype=torch.uint8)
    for out, label in zip(images.split(CHUNK), labels.split(CHUNK), strict=True):
        style = torch.randint(styles, (len(label),), generator=generator)
        out.copy_(render(bitmaps[label, style], image_size=image_size, generator=generator))
    return images, labels


def render(
    bitmaps: UInt8[Tensor, "B canvas canvas"], *, image_size: int, generator: torch.Generator
) -> UInt8[Tensor, "B 1 H W"]:
    """One random rendering of each bitmap."""
    shape = (len(bitmaps), 1, image_size, image_size)
    grid = F.affine_grid(random_placements(len(bitmaps), generator), list(shape), align_corners=False)
    ink = F.grid_sample(bitmaps[:, None].float() / 255, grid, mode="bilinear", align_corners=False)
    background, full = (
        uniform(len(bitmaps), *bounds, generator=generator)[:, None, None, None] for bounds in (BACKGROUND, INK)
    )
    noise = NOISE * torch.randn(shape, generator=generator)
    return (255 * (background + (full - background) * ink + noise)).round().clamp(0, 255).to(torch.uint8)


def random_placements(count: int, generator: torch.Generator) -> Float[Tensor, "B 2 3"]:
    """Affine maps from places in the image to places in the bitmap, both in [-1, 1], as `affine_grid` takes them.

    With the glyph turned by R, enlarged by s and moved by t, the image's x shows the bitmap's R^-1 (x - t) / s.
    """
    scale = uniform(count, *SCALE, generator=generator)
    angle = torch.deg2rad(uniform(count, -ROTATION, ROTATION, generator=generator))
    # the side of [-1, 1] is 2
    shift = 2 * torch.stack([uniform(count, -SHIFT, SHIFT, generator=generator) for _ in "xy"], dim=1)
    cos, sin = angle.cos(), angle.sin()
    inverse = torch.stack([cos, sin, -sin, cos], dim=1).reshape(-1, 2, 2) / scale[:, None, None]
    return torch.cat([inverse, -inverse @ shift[:, :, None]], dim=2)


def uniform(count: int, low: float, high: float, *, generator: torch.Generator) -> Float[Tensor, " B"]:
    return low + (high - low) * torch.rand(count, generator=generator)

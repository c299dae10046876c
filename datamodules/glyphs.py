"""Pictures of characters: a stand-in for ImageNet that needs no download."""

from __future__ import annotations

import hashlib
import os
import uuid
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datamodules._glyph_fonts import TRAINING_STYLES, draw_glyphs, fonts_digest
from datamodules._glyph_sheet import contact_sheet
from datamodules._glyph_variations import STRENGTH, draw_variations
from datamodules.tensor_images import TensorImages, pixel_statistics
from sgrpo_lightning.cache import default_cache_dir

FORMAT = 1  # of the cached file; a change of anything that is drawn raises it

SPLITS = ("train", "eval", "eval_unseen_style")

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class GlyphSettings:
    """What the pixels depend on, beside the fonts."""

    classes: int
    image_size: int
    train_per_class: int
    eval_per_class: int
    unseen_per_class: int
    seed: int

    def __post_init__(self) -> None:
        least = {"classes": 2, "image_size": 8, "seed": 0}
        for name in self.__slots__:
            if getattr(self, name) < least.get(name, 1):
                raise ValueError(f"{name} must be at least {least.get(name, 1)}; got {getattr(self, name)}")

    @property
    def file_name(self) -> str:
        """Each thing that the pixels depend on changes it."""
        values = "-".join(f"{name}={getattr(self, name)}" for name in self.__slots__)
        look = hashlib.sha256(f"{fonts_digest()} {STRENGTH}".encode()).hexdigest()[:12]
        return f"glyphs-v{FORMAT}-{values}-{look}.npz"

    @property
    def per_class(self) -> dict[str, int]:
        """Renderings of each class in each split."""
        counts = self.train_per_class, self.eval_per_class, self.unseen_per_class
        return dict(zip(SPLITS, counts, strict=True))

    @property
    def kinds(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of each array of `draw`."""
        side = self.image_size
        images = {name: ((self.classes * n, 1, side, side), "uint8") for name, n in self.per_class.items()}
        return {"codes": ((self.classes,), "int64"), "mean": ((1,), "float64"), "std": ((1,), "float64"), **images}


class Glyphs:
    """Random renderings of `classes` characters: a stand-in for ImageNet, with as many classes, without its files.

    Each image shows one character in a random style of the DejaVu fonts that come with matplotlib, at a random
    size, place, angle, contrast and brightness, with noise. The held-out "eval" are other renderings in the same
    styles, "eval_unseen_style" renderings in a style that no other split has. That style's arrows, boxes and other
    symbols, about a quarter of the characters, look as in another style all the same.

    Args:
        classes: how many characters; the same ones whatever the seed.
        image_size: pixels on a side.
        train_per_class, eval_per_class, unseen_per_class: renderings of each character in each split.
        seed: of the renderings. It belongs to the data: runs with other seeds see the same pixels.
        cache_dir: where the images are kept after the first use; `~/.cache/sgrpo-lightning` by default.

    Raises:
        ValueError: a number that is too small, or more classes than the fonts have distinct glyphs.
    """

    channels = 1

    def __init__(
        self,
        *,
        classes: int = 1000,
        image_size: int = 32,
        train_per_class: int = 40,
        eval_per_class: int = 4,
        unseen_per_class: int = 1,
        seed: int = 0,
        cache_dir: str | Path | None = None,
    ) -> None:
        self.settings = GlyphSettings(classes, image_size, train_per_class, eval_per_class, unseen_per_class, seed)
        self.num_classes, self.image_size = classes, image_size
        arrays = load_or_draw(self.settings, Path(cache_dir).expanduser() if cache_dir else default_cache_dir())
        self.class_names = [f"U+{code:04X} {chr(code)}" for code in arrays["codes"].tolist()]
        self.mean, self.std = tuple(arrays["mean"].tolist()), tuple(arrays["std"].tolist())
        self.train = self._split(arrays["train"])
        self.held_out = {name: self._split(arrays[name]) for name in SPLITS[1:]}

    def contact_sheet(self, path: str | Path) -> None:
        """Writes a PNG of twelve random classes, in up to twelve renderings from all the splits; makes the folder."""
        splits = {"train": self.train, **self.held_out}
        figure = contact_sheet(splits, class_names=self.class_names, seed=self.settings.seed)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120, bbox_inches="tight")

    def _split(self, images: NDArray[Any]) -> TensorImages:
        labels = torch.arange(self.num_classes).repeat(len(images) // self.num_classes)
        return TensorImages(torch.from_numpy(images), labels)


def load_or_draw(settings: GlyphSettings, folder: Path) -> Arrays:
    """The arrays from the cache, else drawn and, where the folder can be written, cached."""
    path = folder / settings.file_name
    cached = read_cache(path, settings)
    if cached is not None:
        return cached
    print(f"drawing {settings.classes:,} glyph classes for {path}", flush=True)
    arrays = draw(settings)
    try:
        write_cache(path, arrays)
    except OSError as error:
        warnings.warn(f"the glyphs are drawn anew in each run, for they cannot be cached: {error}", stacklevel=3)
    return arrays


def draw(settings: GlyphSettings) -> Arrays:
    """The images of every split, the code points of the classes, mean and standard deviation of the pixels."""
    glyphs = draw_glyphs(settings.classes)
    bitmaps = torch.from_numpy(glyphs.bitmaps)
    seen, unseen = bitmaps[:, : len(TRAINING_STYLES)], bitmaps[:, len(TRAINING_STYLES) :]
    styles = {"train": seen, "eval": seen, "eval_unseen_style": unseen}
    arrays: Arrays = {"codes": np.array(glyphs.codes, dtype=np.int64)}
    for stream, (name, count) in enumerate(settings.per_class.items()):
        images, _ = draw_variations(
            styles[name], image_size=settings.image_size, per_class=count, seed=settings.seed, stream=stream
        )
        arrays[name] = images.numpy()
    mean, std = pixel_statistics(torch.from_numpy(arrays["train"]))
    return arrays | {"mean": np.array(mean), "std": np.array(std)}


def read_cache(path: Path, settings: GlyphSettings) -> Arrays | None:
    """The arrays of a cached file; None if there is none or it is not whole."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in settings.kinds}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return (
        arrays if {name: (array.shape, str(array.dtype)) for name, array in arrays.items()} == settings.kinds else None
    )


def write_cache(path: Path, arrays: Arrays) -> None:
    """Write the file whole or not at all, whoever else writes it at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{uuid.uuid4().hex}.part")
    try:
        with scratch.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)

"""Where images lie: folders of image files, or parquet shards from disk or from the hub."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

if TYPE_CHECKING:
    import datasets

TRAIN = "train"
HELD_OUT = ("val", "validation")
IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".gif")
LAYOUTS = """put the images there in one of two forms, or name a data set of the hub:
  folders: {path}/train/<class>/*.JPEG and {path}/val/<class>/*.JPEG, with the same classes in both
  parquet: {path}/data/train-*.parquet and {path}/data/validation-*.parquet, with the columns image and label
  hub:     path=ILSVRC/imagenet-1k, after accepting its terms on huggingface.co and `hf auth login`"""


class ImageSource(Protocol):
    """Encoded images by number, and what they show."""

    labels: Int[Tensor, " N"]

    def read(self, index: int) -> bytes:
        """The encoded image; raises OSError where there is none."""
        ...

    def name(self, index: int) -> str:
        """Where a person finds the image."""
        ...


class ImageSplits(NamedTuple):
    class_names: list[str]
    train: ImageSource
    held_out: ImageSource


def open_images(path: str) -> ImageSplits:
    """Find the images of `path`: a folder in one of the forms of `LAYOUTS`, or a hub id.

    A folder that exists is never taken for a hub id. Parquet is unpacked once into the cache of `datasets`
    (`HF_DATASETS_CACHE`), as large again as the shards, because they cannot be read in random order. A hub id is
    downloaded whole, with the splits that are not used.
    """
    root = Path(path).expanduser()
    if _subfolders(root / TRAIN):
        return open_folders(root)
    if shards := _parquet_shards(root):
        return _open_tables(_load_tables("parquet", data_files=shards), path)
    if not root.exists() and re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", path):
        return _open_hub(path)
    raise ValueError(f"no images at path={path}: {LAYOUTS.format(path=path)}")


def open_folders(root: Path) -> ImageSplits:
    """`root/train/<class>/...` and `root/val/<class>/...`; the sorted names of the folders number the classes."""
    held_out = next((root / name for name in HELD_OUT if (root / name).is_dir()), root / HELD_OUT[0])
    train_classes, held_out_classes = _subfolders(root / TRAIN), _subfolders(held_out)
    if not held_out_classes:
        raise ValueError(f"no class folders in {held_out}: {LAYOUTS.format(path=root)}")
    _check_same_classes(root / TRAIN, set(train_classes), held_out, set(held_out_classes))
    return ImageSplits(
        train_classes, FolderImages(root / TRAIN, train_classes), FolderImages(held_out, held_out_classes)
    )


class FolderImages:
    """The images below `folder/<class>`, in the order of torchvision's `ImageFolder`.

    Paths lie in one array: a Python object for each of a million files would be copied into every worker, page
    by page, as reference counts change.
    """

    def __init__(self, folder: Path, classes: Sequence[str]) -> None:
        found = [_image_paths(folder, name) for name in classes]
        if empty := [name for name, paths in zip(classes, found, strict=True) if not len(paths)]:
            raise ValueError(f"every class folder of {folder} must hold images, got none in {_some(empty)}")
        self.folder = str(folder)
        self.paths = np.concatenate(found)
        self.labels = torch.repeat_interleave(torch.tensor([len(paths) for paths in found]))

    def name(self, index: int) -> str:
        return os.path.join(self.folder, os.fsdecode(self.paths[index]))

    def read(self, index: int) -> bytes:
        with open(self.name(index), "rb") as file:
            return file.read()


class TableImages:
    """Rows of a table with the columns `image` (a struct with `bytes` and `path`) and `label`."""

    def __init__(self, table: datasets.Dataset, split: str) -> None:
        self.split = split
        self.labels = torch.from_numpy(np.array(table.with_format("numpy")["label"][:], dtype=np.int64))
        self.images = table.select_columns("image").with_format("arrow")

    def name(self, index: int) -> str:
        return f"{self.split} row {index} ({self._image(index).get('path') or 'no name'})"

    def read(self, index: int) -> bytes:
        if data := self._image(index).get("bytes"):
            return data
        raise OSError(f"no image in {self.name(index)}")

    def _image(self, index: int) -> dict[str, Any]:
        return self.images[index]["image"][0].as_py() or {}


def _subfolders(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _image_paths(folder: Path, name: str) -> np.ndarray:
    """Sorted paths of the images below folder/name, relative to `folder`, as encoded strings of one width."""
    paths: list[str] = []
    for base, _, files in os.walk(folder / name, followlinks=True):
        prefix = os.path.relpath(base, folder) + os.sep
        paths += [prefix + file for file in files if file.lower().endswith(IMAGE_SUFFIXES) and file[0] != "."]
    return np.array([os.fsencode(path) for path in sorted(paths)], dtype=np.bytes_)


def _check_same_classes(train: Path, train_classes: set[str], held_out: Path, held_out_classes: set[str]) -> None:
    differ = [
        f"{_some(sorted(missing))} not in {folder}"
        for missing, folder in ((train_classes - held_out_classes, held_out), (held_out_classes - train_classes, train))
        if missing
    ]
    if differ:
        raise ValueError(f"both splits must have the same class folders, got {', and '.join(differ)}")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _parquet_shards(root: Path) -> dict[str, list[str]]:
    """Split -> shards, from the name of the file or of the folder that it lies in."""
    shards: dict[str, list[str]] = {}
    for path in sorted([*root.glob("*.parquet"), *root.glob("*/*.parquet"), *root.glob("*/*/*.parquet")]):
        parts = path.relative_to(root).parts
        for split in (TRAIN, *HELD_OUT):
            if any(re.match(rf"{split}(?![a-z])", part) for part in parts):
                shards.setdefault(split, []).append(str(path))
    return shards


def _open_hub(path: str) -> ImageSplits:
    try:
        return _open_tables(_load_tables(path), path)
    except OSError as error:  # not found, no access, no network
        reason = str(error).splitlines()[0]
        raise ValueError(f"no images at path={path}, on the hub {reason!r}: {LAYOUTS.format(path=path)}") from error


def _load_tables(path: str, **options: dict[str, list[str]]) -> datasets.DatasetDict:
    from datasets import load_dataset

    return load_dataset(path, **options)


def _open_tables(tables: datasets.DatasetDict, path: str) -> ImageSplits:
    held_out = next((name for name in HELD_OUT if name in tables), None)
    if TRAIN not in tables or held_out is None:
        raise ValueError(f"{path} must have the splits train and validation, got {_some(list(tables))}")
    for split in (TRAIN, held_out):
        _check_columns(tables[split], f"{path}, {split}")
    train, evaluation = TableImages(tables[TRAIN], TRAIN), TableImages(tables[held_out], held_out)
    names = getattr(tables[TRAIN].features["label"], "names", None)
    names = names or [str(label) for label in range(int(train.labels.max()) + 1)]
    for source in (train, evaluation):
        low, high = int(source.labels.min()), int(source.labels.max())
        if low < 0 or high >= len(names):
            raise ValueError(
                f"labels of {path}, {source.split}, must lie in [0, {len(names) - 1}], got {low} to {high}"
            )
    return ImageSplits(names, train, evaluation)


def _check_columns(table: datasets.Dataset, where: str) -> None:
    types = {name: table.features.arrow_schema.field(name).type for name in table.column_names}
    if not {"image", "label"} <= set(types):
        raise ValueError(f"{where} must have the columns image and label, got {', '.join(types)}")
    if "bytes" not in getattr(types["image"], "names", ()):
        raise ValueError(f"{where}: image must be a struct of bytes and path, got {types['image']}")
    if not str(types["label"]).startswith(("int", "uint")):
        raise ValueError(f"{where}: label must be a whole number, got {types['label']}")

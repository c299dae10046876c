"""Images per CPU second that reach a batch, against torchvision's usual pipeline.

    python benchmarks/loading.py [--images 192] [--laps 9] [--workers 0 1] [--quality 90]

Both read the same folder of JPEGs of 500 x 375 pixels, noise with the spectrum of photographs, through a DataLoader.
Ours is `ImageNet`, whose batches are bytes: the device normalises them. The usual pipeline is ImageFolder with
RandomResizedCrop, RandomHorizontalFlip, ToTensor, Normalize, or Resize, CenterCrop, ToTensor, Normalize, and the
default collate. The two alternate, a ratio is of neighbours, and time is that of the CPU, over all processes.
"""

from __future__ import annotations

import argparse
import io
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from datamodules.image_files import TRAIN
from datamodules.imagenet import ImageNet
from datamodules.images import as_it_is

BATCH = 64
CLASSES = 4


def photograph(height: int, width: int, rng: np.random.Generator) -> Image.Image:
    """Noise whose amplitude falls as 1 / frequency, alike in the three colours."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    frequency[0, 0] = np.inf
    noise = rng.standard_normal((1, height, width)) + 0.5 * rng.standard_normal((3, height, width))
    smooth = np.fft.irfft2(np.fft.rfft2(noise) / frequency, s=(height, width))
    pixels = 128 + 50 * smooth / smooth.std()
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8).transpose(1, 2, 0))


def write_images(root: Path, count: int, quality: int) -> int:
    """A data set in folders, of the same images in both splits; returns their bytes."""
    rng, size = np.random.default_rng(0), 0
    for number in range(count):
        file = io.BytesIO()
        photograph(*((375, 500) if number % 4 else (500, 375)), rng).save(file, "JPEG", quality=quality)
        size += len(file.getvalue())
        for split in (TRAIN, "val"):
            path = root / split / f"class{number % CLASSES}" / f"{number}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.getvalue())
    return size


def usual_loader(root: Path, data: ImageNet, split: str, workers: int) -> DataLoader:
    steps = [transforms.Resize(256), transforms.CenterCrop(224)]
    if split == TRAIN:
        steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
    steps += [transforms.ToTensor(), transforms.Normalize(data.mean, data.std)]
    return DataLoader(ImageFolder(str(root / split), transforms.Compose(steps)), BATCH, num_workers=workers)


def our_loader(data: ImageNet, split: str, workers: int) -> DataLoader:
    dataset = data.train if split == TRAIN else data.held_out["eval"]
    draws = [(index, index if split == TRAIN else -1) for index in range(len(dataset))]
    batches = [draws[start : start + BATCH] for start in range(0, len(draws), BATCH)]
    return DataLoader(dataset, batch_sampler=batches, collate_fn=as_it_is, num_workers=workers)


def seconds(loader: DataLoader) -> tuple[float, float]:
    """CPU time over all processes and time on the clock, for one pass."""

    def spent() -> float:
        usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(u.ru_utime + u.ru_stime for u in usage)

    cpu, clock = spent(), time.perf_counter()
    for _ in loader:
        pass
    return spent() - cpu, time.perf_counter() - clock


def report(name: str, images: int, loaders: list[Callable[[], DataLoader]], laps: int) -> None:
    times = [[seconds(loader()) for loader in loaders] for _ in range(laps + 1)][1:]
    rates = [median(images / lap[side][0] for lap in times) for side in (0, 1)]
    ratios = [[usual[kind] / ours[kind] for ours, usual in times] for kind in (0, 1)]
    low, high = np.quantile(ratios[0], [0.25, 0.75])
    print(
        f"{name:18} {rates[0]:8.0f} {rates[1]:8.0f} {median(ratios[0]):8.2f} [{low:.2f}, {high:.2f}]"
        f" {median(ratios[1]):10.2f}",
        flush=True,
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=192)
    parser.add_argument("--laps", type=int, default=9)
    parser.add_argument("--workers", type=int, nargs="+", default=(0, 1))
    parser.add_argument("--quality", type=int, default=90, help="of the JPEGs")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        size = write_images(root, arguments.images, arguments.quality)
        data = ImageNet(path=folder)
        print(f"{arguments.images} images of {size / arguments.images / 1024:.0f} KiB, images per CPU second")
        print(f"{'':18} {'ours':>8} {'usual':>8} {'ratio':>8} {'[quartiles]':12} {'on clock':>10}")
        for split in (TRAIN, "val"):
            for workers in arguments.workers:
                ours = partial(our_loader, data, split, workers)
                usual = partial(usual_loader, root, data, split, workers)
                report(f"{split}, {workers} workers", arguments.images, [ours, usual], arguments.laps)


if __name__ == "__main__":
    main()

"""Image classifiers: a small convolutional network, and torchvision's residual networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from torch import nn

NORMS: dict[str, Callable[[int], nn.Module]] = {"batch": nn.BatchNorm2d, "group": partial(nn.GroupNorm, 8)}


def small_cnn(
    num_classes: int,
    *,
    channels: int = 3,
    widths: Sequence[int] = (16, 32, 64, 128),
    norm: str = "batch",
) -> nn.Sequential:
    """A 3 x 3 convolution per width, each but the first at half the resolution, and a linear layer over 4 x 4 places.

    Args:
        num_classes: C.
        channels: of the images.
        widths: channels of the layers.
        norm: batch | group. Group normalisation makes an image's logits independent of its batch.

    Returns:
        images [B, channels, H, W] -> logits [B, C].
    """
    if norm not in NORMS:
        raise ValueError(f"model.norm must be one of {', '.join(NORMS)}, got {norm!r}")
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise([channels, *widths]):
        stride = 2 if layers else 1
        layers += [nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)]
        layers += [NORMS[norm](outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * widths[-1], num_classes))


STEMS = ("imagenet", "small")


def resnet(depth: int, num_classes: int, *, channels: int = 3, stem: str = "imagenet") -> nn.Module:
    """torchvision's ResNet from scratch.

    Args:
        depth: 18, 34, 50, 101 or 152.
        num_classes: C.
        channels: of the images.
        stem: imagenet (7 x 7 at stride 2, then a pooling at stride 2) | small (3 x 3 at stride 1, for 32 pixels).

    Returns:
        images [B, channels, H, W] -> logits [B, C].
    """
    from torchvision import models

    make = getattr(models, f"resnet{depth}", None)
    if make is None:
        raise ValueError(f"model.depth must be one of 18, 34, 50, 101, 152, got {depth}")
    if stem not in STEMS:
        raise ValueError(f"model.stem must be one of {', '.join(STEMS)}, got {stem!r}")
    model = make(weights=None, num_classes=num_classes)
    width = model.conv1.out_channels
    if stem == "small":
        model.conv1, model.maxpool = nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.Identity()
    elif channels != 3:
        model.conv1 = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
    if model.conv1.in_channels != 3 or stem == "small":
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")  # as torchvision's own
    return model

"""A dataset in memory: what a batch of draws holds."""

import doctest

import numpy as np
import pytest
import torch

from datamodules import tensor_images
from datamodules.tensor_images import TensorImages, pixel_statistics
from sgrpo_lightning.axes import NO_LABEL


def images(count=3, channels=1):
    return torch.arange(1, count * channels * 4 + 1, dtype=torch.uint8).reshape(count, channels, 2, 2)


def test_draws_are_images_in_their_order():
    data = TensorImages(images(), torch.tensor([7, 8, 9]))
    batch = data.__getitems__([(2, 5), (0, -1), (2, 6)])
    assert batch.images.tolist() == [[[[9, 10], [11, 12]]], [[[1, 2], [3, 4]]], [[[9, 10], [11, 12]]]]
    assert batch.labels.tolist() == [9, 7, 9]
    assert (batch.images.dtype, batch.labels.dtype, batch.unreadable) == (torch.uint8, torch.int64, ())
    assert len(data) == 3
    assert data.labels.tolist() == [7, 8, 9]


def test_padding_is_black_and_has_no_label():
    data = TensorImages(images(), torch.tensor([7, 8, 9]))
    batch = data.__getitems__([(-1, -1), (1, 3), (-1, 4)])
    assert batch.labels.tolist() == [NO_LABEL, 8, NO_LABEL]
    assert batch.images.tolist() == [[[[0, 0], [0, 0]]], [[[5, 6], [7, 8]]], [[[0, 0], [0, 0]]]]
    assert data.images.equal(images()), "the data themselves stay"
    assert data.labels.tolist() == [7, 8, 9]


def test_a_batch_can_be_changed_without_the_data():
    data = TensorImages(images(), torch.tensor([7, 8, 9]))
    data.__getitems__([(0, 0), (1, 0), (2, 0)]).images.zero_()
    assert data.images.equal(images())


@pytest.mark.parametrize("index", [-2, 3])
def test_an_index_outside_of_the_data_is_an_error(index):
    with pytest.raises(IndexError):
        TensorImages(images(), torch.tensor([7, 8, 9])).__getitems__([(0, 0), (index, 1)])


@pytest.mark.parametrize(
    ("pixels", "labels", "message"),
    [
        (images().float(), torch.tensor([0, 1, 2]), "uint8"),
        (images()[:, 0], torch.tensor([0, 1, 2]), r"\[N, ch, H, W\]"),
        (images(), torch.tensor([0, 1]), r"int64 \[3\]"),
        (images(), torch.tensor([0, 1, 2], dtype=torch.int32), "int64"),
    ],
)
def test_other_tensors_are_refused(pixels, labels, message):
    with pytest.raises(ValueError, match=message):
        TensorImages(pixels, labels)


def test_pixel_statistics_are_those_of_numpy():
    pixels = torch.randint(256, (5, 3, 4, 6), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    pixels[:, 1] //= 3
    mean, std = pixel_statistics(pixels)
    expected = pixels.numpy().astype(np.float64) / 255
    np.testing.assert_allclose(mean, expected.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, expected.std((0, 2, 3)), rtol=1e-12)
    assert all(type(value) is float for value in mean + std)


def test_doctests():
    assert doctest.testmod(tensor_images) == doctest.TestResults(failed=0, attempted=1)

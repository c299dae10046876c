"""The made-up images: a pattern per class, and noise."""

import pytest
import torch

from datamodules.fake import FakeImages


def in_units(images):
    return images.double() / 255


def test_what_it_offers():
    data = FakeImages(classes=7, image_size=12, channels=2, train_size=30, eval_size=15)
    assert (data.num_classes, data.image_size, data.channels) == (7, 12, 2)
    assert data.train.images.shape == (30, 2, 12, 12)
    assert set(data.held_out) == {"eval"}
    assert data.held_out["eval"].images.shape == (15, 2, 12, 12)
    assert data.train.labels.tolist() == [*range(7), *range(7), *range(7), *range(7), 0, 1]
    assert len(set(data.class_names)) == 7
    pixels = in_units(data.train.images).transpose(0, 1).flatten(1)
    assert data.mean == pytest.approx(pixels.mean(1).tolist())
    assert data.std == pytest.approx(pixels.std(1, correction=0).tolist())


def test_the_defaults():
    data = FakeImages()
    assert (data.num_classes, data.image_size, data.channels) == (10, 32, 3)
    assert (len(data.train), len(data.held_out["eval"])) == (512, 128)


def test_the_seed_decides_everything():
    state = torch.get_rng_state()
    first, again, other = FakeImages(seed=1), FakeImages(seed=1), FakeImages(seed=2)
    assert torch.get_rng_state().equal(state)
    assert first.train.images.equal(again.train.images)
    assert first.held_out["eval"].images.equal(again.held_out["eval"].images)
    assert not first.train.images.equal(other.train.images)
    assert not first.train.images[:128].equal(first.held_out["eval"].images)


def test_the_noise_is_another_in_each_split_and_with_each_seed():
    """The correlation of 393,216 independent pixels has a standard error of 0.0016; class means of 51 images, which
    leave out what they have in common, add less than 0.02."""

    def noise(split, data):
        images = split.images[:128].double()
        means = torch.stack([data.train.images[data.train.labels == label].double().mean(0) for label in range(10)])
        return (images - means[split.labels[:128]]).flatten()

    first, second = FakeImages(seed=1), FakeImages(seed=2)
    pieces = [noise(split, data) for data in (first, second) for split in (data.train, data.held_out["eval"])]
    correlations = torch.corrcoef(torch.stack(pieces)) - torch.eye(4)
    assert correlations.abs().max() < 0.05


def test_a_class_is_a_board_of_sixteen_colours():
    """A pixel's mean over 400 images has a standard error of at most 25 / 20 = 1.25 levels. Of 2,048 pixels one leaves
    its cell's mean by 7 levels, 5.6 errors, with a chance of 4e-5."""
    data = FakeImages(classes=2, train_size=800, channels=1)
    for label in (0, 1):
        images = data.train.images[data.train.labels == label, 0].double()
        mean = images.mean(0)
        cells = mean.reshape(4, 8, 4, 8).mean((1, 3))
        assert (mean - cells.repeat_interleave(8, 0).repeat_interleave(8, 1)).abs().max() < 7
        assert len(cells.round().unique()) > 10
        inside = (mean > 80) & (mean < 175)
        # 400 images of at least one cell: the deviation's standard error is 25 / sqrt(2 * 400 * 64) = 0.11 levels
        assert images.std(0)[inside].square().mean().sqrt() == pytest.approx(25, abs=0.5)


def test_no_pixel_wraps_around():
    """150 levels are 6 standard deviations of the noise: a chance of 1e-3 in these 600,000 pixels."""
    data = FakeImages(classes=2, train_size=200)
    for label in (0, 1):
        images = data.train.images[data.train.labels == label].double()
        assert (images - images.mean(0)).abs().max() < 150


@pytest.mark.parametrize("channels", [1, 3])
def test_a_network_learns_it_within_a_few_steps(channels):
    data = FakeImages(image_size=16, channels=channels)
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(channels, 16, 3, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(16 * 64, 10),
    )
    for step in range(20):
        draws = [(32 * step % 512 + row, step) for row in range(32)]
        batch = data.train.__getitems__(draws)
        loss = torch.nn.functional.cross_entropy(network(batch.images / 255 - 0.5), batch.labels)
        with torch.no_grad():
            for weight, gradient in zip(
                network.parameters(), torch.autograd.grad(loss, network.parameters()), strict=True
            ):
                weight -= 0.05 * gradient
    held_out = data.held_out["eval"]
    right = network(held_out.images / 255 - 0.5).argmax(1) == held_out.labels
    assert right.float().mean() > 0.9


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [("classes", 1, 2), ("image_size", 0, 1), ("channels", 0, 1), ("train_size", 0, 1), ("eval_size", -1, 1)],
)
def test_sizes_that_make_no_sense_are_refused(name, value, least):
    with pytest.raises(ValueError, match=f"{name} must be at least {least}; got {value}"):
        FakeImages(**{name: value})

"""What varies between the images of a glyph, and how far."""

import numpy as np
import pytest
import torch

from datamodules import _glyph_variations as variations
from datamodules import glyphs


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_how_much_varies_is_part_of_what_results_are_measured_on():
    """Other numbers make other results, so they come with another FORMAT, and with new figures in the documents."""
    assert variations.STRENGTH == ((0.9, 1.15), 0.06, 10.0, (0.0, 0.3), (0.7, 1.0), 0.05)
    assert glyphs.FORMAT == 1


def test_without_variation_an_image_is_the_bitmap_at_half_its_size(plain, monkeypatch):
    monkeypatch.setattr(variations, "BACKGROUND", (0.2, 0.2))
    monkeypatch.setattr(variations, "INK", (0.8, 0.8))
    bitmaps = torch.randint(256, (3, 64, 64), generator=generator(), dtype=torch.uint8)
    images = variations.render(bitmaps, image_size=32, generator=generator())
    assert (images.shape, images.dtype) == ((3, 1, 32, 32), torch.uint8)
    for bitmap, image in zip(bitmaps, images[:, 0], strict=True):
        expected = 255 * (0.2 + 0.6 * bitmap.numpy().reshape(32, 2, 32, 2).mean((1, 3)) / 255)
        np.testing.assert_allclose(image, expected, atol=0.51)  # rounded


def test_placements_turn_enlarge_and_move_and_nothing_else():
    """The ends of the ranges: of 20,000 uniform draws none comes within 1% of one end with a chance of e^-200."""
    maps = variations.random_placements(20_000, generator()).double()
    turned, offset = maps[:, :, :2], maps[:, :, 2]
    square = turned @ turned.transpose(1, 2)
    scale = torch.linalg.det(turned) ** -0.5
    torch.testing.assert_close(square, torch.eye(2).double() / scale[:, None, None] ** 2, rtol=0, atol=1e-5)
    angle = torch.rad2deg(torch.atan2(turned[:, 0, 1], turned[:, 0, 0]))
    # where the middle of the bitmap, 0, is seen: turned @ t + offset = 0. The image is 2 wide
    place = torch.linalg.solve(turned, -offset[:, :, None])[:, :, 0] / 2
    for values, low, high in [
        (scale, 0.9, 1.15),
        (angle, -10, 10),
        (place[:, 0], -0.06, 0.06),
        (place[:, 1], -0.06, 0.06),
    ]:
        assert values.min() == pytest.approx(low, abs=0.01 * (high - low))
        assert values.max() == pytest.approx(high, abs=0.01 * (high - low))
        assert values.mean() == pytest.approx((low + high) / 2, abs=0.02 * (high - low))  # 9.8 standard errors
    # independent of one another: a correlation has a standard error of 0.007
    correlations = np.corrcoef(torch.stack([scale, angle, place[:, 0], place[:, 1]]))
    assert abs(correlations - np.eye(4)).max() < 0.05


def test_a_dot_is_seen_where_the_placement_puts_it(plain, monkeypatch):
    """A dot at the bitmap's (x, y), turned by a, enlarged by s and moved by t, is at s R(a) (x, y) + t."""
    monkeypatch.setattr(variations, "SCALE", (0.7, 0.7))
    monkeypatch.setattr(variations, "SHIFT", 0.1)
    monkeypatch.setattr(variations, "ROTATION", 40.0)
    bitmaps = torch.zeros(50, 64, 64, dtype=torch.uint8)
    bitmaps[:, 14:18, 38:42] = 255  # its middle: column 40, row 16 of 64, so (0.25, -0.5) of [-1, 1]
    images = variations.render(bitmaps, image_size=64, generator=generator(1))[:, 0].double()
    maps = variations.random_placements(50, generator(1)).double()
    angle = torch.atan2(maps[:, 0, 1], maps[:, 0, 0])
    shift = torch.linalg.solve(maps[:, :, :2], -maps[:, :, 2:])[:, :, 0]
    x = 0.7 * (angle.cos() * 0.25 - angle.sin() * -0.5) + shift[:, 0]
    y = 0.7 * (angle.sin() * 0.25 + angle.cos() * -0.5) + shift[:, 1]
    middles = (torch.arange(64) + 0.5) / 32 - 1
    weight = images / images.sum((1, 2), keepdim=True)
    torch.testing.assert_close((weight.sum(1) * middles).sum(1), x, rtol=0, atol=0.02)  # 0.02: 0.6 pixels
    torch.testing.assert_close((weight.sum(2) * middles).sum(1), y, rtol=0, atol=0.02)


def test_greys_and_noise():
    """Blank bitmaps show the background, full ones the ink; 4,000 images of 64 pixels each."""
    for value, (low, high) in {0: (0.0, 0.3), 255: (0.7, 1.0)}.items():
        bitmaps = torch.full((4000, 64, 64), value, dtype=torch.uint8)
        image = variations.render(bitmaps, image_size=16, generator=generator())[:, 0, 4:12, 4:12].double() / 255
        level, spread = image.mean((1, 2)), image.std((1, 2))
        # a mean of 64 pixels strays by 0.05 / 8 = 0.006; what noise pushes beyond 0 or 1 is cut off
        assert level.min() == pytest.approx(low, abs=0.03)
        assert level.max() == pytest.approx(high, abs=0.03)
        assert level.mean() == pytest.approx((low + high) / 2, abs=0.01)
        inside = (level > 0.16) & (level < 0.84)  # at least three standard deviations away from both ends
        # at least 1,500 images: the standard error of the mean deviation is 0.05 / sqrt(2 * 63 * 1500) = 1.2e-4
        assert spread[inside].mean() == pytest.approx(0.05, abs=1e-3)


def test_noise_does_not_wrap_around(plain, monkeypatch):
    monkeypatch.setattr(variations, "NOISE", 0.05)
    for value in (0, 255):
        bitmaps = torch.full((100, 64, 64), value, dtype=torch.uint8)
        inside = variations.render(bitmaps, image_size=32, generator=generator())[:, :, 8:24, 8:24].double()
        assert (inside - value).abs().max() < 0.05 * 255 * 6
        assert (inside == value).double().mean() == pytest.approx(0.5, abs=0.03)


def test_labels_take_turns_and_name_the_glyph(plain, monkeypatch):
    """A chunk of 9, so that the last of 1,400 images are 5. Each of four styles comes 350 ± 16 times."""
    monkeypatch.setattr(variations, "CHUNK", 9)
    levels = torch.arange(0, 252, 9).to(torch.uint8).reshape(7, 4)  # of class and style
    bitmaps = levels[:, :, None, None].expand(-1, -1, 64, 64)
    images, labels = variations.draw_variations(bitmaps, image_size=8, per_class=200, seed=0, stream=0)
    assert labels.tolist() == list(range(7)) * 200
    assert labels.dtype == torch.int64
    shown = images[:, 0, 4, 4].long() // 9
    assert (shown // 4).tolist() == labels.tolist()
    assert torch.bincount(shown % 4).tolist() == pytest.approx([350] * 4, abs=5 * 16)


def test_seed_and_stream_decide(plain, monkeypatch):
    monkeypatch.setattr(variations, "NOISE", 0.05)
    state = torch.get_rng_state()
    made = {
        key: variations.draw_variations(
            torch.zeros(2, 3, 64, 64, dtype=torch.uint8), image_size=8, per_class=2, seed=key[0], stream=key[1]
        )[0]
        for key in [(0, 0), (0, 1), (1, 0), (1, 1), (2**40, 0)]
    }
    again, _ = variations.draw_variations(
        torch.zeros(2, 3, 64, 64, dtype=torch.uint8), image_size=8, per_class=2, seed=1, stream=0
    )
    assert again.equal(made[1, 0])
    assert len({image.numpy().tobytes() for image in made.values()}) == 5
    assert torch.get_rng_state().equal(state)

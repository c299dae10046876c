"""The glyphs as a data object, and their contact sheet."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from datamodules import _glyph_fonts as fonts
from datamodules import glyphs
from datamodules._glyph_sheet import contact_sheet
from datamodules.glyphs import Glyphs
from datamodules.tensor_images import TensorImages

SMALL = {"classes": 6, "image_size": 16, "train_per_class": 5, "eval_per_class": 3, "unseen_per_class": 2}


def halved(canvas):
    """Means of squares of four pixels."""
    return np.asarray(canvas, dtype=np.float64).reshape(-1, 2, fonts.CANVAS // 2, 2).mean((1, 3))


def test_what_it_offers(usable, tmp_path):
    data = Glyphs(**SMALL, cache_dir=tmp_path)
    assert (data.num_classes, data.image_size, data.channels) == (6, 16, 1)
    assert data.train.images.shape == (30, 1, 16, 16)
    assert {name: tuple(split.images.shape) for name, split in data.held_out.items()} == {
        "eval": (18, 1, 16, 16),
        "eval_unseen_style": (12, 1, 16, 16),
    }
    for split in (data.train, *data.held_out.values()):
        assert split.labels.tolist() == list(range(6)) * (len(split) // 6)
        assert split.images.dtype == torch.uint8
    codes = fonts.draw_glyphs(6).codes
    assert data.class_names == [f"U+{code:04X} {chr(code)}" for code in codes]
    pixels = data.train.images.numpy() / 255
    assert data.mean == pytest.approx((pixels.mean(),))
    assert data.std == pytest.approx((pixels.std(),))


def test_no_image_is_in_two_splits(usable, tmp_path):
    """Of as many images each, so that they would be drawn alike from one stream of random numbers."""
    data = Glyphs(**SMALL | {"train_per_class": 3}, cache_dir=tmp_path)
    images = [image.numpy().tobytes() for split in (data.train, *data.held_out.values()) for image in split.images]
    assert len(set(images)) == 6 * (3 + 3 + 2)


def test_the_defaults():
    keywords = Glyphs.__init__.__kwdefaults__
    assert keywords == {
        "classes": 1000,
        "image_size": 32,
        "train_per_class": 40,
        "eval_per_class": 4,
        "unseen_per_class": 1,
        "seed": 0,
        "cache_dir": None,
    }


def test_one_style_is_in_one_split_only(usable, plain, monkeypatch, tmp_path):
    telling = {code: inks for code, inks in usable.items() if len({ink.tobytes() for ink in inks}) == 12}
    monkeypatch.setattr(fonts, "usable_glyphs", lambda: telling)
    data = Glyphs(classes=5, train_per_class=60, eval_per_class=60, unseen_per_class=2, cache_dir=tmp_path)
    bitmaps = fonts.draw_glyphs(5).bitmaps
    apart = fonts.STYLES.index(fonts.UNSEEN_STYLE)

    def style(image, label):
        distances = [abs(halved(bitmap) - image[0].numpy()).max() for bitmap in bitmaps[label]]
        assert min(distances) < 0.51  # rounded
        return int(np.argmin(distances))

    styles = {
        name: {style(image, label) for image, label in zip(split.images, split.labels, strict=True)}
        for name, split in {"train": data.train, **data.held_out}.items()
    }
    # 300 draws of 11 styles: one is missed with a chance of 11 * (10 / 11)^300 = 4e-12
    assert styles == {"train": set(range(12)) - {apart}, "eval": set(range(12)) - {apart}, "eval_unseen_style": {apart}}


def test_a_quarter_of_the_characters_look_the_same_in_the_unseen_style(usable):
    """As the docstring says; they are symbols, of which bold italic letters have no other form."""
    bitmaps = fonts.draw_glyphs(1000).bitmaps
    twins = (bitmaps[:, :-1] == bitmaps[:, -1:]).all((2, 3)).any(1)
    assert twins.mean() == pytest.approx(0.27, abs=0.03)


def test_images_show_their_class(usable, tmp_path):
    """The nearest mean of twenty classes is right far more often than a guess: 80 and 60 images, one in 20."""
    data = Glyphs(classes=20, image_size=16, train_per_class=20, unseen_per_class=3, cache_dir=tmp_path)

    def shapes(split):
        images = split.images.double().flatten(1)
        return torch.nn.functional.normalize(images - images.mean(1, keepdim=True))

    means = torch.stack([shapes(data.train)[data.train.labels == label].mean(0) for label in range(20)])
    for split in data.held_out.values():
        assert ((shapes(split) @ means.T).argmax(1) == split.labels).double().mean() > 0.35


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        ("classes", 1, 2),
        ("image_size", 7, 8),
        ("train_per_class", 0, 1),
        ("eval_per_class", 0, 1),
        ("unseen_per_class", 0, 1),
        ("seed", -1, 0),
    ],
)
def test_numbers_that_make_no_sense_are_refused(name, value, least, tmp_path):
    with pytest.raises(ValueError, match=f"{name} must be at least {least}; got {value}"):
        Glyphs(**{name: value}, cache_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def splits_of(classes, **per_class):
    """Image k of class c is all 10 c + k."""
    splits = {}
    for name, count in per_class.items():
        labels = torch.arange(classes).repeat(count)
        levels = 10 * labels + torch.arange(count).repeat_interleave(classes)
        splits[name] = TensorImages(levels.to(torch.uint8)[:, None, None, None].expand(-1, 1, 8, 8), labels)
    return splits


def test_a_contact_sheet_has_a_column_per_class_and_names_its_rows():
    splits = splits_of(20, train=9, eval=4, eval_unseen_style=1)
    [axes] = contact_sheet(splits, class_names=[f"U+{label} {label}" for label in range(20)], seed=0).axes
    [image] = axes.images
    cells = np.asarray(image.get_array())[4::8, 4::8].astype(int)
    assert cells.shape == (12, 12)
    labels = cells[0] // 10
    assert len(set(labels)) == 12
    assert [text.get_text() for text in axes.get_xticklabels()] == [f"U+{label}\n{label}" for label in labels]
    assert (axes.get_xticks() + 0.5).tolist() == [8 * column + 4 for column in range(12)]
    rows = [*range(7), *range(4), 0]
    assert cells.tolist() == [[10 * label + row for label in labels] for row in rows]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["train", "eval", "eval_unseen_style"]
    assert (axes.get_yticks() + 0.5).tolist() == [8 * 3.5, 8 * 9, 8 * 11.5]
    assert image.get_clim() == (0, 255)
    assert [line.get_ydata()[0] + 0.5 for line in axes.lines] == [8 * 7, 8 * 11]


def test_a_contact_sheet_of_little():
    splits = splits_of(3, train=2, eval=1, eval_unseen_style=5)
    [axes] = contact_sheet(splits, class_names=["a", "b", "c"], seed=0).axes
    assert np.asarray(axes.images[0].get_array()).shape == (4 * 8, 3 * 8)


def test_a_contact_sheet_shows_each_image_upright():
    images = torch.arange(2 * 8 * 8, dtype=torch.uint8).reshape(2, 1, 8, 8)
    [axes] = contact_sheet({"train": TensorImages(images, torch.tensor([0, 1]))}, class_names=["a", "b"], seed=0).axes
    sheet = np.asarray(axes.images[0].get_array())
    shown = [sheet[:, 8 * column : 8 * column + 8].tolist() for column in range(2)]
    order = [["a", "b"].index(text.get_text()) for text in axes.get_xticklabels()]
    assert shown == [images[label, 0].tolist() for label in order]


def test_a_contact_sheet_has_as_many_rows_as_the_rarest_class():
    split = TensorImages(torch.zeros(5, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 0, 1, 0]))
    [axes] = contact_sheet({"train": split}, class_names=["a", "b"], seed=0).axes
    assert np.asarray(axes.images[0].get_array()).shape == (2 * 8, 2 * 8)


def test_the_classes_of_a_contact_sheet_go_with_the_seed():
    def names(seed):
        figure = contact_sheet(splits_of(20, train=1), class_names=[str(label) for label in range(20)], seed=seed)
        return [text.get_text() for text in figure.axes[0].get_xticklabels()]

    assert names(0) == names(0)
    assert names(0) != names(1)
    assert names(0) != [str(label) for label in range(12)]


def test_the_contact_sheet_is_a_picture(usable, tmp_path):
    data = Glyphs(**SMALL, cache_dir=tmp_path)
    data.class_names[:4] = ["U+0024 $", "U+005F $_{$", "U+0301 \u0301", "U+2158 ⅘"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data.contact_sheet(tmp_path / "run" / "plots" / "sheet.png")
    with Image.open(tmp_path / "run" / "plots" / "sheet.png") as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 300


def test_the_cached_images_need_no_matplotlib():
    """Nor is pyplot ever needed, which looks for a display."""
    code = "import sys; import datamodules.glyphs, datamodules.fake; print('matplotlib' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert ended.stdout.strip() == "False"
    assert "pyplot" not in "".join(path.read_text() for path in Path(glyphs.__file__).parent.glob("*glyph*.py"))

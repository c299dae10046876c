"""Which characters are classes, and how they are drawn."""

import numpy as np
import pytest
from fontTools.ttLib import TTFont
from PIL import Image, ImageDraw, ImageFont

from datamodules import _glyph_fonts as fonts
from datamodules.glyphs import Glyphs


def test_the_styles_are_the_twelve_of_dejavu_and_one_is_kept_apart():
    names = [path.name for path in fonts.font_files()]
    assert len(set(names)) == 12
    assert all(path.is_file() for path in fonts.font_files())
    assert {name.split("-")[0].removesuffix(".ttf") for name in names} == {
        "DejaVuSans",
        "DejaVuSansMono",
        "DejaVuSerif",
    }
    assert "Display" not in "".join(names)
    assert fonts.STYLES[-1] == fonts.UNSEEN_STYLE == "DejaVuSerif-BoldItalic"
    assert fonts.UNSEEN_STYLE not in fonts.TRAINING_STYLES


def test_the_candidates_are_what_every_style_has(glyph_scan):
    """Another reader of the fonts finds the same code points: no class is the box for a character that is missing."""
    characters = [set(TTFont(path, lazy=True).getBestCmap()) for path in fonts.font_files()]
    assert set(glyph_scan[0]) == set.intersection(*characters) != set.union(*characters)


def test_no_two_classes_share_a_bitmap_in_any_style(glyph_scan):
    _, usable = glyph_scan
    owners = {}
    for code, inks in usable.items():
        assert len(inks) == 12
        for ink in inks:
            assert ink.any()
            assert owners.setdefault((ink.shape, ink.tobytes()), code) == code


def test_each_character_that_is_left_out_has_a_reason(glyph_scan):
    """It is blank, larger than the canvas, or looks like one that was kept and has a lower code point."""
    candidates, usable = glyph_scan
    first = {}
    for code, inks in usable.items():
        for ink in inks:
            first.setdefault((ink.shape, ink.tobytes()), code)
    reasons = {"blank": 0, "large": 0, "twin": 0}
    for code in set(candidates) - set(usable):
        inks = candidates[code]
        blank = not all(ink.size for ink in inks)
        large = any(ink.size and max(ink.shape) > 64 for ink in inks)
        twin = any(first.get((ink.shape, ink.tobytes()), code) < code for ink in inks)
        assert blank or large or twin
        for name, holds in {"blank": blank, "large": large, "twin": twin}.items():
            reasons[name] += holds
    assert min(reasons.values()) > 0, reasons


def test_latin_stands_for_its_greek_and_cyrillic_twins(glyph_scan):
    candidates, usable = glyph_scan
    for latin, *twins in [(0x41, 0x391, 0x410), (0x6F, 0x3BF, 0x43E), (0x48, 0x397, 0x41D)]:  # A, o and H
        assert latin in usable
        assert set(twins) <= set(candidates)
        assert not set(twins) & set(usable)
    assert {ord(letter) for letter in "ßжΩé5?"} <= set(usable)
    assert 0x20 in candidates, "a blank is common to the fonts"
    assert 0x20 not in usable
    assert 2000 < len(usable) < len(candidates)


def test_distinct_glyphs_by_hand():
    a, b, c, blank, wide = (
        np.array(rows, np.uint8) for rows in ([[1]], [[2]], [[1, 1]], np.zeros((0, 0)), np.ones((1, 65)))
    )
    candidates = [
        (1, [a, c]),
        (2, [b, blank]),
        (3, [b, wide]),
        (4, [b, c]),  # its second bitmap is that of 1
        (5, [b, a.T.copy()]),  # its second bitmap is the first of 1
        (6, [c.T.copy(), c.T.copy()]),  # the bytes of 1's second bitmap in another shape
        (7, [b, np.ones((64, 64), np.uint8)]),  # nothing of 2 ... 5 was kept
    ]
    assert list(fonts.distinct_glyphs(candidates)) == [1, 6, 7]


def test_bitmaps_are_those_of_another_renderer(usable):
    """Pillow draws the letters from the same files in the same size. Its hinting differs: a pixel on a side."""
    drawn = fonts.draw_glyphs(len(usable))
    for letter in "Rgx":
        for style, path in enumerate(fonts.font_files()):
            picture = Image.new("L", (128, 128))
            ImageDraw.Draw(picture).text((40, 40), letter, 255, font=ImageFont.truetype(str(path), fonts.EM))
            left, top, right, bottom = picture.getbbox()
            ours = Image.fromarray(drawn.bitmaps[drawn.codes.index(ord(letter)), style])
            ours_left, ours_top, ours_right, ours_bottom = ours.getbbox()
            assert ours_right - ours_left == pytest.approx(right - left, abs=2)
            assert ours_bottom - ours_top == pytest.approx(bottom - top, abs=2)
            assert ours_left + ours_right == pytest.approx(64, abs=1), "in the middle"
            assert ours_top + ours_bottom == pytest.approx(64, abs=1)
            ours, theirs = (
                np.asarray(image.crop(image.getbbox()).resize((24, 24)), float) for image in (ours, picture)
            )
            assert np.corrcoef(ours.ravel(), theirs.ravel())[0, 1] > 0.85


def test_the_ink_is_unscaled_and_in_the_middle():
    ink = np.arange(1, 16, dtype=np.uint8).reshape(3, 5)
    canvas = fonts.centred(ink)
    assert canvas.shape == (64, 64)
    assert canvas[30:33, 29:34].tolist() == ink.tolist()
    assert canvas.sum() == ink.sum()


def test_the_box_of_the_ink_keeps_its_inner_blanks():
    bitmap = np.zeros((5, 6), np.uint8)
    bitmap[1, 2] = bitmap[3, 4] = 9
    assert fonts.ink_box(bitmap).tolist() == [[9, 0, 0], [0, 0, 0], [0, 0, 9]]
    assert fonts.ink_box(np.zeros((3, 3), np.uint8)).shape == (0, 0)


def test_the_choice_is_fixed_and_mixed(usable):
    """`for i in 0 1 2 3 4 5 6 7 8 9; do echo "$(printf $i | sha256sum) $i"; done | sort`"""
    assert fonts.shuffled(range(10)) == [9, 8, 4, 3, 0, 1, 7, 2, 6, 5]
    few, more = fonts.draw_glyphs(5), fonts.draw_glyphs(300)
    assert few.codes == more.codes[:5]
    np.testing.assert_array_equal(few.bitmaps, more.bitmaps[:5])
    assert few.bitmaps.shape == (5, 12, 64, 64)
    latin = np.mean([code < 0x250 for code in more.codes])
    assert 0.1 < latin < 0.4, "about as many as among all, a quarter"
    assert len(set(more.codes)) == 300


def test_more_classes_than_there_are_name_the_number(usable, tmp_path):
    assert len(fonts.draw_glyphs(len(usable)).codes) == len(usable)
    with pytest.raises(ValueError, match=rf"have {len(usable):,} distinct glyphs; got classes=9,999"):
        Glyphs(classes=9999, cache_dir=tmp_path)

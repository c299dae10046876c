"""The glyphs: characters of the fonts that come with matplotlib, as bitmaps."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.ft2font import FT2Font

Bitmap = NDArray[np.uint8]

UNSEEN_STYLE = "DejaVuSerif-BoldItalic"
TRAINING_STYLES = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSans-BoldOblique",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSansMono-Oblique",
    "DejaVuSansMono-BoldOblique",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-Italic",
)
STYLES = (*TRAINING_STYLES, UNSEEN_STYLE)

CANVAS = 64  # pixels on a side of a glyph's bitmap
EM = 44  # pixels: the size of the type. The tallest character is 1.3 em high


class GlyphBitmaps(NamedTuple):
    codes: list[int]  # code points, C of them
    bitmaps: Bitmap  # [C, styles, CANVAS, CANVAS] in the order of STYLES, the ink's box in the middle


def font_files() -> list[Path]:
    """The files of STYLES."""
    import matplotlib

    return [Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{style}.ttf" for style in STYLES]


def fonts_digest() -> str:
    """12 hexadecimal digits that change with the fonts, and with the versions of what draws them."""
    import matplotlib
    from matplotlib import ft2font

    digest = hashlib.sha256(f"{matplotlib.__version__} {ft2font.__freetype_version__} {CANVAS} {EM}".encode())
    for path in font_files():
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def draw_glyphs(classes: int) -> GlyphBitmaps:
    """The bitmaps of `classes` characters: the same ones for everyone, and among those of any larger number.

    Raises:
        ValueError: there are not that many.
    """
    usable = usable_glyphs()
    if classes > len(usable):
        raise ValueError(f"the fonts have {len(usable):,} distinct glyphs; got classes={classes:,}: ask for fewer")
    codes = shuffled(list(usable))[:classes]
    return GlyphBitmaps(codes, np.stack([np.stack([centred(ink) for ink in usable[code]]) for code in codes]))


def usable_glyphs() -> dict[int, Sequence[Bitmap]]:
    """The ink of each character that can be a class, in each style: about 2,200 characters, some seconds."""
    from matplotlib.ft2font import FT2Font

    fonts = [FT2Font(str(path)) for path in font_files()]
    for font in fonts:
        font.set_size(EM, 72)  # at 72 dots per inch a point is a pixel
    common = set.intersection(*(set(font.get_charmap()) for font in fonts))
    return distinct_glyphs((code, [draw_glyph(font, code) for font in fonts]) for code in sorted(common))


def distinct_glyphs(candidates: Iterable[tuple[int, Sequence[Bitmap]]]) -> dict[int, Sequence[Bitmap]]:
    """Those whose bitmaps, one per style, are not blank, fit on the canvas, and equal none of a glyph kept before.

    Latin A and Greek Alpha are one bitmap in most styles: as two classes nobody could tell them apart.
    """
    kept: dict[int, Sequence[Bitmap]] = {}
    seen: set[tuple[tuple[int, ...], bytes]] = set()
    for code, bitmaps in candidates:
        keys = {(bitmap.shape, bitmap.tobytes()) for bitmap in bitmaps}
        if all(bitmap.size > 0 and max(bitmap.shape) <= CANVAS for bitmap in bitmaps) and not keys & seen:
            kept[code] = bitmaps
            seen |= keys
    return kept


def draw_glyph(font: FT2Font, code: int) -> Bitmap:
    """The box of a character's ink, [h, w]; [0, 0] if it has none."""
    font.set_text(chr(code))
    font.draw_glyphs_to_bitmap(antialiased=True)
    return ink_box(np.asarray(font.get_image()))


def ink_box(bitmap: Bitmap) -> Bitmap:
    rows, columns = np.flatnonzero(bitmap.any(axis=1)), np.flatnonzero(bitmap.any(axis=0))
    if not len(rows):
        return np.zeros((0, 0), np.uint8)
    return bitmap[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].copy()


def centred(ink: Bitmap) -> Bitmap:
    """The ink in the middle of a canvas; half a pixel up and left where it cannot be."""
    height, width = ink.shape
    top, left = (CANVAS - height) // 2, (CANVAS - width) // 2
    canvas = np.zeros((CANVAS, CANVAS), np.uint8)
    canvas[top : top + height, left : left + width] = ink
    return canvas


def shuffled(codes: Sequence[int]) -> list[int]:
    """In the order of their SHA-256: a mixture of scripts, the same on every machine and with every seed."""
    return sorted(codes, key=lambda code: hashlib.sha256(str(code).encode()).digest())

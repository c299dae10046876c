"""The characters of the fonts, drawn once for all tests, and renderings without variation."""

import pytest

from datamodules import _glyph_fonts as fonts
from datamodules import _glyph_variations as variations


@pytest.fixture(scope="session")
def glyph_scan():
    """(candidates, usable): code -> its ink in each style, of all that the fonts share and of those that are kept."""
    candidates = {}
    choose = fonts.distinct_glyphs

    def recorded(some):
        candidates.update(some)
        return choose(candidates.items())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fonts, "distinct_glyphs", recorded)
        return candidates, fonts.usable_glyphs()


@pytest.fixture
def usable(glyph_scan, monkeypatch):
    """The usable characters, without drawing them anew."""
    monkeypatch.setattr(fonts, "usable_glyphs", lambda: glyph_scan[1])
    return glyph_scan[1]


@pytest.fixture
def plain(monkeypatch):
    """Nothing varies but the style: white on black."""
    for name, value in {"SCALE": (1.0, 1.0), "SHIFT": 0.0, "ROTATION": 0.0, "NOISE": 0.0}.items():
        monkeypatch.setattr(variations, name, value)
    monkeypatch.setattr(variations, "BACKGROUND", (0.0, 0.0))
    monkeypatch.setattr(variations, "INK", (1.0, 1.0))

"""What the cache of the glyphs depends on, and what it survives."""

import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from datamodules import _glyph_fonts as fonts
from datamodules import glyphs
from datamodules.glyphs import Glyphs, GlyphSettings

SMALL = {"classes": 6, "image_size": 16, "train_per_class": 5, "eval_per_class": 3, "unseen_per_class": 2}


def same(first, second):
    pairs = [(first.train, second.train), *((first.held_out[name], second.held_out[name]) for name in first.held_out)]
    return (first.mean, first.std, first.class_names) == (second.mean, second.std, second.class_names) and all(
        a.images.equal(b.images) and a.labels.equal(b.labels) for a, b in pairs
    )


@pytest.fixture
def cached(usable, tmp_path, capsys):
    """(data, its one file in the cache)"""
    data = Glyphs(**SMALL, cache_dir=tmp_path)
    [file] = tmp_path.iterdir()
    capsys.readouterr()
    return data, file


def test_drawn_once_and_said_once(usable, tmp_path, capsys, monkeypatch):
    first = Glyphs(**SMALL, cache_dir=tmp_path / "new" / "folder")
    out = capsys.readouterr().out
    assert out.startswith("drawing 6 glyph classes")
    assert out.count("\n") == 1
    monkeypatch.setattr(glyphs, "draw", None)
    assert same(first, Glyphs(**SMALL, cache_dir=str(tmp_path / "new" / "folder")))
    assert capsys.readouterr().out == ""


def test_the_same_without_a_cache(cached, tmp_path):
    data, _ = cached
    assert same(data, Glyphs(**SMALL, cache_dir=tmp_path / "other"))
    assert not same(data, Glyphs(**SMALL, seed=1, cache_dir=tmp_path / "other"))


def test_every_argument_and_all_that_draws_is_in_the_name(monkeypatch):
    values = {
        "classes": 6,
        "image_size": 16,
        "train_per_class": 5,
        "eval_per_class": 3,
        "unseen_per_class": 2,
        "seed": 4,
    }
    names = {GlyphSettings(**values).file_name, GlyphSettings(**values).file_name}
    assert len(names) == 1
    for name in values:
        names.add(GlyphSettings(**{**values, name: 11}).file_name)
    assert len(names) == 7
    patches = [
        (glyphs, "FORMAT", 99),
        (glyphs, "STRENGTH", ()),
        (glyphs, "fonts_digest", lambda: "another"),
    ]
    for count, (module, name, value) in enumerate(patches, start=8):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            names.add(GlyphSettings(**values).file_name)
        assert len(names) == count


def test_the_digest_changes_with_the_fonts_and_what_draws_them(monkeypatch, tmp_path):
    import matplotlib
    from matplotlib import ft2font

    for name, content in {"1/font": b"1", "2/font": b"2", "3/another": b"2"}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(content)
    one, two, renamed = tmp_path / "1/font", tmp_path / "2/font", tmp_path / "3/another"
    digests = {fonts.fonts_digest()}
    for module, name, value in [
        (matplotlib, "__version__", "0"),
        (ft2font, "__freetype_version__", "0"),
        (fonts, "CANVAS", 65),
        (fonts, "EM", 45),
        (fonts, "font_files", lambda: [one, two]),
        (fonts, "font_files", lambda: [one, renamed]),  # the same fonts
        (fonts, "font_files", lambda: [two, one]),
        (fonts, "font_files", lambda: [one, one]),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            digests.add(fonts.fonts_digest())
    assert len(digests) == 8


def test_a_damaged_file_is_drawn_again(cached, capsys):
    """Cut at any place, or with any byte changed: the images are the right ones, and the file is whole again."""
    data, file = cached
    whole = file.read_bytes()
    random = np.random.default_rng(0)
    cuts = [0, 1, 100, len(whole) // 2, len(whole) - 1, *random.integers(len(whole), size=10).tolist()]
    damaged = [whole[:cut] for cut in cuts] + [b"not an archive" * 9]
    for place in random.integers(len(whole), size=60).tolist():
        changed = bytearray(whole)
        changed[place] ^= int(random.integers(1, 256))
        damaged.append(bytes(changed))
    redrawn = 0
    for content in damaged:
        file.write_bytes(content)
        found = glyphs.read_cache(file, data.settings)
        if found is None:
            redrawn += 1
        else:  # a byte that says nothing of the contents: a date, a permission
            assert all(found[name].tobytes() == array.tobytes() for name, array in glyphs.draw(data.settings).items())
    assert redrawn > 0.8 * len(damaged)
    file.write_bytes(whole[:-100])
    assert same(data, Glyphs(**SMALL, cache_dir=file.parent))
    assert capsys.readouterr().out.startswith("drawing 6")
    assert same(data, Glyphs(**SMALL, cache_dir=file.parent))
    assert capsys.readouterr().out == ""
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: {name: array for name, array in arrays.items() if name != "eval"},
        lambda arrays: arrays | {"train": arrays["train"][1:]},
        lambda arrays: arrays | {"train": arrays["train"].astype(np.int16)},
        lambda arrays: arrays | {"mean": np.array([None], dtype=object)},
    ],
    ids=["missing", "short", "type", "pickle"],
)
def test_a_file_with_other_contents_is_drawn_again(cached, change):
    data, file = cached
    arrays = glyphs.read_cache(file, data.settings)
    np.savez(file, **change(arrays))
    assert glyphs.read_cache(file, data.settings) is None


def test_a_folder_that_cannot_be_written_costs_one_warning(cached, tmp_path, monkeypatch):
    data, _ = cached
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="cannot be cached") as found:
        again = Glyphs(**SMALL, cache_dir=tmp_path / "file" / "folder")
    assert len(found) == 1
    assert found[0].filename == __file__
    assert same(data, again)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    folder = tmp_path / "read-only"
    with pytest.warns(UserWarning, match="Permission denied"):
        assert same(data, Glyphs(**SMALL, cache_dir=folder))
    assert not list(folder.iterdir()), "no half a file is left behind"


def test_the_file_appears_whole(cached, monkeypatch):
    """What is moved into place can be read, and was written under a name of its own."""
    data, file = cached
    arrays = glyphs.read_cache(file, data.settings)
    moved, move = [], os.replace

    def watch(source, target):
        moved.append(Path(source))
        assert Path(target) == file
        assert Path(source).parent == file.parent, "on the same file system"
        assert glyphs.read_cache(Path(source), data.settings) is not None
        assert not file.exists()
        move(source, target)

    monkeypatch.setattr(os, "replace", watch)
    for _ in range(2):
        file.unlink()
        glyphs.write_cache(file, arrays)
    assert len(set(moved)) == 2
    assert list(file.parent.iterdir()) == [file]


def _write_often(file, arrays):
    for _ in range(20):
        glyphs.write_cache(file, arrays)


def test_many_may_write_at_once(cached):
    data, file = cached
    arrays = glyphs.read_cache(file, data.settings)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_often, args=(file, arrays)) for _ in range(3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert glyphs.read_cache(file, data.settings) is not None
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert list(file.parent.iterdir()) == [file]


def test_the_default_folder(monkeypatch, tmp_path, usable):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert glyphs.default_cache_dir() == tmp_path / "xdg" / "sgrpo-lightning"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert glyphs.default_cache_dir() == tmp_path / ".cache" / "sgrpo-lightning"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert glyphs.default_cache_dir() == tmp_path / ".cache" / "sgrpo-lightning"
    Glyphs(**SMALL)
    Glyphs(**SMALL, cache_dir="~/here")
    assert len(list((tmp_path / ".cache" / "sgrpo-lightning").iterdir())) == 1
    assert len(list((tmp_path / "here").iterdir())) == 1

"""Images of a folder, of parquet shards and of the hub, and what becomes of their pixels.

torchvision and Pillow are the references. Seeds are fixed; where a test is statistical, its docstring says how often
it would fail on right code with other seeds.
"""

import io
import pickle
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from scipy.stats import chi2_contingency, ks_2samp
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from datamodules import image_pixels
from datamodules.image_pixels import decode, random_crop, training_pixels
from datamodules.imagenet import ImageNet
from sgrpo_lightning.axes import NO_LABEL

SIZE, RESIZE = 28, 32
SHAPES = [(60, 80), (80, 60), (64, 64), (33, 95), (20, 17), (28, 32)]  # (height, width); two are below RESIZE
COUNTS = {"n01": 2, "n02": 5, "n03": 3}  # images per class


def picture(height, width, seed=0):
    """Smooth colours with some grain: what JPEG is made for."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8)).resize((width, height), Image.BICUBIC)
    return Image.fromarray(np.clip(np.asarray(coarse) + rng.normal(0, 8, (height, width, 3)), 0, 255).astype(np.uint8))


def encoded(image, kind="JPEG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def images_of(split):
    """(class, file name, bytes) of each image of a split, sorted."""
    for name, count in COUNTS.items():
        for k in range(count if split == "train" else 1):
            seed = int(name[1:]) * 10 + k + (split != "train") * 100
            yield name, f"{name}_{k}.JPEG", encoded(picture(*SHAPES[seed % len(SHAPES)], seed=seed), quality=90)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small data set in torchvision's layout; only read."""
    root = tmp_path_factory.mktemp("folders")
    for split in ("train", "val"):
        for name, file, data in images_of(split):
            write(root / split / name / file, data)
    return root


def shard(path, rows, *, names=None, **columns):
    """Write (class index, file name, bytes) as the hub does; with `names`, in the hub's metadata too."""
    image = pa.array(
        [b and {"bytes": b, "path": p} for _, p, b in rows], pa.struct({"bytes": "binary", "path": "string"})
    )
    table = pa.table({"image": image, "label": pa.array([c for c, _, _ in rows], pa.int64())} | columns)
    if names:
        features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": repr({"info": {"features": features}}).replace("'", '"')})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def numbered(split):
    return [(list(COUNTS).index(name), file, data) for name, file, data in images_of(split)]


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    """The same images as the hub's files, training in two shards; only read."""
    root, names = tmp_path_factory.mktemp("parquet"), ["tench", "goldfish, Carassius auratus", "shark"]
    rows = numbered("train")
    shard(root / "data/train-00000-of-00002.parquet", rows[:4], names=names)
    shard(root / "data/train-00001-of-00002.parquet", rows[4:], names=names)
    shard(root / "data/validation-00000-of-00001.parquet", numbered("val"), names=names)
    shard(root / "data/test-00000-of-00001.parquet", [(-1, "test.JPEG", rows[0][2])], names=names)
    return root


def data(root, **knobs):
    return ImageNet(**{"path": str(root), "image_size": SIZE, "resize": RESIZE} | knobs)


def evaluate(dataset, *indices):
    return dataset.__getitems__([(index, -1) for index in indices])


def pillow(data):
    return Image.open(io.BytesIO(data)).convert("RGB")


def assert_close(images, expected):
    """To one level of 256, and 5% of a level on average: Pillow and torch round in different places."""
    difference = (images.int() - expected.int()).abs()
    assert difference.max() <= 1
    assert difference.float().mean() < 0.05


# What there is


def test_a_folder_is_read_as_torchvision_reads_it(folder):
    """The same classes, labels and files in the same order."""
    ours = data(folder)
    for ours_split, split in ((ours.train, "train"), (ours.held_out["eval"], "val")):
        reference = ImageFolder(str(folder / split))
        assert ours_split.labels.tolist() == reference.targets
        assert ours_split.labels.dtype == torch.int64
        assert [ours_split.source.name(i) for i in range(len(ours_split))] == [path for path, _ in reference.samples]
    assert ours.class_names == list(COUNTS)
    assert (ours.num_classes, ours.image_size, ours.channels) == (3, SIZE, 3)
    assert list(ours.held_out) == ["eval"]
    assert (ours.mean, ours.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def test_only_images_count_wherever_they_lie(folder, tmp_path):
    """Other files are passed over; folders within a class, and names of any length and alphabet, are not."""
    image = encoded(picture(30, 30))
    for split in ("train", "validation"):
        for name in ("b", "a"):
            write(tmp_path / split / name / "images" / ("ü" * 40 + ".PNG"), image)
        write(tmp_path / split / "a" / "1.jpg", image)
        write(tmp_path / split / "a" / "boxes.txt", b"1 2")
        write(tmp_path / split / "a" / "._1.jpg", b"of another system")
        write(tmp_path / split / "list.txt", b"")
        (tmp_path / split / ".cache").mkdir()
    (tmp_path / "train" / "b" / "more").symlink_to(tmp_path / "train" / "a" / "images")
    dataset = data(tmp_path).train
    names = [Path(dataset.source.name(i)).relative_to(tmp_path / "train").as_posix() for i in range(len(dataset))]
    assert names == ["a/1.jpg", *(f"{place}/{'ü' * 40}.PNG" for place in ("a/images", "b/images", "b/more"))]
    assert evaluate(dataset, *range(4)).labels.tolist() == [0, 0, 1, 1]


def test_parquet_shards_hold_the_same_images(folder, parquet):
    """And the names of their classes; the hub's test split, which has no labels, is left alone."""
    files, tables = data(folder), data(parquet)
    assert tables.class_names == ["tench", "goldfish, Carassius auratus", "shark"]
    assert tables.num_classes == 3
    for ours, theirs in ((files.train, tables.train), (files.held_out["eval"], tables.held_out["eval"])):
        everything = range(len(ours))
        assert ours.labels.tolist() == theirs.labels.tolist()
        assert [ours.source.read(i) for i in everything] == [theirs.source.read(i) for i in everything]
        assert torch.equal(evaluate(ours, *everything).images, evaluate(theirs, *everything).images)
    assert "n02_1.JPEG" in tables.train.source.name(3)


@pytest.mark.parametrize("places", [("train.parquet", "val.parquet"), ("x/train/0.parquet", "x/validation/0.parquet")])
def test_parquet_without_the_hubs_metadata(places, tmp_path):
    """Classes are then the numbers up to the largest label."""
    for place, split in zip(places, ("train", "val"), strict=True):
        shard(tmp_path / place, numbered(split))
    write(tmp_path / "trainers.parquet", b"something else")
    tables = data(tmp_path)
    assert tables.class_names == ["0", "1", "2"]
    assert tables.train.labels.tolist() == [0, 0, 1, 1, 1, 1, 1, 2, 2, 2]
    assert tables.held_out["eval"].labels.tolist() == [0, 1, 2]


def test_a_hub_id_is_loaded_from_the_hub(parquet, monkeypatch):
    import datasets

    load, asked = datasets.load_dataset, []

    def stand_in(path, **options):
        asked.append((path, options))
        return load(str(parquet))

    monkeypatch.setattr(datasets, "load_dataset", stand_in)
    hub = data("ILSVRC/imagenet-1k")
    assert asked == [("ILSVRC/imagenet-1k", {})]
    assert (len(hub.train), len(hub.held_out["eval"]), hub.class_names[0]) == (10, 3, "tench")


def test_a_limit_is_spread_over_the_sorted_files(folder, parquet):
    """Ten images, four of them: places 0, 2, 5 and 7. Files and tables alike."""
    for root in (folder, parquet):
        limited = data(root, train_limit=4, eval_limit=2)
        assert len(limited.train) == 4
        assert limited.train.labels.tolist() == [0, 1, 1, 2]
        everything = data(root)
        assert torch.equal(evaluate(limited.train, 0, 1, 2, 3).images, evaluate(everything.train, 0, 2, 5, 7).images)
        assert evaluate(limited.train, 2, 3).labels.tolist() == [1, 2]
        assert limited.held_out["eval"].labels.tolist() == [0, 1]
        assert limited.num_classes == 3
        assert len(data(root, train_limit=99).train) == 10


# What is refused


def test_a_missing_or_empty_folder_says_what_goes_where(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ValueError, match="no images at path=") as refused:
            data(path)
        for part in (f"{path}/train/<class>", f"{path}/val/<class>", f"{path}/data/train-", "ILSVRC/imagenet-1k"):
            assert part in str(refused.value)


def test_a_folder_that_exists_is_no_hub_id(tmp_path, monkeypatch):
    (tmp_path / "owner" / "images").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"^no images at path=owner/images: put"):
        data("owner/images")


def test_a_hub_id_out_of_reach_is_taken_for_a_folder_too():
    """The tests run with the hub switched off."""
    with pytest.raises(ValueError, match=r"^no images at path=some-owner/some-images, on the hub ") as refused:
        data("some-owner/some-images")
    assert "some-owner/some-images/train/<class>" in str(refused.value)
    assert "OfflineModeIsEnabled" in str(refused.value)


def test_validation_images_without_class_folders(folder, tmp_path):
    (tmp_path / "train").symlink_to(folder / "train")
    with pytest.raises(ValueError, match=r"no class folders in .*val: put"):
        data(tmp_path)
    write(tmp_path / "val" / "ILSVRC2012_val_00000001.JPEG", b"")
    with pytest.raises(ValueError, match=r"no class folders in .*val: put"):
        data(tmp_path)


def test_splits_with_different_classes(tmp_path):
    for split, names in (("train", "abcdef"), ("val", "fx")):
        for name in names:
            write(tmp_path / split / name / "0.png", b"")
    with pytest.raises(ValueError, match=r"a, b, c and 2 more not in .*val, and x not in .*train"):
        data(tmp_path)


def test_a_class_without_images(tmp_path):
    for split in ("train", "val"):
        write(tmp_path / split / "a" / "0.png", b"")
        write(tmp_path / split / "b" / "read.me", b"")
    with pytest.raises(ValueError, match=r"train must hold images, got none in b$"):
        data(tmp_path)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"image_size": 33}, r"image_size must lie in \[1, resize = 32\], got 33"),
        ({"image_size": 0}, "got 0"),
        ({"train_limit": 0}, "limit of images must be >= 1 or null for all, got 0"),
        ({"eval_limit": -1}, "got -1"),
    ],
)
def test_sizes_that_make_no_sense(folder, knobs, message):
    with pytest.raises(ValueError, match=message):
        data(folder, **knobs)


def test_tables_that_are_something_else(tmp_path):
    rows = numbered("val")

    def refused(match, **splits):
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        for split, table in splits.items():
            (root / "data").mkdir(parents=True, exist_ok=True)
            if isinstance(table, list):
                shard(root / f"data/{split}-0.parquet", table)
            else:
                pq.write_table(table, root / f"data/{split}-0.parquet")
        with pytest.raises(ValueError, match=match):
            data(root)

    other = pa.table({"picture": [b"x"], "label": [0]})
    flat = pa.table({"image": [b"x"], "label": [0]})
    words = pa.table({"image": [{"bytes": b"x", "path": "x"}], "label": ["tench"]})
    refused("must have the splits train and validation, got train$", train=rows)
    refused("must have the splits train and validation, got validation$", validation=rows)
    refused("must have the columns image and label, got picture, label", train=other, validation=other)
    refused("image must be a struct of bytes and path, got binary", train=flat, validation=flat)
    refused("label must be a whole number, got string", train=words, validation=words)
    refused(r"train, must lie in \[0, 2\], got -1 to 2", train=[*rows, (-1, "x", b"x")], validation=rows)
    refused(r"validation, must lie in \[0, 2\], got 0 to 3", train=rows, validation=[*rows, (3, "x", b"x")])


# Pixels


@pytest.mark.parametrize("with_pillow", [False, True])
@pytest.mark.parametrize(
    ("mode", "kind", "options"),
    [
        ("RGB", "JPEG", {"quality": 90}),
        ("RGB", "JPEG", {"progressive": True, "subsampling": 0}),
        ("RGB", "JPEG", {"subsampling": 1}),
        ("L", "JPEG", {}),
        ("CMYK", "JPEG", {}),
        ("RGB", "PNG", {}),
        ("RGBA", "PNG", {}),
        ("LA", "PNG", {}),
        ("P", "PNG", {}),
        ("1", "PNG", {}),
        ("RGB", "WEBP", {}),
        ("P", "GIF", {}),
        ("RGB", "BMP", {}),
        ("RGB", "TIFF", {}),
    ],
)
def test_every_kind_of_image_becomes_rgb(mode, kind, options, with_pillow, monkeypatch):
    """As Pillow alone reads it; with and without torchvision's decoder."""
    if with_pillow:
        monkeypatch.setattr(image_pixels, "_torchvision_jpeg", lambda: None)
    bytes_ = encoded(picture(40, 50).convert(mode), kind, **options)
    assert torch.equal(decode(bytes_), torch.from_numpy(np.array(pillow(bytes_))))


def test_jpegs_are_read_by_torchvision(monkeypatch):
    """Otherwise the fast path could be lost unseen."""
    monkeypatch.setattr(image_pixels, "decode_with_pillow", lambda data: pytest.fail("Pillow was asked"))
    for mode in ("RGB", "L"):
        assert decode(encoded(picture(40, 50).convert(mode))).shape == (40, 50, 3)


def test_pillow_has_the_last_word_on_a_jpeg(monkeypatch):
    def refuses(data, mode):
        raise RuntimeError("torchvision cannot")

    monkeypatch.setattr(image_pixels, "_torchvision_jpeg", lambda: refuses)
    bytes_ = encoded(picture(40, 50))
    assert torch.equal(decode(bytes_), torch.from_numpy(np.array(pillow(bytes_))))


def test_the_orientation_in_exif_is_ignored():
    """As torchvision's ImageFolder does: 6 asks for a quarter turn."""
    exif = Image.Exif()
    exif[0x0112] = 6
    plain, turned = (encoded(picture(40, 50), quality=95, **options) for options in ({}, {"exif": exif}))
    assert turned != plain
    assert torch.equal(decode(turned), decode(plain))


@pytest.mark.parametrize("shape", [*SHAPES, (64, 70), (1, 1), (3, 200), (500, 375)])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_evaluation_is_torchvisions(shape, mode, tmp_path):
    """Resize and CenterCrop of the Pillow image to a level, of the tensor exactly."""
    bytes_ = encoded(picture(*shape).convert(mode), quality=95)
    for split in ("train", "val"):
        write(tmp_path / split / "a" / "0.jpg", bytes_)
    transform = v2.Compose([v2.Resize(RESIZE, antialias=True), v2.CenterCrop(SIZE)])
    batch = evaluate(data(tmp_path).held_out["eval"], 0)
    assert_close(batch.images[0], v2.functional.pil_to_tensor(transform(pillow(bytes_))))
    assert torch.equal(batch.images[0], transform(v2.functional.pil_to_tensor(pillow(bytes_))))
    assert torch.equal(evaluate(data(tmp_path).train, 0).images, batch.images)  # number -1 on training images


def test_resize_follows_the_size_of_the_image(folder):
    """256 for 224, and 32 for 28."""
    default = data(folder, resize=None)
    assert torch.equal(evaluate(default.train, 1).images, evaluate(data(folder).train, 1).images)
    assert data(folder, image_size=224, resize=None).train.resize == 256


def test_training_is_torchvisions_given_the_crop(folder):
    """Every image thrice: crop, resize and mirror of the Pillow image, to a level."""
    dataset = data(folder, seed=5).train
    draws = [(index, 3 * index + k) for index in range(10) for k in range(3)]
    images, expected, mirrored = dataset.__getitems__(draws).images, [], 0
    for index, number in draws:
        image = pillow(dataset.source.read(index))
        rng = random.Random(f"image 5 {number}")
        crop = v2.functional.resized_crop(image, *random_crop(image.height, image.width, rng), [SIZE, SIZE])
        if rng.random() < 0.5:
            crop, mirrored = v2.functional.hflip(crop), mirrored + 1
        expected.append(v2.functional.pil_to_tensor(crop))
    assert 5 <= mirrored <= 25
    assert_close(images, torch.stack(expected))


def torchvision_crops(height, width, count):
    transform = v2.RandomResizedCrop(SIZE)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        params = [transform.make_params([torch.empty(3, height, width)]) for _ in range(count)]
    return np.array([[crop[name] for name in ("top", "left", "height", "width")] for crop in params])


def our_crops(height, width, count):
    return np.array([random_crop(height, width, random.Random(n)) for n in range(count)])


def test_large_crops_are_distributed_as_torchvisions():
    """Place, size, area and shape of 8,000 of each: eight Kolmogorov-Smirnov tests, false alarm below 1e-4 each."""
    samples = []
    for crops in (our_crops(375, 500, 8000), torchvision_crops(375, 500, 8000)):
        top, left, height, width = crops.T
        samples.append(
            [top, left, height, width, 375 - top - height, 500 - left - width, height * width, width / height]
        )
    for ours, theirs in zip(*samples, strict=True):
        assert ks_2samp(ours, theirs).pvalue > 1e-4


@pytest.mark.parametrize("shape", [(4, 5), (2, 7), (1, 2)])
def test_small_crops_are_distributed_as_torchvisions(shape):
    """All outcomes of a few pixels, jointly: a chi-square test over those seen five times, false alarm 1e-4."""
    tables = [np.unique(crops(*shape, 6000), axis=0, return_counts=True) for crops in (our_crops, torchvision_crops)]
    counts = [{tuple(crop): n for crop, n in zip(*table, strict=True)} for table in tables]
    seen = [crop for crop in counts[0].keys() | counts[1].keys() if sum(c.get(crop, 0) for c in counts) >= 10]
    assert len(seen) >= 2
    assert chi2_contingency([[c.get(crop, 0) for crop in seen] for c in counts]).pvalue > 1e-4


@pytest.mark.parametrize("shape", [(4, 400), (400, 4), (3, 77), (1, 50)])
def test_crops_of_narrow_images_are_torchvisions_largest_in_the_middle(shape):
    """Eight percent of the area at any allowed aspect is higher than the image: no draw fits. (4, 400): 4 x 5."""
    assert random_crop(*shape, random.Random(0)) == tuple(torchvision_crops(*shape, 1)[0])
    assert random_crop(4, 400, random.Random(0)) == (0, 197, 4, 5)


def test_the_whole_image_when_no_draw_fits_and_its_shape_is_allowed():
    class Stubborn:
        """Always the whole area at the widest aspect."""

        def uniform(self, low, high):
            return high

    assert random_crop(100, 100, Stubborn()) == (0, 0, 100, 100)
    assert random_crop(90, 100, Stubborn()) == (0, 0, 90, 100)


def test_half_of_the_draws_are_mirrored():
    """400 draws of a black-to-white image: 200 within five standard deviations of 10, false alarm 6e-7."""
    ramp = torch.arange(0, 240, 6).to(torch.uint8)[None, :, None].expand(40, 40, 3)
    draws = [training_pixels(ramp, size=8, rng=random.Random(n)).float() for n in range(400)]
    assert abs(sum(bool(pixels[:, -1].mean() < pixels[:, 0].mean()) for pixels in draws) - 200) <= 50
    assert all(torch.equal(pixels[..., 0], pixels[..., 2]) for pixels in draws)


# Draws


def test_a_draw_is_a_function_of_seed_and_number(folder):
    """Whatever stands beside it, and whatever was drawn before."""
    dataset = data(folder, seed=1).train
    alone = dataset.__getitems__([(4, 7)]).images[0]
    assert torch.equal(dataset.__getitems__([(1, 6), (4, 7), (4, 8)]).images[1], alone)
    assert torch.equal(data(folder, seed=1).train.__getitems__([(4, 7)]).images[0], alone)
    assert not torch.equal(dataset.__getitems__([(4, 8)]).images[0], alone)
    assert not torch.equal(data(folder, seed=2).train.__getitems__([(4, 7)]).images[0], alone)
    assert not torch.equal(evaluate(dataset, 4).images[0], alone)
    assert torch.equal(data(folder, seed=2).train.__getitems__([(4, -1)]).images, evaluate(dataset, 4).images)


def test_the_programs_own_random_numbers_are_left_alone(folder):
    torch.manual_seed(3)
    random.seed(3)
    expected = torch.rand(1), random.random()
    torch.manual_seed(3)
    random.seed(3)
    data(folder).train.__getitems__([(index, index) for index in range(10)])
    assert (torch.rand(1), random.random()) == expected


def identity(batch):
    return batch


@pytest.mark.parametrize("form", ["folder", "parquet"])
def test_workers_see_the_same_pixels(form, request):
    """In other processes, and after the journey to one that shares no memory."""
    dataset = data(request.getfixturevalue(form)).train
    batches = [[(0, 0), (9, 1), (3, 2)], [(-1, -1), (5, 3)]]
    here = [dataset.__getitems__(draws) for draws in batches]
    moved = [pickle.loads(pickle.dumps(dataset)).__getitems__(draws) for draws in batches]
    workers = DataLoader(dataset, batch_sampler=batches, collate_fn=identity, num_workers=2)
    for expected, *others in zip(here, moved, workers, strict=True):
        for batch in others:
            assert torch.equal(batch.images, expected.images)
            assert torch.equal(batch.labels, expected.labels)


def test_batches_have_the_promised_form(folder):
    batch = data(folder).train.__getitems__([(9, 0), (-1, -1), (2, 1), (9, -1)])
    assert (batch.images.dtype, batch.images.shape) == (torch.uint8, (4, 3, SIZE, SIZE))
    assert batch.labels.dtype == torch.int64
    assert batch.labels.tolist() == [2, NO_LABEL, 1, 2]
    assert not batch.images[1].any()
    assert all(batch.images[row].any() for row in (0, 2, 3))
    assert batch.unreadable == ()


# What cannot be read


BROKEN = {
    "empty": b"",
    "text": b"<html>404 Not Found</html>",
    "truncated": encoded(picture(60, 60))[:-200],
    "header": encoded(picture(60, 60))[:30],
    "png": encoded(picture(60, 60), "PNG")[:200],
    "huge": b"P6 60000 60000 255\n" + bytes(10),  # Pillow calls it a decompression bomb
    "pcx": encoded(picture(60, 60), "PCX"),  # Pillow reads it, and kinds that start programs: neither is a photograph
}


@pytest.mark.parametrize("kind", [*BROKEN, "vanished"])
def test_a_broken_file_costs_its_row_alone(kind, tmp_path):
    good = encoded(picture(40, 40))
    for split in ("train", "val"):
        for k, bytes_ in enumerate([good, BROKEN.get(kind, good), good]):
            write(tmp_path / split / "a" / f"{k}.jpg", bytes_)
    dataset = data(tmp_path).train
    broken = tmp_path / "train" / "a" / "1.jpg"
    if kind == "vanished":
        broken.unlink()
    for number in (-1, 4):
        batch = dataset.__getitems__([(0, number), (-1, -1), (1, number), (2, number)])
        assert batch.labels.tolist() == [0, NO_LABEL, NO_LABEL, 0]
        assert batch.unreadable == (str(broken),)
        assert [bool(image.any()) for image in batch.images] == [True, False, False, True]


def test_a_limit_names_the_right_file(tmp_path):
    for split in ("train", "val"):
        for k in range(4):
            write(tmp_path / split / "a" / f"{k}.jpg", b"no image")
    assert evaluate(data(tmp_path, train_limit=2).train, 1).unreadable == (str(tmp_path / "train" / "a" / "2.jpg"),)


def test_broken_rows_of_a_table(tmp_path):
    good = encoded(picture(40, 40))
    shard(tmp_path / "train-0.parquet", [(0, "good.jpg", good), (0, "bad.jpg", good[:300]), (1, "none.jpg", None)])
    shard(tmp_path / "val-0.parquet", [(0, "good.jpg", good), (1, "good.jpg", good)])
    batch = evaluate(data(tmp_path).train, 0, 1, 2)
    assert batch.labels.tolist() == [0, NO_LABEL, NO_LABEL]
    assert batch.unreadable == ("train row 1 (bad.jpg)", "train row 2 (no name)")
    with pytest.raises(OSError, match=r"no image in train row 2 \(no name\)"):
        data(tmp_path).train.source.read(2)


def test_a_missing_package_is_no_broken_file(folder, monkeypatch):
    def missing(data):
        raise ImportError("no Pillow")

    monkeypatch.setattr("datamodules.imagenet.decode", missing)
    with pytest.raises(ImportError, match="no Pillow"):
        evaluate(data(folder).train, 0)


# What it costs


def test_a_million_files_are_few_objects(folder):
    """Paths are one array of encoded strings; a worker is sent those and the labels."""
    source = data(folder).train.source
    assert source.paths.dtype == np.dtype(f"S{len('n01/n01_0.JPEG')}")
    assert not any(isinstance(value, list | tuple | dict) for value in vars(source).values())

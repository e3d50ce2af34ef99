"""Captions, augmentation and unreadable images in the batches of a split."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch

from captioner.data.crops import Crop, FixedCrop
from captioner.data.dataset import CaptionDataset, Draw
from captioner.data.pixels import ImageFiles
from captioner.data.records import TRAIN, VAL, Record
from captioner.data.supervision import Supervision
from captioner.errors import DataError
from captioner.models.annotations import Annotations
from data_modules import HEIGHT, WIDTH, direct, epoch, ids, rows, same, texts, values
from tests.data.test_cache import FakeEncoder

# ── Captions ──────────────────────────────────────────────────────────────────────────────────────

FIVE = ["one", "two", "three", "four", "five"]
FEW, MANY = FIVE[:2], FIVE


def test_every_epoch_draws_other_captions(photos):
    captions = {TRAIN: {"few.jpg": FEW, "many.jpg": MANY}, VAL: {"v.jpg": MANY}}
    data = photos(captions, captions_per_image=2)
    draws = [rows(epoch(data, number)) for number in range(30)]
    pairs = [tuple(texts(data, draw["many.jpg"])) for draw in draws]
    assert all(len(set(pair)) == 2 for pair in pairs)
    assert len(set(pairs)) > 8  # of 20
    counts = Counter(itertools.chain(*pairs))
    assert set(counts) == set(MANY)
    assert max(counts.values()) < 3 * min(counts.values())
    assert all(sorted(texts(data, draw["few.jpg"])) == FEW for draw in draws)
    for _ in range(2):  # validation always uses the first captions
        assert texts(data, rows(data.val_dataloader())["v.jpg"]) == FEW


# ── Mirroring ─────────────────────────────────────────────────────────────────────────────────────

SIDED = ["on the left", "Right of it", "its LEFT side", "a right-handed man", "the leftmost one"]
UNSIDED = ["a bright light", "an upright bass", "a copyright sign", "two dogs"]


@pytest.mark.parametrize("cache", [True, False])
def test_mirrored_annotations_are_those_of_the_mirrored_image(cache, photos):
    captions = {f"{i}.jpg": ["a dog", caption] for i, caption in enumerate([*SIDED, *UNSIDED])}
    data = photos({TRAIN: captions, VAL: {"val.jpg": ["two dogs"]}}, mirror=1.0, cache=cache)
    drawn = values(epoch(data, 0))
    for record in data.of_split(TRAIN):
        mirrored = record.captions[1].removesuffix(" .") in UNSIDED
        expected = direct(record.path, mirrored, cache)
        other = direct(record.path, not mirrored, cache)
        torch.testing.assert_close(drawn[record.image_id], expected, rtol=2e-3, atol=1)
        assert (drawn[record.image_id].float() - other.float()).abs().max() > 10
    (record,) = data.of_split(VAL)
    (validation,) = values(data.val_dataloader()).values()
    assert torch.equal(validation, direct(record.path, False, cache))


# ── Without a cache ───────────────────────────────────────────────────────────────────────────────


def test_cached_pixels_equal_those_of_the_files(photos):
    splits = {TRAIN: {f"{i}.jpg": FIVE for i in range(5)}, VAL: {"v.jpg": FIVE}}
    options = {"mirror": 0.5, "crop": 0.7, "trainable": True}
    cached, read = (photos(splits, cache=cache, **options) for cache in ("images", False))
    for number in range(3):
        assert same(epoch(cached, number), epoch(read, number))
    (batch,) = read.val_dataloader()
    assert (batch.images.shape, batch.images.dtype) == ((1, 3, HEIGHT, WIDTH), torch.uint8)
    (pixels,) = values(cached.val_dataloader()).values()
    assert torch.equal(pixels, batch.images[0])
    assert torch.equal(pixels, direct(cached.of_split(VAL)[0].path, cache=False))


# ── Cropping ──────────────────────────────────────────────────────────────────────────────────────


def test_a_crop_keeps_the_aspect_ratio():
    """The brightness of two channels encodes the row and the column."""
    height, width = 120, 200
    row, column = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    pixels = torch.stack([row, column, torch.full_like(row, 77)]).to(torch.uint8)
    areas = []
    for seed in range(40):
        crop = (
            Crop.draw(0.5, (height, width), np.random.default_rng(seed)).of_pixels(pixels).float()
        )
        assert crop.shape == pixels.shape
        assert (crop[2] == 77).all(), "colours stay"
        down = float(crop[0, -10, 50] - crop[0, 10, 50]) / (height - 20)  # old rows per new row
        right = float(crop[1, 50, -10] - crop[1, 50, 10]) / (width - 20)
        assert down == pytest.approx(right, abs=0.03), "nothing gets thinner or is mirrored"
        areas.append(down * right)
    assert 0.47 < min(areas) < 0.6
    assert 0.9 < max(areas) <= 1.02
    whole = Crop.draw(1.0, (height, width), np.random.default_rng(0))
    assert whole == Crop(0.0, 0.0, 1.0, 1.0)
    assert torch.equal(whole.of_pixels(pixels), pixels)


def test_a_target_is_cropped_like_its_pixels():
    """Every cell is painted as 30 × 30 pixels, which are cropped and averaged."""
    target = torch.rand(2, 4, 6, generator=torch.Generator().manual_seed(0))
    painted = target.repeat_interleave(30, 1).repeat_interleave(30, 2)
    crop = Crop(13 / 120, 41 / 180, 100 / 120, 120 / 180)
    cells = painted[:, 13:113, 41:161].unflatten(1, (4, 25)).unflatten(3, (6, 20))
    torch.testing.assert_close(crop.of_target(target), cells.mean((2, 4)))
    torch.testing.assert_close(Crop(0.0, 0.0, 1.0, 1.0).of_target(target), target)


def test_an_object_that_fills_the_crop_or_lies_outside_has_no_target():
    """The crops in the loop end where the object begins, up to a rounding error."""
    target = torch.zeros(1, 4, 6)
    target[:, 1:, 2:] = 1
    assert Crop(0.25, 0.5, 0.5, 0.5).of_target(target).abs().max() == 0
    assert Crop(0.1, 0.5, 0.5, 0.5).of_target(target).max() == 1
    target = torch.zeros(1, 7, 7)
    target[:, -1] = 1
    for height in range(60, 192):  # of 224; the last cell begins at 192
        crop = Crop((192 - height) / 224, 0.0, height / 224, 1.0)
        assert not crop.of_target(target).any(), height
    assert Crop(0.5, 0.0, 0.5, 1.0).of_target(target).any()


class Painted(ImageFiles):
    """A photo that shows its own target: white where the object is."""

    def __init__(self):
        self.target = torch.zeros(1, 4, 6)
        self.target[:, 1:3, 1:3] = 1

    def __getitem__(self, path):
        one = self.target.repeat_interleave(16, 1).repeat_interleave(16, 2)
        return (255 * one).to(torch.uint8).expand(3, -1, -1)


class PaintedCrop(Painted):
    """Gives the pixels of a cropped photo in the shape of annotation vectors."""

    def __init__(self, number):
        super().__init__()
        self.crop = FixedCrop(0.4, number, (64, 96))

    def __getitem__(self, path):
        pixels = self.crop.of(path).of_pixels(super().__getitem__(path))
        return Annotations(pixels.flatten(1).T[None].float(), (64, 96))


@pytest.mark.parametrize("mirror", [0.0, 1.0])
@pytest.mark.parametrize("cached", [0, 15])
def test_the_targets_of_an_item_have_the_crop_of_the_item(mirror, cached):
    class EveryWord(Supervision):
        def __call__(self, record, number, ids):
            return photo.target.flatten(1).numpy().repeat(len(ids), 0)

    photo = Painted()
    record = Record("a", "a.jpg", ("a dog",), TRAIN)
    sources = [PaintedCrop(number) for number in range(cached)]
    photo = sources.pop() if cached else photo
    target = EveryWord((4, 6))
    data = CaptionDataset([record], [[[1, 5, 2]]], photo, 1, mirror, 0.4, target, sources)
    crops = set()
    for seed in range(40):
        item = data[Draw(0, seed)]
        pixels = item.image.vectors[0, :, 0].view(64, 96) if cached else item.image[0]
        seen = pixels.float().div(255).unflatten(0, (4, 16)).unflatten(2, (6, 16))
        (mask,) = item.masks
        assert mask.shape == (3, 24)
        torch.testing.assert_close(mask[1].view(4, 6), seen.mean((1, 3)), atol=0.05, rtol=0)
        crops.add(tuple(mask[1].tolist()))
    assert len(crops) > (10 if cached else 30)


def test_an_epoch_has_vectors_of_whole_images_and_of_crops(shapes, tmp_path):
    data = shapes(crop=0.5, cached_crops=2, cache_dir=str(tmp_path))
    paths = {record.image_id: record.path for record in data.of_split(TRAIN)}
    size, seen = (HEIGHT, WIDTH), Counter()
    for number in range(4):
        for image_id, vectors in values(epoch(data, number)).items():
            pixels = direct(paths[image_id], cache=False)
            crops = [FixedCrop(0.5, n, size).of(paths[image_id]) for n in (1, 2)]
            images = [pixels, *(crop.of_pixels(pixels) for crop in crops)]
            known = [FakeEncoder()(image[None]).vectors[0].half() for image in images]
            matches = [torch.equal(vectors, one) for one in known]
            assert any(matches)
            seen[matches.index(True)] += 1
    assert min(seen[n] for n in range(3)) > 5  # of 44
    whole = values(data.val_dataloader())
    for record in data.of_split(VAL):
        assert torch.equal(whole[record.image_id], direct(record.path))


def test_a_fixed_crop_depends_on_the_end_of_the_path_and_on_its_number():
    """If the first crop changes, raise the version in ``FixedCrop.__str__``."""
    size = (320, 320)
    crop = FixedCrop(0.5, 1, size).of("/home/photos/a.jpg")
    assert crop == Crop(25 / 320, 54 / 320, 261 / 320, 261 / 320)
    assert crop == FixedCrop(0.5, 1, size).of("/elsewhere/photos/a.jpg")
    assert crop != FixedCrop(0.5, 2, size).of("/home/photos/a.jpg")
    assert crop != FixedCrop(0.5, 1, size).of("/home/photos/b.jpg")
    assert crop != FixedCrop(0.5, 1, size).of("/home/others/a.jpg")


def test_caches_of_crops_are_used_again_and_not_mixed(shapes, tmp_path):
    for options in ({}, {}, {"crop": 0.6, "cached_crops": 1}, {"crop": 0.5, "cached_crops": 2}):
        shapes(**{"crop": 0.5, "cached_crops": 1} | options, cache_dir=str(tmp_path))
    # Whole images; crops 1 and 2 of at least 0.5; crop 1 of at least 0.6.
    assert len(list((tmp_path / "annotations").iterdir())) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": 0.8}, r"give --data\.cached_crops 3, or --data\.cache images"),
        ({"cached_crops": 2}, r"data\.cached_crops needs data\.crop below 1, a frozen encoder"),
    ],
)
def test_crops_that_cannot_be_made(photos, options, message):
    with pytest.raises(DataError, match=message):
        photos({TRAIN: {"a.jpg": ["a"]}, VAL: {"v.jpg": ["a"]}}, **options)


def test_only_training_reads_crops(photos, tmp_path):
    """Testing and validation cache no crops. Testing accepts a ``cache`` that training would refuse."""
    captions = {TRAIN: {"a.jpg": ["a"]}, VAL: {"v.jpg": ["a"]}}
    options = {"crop": 0.5, "cached_crops": 2}
    photos(captions, stage="test", cache=False, **options)
    data = photos(captions, stage="validate", **options)
    assert len(list((tmp_path / "cache" / "annotations").iterdir())) == 1
    data.setup("fit")
    assert len(list((tmp_path / "cache" / "annotations").iterdir())) == 3
    read = [values(epoch(data, number))["a.jpg"].numpy().tobytes() for number in range(20)]
    assert len(set(read)) == 3


# ── Unreadable images ──────────────────────────────────────────────────────────────────

WITH_BROKEN = {
    TRAIN: {"a.jpg": ["A dog."], "bad.jpg": ["a cat"], "c.jpg": ["a cow"]},
    VAL: {"d.jpg": ["A dog, here", "two"], "worse.jpg": ["a cat"], "f.jpg": ["a cow"]},
}


@pytest.mark.parametrize("cache", [True, False])
def test_unreadable_images_are_left_out(cache, photos, caplog):
    data = photos(WITH_BROKEN, broken=("bad.jpg", "worse.jpg"), cache=cache)
    assert sorted(ids(epoch(data, 0))) == ["a.jpg", "c.jpg"]
    assert ids(data.val_dataloader()) == ["d.jpg", "f.jpg"]
    for name in ("bad.jpg", "worse.jpg"):
        assert sum(f"/{name}" in record.getMessage() for record in caplog.records) == 1
    if cache:
        assert data.references(VAL) == {"d.jpg": ["A dog, here .", "two ."], "f.jpg": ["a cow ."]}
        assert data.references(TRAIN).keys() == {"a.jpg", "c.jpg"}

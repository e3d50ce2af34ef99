"""Captions, augmentation and unreadable images in the batches of a split."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch

from captioner.data.dataset import cropped
from captioner.data.records import TRAIN, VAL
from captioner.errors import DataError
from data_modules import HEIGHT, WIDTH, direct, epoch, ids, rows, same, texts, values

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
    assert (batch.pixels.shape, batch.pixels.dtype) == ((1, 3, HEIGHT, WIDTH), torch.uint8)
    assert (batch.vectors, batch.grid) == (None, (0, 0))
    (pixels,) = values(cached.val_dataloader()).values()
    assert torch.equal(pixels, batch.pixels[0])
    assert torch.equal(pixels, direct(cached.of_split(VAL)[0].path, cache=False))


# ── Cropping ──────────────────────────────────────────────────────────────────────────────────────


def test_a_crop_keeps_the_aspect_ratio():
    """The brightness of two channels encodes the row and the column."""
    height, width = 120, 200
    row, column = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    pixels = torch.stack([row, column, torch.full_like(row, 77)]).to(torch.uint8)
    areas = []
    for seed in range(40):
        crop = cropped(pixels, 0.5, np.random.default_rng(seed)).float()
        assert crop.shape == pixels.shape
        assert (crop[2] == 77).all(), "colours stay"
        down = float(crop[0, -10, 50] - crop[0, 10, 50]) / (height - 20)  # old rows per new row
        right = float(crop[1, 50, -10] - crop[1, 50, 10]) / (width - 20)
        assert down == pytest.approx(right, abs=0.03), "nothing gets thinner or is mirrored"
        areas.append(down * right)
    assert 0.47 < min(areas) < 0.6
    assert 0.9 < max(areas) <= 1.02
    assert torch.equal(cropped(pixels, 1.0, np.random.default_rng(0)), pixels)


def test_vectors_cannot_be_cropped(shapes):
    with pytest.raises(DataError, match=r"give --data\.cache images"):
        shapes(crop=0.8)


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

"""Batches of pixels from many images."""

import threading
from concurrent.futures import thread as pool

import numpy as np
import pytest
import torch
from PIL import Image

from captioner.data.pixels import read_batches
from captioner.models.encoder import Preprocessing

SIZE = Preprocessing(48, 64, "bicubic", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


@pytest.fixture
def images():
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (48, 64, 3), np.uint8)) for _ in range(10)]


def test_batches_hold_the_images_in_order(images):
    batches = list(read_batches(images, 4, SIZE))
    assert [batch.indices for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    pixels = torch.cat([batch.pixels for batch in batches])
    assert pixels.is_contiguous()
    expected = np.stack([np.asarray(image).transpose(2, 0, 1) for image in images])
    np.testing.assert_array_equal(pixels.numpy(), expected)


def test_a_rotated_image_counts_as_unreadable(images):
    """Its masks would not fit."""
    expected = [(64, 48)] * 9 + [(48, 64)]
    *_, last = read_batches(images, 4, SIZE, expected)
    assert last.indices == [8]
    assert "found 64 × 48 pixels, expected 48 × 64 like its masks" in str(last.failed[9])


def test_reading_that_is_given_up_waits_for_no_lock(images):
    """The garbage collector may end it in the middle of ``submit``, which holds this lock."""
    before = set(threading.enumerate())
    batches = read_batches(images, 4, SIZE)
    next(batches)
    readers = set(threading.enumerate()) - before
    with pool._global_shutdown_lock:
        closing = threading.Thread(target=batches.close)
        closing.start()
        closing.join(5)
        waits = closing.is_alive()
    closing.join()
    assert not waits
    (reader,) = readers
    del batches
    reader.join(5)
    assert not reader.is_alive()

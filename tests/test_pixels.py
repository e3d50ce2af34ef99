"""Pictures read ahead, beside whoever uses them."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from captioner.data.pixels import read_batches
from captioner.models.encoder import Preprocessing

SIZE = Preprocessing(48, 64, "bicubic", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


@pytest.fixture
def pictures():
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (48, 64, 3), np.uint8)) for _ in range(10)]


def test_batches_hold_the_pictures_in_order(pictures):
    batches = list(read_batches(pictures, 4, SIZE))
    assert [batch.indices for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    pixels = torch.cat([batch.pixels for batch in batches])
    assert pixels.is_contiguous()
    expected = np.stack([np.asarray(picture).transpose(2, 0, 1) for picture in pictures])
    np.testing.assert_array_equal(pixels.numpy(), expected)


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads as Linux shows them")
def test_reading_ahead_wakes_none_of_torch_s_helpers():
    def threads():
        return len(list(Path("/proc/self/task").iterdir()))

    # Large enough that torch would share the work.
    large = Preprocessing(512, 512, "bicubic", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    pictures = [Image.new("RGB", (512, 512)) for _ in range(6)]
    cores = torch.get_num_threads()
    torch.set_num_threads(4)
    before = threads()
    try:
        most = max(threads() for _ in read_batches(pictures, 2, large))
    finally:
        torch.set_num_threads(cores)
    assert most <= before + 1

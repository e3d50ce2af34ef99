"""Batches of pixels from many images; a thread reads the next batch while one is used."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from captioner import images
from captioner.errors import ImageError
from captioner.models.encoder import Preprocessing


@dataclass
class PixelBatch:
    """The readable images of a batch, and the errors of the others.

    Attributes:
        indices: for each image in ``pixels``, its index in the list of sources.
        sizes: (width, height) of each image before resizing, upright.
        pixels: the resized images.
        failed: the error of each unreadable image, by its index in the list of sources.
    """

    indices: list[int] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    pixels: UInt8[Tensor, "B 3 H W"] = field(
        default_factory=lambda: torch.empty(0, 3, 1, 1, dtype=torch.uint8)
    )
    failed: dict[int, ImageError] = field(default_factory=dict)


def read_batch(
    sources: Sequence[images.Source],
    indices: range,
    preprocessing: Preprocessing,
    expected: Sequence[tuple[int, int]] | None = None,
) -> PixelBatch:
    """Read and resize some images of a list.

    Args:
        sources: the list.
        indices: the images to read.
        preprocessing: gives the size and the interpolation.
        expected: the (width, height) at which each image of the list was annotated. An image with
            exchanged sides has been rotated since and counts as unreadable.
    """
    batch, pixels = PixelBatch(), []
    for index in indices:
        try:
            image = images.load(sources[index])
            if expected is not None and image.size == expected[index][::-1] != expected[index]:
                raise ImageError(
                    f"{sources[index]!s}: found {image.width} × {image.height} pixels, expected "
                    f"{image.height} × {image.width} like its masks; rotate the photo back to its "
                    "orientation at annotation"
                )
        except ImageError as error:
            batch.failed[index] = error
            continue
        pixels.append(resized(image, preprocessing).numpy())
        batch.indices.append(index)
        batch.sizes.append(image.size)
    if pixels:
        # numpy, not torch: torch's threads in this thread would slow down a network on the same cores.
        batch.pixels = torch.from_numpy(np.stack(pixels))
    return batch


def resized(image: Image.Image, preprocessing: Preprocessing) -> UInt8[Tensor, "3 H W"]:
    """The pixels of an image at the input size of an encoder."""
    size = preprocessing.height, preprocessing.width
    return images.to_tensor(image, size, preprocessing.interpolation)


def read_batches(
    sources: Sequence[images.Source],
    batch_size: int,
    preprocessing: Preprocessing,
    expected: Sequence[tuple[int, int]] | None = None,
) -> Iterator[PixelBatch]:
    """Read all images in order; the arguments are those of `read_batch`."""
    everything = range(len(sources))
    with ThreadPoolExecutor(max_workers=1) as thread:
        pending: Future[PixelBatch] | None = None
        for start in everything[::batch_size]:
            indices = everything[start : start + batch_size]
            following = thread.submit(read_batch, sources, indices, preprocessing, expected)
            if pending is not None:
                yield pending.result()
            pending = following
        if pending is not None:
            yield pending.result()

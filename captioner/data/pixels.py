"""Batches of pixels from many images; a thread reads the next batch while one is used."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from PIL import Image
from torch import Tensor

from captioner.errors import ImageError
from captioner.models.encoder import Inputs, Preprocessing
from captioner.photos import images
from captioner.photos.region_files import RegionFiles


class PixelBatch(NamedTuple):
    """The readable images of a batch, and the errors of the others."""

    indices: list[int]  # of the readable images in the list of sources
    sizes: list[tuple[int, int]]  # (width, height) of each before resizing, upright
    pixels: Inputs
    failed: dict[int, ImageError]  # by index in the list of sources


class ImageFiles:
    """Reads the pixels of images by path, where an ``AnnotationCache`` reads their annotations."""

    crop = None

    def __init__(self, preprocessing: Preprocessing | RegionFiles) -> None:
        self.preprocessing = preprocessing

    def __getitem__(self, path: str) -> UInt8[Tensor, "3 H W"] | Float32[Tensor, "N D5"]:
        if isinstance(self.preprocessing, RegionFiles):
            return torch.from_numpy(self.preprocessing.read(path, _size(path)))
        return to_input(path, images.load(path), self.preprocessing)


def _size(path: str) -> tuple[int, int]:
    """Return the upright (width, height) of a photo, which is decoded only if that is necessary."""
    try:
        return images.upright_size(path)
    except Exception:  # a HEIC photo, or not a photo, which the next line reports
        return images.load(path).size


def to_input(
    source: images.Source, image: Image.Image, preprocessing: Preprocessing | RegionFiles
) -> UInt8[Tensor, "3 H W"] | Float32[Tensor, "N D5"]:
    """Return the resized pixels of an image, or its region features; ImageError if it has none."""
    if isinstance(preprocessing, RegionFiles):
        return torch.from_numpy(preprocessing.read(source, image.size))
    size = preprocessing.height, preprocessing.width
    return to_tensor(image, size, preprocessing.interpolation)


def to_tensor(
    image: Image.Image, size: tuple[int, int], interpolation: Literal["bicubic", "bilinear"]
) -> UInt8[Tensor, "3 H W"]:
    """Resize a whole RGB image to (height, width) with Pillow's antialiasing: values 0…255."""
    height, width = size
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling[interpolation.upper()])
    # Copied by numpy: torch would start threads that compete with the network's.
    return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy())


def check_upright(source: images.Source, size: tuple[int, int], expected: tuple[int, int]) -> None:
    """Raise ImageError if the sides of an image are exchanged since its annotation."""
    if size == expected[::-1] != expected:
        raise ImageError(
            f"{source!s}: found {size[0]} × {size[1]} pixels, expected {size[1]} × {size[0]} like its "
            "masks; rotate the photo back"
        )


def read_batch(
    sources: Sequence[images.Source],
    indices: range,
    preprocessing: Preprocessing | RegionFiles,
    expected: Sequence[tuple[int, int]] | None = None,
) -> PixelBatch:
    """Read and resize some images of a list.

    ``expected`` is the (width, height) at which each image was annotated. An image that has been
    rotated since counts as unreadable.
    """
    read, sizes, pixels, failed = [], [], [], {}
    for index in indices:
        try:
            image = images.load(sources[index])
            if expected is not None:
                check_upright(sources[index], image.size, expected[index])
            inputs = to_input(sources[index], image, preprocessing).numpy()
        except ImageError as error:
            failed[index] = error
            continue
        read.append(index)
        sizes.append(image.size)
        pixels.append(inputs)
    # numpy, not torch: torch's threads in this thread would slow down a network on the same cores.
    stacked = np.stack(pixels) if pixels else np.empty((0, 3, 1, 1), np.uint8)
    return PixelBatch(read, sizes, torch.from_numpy(stacked), failed)


def read_batches(
    sources: Sequence[images.Source],
    batch_size: int,
    preprocessing: Preprocessing | RegionFiles,
    expected: Sequence[tuple[int, int]] | None = None,
) -> Iterator[PixelBatch]:
    """Read all images in order; the arguments are those of `read_batch`."""
    everything = range(len(sources))
    pending: Future[PixelBatch] | None = None
    # Never shut down, which takes locks: the garbage collector may end this generator in a thread that
    # holds them. The thread ends when nothing refers to the executor.
    thread = ThreadPoolExecutor(max_workers=1)
    for start in everything[::batch_size]:
        indices = everything[start : start + batch_size]
        following = thread.submit(read_batch, sources, indices, preprocessing, expected)
        if pending is not None:
            yield pending.result()
        pending = following
    if pending is not None:
        yield pending.result()

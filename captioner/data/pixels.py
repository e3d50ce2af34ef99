"""Many pictures → batches of pixels, read one batch ahead of whoever uses them."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from captioner import images
from captioner.errors import ImageError


@runtime_checkable
class InputSize(Protocol):
    """What reading needs to know of an encoder's preprocessing."""

    @property
    def height(self) -> int:
        """Height in pixels."""

    @property
    def width(self) -> int:
        """Width in pixels."""

    @property
    def interpolation(self) -> Literal["bicubic", "bilinear"]:
        """``bicubic`` or ``bilinear``."""


@dataclass
class PixelBatch:
    """Some pictures of a list, those of a batch that could be read and those that could not.

    Attributes:
        indices: places in the list of the pictures in ``pixels``.
        sizes: their (width, height) before resizing, upright.
        pixels: resized.
        failed: what is wrong with each of the others, by place in the list.
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
    size: InputSize,
    expected: Sequence[tuple[int, int]] | None = None,
) -> PixelBatch:
    """The pictures at these places of the list; one that cannot be read costs only itself.

    Args:
        sources: the list.
        indices: the places.
        size: to which they are resized.
        expected: the (width, height) at which each of the list was annotated, where that matters: one
            whose sides are exchanged has been turned since, and is left out.
    """
    batch = PixelBatch()
    read = []
    for index in indices:
        try:
            picture = images.load(sources[index])
        except ImageError as error:
            batch.failed[index] = error
            continue
        annotated = picture.size if expected is None else expected[index]
        if picture.size != annotated and picture.size == annotated[::-1]:
            batch.failed[index] = ImageError(
                "{}: found {} × {} pixels, expected {} × {} as its masks have; turn the picture "
                "as it was when it was annotated".format(
                    str(sources[index]), *picture.size, *annotated
                )
            )
            continue
        pixels = images.to_tensor(picture, (size.height, size.width), size.interpolation)
        read.append(pixels.numpy())
        batch.indices.append(index)
        batch.sizes.append(picture.size)
    if read:
        batch.pixels = torch.from_numpy(np.stack(read))
    return batch


def read_batches(
    sources: Sequence[images.Source],
    batch_size: int,
    size: InputSize,
    expected: Sequence[tuple[int, int]] | None = None,
) -> Iterator[PixelBatch]:
    """All pictures in order; while one batch is used, a thread reads the next.

    The thread leaves torch's helpers alone: on two cores a network beside which they wait, as they do
    between two copies, has two thirds of its speed.
    """
    ranges = [
        range(start, min(start + batch_size, len(sources)))
        for start in range(0, len(sources), batch_size)
    ]
    if not ranges:
        return
    with ThreadPoolExecutor(max_workers=1) as thread:
        coming = thread.submit(read_batch, sources, ranges[0], size, expected)
        for indices in ranges[1:]:
            batch = coming.result()
            coming = thread.submit(read_batch, sources, indices, size, expected)
            yield batch
        yield coming.result()

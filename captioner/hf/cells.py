"""Image cells of a model of transformers: attention to each, and the part of the photo they cover."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from captioner.errors import CheckpointError
from captioner.photos.geometry import WHOLE, Box
from captioner.predict.explanations import attention_rollout

LEAST, MOST = 64, 1024  # pixels of the sides of the image that is measured
SNAP = 0.004  # smaller differences are those of rounded sizes and colours

Process = Callable[[Image.Image], Float[np.ndarray, "3 height width"]]


@dataclass(frozen=True)
class CellAttention:
    """Attention of one row of a batch, at the inputs that predict the tokens of its caption."""

    cells: Float[Tensor, "T layers heads L"]
    rollout: Float[Tensor, "T L"]


def grid_cells(
    image: Int[Tensor, " I"], config: Any, size: Sequence[int]
) -> tuple[Int[Tensor, " L"], tuple[int, int]]:
    """Return those of an image's tokens that are cells, and the grid; class tokens come first.

    ``image`` has the positions of its tokens; ``size`` is the height and width of the model's pixels.

    Raises:
        CheckpointError: the tokens are no grid.
    """
    vision = getattr(config, "vision_config", None) or config.encoder
    patch = getattr(vision, "patch_size", None) or max(size) + 1  # a CNN has none
    stride = patch if isinstance(patch, int) else patch[0]
    stride *= getattr(config, "scale_factor", None) or 1  # of pixel shuffle
    stride *= 2 ** max(len(getattr(vision, "depths", ())) - 1, 0)  # of Swin
    rows, columns = (side // stride for side in size)
    if not 0 < rows * columns <= len(image):
        raise CheckpointError(
            f"the {len(image)} image tokens of a {config.model_type} model are no grid of {rows} × "
            f"{columns}"
        )
    return image[len(image) - rows * columns :], (rows, columns)


def cross_attention(
    cross: Sequence[Float[Tensor, "heads S I"]],
    past: Sequence[Float[Tensor, "heads S S"]],
    queries: slice,
    cells: Int[Tensor, " L"],
) -> CellAttention:
    """Return attention of a decoder with cross-attention, at the inputs ``queries`` on the ``cells``.

    ``cross`` has the weights of each layer on the image tokens, ``past`` those on the text.
    """
    stacked = torch.stack(list(cross), 1)[:, :, queries][..., cells]  # (h, l, T, L)
    rollout = attention_rollout(past, cross)
    return CellAttention(stacked.permute(2, 1, 0, 3), rollout[queries][:, cells])


def self_attention(
    weights: Sequence[Float[Tensor, "heads S S"]], queries: slice, cells: Int[Tensor, " L"]
) -> CellAttention:
    """Return attention of a decoder that reads image and text as one sequence of S tokens.

    The rollout is the product of ½ (A + I) over the layers (Abnar, Zuidema 2020, equation 1).
    """
    stacked = torch.stack([layer[:, queries][..., cells] for layer in weights], 1)
    rollout = torch.eye(weights[0].shape[-1], device=weights[0].device, dtype=weights[0].dtype)
    for layer in weights:
        rollout = (layer.mean(0) @ rollout + rollout) / 2
    return CellAttention(stacked.permute(2, 1, 0, 3), rollout[queries][:, cells])


def placement(size: tuple[int, int], process: Process) -> Box:
    """Measure which part of a photo of this width and height the pixels of a processor cover.

    The part depends on how the processor resizes, crops and pads. It is given an image whose red and
    green are the coordinates and whose blue is full; it may scale the values of each channel.
    """
    factor = min(max(LEAST / min(size), 1), max(MOST / max(size), LEAST / min(size)))
    width, height = (max(round(side * factor), 1) for side in size)
    ramp = np.zeros((height, width, 3))
    ramp[..., 0] = (np.arange(width) + 0.5) / width
    ramp[..., 1] = (np.arange(height)[:, None] + 0.5) / height
    ramp[..., 2] = 1
    image = Image.fromarray((255 * ramp).round().astype(np.uint8))
    black, white = (process(Image.new("RGB", image.size, color)) for color in ("black", "white"))
    # Padding is the same in both images; elsewhere these are the values of 0 and 1.
    scale = white - black
    inside = np.abs(scale[2]) > np.abs(scale[2]).max() / 2
    values = (process(image) - black) / np.where(inside, scale, 1)
    columns, rows = np.flatnonzero(inside.any(0)), np.flatnonzero(inside.any(1))
    left, right = _ends(np.median(values[0][rows], 0), columns)
    top, bottom = _ends(np.median(values[1][:, columns], 1), rows)
    found = zip((left, top, right, bottom), WHOLE, strict=True)
    left, top, right, bottom = (end if abs(value - end) < SNAP else value for value, end in found)
    return left, top, right, bottom


def _ends(values: Float[np.ndarray, " n"], valid: np.ndarray) -> tuple[float, float]:
    """Fit a line through the coordinates of valid pixels; return it at both ends of the image."""
    margin = len(valid) // 16  # resizing bends the line at the borders
    used = valid[margin : len(valid) - margin]
    slope, start = np.polyfit(used + 0.5, values[used], 1)
    return float(start), float(start + slope * len(values))

"""The attention map of one word, drawn on the image."""

import itertools
from functools import cache

import contourpy
import numpy as np
from jaxtyping import Float, Float32, UInt8
from PIL import Image, ImageDraw

from captioner.errors import UsageError
from captioner.overlay.style import DEFAULT_STYLE, Look, Smoothing, Style, maps
from captioner.photos import images
from captioner.predict.caption import Caption

SIGMA = 20 / 16  # of the gaussian in cells: Xu et al. 2015 blurred cells of 16 pixels by 20
MARK_COLOR = "#19e6ff"  # cyan, which inferno does not contain
LEAST_PEAK = 3  # the least top of a shared colour scale, as a multiple of even attention
CONTOUR_STEPS = 8  # points of a contour line per cell
MAX_ASPECT = 6  # longer shapes are stretched to 6 : 1 where they are shown
Line = tuple[float, float, float, float]


def load_image(caption: Caption, photo: images.Source | None = None) -> Image.Image:
    """Return the upright photo of a caption; ``photo`` is needed if the caption has no path.

    ``photo`` may have another size than the captioned one, but not another shape.
    """
    source = caption.image if photo is None else photo
    if source is None:
        raise UsageError("the caption has no image path; give the image as photo=")
    image = images.load(source)
    width, height = caption.geometry.width, caption.geometry.height
    # Resizing rounds each side to whole pixels.
    if abs(image.width * height - image.height * width) > max(width, height) + max(image.size):
        raise UsageError("the photo has another shape than the captioned one; give the latter")
    return image


def fit(image: Image.Image, width: int, height: int) -> Image.Image:
    """Resize an image to fit a box; an image longer than 6 : 1 is stretched to 6 : 1."""
    wide, high = (max(side, max(image.size) / MAX_ASPECT) for side in image.size)
    factor = min(width / wide, height / high)
    return image.resize((round(wide * factor), round(high * factor)), Image.Resampling.LANCZOS)


def blend(
    caption: Caption, index: int, photo: images.Source | None = None, style: Style = DEFAULT_STYLE
) -> Image.Image:
    """Return the image, in its size, with the attention map of one word, counted from 0.

    ``photo`` is the image, if the caption has no path.
    """
    if not 0 <= index < len(caption.words):
        raise UsageError(f"words are counted from 0 to {len(caption.words) - 1}, got {index}")
    return draw_map(caption, index, load_image(caption, photo), style)


def draw_map(caption: Caption, index: int, image: Image.Image, style: Style) -> Image.Image:
    """Return a copy of the image with the colours and outlines of one word's map."""
    weights = maps(caption, style)[index]
    low, high = lowest(caption, style), peaks(caption, style)[index]
    if caption.geometry.boxes is None:
        values = upsample(weights, image.size, effective_smoothing(caption, style))
    else:
        values = paint_boxes(weights[0], relative_boxes(caption), image.size)
    levels = np.clip((values - low) / max(high - low, 1e-30), 0, 1)
    colors = color_table(style.look)[(255 * levels).round().astype(np.uint8)]
    photo = np.asarray(image.convert("L").convert("RGB") if style.look == "paper" else image)
    alpha = colors[..., 3:] / np.float32(255) * np.float32(style.opacity)
    blended = photo * (1 - alpha) + colors[..., :3] * alpha
    drawn = Image.fromarray(blended.round().astype(np.uint8))

    thickness = max(1, round(max(image.size) / 160))
    if caption.geometry.boxes is not None:
        strengths = np.clip((weights[0] - low) / max(high - low, 1e-30), 0, 1)
        return _draw_boxes(drawn, relative_boxes(caption), strengths, thickness)
    rows, columns = caption.geometry.grid
    scale = (image.width / columns, image.height / rows) * 2
    edge = (image.width - 1, image.height - 1) * 2
    lines = np.minimum(np.reshape(outlines(caption, index, style), (-1, 4)) * scale, edge)
    for color, width in (("black", thickness + 2), (MARK_COLOR, thickness)):
        for line in lines.tolist():
            ImageDraw.Draw(drawn).line(line, color, width)
    return drawn


def relative_boxes(caption: Caption) -> Float[np.ndarray, "L 4"]:
    """Return the boxes of a caption's regions as fractions of the image's width and height."""
    geometry = caption.geometry
    return np.reshape(geometry.boxes or (), (-1, 4)) / ((geometry.width, geometry.height) * 2)


def paint_boxes(
    weights: Float[np.ndarray, " L"], boxes: Float[np.ndarray, "L 4"], size: tuple[int, int]
) -> Float32[np.ndarray, "height width"]:
    """Return for each of (width, height) pixels the largest weight of the boxes that cover it."""
    pixels = np.zeros(size[::-1], np.float32)
    corners = (boxes * (size * 2)).round().astype(int)
    for index in weights.argsort():
        left, top, right, bottom = corners[index]
        pixels[top:bottom, left:right] = weights[index]
    return pixels


def _draw_boxes(
    image: Image.Image, boxes: Float[np.ndarray, "L 4"], strengths: Float[np.ndarray, " L"],
    thickness: int,
) -> Image.Image:  # fmt: skip
    """Draw the outlines of boxes, the stronger the more opaque; those of strength 0 are left out."""
    corners = (boxes * (image.size * 2)).round() - (0, 0, 1, 1)
    for index in strengths.argsort():
        if strengths[index] > 0.01:
            outlined, (left, top, right, bottom) = image.copy(), corners[index].tolist()
            box = left, top, max(left, right), max(top, bottom)
            for color, width in (("black", thickness + 2), (MARK_COLOR, thickness)):
                ImageDraw.Draw(outlined).rectangle(box, outline=color, width=width)
            image = Image.blend(image, outlined, float(strengths[index]))
    return image


@cache
def color_table(look: Look) -> UInt8[np.ndarray, "256 4"]:
    """Return the colour and the opacity of 256 levels, from the lowest to the highest.

    ``glow`` goes from transparent over purple and orange to pale yellow, the upper part of inferno,
    which is readable without colour vision. ``paper`` goes from half transparent black to white.
    """
    from matplotlib import colormaps  # slow to import, and needed only for drawing

    levels = np.linspace(0, 1, 256)
    if look == "paper":
        colors, opacity = colormaps["gray"](levels), 0.6 + 0.4 * levels
    else:
        colors, opacity = colormaps["inferno"](0.35 + 0.65 * levels), np.minimum(1, 1.6 * levels)
    return np.asarray((255 * np.c_[colors[:, :3], opacity]).round(), np.uint8)


def upsample(
    cells: Float[np.ndarray, "rows columns"], size: tuple[int, int], smoothing: Smoothing
) -> Float32[np.ndarray, "height width"]:
    """Resize a map to (width, height) pixels, so that each cell covers its own area of the image.

    A flat map stays flat. Negative values, which bicubic interpolation can produce, become 0.
    """
    cells = cells.astype(np.float32)
    if smoothing == "gaussian":
        (width, height), (rows, columns) = size, cells.shape
        pixels = _gaussian(height, rows) @ cells @ _gaussian(width, columns).T
    else:
        method = Image.Resampling.BICUBIC if smoothing == "bicubic" else Image.Resampling.NEAREST
        pixels = np.asarray(Image.fromarray(cells).resize(size, method))
    return np.asarray(np.maximum(pixels, 0))


def _gaussian(pixels: int, cells: int) -> Float32[np.ndarray, "pixels cells"]:
    """Return the weight of each cell at each pixel along one axis; rows sum to 1."""
    centers = (np.arange(pixels) + 0.5) * cells / pixels
    distances = centers[:, None] - (np.arange(cells) + 0.5)
    kernel = np.exp(-((distances / SIGMA) ** 2) / 2)
    return np.asarray(kernel / kernel.sum(1, keepdims=True), np.float32)


def lowest(caption: Caption, style: Style) -> float:
    """Return the weight up to which nothing is painted: even attention in ``glow``, otherwise 0."""
    rows, columns = caption.geometry.grid
    return 1 / (rows * columns) if style.look == "glow" else 0.0


def peaks(caption: Caption, style: Style) -> list[float]:
    """Return for each word the smallest weight that is drawn in the lightest colour.

    With a shared scale, this is the mean of the maxima of all words, so that one very sharp map does not
    make the others faint, and in ``glow`` at least three times even attention. With the scale ``own``,
    it is the maximum of the word's own map. A gaussian lowers the maxima of the maps.
    """
    size, smoothing = caption.geometry.grid[::-1], effective_smoothing(caption, style)
    maxima = [float(upsample(cells, size, smoothing).max()) for cells in maps(caption, style)]
    if style.scale == "own":
        return [max(maximum, 1.05 * lowest(caption, style)) for maximum in maxima]
    shared = max(float(np.mean(maxima)), LEAST_PEAK * lowest(caption, style))
    return [shared] * len(maxima)


def effective_smoothing(caption: Caption, style: Style) -> Smoothing:
    """Return the smoothing of the style; chosen cells and regions with boxes are not smoothed."""
    cells = caption.attends == "soft" and caption.geometry.boxes is None
    return style.smoothing if cells else "none"


def outlines(caption: Caption, index: int, style: Style) -> list[Line]:
    """Return the lines (x, y, x, y) to draw over a map, in cells from the top left of the grid.

    They are the border of the cells that hard attention chose or of the window of local attention,
    a cross at the centre of this window, and with ``style.contours`` the line at half of the scale.
    There are none if the regions have boxes, whose outlines are drawn instead.
    """
    if caption.geometry.boxes is not None:
        return []
    lines = _contours(caption, index, style) if style.contours else []
    if caption.attends != "soft" or caption.window is not None:
        inside = np.pad(maps(caption, style)[index] > 0, 1)
        horizontal = np.argwhere(inside[:-1, 1:-1] != inside[1:, 1:-1]).astype(float).tolist()
        vertical = np.argwhere(inside[1:-1, :-1] != inside[1:-1, 1:]).astype(float).tolist()
        lines += [(x, y, x + 1, y) for y, x in horizontal]
        lines += [(x, y, x, y + 1) for y, x in vertical]
    if caption.centre is not None:
        (y, x), (rows, columns) = caption.centre[index].tolist(), caption.geometry.grid
        width, height = caption.geometry.width, caption.geometry.height
        arm = max(width, height) / 40
        right, down = arm * columns / width, arm * rows / height
        lines += [(x - right, y, x + right, y), (x, y - down, x, y + down)]
    return lines


def _contours(caption: Caption, index: int, style: Style) -> list[Line]:
    rows, columns = caption.geometry.grid
    size = (columns * CONTOUR_STEPS, rows * CONTOUR_STEPS)
    values = upsample(maps(caption, style)[index], size, effective_smoothing(caption, style))
    x, y = ((np.arange(count) + 0.5) / CONTOUR_STEPS for count in size)
    middle = (lowest(caption, style) + peaks(caption, style)[index]) / 2
    return [
        (*start, *end)
        for line in contourpy.contour_generator(x, y, values).lines(middle)
        for start, end in itertools.pairwise(np.asarray(line).round(3).tolist())
    ]

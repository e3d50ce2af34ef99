"""The attention map of one word, drawn on the image."""

import itertools
from functools import cache

import contourpy
import numpy as np
from jaxtyping import Bool
from PIL import Image, ImageDraw, ImageFont

from captioner import images
from captioner.caption import Caption
from captioner.errors import UsageError
from captioner.overlay import colormap
from captioner.overlay.style import DEFAULT_STYLE, Smoothing, Style, maps

MARK_COLOR = "#19e6ff"  # cyan, which inferno does not contain
LEAST_PEAK = 3  # the least top of a shared colour scale, as a multiple of even attention
CONTOUR_STEPS = 8  # points of a contour line per cell
Line = tuple[float, float, float, float]


def load_image(
    caption: Caption, image: images.Source | None = None, longest_side: int | None = None
) -> Image.Image:
    """Return the upright image of a caption, resized to ``longest_side`` pixels unless it is None.

    ``image`` is needed if the caption has no path; it may have another size than the captioned one.
    """
    source = caption.image if image is None else image
    if source is None:
        raise UsageError("the caption has no image path; give the image as photo=")
    loaded = images.load(source)
    width, height = caption.geometry.width, caption.geometry.height
    # Resizing rounds each side to whole pixels.
    tolerance = max(width, height) + max(loaded.size)
    if abs(loaded.width * height - loaded.height * width) > tolerance:
        raise UsageError(
            f"the photo is {loaded.width} x {loaded.height} pixels and the captioned photo was "
            f"{width} x {height}; give the photo that was captioned"
        )
    if longest_side is None:
        return loaded
    if longest_side < 1:
        raise UsageError(f"the longest side must be 1 pixel or more, got {longest_side}")
    factor = longest_side / max(loaded.size)
    resized = (max(1, round(loaded.width * factor)), max(1, round(loaded.height * factor)))
    return loaded.resize(resized, Image.Resampling.LANCZOS)


def blend(
    caption: Caption,
    index: int,
    photo: images.Source | None = None,
    style: Style = DEFAULT_STYLE,
    longest_side: int | None = None,
) -> Image.Image:
    """Return the image with the attention map of one word.

    Args:
        caption: a caption.
        index: index of the word, from 0.
        photo: the image, if the caption has no path.
        style: how to draw. A map with its own scale is labelled in the corner.
        longest_side: longest side of the result in pixels; None keeps the size of the image.
    """
    if not 0 <= index < len(caption.words):
        raise UsageError(f"words are counted from 0 to {len(caption.words) - 1}, got {index}")
    drawn = draw_map(caption, index, load_image(caption, photo, longest_side), style)
    if style.scale == "own":
        _add_label(drawn, f"own scale, to {peaks(caption, style)[index]:.2g}")
    return drawn


def draw_map(caption: Caption, index: int, image: Image.Image, style: Style) -> Image.Image:
    """Return a copy of the image with the colours and outlines of one word's map."""
    weights = maps(caption, style)[index]
    values = colormap.upsample(weights, image.size, effective_smoothing(caption, style))
    low, high = lowest(caption, style), peaks(caption, style)[index]
    colors = colormap.colorize(values, low, high, style.look)
    photo = np.asarray(image.convert("L").convert("RGB") if style.look == "paper" else image)
    alpha = colors[..., 3:] / np.float32(255) * np.float32(style.opacity)
    blended = photo * (1 - alpha) + colors[..., :3] * alpha
    drawn = Image.fromarray(blended.round().astype(np.uint8))
    _draw_outlines(drawn, caption, index, style)
    return drawn


def lowest(caption: Caption, style: Style) -> float:
    """Return the weight up to which nothing is painted.

    In ``glow``, it is that of even attention, 1 / (rows · columns); otherwise it is 0.
    """
    rows, columns = caption.geometry.grid
    return 1 / (rows * columns) if style.look == "glow" else 0.0


def peaks(caption: Caption, style: Style) -> list[float]:
    """Return for each word the weight of the lightest colour: its own maximum or the caption's.

    The maximum is taken after smoothing, because a gaussian lowers it. In ``glow``, it is at least
    three times even attention, so that nearly even maps hardly glow.
    """
    rows, columns = caption.geometry.grid
    smoothing = effective_smoothing(caption, style)
    maxima = [
        float(colormap.upsample(weights, (columns, rows), smoothing).max())
        for weights in maps(caption, style)
    ]
    if style.scale == "own":
        return [max(maximum, 1.05 * lowest(caption, style)) for maximum in maxima]
    return [max([*maxima, LEAST_PEAK * lowest(caption, style)])] * len(maxima)


def effective_smoothing(caption: Caption, style: Style) -> Smoothing:
    """Return the smoothing of the style; cells that hard attention chose are not smoothed."""
    return style.smoothing if caption.attends == "soft" else "none"


def outlines(
    caption: Caption, index: int, style: Style
) -> tuple[list[Line], tuple[float, float] | None]:
    """Return the lines and the centre to draw over a map, in cells from the top left of the grid.

    Lines (x, y, x, y) surround the cells that hard attention chose or the window of local attention.
    With ``style.contours``, they also include the contours. The centre (x, y) is that of the window;
    None for other mechanisms.
    """
    lines = _contours(caption, index, style) if style.contours else []
    if caption.attends != "soft" or caption.window is not None:
        lines += _border(maps(caption, style)[index] > 0)
    if caption.centre is None:
        return lines, None
    row, column = caption.centre[index]
    return lines, (float(column), float(row))


def _contours(caption: Caption, index: int, style: Style) -> list[Line]:
    """Return the lines at half of the colour scale."""
    rows, columns = caption.geometry.grid
    size = (columns * CONTOUR_STEPS, rows * CONTOUR_STEPS)
    values = colormap.upsample(
        maps(caption, style)[index], size, effective_smoothing(caption, style)
    )
    x, y = ((np.arange(count) + 0.5) / CONTOUR_STEPS for count in size)
    middle = (lowest(caption, style) + peaks(caption, style)[index]) / 2
    return [
        (*start, *end)
        for line in contourpy.contour_generator(x, y, values).lines(middle)
        for start, end in itertools.pairwise(np.asarray(line).round(3).tolist())
    ]


def _border(cells: Bool[np.ndarray, "rows columns"]) -> list[Line]:
    """Return the border of a set of cells as lines (x, y, x, y) from cell corner to cell corner."""
    padded = np.pad(cells, 1)
    horizontal = (padded[:-1] != padded[1:])[:, 1:-1]
    vertical = (padded[:, :-1] != padded[:, 1:])[1:-1]
    lines = [(float(x), float(y), float(x) + 1, float(y)) for y, x in np.argwhere(horizontal)]
    lines += [(float(x), float(y), float(x), float(y) + 1) for y, x in np.argwhere(vertical)]
    return lines


def _draw_outlines(image: Image.Image, caption: Caption, index: int, style: Style) -> None:
    """Draw ``outlines`` into the image, on a wider black line so that they stay visible."""
    rows, columns = caption.geometry.grid
    scale_x, scale_y = image.width / columns, image.height / rows
    lines, centre = outlines(caption, index, style)
    thickness = max(1, round(max(image.size) / 160))
    lines = [(x * scale_x, y * scale_y, u * scale_x, v * scale_y) for x, y, u, v in lines]
    if centre is not None:
        x, y, arm = centre[0] * scale_x, centre[1] * scale_y, 4 * thickness
        lines += [(x - arm, y, x + arm, y), (x, y - arm, x, y + arm)]
    draw = ImageDraw.Draw(image)
    right, bottom = image.width - 1, image.height - 1
    for color, width in (("black", thickness + 2), (MARK_COLOR, thickness)):
        for x, y, u, v in lines:
            draw.line((min(x, right), min(y, bottom), min(u, right), min(v, bottom)), color, width)


def _add_label(image: Image.Image, text: str) -> None:
    """Draw a line of text into the lower left corner."""
    text_font = font(max(10, max(image.size) // 32))
    draw = ImageDraw.Draw(image)
    position = (6, image.height - 6)
    draw.rectangle(draw.textbbox(position, text, text_font, anchor="lb"), fill="black")
    draw.text(position, text, "white", text_font, anchor="lb")


@cache
def font(size: int) -> ImageFont.FreeTypeFont:
    """Return DejaVu Sans, which comes with matplotlib, in this size in pixels."""
    from matplotlib import font_manager

    return ImageFont.truetype(font_manager.findfont("DejaVu Sans"), size)

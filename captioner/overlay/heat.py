"""One word's map on the photo."""

import numpy as np
from jaxtyping import Bool
from PIL import Image, ImageDraw

from captioner import images
from captioner.errors import UsageError
from captioner.overlay import colours
from captioner.overlay.lettering import font
from captioner.overlay.style import Smoothing, Style, chose_cells, maps
from captioner.predictor import Caption

MARK = "#19e6ff"  # cyan: inferno has no blue, and few photos are as bright
Line = tuple[float, float, float, float]


def photo_of(
    caption: Caption, photo: images.Source | None = None, longest_side: int | None = None
) -> Image.Image:
    """The upright original of a caption, at its own size unless a longest side is given.

    Args:
        caption: whose picture.
        photo: the picture, if the caption does not know its path or another copy is meant.
        longest_side: in pixels; a smaller picture is enlarged to it, so that its cells can be seen.

    Raises:
        ImageError: it cannot be read.
        UsageError: the caption has no path and no photo is given, or the photo is of another shape.
    """
    source = caption.image if photo is None else photo
    if source is None:
        raise UsageError("the caption's picture had no path: give it as photo=")
    picture = images.load(source)
    width, height = caption.geometry.width, caption.geometry.height
    # Another size of the same picture will do; the maps lie on it all the same.
    if abs(picture.width * height - picture.height * width) > max(width, height) + max(
        picture.size
    ):
        raise UsageError(
            f"the photo is {picture.width} x {picture.height} and the caption's picture was "
            f"{width} x {height}: give the photo that was captioned"
        )
    if longest_side is None:
        return picture
    if longest_side < 1:
        raise UsageError(f"the longest side must be 1 pixel or more, got {longest_side}")
    factor = longest_side / max(picture.size)
    wide, high = (max(1, round(side * factor)) for side in picture.size)
    return picture.resize((wide, high), Image.Resampling.LANCZOS)


def blend(
    caption: Caption,
    index: int,
    photo: images.Source | None = None,
    style: Style = Style(),  # noqa: B008 - frozen
    longest_side: int | None = None,
) -> Image.Image:
    """The original photo under the map of one word.

    Args:
        caption: with or without details.
        index: which word, from 0.
        photo: as for ``photo_of``.
        style: how to draw. A map with its own scale says so in the corner.
        longest_side: of the result, in pixels; the photo's own if not given.

    Raises:
        ImageError: the photo cannot be read.
        UsageError: no such word, layer or head; no photo, or another one.
    """
    if not 0 <= index < len(caption.words):
        raise UsageError(f"words are counted from 0 to {len(caption.words) - 1}, got {index}")
    picture = photo_of(caption, photo, longest_side)
    drawn = lay(caption, index, picture, style)
    if style.scale == "own":
        tag(drawn, f"own scale, to {tops(caption, style)[index]:.2g}")
    return drawn


def lay(caption: Caption, index: int, picture: Image.Image, style: Style) -> Image.Image:
    """``blend`` on a picture that is ready: colours, then marks."""
    weights, smoothing = maps(caption, style)[index], smoothing_of(caption, style)
    values = colours.spread(weights, picture.size, smoothing)
    heat = colours.picture(values, tops(caption, style)[index])
    drawn = Image.blend(picture, heat, style.opacity)
    draw_marks(drawn, caption, index, style)
    return drawn


def tops(caption: Caption, style: Style) -> list[float]:
    """For each word the value of the lightest colour: the caption's greatest weight, or its own.

    A gaussian lowers peaks, so it is what it leaves of them that counts.
    """
    rows, columns = caption.geometry.grid
    smoothing = smoothing_of(caption, style)
    peaks = [
        float(colours.spread(weights, (columns, rows), smoothing).max())
        for weights in maps(caption, style)
    ]
    return peaks if style.scale == "own" else [max(peaks, default=0.0)] * len(peaks)


def smoothing_of(caption: Caption, style: Style) -> Smoothing:
    """Hard attention chose cells: nothing runs from one into the next."""
    return "none" if chose_cells(caption) else style.smoothing


def marks(
    caption: Caption, index: int, style: Style
) -> tuple[list[Line], tuple[float, float] | None]:
    """What is drawn over a map, in cells from the top left corner of the grid.

    Returns:
        Lines (x, y, x, y) around the cells that hard attention chose or that local attention's window
        reaches; and the window's centre (x, y).
    """
    lines: list[Line] = []
    if chose_cells(caption) or caption.window is not None:
        lines = outline(maps(caption, style)[index] > 0)
    if caption.centre is None:
        return lines, None
    row, column = caption.centre[index]
    return lines, (float(column), float(row))


def outline(cells: Bool[np.ndarray, "rows columns"]) -> list[Line]:
    """The border of these cells as lines (x, y, x, y) from cell corner to cell corner."""
    inside = np.pad(cells, 1)
    across, down = inside[:-1] != inside[1:], inside[:, :-1] != inside[:, 1:]
    lines: list[Line] = []
    for y, x in zip(*np.nonzero(across[:, 1:-1]), strict=True):
        lines.append((float(x), float(y), float(x) + 1, float(y)))
    for y, x in zip(*np.nonzero(down[1:-1]), strict=True):
        lines.append((float(x), float(y), float(x), float(y) + 1))
    return lines


def draw_marks(picture: Image.Image, caption: Caption, index: int, style: Style) -> None:
    """Outlines and the centre of local attention, with a dark rim that keeps them visible."""
    rows, columns = caption.geometry.grid
    across, down = picture.width / columns, picture.height / rows
    lines, centre = marks(caption, index, style)
    thin = max(1, round(max(picture.size) / 160))
    strokes = [(x * across, y * down, u * across, v * down) for x, y, u, v in lines]
    if centre is not None:
        x, y, arm = centre[0] * across, centre[1] * down, 4 * thin
        strokes += [(x - arm, y, x + arm, y), (x, y - arm, x, y + arm)]
    draw = ImageDraw.Draw(picture)
    right, bottom = picture.width - 1, picture.height - 1
    for colour, width in (("black", thin + 2), (MARK, thin)):
        for x, y, u, v in strokes:
            draw.line(
                [(min(x, right), min(y, bottom)), (min(u, right), min(v, bottom))], colour, width
            )


def tag(picture: Image.Image, text: str) -> None:
    """A line of text in the lower left corner."""
    letters = font(max(10, max(picture.size) // 32), text)
    draw = ImageDraw.Draw(picture)
    place = (6, picture.height - 6)
    draw.rectangle(draw.textbbox(place, text, letters, anchor="lb"), fill="black")
    draw.text(place, text, "white", letters, anchor="lb")


def even(caption: Caption) -> float:
    """The weight of every cell if the model looked everywhere alike."""
    rows, columns = caption.geometry.grid
    return 1 / (rows * columns)

"""All words of a caption in one figure, and the attention to earlier words as a matrix."""

import itertools
import textwrap
import warnings
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from captioner import images
from captioner.caption import Caption
from captioner.errors import UsageError
from captioner.overlay import colormap
from captioner.overlay.heatmap import draw_map, load_image, lowest, peaks
from captioner.overlay.style import (
    DEFAULT_STYLE,
    Style,
    content_words,
    describe_location,
    describe_mechanism,
    entropies,
    maps,
    select_head,
    sentence,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 300
COLUMNS = 5
TILE, GAP, MARGIN = 1.7, 0.14, 0.25  # inches
LINE, WORD, NOTES, LEGEND = 0.27, 0.22, 0.32, 0.5  # heights in inches
TITLE, TEXT, SMALL = 13.0, 9.0, 6.0  # points
INK, GRAY = "#1b1b1f", "#62626b"
OTHER_FONTS = ("Noto Sans CJK JP", "Noto Sans", "Arial Unicode MS")  # if they are installed


def figure(
    caption: Caption,
    photo: images.Source | None = None,
    style: Style = DEFAULT_STYLE,
    dpi: int = DPI,
) -> Image.Image:
    """Return a figure: the photo and the maps of the content words, then those of the other words.

    Args:
        caption: a caption.
        photo: the image, if the caption has no path.
        style: how to draw; with ``content_words``, the other words are left out.
        dpi: pixels per inch.
    """
    return Image.open(BytesIO(_file(_plot(caption, photo, style), "png", dpi))).convert("RGB")


def word_attention(
    caption: Caption, layer: int | None = None, head: int | None = None
) -> Image.Image:
    """Return a heat map with a row per written word and a column per word that it attends to.

    Args:
        caption: a caption with details, from a decoder with self-attention or intra-attention.
        layer: index of the layer, from 0; None for the mean over layers.
        head: index of the head, from 0; None for the mean over heads.
    """
    if caption.past is None:
        raise UsageError(
            f"no attention to earlier words: {caption.mechanism or caption.model} does not attend to "
            "them, or details=True was not given"
        )
    weights = select_head(caption.past, layer, head)
    count, layers, heads, _ = caption.past.shape
    side = 0.34 * max(count, 8)
    drawing = _new_figure(side + 1.1, side + 1.5)
    axes = _axes(drawing, 0.9, 1.0, side, side)
    axes.imshow(
        np.ma.masked_array(weights, np.triu(np.ones_like(weights), 1)), cmap="inferno", vmin=0
    )
    for t, j in itertools.combinations_with_replacement(range(count), 2):
        ink = "black" if weights[j, t] > 0.59 * weights.max() else "white"
        center: Any = {"ha": "center", "va": "center", "size": SMALL}
        axes.text(t, j, f"{weights[j, t]:.2f}", color=ink, **center)
    words: Any = {"parse_math": False, "size": TEXT}
    axes.set_xticks(range(count), ("<start>", *caption.words[:-1]), rotation=90, **words)
    axes.set_yticks(range(count), caption.words, **words)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_frame_on(False)
    shown_layer = f"mean of {layers} layers" if layer is None else f"layer {layer + 1}"
    shown_head = f"mean of {heads} heads" if head is None else f"head {head + 1}"
    note = f"row: the word written; column: the word read; {shown_layer}, {shown_head}"
    _write(drawing, 0.2, side + 1.2, note, SMALL, GRAY)
    return Image.open(BytesIO(_file(drawing, "png", 150))).convert("RGB")


def _export(kind: str, caption: Caption, photo: images.Source | None, style: Style) -> bytes:
    """Return the figure as a file; an export format."""
    return _file(_plot(caption, photo, style), kind, DPI)


figure_png, figure_svg, figure_pdf = (partial(_export, kind) for kind in ("png", "svg", "pdf"))


def word_attention_png(caption: Caption, _: images.Source | None, style: Style) -> bytes | None:
    """Return ``word_attention`` as a PNG file, or None if there is none; an export format.

    Heads are averaged, because the style's head is one of the heads that attend to the image.
    """
    if caption.past is None:
        return None
    stream = BytesIO()
    word_attention(caption, style.layer).save(stream, "PNG")
    return stream.getvalue()


def describe_spread(caption: Caption, index: int, style: Style) -> str:
    """Say over how many cells the attention of a word spreads."""
    weights = maps(caption, style)[index]
    if describe_location(weights) == "everywhere":
        return "looked everywhere"
    return f"{np.exp(entropies(weights[None])[0]):.1f} of {weights.size} cells"


def _plot(caption: Caption, photo: images.Source | None, style: Style) -> "Figure":
    """Return the figure: the sentence, large tiles, small tiles, and a legend."""
    image = load_image(caption, photo, round(TILE * DPI))
    ratio = min(max(image.height / image.width, 0.2), 2)
    content = content_words(caption)
    others = [i for i in range(len(caption.words)) if i not in content and not style.content_words]
    rows = -(-(1 + len(content)) // COLUMNS)
    columns = max(3, -(-(1 + len(content)) // rows))
    width = columns * (TILE + GAP) - GAP
    small = (width + GAP) / (2 * columns) - GAP
    title = textwrap.wrap(sentence(caption), int(11 * width))
    top = MARGIN + LINE * len(title) + 0.1
    middle = top + rows * (WORD + TILE * ratio + NOTES)
    bottom = middle + -(-len(others) // (2 * columns)) * (WORD + small * ratio + NOTES)
    drawing = _new_figure(width + 2 * MARGIN, bottom + LEGEND)
    _write(drawing, MARGIN, MARGIN, "\n".join(title), TITLE, INK)
    for indices, y, side in (([None, *content], top, TILE), (others, middle, small)):
        per_row = round((width + GAP) / (side + GAP))
        for number, index in enumerate(indices):
            row, column = divmod(number, per_row)
            x, line = MARGIN + column * (side + GAP), y + row * (WORD + side * ratio + NOTES)
            word = "photo" if index is None else caption.words[index]
            ink = INK if side == TILE and index is not None else GRAY
            _write(drawing, x, line, textwrap.shorten(word, int(13 * side)), TEXT, ink)
            axes = _axes(drawing, x, line + WORD, side, side * ratio)
            axes.imshow(image if index is None else draw_map(caption, index, image, style))
            axes.set_axis_off()
            if index is not None:
                notes = "\n".join(_notes(caption, index, style))
                _write(drawing, x, line + WORD + side * ratio + 0.05, notes, SMALL, GRAY)
    _draw_legend(drawing, caption, style, bottom)
    return drawing


def _notes(caption: Caption, index: int, style: Style) -> list[str]:
    """Return the lines below a map: its spread, an unusual sum of weights, and its own scale."""
    total = float(maps(caption, style)[index].sum())
    notes = [describe_spread(caption, index, style)]
    if index in caption.unknown:
        notes.append("unknown to the model")
    if abs(total - 1) > 0.01:  # Luong's local-p multiplies by a gaussian after the softmax
        notes.append(f"weights sum to {total:.2g}")
    if style.scale == "own":
        notes.append(f"own scale, to {peaks(caption, style)[index]:.2g}")
    return notes


def _draw_legend(drawing: "Figure", caption: Caption, style: Style, y: float) -> None:
    """Draw the colour bar with its numbers, and the grid, scale, model and log-probability."""
    low, high = lowest(caption, style), max(peaks(caption, style), default=0.0)
    axes = _axes(drawing, MARGIN, y + 0.02, TILE, 0.1)
    axes.imshow(colormap.table(style.look)[None], aspect="auto")
    axes.set_axis_off()
    start = f"even ({low:.2g})" if low else "0"
    end = "own" if style.scale == "own" else f"{high:.2g}"
    _write(drawing, MARGIN, y + 0.15, start, SMALL, GRAY)
    _write(drawing, MARGIN + TILE, y + 0.15, end, SMALL, GRAY, ha="right")
    rows, columns = caption.geometry.grid
    scale = "one scale for all words" if style.scale == "shared" else "each word on its own scale"
    lines = [
        f"attention weight per cell of the {rows} × {columns} grid; {scale}",
        f"{caption.model}: {describe_mechanism(caption, style)}; log-probability {caption.log_prob:.2f}",
    ]
    _write(drawing, MARGIN + TILE + GAP, y, "\n".join(lines), SMALL, GRAY)


def _new_figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure((width, height), facecolor="white")


def _axes(drawing: "Figure", x: float, y: float, width: float, height: float) -> Any:
    """Add axes at a place in inches from the top left corner."""
    right, bottom = drawing.get_size_inches()
    box = (x / right, 1 - (y + height) / bottom, width / right, height / bottom)
    return drawing.add_axes(box, anchor="NW")


def _write(
    drawing: "Figure", x: float, y: float, text: str, size: float, color: str, ha: str = "left"
) -> None:
    """Write text below a place in inches from the top left corner."""
    right, bottom = drawing.get_size_inches()
    options: dict[str, Any] = {"size": size, "color": color, "ha": ha, "va": "top"}
    drawing.text(x / right, 1 - y / bottom, text, parse_math=False, **options)


def _file(drawing: "Figure", kind: str, dpi: int) -> bytes:
    """Return the figure as a PNG, SVG or PDF file, without the date."""
    from matplotlib import font_manager, rc_context

    installed = {entry.name for entry in font_manager.fontManager.ttflist}
    families = ["DejaVu Sans", *(name for name in OTHER_FONTS if name in installed)]
    date = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    stream = BytesIO()
    with rc_context({"font.family": families, "svg.hashsalt": "fixed"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        drawing.savefig(stream, format=kind, dpi=dpi, metadata=date)
    return stream.getvalue()

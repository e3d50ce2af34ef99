"""All words of a caption in one figure, and the attention to earlier words as a matrix."""

import base64
import re
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from threading import Lock
from typing import Any

import numpy as np
from matplotlib import font_manager, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image

from captioner.errors import UsageError
from captioner.overlay.heatmap import color_table, draw_map, fit, load_image, lowest, peaks
from captioner.overlay.style import (
    DEFAULT_STYLE,
    Style,
    content_words,
    describe_measure,
    describe_mechanism,
    describe_spread,
    maps,
    select_head,
    sentence,
)
from captioner.photos import images
from captioner.predict.caption import Caption

DPI = 300
PDF_DPI = 200  # of the maps in PDF files, where matplotlib cannot store them as JPEG
COLUMNS = 5
TILE, GAP, MARGIN = 1.7, 0.14, 0.25  # inches
LINE, WORD, NOTES, LEGEND = 0.27, 0.22, 0.32, 0.5  # heights in inches
TITLE, TEXT, SMALL = 13.0, 9.0, 6.0  # points
INK, GRAY = "#1b1b1f", "#62626b"
OTHER_FONTS = ("Noto Sans CJK JP", "Noto Sans", "Arial Unicode MS")  # if they are installed
LOCK = Lock()


@contextmanager
def _settings() -> Iterator[None]:
    """Set the defaults of text, and make files the same each time; for one thread at a time."""
    installed = {entry.name for entry in font_manager.fontManager.ttflist}
    settings: Any = {
        "font.family": ["DejaVu Sans", *(name for name in OTHER_FONTS if name in installed)],
        "font.size": SMALL,
        "figure.facecolor": "white",
        "text.color": GRAY,
        "text.parse_math": False,
        "svg.hashsalt": "fixed",
        "image.composite_image": False,
    }
    with LOCK, rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


@_settings()
def figure(
    caption: Caption,
    photo: images.Source | None = None,
    style: Style = DEFAULT_STYLE,
    dpi: int = DPI,
) -> Image.Image:
    """Return a figure: the photo and the maps of the content words, then those of the other words.

    ``photo`` is the image, if the caption has no path; ``dpi`` are pixels per inch.
    """
    return _image(_plot(caption, photo, style), dpi)


@_settings()
def word_attention(
    caption: Caption, layer: int | None = None, head: int | None = None
) -> Image.Image:
    """Return a heat map with a row per written word and a column per word that it attends to.

    Layers and heads are counted from 0; None means the mean over them. The caption must have
    details and come from a decoder that attends to words.
    """
    if caption.past is None:
        raise UsageError(
            f"no attention to earlier words: {caption.mechanism or caption.model} does not attend to "
            "them, or details=True was not given"
        )
    weights = select_head(caption.past, layer, head)
    count, layers, heads, _ = caption.past.shape
    side = 0.34 * max(count, 8)
    margins = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.15)  # inches
    drawing = Figure((side + 1.1, side + 1.5), layout=margins)
    axes = drawing.add_subplot(frame_on=False)
    later = np.triu(np.ones_like(weights), 1)
    axes.imshow(np.ma.masked_array(weights, later), cmap="inferno", vmin=0)
    for (row, column), weight in np.ndenumerate(weights):
        ink = "black" if weight > 0.59 * weights.max() else "white"
        if column <= row:
            axes.text(column, row, f"{weight:.2f}", color=ink, ha="center", va="center")
    axes.set_xticks(range(count), ("<start>", *caption.words[:-1]), rotation=90, size=TEXT)
    axes.set_yticks(range(count), caption.words, size=TEXT)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    shown_layer = f"mean of {layers} layers" if layer is None else f"layer {layer + 1}"
    shown_head = f"mean of {heads} heads" if head is None else f"head {head + 1}"
    note = f"row: the word written; column: the word read; {shown_layer}, {shown_head}"
    drawing.supxlabel(note, x=0.03, ha="left", size=SMALL)
    return _image(drawing, 150)


@_settings()
def _export(kind: str, caption: Caption, photo: images.Source | None, style: Style) -> bytes:
    """Return the figure as a file; an export format."""
    stream, dpi = BytesIO(), PDF_DPI if kind == "pdf" else DPI
    undated = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    _plot(caption, photo, style).savefig(stream, format=kind, dpi=dpi, metadata=undated)
    # Convert the images in SVG files to JPEG. Only image data can match so many characters.
    return re.sub(
        rb"data:image/png;base64,([\w+/=\n]{200,})",
        lambda png: images.data_url(images.load(base64.b64decode(png[1]))).encode(),
        stream.getvalue(),
    )


figure_png, figure_svg, figure_pdf = (partial(_export, kind) for kind in ("png", "svg", "pdf"))


def word_attention_png(caption: Caption, _: images.Source | None, style: Style) -> bytes | None:
    """Return ``word_attention`` as a PNG file, or None if there is none; an export format."""
    if caption.past is None:
        return None
    stream = BytesIO()  # without the style's head, which is one that attends to the image
    word_attention(caption, style.layer).save(stream, "PNG")
    return stream.getvalue()


def _plot(caption: Caption, photo: images.Source | None, style: Style) -> Figure:
    """Return the figure: the sentence, large tiles, small tiles, and a legend."""
    image = fit(load_image(caption, photo), round(TILE * DPI), round(TILE * DPI))
    ratio = min(image.height / image.width, 2)  # of the space for an image
    content = content_words(caption)
    others = [i for i in range(len(caption.words)) if i not in content and not style.content_words]
    rows = -(-(1 + len(content)) // COLUMNS)
    columns = max(3, -(-(1 + len(content)) // rows))
    width = columns * (TILE + GAP) - GAP
    small = (width + GAP) / (2 * columns) - GAP
    notes = {index: _notes(caption, index, style, TILE) for index in content}
    notes |= {index: _notes(caption, index, style, small) for index in others}
    title = textwrap.wrap(sentence(caption), int(11 * width))
    top = MARGIN + LINE * len(title) + 0.1
    high, low = (
        WORD + side * ratio + max([NOTES, *(0.12 + 0.1 * len(notes[i]) for i in indices)])
        for side, indices in ((TILE, content), (small, others))
    )  # of a row
    middle = top + rows * high
    bottom = middle + -(-len(others) // (2 * columns)) * low

    size = (width + 2 * MARGIN, bottom + LEGEND)
    drawing = Figure(size)  # one plot whose units are inches from the top left corner
    axes = drawing.add_axes((0, 0, 1, 1), xlim=(0, size[0]), ylim=(size[1], 0), autoscale_on=False)
    axes.set_axis_off()
    axes.text(MARGIN, MARGIN, "\n".join(title), size=TITLE, color=INK, va="top")
    for indices, start, side, row in (
        ([None, *content], top, TILE, high),
        (others, middle, small, low),
    ):
        per_row = columns if side == TILE else 2 * columns
        for number, index in enumerate(indices):
            x = MARGIN + number % per_row * (side + GAP)
            y = start + number // per_row * row
            word = "photo" if index is None else caption.words[index]
            ink = INK if side == TILE and index is not None else GRAY
            axes.text(x, y, textwrap.shorten(word, int(13 * side)), size=TEXT, color=ink, va="top")
            drawn = image if index is None else draw_map(caption, index, image, style)
            scale = min(side / image.width, side * ratio / image.height)
            right, end = x + scale * image.width, y + WORD + scale * image.height
            axes.imshow(drawn, extent=(x, right, end, y + WORD), aspect="auto")
            if index is not None:
                below = "\n".join(notes[index])
                axes.text(x, y + WORD + side * ratio + 0.05, below, va="top")
    _draw_legend(axes, caption, style, bottom)
    return drawing


def _notes(caption: Caption, index: int, style: Style, width: float) -> list[str]:
    """Return the lines below a map: its spread, an unusual sum of weights, and its own scale.

    They are wrapped to the width of the map in inches.
    """
    total = float(maps(caption, style)[index].sum())
    notes = [describe_spread(caption, index, style)]
    if index in caption.unknown:
        notes.append("unknown to the model")
    if caption.method != "attention" and abs(total - 1) > 0.01:
        notes.append(f"{100 * total:.0f} % of the strongest map")
    elif abs(total - 1) > 0.01 and not caption.has_sentinel:  # as with Luong's local-p
        notes.append(f"weights sum to {total:.2g}")
    if style.scale == "own":
        notes.append(f"own scale, to {peaks(caption, style)[index]:.2g}")
    return [line for note in notes for line in textwrap.wrap(note, int(22 * width))]


def _draw_legend(axes: Axes, caption: Caption, style: Style, y: float) -> None:
    low, right = lowest(caption, style), MARGIN + TILE
    top, scale = f"{peaks(caption, style)[0]:.2g} or more", "one scale for all words"
    if style.scale == "own":
        top, scale = "own", "each word on its own scale"
    bar = color_table(style.look)[None]
    axes.imshow(bar, extent=(MARGIN, right, y + 0.12, y + 0.02), aspect="auto")
    axes.text(MARGIN, y + 0.15, f"even ({low:.2g})" if low else "0", va="top")
    axes.text(right, y + 0.15, top, va="top", ha="right")
    text = (
        f"{describe_measure(caption, style)} per {caption.geometry.describe()}; {scale}\n"
        f"{caption.model}: {describe_mechanism(caption, style)}\n"
        f"log-probability {caption.log_prob:.2f}"
    )
    if caption.outside is not None:
        text += f"; {caption.outside.mean():.0%} of the attention is on no cell"
    axes.text(right + GAP, y, text, va="top")


def _image(drawing: Figure, dpi: int) -> Image.Image:
    """Return the figure as an image of any size: the limits of ``images.load`` are for photos."""
    drawing.set_dpi(dpi)
    canvas: Any = FigureCanvasAgg(drawing)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
